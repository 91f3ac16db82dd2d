import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods.problems import random_bags
from reference.bag_terms import rows_of_bags
from reference.counts import enumerated, recursion
from torchllp.functional import count_log_probability, counts, log_odds, whole_bag_counts, whole_counts


def of_one_bag(log_p: Tensor, count: int) -> Tensor:
    """For one bag in which every class has this count (of three classes or more they need not sum to the bag)."""
    bag_index = torch.zeros(len(log_p), dtype=torch.long)
    return count_log_probability(log_p, bag_index, torch.full((1, log_p.shape[1]), count))[0]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), min_size=1, max_size=5), st.data())
def test_whole_counts_of_many_bags_are_those_of_each(weights: list[list[int]], data: st.DataObject) -> None:
    proportions = np.array([np.array(row) / sum(row) for row in weights])
    sizes = data.draw(st.lists(st.integers(1, 3000), min_size=len(weights), max_size=len(weights)))
    of_each = [whole_counts(shares, size).tolist() for shares, size in zip(proportions, sizes, strict=True)]
    found = whole_bag_counts(torch.from_numpy(proportions), torch.tensor(sizes))
    assert found.sum(1).tolist() == sizes
    assert found.tolist() == of_each
    for row, size, of_bag in zip(weights, sizes, found.tolist(), strict=True):  # in whole numbers, exactly
        below, remainder = zip(*(divmod(weight * size, sum(row)) for weight in row), strict=True)
        more = [count - least for count, least in zip(of_bag, below, strict=True)]
        assert set(more) <= {0, 1}
        rounded_up = [left for left, one in zip(remainder, more, strict=True) if one]
        rounded_down = [left for left, one in zip(remainder, more, strict=True) if not one]
        assert min(rounded_up, default=math.inf) >= max(rounded_down, default=0)
    exact = torch.tensor(of_each) / torch.tensor(sizes)[:, None]
    assert whole_bag_counts(exact.float(), torch.tensor(sizes)).tolist() == of_each


