"""A drawing as a PNG file."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from torchllp.files import write_atomically


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure whole, or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
