"""What a training changes in its process, and gives back as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def borrowed_process(device: torch.device, threads: int | None) -> Iterator[None]:
    """Use this number of CPU threads (None: as it is) and the global random numbers, and restore both."""
    before = torch.get_num_threads()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_num_threads(threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
