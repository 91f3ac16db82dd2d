"""What these bags can teach, before any training."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import binom

from torchllp.bags import Bags

RARE = 0.01
"""A class with a smaller share is called rare."""
NEARLY = 0.95
"""A class in as many of the bags is almost never absent."""
ILL_CONDITIONED = 1000.0
"""A larger condition number of the proportions is called large; the bound is our choice, not a measured one."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its value, and what it means for training, in a sentence."""

    subject: str
    value: str
    meaning: str
    level: Literal["fine", "note", "warning"] = "fine"


def check_bags(bags: Bags, inputs: np.ndarray | None = None) -> list[Finding]:
    """All findings; those about identical instances only where the ``inputs [N, ...]`` are given.

    >>> labels = np.arange(100) % 2
    >>> [f.subject for f in check_bags(Bags.random(labels, bag_size=5, seed=0)) if f.level == "warning"]
    []
    """
    findings = list(_sizes(bags))
    if bags.is_labelled.any():
        findings += [*_classes(bags), *_information(bags)]
    return findings + list(_duplicates(bags, inputs)) if inputs is not None else findings


def _sizes(bags: Bags) -> Iterator[Finding]:
    known = int(bags.is_labelled.sum())
    few = known < bags.num_classes
    meaning = (
        "fewer bags than classes cannot tell the classes apart"
        if few
        else "each bag is one observation: more and smaller bags teach more than few large ones"
    )
    yield Finding("labelled bags", f"{known:,}", meaning, "warning" if few else "fine")
    middle = f"median {np.median(bags.sizes):g}"
    yield Finding(
        "instances a bag", f"{bags.size_range}, {middle}", "the larger a bag, the less it says of one instance"
    )
    if known < len(bags):
        share = bags.sizes[~bags.is_labelled].sum() / bags.sizes.sum()
        yield Finding(
            "bags without proportions", f"{len(bags) - known:,}", f"{share:.1%} of the instances have no bag-level loss"
        )
    lacking = int((~bags.observed).any(1).sum())
    if lacking:
        meaning = "what they leave over is known of these classes together only"
        yield Finding("bags with a class that was not observed", f"{lacking:,}", meaning)
    if bags.noise is not None:
        noisy = ~bags.noise.is_exact & bags.is_labelled
        low, high = bags.noise.scale[noisy].min(initial=np.inf), bags.noise.scale[noisy].max(initial=0)
        value = f"{bags.noise.kind}, scale {low:g}" + (f" to {high:g}" if high > low else "")
        meaning = f"in {noisy.sum():,} bags: bag_term=count sums over all counts that may be behind a report"
        yield Finding("noise of the counts", value if noisy.any() else "none", meaning)
    left = int((bags.bag_of < 0).sum())
    if left:
        yield Finding("instances in no bag", f"{left:,}", "they are not trained on")


def _classes(bags: Bags) -> Iterator[Finding]:
    shares = bags.class_shares
    low, high = shares.argmin(), shares.argmax()
    names = bags.class_names
    missing = [names[c] for c in np.flatnonzero(shares == 0)]
    if missing:
        yield Finding("classes without any mass", ", ".join(missing), "they will never be predicted", "warning")
    rare = [names[c] for c in np.flatnonzero((shares > 0) & (shares < RARE))]
    if rare:
        meaning = (
            f"below {RARE:.0%} of the instances: the likeliest class of an instance will hardly ever be one of these"
        )
        yield Finding("rare classes", ", ".join(rare), meaning, "warning")
    value = f"{shares[low]:.1%} ({names[low]}) to {shares[high]:.1%} ({names[high]})"
    balanced = shares[high] <= 2 * shares[low]
    if balanced:
        yield Finding("class shares", value, "balanced")
    else:
        yield Finding("class shares", value, "not balanced: compare accuracy with the largest share", "note")
    present = (bags.proportions[bags.is_labelled] > 0).mean(0)
    always, nearly = int((present == 1).sum()), int((present >= NEARLY).sum())
    yield Finding(
        f"classes in {NEARLY:.0%} of the bags",
        f"{nearly} of {bags.num_classes}, {always} of them in every bag",
        "absent classes rule pseudo-labels out; a class that is never absent is never ruled out",
    )


def _information(bags: Bags) -> Iterator[Finding]:
    proportions, sizes = bags.proportions[bags.is_labelled], bags.sizes[bags.is_labelled]
    shares = bags.class_shares
    spread = np.abs(proportions - shares).sum(1).mean() / 2
    if spread < 1e-9:
        meaning = "all bags have the same proportions: nothing distinguishes the classes"
        yield Finding("spread of the proportions", "0", meaning, "warning")
    else:
        distinct, number = np.unique(sizes, return_counts=True)
        at_random = np.average([_spread_at_random(size, shares) for size in distinct], weights=number)
        ratio = spread / at_random
        meaning = (
            "as in bags of random instances: what a bag teaches shrinks as it grows"
            if ratio < 1.5
            else "more than in bags of random instances: large bags teach as well"
        )
        yield Finding("spread of the proportions", f"{spread:.3f} ({ratio:.1f} x random)", meaning)

    values = np.linalg.svd(proportions, compute_uv=False)
    rank = int((values > values[0] * max(proportions.shape) * np.finfo(np.float64).eps).sum())
    if rank < np.count_nonzero(shares):
        meaning = "some classes always come in the same mixture: no method can tell them apart by their bags"
        yield Finding("rank of the proportions", f"{rank} of {bags.num_classes}", meaning, "warning")
        return
    meaning = "the bags can tell all classes apart that they have"
    yield Finding("rank of the proportions", f"{rank} of {bags.num_classes}", meaning)
    condition = values[0] / values[rank - 1]
    large = condition > ILL_CONDITIONED
    meaning = (
        "some classes nearly always come in the same mixture" if large else "no mixture of classes is nearly constant"
    )
    yield Finding("condition of the proportions", f"{condition:.3g}", meaning, "warning" if large else "fine")


def _spread_at_random(size: int, shares: np.ndarray) -> float:
    """The mean spread of bags of so many random instances: half the sum of the classes' mean absolute deviations.

    That of a binomial count is ``2 k (1 - p) Pr[k]`` with ``k`` the first whole number above its mean (De Moivre).
    """
    k = np.floor(size * shares) + 1
    deviation = 2 * k * (1 - shares) * binom.pmf(k, size, shares)
    return float(deviation.sum() / size / 2)


def _duplicates(bags: Bags, inputs: np.ndarray) -> Iterator[Finding]:
    rows = np.flatnonzero(bags.bag_of >= 0)
    # by their digests, in the order of the file: the inputs may be a memory map that is larger than memory
    digests = (hashlib.blake2b(inputs[row].tobytes(), digest_size=16).digest() for row in rows)
    _, group, size = np.unique(np.fromiter(digests, "S16", len(rows)), return_inverse=True, return_counts=True)
    in_bag = np.unique([group, bags.bag_of[rows]], axis=1)[0]
    copies, across = size[size > 1], (np.bincount(in_bag) > 1).sum()
    if not len(copies):
        yield Finding("identical instances", "none", "every instance is its own")
        return
    yield Finding(
        "identical instances",
        f"{copies.sum():,} in {len(copies):,} groups",
        f"{across:,} groups are in several bags: what is held out may have been trained on",
        "warning" if across else "fine",
    )
