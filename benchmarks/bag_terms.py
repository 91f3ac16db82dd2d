"""When is it over-smooth? Every bag term alone, and with AHIL's weighted pseudo-labels (Fig. 2 of the paper).

    python benchmarks/bag_terms.py digits
    python benchmarks/bag_terms.py fashion-mnist --data-dir DIRECTORY [--seeds N]

trains the small CNN on the same bags by each bag term, in two processes of one thread each, and writes a row a run to
`benchmarks/results/bag_terms_NAME.csv`, mean and deviation to `bag_terms_NAME.md`, and to `bag_terms_NAME.png` how many
likeliest labels of the training instances are right, and the normalised entropy of the predictions, over the epochs.
Neither is used in training. Finished runs are kept in `runs/benchmark-bag-terms-NAME`, so that the command goes on from
where it was stopped; remove that directory to begin anew.
"""

import argparse
import os
import time
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from common import (
    EPOCHS,
    ONE_THREAD,
    RESULTS,
    mean_and_deviation,
    run_all,
    with_first_images,
    write_csv,
    write_table,
)
from matplotlib.figure import Figure

from torchllp import Bags, Recipe, create_method, create_model, load_dataset, train
from torchllp.bags import default_held_out
from torchllp.engine.process import seeded
from torchllp.report.figure import save_figure

TERMS: dict[str, dict[str, Any]] = {
    "mean": {"bag_term": "mean"},
    "moments, order 2": {"bag_term": "moments", "order": 2},
    "moments, order 4": {"bag_term": "moments", "order": 4},
    "gaussian": {"bag_term": "gaussian"},
    "count": {"bag_term": "count"},
}
INSTANCE_TERMS = {"none": {"pseudo_labels": "none"}, "AHIL's": {}}
TITLES = {"none": "bag term alone", "AHIL's": "with AHIL's instance term"}
CURVES = {
    "train/accuracy": "training instances whose likeliest class is right, %",
    "train/entropy": "normalised entropy",
}


@dataclass(frozen=True)
class Plan:
    bag_sizes: tuple[int, ...]
    num_train: int | None
    recipe: Recipe


PLANS = {
    "digits": Plan((16, 64), None, Recipe(epochs=150, instances_per_step=128)),
    "fashion-mnist": Plan((64, 256), 20_000, Recipe(epochs=15, instances_per_step=256)),
}


@dataclass(frozen=True)
class Job:
    dataset: str
    data_dir: str | None
    term: str
    instance_term: str
    bag_size: int
    seed: int

    @property
    def name(self) -> str:
        words = f"{self.term} {self.instance_term} {self.bag_size} seed{self.seed}"
        return "".join(letter if letter.isalnum() else "-" for letter in words)

    def run(self) -> list[dict[str, Any]]:
        plan = PLANS[self.dataset]
        data = with_first_images(load_dataset(self.dataset, self.data_dir), plan.num_train)
        assert data.train.labels is not None
        bags = Bags.random(data.train.labels.numpy(), self.bag_size, self.seed, class_names=data.class_names)
        train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
        with seeded("first weights", self.seed):
            model = create_model("small-cnn", num_classes=len(data.class_names), input_shape=data.input_shape)
        method = create_method("custom", **TERMS[self.term], **INSTANCE_TERMS[self.instance_term])
        started = time.process_time()
        outcome = train(
            model,
            method,
            data,
            train_bags,
            held_out=held_out,
            recipe=plan.recipe,
            compute=ONE_THREAD,
            seed=self.seed,
        )
        tested = [row["test/accuracy"] for row in outcome.metrics]
        assert outcome.chosen is not None
        return [
            {
                "term": self.term,
                "instance_term": self.instance_term,
                "bag_size": self.bag_size,
                "seed": self.seed,
                "steps": outcome.metrics[-1]["steps"],
                "cpu_seconds": time.process_time() - started,
                "last": tested[-1],
                "chosen": outcome.chosen["test/accuracy"],
                "oracle": max(tested),
                "curves": {name: [row[name] for row in outcome.metrics] for name in CURVES},
            }
        ]


