"""Large bags: `contrast`, our own method, beside `dllp` and `ahil` at equal steps, on data that it was not made on.

    python benchmarks/contrast.py digits
    python benchmarks/contrast.py fashion-mnist-1 --data-dir DIRECTORY
    python benchmarks/contrast.py fashion-mnist-2 --data-dir DIRECTORY
    python benchmarks/contrast.py fashion-mnist-2-adamw --data-dir DIRECTORY
    python benchmarks/contrast.py svhn --data-dir DIRECTORY
    python benchmarks/contrast.py tables --data-dir DIRECTORY
    python benchmarks/contrast.py tables-supervised --data-dir DIRECTORY

The method was looked for on the digits and the first half of Fashion-MNIST (`docs/research-log.md`), and then frozen.
The second half, SVHN and the tables (Adult and Bank, `tabular/`) are where it is tested. Random bags; the small CNN for
images, the default MLP for tables, and the default recipe but for what is in PLANS, for all methods alike. The epoch is
chosen on held-out bags, where there are enough to hold any out. With `-adamw` the two others are trained by what they
learn more by in as many steps: AdamW, and two bags of 256 a step; the head's step of `contrast` is one for SGD.
`tables-supervised` is what can be had on the tables at all: by the same recipe, from all labels.

Two processes of one thread each write `benchmarks/results/contrast_NAME.csv` (a row a run) and `.md` (mean and
deviation). Finished runs are kept in `runs/benchmark-contrast-NAME`, so that the command goes on from where it was
stopped; remove that directory to begin anew.
"""

import argparse
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from common import EPOCHS, ONE_THREAD, mean_and_deviation, run_all, write_csv, write_table
from tables import adult, bank

from torchllp import Config, Dataset, Instances, create_method, create_model, load_dataset, make_bags, train
from torchllp.bags import default_held_out
from torchllp.engine.process import seeded
from torchllp.presets import TABLE, preset

METHODS = ("dllp", "ahil", "contrast")
ORDER = (*METHODS, "supervised")
TABLES = {"adult": adult, "bank": bank}
Rows = slice | None


@dataclass(frozen=True)
class Plan:
    """What is trained on: which rows of which data set, in which bags."""

    dataset: str
    bag_sizes: tuple[int, ...]
    train: Rows = None
    test: Rows = None
    recipe: tuple[tuple[str, Any], ...] = ()
    methods: tuple[str, ...] = METHODS


SHORT = (("epochs", 15), ("instances_per_step", 256))
TWO_BAGS = (("epochs", 30), ("instances_per_step", 512))
"""As many steps for bags of 256, of two each: batch norm takes from a bag that is alone what makes it differ."""
ADAMW = (("optimizer", "adamw"), ("lr", 0.003))
PLANS = {
    "digits": [Plan("digits", (64, 128))],
    "fashion-mnist-1": [Plan("fashion-mnist", (64, 256), slice(20_000), slice(5_000), SHORT)],
    "fashion-mnist-2": [Plan("fashion-mnist", (64, 256), slice(30_000, 50_000), slice(5_000, None), SHORT)],
    "fashion-mnist-2-adamw": [
        Plan("fashion-mnist", (size,), slice(30_000, 50_000), slice(5_000, None), recipe + ADAMW, ("dllp", "ahil"))
        for size, recipe in ((64, SHORT), (256, TWO_BAGS))
    ],
    "svhn": [Plan("svhn", (64, 256), slice(15_000), slice(5_000), SHORT)],
    "tables": [Plan("adult", (64, 256)), Plan("bank", (64, 256))],
    "tables-supervised": [Plan(table, (64,), methods=("supervised",)) for table in ("adult", "bank")],
}


@dataclass(frozen=True)
class Job:
    plan: Plan
    folder: str | None
    method: str
    bag_size: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.plan.dataset}-{self.method}-{self.bag_size}-seed{self.seed}"

    def load(self) -> Dataset:
        if self.plan.dataset in TABLES:
            assert self.folder is not None
            return TABLES[self.plan.dataset](Path(self.folder) / "tabular").data
        data = load_dataset(self.plan.dataset, self.folder)
        assert data.test is not None
        return replace(data, train=some(data.train, self.plan.train), test=some(data.test, self.plan.test))

    def run(self) -> list[dict[str, Any]]:
        data, is_table = self.load(), self.plan.dataset in TABLES
        bags = make_bags(data, "random", bag_size=self.bag_size, seed=self.seed)
        train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
        layer = preset("quick", TABLE if is_table else self.plan.dataset)
        recipe = Config.layered(layer, {"recipe": dict(self.plan.recipe)}).recipe
        with seeded("first weights", self.seed):
            name = "mlp" if is_table else "small-cnn"
            model = create_model(name, num_classes=len(data.class_names), input_shape=data.input_shape)
        arguments: dict[str, Any] = {"recipe": recipe, "compute": ONE_THREAD, "seed": self.seed}
        started = time.process_time()
        outcome = train(model, create_method(self.method), data, train_bags, held_out=held_out, **arguments)
        found = {"cpu_seconds": time.process_time() - started}
        tested = [100 * row["test/accuracy"] for row in outcome.metrics]
        found |= {"last": tested[-1], "oracle": max(tested)}
        if outcome.chosen is not None:
            found["chosen"] = 100 * outcome.chosen["test/accuracy"]
        settings = {"data": self.plan.dataset, "bag_size": self.bag_size, "method": self.method, "seed": self.seed}
        return [settings | {"bags": len(bags), "steps": outcome.metrics[-1]["steps"]} | found]


def some(instances: Instances, rows: Rows) -> Instances:
    if rows is None:
        return instances
    assert instances.labels is not None
    return Instances(instances.inputs[rows], instances.labels[rows])


def write(name: str, rows: list[dict[str, Any]]) -> None:
    words = ["data", "bag_size", "method", "seed", "bags", "steps"]
    write_csv(
        name,
        [*words, "cpu_seconds", *EPOCHS],
        [
            [*(row[word] for word in words), f"{row['cpu_seconds']:.0f}"]
            + [f"{row[epoch]:.2f}" if epoch in row else "" for epoch in EPOCHS]
            for row in rows
        ],
    )
    lines = []
    for data, bag_size, method in dict.fromkeys((row["data"], row["bag_size"], row["method"]) for row in rows):
        runs = [row for row in rows if (row["data"], row["bag_size"], row["method"]) == (data, bag_size, method)]
        cells = [mean_and_deviation([row[epoch] for row in runs if epoch in row]) for epoch in EPOCHS]
        seconds = mean(row["cpu_seconds"] for row in runs)
        lines.append([data, method, f"{bag_size}", *cells, f"{runs[0]['steps']}", f"{seconds:.0f}", f"{len(runs)}"])
    heads = ["data", "method", "bag size", *(f"{epoch} epoch" for epoch in EPOCHS), "steps", "CPU seconds", "n"]
    write_table(name, heads, lines, num_words=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--data-dir", default=os.environ.get("TORCHLLP_DATA"), help="where the files are")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    jobs = [
        Job(plan, options.data_dir, method, bag_size, seed)
        for seed in range(options.seeds)  # all of a seed first: what there is when stopped is a whole table
        for plan in PLANS[options.name]
        for bag_size in plan.bag_sizes
        for method in plan.methods
    ]
    rows = run_all(jobs, f"contrast-{options.name}")
    rows.sort(key=lambda row: (row["data"], row["bag_size"], ORDER.index(row["method"]), row["seed"]))
    write(f"contrast_{options.name.replace('-', '_')}", rows)


if __name__ == "__main__":
    main()
