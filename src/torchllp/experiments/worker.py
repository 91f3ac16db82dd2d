"""Training the runs of a suite: any number of workers, on any machines that see the directory."""

import time
import traceback
from collections.abc import Callable, Sequence

from torchllp import job
from torchllp.engine.train import Observer
from torchllp.errors import LLPError, first_line
from torchllp.experiments.directory import State, SuiteDirectory
from torchllp.experiments.suite import Cell
from torchllp.methods import METHODS
from torchllp.pretraining import Pretraining

POLL = 2.0
"""Seconds between two looks at whether features that a run starts from have been learnt by another worker."""


def work(
    cells: Sequence[Cell],
    directory: SuiteDirectory,
    *,
    observer: Observer,
    tell: Callable[[], None],
) -> None:
    """Train what is left of ``cells``, and return when the rest is in the hands of others.

    ``observer`` is that of all runs, ``tell`` is called when one has come to its end, finished or failed.
    """
    by_name = {cell.name: cell for cell in cells}
    waits = has_trained = True
    while waits or has_trained:  # meanwhile another worker may have been killed, and have left something
        waits = has_trained = False
        for cell in cells:
            if directory.state(cell).has_ended:
                continue
            if cell.after is not None:
                before = directory.state(by_name[cell.after])
                if before is State.FAILED:
                    with directory.claim(cell) as is_ours:
                        if is_ours:
                            directory.mark_failed(cell, f"{cell.after} failed, which it starts from")
                    tell()
                    continue
                if before is not State.FINISHED:
                    waits = True
                    continue
            with directory.claim(cell) as is_ours:
                # Another one may have ended it between the first look and the claim.
                if is_ours and not directory.run(cell.name).is_finished and not directory.failure_file(cell).is_file():
                    if directory.is_deadly(cell):
                        directory.mark_failed(cell, "whoever trains it is killed, for lack of memory perhaps")
                    else:
                        with directory.noting_kills(cell):
                            train(cell, directory, observer)
                    has_trained = True
                    tell()
        if waits and not has_trained:
            time.sleep(POLL)


def train(cell: Cell, directory: SuiteDirectory, observer: Observer) -> None:
    """Train a run, or go on with it; an error is written down, and others are trained."""
    run = directory.run(cell.name)
    kind = job.Job if METHODS.load(cell.config.method.name).learns_classes else Pretraining
    try:
        if run.config_file.is_file():
            job.resume(run.path, observer=observer, kind=kind)
        else:
            job.start(directory.config(cell), run.path, observer=observer, kind=kind)
    except LLPError as error:
        directory.mark_failed(cell, str(error))
    except Exception as error:
        directory.mark_failed(cell, f"{traceback.format_exc()}\n{first_line(error)}")
