"""The whole training step against the bare forward and backward of the same network on as many images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import process_time

import torch
from benchmarks.common import ONE_THREAD
from benchmarks.speed.measure import Goal, Row, Times, overhead
from torch import nn
from torch.nn.functional import cross_entropy

from torchllp import Bags, Compute, Dataset, Instances, Recipe, create_method, create_model, train
from torchllp.engine.train import Observer

NUM_CLASSES = 10
WARM_UP = 2
STEPS_PER_PASS = 4  # over all images
BARE = "bare forward and backward"


@dataclass(frozen=True)
class Problem:
    """A network and the bags of a step, of random images."""

    network: str
    num_bags: int
    size: int
    shape: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.network}, {self.num_bags} bags of {self.size}"

    @property
    def num_instances(self) -> int:
        """Of a step."""
        return self.num_bags * self.size

    @cached_property
    def data(self) -> Dataset:
        generator = torch.Generator().manual_seed(0)
        number = STEPS_PER_PASS * self.num_instances
        images = torch.randint(256, (number, *self.shape), generator=generator, dtype=torch.uint8)
        labels = torch.randint(NUM_CLASSES, (number,), generator=generator)
        names = [str(c) for c in range(NUM_CLASSES)]
        return Dataset.from_images("random images", Instances(images, labels), class_names=names, flip=True)

    @cached_property
    def bags(self) -> Bags:
        labels = self.data.train.labels
        assert labels is not None
        return Bags.random(labels.numpy(), self.size, seed=0, class_names=self.data.class_names)

    def new_model(self) -> nn.Module:
        torch.manual_seed(0)
        return create_model(self.network, num_classes=NUM_CLASSES, input_shape=self.shape)


CIFAR, FASHION_MNIST = (3, 32, 32), (1, 28, 28)
PROBLEMS = {
    Problem("wrn-28-2", 4, 16, CIFAR): Goal("at most", 1.03),
    Problem("wrn-28-2", 2, 64, CIFAR): Goal("at most", 1.03),
    Problem("small-cnn", 16, 64, FASHION_MNIST): Goal("at most", 1.10),
}


class Turns(Observer):
    """Lets others have their turn after every few steps of a training, and keeps the seconds of all."""

    def __init__(self, others: Mapping[str, Callable[[], object]], steps_a_turn: int, clock: Callable[[], float]):
        self.others, self.steps_a_turn, self.clock = others, steps_a_turn, clock
        self.times: Times = {name: [] for name in ("ours", *others)}
        self.before = 0.0

    def on_step(self, epoch: int, step: int, num_steps: int) -> None:
        if step + 1 < WARM_UP:
            return
        turn, steps_done = divmod(step + 1 - WARM_UP, self.steps_a_turn)
        if steps_done == 0:
            if turn:
                self.times["ours"].append(self.clock() - self.before)
            for name, call in self.others.items():
                started = self.clock()
                call()
                if turn:
                    self.times[name].append(self.clock() - started)
            self.before = self.clock()


def steps_in_turn(
    problem: Problem,
    others: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    steps_a_turn: int = 1,
    compute: Compute = ONE_THREAD,
    clock: Callable[[], float] = process_time,
) -> Times:
    """Seconds of ``steps_a_turn`` steps of AHIL by the training loop itself, and of the others, turn by turn."""
    turns = Turns(others, steps_a_turn, clock)
    num_steps = WARM_UP + repeats * steps_a_turn
    recipe = Recipe(epochs=1, steps_per_epoch=num_steps, instances_per_step=problem.num_instances)
    method = create_method("ahil")
    train(problem.new_model(), method, problem.data, problem.bags, recipe=recipe, compute=compute, observer=turns)
    return turns.times


def bare_step(problem: Problem) -> Callable[[], None]:
    """Forward and backward of both views' images, which are there already, in the format that training uses."""
    model = problem.new_model().train().to(memory_format=torch.channels_last)
    images = torch.randn(2 * problem.num_instances, *problem.shape).to(memory_format=torch.channels_last)
    labels = torch.randint(NUM_CLASSES, (len(images),))

    def call() -> None:
        cross_entropy(model(images), labels).backward()
        for weight in model.parameters():
            weight.grad = None

    return call


def measure(problems: Mapping[Problem, Goal | None] = PROBLEMS, repeats: int = 11) -> list[Row]:
    rows = []
    for problem, goal in problems.items():
        times = steps_in_turn(problem, {BARE: bare_step(problem)}, repeats)
        rows.append(overhead(f"a step of {problem}", times, BARE, goal=goal))
    return rows
