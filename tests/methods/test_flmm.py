from typing import ClassVar

import pytest
import torch
from torch import nn

from methods.tester import MethodTester
from torchllp import BagBatch, create_method
from torchllp.errors import LLPError


class TestFLMm(MethodTester):
    name = "flmm"
    variants: ClassVar = [
        {"entropy_weight": 0.5, "label_weight": 0.5},  # the defaults hardly show
        {},
        {"entropy_weight": 0.1, "label_weight": 2.0, "support": 0.2, "bag_weighting": "size"},
    ]
    bag_loss_alone: ClassVar = {"entropy_weight": 0.0, "label_weight": 0.0}


def batch_of(predicted: list[int], proportions: list[float]) -> BagBatch:
    return BagBatch(
        weak=5 * torch.eye(len(proportions))[predicted],
        bag_index=torch.zeros(len(predicted), dtype=torch.long),
        proportions=torch.tensor([proportions]),
    )


def test_a_label_counts_where_the_bag_has_its_class_and_enough_are_predicted_so() -> None:
    predicted = [0] * 150 + [1] * 9 + [2] * 8 + [3] * 133
    proportions = [0.5, 0.05, 0.42, 0.03]
    trust = create_method("flmm")(nn.Identity(), batch_of(predicted, proportions))["trust"]
    assert trust[:150].all()  # of half of the bag, and predicted for half of it
    assert trust[150:159].all()  # 9 of 300 are just the 3 % that are asked for
    assert not trust[159:167].any()  # 8 are less
    assert not trust[167:].any()  # the bag has no more than 3 % of that class


def test_unlabelled_bags_support_no_label() -> None:
    batch = batch_of([0, 1], [0.0, 0.0])
    batch.is_labelled[:] = False
    assert not create_method("flmm", support=0.0)(nn.Identity(), batch)["trust"].any()


@pytest.mark.parametrize(
    "numbers", [{"entropy_weight": -1}, {"label_weight": -1}, {"support": 1.0}, {"bag_weighting": "sizes"}]
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("flmm", **numbers)
