"""`llp suite`."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.live import Live
from rich.table import Table

from torchllp.cli import Misuse
from torchllp.cli.console import console, percent, show_table
from torchllp.cli.places import sbatch_options
from torchllp.cli.training import Flag, Repeated
from torchllp.errors import LLPError
from torchllp.experiments import SUITES
from torchllp.launch import Place, check_place, launch
from torchllp.launched import is_launched

if TYPE_CHECKING:
    from torchllp.engine.train import Observer
    from torchllp.experiments.cost import Meter
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.progress import Overview
    from torchllp.experiments.suite import Cell, Suite

REFRESH = 1.0
"""Seconds between two looks at the runs while they are shown."""
SMALL, LARGE = 16, 128
"""Instances of a step by which a plan is measured."""
LONG = 0.5
"""Seconds; where a small step takes longer, larger ones are not tried."""


def suite(
    name: str | None = None,
    *,
    scale: Literal["full", "cpu", "quick"] = "full",
    only: Annotated[list[str] | None, Repeated] = None,
    held_out: Annotated[float, Parameter(validator=Number(gte=0, lt=1))] = 0.0,
    data_dir: Path | None = None,
    runs: Path | None = None,
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    on: Place | None = None,
    slurm: Annotated[list[str] | None, Repeated] = None,
    retry: Annotated[bool, Flag] = False,
    dry_run: Annotated[bool, Flag] = False,
    smoke: Annotated[bool, Flag] = False,
    worker: Annotated[bool, Parameter(negative="", show=False)] = False,
) -> None:
    """Train all runs of a suite, and write their table, figure and page.

    Without a name: list the suites. The same command again skips runs that are finished, goes on with those that were
    stopped, and leaves out those that failed; any number of processes or machines that see the directory may do so at
    the same time. Suites that need the same run share it.

    Parameters
    ----------
    name
        Suite, or a Python file whose SUITE is one.
    scale
        full: the paper's data sets, networks and steps, for GPUs. cpu: 20,000 images of Fashion-MNIST and 30,000 of
        SVHN and a small network, for hours. quick: digits, for minutes.
    only
        Leave out runs without this word in their name, such as fashion-mnist or bag=64; can be repeated.
    held_out
        Share of bags held out to choose the epoch by. The paper holds out none.
    data_dir
        Directory of the data sets' files. Default: TORCHLLP_DATA, else data.
    runs
        Directory of the runs and results. Default: named by scale in runs.
    jobs
        How many runs are trained at a time, each by a process of its own with its share of the cores.
    on
        Where: local, or slurm for jobs of a Slurm cluster. [default: local]
    slurm
        OPTION=VALUE of sbatch for each job, such as time=1440 (minutes, needed) or gpus=1; can be repeated.
    retry
        Train again what failed before.
    dry_run
        Show the plan, with memory and time by a cut-down run of each kind, and train nothing.
    smoke
        Try out each kind of run by two steps of two bags of 8, on generated files, in a temporary directory.
    worker
        Train beside others, and leave results to who launched them.
    """
    if name is None:
        show_table(["suite", "shows"], [(known, SUITES.entry(known).summary) for known in SUITES.names()])
        return
    if is_launched():
        raise Misuse("torchrun's processes train one model: for many runs at once say --jobs")
    sbatch = sbatch_options(slurm, on)
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.scales import SCALES

    found = _find(name)
    layer: dict[str, Any] = {"data": {"held_out": held_out} | ({"data_dir": str(data_dir)} if data_dir else {})}
    cells = [cell.over(layer) for cell in found.cells(SCALES[scale])]
    cells = _only(cells, only)
    if smoke:
        _smoke(cells)
        return
    if dry_run:
        _show_plan(cells)
        return
    default = f"{scale}-held-out-{held_out:g}" if held_out else scale
    directory = SuiteDirectory(runs or Path("runs", default))
    directory.check(cells)
    if worker:
        _work(cells, directory, _Board(cells, directory, shown=False))
        return
    if on is not None or jobs > 1:
        check_place(on or "local")
    _check_data(cells, directory)
    if retry:
        directory.forget_failures(cells)
    board = _Board(cells, directory, num_workers=jobs)
    with _saying_how_to_go_on(directory):
        if on is None and jobs == 1:
            _work(cells, directory, board)
        else:
            file = str(Path(name).absolute()) if name.endswith(".py") else name
            places = {"--data-dir": data_dir and data_dir.absolute(), "--runs": directory.path.absolute()}
            options = {"--scale": scale, "--held-out": held_out, **places}
            command = ["suite", file, "--worker"]
            command += [str(word) for pair in options.items() if pair[1] is not None for word in pair]
            command += [word for pattern in only or [] for word in ("--only", pattern)]
            _launch(command, jobs, on or "local", sbatch, directory, board)
    _show_results(found, scale, cells, directory)


def _find(name: str) -> "Suite":
    """A suite of ours, or of a file."""
    if not name.endswith(".py"):
        return SUITES.load(name)
    from torchllp.experiments.suite import Suite

    path = Path(name)
    if not path.is_file():
        raise LLPError(f"{path}: there is no such file")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # of a .py file there is
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "SUITE", None)
    if not isinstance(found, Suite):
        raise LLPError(f"{path}: there is no SUITE in it, a torchllp.experiments.suite.Suite")
    return found


def _only(cells: "list[Cell]", words: list[str] | None) -> "list[Cell]":
    """Those with all of the words in their name, and what they start from."""
    kept = [cell for cell in cells if all(word in cell.name for word in words or [])]
    if not kept:
        raise Misuse(f"no run of the suite has {' and '.join(words or [])} in its name, such as {cells[0].name}")
    needed = {cell.name for cell in kept} | {cell.after for cell in kept}
    return [cell for cell in cells if cell.name in needed]


def _check_data(cells: "Sequence[Cell]", directory: "SuiteDirectory") -> None:
    """Find files that are missing before the first run, not after hours."""
    from torchllp.supervision import load_data

    left = [cell for cell in cells if not directory.run(cell.name).is_finished]
    for data in {cell.dataset: cell.config.data for cell in left}.values():
        load_data(data)


@contextmanager
def _saying_how_to_go_on(directory: "SuiteDirectory") -> Iterator[None]:
    """When it is stopped, not when it fails."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            console.print(f"stopped; runs are in {directory.path}: the same command goes on", markup=False)
        raise


