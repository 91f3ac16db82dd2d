"""Which visitor buys, when an advertiser is told only noisy totals? A classifier from private conversion reports.

    python examples/ads.py --data-dir DIR

DIR has tabular/bank-additional-full.csv (UCI Bank Marketing, CC BY 4.0): 41,188 contacts, of which 11 % bought. Read it
as advertising: browsers report conversions by campaign (here month, day of the week and job) and never by person, with
a random whole number added to each count, so that nobody's purchase shows (discrete Laplace noise, epsilon 0.2). Small
campaigns then have counts below 0 or above their size. Two classifiers are made of such reports: one takes them at
their word, the other knows how the noise was drawn. Both are tested on other visitors, beside one that had the true
counts.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score

from torchllp import LLPClassifier

EPSILON = 0.2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("TORCHLLP_DATA", "data")))
    source = parser.parse_args().data_dir / "tabular" / "bank-additional-full.csv"
    if not source.is_file():
        print(f"skipped: there is no {source}; get it from UCI's Bank Marketing data and say where it is by --data-dir")
        return
    visitors = pd.read_csv(source, sep=";")
    bought = visitors["y"] == "yes"
    features = visitors.drop(columns=["y", "duration"])  # of the call, which nobody knows before it
    campaign = visitors["month"] + " " + visitors["day_of_week"] + " " + visitors["job"]

    generator = np.random.default_rng(0)
    later = generator.random(len(visitors)) < 0.2
    counts = pd.crosstab(campaign[~later], bought[~later].map({False: "no", True: "yes"}))
    ratio = np.exp(-EPSILON)  # the difference of two geometric numbers is a discrete Laplace number
    noise = generator.geometric(1 - ratio, counts.shape) - generator.geometric(1 - ratio, counts.shape)
    reports = counts + noise
    sizes, below = counts.sum(axis=1), (reports < 0).sum().sum()
    print(f"{len(reports)} campaigns of {sizes.median():.0f} visitors in the median; {below} numbers are below 0")

    settings = {"epochs": 10, "random_state": 0, "threads": 1}
    at_their_word = reports.clip(lower=0).add(1e-6)  # the nearest that proportions can be made of
    print(f"{'':34}{'log-loss':>9}{'AUC':>7}")
    for name, proportions, more in (
        ("true counts", counts, {}),
        ("noisy counts at their word", at_their_word, {"normalize": True}),
        (
            "noisy counts as what they are",
            reports,
            {"bag_noise": "laplace", "bag_noise_scale": EPSILON, "method_options": {"bag_term": "count"}},
        ),
    ):
        classifier = LLPClassifier("dllp", **settings, **more).fit(features[~later], campaign[~later], proportions)
        yes = classifier.predict_proba(features[later])[:, list(classifier.classes_).index("yes")]
        print(f"{name:34}{log_loss(bought[later], yes):9.4f}{roc_auc_score(bought[later], yes):7.3f}", flush=True)


if __name__ == "__main__":
    main()
