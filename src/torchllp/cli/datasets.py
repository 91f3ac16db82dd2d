"""`llp datasets`."""

from torchllp.cli.console import show_table
from torchllp.data import DATASETS


def datasets() -> None:
    """List the data sets."""
    show_table(["data set", "what it is"], [(name, DATASETS.entry(name).summary) for name in DATASETS.names()])
