"""The command line, as a real process and in this one."""

import io
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from torchllp.cli import main

SHORT = ["--epochs", "4", "--instances-per-step", "256", "--threads", "1"]


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def llp(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a user starts it."""
    command = [sys.executable, "-m", "torchllp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def here(*arguments: str | Path, cwd: Path | None = None) -> Result:
    """The same command in this process: it starts sooner."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors), chdir(cwd or "."):
        code = main([str(argument) for argument in arguments])
    return Result(code, output.getvalue(), errors.getvalue())
