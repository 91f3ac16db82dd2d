"""Steps in a process that takes and keeps memory as `llp` does, against one that does as Python does."""

from multiprocessing import get_context
from statistics import median
from time import process_time

import torch
from benchmarks.speed.measure import Row, Times, ratios
from benchmarks.speed.steps import FASHION_MNIST, Problem, bare_step

from torchllp.cli.memory import set_up_memory

GIVING_BACK = "the same where memory is given back"
PROBLEMS = (Problem("small-cnn", 8, 64, FASHION_MNIST), Problem("small-cnn", 16, 64, FASHION_MNIST))


def seconds_of_steps(problem: Problem, num_steps: int, *, keeps: bool) -> float:
    """CPU time of the network's forward and backward, in this process, which is one of its own."""
    if keeps:
        set_up_memory()
    torch.set_num_threads(1)
    step = bare_step(problem)
    step()
    started = process_time()
    for _ in range(num_steps):
        step()
    return (process_time() - started) / num_steps


def measure(problems: tuple[Problem, ...] = PROBLEMS, repeats: int = 5, num_steps: int = 5) -> list[Row]:
    rows = []
    for problem in problems:
        times: Times = {"ours": [], GIVING_BACK: []}
        for _ in range(repeats):
            for name, seconds in times.items():
                with get_context("spawn").Pool(1) as process:
                    keywords = {"keeps": name == "ours"}
                    seconds.append(process.apply(seconds_of_steps, (problem, num_steps), keywords))
        medians = {name: median(seconds) for name, seconds in times.items()}
        name = f"forward and backward of {problem}, memory kept"
        rows.append(Row(name, GIVING_BACK, ratios(times, GIVING_BACK, "ours"), limit=None, seconds=medians))
    return rows
