"""Figure 5 of the paper: t-SNE of the features that three methods learn from bags of 256."""

from collections.abc import Iterator

from torchllp.experiments.figures import tsne_figure
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite


def cells(scale: Scale) -> Iterator[Cell]:
    (dataset, *_), (bag_size,) = scale.datasets_for("cifar10"), scale.bag_sizes_for(256)
    for method in ("dllp", "rot", "ahil"):
        yield scale.cell(dataset, method, bag_size, scale.seeds[0])


SUITE = Suite("paper-tsne", "What dllp, rot and ahil have learnt, by t-SNE (Fig. 5)", cells, tsne_figure)
