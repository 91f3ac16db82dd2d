"""Every method on one footing: the same bags, network, views and number of steps, over several seeds.

    python benchmarks/all_methods.py digits
    python benchmarks/all_methods.py fashion-mnist --data-dir DIRECTORY

trains by two processes of one thread each (about 15 minutes for the digits, two hours for Fashion-MNIST) and writes
`benchmarks/results/NAME.csv` (a row a run) and `NAME.md` (mean and deviation). Finished runs are kept in
`runs/benchmark-NAME`, so that the command goes on where it was stopped; remove that directory to begin anew.

`flmm` trains a linear head on frozen features, which SimCLR learns once a seed, without labels, and before: its CPU
time has a share of that for each bag size. All other methods train the whole network.
"""

import argparse
import os
import time
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from common import EPOCHS, ONE_THREAD, mean_and_deviation, run_all, with_first_images, write_csv, write_table

from torchllp import Bags, Dataset, Instances, Recipe, create_method, create_model, load_dataset, train
from torchllp.bags import default_held_out
from torchllp.engine.frozen import freeze
from torchllp.engine.process import seeded
from torchllp.presets import preset, pretraining

TABLE_1 = ("llpfc", "dllp", "llp-vat", "rot", "softmatch", "flmm", "ahil", "supervised")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "llpfc": ("llpfc", {}),
    "dllp": ("dllp", {}),
    "llp-vat": ("llp-vat", {}),
    "rot": ("rot", {}),
    "softmatch": ("softmatch", {}),
    "flmm": ("flmm", {}),
    "ahil": ("ahil", {}),
    "ahil, unweighted": ("ahil", {"weigh_bags": False, "weigh_instances": False}),
    "supervised": ("supervised", {}),
}


@dataclass(frozen=True)
class Plan:
    """What is trained on a data set; networks are the small CNN, recipes the defaults but for what is said here."""

    bag_sizes: tuple[int, ...]
    num_train: int | None = None
    epochs: int = 150
    instances_per_step: int = 128
    pretraining_epochs: int = 200
    labels: tuple[str, ...] = TABLE_1


PLANS = {
    "digits": Plan(bag_sizes=(16, 64), labels=tuple(METHODS)),
    "fashion-mnist": Plan(
        bag_sizes=(16, 64, 256), num_train=20_000, epochs=15, instances_per_step=256, pretraining_epochs=15
    ),
}


@dataclass(frozen=True)
class Job:
    """One method with one seed; all bag sizes where they share the pre-training."""

    dataset: str
    data_dir: str | None
    label: str
    bag_sizes: tuple[int, ...]
    seed: int

    @property
    def name(self) -> str:
        return f"{self.label.replace(', ', '-')}-{'-'.join(map(str, self.bag_sizes))}-seed{self.seed}"

    def run(self) -> list[dict[str, Any]]:
        """A row for each bag size: steps, seconds of CPU time, accuracy."""
        plan, (method, numbers) = PLANS[self.dataset], METHODS[self.label]
        data = with_first_images(load_dataset(self.dataset, self.data_dir), plan.num_train)
        recipe = Recipe(epochs=plan.epochs, instances_per_step=plan.instances_per_step)
        with seeded("first weights", self.seed):
            model = create_model("small-cnn", num_classes=len(data.class_names), input_shape=data.input_shape)
        before = 0.0
        if method == "flmm":
            started = time.process_time()
            model = self.pretrain(model, data, plan)
            frozen, data = freeze(model, data, ONE_THREAD)
            recipe = recipe.model_copy(update=preset("quick", self.dataset, frozen=True)["recipe"])
            before = (time.process_time() - started) / len(self.bag_sizes)
        rows = []
        for bag_size in self.bag_sizes:
            assert data.train.labels is not None
            bags = Bags.random(data.train.labels.numpy(), bag_size, self.seed, class_names=data.class_names)
            train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
            if method == "flmm":
                with seeded("first weights", self.seed):
                    model = frozen.new_head()
            started = time.process_time()
            outcome = train(
                model,
                create_method(method, **numbers),
                data,
                train_bags,
                held_out=held_out,
                recipe=recipe,
                compute=ONE_THREAD,
                seed=self.seed,
            )
            seconds = before + time.process_time() - started
            accuracies = [row["test/accuracy"] for row in outcome.metrics]
            best = (outcome.chosen or outcome.metrics[-1])["test/accuracy"]
            rows.append(
                {"method": self.label, "bag_size": bag_size, "seed": self.seed, "steps": outcome.metrics[-1]["steps"]}
                | {"cpu_seconds": seconds, "last": accuracies[-1], "chosen": best, "oracle": max(accuracies)}
            )
        return rows

    def pretrain(self, model: Any, data: Dataset, plan: Plan) -> Any:
        """The network after SimCLR on the training images."""
        images = replace(data, train=Instances(data.train.inputs), test=None)
        everyone = Bags.unlabelled(len(images.train), class_names=images.class_names)
        settings = pretraining(self.dataset)["recipe"] | {"epochs": plan.pretraining_epochs}
        arguments: dict[str, Any] = {"recipe": Recipe(**settings), "compute": ONE_THREAD, "seed": self.seed}
        return train(model, create_method("simclr"), images, everyone, **arguments).model


def jobs_of(dataset: str, data_dir: str | None, seeds: int) -> list[Job]:
    jobs = []
    for seed in range(seeds):  # all methods of a seed first: what there is when stopped is a whole table
        for label in PLANS[dataset].labels:
            together = [PLANS[dataset].bag_sizes] if label == "flmm" else [(n,) for n in PLANS[dataset].bag_sizes]
            jobs += [Job(dataset, data_dir, label, sizes, seed) for sizes in together]
    return jobs


def write(dataset: str, rows: list[dict[str, Any]]) -> None:
    name = dataset.replace("-", "_")
    rows.sort(key=lambda row: (row["bag_size"], list(METHODS).index(row["method"]), row["seed"]))
    write_csv(
        name,
        ["method", "bag_size", "seed", "steps", "cpu_seconds", *EPOCHS],
        [
            [row["method"], row["bag_size"], row["seed"], row["steps"], f"{row['cpu_seconds']:.0f}"]
            + [f"{100 * row[epoch]:.2f}" for epoch in EPOCHS]
            for row in rows
        ],
    )
    lines = []
    for bag_size in PLANS[dataset].bag_sizes:
        for label in PLANS[dataset].labels:
            runs = [row for row in rows if (row["method"], row["bag_size"]) == (label, bag_size)]
            cells = [mean_and_deviation([100 * row[epoch] for row in runs]) for epoch in EPOCHS]
            seconds = mean(row["cpu_seconds"] for row in runs)
            lines.append([label, f"{bag_size}", *cells, f"{runs[0]['steps']}", f"{seconds:.0f}", f"{len(runs)}"])
    heads = ["method", "bag size", "last epoch", "chosen epoch", "oracle epoch", "steps", "CPU seconds", "n"]
    write_table(name, heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=PLANS)
    parser.add_argument("--data-dir", default=os.environ.get("TORCHLLP_DATA"), help="where the data set's files are")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    write(options.dataset, run_all(jobs_of(options.dataset, options.data_dir, options.seeds), options.dataset))


if __name__ == "__main__":
    main()
