"""What the runs of a suite have come to: a row a run, a row an epoch, and means beside what the paper prints."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from torchllp.errors import LLPError, first_line
from torchllp.experiments.directory import SuiteDirectory
from torchllp.experiments.published import SOURCE, Published, published
from torchllp.experiments.suite import Cell, Suite
from torchllp.files import write_atomically
from torchllp.report.tables import EPOCHS, spread
from torchllp.run import Run, read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Group:
    """A cell of the table: the runs of all seeds."""

    dataset: str
    row: str
    bag_size: int
    runs: list[dict[str, Any]]
    published: Published | None

    def values(self, name: str) -> list[float]:
        return [run[name] for run in self.runs if run[name] is not None]

    @property
    def difference(self) -> float | None:
        """Accuracy at the last epoch, less what is published, in points."""
        if self.published is None or self.published.accuracy is None:
            return None
        return 100 * mean(self.values("last")) - self.published.accuracy


@dataclass(frozen=True)
class Results:
    """Of the runs of a suite that are finished."""

    suite: Suite
    scale: str
    cells: list[Cell]
    directory: SuiteDirectory
    command: str = ""
    """That brings them about."""
    num_missing: int = 0
    """How many runs are not finished."""
    data_dir: Path | None = None
    """Where the data sets' files are now, if not where the runs had them."""

    @classmethod
    def of(
        cls, suite: Suite, scale: str, cells: Sequence[Cell], directory: SuiteDirectory, command: str = ""
    ) -> "Results":
        finished = [cell for cell in cells if directory.run(cell.name).is_finished]
        return cls(suite, scale, finished, directory, command, len(cells) - len(finished))

    def run(self, cell: Cell) -> Run:
        return self.directory.run(cell.name)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One a run; accuracy is None where there is no such epoch."""
        rows = []
        for cell in self.cells:
            summary = self.run(cell).summary
            if "accuracy" not in summary:  # features for others
                continue
            rows.append(
                {
                    "suite": self.suite.name,
                    "scale": self.scale,
                    "dataset": cell.dataset,
                    "row": cell.row,
                    "method": cell.config.method.name,
                    "options": json.dumps(cell.config.method.options),
                    "model": cell.config.model.name,
                    "bag_size": cell.bag_size,
                    "seed": cell.seed,
                    "num_bags": summary["num_bags"],
                    "steps": int(summary["steps"]),
                    "seconds": round(summary["seconds"], 1),
                    "cpu_seconds": round(summary["cpu_seconds"], 1),
                    **{epoch: summary["accuracy"].get(epoch) for epoch in EPOCHS},
                    "run": cell.name,
                }
            )
        return rows

    @cached_property
    def groups(self) -> list[Group]:
        """The cells of the table, by data set, bag size and row, in the order of the suite."""
        order = {name: list(dict.fromkeys(row[name] for row in self.rows)) for name in ("dataset", "bag_size", "row")}
        groups = []
        for dataset in order["dataset"]:
            for bag_size in order["bag_size"]:
                for name in order["row"]:
                    place = (dataset, bag_size, name)
                    runs = [row for row in self.rows if (row["dataset"], row["bag_size"], row["row"]) == place]
                    if runs:
                        printed = published(self.suite.table, dataset, name, bag_size)
                        groups.append(Group(dataset, name, bag_size, runs, printed))
        return groups

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and lines of the table in words; a column that no line has anything in is left out."""
        has_chosen = any(group.values("chosen") for group in self.groups)
        has_published = any(group.published for group in self.groups)
        epochs = [epoch for epoch in EPOCHS if has_chosen or epoch != "chosen"]
        heads = ["data", "bag size", "row", *(f"{epoch} epoch" for epoch in epochs)]
        heads += ["published", "last - published"] if has_published else []
        lines = []
        for group in self.groups:
            line = [group.dataset, str(group.bag_size), group.row]
            line += [spread(group.values(epoch)) for epoch in epochs]
            if has_published:
                line += [_printed(group.published), "-" if group.difference is None else f"{group.difference:+.2f}"]
            seconds = mean(group.values("cpu_seconds"))
            lines.append([*line, f"{group.runs[0]['steps']:,}", f"{seconds:,.0f}", str(len(group.runs))])
        return [*heads, "steps", "CPU seconds", "n"], lines

    def markdown(self) -> str:
        """The table, with what its words mean."""
        heads, lines = self.table()
        rule = "|" + "".join("---|" if head in ("data", "row") else "---:|" for head in heads)
        table = [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(map(_escaped, line))} |" for line in lines)]
        made = [f"- {name}: {f'`{fact}`' if name == 'command' else fact}" for name, fact in self.facts()]
        return "\n".join([f"# {self.suite.title}", "", *table, "", *self.notes(), "", *made, ""])

    def notes(self) -> list[str]:
        """What the words of the table mean."""
        notes = ["Accuracy on test instances in percent, mean ± deviation over n seeds."]
        notes.append("oracle epoch: the best by test labels, which nobody has in practice.")
        if any(group.published for group in self.groups):
            notes.append(f"published: as printed in {SOURCE}, whose networks and budget are those of scale full.")
            notes.append("Its published code reports the best epoch by test labels, as the oracle epoch here.")
        return notes

    def facts(self) -> list[tuple[str, str]]:
        """How it was made: the command, the seeds, and all versions and machines that had a part in it."""
        begun = [read_json(self.run(cell).env_file) for cell in self.cells]
        places = [place for one in begun for place in (one, *one.get("resumed", []))]
        facts = [("command", self.command)] if self.command else []
        if self.num_missing:
            facts.append(("not finished", f"{self.num_missing} of {len(self.cells) + self.num_missing} runs"))
        by_name = {cell.dataset: self.run(cell).summary["dataset"] for cell in self.cells}
        for dataset, found in by_name.items():  # files that are not the published ones, say
            facts += [(dataset, found.removeprefix(dataset).strip(" ()"))] if found != dataset else []
        facts.append(("seeds", ", ".join(map(str, sorted({row["seed"] for row in self.rows})))))
        for name in ("torchllp", "torch", "python", "platform", "device", "processor", "threads", "cores"):
            known = dict.fromkeys(str(place[name]) for place in places if place.get(name))
            facts += [(name, ", ".join(known))] if known else []
        return facts

    def write(self, folder: Path) -> None:
        """Write ``results.csv`` (a row a run), ``epochs.parquet`` (a row an epoch) and ``table.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        table = csv.DictWriter(text, self.rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_atomically(folder / "results.csv", text.getvalue().encode())
        write_atomically(folder / "epochs.parquet", _parquet(self._epochs()))
        write_atomically(folder / "table.md", self.markdown().encode())

    def figure(self) -> "Figure | None":
        """What the suite draws of them, if it does."""
        if self.suite.draw is None:
            return None
        try:
            return self.suite.draw(self)
        except LLPError:
            raise
        except Exception as error:  # a user's own code may raise anything
            raise LLPError(f"suite {self.suite.name}: its figure cannot be drawn: {first_line(error)}") from error

    def _epochs(self) -> list[dict[str, Any]]:
        return [{"run": cell.name} | row for cell in self.cells for row in self.run(cell).metrics()]


def _printed(value: Published | None) -> str:
    if value is None:
        return "-"
    if value.accuracy is None:
        return f"- ({value.note})"
    printed = f"{value.accuracy:.2f}" + ("" if value.deviation is None else f" ± {value.deviation:.2f}")
    return f"{printed} ({value.note})" if value.note else printed


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows of which some lack columns of others."""
    names = dict.fromkeys(name for row in rows for name in row)
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), buffer)
    return buffer.getvalue()
