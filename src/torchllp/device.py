"""What code that runs on any device must take care of: waiting for it, and its precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a copy to a GPU does not wait for it, since its memory is pinned first."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute in float32 proper: no autocast, nor the TF32 with which PyTorch's convolutions read inputs on a GPU."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
