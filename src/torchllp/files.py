"""Files that are either whole or not there."""

import os
from pathlib import Path

from torchllp.errors import LLPError


def check_directory_of(path: Path) -> None:
    """Raise unless there is a directory to write the file to."""
    if not path.parent.is_dir():
        raise LLPError(f"{path}: there is no such directory")


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``path`` so that a crash at any moment leaves the old file or the new one, never a part."""
    check_directory_of(path)
    if path.is_dir():
        raise LLPError(f"{path}: is a directory")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # of a disk that is full
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name must survive a power cut too
    finally:
        os.close(directory)
