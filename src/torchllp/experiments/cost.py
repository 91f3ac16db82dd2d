"""What a run takes in time and memory, from the steps of a cut-down one."""

import math
import time
from dataclasses import dataclass

import torch

from torchllp.config import Config, Recipe
from torchllp.engine.train import Observer, Row, State

SIZES = {
    "digits": (1437, 360),
    "fashion-mnist": (60_000, 10_000),
    "svhn": (73_257, 26_032),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "mini-imagenet": (8_000, 2_000),
}
"""Training and test instances of the real data sets."""
COPIES = 4
"""Of the weights: themselves, gradient, momentum and moving average."""


@dataclass(frozen=True)
class Cost:
    num_steps: int
    memory: float
    """Bytes of weights and of what is kept for the backward pass, in float32."""
    seconds: float
    """On the machine of the cut-down run."""


class Meter(Observer):
    """Takes the time and the memory of a cut-down run's steps, and the time of its evaluation."""

    def __init__(self, num_instances: int) -> None:
        """``num_instances`` are those of a step, and those that it is tested on."""
        self.num_instances = num_instances
        self.step_seconds = math.inf

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        self._kept: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._hooks.__enter__()
        self._started = time.perf_counter()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def on_step(self, epoch: int, step: int, num_steps: int) -> None:
        now = time.perf_counter()
        self.step_seconds, self._started = min(self.step_seconds, now - self._started), now
        self._last_kept, self._kept = self._kept, {}

    def on_epoch(self, row: Row, state: State) -> None:
        self._hooks.__exit__(None, None, None)
        self._evaluation_seconds = time.perf_counter() - self._started
        weights = state["learner"].values()
        for weight in weights:  # they are kept for the backward pass too, and do not grow with the step
            self._last_kept.pop(weight.untyped_storage().data_ptr(), None)
        self._weight_bytes = sum(weight.nbytes for weight in weights)
        self._step_bytes = sum(self._last_kept.values())

    def cost(self, config: Config) -> Cost:
        """Of a run like the one that was measured, at its full size."""
        num_train, num_test = SIZES[config.data.dataset]
        num_train, num_test = config.data.num_train or num_train, config.data.num_test or num_test
        recipe, bag_size = config.recipe, config.data.bag_size
        num_steps = recipe.epochs * steps_an_epoch(recipe, num_train, bag_size)
        times_larger = max(bag_size, recipe.instances_per_step // bag_size * bag_size) / self.num_instances
        seconds = num_steps * times_larger * self.step_seconds
        seconds += recipe.epochs * num_test / self.num_instances * self._evaluation_seconds
        return Cost(num_steps, COPIES * self._weight_bytes + times_larger * self._step_bytes, seconds)


def steps_an_epoch(recipe: Recipe, num_train: int, bag_size: int) -> int:
    """How many steps of whole bags an epoch has.

    >>> steps_an_epoch(Recipe(instances_per_step=1024), 50_000, 16)
    49
    """
    bags_a_step = max(1, recipe.instances_per_step // bag_size)
    return recipe.steps_per_epoch or math.ceil(num_train // bag_size / bags_a_step)
