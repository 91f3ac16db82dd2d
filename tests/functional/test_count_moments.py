"""Between the mean and the counts, against the enumeration of all sets and of all labels."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from methods.problems import random_bags
from reference.bag_terms import common_class_loss, rows_of_bags
from torchllp.functional import (
    count_log_probability,
    gaussian_count_loss,
    log_mean_probability,
    log_probabilities,
    moments_loss,
    proportion_loss,
)


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    num_classes=st.integers(2, 4),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 2.0, 10.0]),
    order=st.integers(1, 4),
)
def test_moments_are_those_of_all_sets(sizes, num_classes, seed, scale, order) -> None:
    batch = random_bags(sizes, num_classes, seed=seed, scale=scale)
    counts = (batch.proportions * batch.sizes[:, None]).round()
    loss = moments_loss(log_probabilities(batch.weak), batch.bag_index, counts, order=order)
    P = batch.weak.softmax(1)
    for i, rows in enumerate(rows_of_bags(batch.bag_index, len(sizes))):
        orders = range(1, order + 1)
        expected = sum(common_class_loss(P[rows], [*map(int, counts[i].tolist())], r) for r in orders)
        torch.testing.assert_close(loss[i], torch.as_tensor(expected), rtol=1e-7, atol=1e-9)


def test_moments_are_least_where_the_counts_are_certain() -> None:
    """Of all certain predictions, those with the known counts; even predictions have the mean right and cost more."""
    counts, bag_index = torch.tensor([[2.0, 1.0, 1.0]]), torch.zeros(4, dtype=torch.long)

    def loss(labels: tuple[int, ...], order: int) -> float:
        logits = 20 * torch.nn.functional.one_hot(torch.tensor(labels), 3).double()
        return moments_loss(log_probabilities(logits), bag_index, counts, order=order).item()

    losses = {labels: loss(labels, 3) for labels in itertools.product(range(3), repeat=4)}
    best = min(losses.values())
    assert all((value < best + 1e-6) == (sorted(labels) == [0, 0, 1, 2]) for labels, value in losses.items())
    even = (counts / 4).double().log().expand(4, 3)
    assert moments_loss(even, bag_index, counts, order=1).item() == pytest.approx(loss((0, 0, 1, 2), 1), abs=1e-6)
    assert moments_loss(even, bag_index, counts, order=2).item() > loss((0, 0, 1, 2), 2) + 0.01


def test_classes_that_were_not_observed_are_one_with_none_in_common() -> None:
    log_p = log_probabilities(torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    bag_index, nan = torch.zeros(5, dtype=torch.long), math.nan
    counts = torch.tensor([[2.0, nan, 1.0, nan]])
    mean = log_mean_probability(log_p, bag_index, 1).exp()[0]
    expected = -(0.4 * mean[0].log() + 0.2 * mean[2].log() + 0.4 * (mean[1] + mean[3]).log())
    torch.testing.assert_close(moments_loss(log_p, bag_index, counts, order=1)[0], expected)
    assert moments_loss(log_p, bag_index, torch.full((1, 4), nan), order=3).item() == 0
    assert (gaussian_count_loss(log_p, bag_index, counts)[0] == 0).tolist() == [False, True, False, True]


def test_gradients() -> None:
    batch = random_bags([3, 1, 5], 3)
    counts = (batch.proportions * batch.sizes[:, None]).round()
    logits = batch.weak.clone().requires_grad_()
    assert gradcheck(lambda x: moments_loss(log_probabilities(x), batch.bag_index, counts, order=3), (logits,))
    assert gradcheck(lambda x: gaussian_count_loss(log_probabilities(x), batch.bag_index, counts), (logits,))


@pytest.mark.parametrize("order", [1, 2, 4])
def test_far_apart_logits_stay_finite(order: int) -> None:
    batch = random_bags([1, 6, 40], 4, scale=1e4, dtype=torch.float32)
    logits = batch.weak.clone().requires_grad_()
    counts = (batch.proportions * batch.sizes[:, None]).round()
    loss = moments_loss(log_probabilities(logits), batch.bag_index, counts, order=order)
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()


def test_a_large_bag_in_bounded_memory() -> None:
    batch = random_bags([4096, 3], 10)
    counts = (batch.proportions * batch.sizes[:, None]).round()
    log_p = log_probabilities(batch.weak)
    one = moments_loss(log_p, batch.bag_index, counts, order=1)
    mean = log_mean_probability(log_p, batch.bag_index, 2)
    torch.testing.assert_close(one, proportion_loss(batch.proportions, mean))
    assert (moments_loss(log_p, batch.bag_index, counts, order=3) > one).all()


def test_a_gaussian_is_near_the_counts_of_a_large_bag() -> None:
    batch = random_bags([400], 3, scale=1.0)
    counts = (batch.proportions * batch.sizes[:, None]).round()
    log_p = log_probabilities(batch.weak)
    gaussian = gaussian_count_loss(log_p, batch.bag_index, counts) + 0.5 * math.log(2 * math.pi)
    exact = -count_log_probability(log_p, batch.bag_index, counts)
    torch.testing.assert_close(gaussian, exact, rtol=0.02, atol=0.02)


def test_noise_widens_the_gaussian() -> None:
    log_p, bag_index = torch.tensor([[0.5, 0.5]] * 4).log(), torch.zeros(4, dtype=torch.long)
    loss = gaussian_count_loss(log_p, bag_index, torch.tensor([[6.0, 1.0]]), torch.tensor([3.75]))
    expected = [(6 - 2) ** 2 / 10 + math.log(5) / 2, (1 - 2) ** 2 / 10 + math.log(5) / 2]
    assert loss[0].tolist() == pytest.approx(expected, rel=1e-6)
