"""One picture of a training: what was matched, what was trusted, what came of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from torchllp.report.figure import save_figure

Rows = Sequence[Mapping[str, float]]


def save_curves(
    path: Path, metrics: Mapping[str, Rows], *, title: str, tests_on: str, chosen: Mapping[str, float] | None
) -> None:
    """Draw the first run's curves, with the accuracy of the others beside its own where there are labels for it.

    ``metrics`` is a run's name -> its rows; ``tests_on`` what accuracy is measured on; ``chosen`` the row of the first
    run's chosen epoch.
    """
    name, rows = next(iter(metrics.items()))
    num_panels = 3 if "test/accuracy" in rows[0] else 2
    figure = Figure(figsize=(4 * num_panels, 3.9), layout="constrained", dpi=120)
    figure.suptitle(title, fontweight="bold")
    bags, trust, *others = figure.subplots(1, num_panels)

    bags.set_title("Bags: error of the predicted proportions")
    _line(bags, rows, "train/bag_kl", "training bags")
    _line(bags, rows, "held_out/bag_kl", "held-out bags")
    bags.set_ylabel("KL divergence")
    bags.set_yscale("log")

    trust.set_title("Predictions on training instances")
    _line(trust, rows, "train/entropy", "normalised entropy")
    _line(trust, rows, "train/trust", "mean trust in pseudo-labels")
    _line(trust, rows, "train/pseudo_label_accuracy", "right pseudo-labels")
    trust.set_ylim(0, 1.02)

    for accuracy in others:
        accuracy.set_title(f"Accuracy on single {tests_on}")
        for other, its_rows in metrics.items():
            _line(accuracy, its_rows, "test/accuracy", other)
        if chosen is not None:
            label = f"{name}, chosen epoch: {chosen['test/accuracy']:.1%}"
            accuracy.plot(chosen["epoch"], chosen["test/accuracy"], "o", color="black", label=label)
        accuracy.yaxis.set_major_formatter(PercentFormatter(1))

    _finish(bags, trust, *others)
    save_figure(figure, path)


def save_contrast_curves(path: Path, rows: Rows, *, title: str) -> None:
    """Draw the curves of a pre-training."""
    figure = Figure(figsize=(8, 3.9), layout="constrained", dpi=120)
    figure.suptitle(title, fontweight="bold")
    loss, told_apart = figure.subplots(1, 2)
    loss.set_title("Loss (NT-Xent)")
    _line(loss, rows, "train/loss", "training instances")
    told_apart.set_title("Views whose partner is the most similar")
    _line(told_apart, rows, "train/contrast_accuracy", "of the views of a step")
    told_apart.set_ylim(0, 1.02)
    told_apart.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(loss, told_apart)
    save_figure(figure, path)


def _finish(*panels: Axes) -> None:
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend(fontsize="small")


def _line(axes: Axes, rows: Rows, metric: str, label: str) -> None:
    known = [row for row in rows if metric in row]  # a method may have stages
    if known:
        axes.plot([row["epoch"] for row in known], [row[metric] for row in known], label=label)
