"""One picture of a classifier's mistakes: what the instances of each class were taken for."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from torchllp.errors import LLPError
from torchllp.report.figure import plain, save_figure, short

MOST_CLASSES_WITH_COUNTS = 20


def save_confusion(path: Path, confusion: np.ndarray | Tensor, class_names: Sequence[str], *, title: str) -> None:
    """Draw :func:`confusion_figure` to a file."""
    save_figure(confusion_figure(confusion, class_names, title=title), path)


def confusion_figure(confusion: np.ndarray | Tensor, class_names: Sequence[str], *, title: str | None = None) -> Figure:
    """How the instances of each true class (rows) spread over the predicted classes (columns).

    ``confusion [C, C]`` are counts, as from :func:`torchllp.metrics.confusion_matrix`; colour is the share of the row.
    """
    counts, num_classes = np.asarray(confusion), len(class_names)
    if counts.shape != (num_classes, num_classes):
        raise LLPError(f"{num_classes} classes need counts of shape {(num_classes, num_classes)}, not {counts.shape}")
    totals = counts.sum(1, keepdims=True)
    shares = np.where(totals > 0, counts / totals.clip(min=1), np.nan)  # NaN is drawn grey: there is nothing to share
    names = [plain(short(name)) for name in class_names]
    has_counts = num_classes <= MOST_CLASSES_WITH_COUNTS
    font_size = 9 if has_counts else 6
    character = font_size / 110  # its width in inches, roughly
    cell = max(2.4 / num_classes, character * len(f"{counts.max():,}") + 0.15 if has_counts else 0.12)
    name_length = character * max(map(len, names))
    is_upright = name_length > cell
    side = cell * num_classes
    size = (side + name_length + 2.0, side + (name_length if is_upright else character) + 1.2)
    figure = Figure(figsize=size, layout="compressed", dpi=120)
    axes = figure.subplots()
    axes.set_facecolor("lightgrey")
    # The root makes mistakes of a few percent visible, above all where there are too many classes for numbers.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1))
    for row, column in np.ndindex(counts.shape) if has_counts else ():
        colour = "white" if shares[row, column] > 0.3 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=font_size, color=colour)
    axes.set_xticks(range(num_classes), names, rotation=90 if is_upright else 0, fontsize=font_size)
    axes.set_yticks(range(num_classes), names, fontsize=font_size)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if title is not None:
        axes.set_title(plain(title), wrap=True)
    bar = figure.colorbar(image, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1], format="{x:.0%}", fraction=0.05, pad=0.02)
    bar.set_label("share of the true class")
    return figure
