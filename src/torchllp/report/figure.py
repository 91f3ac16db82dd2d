"""A drawing as a PNG file."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from torchllp.errors import LLPError
from torchllp.files import write_atomically


def check_figure(path: Path) -> None:
    """Raise if a picture cannot be written to this path, before anything is computed for it."""
    if path.suffix.lower() != ".png":
        raise LLPError(f"{path}: pictures are written to .png files")
    if not path.parent.is_dir():
        raise LLPError(f"{path}: there is no such directory")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure whole, or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
