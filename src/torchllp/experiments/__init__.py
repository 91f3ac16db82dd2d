"""Suites of runs: the paper's tables and figures, and two beyond it; this table names them without importing torch."""

from torchllp.registry import Entry, Registry

SUITES = Registry(
    "suite",
    {
        "beyond-bag-terms": Entry(
            "torchllp.experiments.beyond_bag_terms:SUITE", "Fig. 2 for every bag term: when is it over-smooth?"
        ),
        "beyond-methods": Entry(
            "torchllp.experiments.beyond_methods:SUITE", "newer methods, and our own, beside dllp and ahil"
        ),
        "paper-table1": Entry("torchllp.experiments.paper_table1:SUITE", "Table 1: all methods, data sets, bag sizes"),
        "paper-table2": Entry("torchllp.experiments.paper_table2:SUITE", "Table 2: AHIL without its weights"),
        "paper-motivation": Entry(
            "torchllp.experiments.paper_motivation:SUITE", "Fig. 2: pseudo-labels get worse and smoother in larger bags"
        ),
        "paper-sensitivity": Entry(
            "torchllp.experiments.paper_sensitivity:SUITE", "Fig. 6: how much both betas matter"
        ),
        "paper-weights": Entry("torchllp.experiments.paper_weights:SUITE", "Fig. 4: AHIL's weights over the epochs"),
        "paper-tsne": Entry("torchllp.experiments.paper_tsne:SUITE", "Fig. 5: t-SNE of what three methods have learnt"),
    },
)
