"""How far confidence can be taken at its word."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from torchllp.metrics import calibration_bins, calibration_error

NUM_BINS = 15
FOUND = "found; larger where there are more instances"


@dataclass(frozen=True, eq=False)
class Reliability:
    """Labelled instances by the largest probability of their prediction, in bins of equal width."""

    counts: np.ndarray
    """Instances in each bin, ``[K]``."""
    confidence: np.ndarray
    """Their mean largest probability, ``[K]``; NaN where there are none."""
    accuracy: np.ndarray
    """How many of them are predicted right, ``[K]``; NaN where there are none."""
    error: float
    """The expected calibration error."""

    @classmethod
    def of(cls, log_p: Tensor, labels: Tensor, num_bins: int = NUM_BINS) -> "Reliability":
        """Of log-probabilities ``[N, C]``; labels are -1 where unknown.

        >>> import torch
        >>> found = Reliability.of(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]), num_bins=2)
        >>> found.counts.tolist(), found.accuracy.tolist(), found.error
        ([0, 4], [nan, 0.5], 0.25)
        """
        counts, confidence, right = (x.numpy() for x in calibration_bins(log_p, labels, num_bins))
        return cls(counts, confidence, right, calibration_error(log_p, labels, num_bins).item())


def reliability_figure(panels: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence, a panel each by its name; below it how many instances have that confidence."""
    figure = Figure(figsize=(4.4 * len(panels), 4.8), layout="constrained", dpi=120)
    grid = figure.subplots(2, len(panels), squeeze=False, sharex=True, height_ratios=[3, 1])
    for column, (name, found) in enumerate(panels.items()):
        upper, lower = grid[:, column]
        edges = np.linspace(0, 1, len(found.counts) + 1)
        centre, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
        there = found.counts > 0
        upper.set_title(f"{name}\ncalibration error {found.error:.3f}")
        upper.bar(centre[there], found.accuracy[there], width * 0.94, color="tab:blue", alpha=0.35)
        upper.plot([0, 1], [0, 1], "--", color="grey", linewidth=1, label="as right as it is sure")
        area = 8 + 120 * found.counts[there] / found.counts.max()
        upper.scatter(
            found.confidence[there], found.accuracy[there], area, color="tab:blue", label=FOUND, clip_on=False
        )
        upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="right predictions")
        upper.yaxis.set_major_formatter(PercentFormatter(1))
        lower.bar(centre, found.counts, width * 0.94, color="tab:grey")
        lower.set(xlabel="confidence (largest probability)", ylabel="instances")
        for axes in (upper, lower):
            axes.grid(alpha=0.3)
            axes.set_axisbelow(True)
    lines, words = grid[0, 0].get_legend_handles_labels()
    figure.legend(lines, words, loc="outside lower center", fontsize="small", frameon=False, markerscale=0.6)
    return figure
