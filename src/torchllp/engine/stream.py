"""Instances that stay where they are, on disk or in main memory, and are brought to the device step by step."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from torchllp.device import free_memory

S = TypeVar("S")
T = TypeVar("T")


def is_too_large(inputs: Tensor, device: torch.device) -> bool:
    """Whether instances take more than half of what is free where they would be trained on."""
    return inputs.nbytes > free_memory(device) / 2


def take(inputs: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Rows of inputs that may be a memory map, in memory from which a copy to the device does not wait."""
    taken = torch.empty((len(rows), *inputs.shape[1:]), dtype=inputs.dtype, pin_memory=device.type == "cuda")
    inputs.numpy().take(rows.numpy(), axis=0, out=taken.numpy(), mode="clip")  # "raise" would copy it once more
    return taken


def ahead(make: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """``map(make, items)``, in which a thread makes the next one while one is in use."""
    with ThreadPoolExecutor(1, thread_name_prefix="torchllp-stream") as pool:
        waiting = None
        for item in items:
            next_one = pool.submit(make, item)
            if waiting is not None:
                yield waiting.result()
            waiting = next_one
        if waiting is not None:
            yield waiting.result()
