"""Instances of the same kind as a model's, from new files: rows of a table, or images."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchllp.data.image_cache import Progress
from torchllp.data.image_folder import load_folder, load_listed
from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.errors import LLPError


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a user's tables are."""

    bag: tuple[str, ...] = ("bag",)
    label: str | None = None
    id: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()
    """Default: all that are nothing else."""
    categorical: tuple[str, ...] = ()
    path: str | None = None

    @property
    def text(self) -> set[str]:
        """Columns whose values are taken as they are written."""
        names = [*self.bag, *self.id, *self.categorical, self.label, self.path]
        return {name for name in names if name is not None}

    def to_learn_from(self, table: Table) -> list[str]:
        """The columns of a table that are features."""
        others = {*self.bag, *self.id, self.label, self.path}
        return list(self.feature) or [name for name in table.column_names if name not in others]

    def to_copy(self, table: Table) -> list[str]:
        """The columns of a table that say which instance a row is."""
        names = dict.fromkeys([*self.id, *self.bag, self.path])
        return [name for name in names if name is not None and name in table.column_names]


FOLDER_COLUMNS = Columns(bag=("folder",), label="folder", id=("file",))
"""Of the table that a folder of images is taken as: each image's file, and its sub-folder: a bag, or a class."""


class Found(NamedTuple):
    """What was read."""

    table: Table
    inputs: Tensor
    """One a row of the table."""
    columns: Columns
    """What the columns of the table are."""
    notes: list[str]
    """What a user should know of how it was read."""


@dataclass(frozen=True)
class TableReader:
    """Rows by an encoder that was fitted on the training rows."""

    encoder: TableEncoder
    columns: Columns
    features: Any = None
    """The table with the features of the rows, if it is another one."""

    def read(self, source: Any) -> Found:
        table, features = self.open(source)
        return Found(table, self.encoder.transform(features), self.columns, self._notes(features))

    def open(self, source: Any) -> tuple[Table, Table]:
        """The table of the instances, and the one with their features, which may be the same."""
        text = {*self.columns.text, *self.encoder.categories}
        table = Table.of(source, "the instances", text)
        return table, features_of(table, self.features, text)

    def _notes(self, features: Table) -> list[str]:
        known = {*self.encoder.column_names, *self.columns.bag, *self.columns.id, self.columns.label}
        extra = [repr(name) for name in features.column_names if name not in known]
        notes = [f"{features.name}: columns that the model does not know are ignored: {', '.join(extra)}"] * bool(extra)
        return notes + [
            f"{features.name}: column {column!r}: {count:,} rows have a category that the model does not know"
            for column, count in self.encoder.unseen(features).items()
        ]


def features_of(table: Table, features: Any, text: Collection[str]) -> Table:
    """The table with the features of a table's rows: itself, unless another one is given."""
    if features is None:
        return table
    other = Table.of(features, "the features", text)
    if other.num_rows != table.num_rows:
        raise LLPError(f"{other.name}: has {other.num_rows:,} rows, and {table.name} {table.num_rows:,}")
    return other


@dataclass(frozen=True)
class ImageReader:
    """Images of one size: all of a folder, or those that a table names."""

    side: int
    columns: Columns
    root: Path | None = None
    """The folder that the paths in a table start from; without it, the folder that the table is in."""
    progress: Progress | None = field(default=None, repr=False)
    need_groups: bool = False
    """Whether the sub-folders matter, which are bags or classes: then no image may be beside them."""

    def read(self, source: Any) -> Found:
        column = self.columns.path
        if column is None:
            images = load_folder(Path(source), self.side, self.progress, need_groups=self.need_groups)
            table = Table.of({"file": np.array(images.files), "folder": np.array(images.groups)}, str(source))
            return Found(table, torch.from_numpy(images.pixels), FOLDER_COLUMNS, [])
        table = Table.of(source, "the instances", self.columns.text)
        table.need([column])
        root = self.root
        if root is None:
            if not isinstance(source, str | Path):
                raise LLPError("say by --images which folder the paths in the table start from")
            root = Path(source).parent
        names = table.texts(column)
        for row in np.flatnonzero([name is None for name in names])[:1]:
            raise LLPError(f"{table.place(int(row), column)}: no image file")
        pixels = load_listed(root, names.tolist(), self.side, lambda row: table.place(row, column), self.progress)
        return Found(table, torch.from_numpy(pixels), self.columns, [])
