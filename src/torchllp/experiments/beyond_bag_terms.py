"""Figure 2 of the paper for every bag term, alone and with AHIL's weighted pseudo-labels: when is it over-smooth?"""

from collections.abc import Iterator

from matplotlib.figure import Figure

from torchllp.experiments.figures import curves_figure
from torchllp.experiments.results import Results
from torchllp.experiments.scales import Scale
from torchllp.experiments.suite import Cell, Suite

WITH_AHIL = " + AHIL"
ROWS = {
    "mean": ("dllp", {}),
    "moments": ("llp-mm", {}),
    "moments of order 4": ("llp-mm", {"order": 4}),
    "gaussian": ("dllp", {"bag_term": "gaussian"}),
    "count": ("llp-pvc", {}),
    f"mean{WITH_AHIL}": ("ahil", {}),
    f"moments{WITH_AHIL}": ("ahil", {"bag_term": "moments"}),
    f"gaussian{WITH_AHIL}": ("ahil", {"bag_term": "gaussian"}),
    f"count{WITH_AHIL}": ("ahil", {"bag_term": "count"}),
}
COLOURS = {term: f"C{number}" for number, term in enumerate(row for row in ROWS if WITH_AHIL not in row)}
METRICS = {
    "train/accuracy": "likeliest labels that are right",
    "train/entropy": "normalised entropy of predictions",
}


def cells(scale: Scale) -> Iterator[Cell]:
    for seed, dataset, bag_size in scale.grid(("cifar10", "cifar100"), (16, 64, 256)):
        for row, (method, options) in ROWS.items():
            yield scale.cell(dataset, method, bag_size, seed, row=row, options=options)


def draw(results: Results) -> Figure:
    return curves_figure(
        results,
        METRICS,
        panel=lambda cell: f"{cell.dataset}, bags of {cell.bag_size}",
        line=lambda cell: cell.row,
        style=lambda row, _: {
            "color": COLOURS[row.removesuffix(WITH_AHIL)],
            "linestyle": "--" if WITH_AHIL in row else "-",
        },
    )


SUITE = Suite("beyond-bag-terms", "Training instances over the epochs, by bag term (as Fig. 2)", cells, draw)
