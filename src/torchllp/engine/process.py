"""What a training changes in its process, and gives back as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchllp.randomness import seed_of


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


@contextmanager
def seeded(purpose: str, *integers: int) -> Iterator[None]:
    """Random numbers on the CPU that are a function of a purpose and these integers; the caller's are left alone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_of(purpose, *integers))
        yield
