"""How far a suite is, and how long the rest may take: from what its runs have written, whoever trains them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from torchllp.experiments.directory import Standing, SuiteDirectory
from torchllp.experiments.suite import Cell


@dataclass(frozen=True)
class Overview:
    standings: dict[str, Standing]
    """By the cell's name."""
    rests: list[float] | None
    """Seconds that each run which has not come to its end may still take; None before the first epoch."""

    def seconds_left(self, num_workers: int = 1) -> float | None:
        """Until all have come to their end: no sooner than the longest, and at best shared evenly."""
        if not self.rests:
            return None
        return max(*self.rests, sum(self.rests) / num_workers)


class SuiteProgress:
    """Looks at the runs of a suite again and again; those that have come to their end are not looked at twice."""

    def __init__(self, cells: Sequence[Cell], directory: SuiteDirectory) -> None:
        self.cells, self.directory = cells, directory
        self._ended: dict[str, Standing] = {}

    def look(self) -> Overview:
        standings: dict[str, Standing] = {}
        for cell in self.cells:
            standing = self._ended.get(cell.name) or self.directory.standing(cell)
            if standing.state.has_ended:
                self._ended[cell.name] = standing
            standings[cell.name] = standing
        return Overview(standings, self._rests(standings))

    def _rests(self, standings: dict[str, Standing]) -> list[float] | None:
        """By what an epoch has taken in runs of the same data set and method, else in all."""
        known: dict[tuple[str, str], list[float]] = {}
        for cell in self.cells:
            standing = standings[cell.name]
            if standing.epochs_done:
                known.setdefault(_kind(cell), []).append(standing.seconds / standing.epochs_done)
        if not known:
            return None
        of_all = mean(seconds for times in known.values() for seconds in times)
        rests = []
        for cell in self.cells:
            standing = standings[cell.name]
            if not standing.state.has_ended:
                times = known.get(_kind(cell), [of_all])
                rests.append((cell.config.recipe.epochs - standing.epochs_done) * mean(times))
        return rests


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.dataset, cell.config.method.name
