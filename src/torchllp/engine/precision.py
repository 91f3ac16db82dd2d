"""Where to compute, and in how many bits."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from torchllp.errors import LLPError
from torchllp.launched import is_launched, local_rank


def pick_device(name: str) -> torch.device:
    """The device called ``name``; ``"auto"`` is a GPU if there is one. Each process of a machine has its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{local_rank()}" if is_launched() else "cuda"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LLPError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


class Precision:
    """Autocast and, for float16, the scaling of the loss that keeps small gradients."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "auto":
            name = "float32"
            if device.type == "cuda":
                name = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
        self.device_type = device.type
        self.dtype = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.dtype is not None)
