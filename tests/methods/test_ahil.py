import math
from itertools import product
from typing import ClassVar

import pytest
import torch
from torch import nn

from methods.problems import random_bags
from methods.tester import CountTermTester, MethodTester
from torchllp import BagBatch, create_method
from torchllp.errors import LLPError


class TestAHIL(MethodTester):
    name = "ahil"
    variants: ClassVar = [
        {"instance_weight": 0.5, "beta_bag": 1.0, "beta_instance": 1.0},
        *({"weigh_bags": bags, "weigh_instances": instances} for bags, instances in product([True, False], repeat=2)),
        {"beta": "auto"},
        {"beta": "auto", "weigh_bags": False},
        {"instance_weight": 2.0, "beta_bag": 5.0, "beta_instance": 0.5, "bag_weighting": "size"},
    ]
    bag_loss_alone: ClassVar = {"instance_weight": 0.0}


class TestAHILByCounts(CountTermTester):
    name = "ahil"
    test_a_equal_sizes = test_e_two_processes_have_the_gradient_of_one = None  # slow, and shown for dllp's bag term
    variants: ClassVar = [{"bag_term": "count"}]
    bag_loss_alone: ClassVar = {"bag_term": "count", "instance_weight": 0.0}


def test_pseudo_labels_of_absent_classes_are_never_trusted() -> None:
    logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    batch = BagBatch(
        weak=logits, strong=logits, bag_index=torch.tensor([0, 0, 0]), proportions=torch.tensor([[0.0, 1.0]])
    )
    trust = create_method("ahil")(nn.Identity(), batch)["trust"]
    assert trust[:2].tolist() == [0.0, 0.0]
    # class 1 has all three, but its column is concentrated on one: H = 0 against log 3
    assert trust[2].item() == pytest.approx(math.exp(-(math.log(3) ** 2)), abs=0.02)
    without = create_method("ahil", weigh_bags=False)(nn.Identity(), batch)["trust"]
    assert (without > 0.9).all()


@pytest.mark.parametrize(("num_classes", "size"), [(2, 4), (10, 16), (100, 64)])
def test_automatic_betas_trust_equal_shares_of_the_largest_entropy_equally(num_classes: int, size: int) -> None:
    alike = torch.zeros(size, num_classes)
    proportions = torch.zeros(1, num_classes)
    proportions[0, 0] = 1
    batch = BagBatch(weak=alike, strong=alike, bag_index=torch.zeros(size, dtype=torch.long), proportions=proportions)
    trust = create_method("ahil", beta="auto")(nn.Identity(), batch)["trust"]
    # class 0 has all instances and its column is even, as it should be; the instances know nothing
    torch.testing.assert_close(trust, torch.full((size,), math.exp(-1 / 0.2)))


def test_no_gradient_flows_through_trust_or_pseudo_labels() -> None:
    batch = random_bags([4, 4], 3)
    weak = batch.weak.requires_grad_()
    parts = create_method("ahil")(nn.Identity(), batch)
    assert not parts["trust"].requires_grad
    bag_only = create_method("ahil", instance_weight=0.0)(nn.Identity(), batch)["loss"]
    (with_instances,) = torch.autograd.grad(parts["loss"], weak)
    (without,) = torch.autograd.grad(bag_only, weak)
    torch.testing.assert_close(with_instances, without)


@pytest.mark.parametrize(
    "numbers",
    [
        {"beta_bag": 0},
        {"beta_instance": -1.0},
        {"bag_weighting": "sizes"},
        {"beta": "automatic"},
        {"beta_bag": 5.0, "beta": "auto"},
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("ahil", **numbers)


def test_a_batch_without_a_strong_view_is_refused() -> None:
    batch = BagBatch(weak=torch.zeros(2, 2), bag_index=torch.tensor([0, 0]), proportions=torch.tensor([[0.5, 0.5]]))
    with pytest.raises(LLPError, match="no strong view"):
        create_method("ahil")(nn.Identity(), batch)
