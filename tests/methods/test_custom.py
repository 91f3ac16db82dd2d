"""Every piece, and mixes of them that are methods by other names."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from methods.problems import random_bags, with_unlabelled
from methods.tester import CountTermTester, MethodTester, loss_and_gradients
from torchllp import Bags, LLPError, create_method
from torchllp.methods.custom import PSEUDO_LABELS, WEIGHTS
from torchllp.methods.terms import BAG_TERMS


class TestCounts(CountTermTester):
    name = "custom"
    variants: ClassVar = [{}, {"weights": "bag"}, {"weights": "none", "bag_weighting": "size"}]
    bag_loss_alone: ClassVar = {"instance_weight": 0.0}
    test_a_equal_sizes = test_e_two_processes_have_the_gradient_of_one = None  # shown for dllp with this bag term


class TestGaussian(MethodTester):
    name = "custom"
    variants: ClassVar = [
        {"bag_term": "gaussian", "weights": "truncated-gaussian"},
        {"bag_term": "gaussian", "pseudo_labels": "transport-hard", "weights": "instance"},
        {"bag_term": "gaussian", "pseudo_labels": "none"},
    ]
    bag_loss_alone: ClassVar = {"bag_term": "gaussian", "instance_weight": 0.0}
    test_g_bags_of_one_are_supervision = None  # a quarter is added to the variance

    def test_a_quarter_more_variance_in_a_bag_of_one(self) -> None:
        batch = self.problem([1], 2)
        loss, _, _ = loss_and_gradients(self.create(self.bag_loss_alone, batch), batch)
        p = batch.weak.softmax(1)
        variance = p * (1 - p) + 0.25
        torch.testing.assert_close(loss, ((batch.proportions - p) ** 2 / (2 * variance) + variance.log() / 2).sum())


class TestMoments(MethodTester):
    name = "custom"
    variants: ClassVar = [
        {"bag_term": "moments", "weights": "threshold", "threshold": 0.4},
        {"bag_term": "moments", "order": 3, "pseudo_labels": "argmax"},
    ]
    bag_loss_alone: ClassVar = {"bag_term": "moments", "instance_weight": 0.0}


ROT = {"bag_term": "mean", "weights": "none", "instance_weight": 2 / 3}


@pytest.mark.parametrize(
    ("name", "numbers", "mix", "scale"),
    [
        ("ahil", {"beta_bag": 3.0}, {"bag_term": "mean", "beta_bag": 3.0}, 1.0),
        ("ahil", {"weigh_bags": False, "bag_term": "count"}, {"weights": "instance"}, 1.0),
        ("dllp", {"bag_term": "count"}, {"pseudo_labels": "none"}, 1.0),
        ("softmatch", {}, {"bag_term": "mean", "weights": "truncated-gaussian"}, 1.0),
        ("rot", {}, {**ROT, "pseudo_labels": "transport"}, 0.6),
        ("rot", {"targets": "hard"}, {**ROT, "pseudo_labels": "transport-hard"}, 0.6),
    ],
)
def test_published_methods_are_mixes(name: str, numbers: dict, mix: dict, scale: float) -> None:
    batch = with_unlabelled(random_bags([5, 1, 9, 4], 4), torch.tensor([False, False, True, False]))
    expected = loss_and_gradients(create_method(name, **numbers), batch)
    for one, two in zip(expected, loss_and_gradients(create_method("custom", **mix), batch), strict=True):
        torch.testing.assert_close(one, scale * two)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("pseudo_labels", PSEUDO_LABELS)
@pytest.mark.parametrize("bag_term", list(BAG_TERMS))
def test_any_mix_runs(bag_term: str, pseudo_labels: str, weights: str) -> None:
    batch = random_bags([5, 1, 9, 4], 4, dtype=torch.float32)
    method = create_method("custom", bag_term=bag_term, pseudo_labels=pseudo_labels, weights=weights)
    parts = method(nn.Identity(), batch)
    assert parts["loss"].isfinite()
    assert ("pseudo_labels" in parts) == (pseudo_labels != "none") == ("strong" in method.views)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"bag_term": "median"}, "unknown bag_term 'median'"),
        ({"pseudo_labels": "argmin"}, "did you mean 'argmax'"),
        ({"weights": "entropy"}, "did you mean 'dual-entropy'"),
        ({"order": 0}, "order must be a whole number of 1 or above"),
        ({"threshold": 1.0}, "threshold must be from 0 to below 1"),
        ({"eps": 0.0}, "eps must be above 0"),
        ({"beta_bag": -1.0}, "beta_bag must be above 0"),
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"instance_weight": -1.0}, "instance_weight must be 0 or above"),
    ],
)
def test_numbers_that_make_no_sense(numbers: dict, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        create_method("custom", **numbers)


@pytest.mark.parametrize("pseudo_labels", ["transport", "assignment"])
def test_labels_by_counts_need_all_counts(pseudo_labels: str) -> None:
    bags = Bags.from_table(["a", "a", "b"], {"a": [1, 1, 0], "b": [float("nan"), 0, 1]}, values="counts")
    with pytest.raises(LLPError, match=f"pseudo_labels={pseudo_labels} needs the share of every class"):
        create_method("custom", pseudo_labels=pseudo_labels).check(bags)
    create_method("custom").check(bags)
