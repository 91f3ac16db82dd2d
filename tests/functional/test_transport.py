import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.problems import random_bags
from reference.bag_terms import rows_of_bags, softmax, transport_plans
from torchllp.batch import BagBatch
from torchllp.functional import bag_sizes, bag_sum, bag_transport, log_probabilities


def transport(batch: BagBatch, **numbers: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The plan, the column error, and the counts."""
    counts = batch.proportions * bag_sizes(batch.bag_index, len(batch.proportions), batch.weak.dtype)[:, None]
    return *bag_transport(log_probabilities(batch.weak), batch.bag_index, counts, **numbers), counts


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    num_classes=st.integers(2, 8),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    eps=st.sampled_from([0.5, 1.0, 3.0]),
    rounds=st.sampled_from([1, 2, 25]),
)
def test_the_plan_is_sinkhorns_after_as_many_rounds(sizes, num_classes, seed, scale, eps, rounds) -> None:
    batch = random_bags(sizes, num_classes, seed=seed, scale=scale)
    plan, column_error, counts = transport(batch, eps=eps, rounds=rounds)
    bags = rows_of_bags(batch.bag_index, len(sizes))
    expected = transport_plans(softmax(batch.weak), bags, batch.proportions, [True] * len(sizes), eps, rounds)
    torch.testing.assert_close(plan, expected, rtol=0, atol=1e-6)
    assert (plan[(counts == 0)[batch.bag_index]] == 0).all()
    torch.testing.assert_close(plan.sum(1), torch.ones(len(plan), dtype=plan.dtype), rtol=0, atol=1e-6)
    errors = [(expected[rows].sum(0) - counts[i]).abs().max().item() for i, rows in enumerate(bags)]
    assert column_error.tolist() == pytest.approx(errors, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_bags", "size"), [(64, 16), (16, 64), (4, 256)])
@pytest.mark.parametrize("num_classes", [10, 100])
def test_both_marginals_hold_at_convergence(num_bags: int, size: int, num_classes: int, dtype: torch.dtype) -> None:
    batch = random_bags([size] * num_bags, num_classes, dtype=dtype, scale=1.0)
    plan, column_error, counts = transport(batch, rounds=500)
    torch.testing.assert_close(plan.sum(1), torch.ones_like(plan[:, 0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(bag_sum(plan, batch.bag_index, num_bags), counts, rtol=0, atol=1e-4)
    assert column_error.max() < 1e-4


def test_bags_of_unequal_size_do_not_touch_one_another() -> None:
    batch = random_bags([1, 40, 3], 4)
    plan, _, counts = transport(batch)
    for i in range(3):
        rows = batch.bag_index == i
        alone, _ = bag_transport(
            log_probabilities(batch.weak)[rows], torch.zeros(int(rows.sum()), dtype=torch.long), counts[i : i + 1]
        )
        torch.testing.assert_close(plan[rows], alone)


def test_a_bag_of_one_gets_its_proportions() -> None:
    proportions = torch.tensor([[0.2, 0.8, 0.0]])
    plan, column_error = bag_transport(log_probabilities(torch.randn(1, 3)), torch.tensor([0]), proportions)
    torch.testing.assert_close(plan, proportions)
    assert column_error.max() < 1e-6


def test_nothing_known_is_the_prediction_itself() -> None:
    log_p = log_probabilities(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    counts = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    plan, column_error = bag_transport(log_p, torch.tensor([0, 0, 1, 1]), counts, eps=2.0)
    torch.testing.assert_close(plan[:2], (log_p[:2] / 2).softmax(1))
    assert column_error.max() < 1e-3 and (plan[2:, 2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [[1], [2, 7], [64]])
def test_gaps_of_ten_thousand_are_finite(sizes: list[int], dtype: torch.dtype) -> None:
    batch = random_bags(sizes, 4, dtype=dtype, scale=1e4)
    plan, column_error, counts = transport(batch)
    assert plan.isfinite().all() and column_error.isfinite().all()
    torch.testing.assert_close(plan.sum(1), torch.ones_like(plan[:, 0]), rtol=0, atol=1e-6)
    assert (plan[(counts == 0)[batch.bag_index]] == 0).all()


def test_certain_predictions_against_the_bag_leave_an_error_that_is_told() -> None:
    """All three are sure of class 0, of which there is one: the plan needs more rounds than it has."""
    log_p = log_probabilities(torch.tensor([[20.0, 0.0], [19.0, 0.0], [0.0, 3.0]], dtype=torch.float64))
    counts = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    few, many = (bag_transport(log_p, torch.tensor([0, 0, 0]), counts, rounds=rounds) for rounds in (1, 500))
    assert few[1] > 10 * many[1] and many[1] < 1e-4
    assert few[1].item() == pytest.approx((few[0].sum(0) - counts[0]).abs().max().item())


def test_no_gradient_flows_through_the_plan() -> None:
    log_p = log_probabilities(torch.zeros(2, 2)).requires_grad_()
    assert not any(x.requires_grad for x in bag_transport(log_p, torch.tensor([0, 0]), torch.ones(1, 2)))


@pytest.mark.parametrize("rounds", [1, 5, 25, 200])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_the_plan_is_that_of_pot(scale: float, rounds: int) -> None:
    ot = pytest.importorskip("ot", reason="POT is not installed (the extra `ot`)")
    sizes = [16, 1, 40, 7, 256]
    batch = random_bags(sizes, 10, scale=scale)
    plan, _, counts = transport(batch, eps=0.7, rounds=rounds)
    log_p = log_probabilities(batch.weak)
    for i, rows in enumerate(rows_of_bags(batch.bag_index, len(sizes))):
        present = counts[i] > 0  # a marginal of 0 warns in POT
        expected = ot.bregman.sinkhorn_log(
            np.ones(len(rows)),
            counts[i, present].numpy(),
            -log_p[rows][:, present].numpy(),
            reg=0.7,
            numItermax=rounds,
            stopThr=0,
            warn=False,
        )
        np.testing.assert_allclose(plan[rows][:, present].numpy(), expected, atol=1e-8)