class _Board:
    """A live table of the runs on a terminal; a line for each run that comes to its end in a pipe."""

    def __init__(
        self, cells: "Sequence[Cell]", directory: "SuiteDirectory", *, num_workers: int = 1, shown: bool = True
    ) -> None:
        from torchllp.experiments.progress import SuiteProgress

        self.cells, self.directory, self.num_workers = cells, directory, num_workers
        self.progress = SuiteProgress(cells, directory)
        self.told = {name for name, standing in self.progress.look().standings.items() if _has_ended(standing)}
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
        now = time.perf_counter()
        if now - self.last < REFRESH:
            return
        self.last = now
        overview = self.progress.look()
        for cell in self.cells:
            standing = overview.standings[cell.name]
            if _has_ended(standing) and cell.name not in self.told:
                self.told.add(cell.name)
                self._tell(cell, overview)
        if self.live is not None:
            self.live.update(self._table(overview), refresh=True)

    def _tell(self, cell: "Cell", overview: "Overview") -> None:
        """What came of a run."""
        if overview.standings[cell.name].state == "failed":
            result = f"failed: {self.directory.why_failed(cell)}"
        else:
            summary = self.directory.run(cell.name).summary
            accuracy = ", ".join(f"{epoch} {percent(value)}" for epoch, value in summary.get("accuracy", {}).items())
            result = f"{accuracy or 'features are learnt'}, {_duration(summary['seconds'])}"
        line = f"{len(self.told)} of {len(self.cells)}  {cell.name}: {result}{self._left(overview, '; ')}"
        console.print(line, markup=False, soft_wrap=True)

    def _left(self, overview: "Overview", before: str) -> str:
        if not overview.seconds_left:
            return ""
        return f"{before}about {_duration(overview.seconds_left / self.num_workers)} left"

    def _table(self, overview: "Overview") -> Table:
        from torchllp.experiments.directory import State

        running = [
            f"{cell.name} (epoch {overview.standings[cell.name].epochs_done + 1} of {cell.config.recipe.epochs})"
            for cell in self.cells
            if overview.standings[cell.name].state == "running"
        ]
        words = f"running: {', '.join(running) or '-'}{self._left(overview, chr(10))}"
        table = Table(box=None, pad_edge=False, header_style="bold", caption=words, caption_justify="left")
        table.add_column("data")
        table.add_column("row")
        for state in State:
            table.add_column(state, justify="right")
        for dataset, row in dict.fromkeys((cell.dataset, cell.row) for cell in self.cells):
            mine = [
                overview.standings[cell.name].state for cell in self.cells if (cell.dataset, cell.row) == (dataset, row)
            ]
            table.add_row(dataset, row, *(str(mine.count(state) or "") for state in State))
        return table


def _has_ended(standing: Any) -> bool:
    return standing.state in ("finished", "failed")


def _work(cells: "Sequence[Cell]", directory: "SuiteDirectory", board: _Board) -> None:
    """Train in this process."""
    from torchllp.cli.progress import show_progress
    from torchllp.engine.train import Observer
    from torchllp.experiments.worker import work

    class Watch(Observer):
        def on_step(self, epoch: int, step: int, num_steps: int) -> None:
            board.refresh()

    @contextmanager
    def watch(cell: "Cell") -> "Iterator[Observer]":
        with show_progress(quiet=True):
            yield Watch()

    def tell(cell: "Cell") -> None:
        board.last = 0.0
        board.refresh()

    with board.on_screen():
        work(cells, directory, watch=watch, tell=tell)


