from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from methods.problems import random_bags
from methods.tester import MethodTester
from methods.two_processes import gradients_of_two_processes
from reference.bag_terms import ConfidenceStatistics
from torchllp import BagBatch, create_method
from torchllp.errors import LLPError


class TestSoftMatch(MethodTester):
    name = "softmatch"
    variants: ClassVar = [
        {"ema_decay": 0.2},  # by default one step leaves every weight near 1
        {},
        {"instance_weight": 2.0, "ema_decay": 0.5, "n_sigma": 1.0, "bag_weighting": "size"},
        {"ema_decay": 0.2, "align": True},
    ]
    bag_loss_alone: ClassVar = {"instance_weight": 0.0}

    def test_e_two_processes_have_the_gradient_of_one_with_alignment(self) -> None:
        for one, two in gradients_of_two_processes(self.name, self.variants[-1], [1, 5, 2, 9]):
            assert "buffer method.weights.class_gain" in one
            for key in one:
                torch.testing.assert_close(two[key], one[key])


@pytest.mark.parametrize("align", [False, True])
def test_the_statistics_run_over_steps(align: bool) -> None:
    method = create_method("softmatch", ema_decay=0.5, align=align)
    plain = ConfidenceStatistics(4, 0.5)
    for step in range(12):
        batch = random_bags([3, 1 + step], 4, seed=step, dtype=torch.float32, scale=0.5 * step)
        trust = method(nn.Identity(), batch)["trust"]
        expected = plain.weights(batch.weak.double().softmax(1), 2.0, align)
        torch.testing.assert_close(trust.double(), expected, rtol=1e-5, atol=1e-6)
    assert method.weights.variance.item() == pytest.approx(plain.variance, rel=1e-5)
    assert method.weights.mean_gain.item() + 1 / 4 == pytest.approx(plain.mean, rel=1e-5)
    assert trust.min() < 0.9 and trust.max() == 1


def test_the_default_takes_the_step_in_before_it_weighs() -> None:
    batch = random_bags([4, 4], 5)
    method = create_method("softmatch")
    method(nn.Identity(), batch)
    largest = batch.weak.softmax(1).amax(1)
    assert method.weights.mean_gain.item() == pytest.approx(0.001 * (largest.mean().item() - 0.2), rel=1e-5)
    assert method.weights.variance.item() == pytest.approx(0.999 + 0.001 * largest.var().item(), rel=1e-6)


def test_a_step_of_one_instance_leaves_the_variance() -> None:
    batch = BagBatch(
        weak=torch.tensor([[2.0, 0.0]]),
        strong=torch.tensor([[1.0, 0.0]]),
        bag_index=torch.tensor([0]),
        proportions=torch.tensor([[1.0, 0.0]]),
    )
    method = create_method("softmatch")
    assert method(nn.Identity(), batch)["loss"].isfinite()
    assert method.weights.variance == 1 and method.weights.mean_gain > 0


def test_equal_certainty_is_trusted_however_small_the_variance() -> None:
    batch = random_bags([8], 3, dtype=torch.float32)
    batch = replace(batch, weak=100 * batch.weak)
    batch.weak[0] = 0.0  # one that is not certain at all
    method = create_method("softmatch")
    method.weights.variance.zero_()
    method.weights.mean_gain.fill_(1 - 1 / 3 + 1e-6)
    certain = replace(batch, weak=200 * nn.functional.one_hot(batch.weak.argmax(1), 3).float())
    assert (method(nn.Identity(), certain)["trust"] > 0.99).all()
    trust = method(nn.Identity(), batch)["trust"]
    assert trust[0] == 0 and trust[1:].max() > 0.99


def test_alignment_changes_trust_and_not_labels() -> None:
    """Class 0 is predicted much more often than class 1: alignment trusts class 1 more."""
    weak = torch.tensor([[2.0, 0.0]] * 9 + [[0.0, 1.0]])
    batch = BagBatch(
        weak=weak, strong=weak, bag_index=torch.zeros(10, dtype=torch.long), proportions=torch.tensor([[0.9, 0.1]])
    )
    plain = create_method("softmatch", ema_decay=0.01)(nn.Identity(), batch)
    aligned = create_method("softmatch", ema_decay=0.01, align=True)(nn.Identity(), batch)
    assert torch.equal(plain["pseudo_labels"], aligned["pseudo_labels"])
    assert plain["trust"][9] < 0.1 and aligned["trust"][9] == 1


def test_a_new_method_resumes_from_a_state_with_alignment() -> None:
    method, batch = create_method("softmatch", align=True), random_bags([4, 4], 3)
    fresh = create_method("softmatch", align=True)
    fresh.load_state_dict(method.state_dict())  # before the first step there is nothing to take over
    method(nn.Identity(), batch)
    fresh.load_state_dict(method.state_dict())
    assert torch.equal(fresh.weights.class_gain, method.weights.class_gain) and fresh.weights.class_gain.shape == (3,)
    assert torch.equal(fresh(nn.Identity(), batch)["trust"], method(nn.Identity(), batch)["trust"])


@pytest.mark.parametrize(
    "numbers",
    [{"instance_weight": -1}, {"ema_decay": 1.0}, {"ema_decay": 0}, {"n_sigma": 0}, {"bag_weighting": "sizes"}],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("softmatch", **numbers)
