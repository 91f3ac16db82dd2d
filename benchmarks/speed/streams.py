"""Training on images that are read from a memory map step by step, against the same images in memory."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.speed.measure import Goal, Row, overhead, turn_by_turn
from benchmarks.speed.steps import FASHION_MNIST, Problem

from torchllp import Compute, Dataset, Instances, Recipe, create_method, train

IN_MEMORY = "the same in memory"
PROBLEM = Problem("small-cnn", 16, 64, FASHION_MNIST)


def training(problem: Problem, data: Dataset, *, stream: bool, num_steps: int) -> Callable[[], object]:
    recipe = Recipe(epochs=1, steps_per_epoch=num_steps, instances_per_step=problem.num_instances)
    compute = Compute(device="cpu", threads=1, stream=stream)
    return lambda: train(problem.new_model(), create_method("ahil"), data, problem.bags, recipe=recipe, compute=compute)


def measure(problem: Problem = PROBLEM, repeats: int = 5, num_steps: int = 6) -> list[Row]:
    images = problem.data.train
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "images.npy")
        np.save(file, images.inputs.numpy())
        mapped = Instances(torch.from_numpy(np.load(file, mmap_mode="c")), images.labels)
        calls = {
            "ours": training(problem, replace(problem.data, train=mapped), stream=True, num_steps=num_steps),
            IN_MEMORY: training(problem, problem.data, stream=False, num_steps=num_steps),
        }
        times = turn_by_turn(calls, repeats)
    return [overhead(f"{num_steps} steps of {problem}, streamed", times, IN_MEMORY, goal=Goal("at most", 1.1))]
