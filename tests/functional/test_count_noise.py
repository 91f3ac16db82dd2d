import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import logsigmoid

from fake_gpu import backward_by_hand
from reference.counts import enumerated_report, log_report, recursed_report, recursion
from torchllp.errors import LLPError
from torchllp.functional import count_log_probability, noise_variance

KINDS = ("gaussian", "laplace", "rounding")
log_odds = st.one_of(st.floats(-4, 4), st.sampled_from([-27.6, -12.0, 12.0, 27.6]))  # p from 1e-12 to 1 - 1e-12


def two_classes(a: list[float]) -> Tensor:
    """Log-probabilities of which the second class has these log-odds."""
    odds = torch.tensor(a, dtype=torch.float64)
    return torch.stack([logsigmoid(-odds), logsigmoid(odds)], 1)


def of_one_bag(a: list[float], z: float, noise: str | None, scale: float) -> Tensor:
    """Of the second class alone; nothing is known of the first."""
    reported = torch.tensor([[math.nan, z]], dtype=torch.float64)
    bag_index = torch.zeros(len(a), dtype=torch.long)
    scales = torch.tensor([scale], dtype=torch.float64)
    values = count_log_probability(two_classes(a), bag_index, reported, noise=noise, scale=scales)
    assert values[0, 0] == 0
    return values[0, 1]


