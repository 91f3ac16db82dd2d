"""What is known of bags, in whatever form it is at hand, as Bags over rows that are given by their bags' ids."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from torchllp.bags import SUM_TOLERANCE, Bags
from torchllp.data.arrays import is_frame, unique_columns
from torchllp.data.bag_table import SIZE, over_all_rows
from torchllp.errors import LLPError
from torchllp.noise import NoiseKind

NAME = "proportions"
"""What they are called in messages."""
Unlabelled = Literal["keep", "drop"] | None


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
    normalize: bool = False,
    unlabelled: Unlabelled = None,
    noise: NoiseKind | None = None,
    noise_scale: float | Mapping[Any, float] | None = None,
) -> tuple[Bags, list[Any]]:
    """Bags over the rows that have these ids, and the classes as they are called.

    ``bags`` is one id a row. ``proportions`` says for each id which shares the classes have:

    - a mapping from ids, or a pandas series: to one number a class, to the share of the second of two classes, or to a
      mapping from classes to shares;
    - a frame with one column a class (of two classes one is enough), with the ids in the column that is called like
      ``bags`` or ``"bag"``, or in the index;
    - ``Bags``, which without ``bags`` are taken as they are;
    - an array, in sorted order of the ids.

    Whole numbers that do not sum to 1 are taken as counts, and with ``noise`` all numbers are. NaN is a class that was
    not observed. A bag of ``proportions`` that has no row here is left out.
    ``classes`` says which classes there are, in which order; where they have other names, columns are taken in order.
    ``normalize``, ``unlabelled``, ``noise`` and ``noise_scale`` are those of :meth:`Bags.from_table`.

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
        labels = _class_labels(proportions)
        chosen, _, classes = _choose(labels, classes)
        if not len(chosen) == len(classes) == len(labels):
            raise LLPError(
                f"the bags are of the classes {', '.join(map(str, labels))}, not {', '.join(map(str, classes))}"
            )
        return _called(proportions, [labels.index(label) for label in chosen], classes), classes
    if isinstance(proportions, Bags) and proportions.reported is not None:
        raise LLPError("bags with noise, or classes that were not observed, are taken as they are: leave bag ids out")
    if bags is None:
        raise LLPError("proportions say nothing without the bag of each row: give one bag id a row, as y or bags")
    ids = ids_of_rows(bags)
    if len(ids) != num_rows:
        raise LLPError(f"there are {len(ids)} bag ids for the {num_rows} rows of X")
    known, labels, rows = _parse(proportions, ids, getattr(bags, "name", None))
    texts, keys = [text_of_id(bag) for bag in ids], [text_of_id(bag) for bag in known]
    _check_alike(dict(zip([*ids, *known], [*texts, *keys], strict=True)))
    _check_rows(ids, texts, known, keys, unlabelled)

    names, order = None, None
    if labels is not None:
        labels = [label for label in labels if label != SIZE or label in (classes or ())]
        chosen, order, classes = _choose(labels, classes)
        rows = [[row[label] for label in chosen] for row in rows]
        names = [f"not {chosen[0]}", str(chosen[0])] if len(chosen) == 1 else [str(label) for label in chosen]
    sizes = Counter(texts)
    table, values = _table(dict(zip(keys, rows, strict=True)), sizes, is_noisy=noise is not None)
    if noise_scale is not None and hasattr(noise_scale, "items"):
        noise_scale = {text_of_id(bag): scale for bag, scale in noise_scale.items()}
    found = Bags.from_table(
        [text for text in texts if text is not None],
        {key: row for key, row in table.items() if key is not None and sizes[key]},
        values=values,
        class_names=names,
        normalize=normalize,
        unlabelled=unlabelled,
        noise=noise,
        noise_scale=noise_scale,
    )
    if classes is None:
        classes = range(found.num_classes)
    if len(classes) != found.num_classes:
        raise LLPError(f"{NAME} has {found.num_classes} classes and not the {len(classes)} that there are")
    if None in sizes:
        found = over_all_rows(found, np.array([text is None for text in texts]))
    return _called(found, order or range(len(classes)), classes), list(classes)


