"""What a suite is: runs with their places in a table, and a figure of them."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchllp.config import Config
from torchllp.errors import LLPError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchllp.experiments.results import Results
    from torchllp.experiments.scales import Scale


@dataclass(frozen=True)
class Cell:
    """One run: what it is trained by, and where it stands in the table."""

    name: str
    """Of its directory. Cells of several suites that have one name are one run."""
    row: str
    """What the table calls it."""
    config: Config
    after: str | None = None
    """Name of the cell whose run has its first weights."""

    def __post_init__(self) -> None:
        _check_name("run", self.name)

    @property
    def dataset(self) -> str:
        return self.config.data.dataset

    @property
    def bag_size(self) -> int:
        return self.config.data.bag_size

    @property
    def seed(self) -> int:
        return self.config.seed

    def over(self, layer: Mapping[str, Any]) -> "Cell":
        """The same cell by other settings."""
        return replace(self, config=Config.layered(self.config.model_dump(), layer))


def name_of(*words: object, **settings: object) -> str:
    """The name of a cell's directory.

    >>> name_of("digits", "ahil", beta_bag=0.5, bag_size=16)
    'digits-ahil-beta_bag=0.5-bag_size=16'
    """
    parts = [str(word) for word in words] + [f"{name}={value}" for name, value in settings.items()]
    return re.sub(r"[^\w.=+-]", "_", "-".join(parts))


def _check_name(what: str, name: str) -> None:
    """Raise unless it can be the name of a directory."""
    if name != name_of(name) or not name.strip("."):
        raise LLPError(f"{name!r} is no name for a {what}: take letters, digits and any of _.=+-")


@dataclass(frozen=True)
class Suite:
    """A list of runs that together show something; ``SUITE`` of a file that `llp suite` is given is one."""

    name: str
    title: str
    """What is shown, in one line."""
    cells: Callable[["Scale"], Iterable[Cell]]
    """The runs at a scale; what others start from comes first."""
    draw: "Callable[[Results], Figure] | None" = None
    """The figure of what has come out."""
    table: str | None = None
    """Which table of ``published.csv`` it stands beside."""

    def __post_init__(self) -> None:
        _check_name("suite", self.name)
