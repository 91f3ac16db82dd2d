import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchllp import Bags, Dataset, Instances, LLPError, load_dataset
from torchllp.data.bag_makers import NAMES, make_bags

DIGITS = load_dataset("digits")
LABELS = DIGITS.train.labels.numpy()  # pyrefly: ignore


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=10)
@given(smallest=st.integers(1, 60), more=st.integers(0, 60), seed=st.integers(0, 1000))
def test_bags_are_disjoint_of_the_sizes_asked_for_and_say_the_truth(name, smallest, more, seed) -> None:
    bags = make_bags(DIGITS, name, bag_size=smallest, largest=smallest + more, seed=seed)
    assert bags.sizes.min() >= smallest and bags.sizes.max() <= smallest + more
    assert len(LABELS) - bags.sizes.sum() < smallest + more  # no further bag could be sure to fit
    for bag in (0, len(bags) - 1):
        truth = np.bincount(LABELS[bags.bag_of == bag], minlength=10) / bags.sizes[bag]
        np.testing.assert_allclose(bags.proportions[bag], truth)


@pytest.mark.parametrize("name", NAMES)
def test_bags_follow_the_seed(name: str) -> None:
    same, again, other = (make_bags(DIGITS, name, bag_size=16, seed=seed).content_hash for seed in (1, 1, 2))
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
        ({"name": "natural"}, "unknown way to make bags 'natural'"),
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
