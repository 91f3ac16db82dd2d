"""The command line as a real process."""

import subprocess
import sys
from pathlib import Path

SHORT = ["--epochs", "4", "--instances-per-step", "256", "--threads", "1"]


def llp(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchllp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)
