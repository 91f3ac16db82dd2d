"""Columns of a table as features: numbers standardised, categories as 0 and 1. Fitted once, saved as plain JSON."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor

from torchllp.data.table import BLOCK_ROWS, MISSING, NUMBER, Table, as_text
from torchllp.device import free_memory
from torchllp.errors import LLPError

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them

MOST_CATEGORIES = 100
"""Of one column; rarer ones are encoded like categories that were never seen."""
LARGEST = float(np.finfo(np.float32).max)
NO_VALUE = ""
"""The category of a missing value."""


@dataclass(frozen=True, eq=False)
class TableEncoder:
    """From rows to float32 features ``[N, D]``: the numbers first, in the order of their columns, then the categories.

    A number is standardised as by scikit-learn's ``StandardScaler``; where it is missing it becomes 0, the mean. A
    category column is encoded by ``OneHotEncoder``: one feature a category of the rows it was fitted on, "missing"
    among them if there were such rows; a category that was not there then is all zeros.

    >>> table = Table.of({"width": [1.0, 3.0, None], "colour": ["red", "blue", "red"]})
    >>> encoder = TableEncoder.fit(table, ["width", "colour"])
    >>> encoder.transform(table)
    tensor([[-1.,  0.,  1.],
            [ 1.,  1.,  0.],
            [ 0.,  0.,  1.]])
    """

    numbers: Mapping[str, int]
    """Column -> how many numbers it has: 1, or the width of a list of precomputed features."""
    categories: Mapping[str, Sequence[str]]
    """Column -> its categories."""
    mean: np.ndarray
    """Of each number over the rows it was fitted on."""
    scale: np.ndarray
    """Standard deviation of each number, 1 where it is constant."""
    warnings: tuple[str, ...] = ()
    """What was noticed of the columns."""

    @classmethod
    def fit(cls, table: Table, columns: Sequence[str], categorical: Sequence[str] = ()) -> "TableEncoder":
        """Learn means, deviations and categories of these columns; ``categorical`` are numbers that mean categories."""
        return cls.fit_transform(table, columns, categorical)[0]

    @classmethod
    def fit_transform(
        cls, table: Table, columns: Sequence[str], categorical: Sequence[str] = ()
    ) -> tuple["TableEncoder", Tensor]:
        """Like :meth:`fit` and :meth:`transform` of the same table, up to rounding, but its numbers are read once."""
        table.need([*columns, *categorical])
        warnings, empty = [], []
        numbers, categories = {}, {}
        for column in columns:
            kind = table.type_of(column)
            if column in categorical or _is_text(kind):
                if column not in categorical:
                    _check_not_mixed(table, column)
                found, num_distinct = _categories(table, column)
                if found == [NO_VALUE]:
                    empty.append(column)
                    continue
                if num_distinct > MOST_CATEGORIES:
                    warnings.append(
                        f"{table.name}: column {column!r} has {num_distinct:,} different texts, of which the "
                        f"{MOST_CATEGORIES} most frequent are told apart: if it is an id, say so by --id-column"
                    )
                categories[column] = found
            elif pa.types.is_null(kind):
                empty.append(column)
            else:
                numbers[column] = _width(table, column, kind)
        num_numbers = sum(numbers.values())
        features = _new_features(table.num_rows, num_numbers + sum(map(len, categories.values())))
        mean, scale = _standardize(table, numbers, features[:, :num_numbers])
        missing = np.flatnonzero(np.isnan(mean))
        if len(missing):
            empty += [_columns_of(numbers)[number] for number in missing]
            features = _without(features, missing)
            mean, scale = np.delete(mean, missing), np.delete(scale, missing)
        numbers = {column: width for column, width in numbers.items() if column not in empty}
        if not numbers and not categories:
            raise LLPError(f"{table.name}: no column is left to learn from")
        warnings += [f"{table.name}: column {column!r} has no value in any row, and is left out" for column in empty]
        encoder = cls(numbers=numbers, categories=categories, mean=mean, scale=scale, warnings=tuple(warnings))
        encoder._encode_categories(table, features[:, len(mean) :])
        return encoder, torch.from_numpy(features)

    @cached_property
    def _one_hot(self) -> Any:
        encoder = OneHotEncoder(
            categories=[np.array(names, dtype=object) for names in self.categories.values()],
            handle_unknown="ignore",
            sparse_output=False,
            dtype=np.float32,
        )
        first = np.array([[names[0] for names in self.categories.values()]], dtype=object)
        return encoder.fit(first)  # nothing is learnt from it: the categories are given

    @property
    def summary(self) -> str:
        """One line of what is learnt from."""
        parts = [f"{len(self.mean)} number{'s' * (len(self.mean) != 1)}"] * bool(self.numbers)
        if num_columns := len(self.categories):
            columns = f"{num_columns} column{'s' * (num_columns != 1)} of categories"
            parts.append(f"{columns} ({len(self.columns) - len(self.mean)} features)")
        return f"features: {' and '.join(parts)}"

    @property
    def column_names(self) -> list[str]:
        """The columns that a table must have."""
        return [*self.numbers, *self.categories]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """For each feature the column that it comes from; every number is a column of its own."""
        widths = [1] * len(self.mean) + [len(names) for names in self.categories.values()]
        return tuple(np.arange(len(widths)).repeat(widths).tolist())

    @cached_property
    def is_number(self) -> tuple[bool, ...]:
        """For each feature whether it is a number."""
        return tuple(feature < len(self.mean) for feature in range(len(self.columns)))

    def transform(self, table: Table) -> Tensor:
        """The features of a table's rows, ``[N, D]``."""
        table.need(self.column_names, " that the model was trained on")
        features = _new_features(table.num_rows, len(self.columns))
        if self.numbers:
            start = 0
            for block in _number_blocks(table, self.numbers):
                part = features[start : (start := start + len(block)), : len(self.mean)]
                part[:] = (block - self.mean) / self.scale
                part[np.isnan(part)] = 0
        self._encode_categories(table, features[:, len(self.mean) :])
        return torch.from_numpy(features)

    def raw(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """What is encoded: numbers, float64 ``[N, numbers]`` with NaN for missing ones, and texts ``[N, columns]``.

        >>> table = Table.of({"width": [1.0, None], "colour": [" red", None]})
        >>> numbers, texts = TableEncoder.fit(table, ["width", "colour"]).raw(table)
        >>> numbers.tolist(), texts.tolist()
        ([[1.0], [nan]], [['red'], ['']])
        """
        table.need(self.column_names, " that the model was trained on")
        numbers = [*_number_blocks(table, self.numbers)] if self.numbers else [np.empty((table.num_rows, 0))]
        texts = [*self._texts(table)] if self.categories else [np.empty((table.num_rows, 0), dtype=object)]
        return np.concatenate(numbers), np.concatenate(texts)

    def _texts(self, table: Table) -> Iterator[np.ndarray]:
        """The categories of some rows at a time, ``[n, columns]``."""
        for arrays in _text_blocks(table, list(self.categories)):
            yield np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1)

    def _encode_categories(self, table: Table, features: np.ndarray) -> None:
        start = 0
        for block in self._texts(table) if self.categories else ():
            features[start : (start := start + len(block))] = self._one_hot.transform(block)

    def unseen(self, table: Table) -> dict[str, int]:
        """Column -> number of rows with a category that is encoded as none of the known ones."""
        counts = dict.fromkeys(self.categories, 0)
        if counts:
            for arrays in _text_blocks(table, list(self.categories)):
                for (column, names), array in zip(self.categories.items(), arrays, strict=True):
                    counts[column] += len(array) - pc.sum(pc.is_in(array, pa.array(names))).as_py()
        return {column: count for column, count in counts.items() if count}

    def to_json(self) -> dict[str, Any]:
        """Plain values that :meth:`from_json` takes."""
        return {
            "numbers": dict(self.numbers),
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "categories": {column: list(names) for column, names in self.categories.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TableEncoder":
        return cls(
            numbers=content["numbers"],
            categories=content["categories"],
            mean=np.array(content["mean"], dtype=np.float64),
            scale=np.array(content["scale"], dtype=np.float64),
        )


def _new_features(num_rows: int, num_features: int) -> np.ndarray:
    """An array for the features; where they would take more than half of the free memory, a map of a temporary file.

    The file has no name, so it is gone with the process, however that ends.
    """
    shape, num_bytes = (num_rows, num_features), 4 * num_rows * num_features
    if num_bytes <= free_memory(torch.device("cpu")) / 2:
        return np.empty(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:
        if num_bytes > shutil.disk_usage(tempfile.gettempdir()).free:  # to write to a map would then end the process
            raise LLPError(
                f"the features take {num_bytes / 1e9:.1f} GB, more than is free in memory and in "
                f"{tempfile.gettempdir()}: name another directory by the environment variable TMPDIR"
            )
        return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)


def _without(features: np.ndarray, columns: np.ndarray) -> np.ndarray:
    kept = _new_features(len(features), features.shape[1] - len(columns))
    for start in range(0, len(features), BLOCK_ROWS):
        kept[start : start + BLOCK_ROWS] = np.delete(features[start : start + BLOCK_ROWS], columns, axis=1)
    return kept


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _width(table: Table, column: str, kind: pa.DataType) -> int:
    if not _is_list(kind):
        return 1
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size
    first = next(block.column(0)[0] for block in table.blocks([column]) if block.num_rows)
    if not first.is_valid or not len(first):
        raise LLPError(f"{table.place(0, column)}: no value, and precomputed features have one list a row")
    return len(first)


def _check_not_mixed(table: Table, column: str) -> None:
    """Raise if most of the texts are numbers: then the others are mistakes, or the numbers are codes."""
    num_numbers = num_values = start = 0
    first_other = None
    for block in table.blocks([column]):
        values = _as_text(table, column, block.column(0))
        is_number = pc.match_substring_regex(values, NUMBER)
        num_numbers += pc.sum(is_number).as_py() or 0
        num_values += len(values) - values.null_count
        if first_other is None:
            others = np.flatnonzero(is_number.to_numpy(zero_copy_only=False) == False)  # noqa: E712  (None is missing)
            if len(others):
                first_other = start + int(others[0]), values[int(others[0])].as_py()
        start += len(values)
    if first_other is not None and 2 * num_numbers > num_values:
        row, value = first_other
        raise LLPError(
            f"{table.place(row, column)}: {value!r} among numbers: correct it, or say "
            f"--categorical-column {column} if all of them are categories"
        )


def _categories(table: Table, column: str) -> tuple[list[str], int]:
    """The most frequent categories in alphabetical order, and how many there are in all."""
    counts: Counter[str] = Counter()
    for (array,) in _text_blocks(table, [column]):
        for found in pc.value_counts(array).to_pylist():
            counts[found["values"]] += found["counts"]
    frequent = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_CATEGORIES]
    return sorted(frequent), len(counts)


def _as_text(table: Table, column: str, array: pa.Array) -> pa.Array:
    """Texts as a CSV file would have them: without blanks around, and null for what stands for a missing value."""
    text = pc.utf8_trim_whitespace(as_text(array, f"{table.name}, column {column!r}"))
    return pc.if_else(pc.is_in(text, pa.array(MISSING)), None, text)


def _text_blocks(table: Table, columns: list[str]) -> Iterator[list[pa.Array]]:
    """The texts of each column, :data:`NO_VALUE` where one is missing, some rows at a time."""
    for block in table.blocks(columns):
        yield [
            _as_text(table, column, array).fill_null(NO_VALUE)
            for column, array in zip(columns, block.columns, strict=True)
        ]


def _columns_of(numbers: Mapping[str, int]) -> list[str]:
    """For each number its column."""
    return [column for column, width in numbers.items() for _ in range(width)]


def _standardize(table: Table, numbers: Mapping[str, int], features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write all numbers to ``features``, standardised; their means (NaN for a column without any value) and scales."""
    scalers: list[Any] = [StandardScaler() for _ in numbers]
    cuts = np.cumsum(list(numbers.values()))[:-1]
    start, origin = 0, np.full(sum(numbers.values()), np.nan)
    for block in _number_blocks(table, numbers) if numbers else ():
        for scaler, values in zip(scalers, np.split(block, cuts, axis=1), strict=True):
            if not np.isnan(values).all():  # after which it would forget what it knows
                scaler.partial_fit(values)
        first = block[(~np.isnan(block)).argmax(0), np.arange(block.shape[1])]
        origin = np.where(np.isnan(origin), first, origin)  # large numbers that hardly differ are alike in float32
        np.subtract(block, origin, out=features[start : (start := start + len(block))], casting="same_kind")
    origin = np.nan_to_num(origin)
    known = [hasattr(scaler, "mean_") for scaler in scalers]
    mean = [scaler.mean_ if there else [np.nan] for scaler, there in zip(scalers, known, strict=True)]
    scale = [scaler.scale_ if there else [1.0] for scaler, there in zip(scalers, known, strict=True)]
    mean, scale = np.concatenate([[], *mean]), np.concatenate([[], *scale])
    variance = np.concatenate([[], *(s.var_ if there else [1.0] for s, there in zip(scalers, known, strict=True))])
    # Where numbers differ by less than the rounding of their mean, the scaler takes them for equal and leaves that in.
    is_flat = (scale == 1) & (variance != 1) & (origin != 0)
    mean[is_flat] = origin[is_flat]
    scale[is_flat] = np.where(variance[is_flat] > 0, np.sqrt(variance[is_flat]), 1.0)
    for start in range(0, len(features), BLOCK_ROWS) if numbers else ():
        part = features[start : start + BLOCK_ROWS]
        part -= mean - origin
        part /= scale
        part[np.isnan(part)] = 0
    return mean, scale


def _number_blocks(table: Table, numbers: Mapping[str, int]) -> Iterator[np.ndarray]:
    """float64 arrays ``[n, numbers]``, NaN where a value is missing; raises where one is infinite or no number."""
    start = 0
    for block in table.blocks(list(numbers)):
        values = np.empty((block.num_rows, sum(numbers.values())), order="F")  # columns are filled, and summed, whole
        at = 0
        for (column, width), array in zip(numbers.items(), block.columns, strict=True):
            if _is_list(array.type):
                values[:, at : at + width] = _matrix(table, start, column, width, array)
            else:
                values[:, at] = _numbers(table, start, column, array)
            at += width
        if (np.abs(values) > LARGEST).any():
            row, feature = np.argwhere(np.abs(values) > LARGEST)[0]
            what = "infinite" if np.isinf(values[row, feature]) else f"{values[row, feature]:g}, which is too large"
            raise LLPError(f"{table.place(start + int(row), _columns_of(numbers)[feature])}: the value is {what}")
        yield values
        start += block.num_rows


def _numbers(table: Table, start: int, column: str, array: pa.Array) -> np.ndarray:
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif _is_text(kind):
        array = _as_text(table, column, array)
        wrong = pc.invert(pc.match_substring_regex(array, NUMBER))
        for row in np.flatnonzero(wrong.to_numpy(zero_copy_only=False) == True)[:1]:  # noqa: E712  (None is missing)
            raise LLPError(f"{table.place(start + int(row), column)}: {array[int(row)].as_py()!r} is not a number")
    try:
        return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise LLPError(
            f"{table.name}: column {column!r} is of type {kind}, and features are numbers, texts, dates or lists of "
            "numbers of equal length"
        ) from error


def _matrix(table: Table, start: int, column: str, width: int, array: pa.Array) -> np.ndarray:
    """Lists of equal length as a matrix; precomputed features have no missing values."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    for row in np.flatnonzero(lengths != width)[:1]:
        raise LLPError(f"{table.place(start + int(row), column)}: a list of {lengths[row]} where {width} are expected")
    flat = array.flatten()
    if pa.types.is_nested(flat.type) or _is_text(flat.type):
        raise LLPError(f"{table.name}: column {column!r} is of type {array.type}, not lists of numbers")
    values = flat.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).reshape(len(array), width)
    for row in np.flatnonzero(np.isnan(values).any(1))[:1]:
        raise LLPError(f"{table.place(start + int(row), column)}: a value is missing (NaN) in precomputed features")
    return values