def write(dataset: str, rows: list[dict[str, Any]]) -> None:
    name = f"bag_terms_{dataset.replace('-', '_')}"
    words = ["term", "instance_term", "bag_size", "seed", "steps"]
    write_csv(
        name,
        [*words, "cpu_seconds", *EPOCHS, "train_accuracy", "train_entropy"],
        [
            [*(row[word] for word in words), f"{row['cpu_seconds']:.0f}"]
            + [f"{100 * row[epoch]:.2f}" for epoch in EPOCHS]
            + [f"{row['curves'][curve][-1]:.4f}" for curve in CURVES]
            for row in rows
        ],
    )
    lines = []
    for bag_size in PLANS[dataset].bag_sizes:
        for instance_term in INSTANCE_TERMS:
            for term in TERMS:
                runs = _runs(rows, term, instance_term, bag_size)
                cells = [mean_and_deviation([100 * row[epoch] for row in runs]) for epoch in EPOCHS]
                entropy = mean(row["curves"]["train/entropy"][-1] for row in runs)
                seconds = mean(row["cpu_seconds"] for row in runs)
                lines.append(
                    [term, instance_term, f"{bag_size}", *cells, f"{entropy:.3f}", f"{seconds:.0f}", f"{len(runs)}"]
                )
    heads = ["bag term", "instance term", "bag size", *(f"{epoch} epoch" for epoch in EPOCHS)]
    write_table(name, [*heads, "entropy at the end", "CPU seconds", "n"], lines, num_words=2)
    save_figure(_figure(dataset, rows), RESULTS / f"{name}.png")


def _runs(rows: list[dict[str, Any]], term: str, instance_term: str, bag_size: int) -> list[dict[str, Any]]:
    wanted = (term, instance_term, bag_size)
    return [row for row in rows if (row["term"], row["instance_term"], row["bag_size"]) == wanted]


def _figure(dataset: str, rows: list[dict[str, Any]]) -> Figure:
    """A column for each bag size and instance term, a line for each bag term: the mean over the seeds."""
    columns = [(bag_size, what) for bag_size in PLANS[dataset].bag_sizes for what in INSTANCE_TERMS]
    figure = Figure(figsize=(3.4 * len(columns), 6), layout="constrained")
    axes = figure.subplots(len(CURVES), len(columns), sharex=True, sharey="row")
    for column, (bag_size, instance_term) in enumerate(columns):
        for line, (curve, title) in enumerate(CURVES.items()):
            ax = axes[line, column]
            for term in TERMS:
                values = np.array([row["curves"][curve] for row in _runs(rows, term, instance_term, bag_size)])
                scale = 100 if curve == "train/accuracy" else 1
                ax.plot(np.arange(1, values.shape[1] + 1), scale * values.mean(0), label=term)
            ax.grid(alpha=0.3)
            if line == 0:
                ax.set_title(f"bags of {bag_size}, {TITLES[instance_term]}")
            else:
                ax.set_xlabel("epoch")
            if column == 0:
                ax.set_ylabel(title)
    axes[0, 0].legend(title="bag term", fontsize="small")
    seeds = len({row["seed"] for row in rows})
    figure.suptitle(f"{dataset}: mean of {seeds} seeds; labels of training instances are looked at, never learnt")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=PLANS)
    parser.add_argument("--data-dir", default=os.environ.get("TORCHLLP_DATA"), help="where the data set's files are")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    jobs = [
        Job(options.dataset, options.data_dir, term, instance_term, bag_size, seed)
        for seed in range(options.seeds)  # all of a seed first: what there is when stopped is a whole table
        for bag_size in PLANS[options.dataset].bag_sizes
        for instance_term in INSTANCE_TERMS
        for term in TERMS
    ]
    write(options.dataset, run_all(jobs, f"bag-terms-{options.dataset}"))


if __name__ == "__main__":
    main()
