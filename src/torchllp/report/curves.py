"""The curves of trainings: what was matched, what was trusted, what came of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from torchllp.report.figure import colours, plain, save_figure, short

Row = Mapping[str, float]
Rows = Sequence[Row]
Panel = Callable[[Axes], None]
"""Draws into axes of its own."""

PANEL = (4.4, 3.4)
"""Width and height in inches."""
MOST_NAMES = 20
"""In the legend of overlaid runs."""
MOST_INSIDE, LONGEST_INSIDE = 4, 30
"""Names, and letters of a name, in a legend inside the axes; more are beside them."""
LONGEST_BESIDE = 60
PREDICTIONS = {
    "train/entropy": "normalised entropy",
    "train/trust": "mean trust in pseudo-labels",
    "train/pseudo_label_accuracy": "right pseudo-labels",
}
MARKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chosen": ("chosen epoch", {"markersize": 6}),
    "oracle": ("oracle epoch, the best by test labels", {"markersize": 10, "markerfacecolor": "none"}),
}
"""Epochs that are marked where accuracy is drawn: their words and their look."""
NO_LOSSES = {
    *PREDICTIONS,
    "train/bag_kl",
    "train/trusted",
    "train/accuracy",
    "train/predicted_classes",
    "train/contrast_accuracy",
    "train/undefined_columns",
}


def save_curves(
    path: Path, metrics: Mapping[str, Rows], *, title: str, tests_on: str, chosen: Mapping[str, float] | None
) -> None:
    """Draw the first run's curves, with the accuracy of the others beside its own where there are labels for it.

    ``metrics`` is a run's name -> its rows; ``tests_on`` what accuracy is measured on; ``chosen`` the row of the first
    run's chosen epoch.
    """
    name, rows = next(iter(metrics.items()))
    panels = [lambda axes: _bag_errors(axes, rows), lambda axes: _predictions(axes, rows)]
    if "test/accuracy" in rows[0]:
        epochs = {} if chosen is None else {"chosen": chosen}
        panels.append(lambda axes: _accuracy(axes, [*metrics.items()], tests_on, epochs, whose=f"{name}, "))
    figure = curves_figure(panels)
    figure.suptitle(plain(title), fontweight="bold")
    save_figure(figure, path)


def save_contrast_curves(path: Path, rows: Rows, *, title: str) -> None:
    """Draw the curves of a pre-training."""
    figure = curves_figure(run_panels(rows))
    figure.suptitle(plain(title), fontweight="bold")
    save_figure(figure, path)


def curves_figure(panels: Sequence[Panel]) -> Figure:
    """These panels side by side, at most two in a row if there are four of them."""
    num_rows = 2 if len(panels) == 4 else 1
    num_columns = -(-len(panels) // num_rows)
    figure = Figure(figsize=(PANEL[0] * num_columns, PANEL[1] * num_rows), layout="constrained", dpi=120)
    for axes, draw in zip(figure.subplots(num_rows, num_columns, squeeze=False).flat, panels, strict=True):
        draw(axes)
    return figure


def run_panels(rows: Rows, *, tests_on: str = "test instances", epochs: Mapping[str, Row] | None = None) -> list[Panel]:
    """The panels of one run for which it has values; ``epochs`` are the rows of its chosen and its oracle epoch."""

    def has(*metrics: str) -> bool:
        return any(metric in row for row in rows for metric in metrics)

    panels: list[Panel] = [lambda axes: _losses(axes, rows)]
    if has("train/bag_kl", "held_out/bag_kl"):
        panels.append(lambda axes: _bag_errors(axes, rows))
    if has(*PREDICTIONS):
        panels.append(lambda axes: _predictions(axes, rows))
    if has("train/contrast_accuracy"):
        panels.append(lambda axes: _told_apart(axes, rows))
    if has("test/accuracy"):
        panels.append(lambda axes: _accuracy(axes, [("accuracy", rows)], tests_on, epochs or {}))
    return panels


def overlay_panels(runs: Sequence[tuple[str, Rows]], *, tests_on: str, has_legend: bool = True) -> list[Panel]:
    """Accuracy and error of the held-out bags of several runs, as far as known; equal names have one colour.

    Many or long names are in a panel of their own. Without a legend, :func:`colour_of` tells the names.
    """
    names = list(colour_of(runs))
    is_inside = has_legend and len(names) <= MOST_INSIDE and max(map(len, names)) <= LONGEST_INSIDE
    panels: list[Panel] = []
    if any("test/accuracy" in row for _, rows in runs for row in rows):
        panels.append(lambda axes: _accuracy(axes, runs, tests_on, {}, has_legend=is_inside))
    if any("held_out/bag_kl" in row for _, rows in runs for row in rows):
        panels.append(lambda axes: _held_out(axes, runs, has_legend=is_inside))
    if panels and has_legend and not is_inside:
        panels.append(lambda axes: _names(axes, colour_of(runs)))
    return panels


def colour_of(runs: Sequence[tuple[str, Rows]]) -> dict[str, str]:
    """The colour of each name of overlaid runs."""
    names = list(dict.fromkeys(name for name, _ in runs))
    return dict(zip(names, colours(len(names)), strict=True))


def _losses(axes: Axes, rows: Rows) -> None:
    axes.set_title("Training loss and its parts")
    for metric in dict.fromkeys(metric for row in rows for metric in row):
        if metric.startswith("train/") and metric not in NO_LOSSES:
            _line(axes, rows, metric, metric.removeprefix("train/").replace("_", " "))
    _finish(axes)


def _bag_errors(axes: Axes, rows: Rows) -> None:
    axes.set_title("Bags: error of the predicted proportions")
    _line(axes, rows, "train/bag_kl", "training bags")
    _line(axes, rows, "held_out/bag_kl", "held-out bags")
    _finish(axes)
    _as_divergence(axes)


def _predictions(axes: Axes, rows: Rows) -> None:
    axes.set_title("Predictions on training instances")
    for metric, words in PREDICTIONS.items():
        _line(axes, rows, metric, words)
    axes.set_ylim(0, 1.02)
    _finish(axes)


def _told_apart(axes: Axes, rows: Rows) -> None:
    axes.set_title("Views whose partner is the most similar")
    _line(axes, rows, "train/contrast_accuracy", "of the views of a step")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(axes)


def _accuracy(
    axes: Axes,
    runs: Sequence[tuple[str, Rows]],
    tests_on: str,
    epochs: Mapping[str, Row],
    *,
    whose: str = "",
    has_legend: bool = True,
) -> None:
    """``epochs`` are the rows of the chosen and the oracle epoch, as far as they are to be marked."""
    axes.set_title(f"Accuracy on single {tests_on}")
    _overlay(axes, runs, "test/accuracy")
    for name, (words, style) in MARKED.items():
        if name in epochs:
            value = epochs[name]["test/accuracy"]
            label = plain(f"{whose}{words}: {value:.1%}")
            axes.plot([epochs[name]["epoch"]], [value], "o", color="black", label=label, **style)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(axes, has_legend=has_legend)


def _held_out(axes: Axes, runs: Sequence[tuple[str, Rows]], *, has_legend: bool) -> None:
    axes.set_title("Held-out bags: error of the proportions")
    _overlay(axes, runs, "held_out/bag_kl")
    _finish(axes, has_legend=has_legend)
    _as_divergence(axes)


def _names(axes: Axes, colour_of_name: Mapping[str, str]) -> None:
    """The legend of overlaid runs, as far as there is room."""
    lines = [
        axes.plot([], [], color=colour, label=plain(short(name, LONGEST_BESIDE)))[0]
        for name, colour in colour_of_name.items()
    ]
    title = f"{MOST_NAMES} of {len(lines)} kinds" if len(lines) > MOST_NAMES else None
    axes.legend(handles=lines[:MOST_NAMES], loc="upper left", frameon=False, fontsize="small", title=title)
    axes.axis("off")


def _overlay(axes: Axes, runs: Sequence[tuple[str, Rows]], metric: str) -> None:
    colour = colour_of(runs)
    unnamed = {*colour}
    width = 1.0 if len(runs) > len(colour) else 1.5
    for name, rows in runs:
        label = plain(name) if name in unnamed else None
        _line(axes, rows, metric, label, color=colour[name], linewidth=width)
        unnamed.discard(name)


def _line(axes: Axes, rows: Rows, metric: str, label: str | None, **style: Any) -> None:
    known = [row for row in rows if metric in row]  # a method may have stages
    if known:
        marker = "o" if len(known) == 1 else None
        axes.plot([row["epoch"] for row in known], [row[metric] for row in known], marker=marker, label=label, **style)


def _as_divergence(axes: Axes) -> None:
    """Of what has been drawn."""
    axes.set_ylabel("KL divergence")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low)  # within one, powers of ten alone may be none; within many, more are too many
    subs = (1,) if decades > 3 else (1, 2, 5) if decades > 1 else (1, 1.5, 2, 3, 4, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _finish(axes: Axes, *, has_legend: bool = True) -> None:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if has_legend and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
