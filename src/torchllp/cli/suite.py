"""`llp suite`."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchllp.cli import Misuse
from torchllp.cli.console import console, saying_how_to_go_on, show_table
from torchllp.cli.places import sbatch_options
from torchllp.cli.training import Flag, Repeated
from torchllp.errors import LLPError
from torchllp.experiments import SUITES
from torchllp.launch import Place, check_place, launch
from torchllp.launched import is_launched

if TYPE_CHECKING:
    from torchllp.cli.board import Board
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.plan import Plan
    from torchllp.experiments.results import Results
    from torchllp.experiments.suite import Cell


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
    if smoke and dry_run:
        raise Misuse("--smoke trains something and --dry-run nothing: say one of them")
    sbatch = sbatch_options(slurm, on)
    from torchllp.cli.board import Board
    from torchllp.experiments.directory import SuiteDirectory
    from torchllp.experiments.plan import NothingLeft, Plan
    from torchllp.experiments.results import Results

    plan = Plan(name, scale, held_out, tuple(only or ()))
    try:
        cells = plan.cells(data_dir)
    except NothingLeft as error:
        raise Misuse(str(error)) from None
    if smoke or dry_run:
        from torchllp.cli.cut_down import show_plan, try_out

        (try_out if smoke else show_plan)(cells)
        return
    directory = SuiteDirectory(runs or plan.runs)
    directory.check(cells)
    if worker:
        _work(cells, directory, Board(cells, directory, shown=False), watched=False)
        return
    if on is not None or jobs > 1:
        check_place(on or "local")
    _check_data(cells, directory)
    if scale == "full":
        console.print(f"{len(cells)} runs as large as the paper's: --dry-run tells what they take", soft_wrap=True)
    if retry:
        directory.forget_failures(cells)
    board = Board(cells, directory, num_workers=jobs)
    problem: LLPError | None = None
    with saying_how_to_go_on(f"runs are in {directory.path}: the same command goes on"):
        if on is None and jobs == 1:
            _work(cells, directory, board)
        else:
            command = ["suite", plan.absolute_name, "--worker", *plan.flags, "--runs", str(directory.path.absolute())]
            command += ["--data-dir", str(data_dir.absolute())] if data_dir else []
            try:
                _launch(command, jobs, on or "local", sbatch, directory, board)
            except LLPError as error:  # a job was killed, say: what is finished has its table all the same
                problem = error
    with directory.alone_with(plan.results):  # others may have come to their end at the same time
        results = Results.of(plan.suite, scale, cells, directory, plan.command)
        if results.rows:
            _write_results(plan, results)
    if results.num_missing:
        console.print(f"{results.num_missing} of {len(cells)} runs are not finished, and not in the table")
    elif not results.rows:
        console.print(f"features are learnt: {directory.path}", soft_wrap=True)
    _tell_failures(cells, directory, problem)


def _check_data(cells: "Sequence[Cell]", directory: "SuiteDirectory") -> None:
    """Find files that are missing before the first run, not after hours."""
    from torchllp.supervision import load_data

    left = [cell for cell in cells if not directory.run(cell.name).is_finished]
    for data in {cell.dataset: cell.config.data for cell in left}.values():
        load_data(data)


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
    logs = directory.path / ".jobs" / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    logs.mkdir(parents=True)

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True)

    with board.on_screen():
        launch([command] * num_jobs, on, logs, sbatch=sbatch, tell=tell, meanwhile=board.refresh)
        board.refresh_now()


def _write_results(plan: "Plan", results: "Results") -> None:
    """Table, figure and page of what is finished."""
    from torchllp.experiments.page import write_suite_page
    from torchllp.report.figure import save_figure

    folder = results.directory.results(plan.results)
    results.write(folder)
    plan.write(folder, [cell.name for cell in results.cells])
    show_table(*results.table(), title=results.suite.title)
    for note in results.notes():
        console.print(note, style="dim", soft_wrap=True)
    console.print(f"table and rows: {folder}", soft_wrap=True)
    if (figure := results.figure()) is not None:
        save_figure(figure, folder / "figure.svg")
        console.print(f"figure: {folder / 'figure.svg'}", soft_wrap=True)
    write_suite_page(folder / "report.html", results, figure)
    console.print(f"page: {folder / 'report.html'}", soft_wrap=True)


def _tell_failures(cells: "Sequence[Cell]", directory: "SuiteDirectory", problem: LLPError | None) -> None:
    """An error if runs failed, or if jobs did before all was done; what they had begun is named."""
    from torchllp.experiments.directory import State

    states = {cell.name: directory.state(cell) for cell in cells}
    if problem is not None and all(state is State.FINISHED for state in states.values()):
        console.print(f"{problem}; all runs are finished, as others went on with them", soft_wrap=True)
    elif problem is not None:
        left = [name for name, state in states.items() if state in (State.STOPPED, State.WAITING)]
        begun = [name for name in left if directory.run(name).config_file.is_file()]
        raise LLPError(f"{problem}" + (f"; begun and not finished: {', '.join(begun)}" if begun else ""))
    failed = [cell for cell in cells if states[cell.name] is State.FAILED]
    if failed:
        first = f"{failed[0].name}: {directory.why_failed(failed[0])}"
        more = f"; why each did: {directory.path}/*.failed" if len(failed) > 1 else ""
        raise LLPError(f"{len(failed)} of {len(cells)} runs failed (try again by --retry); {first}{more}")
