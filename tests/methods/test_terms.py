"""The bag-level loss of counts that were reported with noise, or not for all classes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fake_gpu import backward_by_hand
from reference.bag_terms import rows_of_bags, softmax, uncertain_bag_loss
from torchllp import BagBatch, Bags, LLPError, create_method, list_methods
from torchllp.methods.terms import BAG_TERMS

nan, inf = math.nan, math.inf
SIZES = [5, 1, 6, 2]
REPORTED = [[1.0, 2.0, 2.0], [0.0, 1.0, 0.0], [3.0, nan, 0.0], [nan, nan, 1.0]]
SCALES = {"gaussian": [1.5, 0.0, 0.3, 2.0], "laplace": [0.7, inf, 2.0, 0.1], "rounding": [4.0, 0.0, 1.0, 3.0]}
NOISES = [None, *SCALES]


def uncertain_batch(noise: str | None, reported: list[list[float]] = REPORTED, **others: Any) -> BagBatch:
    """Instances of all bags shuffled; the proportions are those that ``Bags`` makes of the reports."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    bag_index = ids[torch.randperm(len(ids), generator=generator)]
    scale = None if noise is None else dict(enumerate(SCALES[noise]))
    table = dict(enumerate(reported))
    bags = Bags.from_table(bag_index, table, values="counts", noise=noise, noise_scale=scale)
    return BagBatch(
        weak=torch.randn(len(ids), 3, generator=generator, dtype=torch.float64),
        strong=torch.randn(len(ids), 3, generator=generator, dtype=torch.float64),
        bag_index=bag_index,
        proportions=torch.tensor(bags.proportions),
        reported=None if bags.reported is None else torch.tensor(bags.reported),
        noise_kind=noise,
        noise_scale=None if bags.noise is None else torch.tensor(bags.noise.scale),
        **others,
    )


def loss_and_gradient(batch: BagBatch, method: str = "dllp", **numbers: Any) -> tuple[Tensor, Tensor]:
    weak = batch.weak.clone().requires_grad_()
    loss = create_method(method, **numbers)(nn.Identity(), replace(batch, weak=weak))["loss"]
    loss.backward()
    return loss.detach(), weak.grad


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("term", ["mean", "count"])
def test_loss_and_gradient_are_those_of_plain_loops(noise: str | None, term: str) -> None:
    batch = uncertain_batch(noise)
    loss, gradient = loss_and_gradient(batch, bag_term=term)
    weak = batch.weak.clone().requires_grad_()
    bags, scale = rows_of_bags(batch.bag_index, 4), SCALES.get(noise, [0.0] * 4)
    expected = uncertain_bag_loss(softmax(weak), bags, torch.tensor(REPORTED), noise, scale, term)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, weak.grad, rtol=1e-10, atol=1e-10)


def test_a_class_that_was_not_observed_has_no_term_and_the_others_keep_theirs() -> None:
    """The count loss of all classes is that of some plus that of the others."""
    batch = uncertain_batch(None, [[1, 2, 2], [0, 1, 0], [3, 3, 0], [1, 0, 1]])
    counts = batch.proportions * torch.tensor(SIZES)[:, None]
    parts = []
    for c in range(3):
        alone = torch.full_like(counts, nan)
        alone[:, c] = counts[:, c]
        parts.append(loss_and_gradient(replace(batch, reported=alone), bag_term="count"))
    loss, gradient = loss_and_gradient(batch, bag_term="count")
    torch.testing.assert_close(sum(part for part, _ in parts), loss)
    torch.testing.assert_close(sum(part for _, part in parts), gradient)


def test_mean_matching_does_not_push_a_class_that_was_not_observed_away() -> None:
    """It has a share of what is left over, however the model spreads that."""
    batch = BagBatch(
        weak=torch.log(torch.tensor([[0.5, 0.4, 0.1], [0.7, 0.0001, 0.2999]])),
        bag_index=torch.tensor([0, 0]),
        proportions=torch.tensor([[0.6, 0.2, 0.2]]),
        reported=torch.tensor([[1.2, nan, nan]]),
    )
    _, gradient = loss_and_gradient(batch)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "method", [name for name in list_methods() if name not in ("contrast", "llpfc", "rlpl", "rot", "simclr")]
)
@pytest.mark.parametrize("noise", NOISES)
def test_methods_take_uncertain_bags(method: str, noise: str | None) -> None:
    batch = uncertain_batch(noise, labels=torch.zeros(14, dtype=torch.long), generator=torch.Generator().manual_seed(0))
    parts = create_method(method)(nn.Linear(3, 3).double(), batch)
    assert all(part.isfinite().all() for part in parts.values())


def test_the_trust_in_a_class_that_was_not_observed_is_that_of_an_unlabelled_bag() -> None:
    batch = uncertain_batch(None)
    trust = create_method("ahil")(nn.Identity(), batch)["trust"]
    observed = create_method("ahil")(nn.Identity(), replace(batch, reported=None))["trust"]
    unlabelled = replace(batch, reported=None, is_labelled=torch.zeros(4, dtype=torch.bool))
    free = create_method("ahil")(nn.Identity(), unlabelled)["trust"]
    is_known = ~torch.tensor(REPORTED).isnan()[batch.bag_index, batch.weak.argmax(1)]
    assert is_known.any() and not is_known.all()
    torch.testing.assert_close(trust, torch.where(is_known, observed, free))
    supported = create_method("flmm", support=0.0)(nn.Identity(), batch)["trust"]
    assert not supported[~is_known].any() and supported[is_known].any()


@pytest.mark.parametrize("method", ["rot", "llpfc"])
def test_methods_that_need_every_share_say_so(method: str) -> None:
    bags = Bags.from_table(["a", "a", "b", "b"], {"a": [1, nan], "b": [0, 2]}, values="counts")
    with pytest.raises(LLPError, match=f"{method} needs the share of every class, and class '1' was not observed in"):
        create_method(method).check(bags)
    create_method(method).check(Bags.from_table(bags.bag_of, {0: [1, 1], 1: [0, 2]}, values="counts"))


@pytest.mark.parametrize("term", list(BAG_TERMS))
@pytest.mark.parametrize("noise", NOISES)
def test_nothing_waits_for_the_device(noise: str | None, term: str) -> None:
    batch = uncertain_batch(noise)
    with FakeTensorMode() as mode:
        names = ["weak", "bag_index", "proportions", "is_labelled", "reported"] + ["noise_scale"] * (noise is not None)
        moved = {name: mode.from_tensor(getattr(batch, name)).to("cuda") for name in names}
        known = {"num_bags": 4.0, "num_labelled_instances": 14.0, "mean_bag_size": 3.5, "largest_bag": 6}
        on_gpu = replace(batch, strong=None, **known, **moved)
        model = nn.Linear(3, 3, device="cuda", dtype=torch.float64)
        parts = create_method("dllp", bag_term=term)(model, on_gpu)
        backward_by_hand(parts["loss"])
    assert model.weight.grad is not None and model.weight.grad.device.type == "cuda"


def test_an_unknown_bag_term_is_refused() -> None:
    with pytest.raises(LLPError, match="unknown bag_term 'counts': did you mean 'count'"):
        create_method("dllp", bag_term="counts")
