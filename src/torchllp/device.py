"""From the CPU to a device without waiting for it."""

import torch
from torch import Tensor


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a copy to a GPU does not wait for it, since its memory is pinned first."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)
