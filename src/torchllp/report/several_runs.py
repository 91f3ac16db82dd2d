"""Runs side by side, as sections of a page."""

from collections.abc import Sequence

from torchllp.report.comparison import Group, compare, differing_settings, learns_classes, named, names_of
from torchllp.report.curves import Panel, Rows, colour_of, curves_figure, overlay_panels
from torchllp.report.page import Block, Drawings, Legend, Section, Table, Text
from torchllp.report.tables import EPOCHS, by_dataset, measure_of, table_of
from torchllp.run import Run

WORDS = "Means over seeds, with the standard deviation (n - 1) where there are several."
ORACLE = "Oracle: the best test epoch, which nobody has in practice."


def comparison_sections(runs: Sequence[Run]) -> list[Section]:
    """Tables and overlaid curves of finished runs, a section a data set; then what each of the runs is."""
    trained = [run for run in runs if learns_classes(run)]
    sections = [_comparison(groups) for groups in by_dataset(compare(trained))]
    if trained:
        sections.append(_trained(trained))
    pretrained = [run for run in runs if not learns_classes(run)]
    if pretrained:
        sections.append(_pretrained(pretrained))
    return sections


def overlaid(groups: Sequence[Group]) -> list[Panel]:
    """The panels of these groups' runs, in one colour a group."""
    return overlay_panels(_curves(groups), tests_on=_tests_on(groups))


def _curves(groups: Sequence[Group]) -> list[tuple[str, Rows]]:
    named_groups = zip(names_of(groups), groups, strict=True)
    return [(name, run.metrics()) for name, group in named_groups for run in group.runs]


def _tests_on(groups: Sequence[Group]) -> str:
    kinds = {group.tests_on for group in groups}
    return kinds.pop() if len(kinds) == 1 else "instances"


def _comparison(groups: Sequence[Group]) -> Section:
    head, rows = table_of(groups)
    words = f"{WORDS} {ORACLE}" if groups[0].has_labels else WORDS
    differing = differing_settings(groups)
    if differing:
        words += f" The runs differ also in: {', '.join(differing)}."
    blocks: list[Block] = [Table(head, rows, measure_of(groups).capitalize()), Text(words)]
    curves = _curves(groups)
    panels = overlay_panels(curves, tests_on=_tests_on(groups), has_legend=False)
    if panels:
        drawings = Drawings([("Curves of the runs over the epochs", curves_figure([panel])) for panel in panels])
        blocks += [Legend(colour_of(curves)), drawings]
    return Section(groups[0].dataset, blocks)


def _trained(runs: Sequence[Run]) -> Section:
    head = ["run", "data set", "method", "model", "bags", "held out", "seed", "steps", "seconds"]
    rows = []
    for run in runs:
        summary = run.summary
        choices = [named(summary["method"]), named(summary["model"])]
        bags = [f"{summary['num_bags']:,} of {summary['bag_size']}", f"{summary['num_held_out']:,}"]
        cost = [f"{summary['seed']}", f"{summary['steps']:,}", f"{summary['seconds']:.1f}"]
        accuracy = [
            f"{100 * summary['accuracy'][epoch]:.2f} %" if epoch in summary["accuracy"] else "-" for epoch in EPOCHS
        ]
        rows.append([str(run.path), summary["dataset"], *choices, *bags, *cost, *accuracy])
    alarms = [Text(f"{run.path}: {alarm}", is_warning=True) for run in runs for alarm in run.summary["alarms"]]
    return Section("Each run", [Table([*head, *EPOCHS], rows), *alarms])


def _pretrained(runs: Sequence[Run]) -> Section:
    rows = []
    for run in runs:
        summary = run.summary
        about = [named(summary["method"]), named(summary["model"]), f"{summary['seed']}", f"{summary['steps']:,}"]
        rows.append([str(run.path), summary["dataset"], *about, f"{summary['metrics']['last']['train/loss']:.3f}"])
    table = Table(["run", "data set", "method", "model", "seed", "steps", "loss"], rows)
    return Section("Pre-trained runs, which have no classes", [table])
