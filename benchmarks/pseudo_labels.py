"""When do AHIL's pseudo-labels teach, and when do they cost? `ahil` beside `dllp` on Fashion-MNIST, in bags of 64.

    python benchmarks/pseudo_labels.py overlap --data-dir DIRECTORY
    python benchmarks/pseudo_labels.py from-dllp --data-dir DIRECTORY
    python benchmarks/pseudo_labels.py few-bags --data-dir DIRECTORY
    python benchmarks/pseudo_labels.py few-bags-wide --data-dir DIRECTORY

`overlap`: five garments that look different (trousers, dresses, sandals, bags, ankle boots), and five that look alike
(all that cover the upper body, and dresses again); `supervised` says how far they can be told apart at all.

`from-dllp`: all ten, from one network that `dllp` has trained, so that early errors are not the cause: what `dllp` and
`ahil` make of it, and `ahil` with its instance loss on the weak view, and with true labels in it (which is no method:
it says what is lost by wrong ones).

`few-bags`: all ten, from a tenth of the bags, so few that a network can learn them by heart; `few-bags-wide`: the same
by a network of twice the width, which can do so better.

The small CNN, AdamW, all test images (5,000 for few bags). Two processes of one thread each write
`benchmarks/results/PLAN.csv` (a row a run) and `.md` (mean and deviation). Finished runs are kept in
`runs/benchmark-PLAN`, so that the command goes on from where it was stopped; remove that directory to begin anew.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from common import EPOCHS, ONE_THREAD, mean_and_deviation, run_all, write_csv, write_table
from torch import Tensor, nn

from torchllp import (
    BagBatch,
    Dataset,
    Instances,
    Recipe,
    create_method,
    create_model,
    load_dataset,
    make_bags,
    train,
)
from torchllp.bags import default_held_out
from torchllp.engine.process import seeded
from torchllp.engine.train import Outcome
from torchllp.functional import log_probabilities
from torchllp.methods.ahil import AHIL
from torchllp.methods.method import Method
from torchllp.methods.pseudo_labels import likeliest_labels
from torchllp.methods.terms import bag_term, instance_term
from torchllp.methods.weights import dual_entropy_weights

BAG_SIZE = 64
WORDS, SHARES = ("garments", "method", "seed", "steps"), ("trust", "right")
START = "dllp (the start)"


class ChangedAHIL(AHIL):
    """AHIL whose instance loss is on the weak view, or has the true labels, with the weights of the pseudo-labels."""

    uses_labels = True
    in_chunks = False

    def __init__(self, *, on_weak: bool = False, true_labels: bool = False) -> None:
        super().__init__()
        self.views = ("weak",) if on_weak else ("weak", "strong")
        self.true_labels = true_labels

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        if "strong" in self.views:
            log_p, learning = log_probabilities(model(batch.both_views())).chunk(2)
        else:
            log_p = learning = log_probabilities(model(batch.weak))
        bag_loss, bag_kl = bag_term(log_p, batch)
        label = likeliest_labels(log_p)
        trust = dual_entropy_weights(log_p, label, batch, beta_bag=self.beta_bag, beta_instance=self.beta_instance)
        if self.true_labels:
            assert batch.labels is not None
            label = batch.labels
        loss = bag_loss + self.instance_weight * instance_term(learning, label, batch, trust)
        return {"loss": loss, "bag_kl": bag_kl, "log_p": log_p.detach(), "pseudo_labels": label, "trust": trust}


@dataclass(frozen=True)
class Plan:
    garments: Mapping[str, tuple[int, ...]]
    num_train: int
    recipe: Recipe
    methods: Mapping[str, Callable[[], Method]]
    start: Recipe | None = None
    """What `dllp` is trained by before, if it is."""
    num_test: int | None = None
    """None: all test images."""
    width: int = 16
    """Of the small CNN."""


FEW_BAGS = Plan(
    {"all ten": tuple(range(10))},
    2_000,
    Recipe(epochs=150, instances_per_step=256, optimizer="adamw", lr=0.003),
    {name: lambda name=name: create_method(name) for name in ("dllp", "ahil")},
    num_test=5_000,
)

PLANS = {
    "overlap": Plan(
        {"told apart": (1, 3, 5, 8, 9), "overlapping": (0, 2, 3, 4, 6)},
        10_000,
        Recipe(epochs=30, instances_per_step=256, optimizer="adamw", lr=0.003),
        {name: lambda name=name: create_method(name) for name in ("dllp", "ahil", "supervised")},
    ),
    "from-dllp": Plan(
        {"all ten": tuple(range(10))},
        20_000,
        Recipe(epochs=15, instances_per_step=512, optimizer="adamw", lr=0.001),
        {
            "dllp": lambda: create_method("dllp"),
            "ahil": lambda: create_method("ahil"),
            "ahil, true labels": lambda: ChangedAHIL(true_labels=True),
            "ahil on the weak view": lambda: ChangedAHIL(on_weak=True),
            "ahil on the weak view, true labels": lambda: ChangedAHIL(on_weak=True, true_labels=True),
        },
        start=Recipe(epochs=45, instances_per_step=512, optimizer="adamw", lr=0.003),
    ),
    "few-bags": FEW_BAGS,
    "few-bags-wide": replace(FEW_BAGS, width=32),
}


@dataclass(frozen=True)
class Job:
    """Some methods on the same bags, from the same network."""

    plan: str
    data_dir: str | None
    garments: str
    methods: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        words = [self.garments, *self.methods] if len(self.methods) == 1 else [self.garments]
        return "-".join([*words, f"seed{self.seed}"]).replace(" ", "-")

    def run(self) -> list[dict[str, Any]]:
        plan = PLANS[self.plan]
        data = only(load_dataset("fashion-mnist", self.data_dir), plan.garments[self.garments], plan)
        bags = make_bags(data, "random", bag_size=BAG_SIZE, seed=self.seed)
        train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
        with seeded("first weights", self.seed):
            model = create_model(
                "small-cnn", num_classes=len(data.class_names), input_shape=data.input_shape, width=plan.width
            )
        arguments: dict[str, Any] = {"held_out": held_out, "compute": ONE_THREAD, "seed": self.seed}
        rows = []
        if plan.start is not None:
            started = time.process_time()
            outcome = train(model, create_method("dllp"), data, train_bags, recipe=plan.start, **arguments)
            rows.append(self.row(START, outcome, started))
        for method in self.methods:
            started = time.process_time()
            outcome = train(deepcopy(model), plan.methods[method](), data, train_bags, recipe=plan.recipe, **arguments)
            rows.append(self.row(method, outcome, started))
        return rows

    def row(self, method: str, outcome: Outcome, started: float) -> dict[str, Any]:
        tested, last = [row["test/accuracy"] for row in outcome.metrics], outcome.metrics[-1]
        assert outcome.chosen is not None
        return {
            "garments": self.garments,
            "method": method,
            "seed": self.seed,
            "steps": last["steps"],
            "cpu_seconds": time.process_time() - started,
            "last": 100 * tested[-1],
            "chosen": 100 * outcome.chosen["test/accuracy"],
            "oracle": 100 * max(tested),
            "trust": last.get("train/trust"),
            "right": last.get("train/pseudo_label_accuracy"),
        }


def only(data: Dataset, classes: tuple[int, ...], plan: Plan) -> Dataset:
    """The data set with these classes alone, and the first of its images, as many as are planned."""
    wanted = torch.tensor(classes)

    def part(instances: Instances, number: int | None) -> Instances:
        assert instances.labels is not None
        rows = torch.isin(instances.labels, wanted).nonzero().flatten()[:number]
        return Instances(instances.inputs[rows], torch.searchsorted(wanted, instances.labels[rows]))

    assert data.test is not None
    names = tuple(data.class_names[number] for number in classes)
    return replace(data, train=part(data.train, plan.num_train), test=part(data.test, plan.num_test), class_names=names)


def write(name: str, rows: list[dict[str, Any]]) -> None:
    write_csv(
        name,
        [*WORDS, "cpu_seconds", *EPOCHS, *SHARES],
        [
            [*(row[word] for word in WORDS), f"{row['cpu_seconds']:.0f}"]
            + [f"{row[epoch]:.2f}" for epoch in EPOCHS]
            + ["" if row[share] is None else f"{row[share]:.4f}" for share in SHARES]
            for row in rows
        ],
    )
    lines = []
    for garments, method in dict.fromkeys((row["garments"], row["method"]) for row in rows):
        runs = [row for row in rows if (row["garments"], row["method"]) == (garments, method)]
        cells = [mean_and_deviation([row[epoch] for row in runs]) for epoch in EPOCHS]
        cells += [
            "-" if runs[0][share] is None else mean_and_deviation([row[share] for row in runs]) for share in SHARES
        ]
        seconds = mean(row["cpu_seconds"] for row in runs)
        lines.append([garments, method, *cells, f"{runs[0]['steps']}", f"{seconds:.0f}", f"{len(runs)}"])
    heads = [*(f"{epoch} epoch" for epoch in EPOCHS), "trust", "right pseudo-labels", "steps", "CPU seconds", "n"]
    write_table(name, ["garments", "method", *heads], lines, num_words=2)


def jobs_of(plan: str, data_dir: str | None, seeds: int) -> list[Job]:
    """All of a seed first: what there is when stopped is a whole table."""
    methods = tuple(PLANS[plan].methods)
    together = [(method,) for method in methods] if PLANS[plan].start is None else [methods]
    return [
        Job(plan, data_dir, garments, some, seed)
        for seed in range(seeds)
        for garments in PLANS[plan].garments
        for some in together
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--data-dir", default=os.environ.get("TORCHLLP_DATA"), help="where the files are")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    write(options.plan.replace("-", "_"), run_all(jobs_of(options.plan, options.data_dir, options.seeds), options.plan))


if __name__ == "__main__":
    main()
