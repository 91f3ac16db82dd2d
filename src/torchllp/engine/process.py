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


def set_seed(seed: int, device: torch.device) -> None:
    """Seed the global random numbers of the CPU and of the device, and of no other.

    ``torch.manual_seed`` also keeps a call with its stack for every kind of device that is not there, each time.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


@contextmanager
def seeded(purpose: str, *integers: int) -> Iterator[None]:
    """Random numbers on the CPU that are a function of a purpose and these integers; the caller's are left alone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_of(purpose, *integers))
        yield
