"""Pseudo-labels that meet the counts of their bags exactly, as a share of the network's own time."""

from dataclasses import replace

import torch
from benchmarks.speed.measure import Goal, Row, overhead, turn_by_turn
from benchmarks.speed.steps import BARE, FASHION_MNIST, NUM_CLASSES, Problem, bare_step

from torchllp import BagBatch
from torchllp.functional import log_probabilities
from torchllp.methods.pseudo_labels import assigned_labels

PROBLEM = Problem("small-cnn", 64, 16, FASHION_MNIST)


def measure(problem: Problem = PROBLEM, repeats: int = 11) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    log_p = log_probabilities(3 * torch.randn(problem.num_instances, NUM_CLASSES, generator=generator))
    bag_index = torch.arange(problem.num_bags).repeat_interleave(problem.size)
    proportions = torch.tensor(problem.bags.proportions[: problem.num_bags], dtype=torch.float32)
    batch = BagBatch(weak=log_p, bag_index=bag_index, proportions=proportions)
    times = turn_by_turn({"ours": lambda: assigned_labels(log_p, batch), BARE: bare_step(problem)}, repeats)
    row = overhead(f"labels by assignment, {problem}", times, BARE, goal=Goal("at most", 0.1))
    return [replace(row, limit=None)]
