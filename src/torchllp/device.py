"""What code that runs on any device must take care of: waiting for it, its memory, and its precision."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a copy to a GPU does not wait for it, since its memory is pinned first."""
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)


def free_memory(device: torch.device) -> float:
    """Bytes that are free on the device, or kept only as long as nobody wants them; infinity where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = Path("/proc/meminfo")  # of Linux
    found = re.search(r"^MemAvailable: +(\d+) kB$", known.read_text(), re.MULTILINE) if known.is_file() else None
    return 1024 * int(found[1]) if found else math.inf


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute in float32 proper: no autocast, nor the TF32 with which PyTorch's convolutions read inputs on a GPU."""
    backends = torch.backends
    name, value, places = "fp32_precision", "ieee", [getattr(backends.cudnn, "conv", None), backends.cuda.matmul]
    if not all(hasattr(place, name) for place in places):  # before torch 2.9
        name, value, places = "allow_tf32", False, [backends.cudnn, backends.cuda.matmul]
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, value)
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for place, setting in zip(places, before, strict=True):
            setattr(place, name, setting)
