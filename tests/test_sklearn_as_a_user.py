"""What a user tries first, in the order in which he would: ten minutes with a package that he does not know."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from torchllp import LLPClassifier

generator = np.random.default_rng(0)
lots = generator.integers(40, size=400)
defect = generator.random(400) < generator.random(40)[lots]
X = generator.normal(size=(400, 3)) + 2 * defect[:, None]
share = np.array([defect[lots == lot].mean() for lot in range(40)])


@pytest.fixture
def classifier() -> LLPClassifier:
    return LLPClassifier(epochs=10, lr=3e-3, instances_per_step=64, random_state=0)


def is_good(fitted: LLPClassifier) -> bool:
    return (fitted.predict(X) == fitted.classes_[defect.astype(int)]).mean() > 0.9


def test_float32_input_with_one_share_a_bag(classifier: LLPClassifier) -> None:
    assert is_good(classifier.fit(X.astype(np.float32), lots, share))
    assert classifier.classes_.tolist() == [0, 1]


def test_clone(classifier: LLPClassifier) -> None:
    copy = clone(classifier.fit(X, lots, share))
    assert copy.get_params() == classifier.get_params() and not hasattr(copy, "model_")
    np.testing.assert_array_equal(copy.fit(X, lots, share).predict_proba(X), classifier.predict_proba(X))


def test_predict_proba(classifier: LLPClassifier) -> None:
    p = classifier.fit(X, lots, share).predict_proba(X)
    assert p.shape == (400, 2) and p.min() >= 0
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(p.argmax(1), classifier.predict(X))


def test_score(classifier: LLPClassifier) -> None:
    assert classifier.fit(X, lots, share).score(X, defect.astype(int)) > 0.9


def test_string_bag_ids(classifier: LLPClassifier) -> None:
    names = [f"lot-{lot}" for lot in lots]
    assert is_good(classifier.fit(X, names, {f"lot-{lot}": share[lot] for lot in range(40)}))


def test_two_columns_of_proportions(classifier: LLPClassifier) -> None:
    both = np.stack([1 - share, share], axis=1)
    one = classifier.fit(X, lots, share).predict_proba(X)
    np.testing.assert_allclose(classifier.fit(X, lots, both).predict_proba(X), one)


def test_float64_input(classifier: LLPClassifier) -> None:
    assert X.dtype == np.float64
    assert is_good(classifier.fit(X, lots, share))


def test_a_module_of_ones_own() -> None:
    module = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    before = [parameter.clone() for parameter in module.parameters()]
    assert is_good(LLPClassifier(model=module, epochs=20, lr=1e-2, random_state=0).fit(X, lots, share))
    assert all(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))  # a copy was trained
