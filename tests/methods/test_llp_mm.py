from typing import ClassVar

import torch

from methods.problems import random_bags
from methods.tester import MethodTester, loss_and_gradients
from torchllp import create_method


class TestLLPMM(MethodTester):
    name = "llp-mm"
    variants: ClassVar = [{}, {"order": 3}, {"order": 1, "bag_weighting": "size"}]


def test_one_moment_is_the_mean() -> None:
    batch = random_bags([5, 1, 9], 4)
    for one, two in zip(
        loss_and_gradients(create_method("llp-mm", order=1), batch),
        loss_and_gradients(create_method("dllp"), batch),
        strict=True,
    ):
        torch.testing.assert_close(one, two)
