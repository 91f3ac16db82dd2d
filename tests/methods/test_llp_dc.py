from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from methods.problems import random_bags
from methods.tester import MethodTester
from torchllp import create_method
from torchllp.functional import whole_counts


class TestLLPDC(MethodTester):
    name = "llp-dc"
    variants: ClassVar = [{}, {"threshold": 0.2, "instance_weight": 2.0}, {"bag_term": "gaussian", "threshold": 0.0}]
    bag_loss_alone: ClassVar = {"instance_weight": 0.0}
    test_j_runs_on_a_gpu_without_waiting_for_it = None  # labels are assigned on the CPU


@pytest.mark.parametrize("sizes", [[1, 7, 30], [600, 3]])
def test_labels_meet_the_counts_exactly(sizes: list[int]) -> None:
    batch = random_bags(sizes, 5)
    labels = create_method("llp-dc")(nn.Identity(), batch)["pseudo_labels"]
    for bag, size in enumerate(sizes):
        counts = torch.bincount(labels[batch.bag_index == bag], minlength=5).numpy()
        assert np.array_equal(counts, whole_counts(batch.proportions[bag].numpy(), size))
