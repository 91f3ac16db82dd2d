"""What torchrun has said of this process, read without importing torch."""

import os


def is_launched() -> bool:
    """Whether torchrun has started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return not is_launched() or os.environ.get("RANK", "0") == "0"


def local_rank() -> int:
    """Which of the processes on its machine this one is."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_launched() else 0
