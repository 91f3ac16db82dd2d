"""The table of the bags: each bag's id, one column a class as proportions or counts, and maybe a size."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from torchllp.bags import SUM_TOLERANCE, BagId, Bags
from torchllp.data.table import Table, as_text
from torchllp.errors import LLPError
from torchllp.noise import NoiseKind, exact_scale

SIZE = "size"
"""A column of this name is the bag's number of rows, unless it is named as a class."""
JOIN = " / "
"""Between the parts of an id of several columns."""

Values = Literal["proportions", "counts"]


def bag_ids(table: Table, columns: Sequence[str]) -> np.ndarray:
    """One id a row, as text: the value of the column, or of several columns together; None where one is missing.

    >>> bag_ids(Table.of({"month": ["may", "may"], "day": [1, 2]}), ["month", "day"]).tolist()
    ['may / 1', 'may / 2']
    """
    table.need(columns)
    parts = [table.texts(column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    for column, values in zip(columns, parts, strict=True):
        for row in np.flatnonzero([value is not None and JOIN in value for value in values])[:1]:
            raise LLPError(
                f"{table.place(int(row), column)}: {values[row]!r} has {JOIN!r}, which joins the bag columns"
            )
    rows = zip(*parts, strict=True)
    ids = np.empty(table.num_rows, dtype=object)
    ids[:] = [None if None in row else JOIN.join(row) for row in rows]
    return ids


def read_bags(
    table: Table,
    ids_of_rows: np.ndarray,
    bag_columns: Sequence[str],
    *,
    class_columns: Sequence[str] = (),
    size_column: str | None = None,
    values: Values | None = None,
    normalize: bool = False,
    unlabelled: Literal["keep", "drop"] | None = None,
    noise: NoiseKind | None = None,
    noise_scale: float | None = None,
    noise_column: str | None = None,
    need_rows: bool = True,
    rows: Table,
) -> tuple[Bags, list[str]]:
    """Bags over the rows that have these ids, from the table of the bags, and what was decided on the way.

    Args:
        class_columns: default: all but the id and the size. A single one is the share (or count) of that class, and
            the others are "not" it. A value that is missing was not observed.
        values: what the numbers are; found out and noted if not said.
        normalize, unlabelled: as in :meth:`Bags.from_table`; a row without an id is in no bag.
        noise, noise_scale: as in :meth:`Bags.from_table`.
        noise_column: column with the scale of each bag, in place of one for all; where it is empty the bag is exact.
        need_rows: whether a bag without rows is an error; if not, it is left out and noted.
        rows: the table of the rows, for messages.
    """
    notes = []
    ids = bag_ids(table, bag_columns)
    _check_ids(table, ids, bag_columns)
    if size_column is None and SIZE in table.column_names and SIZE not in class_columns:
        size_column = SIZE
    others = [name for name in (size_column, noise_column) if name is not None]
    table.need([*class_columns, *others])
    if not class_columns:
        class_columns = [name for name in table.column_names if name not in {*bag_columns, *others}]
    if not class_columns:
        raise LLPError(f"{table.name}: no column of a class beside {', '.join([*bag_columns, *others])}")
    if noise is not None and values is None:
        raise LLPError(
            f"{table.name}: noisy numbers may sum to anything, so it cannot be found out what they are: say "
            "--bag-values counts or --bag-values proportions"
        )
    scale = _noise_scale(table, ids, noise, noise_scale, noise_column)
    # with noise a number may be negative, and whether bags are possible at all is for them to say
    columns = (_numbers(table, column, lowest=0 if noise is None else -np.inf) for column in class_columns)
    numbers = np.stack([*columns], axis=1)

    without = np.array([value is None for value in ids_of_rows])
    if without.any() and unlabelled is None:
        raise LLPError(
            f"{rows.place(int(without.argmax()))}: no bag id ({without.sum():,} such rows in all): correct it, or say "
            "--unlabelled drop"
        )
    known, size_of = np.unique(ids_of_rows[~without].astype(str), return_counts=True)
    size = dict(zip(known.tolist(), size_of.tolist(), strict=True))
    there = np.array([bag in size for bag in ids])
    if not there.all():
        row = int(there.argmin())
        if need_rows or not there.any():
            example = f", whose bags are such as {known[0].item()!r}" if len(known) else ""
            raise LLPError(f"{table.place(row)}: bag {ids[row]!r} has no row in {rows.name}{example}")
        notes.append(f"{table.name}: {(~there).sum():,} bags have no row in {rows.name}, and are left out")
    sizes = np.array([size.get(bag, 0) for bag in ids])
    if size_column is not None:
        said = _numbers(table, size_column, needed=True)
        for row in np.flatnonzero((said != sizes) & there)[:1]:
            raise LLPError(
                f"{table.place(int(row), size_column)}: bag {ids[row]!r} should have {said[row]:g} rows, and has "
                f"{sizes[row]} in {rows.name}"
            )
    if values is None:
        values = _detect(table, numbers, is_single=len(class_columns) == 1)
        notes.append(f"{table.name}: the bags are given as {values}")
    names = list(class_columns)
    if len(names) == 1:
        names = [f"not {names[0]}", names[0]]
        most = sizes if values == "counts" else np.ones(len(sizes))
        too_large = there & (numbers[:, 0] > most * (1 + SUM_TOLERANCE))
        for row in np.flatnonzero(too_large)[:1] if noise is None else ():
            limit = f"the bag's {sizes[row]} rows" if values == "counts" else "1"
            raise LLPError(f"{table.place(int(row), class_columns[0])}: {numbers[row, 0]:g} is more than {limit}")
        rest = most - numbers[:, 0]
        numbers = np.stack([rest.clip(min=0) if noise is None else rest, numbers[:, 0]], axis=1)
    if noise is None:
        _check_sums(table, class_columns, numbers, sizes, there, values=values, normalize=normalize)
    nothing = np.isnan(numbers).all(1)
    lacking = there & np.isnan(numbers).any(1) & ~nothing
    if lacking.any():
        notes.append(f"{table.name}: in {lacking.sum():,} bags not all classes were observed")
    if noise is not None:
        notes.append(f"{table.name}: the {values} are not exact: {noise}, by {noise_column or noise_scale}")
    missing = np.setdiff1d(known, ids[~nothing].astype(str)).tolist()
    if missing:
        count = sum(size[bag] for bag in missing)
        where = f"not in {table.name}" + (", or none of their classes was observed" if (there & nothing).any() else "")
        what = f"{len(missing):,} bags with {count:,} rows of {rows.name} are {where}"
        if unlabelled is None:
            raise LLPError(f"{what} (first: {missing[0]!r}): say --unlabelled keep or --unlabelled drop")
        notes.append(f"{what}: they are {'kept without proportions' if unlabelled == 'keep' else 'dropped'}")
    if without.any():
        notes.append(f"{rows.name}: {without.sum():,} rows have no bag id: they are in no bag")
    try:
        bags = Bags.from_table(
            ids_of_rows[~without].tolist(),
            dict(zip(ids[there].tolist(), numbers[there], strict=True)),
            values=values,
            class_names=names,
            normalize=normalize,
            unlabelled=unlabelled,
            noise=noise,
            noise_scale=scale,
        )
    except LLPError as error:
        raise LLPError(f"{table.name}: {error}") from error
    return (over_all_rows(bags, without) if without.any() else bags), notes


def over_all_rows(bags: Bags, without: np.ndarray) -> Bags:
    """Bags of some rows as bags of all: ``without`` says of each row whether it is in none of them."""
    bag_of = np.full(len(without), -1)
    bag_of[~without] = bags.bag_of
    return replace(bags, bag_of=bag_of)


def _noise_scale(
    table: Table, ids: np.ndarray, noise: NoiseKind | None, scale: float | None, column: str | None
) -> float | dict[BagId, float] | None:
    """The scale of all bags, or of each by its id."""
    if noise is None:
        if scale is not None or column is not None:
            raise LLPError(f"{table.name}: a scale of noise is said, and not which noise: say --bag-noise")
        return None
    if (scale is None) == (column is None):
        raise LLPError(
            f"{table.name}: how large the {noise} noise is has to be said, once: --bag-noise-scale, or for each bag "
            "--bag-noise-column"
        )
    if column is None:
        return scale
    scales = _numbers(table, column)
    scales = np.where(np.isnan(scales), exact_scale(noise), scales)
    return dict(zip(ids.tolist(), scales.tolist(), strict=True))


def _check_ids(table: Table, ids: np.ndarray, columns: Sequence[str]) -> None:
    where = columns[0] if len(columns) == 1 else None
    seen: dict[str, int] = {}
    for row, bag in enumerate(ids):
        if bag is None:
            raise LLPError(f"{table.place(row, where)}: no bag id")
        if bag in seen:
            raise LLPError(f"{table.place(row, where)}: bag {bag!r} is already in {table.place(seen[bag])}")
        seen[bag] = row


def _numbers(table: Table, column: str, *, lowest: float = 0, needed: bool = False) -> np.ndarray:
    """A column of finite numbers of ``lowest`` or above; NaN where one is missing, unless it is ``needed``."""
    numbers = np.concatenate(list(_number_blocks(table, column)))
    for row in np.flatnonzero(np.isnan(numbers))[:1] if needed else ():
        raise LLPError(f"{table.place(int(row), column)}: no value")
    for row in np.flatnonzero(np.isinf(numbers) | (numbers < lowest))[:1]:
        raise LLPError(
            f"{table.place(int(row), column)}: {numbers[row]:g} is {'negative' if numbers[row] < 0 else 'infinite'}"
        )
    return numbers


def _number_blocks(table: Table, column: str) -> Iterator[np.ndarray]:
    """float64 arrays, NaN where a value is missing."""
    start = 0
    for block in table.blocks([column]):
        array = block.column(0)
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type)):
            array = as_text(array, f"{table.name}, column {column!r}")
        try:
            numbers = array.cast(pa.float64())
        except pa.ArrowException:
            row = next(row for row in range(len(array)) if not _is_number(array[row]))
            raise LLPError(
                f"{table.place(start + row, column)}: {array[row].as_py()!r} is not a number: name the columns of the "
                "classes by --class-column, if this is none of them"
            ) from None
        yield numbers.to_numpy(zero_copy_only=False)
        start += len(array)


