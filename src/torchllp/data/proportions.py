"""What is known of bags, in whatever form it is at hand, as Bags over rows that are given by their bags' ids."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from torchllp.bags import SUM_TOLERANCE, Bags
from torchllp.data.arrays import is_frame
from torchllp.data.bag_table import SIZE, over_all_rows, read_bags
from torchllp.data.table import Table
from torchllp.errors import LLPError

NAME = "proportions"
"""What they are called in messages."""
ID = "id of the bag"
"""The column of ids in the tables that are made here."""
Unlabelled = Literal["keep", "drop"] | None
Columns = dict[Any, Any]
"""Class -> its share, or count, in each bag."""


def ids_of_rows(bags: Any) -> list[Any]:
    """One bag id a row, of a list, an array, a tensor or a column; several columns together make tuples.

    >>> ids_of_rows(np.array([[1, 2], [1, 3]]))
    [(1, 2), (1, 3)]
    """
    ids = _as_list(bags.to_numpy() if is_frame(bags) else bags)
    ids = [(bag[0] if len(bag) == 1 else tuple(bag)) if isinstance(bag, list) else bag for bag in ids]
    for row, bag in enumerate(ids):
        if not isinstance(bag, Hashable):
            raise LLPError(f"row {row} has the bag id {bag!r}, which is not hashable")
    return ids


def sorted_ids(ids: Iterable[Hashable]) -> list[Any]:
    """Each id once, sorted if they can be, else as they come."""
    once: list[Any] = list(dict.fromkeys(ids))
    try:
        return sorted(once)
    except TypeError:
        return once


def bags_over(
    bags: Any,
    proportions: Any,
    *,
    num_rows: int,
    classes: Sequence[Any] | None = None,
    unlabelled: Unlabelled = None,
) -> tuple[Bags, list[Any]]:
    """Bags over the rows that have these ids, and the classes as they are called.

    ``bags`` is one id a row. ``proportions`` says for each id which shares the classes have:

    - a mapping from ids, or a pandas series: to one number a class, to the share of the second of two classes, or to a
      mapping from classes to shares;
    - a frame with one column a class (of two classes one is enough), with the ids in the column that is called like
      ``bags`` or ``"bag"``, or in the index;
    - ``Bags``, which without ``bags`` are taken as they are;
    - an array, in sorted order of the ids.

    Whole numbers that do not sum to 1 are taken as counts. A bag of ``proportions`` that has no row here is left out.
    ``classes`` says which classes there are, in which order; where they have other names, columns are taken in order.

    >>> bags_over(["a", "b", "a"], {"a": 0.5, "b": 1}, num_rows=3)[0].proportions
    array([[0.5, 0.5],
           [0. , 1. ]])
    >>> bags_over([7, 7], {7: {"good": 0.5, "bad": 0.5}}, num_rows=2)[1]
    ['good', 'bad']
    """
    if unlabelled not in (None, "keep", "drop"):
        raise LLPError(f"unlabelled must be 'keep' or 'drop', not {unlabelled!r}")
    if isinstance(proportions, Bags) and bags is None:
        if len(proportions.bag_of) != num_rows:
            raise LLPError(f"the bags are over {len(proportions.bag_of)} rows and X has {num_rows}")
        _, order, classes = _choose(_class_labels(proportions), classes)
        return _called(proportions, order, classes), classes
    if bags is None:
        raise LLPError("proportions say nothing without the bag of each row: give one bag id a row, as y or bags")
    ids = ids_of_rows(bags)
    if len(ids) != num_rows:
        raise LLPError(f"there are {len(ids)} bag ids for the {num_rows} rows of X")
    table = _parse(proportions, ids, getattr(bags, "name", None))
    texts, keys = [_text(bag) for bag in ids], [_text(bag) for bag in table[0]]
    distinct = {bag for bag in (*ids, *table[0]) if _text(bag) is not None}
    if len({_text(bag) for bag in distinct}) < len(distinct):
        raise LLPError("two bag ids look the same, such as 7 and '7': make all of them numbers, or all of them strings")
    _check_rows(ids, texts, table[0], set(keys), unlabelled)

    without = np.array([text is None for text in texts])
    known = np.array([text for text in texts if text is not None], dtype=object)
    if isinstance(table[1], dict):
        found, order, classes = _from_columns(known, keys, table[1], classes, unlabelled)
    else:
        found, order, classes = _from_shares(known, keys, table[1], classes, unlabelled)
    return _called(over_all_rows(found, without) if without.any() else found, order, classes), classes


def _from_columns(
    ids: np.ndarray, keys: list[Any], columns: Columns, classes: Sequence[Any] | None, unlabelled: Unlabelled
) -> tuple[Bags, list[int], list[Any]]:
    labels = [label for label in columns if str(label) != SIZE or label in (classes or ())]
    chosen, order, classes = _choose(labels, classes)
    texts = {str(label): values for label, values in columns.items()}
    if len(texts) < len(columns):
        raise LLPError(f"{NAME}: two classes have the same name: {', '.join(map(str, columns))}")
    table = Table.of({ID: np.array(keys, dtype=object), **texts}, NAME)
    found, _ = read_bags(
        table,
        ids,
        [ID],
        class_columns=chosen,
        values="proportions" if len(chosen) == 1 and _is_share(texts[chosen[0]]) else None,
        unlabelled=unlabelled,
        need_rows=False,
        rows=Table.of({ID: ids}, "X"),
    )
    return found, order, classes


def _from_shares(
    ids: np.ndarray, keys: list[Any], shares: list[Any], classes: Sequence[Any] | None, unlabelled: Unlabelled
) -> tuple[Bags, list[int], list[Any]]:
    here = set(ids)
    table = {key: _both(key, row) for key, row in zip(keys, shares, strict=True) if key in here}
    values: Literal["counts", "proportions"] = "counts" if _are_counts(list(table.values())) else "proportions"
    found = Bags.from_table(ids.tolist(), table, values=values, unlabelled=unlabelled)
    if classes is None:
        classes = range(found.num_classes)
    if len(classes) != found.num_classes:
        raise LLPError(f"{NAME} has {found.num_classes} classes and not the {len(classes)} that there are")
    return found, list(range(len(classes))), list(classes)


def _both(bag: str, shares: Any) -> Any:
    """Of a single share, those of both classes."""
    if np.ndim(shares) == 1 and len(shares) == 1:
        shares = shares[0]
    if np.ndim(shares) or isinstance(shares, str):
        return shares
    if not 0 <= shares <= 1 and shares == shares:  # NaN is told later
        raise LLPError(f"bag {bag!r}: the share {shares:g} of the second class is not between 0 and 1")
    return [1 - shares, shares]


def _parse(proportions: Any, ids: list[Any], name: Any) -> tuple[list[Any], Columns | list[Any]]:
    """The ids that something is known of, and the shares of their classes: by class, or else by bag."""
    if isinstance(proportions, Bags):
        known = proportions.is_labelled
        columns = dict(zip(_class_labels(proportions), proportions.proportions[known].T, strict=True))
        return proportions.bag_ids[known].tolist(), columns
    if is_frame(proportions):
        return _parse_frame(proportions, name)
    if hasattr(proportions, "items"):  # a mapping, or a series of pandas
        table = dict(proportions.items())
        if len(table) < len(proportions):
            raise LLPError(f"{NAME}: a bag is there more than once ({len(proportions)} rows, {len(table)} bags)")
        if not any(isinstance(row, Mapping) for row in table.values()):
            return list(table), list(table.values())
        for bag, row in table.items():
            if not isinstance(row, Mapping):
                raise LLPError(f"bag {bag!r} has {row!r}, and other bags a mapping from classes to shares")
        labels = dict.fromkeys(label for row in table.values() for label in row)
        return list(table), {label: [row.get(label, 0) for row in table.values()] for label in labels}
    return _parse_array(proportions, ids)


def _parse_frame(frame: Any, name: Any) -> tuple[list[Any], Columns]:
    labels = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    column = next((label for label in (name, "bag") if label is not None and label in labels), None)
    if column is None and not hasattr(frame, "index"):
        raise LLPError(
            f"{NAME}: none of the columns {', '.join(map(str, labels))} is known to have the bags' ids: call it 'bag', "
            "or give the bag of each row as a column of the same name"
        )
    ids = _as_list(frame.index if column is None else frame[column])
    return ids, {label: frame[label] for label in labels if label != column}


def _parse_array(array: Any, ids: list[Any]) -> tuple[list[Any], list[Any]]:
    rows, num_rows = _as_list(array), len(ids)
    once = sorted_ids(bag for bag in ids if _text(bag) is not None)
    advice = "give a mapping from each bag's id to its proportions"
    if len(rows) == num_rows and (len(once) < num_rows or ids != once):  # or it may have been
        raise LLPError(
            f"{NAME}: an array with one row for each row of X, as cross-validation cuts it, does not say which of the "
            f"{len(once)} bags is which: {advice}"
        )
    if len(rows) != len(once):
        raise LLPError(f"{NAME}: an array of {len(rows)} rows for {len(once)} bags: {advice}")
    try:
        return sorted(once), rows
    except TypeError:
        raise LLPError(f"{NAME}: an array is in sorted order of the bags' ids, and these have none: {advice}") from None


def _choose(labels: list[Any], classes: Sequence[Any] | None) -> tuple[list[str], list[int], list[Any]]:
    """The columns that are classes, the place of each class among them (or "not" the only one and it), the classes."""
    if classes is None:
        classes = [f"not {labels[0]}", labels[0]] if len(labels) == 1 else labels
    classes, names = list(classes), [str(label) for label in labels]
    chosen = [str(c) for c in classes if str(c) in names]
    if not chosen and (len(names) == len(classes) or (len(names) == 1 and len(classes) == 2)):
        return names, list(range(len(classes))), classes
    if len(chosen) == 1 and len(classes) == 2:
        return chosen, [0, 1] if chosen[0] == str(classes[1]) else [1, 0], classes
    for c in classes:
        if str(c) not in chosen:
            raise LLPError(f"{NAME}: nothing is said of class {c!r} (there are {', '.join(names)})")
    return chosen, list(range(len(classes))), classes


def _called(bags: Bags, order: list[int], classes: Sequence[Any]) -> Bags:
    """The same bags with the classes in this order and by these names."""
    return replace(bags, proportions=bags.proportions[:, order], class_names=tuple(str(c) for c in classes))


def _class_labels(bags: Bags) -> list[Any]:
    """Whole numbers for classes that never got a name."""
    numbers = range(bags.num_classes)
    return list(numbers) if bags.class_names == tuple(map(str, numbers)) else list(bags.class_names)


def _check_rows(ids: list[Any], texts: list[Any], known: list[Any], keys: set[Any], unlabelled: Unlabelled) -> None:
    missing = [row for row, text in enumerate(texts) if text not in keys]
    if not missing or unlabelled is not None:
        return
    row = missing[0]
    if texts[row] is None:
        what = f"row {row} has no bag id"
    else:
        example = f", whose bags are such as {known[0]!r}" if known else ""
        num_bags = len({texts[row] for row in missing})
        what = f"row {row} is in bag {ids[row]!r}, which is not in {NAME}{example} ({num_bags} such bags in all)"
    raise LLPError(f"{what}: correct it, or say unlabelled='keep' or unlabelled='drop'")


def _text(bag: Any) -> str | None:
    """An id as text; None for one that is missing."""
    if isinstance(bag, str):
        return bag
    if isinstance(bag, float | np.floating) and bag == bag and float(bag).is_integer():
        bag = int(bag)  # as pandas has whole numbers beside missing ones
    text = repr(bag.item() if isinstance(bag, np.generic) else bag)
    return None if text in ("None", "nan", "NaT", "<NA>") else text


def _as_list(values: Any) -> list[Any]:
    for name in ("tolist", "to_list", "to_pylist"):  # arrays and tensors, polars, Arrow
        if hasattr(values, name):
            return getattr(values, name)()
    return list(values)


def _is_share(values: Any) -> bool:
    """Whether these numbers can be shares: 0 and 1 are."""
    try:
        return bool((np.asarray(values, dtype=np.float64) <= 1).all())
    except (TypeError, ValueError):
        return False


def _are_counts(rows: list[Any]) -> bool:
    try:
        numbers = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):  # told where they are read
        return False
    is_whole = bool((numbers == np.rint(numbers)).all())
    return is_whole and numbers.ndim == 2 and bool((np.abs(numbers.sum(1) - 1) > SUM_TOLERANCE).any())
