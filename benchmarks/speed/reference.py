"""The whole training step against the way of the reference implementation, in CPU time of all processes.

That way, written here as a plain baseline: loader workers make the views image by image, each view twice; the network
is in PyTorch's contiguous format; the losses are a loop over the bags; every step reads its losses for the log. One
view of the two is trained on.
"""

import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from benchmarks.common import ONE_THREAD
from benchmarks.speed.losses import bag_by_bag, slices
from benchmarks.speed.measure import Goal, Row, how_much_quicker
from benchmarks.speed.pillow_views import PillowViews
from benchmarks.speed.steps import BARE, CIFAR, FASHION_MNIST, Problem, bare_step, steps_in_turn
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from torchllp.data.sampler import plan_epoch

NUM_WORKERS = 2
EMA_DECAY = 0.999
REFERENCE, NO_BATCHES = "the reference implementation's way", "a loader of no batches"
PROBLEMS = {
    Problem("wrn-28-2", 4, 16, CIFAR): Goal("at least", 1.15),
    Problem("small-cnn", 16, 64, FASHION_MNIST): Goal("at least", 1.8),
}


def cpu_seconds_of_all() -> float:
    """CPU time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class ImagesInViews(TorchDataset):
    """Images as arrays, made into Pillow images and views when they are asked for."""

    def __init__(self, problem: Problem) -> None:
        images, data = problem.data.train.inputs, problem.data
        self.images = images.permute(0, 2, 3, 1).squeeze(-1).contiguous().numpy()
        self.views = PillowViews(mean=data.mean, std=data.std, side=images.shape[-1])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[index])
        first, _ = ((self.views.weak(image), self.views.strong(image)) for _ in range(2))
        return first


class ReferenceWay:
    """A network that is trained so; each call trains a few steps."""

    def __init__(self, problem: Problem, num_steps: int) -> None:
        self.problem, self.num_steps = problem, num_steps
        self.images = ImagesInViews(problem)
        self.model: nn.Module = problem.new_model().train()
        self.averaged = deepcopy(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.log: list[dict[str, float]] = []

    def __call__(self) -> None:
        bags, problem = self.problem.bags, self.problem
        steps = plan_epoch(bags, problem.num_instances, seed=0, epoch=len(self.log), steps_per_epoch=self.num_steps)
        members = [bags.members_of(step)[0].tolist() for step in steps]
        of_bags = slices(problem.num_bags, problem.size)
        for step, (weak, strong) in zip(steps, self.load(members), strict=True):
            proportions = torch.tensor(bags.proportions[step], dtype=torch.float32)
            bag_loss, instance_loss = bag_by_bag(self.model(torch.cat([weak, strong])), of_bags, proportions)
            loss = bag_loss + instance_loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.average()
            self.log.append({"bag": bag_loss.item(), "instance": instance_loss.item(), "loss": loss.item()})

    def load(self, batches: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Workers are forked: nothing is imported again. They end when a batch more than there are is asked for."""
        loader = DataLoader(self.images, batch_sampler=batches, num_workers=NUM_WORKERS, multiprocessing_context="fork")
        return iter(loader)

    @torch.no_grad()
    def average(self) -> None:
        for average, weight in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
            average.lerp_(weight, 1 - EMA_DECAY)
        for average, buffer in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
            average.copy_(buffer)


def measure(
    problems: Mapping[Problem, Goal | None] = PROBLEMS,
    repeats: int = 4,
    steps_a_turn: int = 2,
    compiled: Sequence[bool] = (False, True),
) -> list[Row]:
    """With the network as it is and, where there is a C++ compiler, compiled by ``torch.compile``.

    To start and end loader workers is taken off: a training does that once an epoch, and here it is once a turn.
    """
    has_compiler = shutil.which(os.environ.get("CXX", "g++")) is not None
    rows = []
    for problem, goal in problems.items():
        for compiles in compiled if has_compiler else (False,):
            bare = bare_step(problem)
            reference = ReferenceWay(problem, steps_a_turn)
            others = {
                REFERENCE: reference,
                NO_BATCHES: lambda reference=reference: list(reference.load([])),
                "after the forks": bare,  # writes first to pages that workers shared, so it does not count
                BARE: lambda bare=bare: [bare() for _ in range(steps_a_turn)],
            }
            compute = ONE_THREAD.model_copy(update={"compile": compiles})
            times = steps_in_turn(
                problem, others, repeats, steps_a_turn=steps_a_turn, compute=compute, clock=cpu_seconds_of_all
            )
            times[REFERENCE] = [whole - start for whole, start in zip(times[REFERENCE], times[NO_BATCHES], strict=True)]
            name = f"{steps_a_turn} steps of {problem}{', compiled' if compiles else ''}"
            rows.append(how_much_quicker(name, times, REFERENCE, goal=goal, limit=BARE))
    return rows
