"""`llp plot`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from torchllp.cli import Misuse
from torchllp.cli.console import aside, console
from torchllp.errors import LLPError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchllp.report.comparison import Group
    from torchllp.report.findings import Findings
    from torchllp.run import Run

Kind = Literal["curves", "confusion", "reliability", "proportions", "tsne", "table"]
OF_ONE_RUN = ("confusion", "reliability", "proportions")


def plot(
    kind: Kind,
    runs: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    num_instances: PositiveInt | None = None,
    data_dir: Path | None = None,
) -> None:
    """Draw one figure of runs for a paper: the figures of their report, and two more.

    Parameters
    ----------
    kind
        curves (over the epochs; of several runs overlaid), confusion, reliability (before and after calibration),
        proportions (predicted against given, bag by bag), tsne (of the features of test instances, a panel a run) or
        table (mean and deviation over seeds).
    runs
        Directories of finished runs, or that of a suite's results; another that is no run stands for all finished
        runs below it.
    output
        File to write: .svg, .pdf or .png; a table also as .csv, .md or .tex.
    num_instances
        Test instances in each panel of tsne, at most. [default: 2000]
    data_dir
        Directory of the data sets' files, if not where the runs had them.
    """
    from torchllp.cli.progress import show_progress
    from torchllp.files import write_atomically
    from torchllp.report.comparison import find_runs
    from torchllp.report.figure import check_figure, save_figure
    from torchllp.report.findings import Findings
    from torchllp.report.tables import TEXTS
    from torchllp.report.tsne import MOST_DOTS

    if num_instances is not None and kind != "tsne":
        raise Misuse(f"--num-instances is for tsne: a figure of {kind} leaves nothing out")
    text = TEXTS.get(output.suffix.lower()) if kind == "table" else None
    if text is None:
        check_figure(output, also=TEXTS if kind == "table" else ())
    found = find_runs(runs)
    if kind in OF_ONE_RUN and len(found) > 1:
        raise Misuse(f"a figure of {kind} is of one run, and these are {len(found)}")
    if text is not None:
        write_atomically(output, text(_groups(found)).encode())
    else:
        with show_progress(aside) as observer:
            findings_of = partial(Findings, data_dir=data_dir, progress=observer.on_images)
            figure = _figure(kind, found, num_instances or MOST_DOTS, findings_of)
        save_figure(figure, output, for_print=True)
    console.print(f"{kind}: {output}", soft_wrap=True)


def _figure(kind: Kind, runs: "list[Run]", num_instances: int, findings_of: "Callable[[Run], Findings]") -> "Figure":
    from torchllp.report.confusion import confusion_figure
    from torchllp.report.curves import curves_figure, run_panels
    from torchllp.report.proportions import proportions_figure
    from torchllp.report.reliability import reliability_figure
    from torchllp.report.several_runs import overlaid
    from torchllp.report.tables import table_figure

    first = runs[0]
    if kind == "table":
        return table_figure(_groups(runs))
    if kind == "curves" and len(runs) == 1:
        tests_on = first.summary.get("tests_on", "")
        return curves_figure(run_panels(first.metrics(), tests_on=tests_on, epochs=first.summary["metrics"]))
    if kind == "curves":
        panels = overlaid(_groups(runs))
        if not panels:
            raise LLPError("these runs have neither held-out bags nor labels, so there are no curves to compare")
        return curves_figure(panels)
    if kind == "tsne":
        return _tsne([findings_of(run) for run in runs], num_instances)
    findings = findings_of(first)
    if kind == "proportions":
        if not findings.proportions:
            raise LLPError(f"{first.path}: every bag is too large to be predicted for a figure")
        return proportions_figure(findings.proportions, findings.class_names)
    if findings.confusion is None:
        raise LLPError(f"{first.path}: no test instance has a label to be measured by")
    if kind == "reliability":
        return reliability_figure(findings.reliability)
    return confusion_figure(findings.confusion, findings.class_names)


def _groups(runs: "list[Run]") -> "list[Group]":
    from torchllp.report.comparison import compare

    groups = compare(runs)
    if not groups:
        raise LLPError("there is nothing to compare: these runs were pre-trained, and know no classes")
    return groups


def _tsne(findings: "list[Findings]", num_instances: int) -> "Figure":
    from torchllp.report.comparison import names_of_runs
    from torchllp.report.tsne import Map, tsne_figure

    runs, class_names = [one.run for one in findings], findings[0].class_names
    for one in findings:
        if one.class_names != class_names:
            raise LLPError(f"{one.run.path}: has other classes than {runs[0].path}, and colours stand for classes")
    names = names_of_runs(runs)
    return tsne_figure([(names[one.run], Map.of(*one.features(num_instances))) for one in findings], class_names)
