"""Figure 6 of the paper: accuracy over a grid of both betas, in bags of 128.

The figure's own grid is not printed; the text speaks of 1, 2, 5 and 40.
"""

from collections.abc import Iterator

from torchllp.experiments.figures import grid_figure
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

FULL = (0.5, 1.0, 2.0, 5.0, 10.0, 40.0)
COARSE = (0.5, 1.0, 5.0, 40.0)


def cells(scale: Scale) -> Iterator[Cell]:
    betas = FULL if scale.name == "full" else COARSE
    for seed, dataset, bag_size in scale.grid(("cifar10", "cifar100"), (128,)):
        for beta_bag in betas:
            for beta_instance in betas:
                options = {"beta_bag": beta_bag, "beta_instance": beta_instance}
                row = f"beta_bag {beta_bag:g}, beta_instance {beta_instance:g}"
                yield scale.cell(dataset, "ahil", bag_size, seed, row=row, options=options)


SUITE = Suite("paper-sensitivity", "Accuracy of AHIL over a grid of both betas (Fig. 6)", cells, grid_figure)
