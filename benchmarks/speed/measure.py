"""How speed is measured: things that are run turn by turn in one process, and ratios of their turns."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Times = dict[str, list[float]]
"""Seconds of each turn, by what was run."""


def turn_by_turn(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    calls_a_turn: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> Times:
    """Seconds of each call, of ``repeats`` rounds in which all have their turn; a round before them warms up."""
    times: Times = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            started = clock()
            for _ in range(calls_a_turn):
                call()
            if turn:
                times[name].append((clock() - started) / calls_a_turn)
    return times


@dataclass(frozen=True)
class Goal:
    kind: Literal["at least", "at most"]
    number: float

    def is_met(self, value: float) -> bool:
        return value >= self.number if self.kind == "at least" else value <= self.number


@dataclass(frozen=True)
class Row:
    """A ratio, measured several times."""

    name: str
    against: str
    ratios: Sequence[float]
    limit: float | None
    """What the ratio would be if only the part that cannot be avoided took time."""
    goal: Goal | None = None
    seconds: Mapping[str, float] | None = None
    """Of each side of the ratio: the median."""
    curve: Mapping[str, Any] | None = None
    """Of a growth: the ``costs`` at all ``sizes``."""

    def to_json(self) -> dict[str, Any]:
        middle = median(self.ratios)
        return {
            "name": self.name,
            "against": self.against,
            "ratio": {"median": middle, "min": min(self.ratios), "max": max(self.ratios), "n": len(self.ratios)},
            "goal": None if self.goal is None else {self.goal.kind: self.goal.number},
            "met": None if self.goal is None else self.goal.is_met(middle),
            "limit": self.limit,
            "seconds": self.seconds,
            "curve": self.curve,
        }


def ratios(times: Times, above: str, below: str) -> list[float]:
    """The ratio of each round."""
    return [one / other for one, other in zip(times[above], times[below], strict=True)]


def how_much_quicker(name: str, times: Times, than: str, *, goal: Goal | None, limit: str) -> Row:
    """How many times as long as ours the other way takes, and as long as ``limit``, which nobody can go below."""
    best = median(ratios(times, than, limit))
    return Row(name, than, ratios(times, than, "ours"), best, goal, _medians(times, "ours", than, limit))


def overhead(name: str, times: Times, over: str, *, goal: Goal | None = None) -> Row:
    """How many times as long as the bare part ours takes; the limit is 1."""
    return Row(name, over, ratios(times, "ours", over), 1.0, goal, _medians(times, "ours", over))


def _medians(times: Times, *names: str) -> dict[str, float]:
    return {name: median(times[name]) for name in names}