def _launch(
    command: list[str],
    num_jobs: int,
    on: Place,
    sbatch: dict[str, Any],
    directory: "SuiteDirectory",
    board: _Board,
) -> None:
    """Train in other processes."""
    logs = directory.path / ".jobs" / f"{datetime.now():%Y%m%d-%H%M%S}"
    logs.mkdir(parents=True)

    def tell(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    with board.on_screen():
        launch([command] * num_jobs, on, logs, sbatch=sbatch, tell=tell, meanwhile=board.refresh)
        board.last = 0.0
        board.refresh()


def _show_results(suite: "Suite", scale: str, cells: "Sequence[Cell]", directory: "SuiteDirectory") -> None:
    """Table, figure and page of what is finished; an error if something failed."""
    from torchllp.experiments.directory import State
    from torchllp.experiments.results import Results
    from torchllp.report.figure import save_figure
    from torchllp.report.page import Block, Drawings, Section, Table
    from torchllp.report.several_runs import comparison_sections
    from torchllp.report.write import write_page

    results = Results.of(suite, scale, cells, directory)
    if results.rows:
        folder = results.write()
        show_table(*results.table(), title=suite.title)
        console.print("oracle: the best epoch by test labels, which nobody has in practice", style="dim")
        console.print(f"table and rows: {folder}", markup=False, soft_wrap=True)
        figure = None if suite.draw is None else suite.draw(results)
        if figure is not None:
            save_figure(figure, folder / "figure.svg")
            console.print(f"figure: {folder / 'figure.svg'}", markup=False, soft_wrap=True)
        blocks: list[Block] = [Table(*results.table())]
        blocks += [] if figure is None else [Drawings([(suite.title, figure)])]
        sections = [Section("Result", blocks), *comparison_sections([results.run(cell) for cell in results.cells])]
        write_page(folder / "report.html", suite.title, sections)
        console.print(f"page: {folder / 'report.html'}", markup=False, soft_wrap=True)
    failed = [cell for cell in cells if directory.standing(cell).state is State.FAILED]
    if failed:
        first = f"{failed[0].name}: {directory.why_failed(failed[0])}"
        raise LLPError(f"{len(failed)} of {len(cells)} runs failed (try again by --retry); {first}")


def _smoke(cells: "Sequence[Cell]") -> None:
    """Train each kind of run for two steps, and say which do not work."""
    failed: list[str] = []
    with _cut_down(cells) as (small, train):
        kinds = {cell.name: cell for cell in small.values()}
        for number, (name, cell) in enumerate(kinds.items(), 1):
            try:
                train(cell)
                result = "works"
            except LLPError as error:
                result = str(error)
                failed.append(name)
            console.print(f"{number} of {len(kinds)}  {name}: {result}", markup=False, soft_wrap=True)
    if failed:
        raise LLPError(f"{len(failed)} of {len(kinds)} kinds of runs do not work: {', '.join(failed)}")
    console.print(f"all {len(kinds)} kinds of the suite's {len(cells)} runs work")


@contextmanager
def _cut_down(cells: "Sequence[Cell]", **size: int) -> "Iterator[tuple[dict[str, Cell], Callable[..., None]]]":
    """The cells cut down, by their names, and how to train one, in a temporary directory."""
    from torchllp.cli.progress import show_progress
    from torchllp.engine.train import Observer
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.smoke import cut_down
    from torchllp.experiments.worker import train

    with tempfile.TemporaryDirectory(prefix="llp-") as folder, show_progress(quiet=True):
        directory = SuiteDirectory(Path(folder))

        def train_here(cell: "Cell", observer: Observer | None = None) -> None:
            train(cell, directory, observer or Observer())
            if directory.failure_file(cell).is_file():
                raise LLPError(f"{cell.name}: {directory.why_failed(cell)}")

        yield cut_down(cells, Path(folder, "files"), **size), train_here


def _show_plan(cells: "Sequence[Cell]") -> None:
    """A line for each data set and row: how many runs, of how many steps, in which memory and time."""
    from torchllp.experiments.cost import Cost

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
                _duration(seconds / len(costs)),
                _duration(seconds),
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
    console.print(f"all together: {_duration(total)} of one process")


def _measured(cells: "Sequence[Cell]") -> "Iterator[tuple[Cell, Meter]]":
    """Each cell with what was measured of a cut-down one, in larger steps where these do not take long."""
    from torchllp.experiments.cost import Meter

    with (
        _cut_down(cells, num_instances=SMALL) as (small, train),
        _cut_down(cells, num_instances=LARGE, num_steps=4) as (large, train_large),
    ):
        meters: dict[str, Meter] = {}
        for cell in cells:
            kind = small[cell.name]
            if kind.name not in meters:
                meters[kind.name] = Meter(SMALL)
                train(kind, meters[kind.name])
                if meters[kind.name].step_seconds < LONG:
                    meters[kind.name] = Meter(LARGE)
                    train_large(large[cell.name], meters[kind.name])
            yield cell, meters[kind.name]


def _duration(seconds: float) -> str:
    """In the unit that fits.

    >>> [_duration(seconds) for seconds in (5, 300, 9_000, 10**6)]
    ['5 s', '5 min', '2.5 h', '11.6 days']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 86400:.1f} days"
