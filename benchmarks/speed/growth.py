"""How time and peak memory of AHIL's losses and weights, forward and backward, grow with the bags and the classes."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median

import numpy as np
from benchmarks.speed.losses import Problem, at_once, backward
from benchmarks.speed.measure import Goal, Row, turn_by_turn
from torch.profiler import ProfilerActivity, profile

Sweep = tuple[Sequence[int], Callable[[int], tuple[int, int, int]]]
"""Sizes, and for each the number of bags, of instances a bag and of classes."""

POWERS_OF_4 = tuple(4**power for power in range(2, 8))
SWEEPS: dict[str, Sweep] = {
    "bags of 16": (POWERS_OF_4, lambda number: (number, 16, 10)),
    "instances in each of 4 bags": (POWERS_OF_4, lambda number: (4, number, 10)),
    "classes of 16 bags of 64": ((10, 30, 100, 300, 1000), lambda number: (16, 64, number)),
}
LINEAR = "linear growth"
NO_MORE_THAN_LINEAR = Goal("at most", 1.0)


def growth_row(unit: str, of: str, sizes: Sequence[int], rounds: Sequence[Sequence[float]]) -> Row:
    """How many times as much the largest size costs as the smallest, against how many times as large it is.

    What every call costs whatever its size makes this small, so the curve has its slope at the larger sizes too.
    """
    times_as_large, half = sizes[-1] / sizes[0], len(sizes) // 2
    costs = [median(of_size) for of_size in zip(*rounds, strict=True)]
    slope = float(np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)[0])
    return Row(
        f"{unit}, {sizes[0]:,} to {sizes[-1]:,} {of}",
        LINEAR,
        [costs[-1] / costs[0] / times_as_large for costs in rounds],
        limit=None,
        goal=NO_MORE_THAN_LINEAR,
        curve={"unit": unit, "of": of, "sizes": [*sizes], "costs": costs, "slope_of_upper_half": slope},
    )


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that the tensors which the call makes take at once, as the allocator sees it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    recorded = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    return max(accumulate(change for _, change in changes))


def measure(sweeps: Mapping[str, Sweep] = SWEEPS, repeats: int = 11, calls_a_turn: int = 3) -> list[Row]:
    rows = []
    for of, (sizes, shape_of) in sweeps.items():
        problems = [Problem.random(*shape_of(size)) for size in sizes]
        calls = {str(size): backward(at_once(p), p.logits) for size, p in zip(sizes, problems, strict=True)}
        times = turn_by_turn(calls, repeats, calls_a_turn=calls_a_turn)
        rows.append(growth_row("seconds", of, sizes, [*zip(*times.values(), strict=True)]))
        for problem in problems:
            problem.logits.grad = None  # else the call would free what it has not made
        rows.append(growth_row("bytes", of, sizes, [[peak_bytes(call) for call in calls.values()]]))
    return rows
