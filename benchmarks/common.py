"""What the benchmarks of accuracy share: runs in two processes that can be stopped, and tables of their results."""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Protocol

from torchllp import Compute, Dataset, Instances

EPOCHS = ("last", "chosen", "oracle")
ONE_THREAD = Compute(device="cpu", threads=1)
RESULTS = Path(__file__).parent / "results"


class Job(Protocol):
    @property
    def name(self) -> str:
        """The name of its file of results."""
        ...

    def run(self) -> list[dict[str, Any]]:
        """A row for each thing that was measured."""
        ...


def run_all(jobs: Sequence[Job], benchmark: str) -> list[dict[str, Any]]:
    """The rows of all jobs, by two processes of one thread; finished ones are kept in ``runs/benchmark-NAME``."""
    folder = Path("runs", f"benchmark-{benchmark}")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        results = pool.map(_run, jobs, [folder] * len(jobs))
        return [row for rows in results for row in rows]


def _run(job: Job, folder: Path) -> list[dict[str, Any]]:
    file = folder / f"{job.name}.json"
    if not file.is_file():
        rows = job.run()
        file.with_suffix(".part").write_text(json.dumps(rows))
        file.with_suffix(".part").rename(file)
        print(f"done: {job.name}", flush=True)
    return json.loads(file.read_text())


def write_csv(name: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{name}.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(heads)
        table.writerows(rows)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], num_words: int = 1) -> str:
    """A table whose first ``num_words`` columns are words and the others numbers."""
    rule = "|" + "---|" * num_words + "---:|" * (len(heads) - num_words)
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def write_table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]], num_words: int = 1) -> None:
    """Write and print a :func:`markdown_table`."""
    RESULTS.mkdir(exist_ok=True)
    text = markdown_table(heads, rows, num_words)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def with_first_images(data: Dataset, num_train: int | None, num_test: int | None = None) -> Dataset:
    """The data set with the first of its training and test images alone."""

    def first(instances: Instances, number: int | None) -> Instances:
        assert instances.labels is not None
        return Instances(instances.inputs[:number], instances.labels[:number])

    assert data.test is not None
    return replace(data, train=first(data.train, num_train), test=first(data.test, num_test))
