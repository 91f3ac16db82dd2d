"""The bags' shares as predicted, against those that were given."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from torchllp.report.figure import colours, plain, short

Shares = tuple[np.ndarray, np.ndarray]
"""Given and predicted shares of bags, ``[B, C]`` each; NaN for one that was not given."""
LETTER = 0.07
"""Inches of a letter of the legend, roughly."""
MOST_COLOURS = 10
MOST_DOTS = 20_000
MOST_VECTOR_DOTS = 1_000
"""More dots are drawn as pixels, which take less room in a file."""


def largest_share(panels: Mapping[str, Shares]) -> float:
    """What the axes of these panels must reach."""
    return max(np.nanmax(shares, initial=0.01) for pair in panels.values() for shares in pair)


def proportions_figure(
    panels: Mapping[str, Shares], class_names: Sequence[str], *, reach: float | None = None
) -> Figure:
    """A dot for each class of each bag, a panel each by its name; on the diagonal the two shares are the same.

    ``reach`` is the end of the axes, if figures are to be compared.
    """
    has_colours = len(class_names) <= MOST_COLOURS
    names = [plain(short(name)) for name in class_names]
    legend = LETTER * max(map(len, names)) if has_colours else 0.0
    figure = Figure(figsize=(4.4 * len(panels) + legend, 3.9), layout="constrained", dpi=120)
    largest = reach or largest_share(panels)
    every = figure.subplots(1, len(panels), squeeze=False).flat
    for axes, (name, (given, predicted)) in zip(every, panels.items(), strict=True):
        error = np.nanmean(np.abs(given - predicted))
        axes.set_title(f"{len(given):,} {name}\nmean error of a share {error:.1%}")
        axes.plot([0, 1], [0, 1], "--", color="grey", linewidth=1)
        kinds = np.broadcast_to(np.arange(len(class_names)), given.shape)[~np.isnan(given)]
        order = np.random.default_rng(0).permutation(len(kinds))[:MOST_DOTS]  # no class lies above all others
        palette = np.array(colours(len(class_names)) if has_colours else ["tab:blue"] * len(class_names))
        x, y = (shares[~np.isnan(given)][order] for shares in (given, predicted))
        is_many = len(order) > MOST_VECTOR_DOTS
        style = {"s": 14 if not is_many else 8, "alpha": 0.6 if not is_many else 0.35, "linewidths": 0}
        axes.scatter(x, y, c=palette[kinds[order]], rasterized=is_many, zorder=2, **style)
        axes.set(xlabel="given share", ylabel="predicted share", aspect="equal")
        limits = (-0.02 * largest, 1.04 * largest)
        axes.set(xlim=limits, ylim=limits)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=None if largest < 0.1 else 0))
        axes.grid(alpha=0.3)
    if has_colours:
        dots = [
            every[0].plot([], [], "o", color=colour, label=name)[0]
            for colour, name in zip(colours(len(class_names)), names, strict=True)
        ]
        figure.legend(handles=dots, loc="outside right center", title="class", fontsize="small", title_fontsize="small")
    return figure
