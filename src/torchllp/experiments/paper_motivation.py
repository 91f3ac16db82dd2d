"""Figure 2 of the paper: in larger bags pseudo-labels are right less often, and predictions smoother.

The paper does not say what was trained; it speaks of pseudo-labels as they are learnt from by others, so it is AHIL
without its weights.
"""

from collections.abc import Iterator

from matplotlib.figure import Figure

from torchllp.experiments.figures import curves_figure
from torchllp.experiments.paper_table2 import ROWS
from torchllp.experiments.results import Results
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

EPOCHS = 500
"""Of the paper's recipe; other scales train as they always do."""
METRICS = {
    "train/pseudo_label_accuracy": "pseudo-labels that are right",
    "train/entropy": "normalised entropy of predictions",
}


def cells(scale: Scale) -> Iterator[Cell]:
    recipe = {"epochs": EPOCHS} if scale.name == "full" else {}
    for seed, dataset, bag_size in scale.grid(("cifar10", "cifar100"), (16, 32, 64, 128, 256)):
        options = ROWS["no weights"]
        yield scale.cell(dataset, "ahil", bag_size, seed, row="no weights", options=options, recipe=recipe)


def draw(results: Results) -> Figure:
    return curves_figure(results, METRICS)


SUITE = Suite(
    "paper-motivation", "Pseudo-labels over the epochs, by bag size, learnt from without weights (Fig. 2)", cells, draw
)
