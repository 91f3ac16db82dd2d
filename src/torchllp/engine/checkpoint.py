"""Files that are either whole or not there, and states that load without running code."""

import io
import os
from pathlib import Path
from typing import Any

import torch

from torchllp.errors import LLPError


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``path`` so that a crash at any moment leaves the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.partial")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name must survive a power cut too
    finally:
        os.close(directory)


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
