"""`llp models`."""

from torchllp.cli.console import show_table
from torchllp.models import MODELS


def models() -> None:
    """List the models."""
    show_table(["model", "what it is"], [(name, MODELS.entry(name).summary) for name in MODELS.names()])
