"""Starting processes, and seeing which there are."""

import time
from collections.abc import Callable
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import torch.multiprocessing as multiprocessing


def start_processes(work: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """``work(rank, *arguments)`` in new processes, which need not import torch each, until all have ended."""
    set_forkserver_preload(["torchllp.engine.train"])
    multiprocessing.start_processes(work, arguments, nprocs=count, start_method="forkserver")


def processes_of(path: Path) -> list[int]:
    """Processes whose command line names the path."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(path).encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:  # it has just ended
            pass
    return found


def wait_until_none_is_left(path: Path) -> None:
    deadline = time.monotonic() + 60
    while processes_of(path):
        assert time.monotonic() < deadline, processes_of(path)
        time.sleep(0.1)
