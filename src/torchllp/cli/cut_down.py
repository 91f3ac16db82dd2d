"""Runs of a suite that are cut down: to try out each kind of them, and to tell what all will take."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import track

from torchllp.cli.console import aside, console, duration, show_table
from torchllp.cli.progress import unseen_log
from torchllp.engine.train import Observer
from torchllp.errors import LLPError
from torchllp.experiments.cost import Cost, Meter
from torchllp.experiments.directory import SuiteDirectory
from torchllp.experiments.smoke import cut_down
from torchllp.experiments.suite import Cell
from torchllp.experiments.worker import train

SMALL, LARGE = 16, 128
"""Instances of a step by which a plan is measured."""
LONG = 0.5
"""Seconds; where a small step takes longer, larger ones are not tried."""


def try_out(cells: Sequence[Cell]) -> None:
    """Train each kind of run for two steps, and say which do not work."""
    failed: list[str] = []
    with _cut_down(cells) as (small, train_one):
        kinds = {cell.name: cell for cell in small.values()}
        for number, (name, cell) in enumerate(kinds.items(), 1):
            try:
                train_one(cell)
                result = "works"
            except LLPError as error:
                result = str(error)
                failed.append(name)
            console.print(f"{number} of {len(kinds)}  {name}: {result}", soft_wrap=True)
    if failed:
        raise LLPError(f"{len(failed)} of {len(kinds)} kinds of runs do not work: {', '.join(failed)}")
    console.print(f"all {len(kinds)} kinds of the suite's {len(cells)} runs work")


@contextmanager
def _cut_down(cells: Sequence[Cell], **size: int) -> Iterator[tuple[dict[str, Cell], Callable[..., None]]]:
    """The cells cut down, by their names, and how to train one, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="llp-") as folder, unseen_log():
        directory = SuiteDirectory(Path(folder))

        def train_here(cell: Cell, observer: Observer | None = None) -> None:
            train(cell, directory, observer or Observer())
            if directory.failure_file(cell).is_file():
                raise LLPError(directory.why_failed(cell))

        yield cut_down(cells, Path(folder, "files"), **size), train_here


def show_plan(cells: Sequence[Cell]) -> None:
    """A line for each data set and row: how many runs, of how many steps, in which memory and time."""
    rows: dict[tuple[str, str], list[tuple[Cell, Cost]]] = {}
    for cell, meter in _measured(cells):
        rows.setdefault((cell.dataset, cell.row), []).append((cell, meter.cost(cell.config)))
    lines = []
    for (dataset, row), runs in rows.items():
        costs = [cost for _, cost in runs]
        sizes = sorted({cell.bag_size for cell, _ in runs})
        seconds = sum(cost.seconds for cost in costs)
        lines.append(
            [
                dataset,
                row,
                runs[0][0].config.model.name,
                ", ".join(map(str, sizes)),
                str(len(runs)),
                f"{max(cost.num_steps for cost in costs):,}",
                f"{max(cost.memory for cost in costs) / 2**30:.2f} GiB",
                duration(seconds / len(costs)),
                duration(seconds),
            ]
        )
    heads = ["data", "row", "model", "bag sizes", "runs", "steps", "memory", "time a run", "time of all"]
    show_table(heads, lines, title=f"{len(cells)} runs")
    for note in (
        "memory: weights and activations in float32, without the data",
        f"time: of one process on this machine, from a few steps of {SMALL} or {LARGE} instances; another machine "
        "takes another time",
    ):
        console.print(note, style="dim", soft_wrap=True)
    total = sum(cost.seconds for runs in rows.values() for _, cost in runs)
    console.print(f"all together: {duration(total)} of one process")


def _measured(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Meter]]:
    """Each cell with what was measured of a cut-down one, in larger steps where these do not take long."""
    meters: dict[str, Meter] = {}
    with (
        _cut_down(cells, num_instances=SMALL) as (small, train_small),
        _cut_down(cells, num_instances=LARGE, num_steps=4) as (large, train_large),
    ):
        for cell in track(cells, "measuring", console=aside, transient=True):
            kind = small[cell.name]
            if kind.name not in meters:
                meters[kind.name] = Meter(SMALL)
                train_small(kind, meters[kind.name])
                has_features = kind.after is None or meters[kind.after].num_instances == LARGE
                if has_features and meters[kind.name].step_seconds < LONG:
                    meters[kind.name] = Meter(LARGE)
                    train_large(large[cell.name], meters[kind.name])
            yield cell, meters[kind.name]