@settings(deadline=None)
@given(size=st.integers(1, 8), seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0, 4.0]))
def test_small_bags_by_enumeration(size: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = (scale * torch.randn(size, 3, generator=generator, dtype=torch.float64)).softmax(1)
    pmfs = torch.tensor([enumerated(column) for column in p.T.tolist()], dtype=torch.float64)
    ours = torch.stack([of_one_bag(p.log(), count) for count in range(size + 1)], 1)
    torch.testing.assert_close(ours.exp(), pmfs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("size", [16, 64, 257])
def test_large_bags_by_recursion(size: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(size)
    log_p = (scale * torch.randn(size, 4, generator=generator, dtype=torch.float64)).log_softmax(1)
    smallest = 0.0
    for c, odds in enumerate(log_odds(log_p).T.tolist()):
        expected = recursion(odds)
        for count in (0, 1, size // 4, size // 2, size - 1, size):
            if expected[count] > -200:
                assert of_one_bag(log_p, count)[c].item() == pytest.approx(expected[count], abs=1e-6)
                smallest = min(smallest, expected[count])
    assert smallest < -15  # and not only the easy ones


def test_small_probabilities_keep_their_digits() -> None:
    """A plain transform in float32 goes negative here."""
    log_p = torch.tensor([[-math.log1p(math.exp(-40)), -40.0]] * 20)
    expected = math.log(math.comb(20, 3)) - 3 * 40
    both = count_log_probability(log_p, torch.zeros(20, dtype=torch.long), torch.tensor([[17, 3]]))
    assert both[0].tolist() == pytest.approx([expected] * 2, abs=1e-6)


@settings(deadline=None)
@given(size=st.integers(1, 8), seed=st.integers(0, 2**31), unobserved=st.sampled_from([None, 0, 1]))
def test_two_classes_have_one_count(size: int, seed: int, unobserved: int | None) -> None:
    """Value and gradient by enumeration; where one of the two was not observed, it has 0 and the other its own."""
    generator = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(size, 2, generator=generator, dtype=torch.float64)).requires_grad_()
    pmf = enumerated(logits.softmax(1)[:, 0].tolist())
    bag = torch.zeros(size, dtype=torch.long)

    def both(x: Tensor, count: int) -> Tensor:
        counts = torch.tensor([[count, size - count]], dtype=torch.float64)
        if unobserved is not None:
            counts[0, unobserved] = torch.nan
        return count_log_probability(x.log_softmax(1), bag, counts)[0]

    for count in range(size + 1):
        expected = [0.0 if c == unobserved else math.log(pmf[count]) for c in range(2)]
        assert both(logits, count).tolist() == pytest.approx(expected, abs=1e-9)
        assert torch.autograd.gradcheck(lambda x, count=count: both(x, count), logits)


def test_equal_predictions_are_binomial() -> None:
    log_p = torch.tensor([0.3, 0.7], dtype=torch.float64).log().expand(50, 2)
    expected = math.log(math.comb(50, 12)) + 12 * math.log(0.3) + 38 * math.log(0.7)
    assert of_one_bag(log_p, 12)[0].item() == pytest.approx(expected, abs=1e-9)


def test_bags_do_not_touch_one_another() -> None:
    batch = random_bags([1, 40, 3, 7], 4)
    log_p = batch.weak.log_softmax(1)
    known = torch.tensor([[0, 1, 0, 0], [10, 11, 12, 7], [3, 0, 0, 0], [1, 2, 2, 2]])
    together = count_log_probability(log_p, batch.bag_index, known)
    for i, rows in enumerate(rows_of_bags(batch.bag_index, 4)):
        alone = count_log_probability(log_p[rows], torch.zeros(len(rows), dtype=torch.long), known[i : i + 1])
        torch.testing.assert_close(together[i], alone[0], rtol=1e-9, atol=1e-9)


def test_the_gradient_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bag_index = torch.tensor([0, 0, 1, 0, 1, 2, 0, 0, 0])
    known = torch.tensor([[2, 1, 3], [0, 2, 0], [1, 0, 0]])

    def loss(logits: Tensor) -> Tensor:
        return count_log_probability(logits.log_softmax(1), bag_index, known)

    assert torch.autograd.gradcheck(loss, logits)
    whole = loss(logits)
    monkeypatch.setattr(counts, "ELEMENTS", 1)  # a frequency at a time
    torch.testing.assert_close(loss(logits), whole)
    assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize("size", [1, 2, 30])
def test_extreme_logits_stay_finite(size: int) -> None:
    logits = (1e4 * torch.randn(size, 3, generator=torch.Generator().manual_seed(1))).requires_grad_()
    for count in {0, 1, size // 2, size}:
        value = of_one_bag(logits.log_softmax(1), count)
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all() and (value < 1e-9).all()
        assert gradient.isfinite().all()


def test_bags_of_one_are_binary_cross_entropies() -> None:
    log_p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
    value = count_log_probability(log_p, torch.tensor([0]), torch.tensor([[0, 1, 0]]))
    expected = torch.tensor([[0.3, 0.2, 0.9]], dtype=torch.float64).log()
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
def test_a_bag_of_thousands_takes_far_fewer_frequencies(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = (scale * torch.randn(2000, 2, generator=generator, dtype=torch.float64)).log_softmax(1)
    expected = recursion(log_odds(log_p)[:, 0].tolist())
    for count in (700, 950, 1000, 1300):
        if expected[count] > -200:
            assert of_one_bag(log_p, count)[0].item() == pytest.approx(expected[count], abs=1e-6)
    one_bag, size = torch.zeros(2000, dtype=torch.long), torch.tensor([[2000.0]])
    assert counts._length(log_p.exp(), one_bag, size, largest=None) < 800
    assert counts._length(log_p.exp(), one_bag, size, largest=2000) < 800
