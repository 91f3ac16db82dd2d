"""Randomness as a function of (seed, epoch, step): to resume exactly needs three integers and no generator state."""

import numpy as np
import torch


def seed_of(*integers: int) -> int:
    """One 63-bit seed for these integers; different integers give unrelated seeds.

    >>> seed_of(0, 1) == seed_of(0, 1), seed_of(0, 1) == seed_of(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(integers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def step_generator(seed: int, epoch: int, step: int) -> torch.Generator:
    """The CPU generator of one step, for the views and the method."""
    return torch.Generator().manual_seed(seed_of(seed, epoch, step))
