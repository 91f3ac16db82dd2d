"""The report of runs as a file."""

from collections.abc import Sequence
from pathlib import Path

from torchllp.data.image_cache import Progress
from torchllp.files import write_atomically
from torchllp.report.one_run import run_sections, title_of
from torchllp.report.page import Section, render
from torchllp.report.several_runs import comparison_sections
from torchllp.run import Run


def write_report(
    path: Path,
    runs: Sequence[Run],
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> None:
    """Write the page of finished runs, whole or not at all: of one run everything, of several their comparison.

    Predictions are made on ``device``; ``data_dir`` is where the files of a named data set are now; ``progress`` is
    told of images decoded.
    """
    if len(runs) == 1:
        sections = run_sections(runs[0], data_dir=data_dir, device=device, progress=progress)
        write_page(path, title_of(runs[0]), sections)
    else:
        write_page(path, f"{len(runs)} runs", comparison_sections(runs))


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write a page of these sections, whole or not at all."""
    write_atomically(path, render(title, sections).encode())
