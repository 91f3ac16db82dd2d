"""The table of several runs: as text, and as a drawing."""

import csv
import io
from collections.abc import Sequence
from statistics import mean, stdev

from matplotlib.figure import Figure

from torchllp.report.comparison import Group
from torchllp.report.figure import plain

EPOCHS = ("last", "chosen", "oracle")


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent; of a single value no deviation, of none a dash.

    >>> spread([0.5, 0.75]), spread([0.5]), spread([])
    ('62.50 ± 17.68', '50.00', '-')
    """
    if not values:
        return "-"
    deviation = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{deviation}"


def measure_of(groups: Sequence[Group]) -> str:
    """What the values of the groups are, in words."""
    if groups[0].has_labels:
        return f"accuracy on {groups[0].tests_on}, %"
    return "mean error of a class's share in held-out bags, %"


def table_of(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of these groups, which are of one data set."""
    epochs = EPOCHS if any(group.has_labels for group in groups) else EPOCHS[:2]
    head = ["method", "bag size", *(f"{epoch} epoch" for epoch in epochs), "n"]
    rows = []
    for group in groups:
        cells = [spread(group.values(epoch)) for epoch in epochs]
        rows.append([group.method, group.bag_size, *cells, str(len(group.summaries))])
    return head, rows


def by_dataset(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups of each data set, those with and those without labels apart, since they have other measures."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        found.setdefault((group.dataset, measure_of([group])), []).append(group)
    return list(found.values())


def as_csv(groups: Sequence[Group]) -> str:
    """All groups as CSV, with numbers to be computed on."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    statistics = [f"{epoch}_{what}" for epoch in EPOCHS for what in ("mean", "deviation", "n")]
    table.writerow(["dataset", "measure", "method", "bag_size", "num_seeds", *statistics])
    for group in groups:
        what = "accuracy" if group.has_labels else "held_out_bag_mae"
        cells: list[object] = [group.dataset, what, group.method, group.bag_size, len(group.summaries)]
        for epoch in EPOCHS:
            values = group.values(epoch)
            deviation = stdev(values) if len(values) > 1 else ""
            cells += [mean(values) if values else "", deviation, len(values)]
        table.writerow(cells)
    return text.getvalue()


def as_markdown(groups: Sequence[Group]) -> str:
    """A Markdown table a data set."""
    parts = []
    for together in by_dataset(groups):
        head, rows = table_of(together)
        lines = [[*head], ["---", *["---:"] * (len(head) - 1)], *rows]
        shown = ("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
        parts.append("\n".join([f"{together[0].dataset}: {measure_of(together)}", "", *shown]))
    return "\n\n".join(parts) + "\n"


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def as_latex(groups: Sequence[Group]) -> str:
    """A LaTeX tabular a data set, which needs no package."""
    parts = []
    for together in by_dataset(groups):
        head, rows = table_of(together)
        lines = [" & ".join("".join(LATEX.get(x, x) for x in cell) for cell in line) + r" \\" for line in [head, *rows]]
        title = "".join(LATEX.get(x, x) for x in f"{together[0].dataset}: {measure_of(together)}")
        columns = "l" + "r" * (len(head) - 1)
        opening = [f"% {title}", rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline"]
        parts.append("\n".join([*opening, *lines[1:], r"\hline", r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


def table_figure(groups: Sequence[Group]) -> Figure:
    """The tables of all data sets, drawn one below the other."""
    tables = [(f"{part[0].dataset}: {measure_of(part)}", *table_of(part)) for part in by_dataset(groups)]
    line, letter = 0.26, 0.085  # inches
    num_columns = max(len(head) for _, head, _ in tables)
    lines = [row for _, head, rows in tables for row in [head, *rows]]
    widths = [max(len(row[i]) for row in lines if i < len(row)) for i in range(num_columns)]
    size = (letter * (sum(widths) + 3 * len(widths)), line * sum(len(rows) + 3 for _, _, rows in tables))
    figure = Figure(figsize=size, dpi=120)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    axes.axis("off")
    top = line
    for title, head, rows in tables:
        axes.text(0, top, plain(title), fontweight="bold", va="center", fontsize=9)
        rules = {0: 0.8, 1: 0.5, len(rows) + 1: 0.8}
        ends = [letter * (sum(widths[: i + 1]) + 3 * (i + 1)) for i in range(len(head))]
        for number, row in enumerate([head, *rows]):
            y = top + line * (number + 1)
            for i, cell in enumerate(row):
                x = 0 if i == 0 else ends[i] - letter
                axes.text(x, y, plain(cell), ha="right" if i else "left", va="center", fontsize=9)
        for number, width in rules.items():
            y = top + line * (number + 0.5)
            axes.plot([0, ends[-1]], [y, y], color="black", linewidth=width, solid_capstyle="butt")
        top += line * (len(rows) + 3)
    return figure


TEXTS = {".csv": as_csv, ".md": as_markdown, ".tex": as_latex}
"""Suffix of a file -> the table as the text of it."""
