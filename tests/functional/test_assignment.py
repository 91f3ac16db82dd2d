import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from torchllp import LLPError
from torchllp.functional import assign_bags, assign_labels, matching_offsets, whole_counts


def random_rows(num_rows: int, num_classes: int, seed: int) -> np.ndarray:
    logits = 3 * np.random.default_rng(seed).standard_normal((num_rows, num_classes))
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def random_counts(num_rows: int, num_classes: int, seed: int) -> np.ndarray:
    return whole_counts(np.random.default_rng(seed).dirichlet(np.ones(num_classes)), num_rows)


def score(log_p: np.ndarray, labels: np.ndarray) -> float:
    return log_p[np.arange(len(labels)), labels].sum()


def by_square_assignment(log_p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The same problem with one column a place: the class of each is repeated as often as it is to be given."""
    places = np.arange(len(counts)).repeat(counts)
    _, columns = linear_sum_assignment(log_p[:, places], maximize=True)
    return places[columns]


@pytest.mark.parametrize(
    ("proportions", "size", "expected"),
    [
        ([0.2, 0.8], 10, [2, 8]),
        ([0.29, 0.71], 100, [29, 71]),  # 0.29 * 100 is 28.999999999999996
        ([0.5, 0.5], 3, [2, 1]),
        ([1 / 3, 1 / 3, 1 / 3], 10, [4, 3, 3]),
        ([0.05, 0.05, 0.9], 10, [1, 0, 9]),
        ([0.0, 1.0], 7, [0, 7]),
        ([0.3, 0.7], 0, [0, 0]),
        ([0.4996, 0.4996], 4, [2, 2]),
    ],
)
def test_whole_counts_by_largest_remainder(proportions: list[float], size: int, expected: list[int]) -> None:
    assert whole_counts(np.array(proportions), size).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any), st.integers(1, 100_000))
def test_whole_counts_sum_to_the_size_and_are_less_than_1_off(weights: list[int], size: int) -> None:
    proportions = np.array(weights) / sum(weights)
    counts = whole_counts(proportions, size)
    assert counts.sum() == size
    assert (np.abs(counts - proportions * size) < 1 + 1e-9).all()
    assert whole_counts(counts / size, size).tolist() == counts.tolist()


@settings(deadline=None)
@given(st.data())
def test_labels_are_the_best_of_all_that_have_the_counts(data: st.DataObject) -> None:
    """Few values, so that rows tie and rule classes out: fewest of those are given, then the sum is the largest."""
    num_rows, num_classes = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 4))
    values = st.sampled_from([0.0, -0.3, -1.0, -2.0, -5.0, -100.0, -np.inf])
    rows = st.lists(values, min_size=num_classes, max_size=num_classes)
    log_p = np.array(data.draw(st.lists(rows, min_size=num_rows, max_size=num_rows))).reshape(num_rows, num_classes)
    drawn = data.draw(st.lists(st.integers(0, num_classes - 1), min_size=num_rows, max_size=num_rows))
    counts = np.bincount(np.array(drawn, dtype=int), minlength=num_classes)

    def worth(labels: tuple[int, ...]) -> tuple[int, float]:
        chosen = [log_p[row, c] for row, c in enumerate(labels)]
        return -chosen.count(-np.inf), sum(x for x in chosen if x > -np.inf)

    best = max(worth(labels) for labels in set(itertools.permutations(drawn)))
    labels = assign_labels(log_p, counts)
    assert np.bincount(labels, minlength=num_classes).tolist() == counts.tolist()
    assert worth(tuple(labels)) == pytest.approx(best)


@pytest.mark.parametrize("num_classes", [2, 3, 10, 40])
@pytest.mark.parametrize("num_rows", [1, 60, 700])
def test_labels_are_those_of_the_square_assignment(num_rows: int, num_classes: int) -> None:
    log_p = random_rows(num_rows, num_classes, seed=num_rows)
    counts = random_counts(num_rows, num_classes, seed=num_classes)
    np.testing.assert_array_equal(assign_labels(log_p, counts), by_square_assignment(log_p, counts))


def test_two_classes_are_split_by_their_difference() -> None:
    log_p = random_rows(3000, 2, seed=0)
    labels = assign_labels(log_p, np.array([2999, 1]))
    assert labels.sum() == 1
    assert labels[np.argmax(log_p[:, 1] - log_p[:, 0])] == 1


@pytest.mark.parametrize(
    "log_p",
    [
        np.zeros((20_000, 10)),
        random_rows(20_000, 10, seed=0),
        random_rows(20_000, 10, seed=0).round(1),
        random_rows(50, 10, seed=0)[np.arange(20_000) % 50],
        np.where(random_rows(20_000, 10, seed=0) > -1, 0.0, -np.inf),
        1e4 * random_rows(20_000, 10, seed=0),
    ],
    ids=["all alike", "all different", "many alike", "copies", "mostly ruled out", "wide"],
)
def test_many_rows_have_the_counts_exactly(log_p: np.ndarray) -> None:
    counts = random_counts(20_000, 10, seed=1)
    counts[0], counts[1] = counts[0] + counts[1], 0
    labels = assign_labels(log_p, counts)
    assert np.bincount(labels, minlength=10).tolist() == counts.tolist()


def test_one_class_may_have_all_rows_although_they_rule_it_out() -> None:
    log_p = np.array([[-np.inf, 0.0], [-np.inf, 0.0]])
    assert assign_labels(log_p, np.array([2, 0])).tolist() == [0, 0]
    assert assign_labels(np.full((2, 2), -np.inf), np.array([1, 1])).tolist() in ([0, 1], [1, 0])


@pytest.mark.parametrize("num_rows", [300, 5000])
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_offsets_make_the_predictions_match_the_totals(num_rows: int, num_classes: int) -> None:
    log_p = random_rows(num_rows, num_classes, seed=num_rows)
    totals = random_counts(num_rows, num_classes, seed=num_classes).clip(min=1)
    totals[totals.argmax()] += num_rows - totals.sum()
    offsets = matching_offsets(log_p, totals)
    assert offsets.mean() == pytest.approx(0, abs=1e-9)
    predicted = (log_p + offsets).argmax(1)
    assert np.bincount(predicted, minlength=num_classes).tolist() == totals.tolist()
    assert predicted.tolist() == assign_labels(log_p, totals).tolist()
    two_best = np.sort(log_p + offsets, axis=1)[:, -2:]
    assert np.diff(two_best, axis=1).min() > 1e-9  # no row is on the boundary, where rounding would decide


def test_offsets_for_a_class_of_one_in_a_thousand_and_for_one_that_is_not_there() -> None:
    log_p = random_rows(4000, 4, seed=0) + np.array([0.0, -20.0, 0.0, 0.0])
    totals = np.array([1000, 4, 0, 2996])
    offsets = matching_offsets(log_p, totals)
    assert np.bincount((log_p + offsets).argmax(1), minlength=4).tolist() == totals.tolist()
    assert offsets[totals > 0].mean() == pytest.approx(0, abs=1e-9)
    assert json.loads(json.dumps(offsets.tolist(), allow_nan=False)) == offsets.tolist()


def test_offsets_of_two_classes_are_midway_between_neighbours() -> None:
    log_p = np.array([[0.0, -1.0], [0.0, -2.0], [0.0, -5.0]])
    offsets = matching_offsets(log_p, np.array([1, 2]))
    assert offsets[1] - offsets[0] == pytest.approx(3.5)


def test_totals_that_are_not_whole_are_rounded() -> None:
    log_p = random_rows(11, 3, seed=0)
    assert matching_offsets(log_p, np.full(3, 11 / 3)).tolist() == matching_offsets(log_p, np.array([4, 4, 3])).tolist()


def test_offsets_of_ruled_out_classes_and_of_no_rows_are_finite() -> None:
    log_p = np.array([[0.0, -np.inf, -1.0], [0.0, -np.inf, -2.0]])
    for totals in ([1, 0, 1], [0, 2, 0], [1, 1, 0]):
        assert np.isfinite(matching_offsets(log_p, np.array(totals))).all()
    assert matching_offsets(np.zeros((0, 3)), np.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("function", [assign_labels, matching_offsets])
@pytest.mark.parametrize(
    ("log_p", "counts", "message"),
    [
        (np.zeros((3, 2)), [1, 1], "counts must be 0 or above and sum to the 3 rows, not [1.0, 1.0]"),
        (np.zeros((3, 2)), [4, -1], "counts must be 0 or above and sum to the 3 rows, not [4.0, -1.0]"),
        (np.zeros((3, 2)), [np.nan, 3], "counts must be 0 or above and sum to the 3 rows, not [nan, 3.0]"),
        (np.zeros((3, 2)), [1, 1, 1], "log_p needs a row an instance and a column a count, not (3, 2) for (3,)"),
        (np.zeros(3), [3], "log_p needs a row an instance and a column a count, not (3,) for (1,)"),
        (np.array([[0.0, np.nan]]), [1, 0], "log_p has the value nan in row 0, class 1"),
        (np.array([[0.0, 0.0], [np.inf, 0.0]]), [1, 1], "log_p has the value inf in row 1, class 0"),
    ],
)
def test_what_cannot_be_met_is_one_sentence(function, log_p: np.ndarray, counts: list[float], message: str) -> None:
    with pytest.raises(LLPError) as error:
        function(log_p, np.array(counts))
    assert str(error.value) == message


def test_counts_that_are_not_whole_and_proportions_that_are_none() -> None:
    with pytest.raises(LLPError, match=r"^counts must be whole numbers, not \[1.5, 1.5\]$"):
        assign_labels(np.zeros((3, 2)), np.array([1.5, 1.5]))
    for wrong in ([0.5, 0.6], [1.5, -0.5], [np.nan, 1.0], [[1.0]]):
        with pytest.raises(LLPError, match=r"^proportions must be one number a class, 0 or above, that sum to 1, not "):
            whole_counts(np.array(wrong), 2)
    with pytest.raises(LLPError, match=r"^the number of instances must be 0 or above, not -1$"):
        whole_counts(np.array([1.0]), -1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(2, 6), st.integers(0, 2**31))
def test_bags_together_are_bags_one_by_one(sizes: list[int], num_classes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    bag_index = generator.permutation(np.arange(len(sizes)).repeat(sizes))
    log_p = random_rows(len(bag_index), num_classes, seed)
    proportions = np.stack([random_counts(size, num_classes, seed + i) / size for i, size in enumerate(sizes)])
    proportions[generator.random(len(sizes)) < 0.2] = 0
    labels = assign_bags(log_p, bag_index, proportions)
    for bag, shares in enumerate(proportions):
        rows = np.flatnonzero(bag_index == bag)
        if not shares.any():
            assert np.array_equal(labels[rows], log_p[rows].argmax(1))
            continue
        counts = whole_counts(shares, len(rows))
        assert np.array_equal(np.bincount(labels[rows], minlength=num_classes), counts)
        best = assign_labels(log_p[rows], counts)
        assert score(log_p[rows], labels[rows]) == pytest.approx(score(log_p[rows], best), abs=1e-9)
