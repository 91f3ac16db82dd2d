"""The figures of the suites."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from torchllp.engine.train import Row
from torchllp.experiments.results import Results
from torchllp.experiments.suite import Cell
from torchllp.report.figure import plain
from torchllp.report.findings import Findings
from torchllp.report.tsne import MOST_DOTS, Map
from torchllp.report.tsne import tsne_figure as draw_maps

DODGE = 0.03


def accuracy_figure(results: Results) -> Figure:
    """Accuracy at the last epoch against the bag size: a panel a data set, a line a row, dashed what is published."""
    datasets = list(dict.fromkeys(group.dataset for group in results.groups))
    rows = list(dict.fromkeys(group.row for group in results.groups))
    figure = Figure(figsize=(1.5 + 4.5 * len(datasets), 4.2), layout="constrained", dpi=120)
    panels = figure.subplots(1, len(datasets), squeeze=False)[0]
    for axes, dataset in zip(panels, datasets, strict=True):
        of_dataset = [group for group in results.groups if group.dataset == dataset]
        sizes = sorted({group.bag_size for group in of_dataset})
        for number, row in enumerate(rows):
            groups = sorted((group for group in of_dataset if group.row == row), key=lambda group: group.bag_size)
            if not groups:
                continue
            colour = f"C{number % 10}"
            values = [[100 * value for value in group.values("last")] for group in groups]
            if row == "supervised":  # bags are nothing to it
                axes.axhline(mean(values[0]), color="black", linewidth=1, linestyle=":", label="supervised")
                continue
            beside = DODGE * (number - (len(rows) - 1) / 2)  # rows that are alike would hide one another
            places = [sizes.index(group.bag_size) + beside for group in groups]
            means, deviations = [mean(v) for v in values], [stdev(v) if len(v) > 1 else 0.0 for v in values]
            axes.errorbar(
                places, means, deviations, color=colour, marker="o", markersize=4, capsize=3, label=plain(row)
            )
            printed = [group.published.accuracy if group.published else None for group in groups]
            if any(value is not None for value in printed):
                heights = [np.nan if value is None else value for value in printed]
                axes.plot(places, heights, color=colour, linestyle="--", linewidth=1, alpha=0.5)
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2), min(high, 102))  # a deviation may reach beyond what can be
        axes.set_title(dataset)
        axes.set_xlabel("bag size")
        axes.grid(alpha=0.3)
        axes.yaxis.set_major_formatter(PercentFormatter())
    panels[0].set_ylabel("test accuracy, last epoch")
    has_published = any(group.published and group.published.accuracy is not None for group in results.groups)
    _legend(panels, "dashed: published, at full scale" if has_published else "bar: deviation over seeds")
    return figure


def curves_figure(
    results: Results,
    metrics: Mapping[str, str],
    *,
    panel: Callable[[Cell], str] = lambda cell: cell.dataset,
    line: Callable[[Cell], str] = lambda cell: f"bags of {cell.bag_size}",
    style: Callable[[str, int], Mapping[str, str]] = lambda _, number: {"color": f"C{number}"},
) -> Figure:
    """Shares of each epoch: a row of panels, one a metric, for each ``panel``; a ``line`` with a band over the seeds.

    ``style`` is how a line is drawn, by its name and number.
    """
    places = list(dict.fromkeys(panel(cell) for cell in results.cells))
    lines = list(dict.fromkeys(line(cell) for cell in results.cells))
    figure = Figure(figsize=(1.5 + 4.5 * len(metrics), 3.4 * len(places)), layout="constrained", dpi=120)
    rows = figure.subplots(len(places), len(metrics), squeeze=False)
    for place, row in zip(places, rows, strict=True):
        for (metric, title), axes in zip(metrics.items(), row, strict=True):
            for number, name in enumerate(lines):
                cells = [cell for cell in results.cells if (panel(cell), line(cell)) == (place, name)]
                values = _by_epoch([results.run(cell).metrics() for cell in cells], metric)
                if values:
                    drawn = style(name, number)
                    axes.plot([*values], [mean(v) for v in values.values()], label=plain(name), **drawn)
                    band = [min(v) for v in values.values()], [max(v) for v in values.values()]
                    axes.fill_between([*values], *band, color=drawn["color"], alpha=0.15, linewidth=0)
            axes.set_title(plain(f"{place}: {title}"), fontsize="medium")
            axes.set_xlabel("epoch")
            axes.set_ylim(0, 1.02)
            axes.grid(alpha=0.3)
    _legend(rows.flat, "band: lowest to highest seed")
    return figure


def _by_epoch(runs: Sequence[Sequence[Row]], metric: str) -> dict[float, list[float]]:
    """Epoch -> the metric in those runs that have it there: not all are as long, or have it from the start."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for row in run:
            if metric in row:
                values.setdefault(row["epoch"], []).append(row[metric])
    return dict(sorted(values.items()))


def _legend(panels: Iterable[Axes], title: str) -> None:
    """One legend for all panels, on the right."""
    panels = [*panels]
    found = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure = panels[0].get_figure()
    assert figure is not None
    figure.legend(
        found.values(), found.keys(), loc="outside right upper", title=title, fontsize="small", title_fontsize="small"
    )


def grid_figure(results: Results) -> Figure:
    """Accuracy at the last epoch over the grid of both betas: a panel a data set."""
    datasets = list(dict.fromkeys(cell.dataset for cell in results.cells))
    figure = Figure(figsize=(1 + 4 * len(datasets), 3.8), layout="constrained", dpi=120)
    panels = figure.subplots(1, len(datasets), squeeze=False)[0]
    options = {cell.row: cell.config.method.options for cell in results.cells}
    for axes, dataset in zip(panels, datasets, strict=True):
        groups = [group for group in results.groups if group.dataset == dataset]
        both_of = [options[group.row] for group in groups]
        betas = sorted({float(both[name]) for both in both_of for name in ("beta_bag", "beta_instance")})
        accuracy = np.full((len(betas), len(betas)), np.nan)
        for group in groups:
            both = options[group.row]
            place = betas.index(float(both["beta_bag"])), betas.index(float(both["beta_instance"]))
            accuracy[place] = 100 * mean(group.values("last"))
        axes.imshow(accuracy, cmap="Blues", origin="lower", alpha=0.7)
        middle = (np.nanmin(accuracy) + np.nanmax(accuracy)) / 2
        for place in np.argwhere(~np.isnan(accuracy)):
            value = accuracy[tuple(place)]
            colour = "white" if value > middle else "black"
            axes.text(*reversed(place), f"{value:.1f}", color=colour, ha="center", va="center", fontsize="small")
        axes.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axes.set_xlabel("beta of the instance weight")
        axes.set_ylabel("beta of the bag weight")
        axes.set_title(f"{dataset}, bags of {groups[0].bag_size}: accuracy, %", fontsize="medium")
    return figure


def tsne_figure(results: Results) -> Figure:
    """Features of test instances by t-SNE: a panel a run."""
    findings = {cell.row: Findings(results.run(cell), data_dir=results.data_dir) for cell in results.cells}
    maps = [(row, Map.of(*found.features(MOST_DOTS))) for row, found in findings.items()]
    return draw_maps(maps, next(iter(findings.values())).class_names)
