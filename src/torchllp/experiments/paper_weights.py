"""Figure 4 of the paper: AHIL's adaptive weights over the epochs, for three bag sizes."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from torchllp.experiments.figures import curves_figure
from torchllp.experiments.results import Results
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

METRICS = {
    "train/trust": "mean weight of a pseudo-label",
    "train/pseudo_label_accuracy": "pseudo-labels that are right",
}


def cells(scale: Scale) -> Iterator[Cell]:
    for seed, dataset, bag_size in scale.grid(("cifar10", "cifar100"), (16, 64, 256)):
        yield scale.cell(dataset, "ahil", bag_size, seed)


def draw(results: Results) -> Figure:
    return curves_figure(results, METRICS)


SUITE = Suite("paper-weights", "AHIL's weights over the epochs, by bag size (Fig. 4)", cells, draw)
