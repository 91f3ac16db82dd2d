"""Table 2 of the paper: AHIL with both of its weights, with either, and with none."""

from collections.abc import Iterator

from torchllp.experiments.figures import accuracy_figure
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

ROWS = {
    "no weights": {"weigh_bags": False, "weigh_instances": False},
    "bag weights": {"weigh_instances": False},
    "instance weights": {"weigh_bags": False},
    "both weights": {},
}


def cells(scale: Scale) -> Iterator[Cell]:
    for seed, dataset, bag_size in scale.grid(("cifar10", "cifar100"), (16, 32, 64, 128, 256)):
        for row, options in ROWS.items():
            yield scale.cell(dataset, "ahil", bag_size, seed, row=row, options=options)


SUITE = Suite(
    "paper-table2", "Accuracy of AHIL with and without its weights (Table 2)", cells, accuracy_figure, table="table2"
)
