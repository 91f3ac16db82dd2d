"""Tables of rows, read in blocks: CSV and Parquet files, folders of them, NumPy files, any frame that speaks Arrow."""

import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq

from torchllp.errors import LLPError

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them

BLOCK_ROWS = 50_000
"""Rows that are in memory at a time."""
FEATURES = "features"
"""The column that a bare matrix becomes."""
MISSING = ["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>"]
"""What stands for a missing value in a CSV file."""
DELIMITERS = ",;\t|"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
DECIMAL_COMMA = r"^([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)$"
SUFFIXES = {".csv", ".tsv", ".txt", ".parquet", ".pq", ".npy", ".npz"}


@dataclass(frozen=True, eq=False)
class Part:
    """One file of a table, or one frame."""

    name: str
    schema: pa.Schema
    num_rows: int
    first_row: int
    """Number of its first row in messages: 2 in CSV, below the header; 0 elsewhere."""
    read: Callable[[list[str]], Iterator[pa.RecordBatch]]
    """Blocks of these columns, in the order of the rows."""


class Table:
    """Rows in one or several parts with the same columns.

    >>> table = Table.of({"lot": ["a", "b"], "width": [1.5, 2.5]})
    >>> table.num_rows, table.column_names
    (2, ['lot', 'width'])
    >>> table.place(1, "width")
    "table, row 1, column 'width'"
    """

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name, self.parts = name, parts
        self.num_rows = sum(part.num_rows for part in parts)
        first = parts[0]
        for part in parts:
            for names, other, owner in (
                (part.schema.names, first.schema.names, part),
                (first.schema.names, part.schema.names, first),
            ):
                known = set(other)  # there may be thousands of columns
                odd = [column for column in names if column not in known]
                if odd:
                    where = first if owner is part else part
                    raise LLPError(f"{owner.name}: has a column {odd[0]!r} that {where.name} has not")
            times = Counter(part.schema.names)
            for position, column in enumerate(part.schema.names):
                if not column.strip():
                    advice = "" if position else ": an index of pandas is left out by to_csv(index=False)"
                    raise LLPError(f"{part.name}: column {position + 1} has no name in the header{advice}")
                if times[column] > 1:
                    raise LLPError(f"{part.name}: two columns are called {column!r}")
        if self.num_rows == 0:
            raise LLPError(f"{name}: the table has no rows")

    @classmethod
    def of(cls, source: Any, name: str = "table", text: Collection[str] = ()) -> "Table":
        """A table of a file or folder, a frame (pandas, polars, Arrow), a matrix, or a mapping of columns.

        ``text`` are columns whose CSV values are taken as they are written: ids such as 007.
        """
        if isinstance(source, Table):
            return source
        if isinstance(source, str | os.PathLike):
            return cls(str(source), _open(Path(source), text))
        return cls(name, [_frame(name, source)])

    @property
    def column_names(self) -> list[str]:
        return self.parts[0].schema.names

    def type_of(self, column: str) -> pa.DataType:
        """The column's type: that of the first part in which it has any value."""
        types = [part.schema.field(column).type for part in self.parts]
        return next((kind for kind in types if not pa.types.is_null(kind)), types[0])

    def blocks(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows, some at a time."""
        for part in self.parts:
            try:
                yield from part.read(list(columns))
            except (pa.ArrowException, OSError) as error:
                raise LLPError(f"{part.name}: cannot be read ({_first_line(error)})") from error

    def values(self, column: str) -> np.ndarray:
        """One column of whole numbers as such, and any other as text."""
        arrays = [block.column(0) for block in self.blocks([column])]
        if all(pa.types.is_integer(array.type) and not array.null_count for array in arrays):
            return np.concatenate([array.to_numpy(zero_copy_only=False) for array in arrays])
        return self.texts(column)

    def texts(self, column: str) -> np.ndarray:
        """One column as text, an object array; None where a value is missing."""
        where = f"{self.name}, column {column!r}"
        arrays = [as_text(block.column(0), where) for block in self.blocks([column])]
        return np.concatenate([array.to_numpy(zero_copy_only=False) for array in arrays])

    def place(self, row: int, column: str | None = None) -> str:
        """Where a row is, for messages."""
        for part in self.parts:
            if row < part.num_rows:
                break
            row -= part.num_rows
        return f"{part.name}, row {part.first_row + row}" + (f", column {column!r}" if column is not None else "")

    def need(self, columns: Sequence[str], why: str = "") -> None:
        """Raise unless the table has all of these columns."""
        known = set(self.column_names)
        missing = [repr(column) for column in columns if column not in known]
        if missing:
            shown = ", ".join(self.column_names[:20]) + (", ..." if len(self.column_names) > 20 else "")
            if len(known) == 1 and any(column in self.column_names[0] for column in columns):
                shown += ", as one: columns are parted by commas, semicolons, tabs or bars"
            plural = "columns" if len(missing) > 1 else "column"
            raise LLPError(f"{self.name}: no {plural} {', '.join(missing)}{why} (it has {shown})")


def as_text(array: pa.Array, where: str) -> pa.Array:
    """Values as text, missing ones as null; whole numbers without a decimal point. ``where`` is for messages."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_text(array.dictionary, where).take(array.indices)
    try:
        text = array.cast(pa.string())
    except pa.ArrowException as error:
        raise LLPError(f"{where}: values of type {kind} cannot be taken as names or ids") from error
    if pa.types.is_floating(kind):
        numbers = array.cast(pa.float64())
        whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), 2.0**53))
        text = pc.if_else(whole, numbers.cast(pa.int64(), safe=False).cast(pa.string()), text)
        text = pc.if_else(pc.is_nan(numbers), None, text)
    return pc.if_else(pc.equal(text, ""), None, text)


