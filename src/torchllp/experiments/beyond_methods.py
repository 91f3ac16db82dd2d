"""Methods that came after the paper, and our own, beside its two ends: the bag loss alone, and AHIL."""

from collections.abc import Iterator

from torchllp.experiments.figures import accuracy_figure
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

METHODS = ("dllp", "ahil", "llp-pvc", "llp-mm", "llp-dc", "contrast")


def cells(scale: Scale) -> Iterator[Cell]:
    for seed, dataset, bag_size in scale.grid(("cifar10", "cifar100"), (16, 64, 256)):
        for method in METHODS:
            # the head's step of contrast is one for SGD, which the other scales train by anyway
            recipe = {"optimizer": "sgd", "lr": 0.1} if (method, scale.name) == ("contrast", "cpu") else {}
            yield scale.cell(dataset, method, bag_size, seed, recipe=recipe)
        features = scale.pretrained(dataset, seed)
        if bag_size == scale.bag_sizes_for(16)[0]:
            yield features
        yield scale.cell(dataset, "rlpl", bag_size, seed, after=features)


SUITE = Suite("beyond-methods", "Accuracy of newer methods for each bag size", cells, accuracy_figure)
