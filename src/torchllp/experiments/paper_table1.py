"""Table 1 of the paper: every method on every data set, in bags of five sizes."""

from collections.abc import Iterator

from torchllp.experiments.figures import accuracy_figure
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

DATASETS = ("cifar10", "cifar100", "svhn", "fashion-mnist", "mini-imagenet")
BAG_SIZES = (16, 32, 64, 128, 256)
TOO_FEW_BAGS = {("mini-imagenet", 128), ("mini-imagenet", 256)}
"""Where LLPFC, which groups as many bags as there are classes, cannot be trained: 62 and 31 bags, 100 classes."""
METHODS = ("llpfc", "dllp", "llp-vat", "rot", "softmatch", "ahil")
EPOCH_OF_STEPS = {"regroup_every": 1}
"""LLPFC groups bags anew every 20 passes, and the full scale's epochs of 1,024 steps are 14 to 21 of them (but 128 of
MiniImageNet)."""


def cells(scale: Scale) -> Iterator[Cell]:
    for seed, dataset, bag_size in scale.grid(DATASETS, BAG_SIZES):
        is_first = bag_size == scale.bag_sizes_for(*BAG_SIZES)[0]
        for method in METHODS:
            if method != "llpfc" or (dataset, bag_size) not in TOO_FEW_BAGS:
                options = EPOCH_OF_STEPS if (method, scale.name) == ("llpfc", "full") else {}
                yield scale.cell(dataset, method, bag_size, seed, options=options)
        features = scale.pretrained(dataset, seed)
        if is_first:  # these two know nothing of bags
            yield scale.cell(dataset, "supervised", bag_size, seed)
            yield features
        yield scale.cell(dataset, "flmm", bag_size, seed, after=features)


SUITE = Suite(
    "paper-table1", "Accuracy of all methods for each bag size (Table 1)", cells, accuracy_figure, table="table1"
)