def _open(path: Path, text: Collection[str]) -> list[Part]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and _is_visible(file, path))
        if not files:
            raise LLPError(f"{path}: no CSV or Parquet file in this folder")
        parts = [part for file in files for part in _open(file, text)]
        codes = _codes(parts)  # 007 of a file without letters is no number either
        return [part for file in files for part in _open(file, {*text, *codes})] if codes else parts
    if not path.is_file():
        raise LLPError(f"{path}: there is no such file")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise LLPError(f"{path}: tables are .csv, .tsv, .txt, .parquet, .npy or .npz files, or folders of them")
    try:
        if suffix in (".parquet", ".pq"):
            return [_parquet(path)]
        if suffix in (".npy", ".npz"):
            return [_numpy(path)]
        return [_in_memory(str(path), _csv(path, text), first_row=2)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise LLPError(f"{path}: not a table that can be read ({_first_line(error)})") from error


def _codes(parts: Sequence[Part]) -> set[str]:
    """Columns of categories in some of the files that are numbers in others."""
    of_text = [{field.name for field in part.schema if pa.types.is_string(field.type)} for part in parts]
    of_numbers = {field.name for part in parts for field in part.schema if _is_number(field.type)}
    codes = of_numbers.intersection(set().union(*of_text))
    for part, names in zip(parts, of_text, strict=True):
        for name in codes & names:
            texts = pa.chunked_array([block.column(0) for block in part.read([name])], pa.string())
            codes = codes - {name} if _are_mostly_numbers(texts) else codes
    return codes


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_visible(file: Path, folder: Path) -> bool:
    """Not hidden, and not one of the marks that writers leave beside their files (``_SUCCESS``, ``_metadata``)."""
    return not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def _parquet(path: Path) -> Part:
    with pq.ParquetFile(path) as file:
        schema, num_rows = file.schema_arrow, file.metadata.num_rows

    def read(columns: list[str]) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path, pre_buffer=False) as file:  # which would hold all of the file
            for block in file.iter_batches(BLOCK_ROWS, columns=columns):
                yield block.select(columns)

    return Part(str(path), schema, num_rows, 0, read)


