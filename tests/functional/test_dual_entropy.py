import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from methods.problems import random_bags
from reference.bag_terms import dual_entropy_weights, rows_of_bags
from torchllp.functional import (
    auto_beta,
    bag_entropy,
    bag_weight,
    concentration,
    dual_entropy_weight,
    entropy,
    instance_weight,
    log_probabilities,
)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
    beta_bag=st.sampled_from([None, 0.5, 1.0, 5.0]),
    beta_instance=st.sampled_from([None, 0.5, 1.0, 5.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_weights_are_the_plain_loops(sizes, seed, beta_bag, beta_instance, dtype) -> None:
    batch = random_bags(sizes, 4, seed=seed, dtype=dtype)
    is_labelled = torch.rand(len(sizes), generator=torch.Generator().manual_seed(seed)) < 0.8
    log_p = log_probabilities(batch.weak)
    label = log_p.argmax(1)
    weights = dual_entropy_weight(
        log_p,
        label,
        batch.bag_index,
        batch.proportions,
        beta_bag=beta_bag,
        beta_instance=beta_instance,
        is_labelled=is_labelled,
    )
    expected = dual_entropy_weights(
        batch.weak.double().softmax(1),
        label.tolist(),
        rows_of_bags(batch.bag_index, len(sizes)),
        batch.proportions.double(),
        is_labelled.tolist(),
        beta_bag=beta_bag,
        beta_instance=beta_instance,
    )
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(weights.double(), expected, rtol=tolerance, atol=tolerance)
    assert ((weights >= 0) & (weights <= 1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_bags", "size"), [(64, 16), (16, 64), (4, 256)])
@pytest.mark.parametrize("num_classes", [10, 100])
def test_weights_at_the_papers_sizes(num_bags: int, size: int, num_classes: int, dtype: torch.dtype) -> None:
    batch = random_bags([size] * num_bags, num_classes, dtype=dtype)
    log_p = log_probabilities(batch.weak)
    label = log_p.argmax(1)
    expected = dual_entropy_weights(
        batch.weak.double().softmax(1),
        label.tolist(),
        rows_of_bags(batch.bag_index, num_bags),
        batch.proportions.double(),
        [True] * num_bags,
        beta_bag=1.0,
        beta_instance=1.0,
    )
    weights = dual_entropy_weight(log_p, label, batch.bag_index, batch.proportions)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(weights.double(), expected, rtol=tolerance, atol=tolerance)


def test_a_bag_that_is_solved_is_fully_trusted() -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    log_p = log_probabilities(1e4 * torch.eye(3)[labels])
    weights = dual_entropy_weight(log_p, labels, torch.zeros(6, dtype=torch.long), torch.tensor([[2.0, 3.0, 1.0]]) / 6)
    torch.testing.assert_close(weights, torch.ones(6))


def test_absent_classes_have_weight_exactly_zero() -> None:
    weights = bag_weight(torch.rand(3, 4), torch.tensor([[0.0, 1.0, 2.0, 0.0]] * 3), beta=1.0)
    assert (weights[:, [0, 3]] == 0).all()
    assert (weights[:, [1, 2]] > 0).all()


def test_counts_need_not_be_whole() -> None:
    weight = bag_weight(torch.tensor([[0.7]]), torch.tensor([[0.4]]), beta=2.0)
    assert weight.item() == pytest.approx(math.exp(-((0.7 - math.log(0.4)) ** 2) / 2))


def test_bags_of_one_and_extreme_logits_give_finite_weights() -> None:
    log_p = log_probabilities(torch.tensor([[1e4, 0.0], [0.0, 1e4], [0.0, 0.0]]))
    weights = dual_entropy_weight(log_p, log_p.argmax(1), torch.arange(3), torch.tensor([[1.0, 0.0]] * 3))
    assert weights[0] == 1
    assert weights[1] == 0
    assert weights[2].item() == pytest.approx(math.exp(-(math.log(2) ** 2)))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_automatic_betas_are_the_plain_loops(sizes, seed) -> None:
    batch = random_bags(sizes, 4, seed=seed, dtype=torch.float64)
    log_p = log_probabilities(batch.weak)
    label = log_p.argmax(1)
    weights = dual_entropy_weight(
        log_p,
        label,
        batch.bag_index,
        batch.proportions,
        beta_bag=auto_beta(torch.tensor(sizes, dtype=torch.float64)[:, None], b=0.3),
        beta_instance=auto_beta(torch.tensor(4.0, dtype=torch.float64), b=0.3),
    )
    expected = dual_entropy_weights(
        batch.weak.softmax(1),
        label.tolist(),
        rows_of_bags(batch.bag_index, len(sizes)),
        batch.proportions,
        [True] * len(sizes),
        beta_bag=1.0,
        beta_instance=1.0,
        auto=0.3,
    )
    torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-10)


def test_a_bag_of_one_weighs_by_presence_alone() -> None:
    beta = auto_beta(torch.ones(1, 1))
    assert bag_weight(torch.zeros(1, 3), torch.tensor([[0.0, 0.4, 1.0]]), beta).tolist() == [[0.0, 1.0, 1.0]]


def test_gradients() -> None:
    """The weights are detached in use; as functions they are smooth all the same."""
    generator = torch.Generator().manual_seed(0)
    log_p = log_probabilities(torch.randn(6, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    bag_index = torch.tensor([0, 1, 1, 0, 1, 1])
    counts = torch.tensor([[1.0, 0.0, 1.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    proportions = counts / counts.sum(1, keepdim=True)
    assert gradcheck(entropy, (log_p,))
    assert gradcheck(lambda x: concentration(x, 2.0), (log_p,))
    assert gradcheck(lambda x: instance_weight(x, 2.0), (log_p,))
    assert gradcheck(lambda x: bag_weight(bag_entropy(x, bag_index, 2), counts, 2.0), (log_p,))
    assert gradcheck(lambda x: dual_entropy_weight(x, log_p.argmax(1), bag_index, proportions), (log_p,))
