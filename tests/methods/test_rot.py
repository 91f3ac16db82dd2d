from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from methods.problems import random_bags, with_unlabelled
from methods.tester import MethodTester, loss_and_gradients
from reference.bag_terms import rows_of_bags, softmax, transport_plans
from torchllp import BagBatch, create_method
from torchllp.errors import LLPError


def plan_of(batch: BagBatch, eps: float = 1.0, rounds: int = 25) -> Tensor:
    bags = rows_of_bags(batch.bag_index, len(batch.proportions))
    known = (batch.proportions.double(), batch.is_labelled.tolist())
    return transport_plans(softmax(batch.weak.double()), bags, *known, eps, rounds)


class TestROT(MethodTester):
    name = "rot"
    variants: ClassVar = [
        {},
        {"targets": "hard"},
        {"alpha": 0.2, "eps": 2.0, "rounds": 3, "bag_weighting": "size"},
    ]
    bag_loss_alone: ClassVar = {"alpha": 1.0}

    def frozen(self, batch: BagBatch, numbers: dict[str, Any]) -> dict[str, Any]:
        return {"frozen": plan_of(batch, numbers.get("eps", 1.0), numbers.get("rounds", 25))}


def test_pseudo_labels_are_those_of_the_plan() -> None:
    batch = random_bags([5, 9, 4], 3)
    parts = create_method("rot")(nn.Identity(), batch)
    assert torch.equal(parts["pseudo_labels"], plan_of(batch).argmax(1))
    assert parts["column_error"].shape == () and parts["column_error"] < 1


def test_a_class_that_is_absent_is_never_a_target() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 1.0], [9.0, 5.0, 0.0]])
    batch = BagBatch(
        weak=logits,
        strong=logits,
        bag_index=torch.zeros(3, dtype=torch.long),
        proportions=torch.tensor([[0.0, 1, 2]]) / 3,
    )
    parts = create_method("rot")(nn.Identity(), batch)
    assert parts["pseudo_labels"].tolist() == [2, 2, 1]
    assert parts["column_error"] < 1e-3


def test_instances_of_unlabelled_bags_are_left_out() -> None:
    batch = random_bags([4, 6, 3], 3)
    unlabelled = torch.tensor([False, True, False])
    _, weak, strong = loss_and_gradients(create_method("rot"), with_unlabelled(batch, unlabelled))
    outside = unlabelled[batch.bag_index]
    assert weak[outside].abs().max() == 0 and strong[outside].abs().max() == 0
    assert strong[~outside].abs().max() > 0


def test_a_batch_of_which_nothing_is_known_has_loss_zero() -> None:
    batch = with_unlabelled(random_bags([4, 3], 3), torch.tensor([True, True]))
    parts = create_method("rot")(nn.Identity(), batch)
    assert parts["loss"] == 0 and parts["column_error"] == 0


@pytest.mark.parametrize(
    "numbers",
    [
        {"alpha": 1.5},
        {"alpha": -0.1},
        {"targets": "softt"},
        {"eps": 0},
        {"rounds": 0},
        {"rounds": 2.5},
        {"bag_weighting": "sizes"},
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("rot", **numbers)
