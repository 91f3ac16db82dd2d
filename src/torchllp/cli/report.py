"""`llp report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchllp.cli.console import aside, console


def report(
    runs: list[Path],
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> None:
    """Write what runs did as one HTML page that needs no network: of one run everything, of several their comparison.

    Parameters
    ----------
    runs
        Directories of finished runs; one that is no run stands for all finished runs below it.
    output
        HTML file to write. Default: report.html in the directory, if one is given, else in the current one.
    """
    from torchllp.cli.progress import show_progress
    from torchllp.report.comparison import find_runs
    from torchllp.report.page import check_page
    from torchllp.report.write import write_report

    found = find_runs(runs)
    path = output or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    check_page(path)
    with show_progress(aside) as observer:
        write_report(path, found, progress=observer.on_images)
    console.print(f"report: {path}", markup=False, soft_wrap=True)
