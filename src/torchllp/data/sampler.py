"""Which bags make up which step: a function of (seed, epoch) alone."""

import numpy as np

from torchllp.bags import Bags
from torchllp.randomness import seed_of


def plan_pass(sizes: np.ndarray, budget: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Every bag once, in shuffled order, cut into steps of at most ``budget`` instances.

    Whole bags are added while the step stays within the budget; a bag over the budget is a step of its own; the last,
    short step is kept.

    >>> [step.tolist() for step in plan_pass(np.array([2, 2, 9, 2]), 4, np.random.default_rng(0))]
    [[2], [0, 1], [3]]
    """
    steps: list[list[int]] = []
    room = 0
    for bag in generator.permutation(len(sizes)):
        if not steps or sizes[bag] > room:
            steps.append([])
            room = budget
        steps[-1].append(bag)
        room -= sizes[bag]
    return [np.array(step) for step in steps]


def plan_epoch(
    bags: Bags, budget: int, *, seed: int, epoch: int, steps_per_epoch: int | None = None
) -> list[np.ndarray]:
    """The steps of one epoch, each an array of rows of ``bags``.

    An epoch is one pass over the bags, or ``steps_per_epoch`` steps cut from as many passes as that takes.
    """
    steps: list[np.ndarray] = []
    passes = 0
    while not steps or (steps_per_epoch is not None and len(steps) < steps_per_epoch):
        steps += plan_pass(bags.sizes, budget, np.random.default_rng(seed_of("order", seed, epoch, passes)))
        passes += 1
    return steps[:steps_per_epoch]
