"""Do pseudo-labels help where classes overlap? `ahil` beside `dllp` on garments that are told apart, and that are not.

    python benchmarks/overlap.py --data-dir DIRECTORY

Five classes of Fashion-MNIST that look different (trousers, dresses, sandals, bags, ankle boots), and five that look
alike (all that cover the upper body, and dresses again). Of each the first 10,000 training images in random bags of 64,
the small CNN, AdamW and 1,050 steps, all test images; `supervised` says how far the classes can be told apart at all.
Two processes of one thread each write `benchmarks/results/overlap.csv` (a row a run) and `.md` (mean and deviation).
Finished runs are kept in `runs/benchmark-overlap`, so that the command goes on from where it was stopped; remove that
directory to begin anew.
"""

import argparse
import os
import time
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from common import EPOCHS, ONE_THREAD, mean_and_deviation, run_all, write_csv, write_table

from torchllp import Dataset, Instances, Recipe, create_method, create_model, load_dataset, make_bags, train
from torchllp.bags import default_held_out
from torchllp.engine.process import seeded

GARMENTS = {"told apart": (1, 3, 5, 8, 9), "overlapping": (0, 2, 3, 4, 6)}
METHODS = ("dllp", "ahil", "supervised")
BAG_SIZE = 64
NUM_TRAIN = 10_000
RECIPE = Recipe(epochs=30, instances_per_step=256, optimizer="adamw", lr=0.003)


@dataclass(frozen=True)
class Job:
    data_dir: str | None
    garments: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.garments.replace(' ', '-')}-{self.method}-seed{self.seed}"

    def run(self) -> list[dict[str, Any]]:
        data = only(load_dataset("fashion-mnist", self.data_dir), GARMENTS[self.garments])
        bags = make_bags(data, "random", bag_size=BAG_SIZE, seed=self.seed)
        train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
        with seeded("first weights", self.seed):
            model = create_model("small-cnn", num_classes=len(data.class_names), input_shape=data.input_shape)
        arguments: dict[str, Any] = {"recipe": RECIPE, "compute": ONE_THREAD, "seed": self.seed}
        started = time.process_time()
        outcome = train(model, create_method(self.method), data, train_bags, held_out=held_out, **arguments)
        tested = [row["test/accuracy"] for row in outcome.metrics]
        last = outcome.metrics[-1]
        assert outcome.chosen is not None
        return [
            {
                "garments": self.garments,
                "method": self.method,
                "seed": self.seed,
                "steps": last["steps"],
                "cpu_seconds": time.process_time() - started,
                "last": 100 * tested[-1],
                "chosen": 100 * outcome.chosen["test/accuracy"],
                "oracle": 100 * max(tested),
                "trust": last.get("train/trust"),
                "right": last.get("train/pseudo_label_accuracy"),
            }
        ]


def only(data: Dataset, classes: tuple[int, ...]) -> Dataset:
    """The data set with these classes alone, and the first of its training images."""
    wanted = torch.tensor(classes)

    def part(instances: Instances, number: int | None = None) -> Instances:
        assert instances.labels is not None
        rows = torch.isin(instances.labels, wanted).nonzero().flatten()[:number]
        return Instances(instances.inputs[rows], torch.searchsorted(wanted, instances.labels[rows]))

    assert data.test is not None
    names = tuple(data.class_names[number] for number in classes)
    return replace(data, train=part(data.train, NUM_TRAIN), test=part(data.test), class_names=names)


def write(rows: list[dict[str, Any]]) -> None:
    words, shares = ["garments", "method", "seed", "steps"], ["trust", "right"]
    write_csv(
        "overlap",
        [*words, "cpu_seconds", *EPOCHS, *shares],
        [
            [*(row[word] for word in words), f"{row['cpu_seconds']:.0f}"]
            + [f"{row[epoch]:.2f}" for epoch in EPOCHS]
            + ["" if row[share] is None else f"{row[share]:.4f}" for share in shares]
            for row in rows
        ],
    )
    lines = []
    for garments in GARMENTS:
        for method in METHODS:
            runs = [row for row in rows if (row["garments"], row["method"]) == (garments, method)]
            cells = [mean_and_deviation([row[epoch] for row in runs]) for epoch in EPOCHS]
            cells += [
                "-" if runs[0][share] is None else mean_and_deviation([row[share] for row in runs]) for share in shares
            ]
            seconds = mean(row["cpu_seconds"] for row in runs)
            lines.append([garments, method, *cells, f"{runs[0]['steps']}", f"{seconds:.0f}", f"{len(runs)}"])
    heads = [*(f"{epoch} epoch" for epoch in EPOCHS), "trust", "right pseudo-labels", "steps", "CPU seconds", "n"]
    write_table("overlap", ["garments", "method", *heads], lines, num_words=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("TORCHLLP_DATA"), help="where the files are")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    jobs = [
        Job(options.data_dir, garments, method, seed)
        for seed in range(options.seeds)  # all of a seed first: what there is when stopped is a whole table
        for garments in GARMENTS
        for method in METHODS
    ]
    write(run_all(jobs, "overlap"))


if __name__ == "__main__":
    main()
