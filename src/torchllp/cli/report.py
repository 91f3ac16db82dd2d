"""`llp report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchllp.cli import Misuse
from torchllp.cli.console import aside, console
from torchllp.experiments import SUITES


def report(
    runs: list[Path],
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    data_dir: Path | None = None,
) -> None:
    """Write what runs did as one HTML page that needs no network: of one run everything, of several their comparison.

    Parameters
    ----------
    runs
        Directories of finished runs, or that of a suite's results, such as runs/quick/paper-table2; another that is no
        run stands for all finished runs below it.
    output
        HTML file to write. Default: report.html in the directory, if one is given, else in the current one.
    data_dir
        Directory of the data sets' files, if not where the runs had them.
    """
    from torchllp.cli.progress import show_progress
    from torchllp.report.comparison import SUITE_FILE, find_runs
    from torchllp.report.page import check_page
    from torchllp.report.write import write_report

    for path in runs:
        if str(path) in SUITES.names() and not path.exists():
            raise Misuse(f"{path} is a suite: name the directory of its results, such as runs/quick/{path}")
    found = find_runs(runs)
    path = output or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    check_page(path)
    if len(runs) == 1 and (runs[0] / SUITE_FILE).is_file():
        from torchllp.experiments.page import results_of, write_suite_page

        results = results_of(runs[0], data_dir)
        write_suite_page(path, results, results.figure())
    else:
        with show_progress(aside) as observer:
            write_report(path, found, data_dir=data_dir, progress=observer.on_images)
    console.print(f"report: {path}", soft_wrap=True)