def _in_memory(name: str, table: pa.Table, first_row: int = 0) -> Part:
    table = table.combine_chunks()  # so that the blocks do not depend on how it was read

    def read(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(columns).to_batches(max_chunksize=BLOCK_ROWS)

    return Part(name, table.schema, table.num_rows, first_row, read)


def _numpy(path: Path) -> Part:
    """A matrix of features, or an archive of columns and matrices with as many rows each."""
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            with content:
                content = {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise LLPError(f"{path}: not a file of plain arrays that can be read ({_first_line(error)})") from error
    return _frame(str(path), content)


def _frame(name: str, source: Any) -> Part:
    """Anything that Arrow takes as a table, and matrices."""
    if isinstance(source, np.ndarray):
        if source.ndim != 2:
            raise LLPError(f"{name}: one row of features an instance has shape [rows, features], not {source.shape}")
        source = {FEATURES: source}
    if isinstance(source, Mapping):
        source = {str(column): _as_arrow(f"{name}, column {column!r}", values) for column, values in source.items()}
    try:
        table = source if isinstance(source, pa.Table) else pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise LLPError(f"{name}: not a table that Arrow can take ({_first_line(error)})") from error
    index = [column for column in table.column_names if column.startswith("__index_level_")]  # pandas keeps its own
    return _in_memory(name, table.drop_columns(index))


def _as_arrow(place: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    array = values if isinstance(values, list) else np.asarray(values)
    if isinstance(array, np.ndarray):
        if array.ndim not in (1, 2) or (array.ndim == 2 and array.dtype.kind not in "fiub") or 0 in array.shape[1:]:
            raise LLPError(f"{place}: values have shape [rows] or, as numbers, [rows, features], not {array.shape}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        if isinstance(array, np.ndarray) and array.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        return pa.array(array, from_pandas=True)  # which has NaN for a missing text
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise LLPError(f"{place}: not values of one kind ({_first_line(error)})") from error


def _csv(path: Path, text: Collection[str]) -> pa.Table:
    with open(path, encoding="utf-8", errors="replace") as file:
        header = next((line for line in file if line.strip()), "")
    if "\0" in header or "\ufffd" in header:
        raise LLPError(f"{path}: the text is not UTF-8")
    unquoted = re.sub(r'"[^"]*"', "", header)
    parse = pa.csv.ParseOptions(delimiter=max(DELIMITERS, key=unquoted.count), newlines_in_values=True)
    with pa.csv.open_csv(path, parse_options=parse) as reader:
        names = reader.schema.names  # with the blanks around them
    as_written = {name: pa.string() for name in names if name.strip() in text}
    convert = pa.csv.ConvertOptions(null_values=MISSING, column_types=as_written)
    try:
        table = pa.csv.read_csv(path, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid:  # once more in one thread, which knows the number of the row
        one_thread = pa.csv.ReadOptions(use_threads=False)
        table = pa.csv.read_csv(path, one_thread, parse, convert)
    table = table.rename_columns([name.strip() for name in names])
    for position, field in enumerate(table.schema):
        if pa.types.is_binary(field.type):
            raise LLPError(f"{path}: column {field.name!r} has text that is not UTF-8")
        if pa.types.is_string(field.type):
            column = _clean(table.column(position), is_text=field.name in text, comma=parse.delimiter != ",")
            table = table.set_column(position, field.name, column)
    return table


def _clean(column: pa.ChunkedArray, *, is_text: bool, comma: bool) -> pa.ChunkedArray:
    """Text without blanks around it; a number column if that is what is left then (blanks, ``?``, decimal commas)."""
    column = pc.utf8_trim_whitespace(column)
    missing = pa.array([""] if is_text else MISSING)  # NA may be a bag's own name
    column = pc.if_else(pc.is_in(column, missing), None, column)
    if is_text:
        return column
    numbers = pc.replace_substring_regex(column, DECIMAL_COMMA, r"\1.\2") if comma else column
    try:
        return numbers.cast(pa.float64())
    except pa.ArrowInvalid:  # categories, as they are written; or numbers with a stray text, told where they are used
        return numbers if _are_mostly_numbers(numbers) else column


def _are_mostly_numbers(texts: pa.Array | pa.ChunkedArray) -> bool:
    num_numbers = pc.sum(pc.match_substring_regex(texts, NUMBER)).as_py() or 0
    return 2 * num_numbers > len(texts) - texts.null_count
