"""States that are written whole and load without running code."""

import io
from pathlib import Path
from typing import Any

import torch

from torchllp.errors import LLPError
from torchllp.files import write_atomically


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors and plain values atomically."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read a state back, onto the CPU; only tensors and plain values are accepted."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise LLPError(f"{path}: not a checkpoint that can be read ({str(error).splitlines()[0]})") from error
