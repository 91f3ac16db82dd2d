"""Training on instances that are read from a memory map step by step, against the same instances in memory."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from benchmarks.speed.measure import Goal, Row, overhead, turn_by_turn
from benchmarks.speed.steps import FASHION_MNIST, Problem
from torch import nn

from torchllp import Bags, Compute, Dataset, Instances, Recipe, create_method, create_model, train

IN_MEMORY = "the same in memory"


@dataclass(frozen=True)
class TableProblem:
    """The default MLP and the bags of a step, of random rows of 50 numbers."""

    num_bags: int
    size: int
    num_rows: int = 100_000

    def __str__(self) -> str:
        return f"mlp, {self.num_bags} bags of {self.size} rows"

    @property
    def num_instances(self) -> int:
        return self.num_bags * self.size

    @cached_property
    def data(self) -> Dataset:
        rows = torch.randn(self.num_rows, 50, generator=torch.Generator().manual_seed(0))
        labels = (rows[:, 0] > 0).long()
        return Dataset(name="random rows", train=Instances(rows, labels), test=None, class_names=("no", "yes"))

    @cached_property
    def bags(self) -> Bags:
        labels = self.data.train.labels
        assert labels is not None
        return Bags.random(labels.numpy(), self.size, seed=0, class_names=self.data.class_names)

    def new_model(self) -> nn.Module:
        torch.manual_seed(0)
        return create_model("mlp", num_classes=2, input_shape=(50,))


PROBLEMS: dict[Problem | TableProblem, int] = {
    Problem("small-cnn", 16, 64, FASHION_MNIST): 6,
    TableProblem(4, 64): 300,
}
"""With the number of steps."""


def training(problem: Problem | TableProblem, data: Dataset, *, stream: bool, num_steps: int) -> Callable[[], object]:
    recipe = Recipe(epochs=1, steps_per_epoch=num_steps, instances_per_step=problem.num_instances)
    compute = Compute(device="cpu", threads=1, stream=stream)
    return lambda: train(problem.new_model(), create_method("ahil"), data, problem.bags, recipe=recipe, compute=compute)


def measure(problems: Mapping[Problem | TableProblem, int] = PROBLEMS, repeats: int = 5) -> list[Row]:
    rows = []
    for problem, num_steps in problems.items():
        instances = problem.data.train
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "instances.npy")
            np.save(file, instances.inputs.numpy())
            mapped = Instances(torch.from_numpy(np.load(file, mmap_mode="c")), instances.labels)
            calls = {
                "ours": training(problem, replace(problem.data, train=mapped), stream=True, num_steps=num_steps),
                IN_MEMORY: training(problem, problem.data, stream=False, num_steps=num_steps),
            }
            times = turn_by_turn(calls, repeats)
        name = f"{num_steps} steps of {problem}, streamed"
        rows.append(overhead(name, times, IN_MEMORY, goal=Goal("at most", 1.1)))
    return rows
