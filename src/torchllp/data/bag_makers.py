"""Bags made out of labelled data, for experiments: at random as in the paper, or more like bags in the wild."""

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA

from torchllp.bags import Bags
from torchllp.data import BAG_MAKERS
from torchllp.data.dataset import Dataset
from torchllp.errors import LLPError
from torchllp.randomness import seed_of
from torchllp.registry import unknown_name


def make_bags(
    data: Dataset,
    name: str,
    *,
    bag_size: int = 16,
    largest: int | None = None,
    concentration: float = 1.0,
    by: np.ndarray | None = None,
    seed: int,
) -> Bags:
    """Disjoint bags over the training instances of ``data``, with the proportions of their labels.

    Args:
        name: ``"random"``: instances at random, the paper's. ``"dirichlet"``: each bag has class shares of its own,
            drawn from a Dirichlet distribution around the data's. ``"cluster"``: similar instances share a bag.
            ``"by-feature"``: instances of similar values share a bag. ``"natural"``: those of the same value do,
            however many they are.
        by: these values, one an instance; an instance without one (None) is in no bag.
        bag_size: instances a bag; with ``largest``, sizes are uniform between the two.
        concentration: of the Dirichlet distribution; small makes bags of few classes, large makes them alike.
        seed: decides the bags.
    """
    if name not in BAG_MAKERS:
        raise unknown_name("way to make bags", name, BAG_MAKERS)
    if data.train.labels is None:
        raise LLPError(f"{data.name}: bags are made from labels, and there are none")
    labels = data.train.labels.cpu().numpy()
    if (labels < 0).any():
        raise LLPError(f"{data.name}: bags are made from labels, and instance {np.argmin(labels)} has none")
    if name == "random" and largest is None:
        return Bags.random(labels, bag_size, seed, class_names=data.class_names)
    bag_of = np.full(len(labels), -1)
    there, by = np.arange(len(labels)), np.array([]) if by is None else by
    if name in ("by-feature", "natural"):
        there = _with_value(data.name, by, len(labels))
    if name == "natural":
        ids, bag_of[there] = np.unique(by[there].astype(str), return_inverse=True)
        return Bags.from_labels(bag_of, labels, class_names=data.class_names, bag_ids=ids)
    generator = np.random.default_rng(seed_of(f"{name} bags", seed))
    sizes = _sizes(len(there), bag_size, largest or bag_size, generator)
    if name == "dirichlet":
        order = _by_shares(labels, sizes, len(data.class_names), concentration, generator)
    elif name == "cluster":
        order = _by_likeness(data.train.inputs.cpu().numpy(), int(sizes.mean()), generator)
    elif name == "by-feature":
        order = there[np.lexsort([generator.random(len(there)), _rank(by[there])])]
    else:
        order = generator.permutation(len(labels))
    bag_of[order[: sizes.sum()]] = np.arange(len(sizes)).repeat(sizes)
    return Bags.from_labels(bag_of, labels, class_names=data.class_names)


def _with_value(name: str, by: np.ndarray, num_instances: int) -> np.ndarray:
    """The instances that have a value to make bags by."""
    if not len(by):
        raise LLPError(f"{name}: such bags are made by the values of a column: name it by --bag-column")
    if len(by) != num_instances:
        raise LLPError(f"{name}: has {num_instances} instances, and there are {len(by)} values to make bags by")
    there = np.flatnonzero([value is not None for value in by])
    if not len(there):
        raise LLPError(f"{name}: no instance has a value to make bags by")
    return there


def _rank(values: np.ndarray) -> np.ndarray:
    """Sort keys: numbers as numbers, even if they are written as text."""
    try:
        return values.astype(np.float64)
    except ValueError:
        return np.unique(values.astype(str), return_inverse=True)[1]


def _sizes(num_instances: int, smallest: int, largest: int, generator: np.random.Generator) -> np.ndarray:
    """Sizes of as many whole bags as the instances are enough for."""
    if not 1 <= smallest <= largest <= num_instances:
        raise LLPError(
            f"bag sizes must go from 1 or more up to the number of instances, {num_instances}, "
            f"not from {smallest} to {largest}"
        )
    sizes = generator.integers(smallest, largest + 1, num_instances // smallest)
    return sizes[: np.searchsorted(np.cumsum(sizes), num_instances, side="right")]


def _by_shares(
    labels: np.ndarray, sizes: np.ndarray, num_classes: int, concentration: float, generator: np.random.Generator
) -> np.ndarray:
    """The instances bag by bag: each bag takes what it draws of each class, as long as there is some left."""
    if not concentration > 0:
        raise LLPError(f"the concentration must be above 0, not {concentration}")
    left = [list(generator.permutation(np.flatnonzero(labels == c))) for c in range(num_classes)]
    prior = np.bincount(labels, minlength=num_classes) / len(labels)
    present = prior > 0
    order: list[int] = []
    for size in sizes:
        shares = np.zeros(num_classes)
        shares[present] = generator.dirichlet(concentration * present.sum() * prior[present])
        wanted = generator.multinomial(size, shares / shares.sum())
        taken = np.minimum(wanted, [len(pool) for pool in left])
        while taken.sum() < size:  # a class that has run out is made up for by those of which most is left
            taken[np.argmax([len(pool) - n for pool, n in zip(left, taken, strict=True)])] += 1
        for pool, n in zip(left, taken, strict=True):
            order += [pool.pop() for _ in range(n)]
    return np.array(order)


def _by_likeness(inputs: np.ndarray, bag_size: int, generator: np.random.Generator) -> np.ndarray:
    """All instances, cluster by cluster, in random order within one; a cluster is a few bags large."""
    flat = inputs.reshape(len(inputs), -1).astype(np.float32)
    state = int(generator.integers(2**31))
    reduced = PCA(min(16, *flat.shape), svd_solver="randomized", random_state=state).fit_transform(flat)
    num_clusters = max(2, len(flat) // (4 * bag_size))
    cluster = MiniBatchKMeans(num_clusters, random_state=state, n_init=1, batch_size=4096).fit_predict(reduced)
    return np.lexsort([generator.random(len(flat)), cluster])
