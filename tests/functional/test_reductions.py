import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from reference.bag_terms import rows_of_bags
from torchllp.functional import bag_entropy, bag_logsumexp, bag_mean, bag_sizes, bag_sum

BAG_INDEX = torch.tensor([2, 0, 1, 0, 2, 2, 2])


@st.composite
def ragged(draw):
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    bag_index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    bag_index = bag_index[torch.randperm(len(bag_index), generator=generator)]
    x = draw(st.sampled_from([0.01, 1.0, 50.0])) * torch.randn(
        len(bag_index), draw(st.integers(1, 4)), generator=generator, dtype=torch.float64
    )
    return x, bag_index, len(sizes)


@settings(deadline=None)
@given(ragged())
def test_reductions_are_those_of_each_bag_alone(problem) -> None:
    x, bag_index, num_bags = problem
    for i, rows in enumerate(rows_of_bags(bag_index, num_bags)):
        mine = x[rows]
        shares = mine.softmax(0)
        expected_entropy = torch.special.entr(shares).sum(0)
        assert bag_sizes(bag_index, num_bags)[i] == len(rows)
        torch.testing.assert_close(bag_sum(x, bag_index, num_bags)[i], mine.sum(0))
        torch.testing.assert_close(bag_mean(x, bag_index, num_bags)[i], mine.mean(0))
        torch.testing.assert_close(bag_logsumexp(x, bag_index, num_bags)[i], mine.logsumexp(0))
        torch.testing.assert_close(bag_entropy(x, bag_index, num_bags)[i], expected_entropy)


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2)])
def test_any_trailing_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    flat = x.reshape(7, -1)
    for reduce in (bag_sum, bag_mean, bag_logsumexp, bag_entropy):
        torch.testing.assert_close(reduce(x, BAG_INDEX, 3).reshape(3, -1), reduce(flat, BAG_INDEX, 3))


@pytest.mark.parametrize("function", [bag_sum, bag_mean, bag_logsumexp, bag_entropy])
def test_gradients(function) -> None:
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert gradcheck(lambda x: function(x, BAG_INDEX, 3), (x,))


def test_far_apart_values_stay_finite() -> None:
    x = torch.tensor([0.0, -1e4, 1e4, -1e4], requires_grad=True)
    bag_index = torch.tensor([0, 0, 1, 1])
    total = bag_logsumexp(x, bag_index, 2)
    total.sum().backward()
    assert total.tolist() == [0.0, 1e4]
    assert x.grad is not None and x.grad.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_bag_of_one_has_no_entropy_and_a_uniform_one_has_log_size() -> None:
    x = torch.zeros(5, 2)
    entropy = bag_entropy(x, torch.tensor([0, 1, 1, 1, 1]), 2)
    torch.testing.assert_close(entropy, torch.tensor([[0.0, 0.0], [math.log(4), math.log(4)]]))


def test_memory_and_time_grow_with_instances_and_not_with_bags_times_instances() -> None:
    """A [bags, instances] intermediate would need 160 GB here."""
    x = torch.zeros(200_000, 2)
    bag_index = torch.arange(200_000)
    assert bag_entropy(x, bag_index, 200_000).shape == (200_000, 2)
