import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.counts import recursion
from torchllp.calibration import PRIOR_DEVIATION, Calibration
from torchllp.errors import LLPError
from torchllp.metrics import calibration_error


def predictions(num_bags: int, size: int, num_classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """True log-probabilities of instances, some sure and some not, and classes drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    log_p = (2 * torch.randn(num_bags * size, num_classes, generator=generator, dtype=torch.float64)).log_softmax(1)
    return log_p, torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]


def bags_of(labels: torch.Tensor, size: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    one_hot = torch.nn.functional.one_hot(labels, num_classes)
    return torch.arange(len(labels)) // size, one_hot.view(-1, size, num_classes).sum(1)


@pytest.mark.parametrize("true_temperature", [0.4, 1.0, 2.5])
@pytest.mark.parametrize(("size", "num_classes"), [(16, 3), (64, 2), (1, 4)])
def test_the_temperature_is_found_from_counts_alone(true_temperature: float, size: int, num_classes: int) -> None:
    log_p, labels = predictions(8192 // size, size, num_classes, seed=0)
    wrong = log_p / true_temperature  # a net whose logits are too large or too small by this factor
    fitted = Calibration.fit(wrong.log_softmax(1), *bags_of(labels, size, num_classes))
    assert fitted.temperature == pytest.approx(1 / true_temperature, rel=0.2)
    before = calibration_error(wrong.log_softmax(1), labels)
    after = calibration_error(fitted(wrong.log_softmax(1)), labels)
    assert after < 0.04
    assert true_temperature == 1.0 or after < before / 2


def test_few_bags_that_are_met_exactly_do_not_make_predictions_certain() -> None:
    log_p = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64).log().repeat(8, 1)
    fitted = Calibration.fit(log_p, torch.arange(16) // 4, torch.full((4, 2), 2))
    assert math.exp(-3 * PRIOR_DEVIATION) < fitted.temperature < 1


def test_calibrated_predictions_have_the_same_likeliest_class_and_sum_to_1() -> None:
    log_p, _ = predictions(4, 8, 5, seed=1)
    calibrated = Calibration(3.0, np.empty((0, 5)), np.zeros(5))(log_p)
    assert (calibrated.argmax(1) == log_p.argmax(1)).all()
    torch.testing.assert_close(calibrated.exp().sum(1), torch.ones(32, dtype=torch.float64))
    assert Calibration.none(5)(log_p) is log_p


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_intervals_hold_the_true_shares_as_often_as_they_say(level: float, shift: float) -> None:
    """Also where the classifier is off by something that all instances of a bag share."""
    size, num_classes, num_bags = 40, 3, 300
    log_p, _ = predictions(2 * num_bags, size, num_classes, seed=2)
    generator = torch.Generator().manual_seed(3)
    of_bag = shift * torch.randn(2 * num_bags, num_classes, generator=generator, dtype=torch.float64)
    truth = (log_p + of_bag.repeat_interleave(size, 0)).softmax(1)
    index, counts = bags_of(torch.multinomial(truth, 1, generator=generator)[:, 0], size, num_classes)
    half = num_bags * size
    fitted = Calibration.fit(log_p[:half], index[:half], counts[:num_bags])
    low, high = fitted.bag_intervals(fitted(log_p[half:]).exp(), index[:half], num_bags, level)
    shares = counts[num_bags:].numpy() / size
    inside = ((shares >= low - 1e-6) & (shares <= high + 1e-6)).mean()
    assert level - 0.05 < inside < level + 0.15  # shares are whole fortieths, so rather more than less


def test_intervals_hold_also_where_few_bags_were_held_out() -> None:
    """Four errors say little of how large errors are; and what is predicted is always inside."""
    size, num_held_out, num_new, inside = 40, 4, 20, []
    for seed in range(40):
        num_bags = num_held_out + num_new
        log_p, _ = predictions(num_bags, size, 2, seed)
        generator = torch.Generator().manual_seed(1000 + seed)
        of_bag = 0.6 * torch.randn(num_bags, 2, generator=generator, dtype=torch.float64)
        truth = (log_p + of_bag.repeat_interleave(size, 0)).softmax(1)
        index, counts = bags_of(torch.multinomial(truth, 1, generator=generator)[:, 0], size, 2)
        first = index < num_held_out
        fitted = Calibration.fit(log_p[first], index[first], counts[:num_held_out])
        p, later = fitted(log_p[~first]).exp(), index[~first] - num_held_out
        low, high = fitted.bag_intervals(p, later, num_new, 0.9)
        shares = counts[num_held_out:].numpy() / size
        predicted = p.view(num_new, size, 2).mean(1).numpy()
        assert (low <= predicted).all() and (predicted <= high).all()
        inside.append(((shares >= low - 1e-6) & (shares <= high + 1e-6)).mean())
    assert 0.87 < np.mean(inside) < 0.97


def test_a_class_that_is_seldom_observed_has_intervals_that_hold() -> None:
    """Errors of bags in which it was stand in for those in which it was not."""
    size, num_bags = 40, 400
    log_p, _ = predictions(2 * num_bags, size, 3, seed=2)
    generator = torch.Generator().manual_seed(3)
    of_bag = 0.5 * torch.randn(2 * num_bags, 3, generator=generator, dtype=torch.float64)
    truth = (log_p + of_bag.repeat_interleave(size, 0)).softmax(1)
    index, counts = bags_of(torch.multinomial(truth, 1, generator=generator)[:, 0], size, 3)
    known = counts[:num_bags].double()
    known[torch.rand(num_bags, generator=generator) < 0.8, 0] = torch.nan
    first = index < num_bags
    fitted = Calibration.fit(log_p[first], index[first], known)
    p, later = fitted(log_p[~first]).exp(), index[~first] - num_bags
    low, high = fitted.bag_intervals(p, later, num_bags, 0.9)
    shares = counts[num_bags:].numpy() / size
    inside = ((shares >= low - 1e-6) & (shares <= high + 1e-6)).mean(0)
    assert (inside > 0.86).all()


def test_of_two_classes_the_second_is_no_more_evidence() -> None:
    """The temperature is that of the likelihood of one count, with its prior, by a plain search."""
    log_p, labels = predictions(4, 16, 2, seed=7)
    index, counts = bags_of(labels, 16, 2)
    sure = (3 * log_p).log_softmax(1)

    def surprise(t: float) -> float:
        odds = ((sure[:, 0] - sure[:, 1]) / t).view(4, 16).tolist()
        fits = [recursion(of_bag)[k] for of_bag, k in zip(odds, counts[:, 0].tolist(), strict=True)]
        return (math.log(t) / PRIOR_DEVIATION) ** 2 / 2 - sum(fits)

    best = min((math.exp(x / 200) for x in range(-400, 400)), key=surprise)
    assert Calibration.fit(sure, index, counts).temperature == pytest.approx(best, rel=0.01)


def test_of_three_classes_the_third_is_no_more_evidence() -> None:
    """Two thirds of the sum over the classes, each against the others; of two that were observed all."""
    log_p, labels = predictions(3, 8, 3, seed=3)
    index, counts = bags_of(labels, 8, 3)
    sure = (3 * log_p).log_softmax(1)
    for reported, evidence in (
        (counts.double(), 2 / 3),
        (counts.double().index_fill(1, torch.tensor([1]), math.nan), 1),
    ):

        def surprise(t: float, reported: torch.Tensor = reported, evidence: float = evidence) -> float:
            p = (sure / t).softmax(1)
            fits = 0.0
            for c in range(3):
                odds = p[:, c].logit().view(3, 8).tolist()
                fits += sum(
                    recursion(of_bag)[int(k)] for of_bag, k in zip(odds, reported[:, c].tolist(), strict=True) if k == k
                )
            return (math.log(t) / PRIOR_DEVIATION) ** 2 / 2 - evidence * fits

        best = min((math.exp(x / 200) for x in range(-400, 400)), key=surprise)
        assert Calibration.fit(sure, index, reported).temperature == pytest.approx(best, rel=0.01)


def test_without_held_out_bags_intervals_are_those_of_the_count() -> None:
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64).repeat(100, 1)
    low, high = Calibration.none(2).bag_intervals(p, torch.zeros(100, dtype=torch.long), 1, 0.95)
    assert low[0] == pytest.approx(0.5 - 1.96 * 0.05, abs=0.025)
    assert high[0] == pytest.approx(0.5 + 1.96 * 0.05, abs=0.025)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), level=st.floats(0.1, 0.99))
def test_intervals_are_shares_in_order_and_wider_for_a_higher_level(seed: int, level: float) -> None:
    log_p, labels = predictions(6, 7, 3, seed)
    fitted = Calibration.fit(log_p, *bags_of(labels, 7, 3))
    index = torch.arange(42) // 7
    low, high = fitted.bag_intervals(log_p.exp(), index, 6, level)
    lower, higher = fitted.bag_intervals(log_p.exp(), index, 6, level + (1 - level) / 2)
    assert (lower >= 0).all() and (lower <= low).all() and (low <= high).all() and (high <= higher).all()
    assert (higher <= 1).all()


@pytest.mark.parametrize("level", [0.0, 1.0, 90])
def test_a_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(LLPError, match="between 0 and 1"):
        Calibration.none(2).bag_intervals(torch.ones(1, 2) / 2, torch.tensor([0]), 1, level)


def test_json_round_trip() -> None:
    log_p, labels = predictions(5, 8, 3, seed=4)
    fitted = Calibration.fit(log_p, *bags_of(labels, 8, 3))
    again = Calibration.from_json(fitted.to_json(), 3)
    assert again.temperature == fitted.temperature
    np.testing.assert_array_equal(again.bag_errors, fitted.bag_errors)
    assert Calibration.from_json(Calibration.none(3).to_json(), 3).bag_errors.shape == (0, 3)


def test_the_temperature_is_found_from_uncertain_counts() -> None:
    log_p, labels = predictions(256, 32, 3, seed=5)
    index, counts = bags_of(labels, 32, 3)
    noisy = counts + 3 * torch.randn(counts.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    noisy[::4, 1] = torch.nan  # not observed
    wrong = (log_p / 0.5).log_softmax(1)  # too sure
    fitted = Calibration.fit(wrong, index, noisy, noise="gaussian", scale=torch.full((256,), 3.0))
    assert fitted.temperature == pytest.approx(2.0, rel=0.25)
    assert np.isfinite(fitted.bag_errors).all()
    plugged_in = Calibration.fit(wrong, index, noisy.round().clamp(0, 32))
    assert plugged_in.temperature > 2 * fitted.temperature  # noise taken for errors of the classifier
