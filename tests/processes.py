"""Which processes there are."""

import time
from pathlib import Path


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
