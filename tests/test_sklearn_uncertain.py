"""LLPClassifier on counts that were reported with noise, and on classes that were not observed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from torchllp import Bags, LLPClassifier, LLPError

nan = math.nan
generator = np.random.default_rng(0)
LOT = generator.integers(30, size=300)
Y = (generator.random(300) < generator.random(30)[LOT]).astype(int)
X = generator.normal(size=(300, 3)) + 3 * Y[:, None]
COUNTS = {lot: np.bincount(Y[lot == LOT], minlength=2).astype(float) for lot in range(30)}
NOISY = {lot: counts + generator.normal(0, 2, 2) for lot, counts in COUNTS.items()}


def quick(**others: Any) -> LLPClassifier:
    return LLPClassifier("dllp", epochs=15, lr=1e-2, random_state=0, threads=1, **others)


@pytest.mark.parametrize("term", ["mean", "count"])
def test_noisy_counts(term: str, tmp_path: Path) -> None:
    classifier = quick(bag_noise="gaussian", bag_noise_scale=2.0, method_options={"bag_term": term})
    classifier.fit(X, LOT, NOISY)
    assert classifier.score(X, Y) > 0.9
    assert classifier.score_bags(X, LOT, NOISY) < 0
    with pytest.raises(LLPError, match="negative"):
        quick().fit(X, LOT, NOISY)
    classifier.save(tmp_path / "classifier")
    loaded = LLPClassifier.load(tmp_path / "classifier")
    assert loaded.get_params()["bag_noise"] == "gaussian"
    np.testing.assert_array_equal(loaded.predict_proba(X), classifier.predict_proba(X))


def test_a_scale_a_bag_and_the_forms_that_counts_come_in() -> None:
    """A mapping, a frame, an array, one column: all the same classifier."""
    scale = {lot: 0.5 + lot % 3 for lot in range(30)}
    options: dict[str, Any] = {
        "bag_noise": "laplace",
        "bag_noise_scale": scale,
        "method_options": {"bag_term": "count"},
    }
    frame = pd.DataFrame.from_dict(NOISY, orient="index", columns=[0, 1])
    expected = quick(**options).fit(X, LOT, NOISY).predict_proba(X)
    for proportions in (frame, frame.to_numpy()):
        np.testing.assert_array_equal(quick(**options).fit(X, LOT, proportions).predict_proba(X), expected)
    by_series = quick(**{**options, "bag_noise_scale": pd.Series(scale)})
    np.testing.assert_array_equal(by_series.fit(X, LOT, NOISY).predict_proba(X), expected)
    bags = Bags.from_table(LOT, NOISY, values="counts", noise="laplace", noise_scale=scale)
    same = quick(method_options={"bag_term": "count"}).fit(X, proportions=bags)
    assert same.score(X, Y) > 0.85  # its ids are numbers, in another order: others of its bags are held out
    single = {lot: counts[1] for lot, counts in NOISY.items()}  # of the second class alone
    assert quick(**options).fit(X, LOT, single).score(X, Y) > 0.85


@pytest.mark.parametrize("values", ["counts", "shares"])
def test_classes_that_were_not_observed(values: str) -> None:
    table = {lot: counts / (1 if values == "counts" else counts.sum()) for lot, counts in COUNTS.items()}
    for lot in range(0, 30, 3):
        table[lot][lot % 2] = nan
    classifier = quick().fit(X, LOT, table)
    assert classifier.score(X, Y) > 0.9
    # of two classes one says all
    np.testing.assert_allclose(classifier.score_bags(X, LOT, table), classifier.score_bags(X, LOT, COUNTS), rtol=1e-5)
    with pytest.raises(LLPError, match="predict_in_bags needs the share of every class, and class '0' was not obs"):
        classifier.predict_in_bags(X, LOT, table)
    table = {lot: (nan if lot < 5 else counts[1]) for lot, counts in COUNTS.items()}
    with pytest.raises(LLPError, match="5 of the rows' bags are without any class that was observed"):
        quick().fit(X, LOT, table)
    assert quick(unlabelled="keep").fit(X, LOT, table).score(X, Y) > 0.9


def test_classes_in_another_order_keep_their_reports() -> None:
    table = {lot: dict(zip(["good", "bad"], counts, strict=True)) for lot, counts in NOISY.items()}
    options: dict[str, Any] = {"bag_noise": "gaussian", "bag_noise_scale": 2.0, "method_options": {"bag_term": "count"}}
    one = quick(**options).fit(X, LOT, table)
    other = quick(classes=["bad", "good"], **options).fit(X, LOT, table)
    assert one.score(X, np.where(Y, "bad", "good")) > 0.9
    assert other.score(X, np.where(Y, "bad", "good")) > 0.9
    assert one.classes_.tolist() == ["good", "bad"] and other.classes_.tolist() == ["bad", "good"]


@pytest.mark.parametrize(
    ("options", "proportions", "message"),
    [
        ({"bag_noise": "gaussian"}, NOISY, "noise is given without noise_scale"),
        ({"bag_noise": "gauss", "bag_noise_scale": 1}, NOISY, "there is no noise 'gauss'"),
        ({"bag_noise": "gaussian", "bag_noise_scale": -1}, NOISY, "a number of 0 or above, not -1"),
        ({"bag_noise": "gaussian", "bag_noise_scale": {0: 1}}, NOISY, "bag '1' has no noise_scale"),
        (
            {},
            Bags.from_table(LOT, NOISY, values="counts", noise="gaussian", noise_scale=1),
            "taken as they are: leave bag ids out",
        ),
    ],
)
def test_errors_say_what_is_wrong(options: dict[str, Any], proportions: Any, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        quick(**options).fit(X, LOT, proportions)
