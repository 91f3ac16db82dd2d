"""What is seen while a run trains: a bar with time left on a terminal, one line an epoch in a pipe."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchllp.cli.console import console
from torchllp.engine.train import Observer
from torchllp.launched import is_first


class _Bar(Observer):
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("starting", total=None, note="")

    def on_images(self, done: int, num_images: int) -> None:
        self.progress.update(self.task, description="reading images", completed=done, total=num_images)

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        self.num_epochs = num_epochs
        self.progress.update(self.task, total=num_epochs, completed=epochs_done)

    def on_step(self, epoch: int, step: int, num_steps: int) -> None:
        done = epoch + (step + 1) / num_steps
        self.progress.update(self.task, completed=done, description=f"epoch {epoch + 1}/{self.num_epochs}")

    def on_epoch(self, row: dict[str, float], state: dict[str, Any]) -> None:
        shown = {"loss": "train/loss", "held-out KL": "held_out/bag_kl", "accuracy": "test/accuracy"}
        note = "  ".join(f"{label} {row[name]:.3f}" for label, name in shown.items() if name in row)
        self.progress.update(self.task, note=note)


@contextmanager
def show_progress(console: Console = console, *, quiet: bool = False) -> Iterator[Observer]:
    """An observer that shows how far the training is; ``quiet`` leaves what it says to its train.log.

    Of several processes the first one has the bar.
    """
    if console.is_terminal and is_first():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            handler = logging.NullHandler() if quiet else _AboveTheBar(progress)
            with _shown_log(handler):
                yield _Bar(progress)
    else:
        with _shown_log(logging.NullHandler() if quiet else logging.StreamHandler(console.file)):
            yield Observer()


def unseen_log() -> AbstractContextManager[None]:
    """What runs say is in their train.log alone, also what would be said where nobody listens."""
    return _shown_log(logging.NullHandler())


class _AboveTheBar(logging.Handler):
    """What is worth saying, all but the epochs, which the bar shows."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "torchllp.epochs":
            self.progress.console.print(self.format(record), soft_wrap=True)


@contextmanager
def _shown_log(handler: logging.Handler) -> Iterator[None]:
    logging.getLogger("torchllp").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("torchllp").removeHandler(handler)
