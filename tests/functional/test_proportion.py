import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from methods.problems import random_bags
from reference.bag_terms import bag_loss, rows_of_bags
from torchllp.functional import log_mean_probability, log_probabilities, proportion_kl, proportion_loss


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_loss_of_each_bag_is_the_plain_loop(sizes: list[int], seed: int) -> None:
    batch = random_bags(sizes, 4, seed=seed)
    log_p = log_probabilities(batch.weak)
    losses = proportion_loss(batch.proportions, log_mean_probability(log_p, batch.bag_index, len(sizes)))
    for i, rows in enumerate(rows_of_bags(batch.bag_index, len(sizes))):
        alone = bag_loss(log_p.exp(), [rows], batch.proportions[i : i + 1], [True])
        torch.testing.assert_close(losses[i], alone)


def test_gradients() -> None:
    batch = random_bags([1, 3, 4], 3)
    logits = batch.weak.requires_grad_()

    def loss(logits: torch.Tensor) -> torch.Tensor:
        log_mean = log_mean_probability(log_probabilities(logits), batch.bag_index, 3)
        return proportion_loss(batch.proportions, log_mean)

    assert gradcheck(loss, (logits,))
    assert gradcheck(lambda x: proportion_kl(batch.proportions, x), (torch.randn(3, 3).double().requires_grad_(),))


@pytest.mark.parametrize("gap", [1e2, 1e3, 1e4])
def test_a_class_that_underflows_still_has_a_gradient(gap: float) -> None:
    """exp(-gap) is 0 in float32: a loss on probabilities would be infinite and its gradient NaN."""
    logits = torch.tensor([[gap, 0.0], [gap, 0.0]], requires_grad=True)
    log_mean = log_mean_probability(log_probabilities(logits), torch.tensor([0, 0]), 1)
    loss = proportion_loss(torch.tensor([[0.5, 0.5]]), log_mean)
    loss.sum().backward()
    assert loss.item() == pytest.approx(gap / 2)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.25, -0.25], [0.25, -0.25]]))


def test_absent_classes_cost_nothing_by_themselves() -> None:
    log_mean = torch.tensor([[0.0, -1e4]])
    assert proportion_loss(torch.tensor([[1.0, 0.0]]), log_mean).item() == 0


@settings(deadline=None)
@given(seed=st.integers(0, 2**31))
def test_kl_is_never_negative_and_differs_from_the_loss_by_a_constant(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q, r = torch.rand(3, 5, 4, generator=generator, dtype=torch.float64).softmax(-1)
    kl = proportion_kl(p, q.log())
    assert (kl >= -1e-12).all()
    difference = proportion_loss(p, q.log()) - proportion_loss(p, r.log())
    torch.testing.assert_close(kl - proportion_kl(p, r.log()), difference)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_taken_to_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    log_p = log_probabilities(logits)
    assert log_p.dtype == torch.float32
    assert torch.equal(log_p, logits.float().log_softmax(1))
    assert log_probabilities(logits.double()).dtype == torch.float64
