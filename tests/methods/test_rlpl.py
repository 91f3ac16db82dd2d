from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from methods.problems import random_bags
from methods.tester import MethodTester
from reference.bag_terms import rows_of_bags, softmax
from reference.methods import transported_or_guessed
from torchllp import BagBatch, create_method, create_model
from torchllp.errors import LLPError
from torchllp.functional import mixing_shares, partners_in_bags

MIXED = {"warm_up": 0.0}


def pairs_of(batch: BagBatch, alpha: float = 0.75) -> tuple[Tensor, Tensor]:
    """The partners and shares that the method draws in its first step, found by sorting each bag."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.rand(batch.step_size, 2, 2, generator=generator).transpose(0, 1).reshape(-1, 2)
    share = mixing_shares(torch.rand(batch.step_size, 2, generator=generator), alpha).T.reshape(-1)
    partner = torch.zeros(len(keys), dtype=torch.long)
    for rows in rows_of_bags(batch.bag_index.repeat(2), len(batch.proportions)):
        first, second = (sorted(rows, key=lambda row, column=column: keys[row, column].item()) for column in (0, 1))
        partner[first] = torch.tensor(second)
    return partner, share.double()


class TestRLPL(MethodTester):
    name = "rlpl"
    variants: ClassVar = [
        MIXED,
        {},
        MIXED | {"threshold": 0.3, "instance_weight": 0.5, "guess_weight": 3.0, "bag_weighting": "size"},
        MIXED | {"threshold": 0.95, "temperature": 0.8, "alpha": 4.0, "eps": 2.0, "rounds": 3},
    ]
    bag_loss_alone: ClassVar = {"instance_weight": 0.0}

    def reference(self, batch: BagBatch, numbers: dict[str, Any], **frozen: Any) -> Tensor:
        pairs = pairs_of(batch, numbers.get("alpha", 0.75))
        return super().reference(batch, numbers, pairs=pairs, progress=batch.progress, **frozen)

    def frozen(self, batch: BagBatch, numbers: dict[str, Any]) -> dict[str, Any]:
        P, S = softmax(batch.weak), softmax(batch.strong)
        bags = rows_of_bags(batch.bag_index, len(batch.proportions))
        of_labels = {"threshold": 0.6, "temperature": 0.5, "eps": 1.0, "rounds": 25}
        used = {name: numbers.get(name, default) for name, default in of_labels.items()}
        return {
            "frozen": transported_or_guessed(P, S, bags, batch.proportions, batch.is_labelled.tolist(), **used),
        }

    def test_j_runs_on_a_gpu_without_waiting_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """But for the quantiles, which SciPy computes on the CPU of numbers that have not left it."""
        monkeypatch.setattr("torchllp.methods.rlpl.mixing_shares", lambda uniform, alpha: 0.5 + uniform / 2)
        super().test_j_runs_on_a_gpu_without_waiting_for_it()


def test_partners_are_a_random_order_of_each_bag() -> None:
    bag_index = torch.arange(7).repeat_interleave(torch.tensor([1, 2, 3, 50, 4, 1, 400]))
    generator = torch.Generator().manual_seed(0)
    bag_index = bag_index[torch.randperm(len(bag_index), generator=generator)]
    partner = partners_in_bags(bag_index, torch.rand(len(bag_index), 2, generator=generator))
    assert torch.equal(bag_index[partner], bag_index)
    assert torch.equal(partner.sort().values, torch.arange(len(partner)))
    assert (partner == torch.arange(len(partner))).sum() <= 10  # two of single instances, one a bag by chance


@pytest.mark.parametrize("alpha", [0.2, 0.75, 3.0])
def test_shares_are_the_larger_half_of_a_beta_distribution(alpha: float) -> None:
    share = mixing_shares(torch.rand(20_000, generator=torch.Generator().manual_seed(0)), alpha)
    expected = torch.distributions.Beta(alpha, alpha).sample((200_000,))
    expected = torch.maximum(expected, 1 - expected)
    assert share.min() >= 0.5 and share.max() <= 1
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    torch.testing.assert_close(share.quantile(levels), expected.quantile(levels), rtol=0, atol=0.02)


def test_before_the_warm_up_is_over_it_is_the_bag_loss_alone() -> None:
    batch = random_bags([4, 9], 3)
    alone = create_method("dllp")(nn.Identity(), batch)["loss"]
    method = create_method("rlpl", warm_up=0.5)
    assert method(nn.Identity(), replace(batch, progress=0.49))["loss"] == alone
    parts = method(nn.Identity(), replace(batch, progress=0.5))
    assert parts["loss"] > alone and parts["instance_loss"] > 0


def test_running_statistics_are_those_of_unmixed_instances() -> None:
    model, plain = (create_model("small-cnn", num_classes=3, input_shape=(1, 8, 8)) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    images = torch.randn(2, 12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    proportions = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    batch = BagBatch(weak=images[0], strong=images[1], bag_index=torch.arange(12) // 6, proportions=proportions)
    create_method("rlpl", **MIXED)(model, batch)
    plain(batch.both_views())
    for ours, expected in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"warm_up": 1.5}, "warm_up must be from 0 to 1, not 1.5"),
        ({"threshold": 1.0}, "threshold must be from 0 to below 1, not 1.0"),
        ({"guess_weight": -1.0}, "guess_weight must be 0 or above, not -1.0"),
        ({"alpha": 0.0}, "alpha must be above 0, not 0.0"),
        ({"rounds": 0}, "rounds must be a whole number of 1 or above, not 0"),
    ],
)
def test_numbers_that_are_refused(numbers: dict[str, float], message: str) -> None:
    with pytest.raises(LLPError, match=message):
        create_method("rlpl", **numbers)
