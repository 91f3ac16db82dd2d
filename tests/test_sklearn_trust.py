"""How far the estimator's answers can be trusted: calibrated probabilities, intervals, warnings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from torchllp import LLPClassifier, LLPError
from torchllp.metrics import calibration_error

DIGITS = load_digits()
X, Y = DIGITS.data, DIGITS.target
BAGS = np.random.default_rng(0).permutation(len(X)) // 30
SHARES = {bag: np.bincount(Y[bag == BAGS], minlength=10) / np.sum(bag == BAGS) for bag in range(40)}
TRAIN, NEW = BAGS < 40, BAGS >= 40


@pytest.fixture(scope="module")
def fitted() -> LLPClassifier:
    classifier = LLPClassifier("dllp", epochs=30, lr=3e-3, held_out=0.25, threads=1, random_state=0)
    return classifier.fit(X[TRAIN], BAGS[TRAIN], SHARES)


def test_probabilities_of_new_rows_are_better_calibrated(fitted: LLPClassifier) -> None:
    calibrated = torch.from_numpy(fitted.predict_log_proba(X[NEW]))
    before = (calibrated * fitted.calibration_.temperature).log_softmax(1)
    labels = torch.from_numpy(Y[NEW])
    assert fitted.calibration_.temperature != 1
    assert calibration_error(calibrated, labels) < calibration_error(before, labels)
    assert (calibrated.argmax(1) == before.argmax(1)).all()
    np.testing.assert_allclose(fitted.predict_proba(X[NEW]).sum(1), 1, atol=1e-6)


def test_intervals_of_new_bags_hold_most_true_shares(fitted: LLPClassifier) -> None:
    bounds = fitted.predict_bags(X[NEW], BAGS[NEW], interval=0.9)
    plain = fitted.predict_bags(X[NEW], BAGS[NEW])
    inside = []
    for bag, (low, mean, high) in bounds.items():
        np.testing.assert_array_equal(mean, plain[bag])
        truth = np.bincount(Y[bag == BAGS], minlength=10) / np.sum(bag == BAGS)
        inside += ((low - 1e-6 <= truth) & (truth <= high + 1e-6)).tolist()
    assert np.mean(inside) >= 0.85
    widths = np.mean([high - low for low, _, high in bounds.values()])
    narrow = fitted.predict_bags(X[NEW], BAGS[NEW], interval=0.5)
    assert 0 < np.mean([high - low for low, _, high in narrow.values()]) < widths < 0.3


def test_without_held_out_bags_nothing_is_calibrated() -> None:
    classifier = LLPClassifier("dllp", epochs=1, held_out=0, random_state=0).fit(X[TRAIN], BAGS[TRAIN], SHARES)
    assert classifier.calibration_.temperature == 1
    low, mean, high = classifier.predict_bags(X[:30], np.zeros(30), interval=0.9)[0.0]
    assert (low <= high).all() and mean.sum() == pytest.approx(1)


def test_labels_calibrate_too() -> None:
    classifier = LLPClassifier("dllp", epochs=10, lr=3e-3, random_state=0, threads=1).fit(X[TRAIN], Y[TRAIN])
    assert 0.1 < classifier.calibration_.temperature < 10
    assert classifier.score(X[NEW], Y[NEW]) > 0.9


def test_files_keep_the_calibration(fitted: LLPClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "saved")
    loaded = LLPClassifier.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict_proba(X[NEW]), fitted.predict_proba(X[NEW]))
    np.testing.assert_array_equal(
        [*loaded.predict_bags(X[NEW], BAGS[NEW], interval=0.8).values()],
        [*fitted.predict_bags(X[NEW], BAGS[NEW], interval=0.8).values()],
    )


def test_a_training_that_learns_nothing_is_said_so() -> None:
    with pytest.warns(ConvergenceWarning, match="over-smoothed.*try a larger learning rate"):
        LLPClassifier("dllp", epochs=6, lr=1e-9, random_state=0).fit(X[TRAIN], BAGS[TRAIN], SHARES)


class TestAFewLabels:
    def test_they_help(self) -> None:
        """Bags that say nothing, all of the same shares: what is learnt comes from the labels."""
        y = (Y < 5).astype(int)
        alike = np.empty(len(y), dtype=int)
        for c in (0, 1):
            alike[np.flatnonzero(y == c)] = np.arange((y == c).sum()) % 40
        shares = {bag: y[alike == bag].mean() for bag in range(40)}
        assert np.ptp([*shares.values()]) < 0.03
        labels = np.where(np.arange(len(y)) % 12 == 0, y.astype(object), None)
        classifier = LLPClassifier("dllp", epochs=15, lr=3e-3, random_state=0, threads=1)
        with pytest.warns(ConvergenceWarning, match="over-smoothed"):
            without = classifier.fit(X, alike, shares).score(X, y)
        assert classifier.fit(X, alike, shares, labels=labels).score(X, y) > max(0.9, without + 0.1)

    def test_missing_ones_of_any_kind(self) -> None:
        some = np.where(np.arange(len(Y)) % 20 == 0, Y, -1)
        kinds = [
            [None if c < 0 else c for c in some.tolist()],
            np.where(some < 0, np.nan, some),
            pd.Series(some, dtype="Int64").where(some >= 0),
        ]
        classifier = LLPClassifier("dllp", epochs=1, random_state=0, threads=1)
        every = {bag: np.bincount(Y[bag == BAGS], minlength=10) / np.sum(bag == BAGS) for bag in np.unique(BAGS)}
        first, *others = [classifier.fit(X, BAGS, every, labels=kind).predict_proba(X[:9]) for kind in kinds]
        for other in others:
            np.testing.assert_array_equal(other, first)
        assert not np.array_equal(classifier.fit(X, BAGS, every).predict_proba(X[:9]), first)

    def test_wrong_ones_are_told(self) -> None:
        every = {bag: np.bincount(Y[bag == BAGS], minlength=10) / np.sum(bag == BAGS) for bag in np.unique(BAGS)}
        classifier = LLPClassifier("dllp", epochs=1)
        with pytest.raises(LLPError, match="labels, row 1: 'seven' is none of the classes 0, 1"):
            classifier.fit(X, BAGS, every, labels=[None, "seven"] + [None] * (len(X) - 2))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            classifier.fit(X, BAGS, every, labels=[1])
        with pytest.raises(LLPError, match="labels of some rows were given without the proportions"):
            classifier.fit(X, Y, labels=Y)
