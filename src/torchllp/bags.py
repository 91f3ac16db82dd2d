"""Bags: who is in which bag and what is known of each bag. The one validated form of supervision."""

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from torchllp.errors import LLPError
from torchllp.randomness import seed_of

SUM_TOLERANCE = 1e-3
"""How far a bag's proportions may be from summing to 1 (they are then rescaled); more needs ``normalize=True``."""

BagId = int | str


@dataclass(frozen=True, kw_only=True, eq=False)
class Bags:
    """Disjoint bags over the rows of a data set, and the class proportions of each.

    Make one with :meth:`from_table` (your own bags) or :meth:`random` (the paper's bag generation).

    Attributes:
        bag_of: for each instance the row of its bag below, ``[N]``; -1 for an instance that is in no bag.
        bag_ids: each bag's id as the user knows it, ``[B]``.
        proportions: each bag's class shares, ``[B, C]``; zeros in the rows of bags that are not labelled. NaN is
            the place of a class that was not observed, and is refused so far.
        is_labelled: whether a bag's proportions are known, ``[B]``.
        class_names: one name a class.
        noise: the place of each bag's reporting noise (standard deviation of its counts), ``[B]``; refused so far.
    """

    bag_of: np.ndarray
    bag_ids: np.ndarray
    proportions: np.ndarray
    is_labelled: np.ndarray
    class_names: tuple[str, ...]
    noise: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("bag_of", "bag_ids", "proportions", "is_labelled"):
            array = np.array(getattr(self, name))  # a copy: the caller's own array stays as it is
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        num_bags, num_classes = len(self.bag_ids), len(self.class_names)
        if num_classes < 2:
            raise LLPError(f"there must be at least two classes, not {num_classes}")
        if len(set(self.class_names)) < num_classes:
            raise LLPError(f"two classes have the same name: {', '.join(self.class_names)}")
        if self.noise is not None:
            raise LLPError("noise of the bags' reported counts is not supported yet: leave `noise` out")
        if num_bags == 0:
            raise LLPError("there is no bag")
        if self.proportions.shape != (num_bags, num_classes) or self.is_labelled.shape != (num_bags,):
            raise LLPError(
                f"{num_bags} bags of {num_classes} classes need proportions of shape {(num_bags, num_classes)}, "
                f"not {self.proportions.shape}, and as many values of is_labelled, not {self.is_labelled.shape}"
            )
        if not ((self.bag_of >= -1) & (self.bag_of < num_bags)).all():
            raise LLPError(f"bag_of must be from 0 to {num_bags - 1}, or -1 for an instance in no bag")
        for bag in self.bag_ids[self.sizes == 0][:1]:
            raise LLPError(f"bag {_show(bag)} is in the bag table but has no row")
        known = self.is_labelled
        _as_proportions(self.proportions[known], self.bag_ids[known], self.class_names, totals=None, normalize=False)

    @classmethod
    def from_table(
        cls,
        bag_ids: Iterable[BagId],
        table: Mapping[BagId, Sequence[float]],
        *,
        values: Literal["proportions", "counts"] = "proportions",
        class_names: Sequence[str] | None = None,
        normalize: bool = False,
        unlabelled: Literal["keep", "drop"] | None = None,
    ) -> "Bags":
        """Bags from one bag id an instance and a table that gives each bag's proportions, or counts, of the classes.

        Args:
            bag_ids: one id an instance, all ints or all strings.
            table: bag id -> one number a class.
            values: whether the table's numbers are proportions (each row sums to 1) or counts (each row sums to the
                number of the bag's instances).
            class_names: one name a class; ``"0"``, ``"1"``, ... if left out.
            normalize: rescale rows that do not sum to what they should, instead of refusing them.
            unlabelled: what to do with instances whose bag is not in the table: ``"keep"`` them as bags of unknown
                proportions, ``"drop"`` them from all bags; refused unless one is said.

        >>> bags = Bags.from_table(["a", "b", "a"], {"a": [0.5, 0.5], "b": [0, 1]}, class_names=["good", "bad"])
        >>> bags
        Bags(2 bags of 1 to 2 instances, 3 instances, 2 classes)
        >>> bags.counts
        array([[1., 1.],
               [0., 1.]])
        """
        if not isinstance(table, Mapping):
            raise LLPError(
                f"the bag table must map each bag's id to one number a class, not be a {type(table).__name__}"
            )
        if unlabelled not in (None, "keep", "drop"):
            raise LLPError(f"unlabelled must be 'keep' or 'drop', not {unlabelled!r}")
        if values not in ("proportions", "counts"):
            raise LLPError(f"values must be 'proportions' or 'counts', not {values!r}")
        ids = _as_ids(bag_ids)
        in_table = _as_ids(table)
        if ids.dtype.kind != in_table.dtype.kind:
            raise LLPError(
                f"bag ids are {_kind(ids)} in the rows and {_kind(in_table)} in the bag table "
                f"(row 0 has {_show(ids[0])}, the table {_show(in_table[0])})"
            )
        numbers = _as_matrix(table)
        names = tuple(class_names) if class_names is not None else tuple(str(c) for c in range(numbers.shape[1]))
        if len(names) != numbers.shape[1]:
            raise LLPError(f"{len(names)} class names were given for the {numbers.shape[1]} classes of the bag table")

        known, bag_of = np.unique(ids, return_inverse=True)
        position = {bag: row for row, bag in enumerate(in_table.tolist())}
        rows = np.array([position.get(bag, -1) for bag in known.tolist()])
        is_labelled = rows >= 0
        if not is_labelled.all() and unlabelled is None:
            missing = known[~is_labelled]
            raise LLPError(
                f"{len(missing)} of the rows' bags are not in the bag table (first: {_show(missing[0])}): "
                "say unlabelled 'keep' or 'drop'"
            )
        for bag in position.keys() - set(known.tolist()):
            raise LLPError(f"bag {_show(bag)} is in the bag table but has no row")
        if unlabelled == "drop":
            new_row = np.where(is_labelled, np.cumsum(is_labelled) - 1, -1)
            bag_of, known, rows = new_row[bag_of], known[is_labelled], rows[is_labelled]
            is_labelled = is_labelled[is_labelled]
        sizes = np.bincount(bag_of[bag_of >= 0], minlength=len(known))
        proportions = np.zeros((len(known), len(names)))
        proportions[is_labelled] = _as_proportions(
            numbers[rows[is_labelled]],
            known[is_labelled],
            names,
            totals=sizes[is_labelled] if values == "counts" else None,
            normalize=normalize,
        )
        return cls(bag_of=bag_of, bag_ids=known, proportions=proportions, is_labelled=is_labelled, class_names=names)

    @classmethod
    def from_labels(
        cls,
        bag_of: np.ndarray,
        labels: np.ndarray,
        *,
        class_names: Sequence[str] | None = None,
        bag_ids: np.ndarray | None = None,
    ) -> "Bags":
        """Bags whose proportions are counted from labels, for experiments; the other arguments are attributes.

        >>> Bags.from_labels(np.array([0, 0, 1, -1]), np.array([0, 1, 1, 0])).proportions
        array([[0.5, 0.5],
               [0. , 1. ]])
        """
        bag_of, labels = np.asarray(bag_of), np.asarray(labels)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or (labels < 0).any():
            raise LLPError("labels must be one whole number, 0 or above, an instance")
        if class_names is None:
            class_names = [str(c) for c in range(int(labels.max()) + 1)]
        if labels.max() >= len(class_names):
            raise LLPError(f"label {labels.max()} has no name: there are {len(class_names)} class names")
        num_bags = int(bag_of.max()) + 1
        members = np.flatnonzero(bag_of >= 0)
        counts = np.zeros((num_bags, len(class_names)))
        np.add.at(counts, (bag_of[members], labels[members]), 1)
        return cls(
            bag_of=bag_of,
            bag_ids=np.arange(num_bags) if bag_ids is None else bag_ids,
            proportions=counts / counts.sum(1, keepdims=True).clip(min=1),
            is_labelled=np.ones(num_bags, dtype=bool),
            class_names=tuple(class_names),
        )

    @classmethod
    def unlabelled(cls, num_instances: int, *, class_names: Sequence[str] = ("0", "1")) -> "Bags":
        """Every instance a bag of its own of which nothing is known: for methods that learn without any labels.

        >>> Bags.unlabelled(3)
        Bags(3 bags of 1 instances, 3 unlabelled, 3 instances, 2 classes)
        """
        everyone = np.arange(num_instances)
        return cls(
            bag_of=everyone,
            bag_ids=everyone,
            proportions=np.zeros((num_instances, len(class_names))),
            is_labelled=np.zeros(num_instances, dtype=bool),
            class_names=tuple(class_names),
        )

    @classmethod
    def random(
        cls, labels: np.ndarray, bag_size: int, seed: int, *, class_names: Sequence[str] | None = None
    ) -> "Bags":
        """The paper's bag generation: ``N // bag_size`` disjoint bags of random instances, drawn once a seed.

        The ``N % bag_size`` instances that are left over are in no bag.

        >>> Bags.random(np.array([0, 1, 1, 0, 1]), bag_size=2, seed=0)
        Bags(2 bags of 2 instances, 4 instances, 2 classes)
        """
        labels = np.asarray(labels)
        if not 1 <= bag_size <= len(labels):
            raise LLPError(f"bag_size must be between 1 and the number of instances, {len(labels)}, not {bag_size}")
        num_bags = len(labels) // bag_size
        members = np.random.default_rng(seed_of("bags", seed)).permutation(len(labels))[: num_bags * bag_size]
        bag_of = np.full(len(labels), -1)
        bag_of[members] = np.arange(num_bags).repeat(bag_size)
        return cls.from_labels(bag_of, labels, class_names=class_names)

    def __repr__(self) -> str:
        known = "" if self.is_labelled.all() else f", {(~self.is_labelled).sum()} unlabelled"
        return (
            f"Bags({len(self)} bags of {self.size_range} instances{known}, {len(self.members)} instances, "
            f"{self.num_classes} classes)"
        )

    def __len__(self) -> int:
        return len(self.bag_ids)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of instances of each bag, ``[B]``."""
        return np.bincount(self.bag_of[self.bag_of >= 0], minlength=len(self))

    @property
    def size_range(self) -> str:
        """The bags' size in words, such as ``16`` or ``5 to 35``."""
        low, high = self.sizes.min(), self.sizes.max()
        return f"{low}" if low == high else f"{low} to {high}"

    @property
    def class_shares(self) -> np.ndarray:
        """Share of each class among the instances of all labelled bags, ``[C]``."""
        return self.counts.sum(0) / self.sizes[self.is_labelled].sum()

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of instances of each class in each bag, ``[B, C]``; need not be whole."""
        return self.proportions * self.sizes[:, None]

    @cached_property
    def members(self) -> np.ndarray:
        """The instances that are in a bag, bag by bag."""
        order = np.argsort(self.bag_of, kind="stable")
        return order[np.count_nonzero(self.bag_of < 0) :]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def members_of(self, bags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The instances of some bags (rows of this object), and for each instance its bag's place in ``bags``.

        >>> bags = Bags.from_table(["a", "b", "a"], {"a": [0.5, 0.5], "b": [0, 1]})
        >>> bags.members_of(np.array([1, 0]))
        (array([1, 0, 2]), array([0, 1, 1]))
        """
        sizes = self.sizes[bags]
        index = np.repeat(np.arange(len(bags)), sizes)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.members[self._starts[bags][index] + within], index

    def select(self, bags: np.ndarray) -> "Bags":
        """These bags (rows of this object) alone, over the same instances; all others are then in no bag."""
        new_row = np.full(len(self) + 1, -1)  # the last place serves the -1 of instances in no bag
        new_row[bags] = np.arange(len(bags))
        return Bags(
            bag_of=new_row[self.bag_of],
            bag_ids=self.bag_ids[bags],
            proportions=self.proportions[bags],
            is_labelled=self.is_labelled[bags],
            class_names=self.class_names,
        )

    def hold_out(self, num_bags: int, seed: int) -> tuple["Bags", "Bags | None"]:
        """Training bags and ``num_bags`` random labelled bags held out to choose a model by; None for 0 bags.

        >>> train, held_out = Bags.random(np.arange(100) % 2, bag_size=4, seed=0).hold_out(3, seed=0)
        >>> len(train), len(held_out)
        (22, 3)
        """
        if num_bags == 0:
            return self, None
        labelled = np.flatnonzero(self.is_labelled)
        if not 0 < num_bags < len(labelled):
            raise LLPError(f"{num_bags} bags cannot be held out of {len(labelled)} labelled bags")
        held_out = np.sort(np.random.default_rng(seed_of("held out", seed)).permutation(labelled)[:num_bags])
        return self.select(np.setdiff1d(np.arange(len(self)), held_out)), self.select(held_out)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all that these bags say; equal exactly when they say the same."""
        ids = self.bag_ids.tolist()
        digest = hashlib.sha256(json.dumps([ids, self.class_names]).encode())
        for array, dtype in ((self.bag_of, "<i8"), (self.proportions, "<f8"), (self.is_labelled, "|b1")):
            digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """These bags as an ``.npz`` file without pickled objects."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            format_version=np.array(1),
            bag_of=self.bag_of,
            bag_ids=self.bag_ids,
            proportions=self.proportions,
            is_labelled=self.is_labelled,
            class_names=np.array(self.class_names),
        )
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write these bags to ``path`` (.npz)."""
        with open(path, "wb") as file:
            file.write(self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Bags":
        """Read bags that :meth:`save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                content: dict[str, Any] = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise LLPError(f"{path}: not a bags file ({error})") from error
        if content.pop("format_version", None) != 1:
            raise LLPError(f"{path}: not a bags file of format 1")
        content["class_names"] = tuple(content["class_names"].tolist())
        return cls(**content)


def default_held_out(num_bags: int) -> int:
    """How many of so many labelled bags to hold out where nothing is said: the larger of 10 % and 3, none below 20.

    >>> [default_held_out(n) for n in (19, 20, 89)]
    [0, 3, 9]
    """
    return max(3, round(0.1 * num_bags)) if num_bags >= 20 else 0


def num_held_out(share: float | None, num_bags: int) -> int:
    """How many of so many labelled bags a share of them is, rounded up; None: :func:`default_held_out`.

    >>> num_held_out(0.07, 100)
    7
    """
    # less a little: 0.07 x 100 is 7.000000000000001
    return default_held_out(num_bags) if share is None else math.ceil(share * num_bags - 1e-9)


def _show(bag_id: object) -> str:
    return repr(bag_id.item() if isinstance(bag_id, np.generic) else bag_id)


def _kind(ids: np.ndarray) -> str:
    return "whole numbers" if ids.dtype.kind == "i" else "strings"


def _as_ids(values: Iterable[BagId]) -> np.ndarray:
    """Bag ids as an int64 or a string array; anything else is refused with the row that has it."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and len(values) and values.dtype.kind == "i":
        return values.astype(np.int64)
    ids = values.tolist() if hasattr(values, "tolist") else list(values)  # arrays, tensors and frames' columns
    if not ids:
        raise LLPError("there is no row, or no bag in the bag table")
    kind = str if isinstance(ids[0], str) else int
    for row, bag in enumerate(ids):
        if isinstance(bag, list | tuple | set | frozenset):
            raise LLPError(f"row {row} is in several bags ({bag!r}): an instance belongs to one bag")
        if isinstance(bag, bool | np.bool_) or not isinstance(bag, str | int | np.integer):
            raise LLPError(f"row {row} has the bag id {bag!r}: bag ids are whole numbers or strings")
        if isinstance(bag, str) != (kind is str):
            raise LLPError(f"row {row} has the bag id {bag!r} and row 0 {ids[0]!r}: ids are all numbers or all strings")
        if (isinstance(bag, str) and "\0" in bag) or (not isinstance(bag, str) and not -(2**63) <= bag < 2**63):
            raise LLPError(f"row {row} has the bag id {bag!r}, which is too large or has a NUL character")
    return np.array(ids, dtype=np.int64 if kind is int else np.str_)


def _as_matrix(table: Mapping[BagId, Sequence[float]]) -> np.ndarray:
    width = None
    for bag, row in table.items():
        if not hasattr(row, "__len__") or isinstance(row, str):
            raise LLPError(f"bag {_show(bag)} has {row!r} in the bag table: give one number a class")
        width = len(row) if width is None else width
        if len(row) != width:
            raise LLPError(f"bag {_show(bag)} has {len(row)} numbers in the bag table and the first bag {width}")
    try:
        return np.array([list(row) for row in table.values()], dtype=np.float64).reshape(len(table), width or 0)
    except (TypeError, ValueError) as error:
        raise LLPError(f"the bag table holds something that is not a number ({error})") from error


def _as_proportions(
    numbers: np.ndarray, bag_ids: np.ndarray, names: Sequence[str], totals: np.ndarray | None, normalize: bool
) -> np.ndarray:
    """Rows that sum to 1, or the first row that does not allow it as an error. ``totals`` is given for counts."""
    for wrong, word in (
        (np.isnan(numbers), "NaN (a class that was not observed), which is not supported yet"),
        (np.isinf(numbers), "infinite"),
        (numbers < 0, "negative"),
    ):
        for row, c in np.argwhere(wrong)[:1]:
            raise LLPError(f"bag {_show(bag_ids[row])}: class {names[c]!r} is {numbers[row, c]:g}: {word}")
    sums = numbers.sum(1)
    for row in np.flatnonzero(sums == 0)[:1]:
        raise LLPError(f"bag {_show(bag_ids[row])}: the classes sum to 0")
    expected = np.ones(len(numbers)) if totals is None else totals.astype(np.float64)
    off = np.abs(sums - expected) > SUM_TOLERANCE * expected
    if off.any() and not normalize:
        row = np.flatnonzero(off)[0]
        should = "1" if totals is None else f"the bag's {totals[row]} rows"
        raise LLPError(
            f"bag {_show(bag_ids[row])}: the classes sum to {sums[row]:g} instead of {should} "
            f"(tolerance {SUM_TOLERANCE:g}): say normalize=True to rescale"
        )
    return numbers / sums[:, None]
