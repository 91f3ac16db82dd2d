"""Where and how a training runs: versions and machine."""

import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from torchllp.config import Compute
from torchllp.engine.precision import pick_device


def environment(compute: Compute) -> dict[str, Any]:
    """What is worth knowing of this process beside the config."""
    device = pick_device(compute.device)
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torchllp": version("torchllp"),
        "torch": torch.__version__,
        "threads": compute.threads,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def _processor() -> str:
    """The CPU by its name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
