import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from torchllp.functional import draw_groups, noise_transition, simplex_least_squares


def random_gamma(rng: np.random.Generator, num_classes: int, bag_size: int) -> np.ndarray:
    """Proportions of as many bags as classes; of small bags many are equal, so that systems with them are singular."""
    return rng.multinomial(bag_size, rng.dirichlet(np.ones(num_classes)), size=num_classes) / bag_size


@settings(deadline=None)
@given(num_classes=st.integers(2, 6), bag_size=st.sampled_from([1, 2, 16]), seed=st.integers(0, 2**31))
def test_least_squares_are_no_worse_than_those_of_slsqp(num_classes: int, bag_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, target = random_gamma(rng, num_classes, bag_size).T, rng.dirichlet(np.ones(num_classes))

    def squares(x: np.ndarray) -> float:
        return float(np.square(matrix @ x - target).sum())

    other = minimize(
        squares,
        np.full(num_classes, 1 / num_classes),
        method="SLSQP",
        bounds=[(0, 1)] * num_classes,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    assert squares(simplex_least_squares(matrix, target)) == pytest.approx(other.fun, abs=1e-6)


@settings(deadline=None)
@given(
    num_classes=st.sampled_from([2, 3, 10, 50]),
    bag_size=st.sampled_from([1, 2, 16, 256]),
    shift=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_least_squares_cannot_be_made_smaller(num_classes: int, bag_size: int, shift: float, seed: int) -> None:
    """To move weight to any corner of the simplex does not help: for a convex function that is the minimum."""
    rng = np.random.default_rng(seed)
    matrix = random_gamma(rng, num_classes, bag_size).T
    target = rng.dirichlet(np.ones(num_classes)) + shift  # with a shift it is far from all that can be reached
    x = simplex_least_squares(matrix, target)
    assert (x >= 0).all() and x.sum() == pytest.approx(1)
    gradient = matrix.T @ (matrix @ x - target)
    assert gradient.min() >= gradient @ x - 1e-9


@settings(deadline=None)
@given(num_classes=st.sampled_from([2, 5, 20]), seed=st.integers(0, 2**31))
def test_least_squares_find_a_solution_that_exists(num_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gamma, alpha = rng.dirichlet(np.ones(num_classes), size=num_classes), rng.dirichlet(np.ones(num_classes))
    found = simplex_least_squares(gamma.T, gamma.T @ alpha)
    np.testing.assert_allclose(gamma.T @ found, gamma.T @ alpha, atol=1e-8)


def test_the_system_is_that_of_the_transposed_gamma() -> None:
    gamma, alpha = np.array([[0.9, 0.1, 0], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]), np.array([0.6, 0.3, 0.1])
    prior = gamma.T @ alpha
    np.testing.assert_allclose(simplex_least_squares(gamma.T, prior), alpha)
    assert np.abs(simplex_least_squares(gamma, prior) - alpha).max() > 0.05


@settings(deadline=None)
@given(
    num_classes=st.integers(2, 8),
    bag_size=st.sampled_from([1, 2, 16]),
    num_unused=st.integers(0, 7),
    seed=st.integers(0, 2**31),
)
def test_transitions_are_the_formula(num_classes: int, bag_size: int, num_unused: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gamma, alpha = random_gamma(rng, num_classes, bag_size), rng.dirichlet(np.ones(num_classes))
    alpha[: min(num_unused, num_classes - 1)] = 0
    alpha /= alpha.sum()
    log_t, undefined = noise_transition(gamma, alpha)
    T = np.exp(log_t)
    np.testing.assert_allclose(T.sum(0), 1)
    for j in range(num_classes):
        reached = sum(gamma[i, j] * alpha[i] for i in range(num_classes))
        assert undefined[j] == (reached == 0)
        for i in range(num_classes):
            expected = gamma[i, j] * alpha[i] / reached if reached > 0 else alpha[i]
            assert T[i, j] == pytest.approx(expected, abs=1e-12)
    assert (np.isneginf(log_t) == (T == 0)).all()


def test_a_probability_near_zero_does_not_underflow() -> None:
    log_t, undefined = noise_transition(np.array([[1e-200, 1.0], [0.0, 1.0]]), np.array([1e-200, 1.0]))
    np.testing.assert_allclose(np.exp(log_t), [[1, 1e-200], [0, 1]])
    assert not undefined.any()


def test_the_noise_is_that_of_instances_drawn_from_bags() -> None:
    """Draw a bag by alpha, then a class by its proportions: T is the share of each bag among those of a class."""
    rng = np.random.default_rng(0)
    gamma, alpha = rng.dirichlet(np.ones(3), size=3), np.array([0.5, 0.3, 0.2])
    bag = rng.choice(3, size=300_000, p=alpha)
    label = (rng.random((len(bag), 1)) > gamma[bag].cumsum(1)).sum(1)
    T = np.exp(noise_transition(gamma, alpha)[0])
    for j in range(3):
        np.testing.assert_allclose(np.bincount(bag[label == j], minlength=3) / (label == j).sum(), T[:, j], atol=0.01)
    np.testing.assert_allclose(T @ (np.bincount(label) / len(label)), alpha, atol=0.01)


@given(
    num_bags=st.integers(0, 40),
    num_classes=st.integers(2, 6),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_groups_are_disjoint_and_full(num_bags: int, num_classes: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = draw_groups(rng.random((num_bags, num_classes)) < share, rng)
    assert groups.shape == (num_bags // num_classes, num_classes)
    assert len(np.unique(groups)) == groups.size
    assert np.isin(groups, np.arange(num_bags)).all()


def test_a_group_that_lacks_a_rare_class_is_drawn_anew() -> None:
    """Class 2 is in 40 of 120 bags, enough for all 40 groups: redrawing gives it to more groups than chance does."""
    has_class = np.ones((120, 3), dtype=bool)
    has_class[40:, 2] = False

    def share_that_has(redraws: int) -> float:
        drawn = [draw_groups(has_class, np.random.default_rng(seed), redraws=redraws) for seed in range(20)]
        return float(np.mean([has_class[groups].any(1).all(1) for groups in drawn]))

    assert share_that_has(0) == pytest.approx(1 - (2 / 3) ** 3, abs=0.05)
    assert share_that_has(20) > share_that_has(0) + 0.03


def test_the_first_groups_have_a_class_of_few_bags() -> None:
    has_class = np.ones((300, 3), dtype=bool)
    has_class[30:, 2] = False
    hits = [has_class[draw_groups(has_class, np.random.default_rng(seed))[0], 2].any() for seed in range(100)]
    assert np.mean(hits) > 0.95  # 0.27 without drawing anew


def test_a_class_that_no_bag_has_is_not_waited_for() -> None:
    has_class = np.ones((12, 3), dtype=bool)
    has_class[:, 2] = False
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    assert draw_groups(has_class, rng).ravel().tolist() == same.permutation(12).tolist()
