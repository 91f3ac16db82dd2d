"""`llp suite`."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchllp.cli import Misuse
from torchllp.cli.console import console, show_table
from torchllp.cli.places import sbatch_options
from torchllp.cli.training import Flag, Repeated
from torchllp.errors import LLPError
from torchllp.experiments import SUITES
from torchllp.launch import Place, check_place, launch
from torchllp.launched import is_launched

if TYPE_CHECKING:
    from torchllp.cli.board import Board
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.results import Results
    from torchllp.experiments.suite import Cell, Suite


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
    from torchllp.cli.board import Board
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.results import Results
    from torchllp.experiments.scales import SCALES

    found = _find(name)
    layer: dict[str, Any] = {"data": {"held_out": held_out} | ({"data_dir": str(data_dir)} if data_dir else {})}
    cells = [cell.over(layer) for cell in found.cells(SCALES[scale])]
    cells = _only(cells, only)
    if smoke or dry_run:
        from torchllp.cli import cut_down

        cut_down.try_out(cells) if smoke else cut_down.show_plan(cells)
        return
    what = ["--scale", scale, *(["--held-out", str(held_out)] if held_out else [])]
    what += [word for pattern in only or [] for word in ("--only", pattern)]
    default = f"{scale}-held-out-{held_out:g}" if held_out else scale
    directory = SuiteDirectory(runs or Path("runs", default))
    directory.check(cells)
    if worker:
        _work(cells, directory, Board(cells, directory, shown=False), watched=False)
        return
    if on is not None or jobs > 1:
        check_place(on or "local")
    _check_data(cells, directory)
    if retry:
        directory.forget_failures(cells)
    board = Board(cells, directory, num_workers=jobs)
    with _saying_how_to_go_on(directory):
        if on is None and jobs == 1:
            _work(cells, directory, board)
        else:
            file = str(Path(name).absolute()) if name.endswith(".py") else name
            places = {"--data-dir": data_dir and data_dir.absolute(), "--runs": directory.path.absolute()}
            command = ["suite", file, "--worker", *what]
            command += [str(word) for pair in places.items() if pair[1] is not None for word in pair]
            _launch(command, jobs, on or "local", sbatch, directory, board)
    with directory.alone_with(found):  # others may have come to their end at the same time
        results = Results.of(found, scale, cells, directory, shlex.join(["llp", "suite", name, *what]))
        if results.rows:
            _write_results(results)
    if results.num_missing:
        console.print(f"{results.num_missing} of {len(cells)} runs are not finished, and not in the table")
    _tell_failures(cells, directory)


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
    by_name, needed = {cell.name: cell for cell in cells}, {cell.name for cell in kept}
    for cell in kept:
        while cell.after is not None:
            cell = by_name[cell.after]
            needed.add(cell.name)
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


def _work(cells: "Sequence[Cell]", directory: "SuiteDirectory", board: "Board", *, watched: bool = True) -> None:
    """Train in this process; where that is ``watched``, the board is kept up to date while a run is trained."""
    from torchllp.cli.progress import unseen_log
    from torchllp.engine.train import Observer
    from torchllp.experiments.worker import work

    class Watch(Observer):
        def on_step(self, epoch: int, step: int, num_steps: int) -> None:
            board.refresh()

    with board.on_screen(), unseen_log():
        work(cells, directory, observer=Watch() if watched else Observer(), tell=board.refresh_now)


def _launch(
    command: list[str],
    num_jobs: int,
    on: Place,
    sbatch: dict[str, Any],
    directory: "SuiteDirectory",
    board: "Board",
) -> None:
    """Train in other processes."""
    logs = directory.path / ".jobs" / f"{datetime.now():%Y%m%d-%H%M%S}"
    logs.mkdir(parents=True)

    def tell(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    with board.on_screen():
        launch([command] * num_jobs, on, logs, sbatch=sbatch, tell=tell, meanwhile=board.refresh)
        board.refresh_now()


def _write_results(results: "Results") -> None:
    """Table, figure and page of what is finished."""
    from torchllp.report.figure import save_figure
    from torchllp.report.page import Block, Drawings, Facts, Section, Table
    from torchllp.report.several_runs import comparison_sections
    from torchllp.report.write import write_page

    suite, folder = results.suite, results.write()
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
    sections.append(Section("How it was made", [Facts(results.facts())]))
    write_page(folder / "report.html", suite.title, sections)
    console.print(f"page: {folder / 'report.html'}", markup=False, soft_wrap=True)


def _tell_failures(cells: "Sequence[Cell]", directory: "SuiteDirectory") -> None:
    """An error if something failed."""
    from torchllp.experiments.directory import State

    failed = [cell for cell in cells if directory.standing(cell).state is State.FAILED]
    if failed:
        first = f"{failed[0].name}: {directory.why_failed(failed[0])}"
        raise LLPError(f"{len(failed)} of {len(cells)} runs failed (try again by --retry); {first}")
