"""What `llp suite` is asked for: which runs of which suite, at which scale."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from torchllp.errors import LLPError, first_line
from torchllp.experiments import SUITES
from torchllp.experiments.scales import SCALES
from torchllp.experiments.suite import Cell, Suite, name_of
from torchllp.files import write_atomically
from torchllp.report.comparison import SUITE_FILE
from torchllp.run import FORMAT_VERSION


class NothingLeft(LLPError):
    """No run has the words that are asked for in its name."""


@dataclass(frozen=True)
class Plan:
    """Runs of a suite that are asked for by name."""

    name: str
    """Of a suite of ours, or of the file that has one."""
    scale: str
    held_out: float = 0.0
    only: tuple[str, ...] = ()
    """Words that are in the names of all runs."""

    @cached_property
    def suite(self) -> Suite:
        return _read(Path(self.name)) if self.name.endswith(".py") else SUITES.load(self.name)

    @property
    def absolute_name(self) -> str:
        """The name as it is to be said in any directory."""
        return str(Path(self.name).absolute()) if self.name.endswith(".py") else self.name

    def cells(self, data_dir: Path | None = None) -> list[Cell]:
        """The runs with all of the words in their name, and what they start from; the files are in ``data_dir``."""
        layer: dict[str, Any] = {
            "data": {"held_out": self.held_out} | ({"data_dir": str(data_dir)} if data_dir else {})
        }
        try:
            cells = [cell.over(layer) for cell in self.suite.cells(SCALES[self.scale])]
        except LLPError:
            raise
        except Exception as error:  # a user's own code may raise anything
            raise LLPError(f"{self.name}: its cells cannot be made: {first_line(error)}") from error
        _check(self.suite, cells)
        return _only(cells, self.only)

    @property
    def flags(self) -> list[str]:
        """By which `llp suite` is asked for these runs."""
        flags = ["--scale", self.scale, *(["--held-out", str(self.held_out)] if self.held_out else [])]
        return flags + [word for pattern in self.only for word in ("--only", pattern)]

    @property
    def command(self) -> str:
        return shlex.join(["llp", "suite", self.name, *self.flags])

    @property
    def runs(self) -> Path:
        """The directory of runs, unless another is asked for."""
        return Path("runs", f"{self.scale}-held-out-{self.held_out:g}" if self.held_out else self.scale)

    @property
    def results(self) -> str:
        """Name of the directory of results: part of a suite does not replace those of the whole."""
        return name_of(self.suite.name, *self.only)

    def write(self, folder: Path, runs: Sequence[str]) -> None:
        """Write down in a directory of results what was asked for, and which runs they are of."""
        content = {"format_version": FORMAT_VERSION} | asdict(self) | {"name": self.absolute_name, "runs": list(runs)}
        write_atomically(folder / SUITE_FILE, (json.dumps(content, indent=1) + "\n").encode())


def _read(path: Path) -> Suite:
    """The suite of a file."""
    if not path.is_file():
        raise LLPError(f"{path}: there is no such file")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # of a .py file there is
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's own code may raise anything
        raise LLPError(f"{path}: cannot be run: {first_line(error)}") from error
    found = getattr(module, "SUITE", None)
    if not isinstance(found, Suite):
        raise LLPError(f"{path}: there is no SUITE in it, a torchllp.experiments.suite.Suite")
    return found


def _check(suite: Suite, cells: Sequence[Cell]) -> None:
    """Raise where runs cannot be told apart, or are not there."""
    if not cells:
        raise LLPError(f"suite {suite.name}: there is no run in it")
    places: dict[tuple[str, int, str, int], str] = {}
    names: set[str] = set()
    for cell in cells:
        if cell.config.own.is_given:
            raise LLPError(f"{cell.name}: suites are of named data sets; runs on others are compared by `llp report`")
        if cell.after is not None and cell.after not in names:
            raise LLPError(f"{cell.name}: starts from {cell.after}, and no run before it is called so")
        names.add(cell.name)
        place = (cell.dataset, cell.bag_size, cell.row, cell.seed)
        other = places.setdefault(place, cell.name)
        if other != cell.name:
            raise LLPError(
                f"{other} and {cell.name} would be the same seed of one row of the table: give one another row"
            )
    if suite.name in names:
        raise LLPError(f"a run is called {suite.name}, as the suite is: give one another name")


def _only(cells: list[Cell], words: Sequence[str]) -> list[Cell]:
    """Those with all of the words in their name, and what they start from."""
    kept = [cell for cell in cells if all(word in cell.name for word in words)]
    if not kept:
        raise NothingLeft(f"no run of the suite has {' and '.join(words)} in its name, such as {cells[0].name}")
    by_name, needed = {cell.name: cell for cell in cells}, {cell.name for cell in kept}
    for cell in kept:
        while cell.after is not None:
            cell = by_name[cell.after]
            needed.add(cell.name)
    return [cell for cell in cells if cell.name in needed]
