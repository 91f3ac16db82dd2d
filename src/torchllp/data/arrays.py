"""Rows and images in memory as instances: fitted on those that are trained on, saved as plain JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torchllp.data.dataset import Dataset, Instances, check_images
from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.errors import LLPError

NAME = "X"
"""What the instances are called in messages."""


def is_frame(rows: Any) -> bool:
    """Whether these are a table with named columns: pandas, polars, Arrow."""
    return hasattr(rows, "columns")


def are_images(instances: Any) -> bool:
    """Whether these are images: an array of four dimensions."""
    return isinstance(instances, np.ndarray) and instances.ndim == 4


def as_array(values: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # which NumPy does not know


@dataclass(frozen=True, eq=False)
class Rows:
    """A frame or a matrix as float32 features; columns are known by their place, and a matrix has no names for them.

    >>> rows, features = Rows.fit(np.array([[1, 7], [3, 8], [1, 7]]), categorical=[1])
    >>> features.shape, rows.columns
    (torch.Size([3, 3]), ('x0', 'x1'))
    >>> torch.allclose(rows.read(np.array([[1.0, 7.0]])), features[:1])
    True
    """

    columns: tuple[str, ...]
    encoder: TableEncoder

    @classmethod
    def fit(cls, rows: Any, categorical: Sequence[str | int] = ()) -> tuple["Rows", Tensor]:
        """How these rows are read, and their features. ``categorical`` are names or places of columns of categories.

        Texts, and what a frame itself calls categories, need not be named.
        """
        names = None if is_frame(rows) else [f"x{column}" for column in range(rows.shape[1])]
        table = Table.of(_plain_frame(rows), NAME) if names is None else _table(rows, names, _names(names, categorical))
        codes = {*_names(table.column_names, categorical)}
        codes |= {name for name in table.column_names if pa.types.is_dictionary(table.type_of(name))}
        encoder, features = TableEncoder.fit_transform(table, table.column_names, list(codes))
        return cls(tuple(table.column_names), encoder), features

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one instance."""
        return (len(self.encoder.columns),)

    def read(self, rows: Any) -> Tensor:
        """The features of new rows ``[N, D]``, whose columns are in the same order."""
        if not is_frame(rows):
            return self.encoder.transform(_table(rows, self.columns, self.encoder.categories))
        return self.encoder.transform(Table.of(pa.table(_plain_frame(rows)).rename_columns(self.columns), NAME))

    def dataset(self, instances: Instances, class_names: Sequence[str], *, flip: bool) -> Dataset:
        if flip:
            raise LLPError("only images can be mirrored: leave `flip` out for rows")
        return Dataset(name=NAME, train=instances, test=None, class_names=tuple(class_names), encoder=self.encoder)

    def to_json(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "encoder": self.encoder.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Rows":
        return cls(tuple(content["columns"]), TableEncoder.from_json(content["encoder"]))


@dataclass(frozen=True)
class Images:
    """An array ``[N, channels, height, width]`` or ``[N, height, width, channels]`` as uint8 images, channels first.

    Whole numbers are levels from 0 to 255. So are floats, unless all that are trained on are from 0 to 1.

    >>> images, levels = Images.fit(np.array([0.0, 1.0]).reshape(2, 1, 1, 1) * np.ones((1, 8, 8, 3)))
    >>> levels.shape, levels.unique()
    (torch.Size([2, 3, 8, 8]), tensor([  0, 255], dtype=torch.uint8))
    """

    input_shape: tuple[int, ...]
    """Of one image, channels first."""
    channels_last: bool
    """Whether they come as ``[N, height, width, channels]``."""
    white: float | None
    """The float that stands for level 255; None if whole numbers were trained on."""

    @classmethod
    def fit(cls, images: np.ndarray) -> tuple["Images", Tensor]:
        """How these images are read, and their levels."""
        channels_last = images.shape[1] not in (1, 3) and images.shape[3] in (1, 3)
        white = None
        if images.dtype.kind == "f" and len(images):
            white = 1.0 if images.max() <= 1 else 255.0
            largest = images.max()
            if 1 < largest <= 2:  # as levels from 0 to 255 such images would be all but black
                raise LLPError(f"{NAME}: the largest value is {largest:g}: floats are from 0 to 1, or levels to 255")
        shape = np.moveaxis(images, 3, 1).shape[1:] if channels_last else images.shape[1:]
        reader = cls(tuple(shape), channels_last, white)
        return reader, reader.read(images)

    def read(self, images: np.ndarray) -> Tensor:
        """The levels of new images, ``[N, channels, height, width]``."""
        if images.ndim != 4:
            raise LLPError(f"{NAME}: the model was trained on images, and this has shape {images.shape}")
        if images.dtype.kind not in "uif":
            raise LLPError(f"{NAME}: images are numbers, not {images.dtype}")
        if self.channels_last:
            images = np.moveaxis(images, 3, 1)
        if images.shape[1:] != self.input_shape:
            raise LLPError(
                f"{NAME}: the model was trained on images of shape {self.input_shape}, not {images.shape[1:]}"
            )
        if images.dtype.kind == "f" and self.white is None:
            raise LLPError(f"{NAME}: the model was trained on levels from 0 to 255, and these are {images.dtype}")
        if images.dtype != np.uint8:
            white = self.white if images.dtype.kind == "f" and self.white is not None else 255
            wrong = ~((images >= 0) & (images <= white))  # NaN is neither
            for place in np.argwhere(wrong)[:1]:
                value = images[tuple(place)]
                raise LLPError(f"{NAME}, image {place[0]}: the value {value:g} is not from 0 to {white:g}")
            images = np.rint(images * (255 / white)).astype(np.uint8)
        levels = torch.from_numpy(np.array(images, order="C"))  # a copy: the caller's may be read-only
        check_images(levels)
        return levels

    def dataset(self, instances: Instances, class_names: Sequence[str], *, flip: bool) -> Dataset:
        return Dataset.from_images(NAME, instances, class_names=class_names, flip=flip)

    def to_json(self) -> dict[str, Any]:
        return {"input_shape": list(self.input_shape), "channels_last": self.channels_last, "white": self.white}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Images":
        return cls(tuple(content["input_shape"]), content["channels_last"], content["white"])


def unique_columns(frame: Any, name: str) -> list[Any]:
    """The columns of a frame that messages call ``name``; no two of them are called alike."""
    columns = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    for column, times in Counter(columns).items():  # there may be thousands of columns
        if times > 1:
            raise LLPError(f"{name}: two columns are called {column!r}")
    return columns


def _plain_frame(frame: Any) -> Any:
    """Without the index of pandas, which Arrow would take as a column if it has a name."""
    return frame.reset_index(drop=True) if hasattr(frame, "reset_index") else frame


def _table(rows: np.ndarray, names: Sequence[str], categorical: Sequence[str] | Mapping[str, Any]) -> Table:
    columns = dict(zip(names, rows.T, strict=True))
    numbers = {name: column.astype(np.float64) for name, column in columns.items() if name not in categorical}
    return Table.of(columns | numbers, NAME)


def _names(columns: Sequence[str], chosen: Sequence[str | int]) -> list[str]:
    """Columns that are given by name or place, by name."""
    for column in chosen:
        if (column not in columns) if isinstance(column, str) else not 0 <= column < len(columns):
            raise LLPError(f"{NAME}: no column {column!r} of categories (it has {', '.join(columns[:20])})")
    return [column if isinstance(column, str) else columns[column] for column in chosen]
