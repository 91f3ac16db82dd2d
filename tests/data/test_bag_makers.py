from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchllp import Bags, Dataset, Instances, LLPError, load_dataset
from torchllp.data import BAG_MAKERS
from torchllp.data.bag_makers import make_bags

DIGITS = load_dataset("digits")
LABELS = DIGITS.train.labels.numpy()  # pyrefly: ignore
INK = np.array([str(total) for total in DIGITS.train.inputs.sum((1, 2, 3)).tolist()], dtype=object)
"""A value of each instance, as text, like those of a table's column."""
SIZED = [name for name in BAG_MAKERS if name != "natural"]


@pytest.mark.parametrize("name", SIZED)
@settings(deadline=None, max_examples=10)
@given(smallest=st.integers(1, 60), more=st.integers(0, 60), seed=st.integers(0, 1000))
def test_bags_are_disjoint_of_the_sizes_asked_for_and_say_the_truth(name, smallest, more, seed) -> None:
    bags = make_bags(DIGITS, name, bag_size=smallest, largest=smallest + more, by=INK, seed=seed)
    assert bags.sizes.min() >= smallest and bags.sizes.max() <= smallest + more
    assert len(LABELS) - bags.sizes.sum() < smallest + more  # no further bag could be sure to fit
    for bag in (0, len(bags) - 1):
        truth = np.bincount(LABELS[bags.bag_of == bag], minlength=10) / bags.sizes[bag]
        np.testing.assert_allclose(bags.proportions[bag], truth)


@pytest.mark.parametrize("name", SIZED)
def test_bags_follow_the_seed(name: str) -> None:
    same, again, other = (make_bags(DIGITS, name, bag_size=16, by=INK, seed=seed).content_hash for seed in (1, 1, 2))
    assert same == again != other


def test_random_bags_are_the_papers() -> None:
    papers = Bags.random(LABELS, 16, 3, class_names=DIGITS.class_names)
    assert make_bags(DIGITS, "random", bag_size=16, seed=3).content_hash == papers.content_hash


def spread(bags: Bags) -> float:
    """How far the bags' proportions are from those of all, on average."""
    return float(np.abs(bags.proportions - bags.class_shares).sum(1).mean())


def test_other_bags_differ_more_than_random_ones() -> None:
    random = spread(make_bags(DIGITS, "random", bag_size=32, seed=0))
    few, many = (spread(make_bags(DIGITS, "dirichlet", bag_size=32, concentration=c, seed=0)) for c in (0.1, 1000))
    cluster = spread(make_bags(DIGITS, "cluster", bag_size=32, seed=0))
    assert many == pytest.approx(random, rel=0.25)
    assert few > 2 * random
    assert cluster > 2 * random


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "nature"}, "unknown way to make bags 'nature': did you mean 'natural'?"),
        ({"bag_size": 0, "largest": 4}, "not from 0 to 4"),
        ({"bag_size": 8, "largest": 4}, "not from 8 to 4"),
        ({"bag_size": 8, "largest": 10_000}, "up to the number of instances, 1437"),
        ({"name": "dirichlet", "concentration": 0.0}, "the concentration must be above 0, not 0.0"),
    ],
)
def test_what_cannot_be_made_is_refused(options, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        make_bags(DIGITS, **({"name": "random", "bag_size": 16, "seed": 0} | options))


def test_bags_need_labels() -> None:
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    for labels, message in ((None, "there are none"), (torch.tensor([0, 1, -1, 1]), "instance 2 has none")):
        data = Dataset.from_images("x", Instances(images, labels), class_names=["a", "b"])
        with pytest.raises(LLPError, match=message):
            make_bags(data, "random", bag_size=2, seed=0)


def rows(labels: list[int]) -> Dataset:
    """A data set without anything but labels."""
    return Dataset(
        name="rows",
        train=Instances(torch.zeros(len(labels), 1), torch.tensor(labels)),
        test=None,
        class_names=("a", "b", "c"),
    )


values = st.none() | st.integers(-20, 20).map(str)


@settings(deadline=None)
@given(st.lists(st.tuples(values, st.integers(0, 2)), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 9))
def test_values_in_a_bag_by_feature_are_next_to_each_other(pairs, size: int, seed: int) -> None:
    by = np.array([value for value, _ in pairs], dtype=object)
    there = [i for i, value in enumerate(by) if value is not None]
    if len(there) < size:
        with pytest.raises(LLPError, match=f"number of instances, {len(there)}, not from|no instance has a value"):
            make_bags(rows([label for _, label in pairs]), "by-feature", bag_size=size, by=by, seed=seed)
        return
    bags = make_bags(rows([label for _, label in pairs]), "by-feature", bag_size=size, by=by, seed=seed)
    assert (bags.sizes == size).all() and len(bags) == len(there) // size
    assert all(bags.bag_of[i] == -1 for i, value in enumerate(by) if value is None)
    ends = [[int(by[i]) for i in np.flatnonzero(bags.bag_of == bag)] for bag in range(len(bags))]
    assert all(max(one) <= min(following) for one, following in pairwise(ends))  # as numbers: -2 before 10


def test_texts_are_sorted_as_texts_and_equal_values_at_random() -> None:
    by = np.array(["b", "a", "10", "9", "b", "a"], dtype=object)
    bags = make_bags(rows([0, 1, 2, 0, 1, 2]), "by-feature", bag_size=2, by=by, seed=0)
    assert [set(by[bags.bag_of == bag]) for bag in range(3)] == [{"10", "9"}, {"a"}, {"b"}]
    alike = np.full(100, "x", dtype=object)
    one, other = (make_bags(rows([0, 1] * 50), "by-feature", bag_size=10, by=alike, seed=seed) for seed in (0, 1))
    assert one.bag_of.tolist() != other.bag_of.tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(values, st.integers(0, 2)), min_size=1, max_size=60))
def test_a_natural_bag_is_all_rows_of_one_value(pairs) -> None:
    by, labels = np.array([value for value, _ in pairs], dtype=object), np.array([label for _, label in pairs])
    if not any(value is not None for value in by):
        with pytest.raises(LLPError, match="rows: no instance has a value to make bags by"):
            make_bags(rows(labels.tolist()), "natural", by=by, seed=0)
        return
    bags = make_bags(rows(labels.tolist()), "natural", by=by, seed=0)
    assert set(bags.bag_ids.tolist()) == {value for value in by if value is not None}
    assert [None if bag < 0 else bags.bag_ids[bag] for bag in bags.bag_of] == by.tolist()
    for bag in range(len(bags)):
        truth = np.bincount(labels[bags.bag_of == bag], minlength=3) / bags.sizes[bag]
        np.testing.assert_allclose(bags.proportions[bag], truth)


@pytest.mark.parametrize("name", ["by-feature", "natural"])
@pytest.mark.parametrize(
    ("by", "message"),
    [
        (None, "rows: such bags are made by the values of a column: name it by --bag-column"),
        (np.array(["x", "y"], dtype=object), "rows: has 3 instances, and there are 2 values to make bags by"),
        (np.array([None] * 3, dtype=object), "rows: no instance has a value to make bags by"),
    ],
)
def test_bags_by_values_need_values(name: str, by: np.ndarray | None, message: str) -> None:
    with pytest.raises(LLPError, match=f"^{message}$"):
        make_bags(rows([0, 1, 2]), name, bag_size=1, by=by, seed=0)