def _table(
    table: dict[Any, Any], sizes: Mapping[Any, int], *, is_noisy: bool
) -> tuple[dict[Any, Any], Literal["counts", "proportions"]]:
    """Bag -> one number a class, also where there is only that of the second of two, and what the numbers are.

    That is found out from all bags, also those without rows here, so that it is the same in every part of the rows.
    Noisy numbers are counts.
    """
    if not table or not all(np.ndim(row) == 0 or len(row) == 1 for row in table.values()):
        return table, "counts" if is_noisy or _are_counts(list(table.values())) else "proportions"
    singles = {bag: row if np.ndim(row) == 0 else row[0] for bag, row in table.items()}
    for bag, single in singles.items():
        if not isinstance(single, Real):
            raise LLPError(f"bag {bag!r} has {single!r} in {NAME}, which is no number")
    known = [single for single in singles.values() if single == single]
    are_counts = is_noisy or (all(single == single // 1 for single in known) and max(known, default=0) > 1)
    most = sizes if are_counts else dict.fromkeys(singles, 1)
    for bag, single in singles.items():
        if sizes[bag] and not is_noisy and (single < 0 or single > most[bag]):
            raise LLPError(f"bag {bag!r}: {single:g} of the second class is not from 0 to {most[bag]}")
    both = {bag: [most[bag] - single, single] for bag, single in singles.items()}
    return both, "counts" if are_counts else "proportions"


def _parse(proportions: Any, ids: list[Any], name: Any) -> tuple[list[Any], list[Any] | None, list[Any]]:
    """The ids that something is known of, the classes if they are named, and for each id what it is.

    That is a mapping from classes where these are named.
    """
    if isinstance(proportions, Bags):
        labels, known = _class_labels(proportions), proportions.is_labelled
        rows = [dict(zip(labels, row, strict=True)) for row in proportions.proportions[known]]
        return proportions.bag_ids[known].tolist(), labels, rows
    if is_frame(proportions):
        return _parse_frame(proportions, name)
    if not hasattr(proportions, "items"):
        if isinstance(proportions, str) or not isinstance(proportions, Iterable):
            raise LLPError(
                f"{NAME} must be a mapping from bag ids, a frame, Bags or an array with a row a bag, not "
                f"{proportions!r}"
            )
        known, rows = _parse_array(proportions, ids)
        return known, None, rows
    _check_once(list(proportions.keys()))
    table = dict(proportions.items())  # of a mapping, or of a series of pandas
    if not any(isinstance(row, Mapping) for row in table.values()):
        return list(table), None, list(table.values())
    for bag, row in table.items():
        if not isinstance(row, Mapping):
            raise LLPError(f"bag {bag!r} has {row!r}, and other bags a mapping from classes to shares")
    labels = list(dict.fromkeys(label for row in table.values() for label in row))
    return list(table), labels, [dict.fromkeys(labels, 0) | dict(row) for row in table.values()]


def _parse_frame(frame: Any, name: Any) -> tuple[list[Any], list[Any], list[Any]]:
    labels = unique_columns(frame, NAME)
    column = next((label for label in (name, "bag") if label is not None and label in labels), None)
    if column is None and not hasattr(frame, "index"):
        raise LLPError(
            f"{NAME}: none of the columns {', '.join(map(str, labels))} is known to have the bags' ids: call it 'bag', "
            "or give the bag of each row as a column of the same name"
        )
    ids = _as_list(frame.index if column is None else frame[column])
    labels = [label for label in labels if label != column]
    rows = zip(*(_as_list(frame[label]) for label in labels), strict=True)
    _check_once(ids)
    return ids, labels, [dict(zip(labels, row, strict=True)) for row in rows]


def _check_once(ids: list[Any]) -> None:
    for bag, times in Counter(ids).items():
        if times > 1:
            raise LLPError(f"{NAME}: bag {bag!r} is there {times} times")


def _parse_array(array: Any, ids: list[Any]) -> tuple[list[Any], list[Any]]:
    rows, num_rows = _as_list(array), len(ids)
    once = sorted_ids(bag for bag in ids if text_of_id(bag) is not None)
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


def _choose(labels: list[Any], classes: Sequence[Any] | None) -> tuple[list[Any], list[int], list[Any]]:
    """The labels that are classes, where each class is among them (of one: among "not" it and it), and the classes."""
    if classes is None:
        classes = [f"not {labels[0]}", labels[0]] if len(labels) == 1 else labels
    by_name = {str(label): label for label in labels}
    chosen = [by_name[str(c)] for c in classes if str(c) in by_name]
    if not chosen and (len(labels) == len(classes) or (len(labels) == 1 and len(classes) == 2)):
        chosen = labels  # by other names
    elif len(chosen) == 1 and len(classes) == 2:
        return chosen, [0, 1] if str(chosen[0]) == str(classes[1]) else [1, 0], list(classes)
    elif len(chosen) < len(classes):
        missing = next(c for c in classes if str(c) not in by_name)
        raise LLPError(f"{NAME}: nothing is said of class {missing!r} (there are {', '.join(by_name)})")
    return chosen, list(range(len(classes))), list(classes)


def _called(bags: Bags, order: Sequence[int], classes: Sequence[Any]) -> Bags:
    """The same bags with the classes in this order and by these names."""
    order = list(order)
    reported = None if bags.reported is None else bags.reported[:, order]
    names = tuple(str(c) for c in classes)
    return replace(bags, proportions=bags.proportions[:, order], reported=reported, class_names=names)


def _class_labels(bags: Bags) -> list[Any]:
    """Whole numbers for classes that never got a name."""
    numbers = range(bags.num_classes)
    return list(numbers) if bags.class_names == tuple(map(str, numbers)) else list(bags.class_names)


def _check_rows(ids: list[Any], texts: list[Any], known: list[Any], keys: list[Any], unlabelled: Unlabelled) -> None:
    there = set(keys)
    missing = [row for row, text in enumerate(texts) if text not in there]
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


def _check_alike(texts: Mapping[Any, str | None]) -> None:
    """Raise if two ids have the same text."""
    seen: dict[str, Any] = {}
    for bag, text in texts.items():
        if text is not None and seen.setdefault(text, bag) is not bag:
            raise LLPError(f"the bag ids {seen[text]!r} and {bag!r} look alike: make all of them numbers, or strings")


def text_of_id(bag: Any) -> str | None:
    """An id as text; None for one that is missing.

    >>> text_of_id(7.0), text_of_id((np.int64(7), "a")), text_of_id(float("nan"))
    ('7', "(7, 'a')", None)
    """
    if isinstance(bag, str):
        return bag
    text = repr(_plain_id(bag))
    return None if text in ("None", "nan", "NaT", "<NA>") else text


def _plain_id(bag: Any) -> Any:
    """Without the kinds of NumPy and pandas; whole numbers are ints, as pandas has floats beside missing ones."""
    if isinstance(bag, tuple):
        return tuple(_plain_id(part) for part in bag)
    if hasattr(bag, "to_pydatetime") and bag == bag:
        bag = bag.to_pydatetime()
    bag = bag.item() if isinstance(bag, np.generic) else bag
    return int(bag) if isinstance(bag, float) and bag.is_integer() else bag


def _as_list(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        values = values.astype("datetime64[us]")  # finer ones would be made numbers
    for name in ("tolist", "to_list", "to_pylist"):  # arrays and tensors, polars, Arrow
        if hasattr(values, name):
            return getattr(values, name)()
    return list(values)


def _are_counts(rows: list[Any]) -> bool:
    try:
        numbers = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):  # told where they are read
        return False
    is_whole = bool((np.isnan(numbers) | (numbers == np.rint(numbers))).all())
    if not is_whole or numbers.ndim != 2:
        return False
    excess = np.nansum(numbers, 1) - 1
    return bool((np.where(np.isnan(numbers).any(1), excess, np.abs(excess)) > SUM_TOLERANCE).any())
