"""To say how counts were reported is better than to take them for exact: digits, with noise that is simulated.

The larger table is benchmarks/noisy_counts.py.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from torchllp import Bags, LLPClassifier

PIXELS, LABELS = load_digits(return_X_y=True)
TRAIN = np.random.default_rng(0).random(len(LABELS)) < 0.75


def loss(bags: Bags, seed: int, term: str) -> float:
    """On the test rows, after a training in which no epoch is chosen."""
    options = {"bag_term": term}
    classifier = LLPClassifier(
        "dllp", method_options=options, epochs=15, lr=3e-3, held_out=0.0, random_state=seed, threads=1
    )
    classifier.fit(PIXELS[TRAIN], proportions=bags)
    return log_loss(LABELS[~TRAIN], classifier.predict_proba(PIXELS[~TRAIN]))


def test_the_log_loss_is_lower_than_with_reports_that_are_plugged_in() -> None:
    lower = 0
    for seed in range(5):
        exact = Bags.random(LABELS[TRAIN], bag_size=16, seed=seed)
        reported = exact.counts + np.random.default_rng(seed).normal(0, 2, exact.counts.shape)
        fields = {"bag_of": exact.bag_of, "bag_ids": exact.bag_ids, "is_labelled": exact.is_labelled}
        noisy = Bags.from_table(
            exact.bag_of[exact.members], dict(enumerate(reported)), values="counts", noise="gaussian", noise_scale=2
        )
        fields |= {"proportions": noisy.proportions, "class_names": noisy.class_names}
        known = Bags(**fields, reported=noisy.reported, noise=noisy.noise)
        lower += loss(known, seed, "count") < loss(Bags(**fields), seed, "mean")
    assert lower >= 4
