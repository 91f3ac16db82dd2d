"""One picture of the bags: how far the classes' proportions differ between them."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from torchllp.bags import Bags
from torchllp.report.figure import plain, save_figure, short

MOST_DOTS = 20_000


def save_bags(path: Path, bags: Bags, *, title: str) -> None:
    """Draw each labelled bag's share of each class as a dot, and the share in all bags as a line."""
    proportions = bags.proportions[bags.is_labelled]
    generator = np.random.default_rng(0)  # dots are moved sideways to be seen, and there may be too many of them
    shown = generator.permutation(len(proportions))[: max(1, MOST_DOTS // bags.num_classes)]
    place = np.arange(bags.num_classes)
    figure = Figure(figsize=(max(6.0, min(24.0, 0.5 * bags.num_classes + 2)), 3.9), layout="constrained", dpi=120)
    axes = figure.subplots()
    sideways = place + generator.uniform(-0.3, 0.3, (len(shown), bags.num_classes))
    axes.plot(sideways.ravel(), proportions[shown].ravel(), ".", alpha=0.3, label="share in one bag")
    axes.hlines(bags.class_shares, place - 0.4, place + 0.4, color="black", label="share in all bags")
    axes.set_xticks(
        place,
        [plain(short(name)) for name in bags.class_names],
        rotation=90 if bags.num_classes > 12 else 30,
        ha="right",
    )
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(bottom=0)
    axes.set_title(plain(title))
    axes.legend(fontsize="small")
    save_figure(figure, path)