def _is_number(value: pa.Scalar) -> bool:
    try:
        value.cast(pa.float64())
    except pa.ArrowException:
        return False
    return True


def _detect(table: Table, numbers: np.ndarray, *, is_single: bool) -> Values:
    """Proportions if each row sums to 1 (a single class: stays below), counts if all numbers are whole."""
    sums = np.nansum(numbers, 1)
    is_part = np.isnan(numbers).any(1) | is_single
    off = np.where(is_part, sums - 1, np.abs(sums - 1)) > SUM_TOLERANCE
    whole = bool((np.isnan(numbers) | (numbers == np.rint(numbers))).all())
    if is_single and whole and not off.any():
        raise LLPError(f"{table.name}: 0 and 1 alone may be proportions or counts: say which by --bag-values")
    if not off.any():
        return "proportions"
    if whole:
        return "counts"
    row = int(off.argmax())
    if is_single:
        raise LLPError(f"{table.place(row)}: {sums[row]:g} is no share, which is up to 1, nor a count: a percentage?")
    raise LLPError(
        f"{table.place(row)}: the classes sum to {sums[row]:g}, so these are no proportions, and not all numbers are "
        "whole, so they are no counts: say --bag-values proportions --normalize to rescale percentages or rounded ones"
    )


def _check_sums(
    table: Table,
    columns: Sequence[str],
    numbers: np.ndarray,
    sizes: np.ndarray,
    there: np.ndarray,
    *,
    values: Values,
    normalize: bool,
) -> None:
    sums, is_part = np.nansum(numbers, 1), np.isnan(numbers).any(1)
    for row in np.flatnonzero(there & (sums == 0) & ~is_part)[:1]:
        raise LLPError(f"{table.place(int(row))}: the classes sum to 0")
    expected = sizes if values == "counts" else np.ones(len(sums))
    for row in np.flatnonzero(there & is_part & (sums > expected * (1 + SUM_TOLERANCE)))[:1]:
        most = f"the bag's {sizes[row]} rows" if values == "counts" else "1"
        raise LLPError(f"{table.place(int(row))}: the observed classes sum to {sums[row]:g}, more than {most}")
    off = there & ~is_part & (np.abs(sums - expected) > SUM_TOLERANCE * expected)
    for row in np.flatnonzero(off)[:1] if not normalize else ():
        should = f"the bag's {sizes[row]} rows" if values == "counts" else "1"
        is_size = [column for column, said in zip(columns, numbers.T, strict=False) if (said == sizes)[there].all()]
        advice = f"say --size-column {is_size[0]} if that is the size" if is_size else "say --normalize to rescale"
        raise LLPError(
            f"{table.place(int(row))}: the classes ({', '.join(columns)}) sum to {sums[row]:g} instead of {should}: "
            f"correct it, or {advice}"
        )
