"""AHIL with `beta="auto"` against five fixed betas, on data of 2, 10 and 40 classes.

    python benchmarks/automatic_beta.py --data-dir DIR [--find]

DIR has Adult (`tabular/`) and Fashion-MNIST; without them nothing is done. The 40 classes are those of Fashion-MNIST
turned by 0, 90, 180 and 270 degrees. Bags are random, the smaller the more classes there are, so that each data set
can be learnt. `--find` tries values of the constant b of `auto` with a seed of its own; in bags of equal size `auto` is
a pair of fixed betas, so each value is tried as these. Writes
`benchmarks/results/automatic_beta.csv` (a row a run) and `.md`, with `--find` `automatic_beta_search`.
"""

import argparse
import os
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import EPOCHS, ONE_THREAD, mean_and_deviation, run_all, with_first_images, write_csv, write_table
from tables import adult

from torchllp import Config, Dataset, Instances, create_method, create_model, load_dataset, make_bags, train
from torchllp.bags import default_held_out
from torchllp.engine.process import seeded
from torchllp.presets import TABLE, preset

BAG_SIZES = {"adult": 32, "fashion-mnist": 16, "fashion-mnist-turned": 8}
FIXED = (0.1, 0.5, 1.0, 5.0, 20.0)
CONSTANTS = (0.05, 0.1, 0.2, 0.5)
CLASSES = {"adult": 2, "fashion-mnist": 10, "fashion-mnist-turned": 40}
IMAGES = {"recipe": {"epochs": 8, "instances_per_step": 128}}
ROWS = {"recipe": {"epochs": 15}}


def load(name: str, folder: Path) -> Dataset:
    if name == "adult":
        return adult(folder / "tabular").data
    data = with_first_images(load_dataset("fashion-mnist", folder), 8_000, 5_000)
    if name == "fashion-mnist":
        return data
    assert data.test is not None
    names = tuple(f"{c}, turned by {90 * turn}" for turn in range(4) for c in data.class_names)
    return replace(data, train=turned(data.train), test=turned(data.test), class_names=names, flip=False)


def turned(images: Instances) -> Instances:
    """Every fourth image as it is, the next ones turned by a quarter, a half and three quarters."""
    assert images.labels is not None
    inputs = images.inputs.clone()
    for turn in range(4):
        inputs[turn::4] = images.inputs[turn::4].rot90(turn, dims=(2, 3))
    return Instances(inputs, images.labels + 10 * (torch.arange(len(inputs)) % 4))


@dataclass(frozen=True)
class Job:
    folder: Path
    data: str
    label: str
    numbers: tuple[tuple[str, Any], ...]
    seed: int

    @property
    def name(self) -> str:
        return f"{self.data}-{self.label}-seed{self.seed}"

    def run(self) -> list[dict[str, Any]]:
        data = load(self.data, self.folder)
        assert data.train.labels is not None
        bags = make_bags(data, "random", bag_size=BAG_SIZES[self.data], seed=self.seed)
        train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
        is_table = self.data == "adult"
        config = Config.layered(*([preset("quick", TABLE), ROWS] if is_table else [IMAGES]))
        with seeded("first weights", self.seed):
            model = create_model(
                "mlp" if is_table else "small-cnn", num_classes=len(data.class_names), input_shape=data.input_shape
            )
        outcome = train(
            model,
            create_method("ahil", **dict(self.numbers)),
            data,
            train_bags,
            held_out=held_out,
            recipe=config.recipe,
            compute=ONE_THREAD,
            seed=self.seed,
        )
        accuracies = [row["test/accuracy"] for row in outcome.metrics]
        assert outcome.chosen is not None
        found = {"last": accuracies[-1], "chosen": outcome.chosen["test/accuracy"], "oracle": max(accuracies)}
        return [{"data": self.data, "beta": self.label, "seed": self.seed} | found]


def jobs_of(folder: Path, *, find: bool) -> list[Job]:
    jobs = []
    for seed in (100,) if find else range(3):
        for data, num_classes in CLASSES.items():
            betas: dict[str, dict[str, Any]] = {}
            if find:
                for b in CONSTANTS:
                    numbers = {"beta_bag": b * log(BAG_SIZES[data]) ** 2, "beta_instance": b * log(num_classes) ** 2}
                    betas[f"b={b:g}"] = numbers
            else:
                betas = {f"{beta:g}": {"beta_bag": beta, "beta_instance": beta} for beta in FIXED}
                betas["auto"] = {"beta": "auto"}
            jobs += [Job(folder, data, label, tuple(numbers.items()), seed) for label, numbers in betas.items()]
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("TORCHLLP_DATA", "data")))
    parser.add_argument("--find", action="store_true", help="try values of the constant b")
    options = parser.parse_args()
    for needed in ("tabular", "FashionMNIST"):
        if not (options.data_dir / needed).is_dir():
            print(f"skipped: there is no {options.data_dir / needed}: say where it is by --data-dir or TORCHLLP_DATA")
            return
    name = "automatic_beta_search" if options.find else "automatic_beta"
    rows = run_all(jobs_of(options.data_dir, find=options.find), name.replace("_", "-"))
    columns = ["data", "beta", "seed"]
    cells = [[row[column] for column in columns] + [f"{100 * row[epoch]:.2f}" for epoch in EPOCHS] for row in rows]
    write_csv(name, [*columns, *EPOCHS], cells)
    lines = []
    for data, num_classes in CLASSES.items():
        for beta in dict.fromkeys(row["beta"] for row in rows):
            runs = [row for row in rows if (row["data"], row["beta"]) == (data, beta)]
            numbers = [mean_and_deviation([100 * row[epoch] for row in runs]) for epoch in EPOCHS]
            lines.append([data, beta, f"{num_classes}", f"{BAG_SIZES[data]}", *numbers, f"{len(runs)}"])
    write_table(name, ["data", "beta", "classes", "bag size", *(f"{e} epoch" for e in EPOCHS), "n"], lines, num_words=2)
    if not options.find:
        for data in CLASSES:
            by_beta = {
                beta: mean(100 * row["oracle"] for row in rows if (row["data"], row["beta"]) == (data, beta))
                for beta in dict.fromkeys(row["beta"] for row in rows)
            }
            auto = by_beta.pop("auto")
            best = max(by_beta, key=lambda beta: by_beta[beta])
            print(f"{data}: auto {auto:.2f}, best fixed beta {best} {by_beta[best]:.2f}: {auto - by_beta[best]:+.2f}")


if __name__ == "__main__":
    main()
