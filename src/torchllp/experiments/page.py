"""The page of a suite: its table, its figure, and its runs side by side."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from torchllp.experiments.directory import SuiteDirectory
from torchllp.experiments.plan import Plan
from torchllp.experiments.results import Results
from torchllp.report.comparison import SUITE_FILE, runs_beside
from torchllp.report.page import Block, Drawings, Facts, Section, Table, Text
from torchllp.report.several_runs import comparison_sections
from torchllp.report.write import write_page
from torchllp.run import read_json


def results_of(folder: Path, data_dir: Path | None = None) -> Results:
    """What the runs have come to whose results are in a directory; the data sets' files are in ``data_dir``."""
    content = read_json(folder / SUITE_FILE)
    plan = Plan(content["name"], content["scale"], content["held_out"], tuple(content["only"]))
    results = Results.of(plan.suite, plan.scale, plan.cells(), SuiteDirectory(runs_beside(folder)), plan.command)
    return replace(results, data_dir=data_dir)


def write_suite_page(path: Path, results: Results, figure: Figure | None) -> None:
    """Write the page of a suite, whole or not at all; ``figure`` is what it draws of its results."""
    title = results.suite.title
    blocks: list[Block] = [Table(*results.table()), *map(Text, results.notes())]
    blocks += [] if figure is None else [Drawings([(title, figure)])]
    sections = [Section("Result", blocks), *comparison_sections([results.run(cell) for cell in results.cells])]
    sections.append(Section("How it was made", [Facts(results.facts())]))
    write_page(path, title, sections)
