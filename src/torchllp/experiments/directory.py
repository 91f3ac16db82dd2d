"""Where the runs of suites are: which are finished, failed, at work or stopped, and who may go on with one."""

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from torchllp.config import Config
from torchllp.errors import LLPError
from torchllp.experiments.suite import Cell
from torchllp.files import write_atomically
from torchllp.run import Run

TRIES, PAUSE = 5, 0.02
"""Seconds between tries to claim a cell: somebody who only looks at it holds it for less."""
MOST_KILLS = 2
"""After so many without an epoch in between a run is the cause, for lack of memory say, and not the machine."""


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        return self in (State.FINISHED, State.FAILED)


@dataclass(frozen=True)
class Standing:
    """How far a run is."""

    state: State
    epochs_done: int = 0
    seconds: float = 0.0
    """That these epochs took."""


class SuiteDirectory:
    """Runs that suites may share, a directory each, what is known of those that failed, and the suites' results."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, name: str) -> Run:
        return Run(self.path / name)

    def results(self, name: str) -> Path:
        """Directory of what a suite has shown."""
        return self.path / name

    def failure_file(self, cell: Cell) -> Path:
        return self.path / f"{cell.name}.failed"

    def config(self, cell: Cell) -> Config:
        """What the cell is trained by, here."""
        if cell.after is None:
            return cell.config
        return cell.config.model_copy(update={"init_from": str(self.run(cell.after).path.absolute())})

    def check(self, cells: Sequence[Cell]) -> None:
        """Raise if a run that is here already is not that of its cell, or two cells of one name are not one run."""
        by_name: dict[str, Cell] = {}
        for cell in cells:
            other = by_name.setdefault(cell.name, cell)
            if (_decisive(other.config), other.after) != (_decisive(cell.config), cell.after):
                raise LLPError(f"two runs of the suite are called {cell.name} and differ: give one another name")
            run = self.run(cell.name)
            if run.config_file.is_file() and _decisive(run.config) != _decisive(self.config(cell)):
                raise LLPError(
                    f"{run.path}: was trained by other settings than those of this suite: "
                    "remove it, or take another directory by --runs"
                )

    def forget_failures(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self.failure_file(cell).unlink(missing_ok=True)
            self._begun_file(cell).unlink(missing_ok=True)

    def mark_failed(self, cell: Cell, why: str) -> None:
        write_atomically(self.failure_file(cell), (why.rstrip() + "\n").encode())

    def why_failed(self, cell: Cell) -> str:
        """Its last line, which says it in one sentence."""
        return self.failure_file(cell).read_text().splitlines()[-1]

    def is_deadly(self, cell: Cell) -> bool:
        """Whether those at work on the cell were killed again and again, always in the same epoch."""
        begun = self._begun_file(cell)
        notes = begun.read_text().split() if begun.is_file() else []
        return notes.count(str(self.standing(cell).epochs_done)) >= MOST_KILLS

    @contextmanager
    def noting_kills(self, cell: Cell) -> Iterator[None]:
        """Note where work on the cell begins, and strike it out at any end but that of a process that is killed."""
        begun = self._begun_file(cell)
        begun.parent.mkdir(parents=True, exist_ok=True)
        with open(begun, "a") as file:
            file.write(f"{self.standing(cell).epochs_done}\n")
        try:
            yield
        finally:
            begun.unlink(missing_ok=True)  # --retry of another process may have done it

    def _begun_file(self, cell: Cell) -> Path:
        return self.path / ".begun" / cell.name

    def state(self, cell: Cell) -> State:
        run = self.run(cell.name)
        if self.failure_file(cell).is_file():
            return State.FAILED
        if run.is_finished:
            return State.FINISHED
        if self._is_claimed(cell):
            return State.RUNNING
        has_epochs = run.metrics_file.is_file() and run.metrics_file.stat().st_size > 0
        return State.STOPPED if has_epochs else State.WAITING

    def standing(self, cell: Cell) -> Standing:
        """The state of a run, and its epochs, which take longer to read."""
        run = self.run(cell.name)
        rows = run.metrics() if run.metrics_file.is_file() else []
        return Standing(self.state(cell), len(rows), sum(row["seconds"] for row in rows))

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Whether nobody else is at work on the cell, and from now on nobody can be."""
        with self._lock_file(cell.name) as file:
            is_ours = _can_lock(file, fcntl.LOCK_EX)
            for _ in range(TRIES):
                if not is_ours:
                    time.sleep(PAUSE)
                    is_ours = _can_lock(file, fcntl.LOCK_EX)
            yield is_ours

    def _is_claimed(self, cell: Cell) -> bool:
        """Those who only look share the lock, and wait for nobody: a training looks at all others every second."""
        with self._lock_file(cell.name) as file:
            return not _can_lock(file, fcntl.LOCK_SH)

    @contextmanager
    def alone_with(self, results: str) -> Iterator[None]:
        """Wait until nobody else writes these results of a suite."""
        with self._lock_file(results) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _lock_file(self, name: str) -> IO[str]:
        locks = self.path / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return open(locks / name, "w")


def _can_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _decisive(config: Config) -> dict[str, object]:
    """What of a config decides what is learnt: not where files are, nor what it is computed on."""
    content = config.model_dump(exclude={"compute", "init_from"})
    content["data"] = {name: value for name, value in content["data"].items() if name not in ("data_dir", "download")}
    return content
