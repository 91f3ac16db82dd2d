"""Small tables of the user's own, and the command on them."""

import csv
import io
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from commands import Result, here
from torchllp import Run

RECIPE = ["--threads", "1", "--optimizer", "sgd", "--lr", "0.1", "--instances-per-step", "128"]  # quick on few rows


SHORT = ["--epochs", "3", *RECIPE]


OURS = ["--id-column", "id", "--label-column", "y"]


CLASSES = ("good", "bad")


def make_rows(seed: int, num_rows: int = 400, num_bags: int = 40) -> dict[str, np.ndarray]:
    """Two classes that are easily told apart, in bags of very different shares."""
    generator = np.random.default_rng(seed)
    bag = generator.integers(0, num_bags, num_rows)
    is_good = generator.random(num_rows) < generator.random(num_bags)[bag]
    return {
        "bag": np.array([f"{b:03}" for b in bag]),
        "id": np.arange(1000, 1000 + num_rows),
        "x": np.where(is_good, 1.5, -1.5) + generator.normal(size=num_rows),
        "z": generator.normal(size=num_rows),
        "colour": np.where(generator.random(num_rows) < 0.2, "grey", np.where(is_good, "red", "blue")),
        "y": np.where(is_good, *CLASSES),
    }


def make_bags(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    bags = np.unique(rows["bag"])
    return {"bag": bags, **{name: [int((rows["y"][rows["bag"] == b] == name).sum()) for b in bags] for name in CLASSES}}


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    table = pa.table(dict(columns))
    pa.csv.write_csv(table, path) if path.suffix == ".csv" else pq.write_table(table, path)
    return path


def without(columns: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values for name, values in columns.items() if name not in names}


ROWS = make_rows(0)


BAGS = make_bags(ROWS)


@dataclass(frozen=True)
class Work:
    path: Path
    result: subprocess.CompletedProcess[str]

    @property
    def run(self) -> Run:
        return Run.open(self.path / "run")

    @property
    def flags(self) -> list[str]:
        return ["--instances", str(self.path / "rows.csv"), "--bags", str(self.path / "bags.csv")]


def predictions(run: Path, rows: Path, output: Path, *flags: str | Path) -> tuple[list[dict[str, str]], Result]:
    result = here("predict", run, rows, "-o", output, *flags)
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(output.read_text()))), result
