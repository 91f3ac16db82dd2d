"""What is seen while the runs of a suite are trained, whoever trains them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.table import Table

from torchllp.cli.console import console, duration, percent
from torchllp.experiments.directory import State, SuiteDirectory
from torchllp.experiments.progress import Overview, SuiteProgress
from torchllp.experiments.suite import Cell

REFRESH = 1.0
"""Seconds between two looks at the runs."""


class Board:
    """A live table of the runs on a terminal; a line for each run that comes to its end in a pipe."""

    def __init__(
        self, cells: Sequence[Cell], directory: SuiteDirectory, *, num_workers: int = 1, shown: bool = True
    ) -> None:
        self.cells, self.directory, self.num_workers = cells, directory, num_workers
        self.progress = SuiteProgress(cells, directory)
        self.told = {name for name, standing in self.progress.look().standings.items() if standing.state.has_ended}
        self.live = Live(console=console, auto_refresh=False, transient=True) if shown and console.is_terminal else None
        self.last = 0.0

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        if self.live is None:
            yield
            return
        with self.live:
            yield

    def refresh(self) -> None:
        """Look again, unless that was just now."""
        if time.perf_counter() - self.last >= REFRESH:
            self.refresh_now()

    def refresh_now(self) -> None:
        """Look again: show the table, and tell of runs that have come to their end."""
        self.last = time.perf_counter()
        overview = self.progress.look()
        for cell in self.cells:
            standing = overview.standings[cell.name]
            if standing.state.has_ended and cell.name not in self.told:
                self.told.add(cell.name)
                self._tell(cell, overview)
        if self.live is not None:
            self.live.update(self._shown(overview), refresh=True)

    def _tell(self, cell: Cell, overview: Overview) -> None:
        """What came of a run."""
        if overview.standings[cell.name].state is State.FAILED:
            result = f"failed: {self.directory.why_failed(cell)}"
        else:
            summary = self.directory.run(cell.name).summary
            accuracy = ", ".join(f"{epoch} {percent(value)}" for epoch, value in summary.get("accuracy", {}).items())
            result = f"{accuracy or 'features are learnt'}, {duration(summary['seconds'])}"
        line = f"{len(self.told)} of {len(self.cells)}  {cell.name}: {result}{self._left(overview, '; ')}"
        console.print(line, soft_wrap=True)

    def _left(self, overview: Overview, before: str) -> str:
        seconds = overview.seconds_left(self.num_workers)
        return f"{before}about {duration(seconds)} left" if seconds else ""

    def _shown(self, overview: Overview) -> Group:
        running = [
            f"{cell.name} (epoch {overview.standings[cell.name].epochs_done + 1} of {cell.config.recipe.epochs})"
            for cell in self.cells
            if overview.standings[cell.name].state is State.RUNNING
        ]
        words = f"running: {', '.join(running) or '-'}{self._left(overview, '; ')}"
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("data")
        table.add_column("row")
        for state in State:
            table.add_column(state, justify="right")
        for dataset, row in dict.fromkeys((cell.dataset, cell.row) for cell in self.cells):
            mine = [
                overview.standings[cell.name].state for cell in self.cells if (cell.dataset, cell.row) == (dataset, row)
            ]
            table.add_row(dataset, row, *(str(mine.count(state) or "") for state in State))
        return Group(words, table)  # what matters first: a table that is longer than the screen is cut off below
