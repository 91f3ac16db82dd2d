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
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from torchllp.errors import LLPError
from torchllp.files import write_atomically
from torchllp.noise import Noise, NoiseKind, exact_scale
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
        proportions: each bag's class shares, ``[B, C]``; zeros in the rows of bags that are not labelled. Of uncertain
            bags they are the best guess: reports brought to between 0 and 1 and rescaled to sum 1, what is left over
            spread evenly over the classes that were not observed.
        is_labelled: whether a bag's proportions are known, ``[B]``.
        class_names: one name a class.
        reported: the counts as they were reported, ``[B, C]``, NaN for a class that was not observed; with noise they
            may be negative, above the bag's size, and sum to anything. None where all is known exactly.
        noise: how they differ from the true counts; None if they do not.
    """

    bag_of: np.ndarray
    bag_ids: np.ndarray
    proportions: np.ndarray
    is_labelled: np.ndarray
    class_names: tuple[str, ...]
    reported: np.ndarray | None = None
    noise: Noise | None = None

    def __post_init__(self) -> None:
        for name in ("bag_of", "bag_ids", "proportions", "is_labelled", "reported"):
            if getattr(self, name) is None:
                continue
            array = np.array(getattr(self, name))  # a copy: the caller's own array stays as it is
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        num_bags, num_classes = len(self.bag_ids), len(self.class_names)
        if num_classes < 2:
            raise LLPError(f"there must be at least two classes, not {num_classes}")
        if len(set(self.class_names)) < num_classes:
            raise LLPError(f"two classes have the same name: {', '.join(self.class_names)}")
        if num_bags == 0:
            raise LLPError("there is no bag")
        if self.proportions.shape != (num_bags, num_classes) or self.is_labelled.shape != (num_bags,):
            raise LLPError(
                f"{num_bags} bags of {num_classes} classes need proportions of shape {(num_bags, num_classes)}, "
                f"not {self.proportions.shape}, and as many values of is_labelled, not {self.is_labelled.shape}"
            )
        if (self.proportions[~self.is_labelled] != 0).any():
            raise LLPError("the proportions of a bag that is not labelled must be zeros: they would be learnt")
        if not ((self.bag_of >= -1) & (self.bag_of < num_bags)).all():
            raise LLPError(f"bag_of must be from 0 to {num_bags - 1}, or -1 for an instance in no bag")
        for bag in self.bag_ids[self.sizes == 0][:1]:
            raise LLPError(f"bag {_show(bag)} is in the bag table but has no row")
        known = self.is_labelled
        for row, c in np.argwhere(np.isnan(self.proportions[known]))[:1]:
            raise LLPError(f"bag {_show(self.bag_ids[known][row])}: class {self.class_names[c]!r} is nan")
        _as_proportions(self.proportions[known], self.bag_ids[known], self.class_names, totals=None, normalize=False)
        if self.noise is not None and (self.reported is None or self.noise.scale.shape != (num_bags,)):
            raise LLPError(
                f"noise is of reported counts, to be given with it, and has a scale for each of {num_bags} bags"
            )
        if self.reported is not None:
            if self.reported.shape != (num_bags, num_classes):
                raise LLPError(f"reported must be of shape {(num_bags, num_classes)}, not {self.reported.shape}")
            noise = None if self.noise is None else self.noise.select(known)
            _check_reports(self.reported[known], self.sizes[known], noise, self.bag_ids[known], self.class_names)

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
        noise: NoiseKind | None = None,
        noise_scale: float | Mapping[BagId, float] | None = None,
    ) -> "Bags":
        """Bags from one bag id an instance and a table that gives each bag's proportions, or counts, of the classes.

        Args:
            bag_ids: one id an instance, all ints or all strings.
            table: bag id -> one number a class; NaN for one that was not observed. A bag of which no class was is like
                one that is not in the table.
            values: whether the table's numbers are proportions (each row sums to 1) or counts (each row sums to the
                number of the bag's instances).
            class_names: one name a class; ``"0"``, ``"1"``, ... if left out.
            normalize: rescale rows that do not sum to what they should, instead of refusing them.
            unlabelled: what to do with instances whose bag is not in the table: ``"keep"`` them as bags of unknown
                proportions, ``"drop"`` them from all bags; refused unless one is said.
            noise: the kind of the numbers' :class:`Noise`, if they are not exact; they may then sum to anything.
            noise_scale: its scale, for all bags or as a mapping from their ids. A standard deviation or a step is in
                the unit of the table: instances, or shares.

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
        is_labelled = (rows >= 0) & ~np.isnan(numbers[rows]).all(1)
        if not is_labelled.all() and unlabelled is None:
            missing = known[~is_labelled]
            where = "not in the bag table" if (rows < 0).any() else "without any class that was observed"
            raise LLPError(
                f"{len(missing)} of the rows' bags are {where} (first: {_show(missing[0])}): "
                "say unlabelled 'keep' or 'drop'"
            )
        for bag in position.keys() - set(known.tolist()):
            raise LLPError(f"bag {_show(bag)} is in the bag table but has no row")
        if unlabelled == "drop":
            new_row = np.where(is_labelled, np.cumsum(is_labelled) - 1, -1)
            bag_of, known, rows = new_row[bag_of], known[is_labelled], rows[is_labelled]
            is_labelled = is_labelled[is_labelled]
        sizes = np.bincount(bag_of[bag_of >= 0], minlength=len(known))
        scale = _scale_of(noise, noise_scale, known, is_labelled)
        if noise is not None and noise != "laplace" and values == "proportions":
            scale = scale * sizes
        reporting = None if noise is None else Noise(noise, scale)
        shares = np.full((len(known), len(names)), math.nan)
        shares[is_labelled] = numbers[rows[is_labelled]] / (sizes[is_labelled, None] if values == "counts" else 1)
        is_exact = is_labelled if reporting is None else is_labelled & reporting.is_exact
        shares[is_exact] = _as_proportions(
            numbers[rows[is_exact]],
            known[is_exact],
            names,
            totals=sizes[is_exact] if values == "counts" else None,
            normalize=normalize,
        )
        uncertain = reporting is not None or np.isnan(shares[is_labelled]).any()
        reported, is_noisy = shares * sizes[:, None], is_labelled & ~is_exact
        if values == "counts":
            reported[is_noisy] = numbers[rows[is_noisy]]  # to the last digit
        return cls(
            bag_of=bag_of,
            bag_ids=known,
            proportions=_on_simplex(shares) * is_labelled[:, None] if uncertain else np.nan_to_num(shares),
            is_labelled=is_labelled,
            class_names=names,
            reported=reported if uncertain else None,
            noise=reporting,
        )

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
        noise = "" if self.noise is None else f", {self.noise.kind} noise"
        lacking = "" if self.observed.all() else ", some not observed"
        return (
            f"Bags({len(self)} bags of {self.size_range} instances{known}, {len(self.members)} instances, "
            f"{self.num_classes} classes{lacking}{noise})"
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

    @cached_property
    def observed(self) -> np.ndarray:
        """Whether something was reported of a class in a bag, ``[B, C]``; in bags that are not labelled it is True."""
        if self.reported is None:
            return np.ones(self.proportions.shape, dtype=bool)
        return ~np.isnan(self.reported) | ~self.is_labelled[:, None]

    def need_all_observed(self, who: str) -> None:
        """Raise unless every class was observed in every labelled bag, as ``who`` needs it."""
        for row, c in np.argwhere(~self.observed)[:1]:
            raise LLPError(
                f"{who} needs the share of every class, and class {self.class_names[c]!r} was not observed in bag "
                f"{_show(self.bag_ids[row])}"
            )

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
            reported=None if self.reported is None else self.reported[bags],
            noise=None if self.noise is None else self.noise.select(bags),
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

    def with_labels(self, labels: np.ndarray) -> "Bags":
        """These bags, and what is known of single instances: ``labels [N]`` are their classes, -1 where unknown.

        An instance with a label becomes a bag of its own, of which the proportions are the label: the loss of a bag of
        one is the supervised one. The bag that it was in keeps the other instances, and the counts that are left.

        >>> bags = Bags.from_labels(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0]))
        >>> more = bags.with_labels(np.array([0, -1, -1, 1, 0]))
        >>> more.bag_of, more.proportions
        (array([1, 0, 0, 2, 3]), array([[0.5, 0.5],
               [1. , 0. ],
               [0. , 1. ],
               [1. , 0. ]]))
        """
        labels = np.asarray(labels)
        if labels.shape != self.bag_of.shape or not np.issubdtype(labels.dtype, np.integer):
            raise LLPError(f"labels must be one whole number for each of {len(self.bag_of)} instances, -1 if unknown")
        if (labels >= self.num_classes).any():
            raise LLPError(f"label {labels.max()} has no name: there are {self.num_classes} classes")
        single = np.flatnonzero(labels >= 0)
        inside = single[self.bag_of[single] >= 0]
        taken = np.zeros(self.proportions.shape)
        np.add.at(taken, (self.bag_of[inside], labels[inside]), 1)
        sizes = self.sizes - taken.sum(1)
        left = np.where(self.is_labelled[:, None], (self.counts if self.reported is None else self.reported) - taken, 0)
        is_exact = self.is_labelled if self.noise is None else self.is_labelled & self.noise.is_exact
        for row, c in np.argwhere((left <= -0.5) & is_exact[:, None])[:1]:  # half an instance: shares may be rounded
            raise LLPError(
                f"bag {_show(self.bag_ids[row])}: {taken[row, c]:.0f} of its instances are labelled "
                f"{self.class_names[c]!r}, and {left[row, c] + taken[row, c]:g} are of that class"
            )
        left[is_exact] = left[is_exact].clip(min=0)
        whole = is_exact & ~np.isnan(left).any(1)
        left[whole] *= (sizes / left.sum(1).clip(min=1e-9))[whole, None]  # rounded shares leave a little more, or less
        rest = np.flatnonzero(sizes > 0)
        bag_of = np.full(len(self) + 1, -1)  # the last place serves the -1 of instances in no bag
        bag_of[rest] = np.arange(len(rest))
        bag_of = bag_of[self.bag_of]
        bag_of[single] = len(rest) + np.arange(len(single))
        of_single = np.eye(self.num_classes)[labels[single]]
        shares = _on_simplex(left[rest] / sizes[rest, None]) * self.is_labelled[rest, None]
        if self.bag_ids.dtype.kind == "i":
            ids = self.bag_ids.max() + 1 + np.arange(len(single))
        else:
            ids = np.array([f"instance {i}" for i in single], dtype=np.str_)
        noise = self.noise
        if noise is not None:
            scale = np.concatenate([noise.scale[rest], np.full(len(single), exact_scale(noise.kind))])
            noise = Noise(noise.kind, scale)
        return Bags(
            bag_of=bag_of,
            bag_ids=np.concatenate([self.bag_ids[rest], ids]),
            proportions=np.concatenate([shares, of_single]),
            is_labelled=np.concatenate([self.is_labelled[rest], np.ones(len(single), dtype=bool)]),
            class_names=self.class_names,
            reported=None if self.reported is None else np.concatenate([left[rest], of_single]),
            noise=noise,
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all that these bags say; equal exactly when they say the same."""
        ids = self.bag_ids.tolist()
        digest = hashlib.sha256(json.dumps([ids, self.class_names]).encode())
        for array, dtype in ((self.bag_of, "<i8"), (self.proportions, "<f8"), (self.is_labelled, "|b1")):
            digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
        if self.reported is not None:
            digest.update(np.where(np.isnan(self.reported), math.nan, self.reported).astype("<f8").tobytes())
        if self.noise is not None:
            digest.update(self.noise.kind.encode() + self.noise.scale.astype("<f8").tobytes())
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """These bags as an ``.npz`` file without pickled objects."""
        buffer, uncertain = io.BytesIO(), {}
        if self.reported is not None:
            uncertain["reported"] = self.reported
        if self.noise is not None:
            uncertain |= {"noise": np.array(self.noise.kind), "noise_scale": self.noise.scale}
        np.savez_compressed(
            buffer,
            format_version=np.array(2 if uncertain else 1),  # 1: what was written before there were reports
            bag_of=self.bag_of,
            bag_ids=self.bag_ids,
            proportions=self.proportions,
            is_labelled=self.is_labelled,
            class_names=np.array(self.class_names),
            **uncertain,
        )
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write these bags to ``path`` (.npz)."""
        write_atomically(Path(path), self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Bags":
        """Read bags that :meth:`save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                content: dict[str, Any] = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise LLPError(f"{path}: not a bags file ({error})") from error
        if content.pop("format_version", None) not in (1, 2):
            raise LLPError(f"{path}: not a bags file of format 1 or 2")
        content["class_names"] = tuple(content["class_names"].tolist())
        if "noise" in content:
            content["noise"] = Noise(content["noise"].item(), content.pop("noise_scale"))
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
        for bag, row in table.items():
            for value in row:
                if not isinstance(value, Real):
                    raise LLPError(f"bag {_show(bag)} has {value!r} in the bag table, which is no number") from None
        raise LLPError(f"the bag table holds something that is not a number ({error})") from error


def _scale_of(
    kind: NoiseKind | None, scale: float | Mapping[BagId, float] | None, bags: np.ndarray, is_labelled: np.ndarray
) -> np.ndarray:
    """The noise scale of each bag, ``[B]``; bags that are not labelled need none."""
    if (kind is None) != (scale is None):
        said, missing = ("noise_scale", "noise") if kind is None else ("noise", "noise_scale")
        raise LLPError(f"{said} is given without {missing}: the kind and the scale of the noise are said together")
    scales = np.full(len(bags), 0.0 if kind is None else exact_scale(kind))
    if isinstance(scale, Mapping):
        for bag in bags[is_labelled]:
            if bag.item() not in scale:
                raise LLPError(f"bag {_show(bag)} has no noise_scale")
        scale = [scale[bag.item()] for bag in bags[is_labelled]]  # pyrefly: ignore[bad-assignment]
    if scale is not None:
        try:
            scales[is_labelled] = scale
        except (TypeError, ValueError) as error:
            raise LLPError(f"noise_scale must be a number, or one a bag ({error})") from error
    return scales


def _as_proportions(
    numbers: np.ndarray, bag_ids: np.ndarray, names: Sequence[str], totals: np.ndarray | None, normalize: bool
) -> np.ndarray:
    """Rows that sum to 1, or the first row that does not allow it as an error. ``totals`` is given for counts.

    A row with NaN sums to 1 at most, and is not rescaled.
    """
    for wrong, word in ((np.isinf(numbers), "infinite"), (numbers < 0, "negative")):
        for row, c in np.argwhere(wrong)[:1]:
            raise LLPError(f"bag {_show(bag_ids[row])}: class {names[c]!r} is {numbers[row, c]:g}: {word}")
    sums, is_whole = np.nansum(numbers, 1), ~np.isnan(numbers).any(1)
    for row in np.flatnonzero(is_whole & (sums == 0))[:1]:
        raise LLPError(f"bag {_show(bag_ids[row])}: the classes sum to 0")
    expected = np.ones(len(numbers)) if totals is None else totals.astype(np.float64)
    off = np.abs(sums - expected) > SUM_TOLERANCE * expected
    for row in np.flatnonzero(off & ~is_whole & (sums > expected))[:1]:
        most = "1" if totals is None else f"the bag's {totals[row]} rows"
        raise LLPError(f"bag {_show(bag_ids[row])}: the observed classes sum to {sums[row]:g}, more than {most}")
    for row in np.flatnonzero(off & is_whole)[:1] if not normalize else ():
        should = "1" if totals is None else f"the bag's {totals[row]} rows"
        are_percentages = np.allclose(sums[is_whole], 100, rtol=SUM_TOLERANCE)
        advice = "divide percentages by 100, or say normalize=True" if are_percentages else "say normalize=True"
        raise LLPError(
            f"bag {_show(bag_ids[row])}: the classes sum to {sums[row]:g} instead of {should} "
            f"(tolerance {SUM_TOLERANCE:g}): {advice} to rescale"
        )
    return numbers / np.where(is_whole, sums, np.maximum(sums, expected))[:, None]


def _on_simplex(shares: np.ndarray) -> np.ndarray:
    """Rows of any numbers as rows that sum to 1; NaN has an even part of what the others leave over.

    >>> _on_simplex(np.array([[0.5, -0.1, 0.7], [0.6, math.nan, math.nan]]))
    array([[0.41666667, 0.        , 0.58333333],
           [0.6       , 0.2       , 0.2       ]])
    """
    observed = ~np.isnan(shares)
    shares = np.where(observed, shares, 0).clip(0, 1)
    rest = (1 - shares.sum(1)).clip(min=0) / (~observed).sum(1).clip(min=1)
    shares = np.where(observed, shares, rest[:, None])
    sums = shares.sum(1, keepdims=True)
    return np.where(sums > 0, shares / np.where(sums > 0, sums, 1), 1 / shares.shape[1])


def _check_reports(
    reported: np.ndarray, sizes: np.ndarray, noise: Noise | None, bag_ids: np.ndarray, names: Sequence[str]
) -> None:
    """Raise at the first bag whose reports no true counts could have."""
    observed, sizes = ~np.isnan(reported), sizes[:, None]
    for row in np.flatnonzero(~observed.any(1))[:1]:
        raise LLPError(f"bag {_show(bag_ids[row])}: is labelled, and none of its classes was observed")
    for row, c in np.argwhere(np.isinf(reported))[:1]:
        raise LLPError(f"bag {_show(bag_ids[row])}: class {names[c]!r} is {reported[row, c]:g}: infinite")
    is_exact = np.ones(len(reported), dtype=bool) if noise is None else noise.is_exact
    _as_proportions(reported[is_exact], bag_ids[is_exact], names, totals=sizes[is_exact, 0], normalize=False)
    if noise is None or noise.kind != "rounding":
        return
    least, most = noise.counts_rounded_to(reported, sizes)
    for row, c in np.argwhere((least > most) & ~is_exact[:, None])[:1]:
        raise LLPError(
            f"bag {_show(bag_ids[row])}: class {names[c]!r} is {reported[row, c]:g}, to which none of 0 to "
            f"{sizes[row, 0]} rounds by steps of {noise.scale[row]:g}"
        )
    too_many = np.nansum(least, 1) > sizes[:, 0]
    too_few = observed.all(1) & (np.nansum(most, 1) < sizes[:, 0])
    for row in np.flatnonzero((too_many | too_few) & ~is_exact)[:1]:
        raise LLPError(
            f"bag {_show(bag_ids[row])}: no counts that round to its numbers by steps of {noise.scale[row]:g} sum to "
            f"the bag's {sizes[row, 0]} rows"
        )
