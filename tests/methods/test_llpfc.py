import logging
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from methods.problems import bags_of, random_bags, started, with_unlabelled
from methods.tester import MethodTester, loss_and_gradients
from torchllp import BagBatch, Bags, LLPError, create_method
from torchllp.functional import simplex_least_squares
from torchllp.methods.llpfc import LLPFC


class TestLLPFC(MethodTester):
    name = "llpfc"
    variants: ClassVar = [{}, {"noisy_prior": "approx"}]

    def problem(self, sizes: list[int], num_classes: int, **others: Any) -> BagBatch:
        """The same sizes again until there are as many bags as classes."""
        return random_bags(sizes * -(-num_classes // len(sizes)), num_classes, **others)

    def create(self, numbers: dict[str, Any], batch: BagBatch) -> LLPFC:
        return started(create_method("llpfc", **numbers).to(batch.weak.dtype), batch)

    def reference(self, batch: BagBatch, numbers: dict[str, Any], **frozen: Any) -> Tensor:
        bags = bags_of(batch)
        groups = create_method("llpfc").groups(bags, epoch=0, seed=0)
        alphas = [simplex_least_squares(bags.proportions[group].T, bags.class_shares) for group in groups]
        pairs = [(group.tolist(), alpha.tolist()) for group, alpha in zip(groups, alphas, strict=True)]
        return super().reference(batch, numbers, groups=pairs)

    def test_g_bags_of_one_are_supervision(self) -> None:
        """A group that has each class once names the classes by its bags: T is a permutation, the loss supervision."""
        labels = torch.tensor([2, 0, 1, 3])
        batch = BagBatch(
            weak=torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
            strong=torch.zeros(4, 4, dtype=torch.float64),
            bag_index=torch.arange(4),
            proportions=torch.eye(4, dtype=torch.float64)[labels],
            bags=torch.arange(4),
        )
        for numbers in self.variants:
            method = self.create(numbers, batch)
            torch.testing.assert_close(method.log_row.exp(), batch.proportions)
            torch.testing.assert_close(method.weight, torch.ones_like(method.weight))
            loss, gradient, _ = loss_and_gradients(method, batch)
            weak = batch.weak.clone().requires_grad_()
            cross_entropy = nn.functional.cross_entropy(weak, labels)
            cross_entropy.backward()
            torch.testing.assert_close(loss, cross_entropy.detach())
            torch.testing.assert_close(gradient, weak.grad)