@settings(deadline=None, max_examples=40)
@given(a=st.lists(log_odds, min_size=1, max_size=8), data=st.data())
def test_gaussian_noise_by_enumeration(a: list[float], data: st.DataObject) -> None:
    z, sd = data.draw(st.floats(-5, len(a) + 5)), data.draw(st.sampled_from([0.1, 0.5, 2.0, 20.0]))
    expected = enumerated_report(a, z, "gaussian", sd)
    assert of_one_bag(a, z, "gaussian", sd).item() == pytest.approx(expected, rel=1e-11, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(a=st.lists(log_odds, min_size=1, max_size=8), data=st.data())
def test_discrete_laplace_noise_by_enumeration(a: list[float], data: st.DataObject) -> None:
    z, epsilon = data.draw(st.integers(-5, len(a) + 5)), data.draw(st.sampled_from([0.01, 0.5, 2.0, 40.0]))
    expected = enumerated_report(a, z, "laplace", epsilon)
    assert of_one_bag(a, z, "laplace", epsilon).item() == pytest.approx(expected, rel=1e-11, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(a=st.lists(log_odds, min_size=1, max_size=8), data=st.data())
def test_rounding_by_enumeration(a: list[float], data: st.DataObject) -> None:
    step = data.draw(st.sampled_from([1, 2, 3, 5]))
    z = step * data.draw(st.integers(0, len(a) // step))
    expected = enumerated_report(a, z, "rounding", step)
    assert of_one_bag(a, z, "rounding", step).item() == pytest.approx(expected, rel=1e-11, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(a=st.lists(log_odds, min_size=1, max_size=8), data=st.data())
def test_without_noise_the_count_is_exact(a: list[float], data: st.DataObject) -> None:
    """In the limit, by a scale that says so, and as without any noise."""
    z = data.draw(st.integers(0, len(a)))
    exact = of_one_bag(a, z, None, 0.0).item()
    assert exact == pytest.approx(enumerated_report(a, z, None, 0.0), rel=1e-11, abs=1e-9)
    for noise, scale in (("gaussian", 0.0), ("laplace", math.inf), ("rounding", 0.0), ("rounding", 1.0)):
        assert of_one_bag(a, z, noise, scale).item() == pytest.approx(exact, rel=1e-12, abs=1e-12)
    for noise, scale in (("gaussian", 0.01), ("laplace", 300.0)):
        value = of_one_bag(a, z, noise, scale).item() - log_report(0, 0, noise, scale)
        assert value == pytest.approx(exact, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("noise", "scale"), [("gaussian", 1e7), ("laplace", 1e-9), ("rounding", 1e4)])
def test_reports_that_say_nothing_have_no_gradient(noise: str, scale: float) -> None:
    logits = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    reported = torch.tensor([[0.0, 3.0, 2.0]])
    bag_index = torch.zeros(6, dtype=torch.long)
    value = count_log_probability(
        logits.log_softmax(1), bag_index, reported, noise=noise, scale=torch.tensor([scale], dtype=torch.float64)
    )
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient.abs().max() < 1e-8
    torch.testing.assert_close(value, torch.full_like(value, log_report(0, 0, noise, scale)), rtol=1e-9, atol=1e-8)


def test_the_gradient_is_exact() -> None:
    """Bags of several sizes, reports below 0 and above the size, an exact bag, and a class that was not observed."""
    logits = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bag_index = torch.tensor([0, 0, 1, 0, 1, 2, 0, 0, 0])
    reported = torch.tensor([[-2.0, 1.0, 9.0], [0.0, 2.0, 0.0], [1.0, 0.0, math.nan]])
    scales = {"gaussian": [1.5, 0.0, 0.3], "laplace": [0.7, math.inf, 2.0], "rounding": [6.0, 0.0, 1.0]}
    for noise, scale in scales.items():
        z = reported.clamp(0, 6) if noise == "rounding" else reported

        def loss(logits: Tensor, noise: str = noise, scale: list[float] = scale, z: Tensor = z) -> Tensor:
            log_p = logits.log_softmax(1)
            return count_log_probability(log_p, bag_index, z, noise=noise, scale=torch.tensor(scale), largest=6)

        assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize("spread", [0.3, 5.0])
@pytest.mark.parametrize(
    ("noise", "scale", "far"),
    [("gaussian", 20.0, 10.0), ("gaussian", 3.0, 10.0), ("laplace", 0.1, 30.0), ("laplace", 2.0, 30.0)],
)
def test_large_bags_by_recursion(noise: str, scale: float, far: float, spread: float) -> None:
    """A thousand instances, and reports that are many deviations of the noise away, beyond the bag's size too."""
    generator = torch.Generator().manual_seed(0)
    a = (spread * torch.randn(1000, generator=generator, dtype=torch.float64)).tolist()
    sd = float(noise_variance(noise, torch.tensor(scale))) ** 0.5
    log_pmf, expected_count = recursion(a), sum(1 / (1 + math.exp(-x)) for x in a)
    for z in (expected_count, expected_count - far * sd, -50.0, 1050.0):
        expected = recursed_report(log_pmf, round(z), noise, scale)
        assert of_one_bag(a, round(z), noise, scale).item() == pytest.approx(expected, rel=1e-9)


def test_rounded_counts_of_a_large_bag_by_recursion() -> None:
    a = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    log_pmf = recursion(a)
    for z, step in ((500, 10), (500, 100), (700, 100), (0, 100), (1000, 50), (430, 10)):
        expected = recursed_report(log_pmf, z, "rounding", step)
        assert of_one_bag(a, z, "rounding", step).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_count_half_way_may_have_been_rounded_either_way() -> None:
    a = [0.3, -1.0]
    assert of_one_bag(a, 0.0, "rounding", 2.0).item() == pytest.approx(enumerated_report(a, 0, "rounding", 2))
    assert of_one_bag(a, 2.0, "rounding", 2.0).item() == pytest.approx(enumerated_report(a, 2, "rounding", 2))
    # a share of 0.07 in single precision is a little above 7 of 100, and 6 may still have been rounded to it
    a = [0.04 * j - 3 for j in range(100)]
    z = 100 * torch.tensor(0.07).item()
    assert z > 7
    assert of_one_bag(a, z, "rounding", 2.0).item() == pytest.approx(recursed_report(recursion(a), 7, "rounding", 2))


@pytest.mark.parametrize("noise", KINDS)
def test_extreme_logits_stay_finite(noise: str) -> None:
    logits = (1e4 * torch.randn(30, 3, generator=torch.Generator().manual_seed(1))).requires_grad_()
    for z in (0.0, 7.0, 15.0, 30.0):
        reported, bag_index = torch.full((1, 3), z), torch.zeros(30, dtype=torch.long)
        value = count_log_probability(
            logits.log_softmax(1), bag_index, reported, noise=noise, scale=torch.tensor([2.0])
        )
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("noise", [None, *KINDS])
def test_it_runs_on_a_gpu_without_waiting_for_it(noise: str | None) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        logits = torch.empty(12, 3, requires_grad=True)
        bag_index, reported = torch.empty(12, dtype=torch.long), torch.empty(3, 3)
        value = count_log_probability(
            logits.log_softmax(1), bag_index, reported, noise=noise, scale=torch.empty(3), largest=7
        )
        backward_by_hand(value.sum())
    assert value.device.type == "cuda" and logits.grad is not None


@pytest.mark.parametrize(("noise", "scale"), [("gaussian", 1.7), ("laplace", 0.4)])
def test_variance_is_that_of_the_noise(noise: str, scale: float) -> None:
    """The mean square of z by its own probabilities; of a normal density they are summed on a fine grid."""
    grid = [n if noise == "laplace" else n / 50 for n in range(-2000, 2001)]
    mass = [math.exp(log_report(z, 0, noise, scale)) for z in grid]
    expected = sum(z * z * m for z, m in zip(grid, mass, strict=True)) / sum(mass)
    assert float(noise_variance(noise, torch.tensor(scale, dtype=torch.float64))) == pytest.approx(expected, rel=1e-9)


def test_unknown_noise_and_missing_scales_are_refused() -> None:
    log_p, bag_index, z = torch.zeros(1, 2), torch.tensor([0]), torch.zeros(1, 2)
    with pytest.raises(LLPError, match="there is no noise 'poisson'"):
        count_log_probability(log_p, bag_index, z, noise="poisson", scale=torch.ones(1))
    with pytest.raises(LLPError, match="gaussian noise needs its scale"):
        count_log_probability(log_p, bag_index, z, noise="gaussian")
