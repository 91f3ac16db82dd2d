"""Predictions as tables: a row an instance, or a row a bag."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from torchllp.calibration import Calibration
from torchllp.data.bag_table import JOIN
from torchllp.errors import LLPError
from torchllp.files import check_directory_of, write_atomically

Columns = Mapping[str, np.ndarray]


def instance_columns(
    ids: Columns, probabilities: np.ndarray, labels: np.ndarray, class_names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The columns of a table with each instance's ids, class and probabilities; ``row`` is its number, unless an id.

    >>> columns = instance_columns({}, np.array([[0.25, 0.75]]), np.array([1]), ["good", "bad"])
    >>> {name: values.tolist() for name, values in columns.items()}
    {'row': [0], 'class': ['bad'], 'p(good)': [0.25], 'p(bad)': [0.75]}
    """
    ours = {"class": np.array(class_names)[labels]}
    ours |= {f"p({name})": probabilities[:, c] for c, name in enumerate(class_names)}
    for name in ids:
        if name in ours:
            raise LLPError(f"the id column {name!r} is called like a column of the predictions: call it otherwise")
    return {"row": np.arange(len(labels)), **ids, **ours}


def bag_columns(
    names: Sequence[str],
    bag_ids: np.ndarray,
    probabilities: np.ndarray,
    class_names: Sequence[str],
    interval: tuple[Calibration, float] | None = None,
) -> dict[str, np.ndarray]:
    """The columns of a table with each bag's size and predicted proportions; rows without a bag are left out.

    ``names`` are those of the columns that make up the ids. With ``interval``, bounds of the true proportions at that
    level are in it too.

    >>> ids = np.array(["a", "a", None])
    >>> columns = bag_columns(["lot"], ids, np.array([[0.5, 0.5], [1, 0], [0, 1]]), ["good", "bad"])
    >>> {name: values.tolist() for name, values in columns.items()}
    {'lot': ['a'], 'size': [2], 'p(good)': [0.75], 'p(bad)': [0.25]}
    """
    there = np.array([bag is not None for bag in bag_ids])
    bags, index, sizes = np.unique(bag_ids[there].astype(str), return_inverse=True, return_counts=True)
    sums = np.zeros((len(bags), len(class_names)))
    np.add.at(sums, index, probabilities[there])
    shares = sums / sizes[:, None]
    parts = [[bag.split(JOIN)[i] for bag in bags] for i in range(len(names))] if len(names) > 1 else [bags]
    ids = {name: np.array(part, dtype=np.str_) for name, part in zip(names, parts, strict=True)}
    columns = {"p": shares}
    if interval is not None:
        calibration, level = interval
        p, bag_index = torch.from_numpy(probabilities[there]), torch.from_numpy(index)
        columns["low"], columns["high"] = calibration.bag_intervals(p, bag_index, len(bags), level)
    found = {f"{kind}({name})": x[:, c] for kind, x in columns.items() for c, name in enumerate(class_names)}
    return ids | {"size": sizes} | found


def as_csv(columns: Columns) -> str:
    """The table as CSV; probabilities to six digits."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    shown = [
        [f"{value:.6g}" for value in values.tolist()] if values.dtype.kind == "f" else values.tolist()
        for values in columns.values()
    ]
    table.writerows(zip(*shown, strict=True))
    return text.getvalue()


def check_output(path: Path, inputs: Iterable[Path | None]) -> None:
    """Raise if a table cannot be written to this path, or is one of the ``inputs``, before anything is computed."""
    for other in inputs:
        if other is not None and other.resolve() == path.resolve():
            raise LLPError(f"{path}: is read from, so predictions cannot be written to it")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise LLPError(f"{path}: predictions are written to .csv or .parquet files")
    check_directory_of(path)


def write_columns(path: Path, columns: Columns) -> None:
    """Write a table as CSV or Parquet, whole or not at all."""
    if path.suffix.lower() == ".csv":
        write_atomically(path, as_csv(columns).encode())
        return
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), buffer)
    write_atomically(path, buffer.getvalue())
