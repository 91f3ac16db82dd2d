"""Choosing without labels in Python: folds of whole bags, and a search that is judged by them."""

import math
import pickle
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import loguniform, randint
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchllp import BagKFold, Bags, LLPClassifier, LLPError, LLPSearchCV, create_method
from torchllp.functional import whole_counts
from torchllp.metrics import count_score

QUICK: dict[str, Any] = {"epochs": 5, "instances_per_step": 64, "held_out": 0.0, "random_state": 0, "threads": 1}


def make(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes that are easily told apart, in bags of very different shares."""
    generator = np.random.default_rng(seed)
    bags = generator.integers(10, 30, size=200)  # whose order is the same by number and by text
    y = (generator.random(200) < generator.random(30)[bags]).astype(int)
    return generator.normal(size=(200, 3)) + 3 * y[:, None], bags, y


X, BAGS, Y = make()
SHARE = {bag: Y[bag == BAGS].mean() for bag in range(10, 30)}
LR = {"lr": [1e-5, 1e-2]}


def quick(method: Any = "dllp", **options: Any) -> LLPClassifier:
    return LLPClassifier(method, **QUICK | options)


@pytest.fixture(scope="module")
def fitted() -> LLPClassifier:
    return quick(lr=1e-2).fit(X, BAGS, SHARE)


@pytest.fixture(scope="module")
def search() -> LLPSearchCV:
    return LLPSearchCV(quick(), LR, cv=3, random_state=0).fit(X, BAGS, SHARE)


class TestBagKFold:
    @given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=40), data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_folds_are_whole_disjoint_and_balanced(self, sizes: list[int], data: st.DataObject) -> None:
        n_splits = data.draw(st.integers(2, len(sizes)))
        ids = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
        tests = []
        for train, test in BagKFold(n_splits, random_state=data.draw(st.integers(0, 99))).split(ids, ids):
            assert not {*ids[train].tolist()} & {*ids[test].tolist()}
            assert sorted([*train, *test]) == list(range(len(ids)))
            tests.append(test)
        assert sorted(row for test in tests for row in test) == list(range(len(ids)))
        num_bags = [len({*ids[test].tolist()}) for test in tests]
        num_rows = [len(test) for test in tests]
        assert max(num_bags) - min(num_bags) <= 1
        assert max(num_rows) - min(num_rows) <= max(sizes)

    def test_as_even_as_possible_where_that_is_known(self) -> None:
        sizes = [9, 8, 7, 6, 5, 4]
        ids = np.repeat(range(6), sizes)
        found = sorted(len(test) for _, test in BagKFold(2, random_state=0).split(ids, ids))
        best = min(abs(sum(sizes) - 2 * sum(half)) for half in combinations(sizes, 3))
        assert found[1] - found[0] == best

    def test_ids_of_every_kind(self) -> None:
        tuples = [("Monday", 1), ("Monday", 2), ("Tuesday", 1)] * 4
        for ids in (
            tuples,
            pd.DataFrame(tuples, columns=["day", "shift"]),
            pd.Series([str(bag) for bag in tuples]),
            pl.Series([str(bag) for bag in tuples]),
            [1, "one", None] * 4,
        ):
            keys = ids.itertuples() if isinstance(ids, pd.DataFrame) else ids
            keys = [key[1:] if isinstance(ids, pd.DataFrame) else key for key in keys]
            folds = [{keys[row] for row in test} for _, test in BagKFold(3, random_state=0).split(np.zeros(12), ids)]
            assert Counter(map(len, folds)) == {1: 3}

    def test_groups_go_before_y(self) -> None:
        for _, test in BagKFold(2, random_state=0).split(X, Y, BAGS):
            assert not {*BAGS[test].tolist()} & {*np.delete(BAGS, test).tolist()}

    def test_the_same_number_gives_the_same_folds(self) -> None:
        def folds(seed: int) -> list[list[int]]:
            return [test.tolist() for _, test in BagKFold(3, random_state=seed).split(X, BAGS)]

        assert folds(0) == folds(0) != folds(1)
        assert repr(BagKFold(3, random_state=1)) == "BagKFold(n_splits=3, random_state=1)"

    @pytest.mark.parametrize(
        ("n_splits", "ids", "message"),
        [
            (3, ["a", "b", "a"], "2 bags cannot be split into 3 folds"),
            (1, ["a", "b"], "into 1 folds"),
            (2, None, "y or groups"),
        ],
    )
    def test_what_cannot_be_split(self, n_splits: int, ids: Any, message: str) -> None:
        with pytest.raises(LLPError, match=message):
            list(BagKFold(n_splits).split(np.zeros(3 if ids is None else len(ids)), ids))

    @pytest.mark.parametrize("routing", [False, True])
    def test_in_cross_validation(self, routing: bool) -> None:
        with sklearn.config_context(enable_metadata_routing=routing):
            classifier, params = quick(lr=1e-2), {"proportions": SHARE}
            if routing:
                classifier.set_fit_request(proportions=True).set_score_request(proportions=True)
                scores = cross_val_score(classifier, X, BAGS, cv=BagKFold(3, random_state=0), params=params)
            else:  # without routing only fit gets them, so the scorer is given them by hand
                scores = cross_val_score(
                    classifier,
                    X,
                    BAGS,
                    cv=BagKFold(3, random_state=0),
                    params=params,
                    scoring=lambda fitted, x, bags: fitted.score_bags(x, bags, SHARE),
                )
        expected = [
            quick(lr=1e-2).fit(X[train], BAGS[train], SHARE).score_bags(X[test], BAGS[test], SHARE)
            for train, test in BagKFold(3, random_state=0).split(X, BAGS)
        ]
        assert scores.tolist() == pytest.approx(expected)


class TestScoreBags:
    def test_by_plain_loops(self, fitted: LLPClassifier) -> None:
        x, bags, y = make(seed=1)
        share = {bag: y[bag == bags].mean() for bag in range(10, 30)}
        p = fitted.predict_proba(x)
        mae = np.mean([abs(p[bag == bags, 1].mean() - share[bag]) for bag in range(10, 30)])
        assert fitted.score_bags(x, bags, share, criterion="bag_mae") == pytest.approx(-mae, rel=1e-5)
        prior = np.array([(c == Y).sum() + 0.5 for c in range(2)]) / 201
        assert fitted.class_prior_ == pytest.approx(prior)
        counts = [
            whole_counts(np.array([1 - share[bag], share[bag]]), int((bag == bags).sum())) for bag in range(10, 30)
        ]
        arrays = (np.log(p), bags - 10, np.stack(counts), prior)
        score = float(count_score(*map(torch.from_numpy, arrays)))
        assert score > 0.05  # better than the prior
        assert fitted.score_bags(x, bags, share, criterion="count_score") == pytest.approx(score, rel=1e-5)

    def test_an_unknown_criterion(self, fitted: LLPClassifier) -> None:
        with pytest.raises(LLPError, match="unknown criterion 'bag_lk': did you mean 'bag_kl'"):
            fitted.score_bags(X, BAGS, SHARE, criterion="bag_lk")  # pyrefly: ignore

    def test_the_prior_is_saved(self, fitted: LLPClassifier, tmp_path: Any) -> None:
        fitted.save(tmp_path / "saved")
        loaded = LLPClassifier.load(tmp_path / "saved")
        for criterion in ("bag_kl", "bag_mae", "count_score"):
            score = fitted.score_bags(X, BAGS, SHARE, criterion=criterion)
            assert loaded.score_bags(X, BAGS, SHARE, criterion=criterion) == score


class TestOptions:
    def test_one_of_the_options_can_be_set(self) -> None:
        classifier = LLPClassifier(method_options={"beta_bag": 1.0})
        before = classifier.method_options
        classifier.set_params(method_options__beta_instance=2.0, lr=0.5, model_options__width=3)
        assert classifier.method_options == {"beta_bag": 1.0, "beta_instance": 2.0}
        assert classifier.model_options == {"width": 3} and classifier.lr == 0.5
        assert before == {"beta_bag": 1.0}
        for params in (
            {"method_options": {"beta_bag": 3.0}, "method_options__beta_instance": 4.0},
            {"method_options__beta_instance": 4.0, "method_options": {"beta_bag": 3.0}},
        ):
            assert classifier.set_params(**params).method_options == {"beta_bag": 3.0, "beta_instance": 4.0}
        with pytest.raises(ValueError, match="Invalid parameter 'options'"):
            classifier.set_params(options__beta_bag=1)

    def test_a_method_that_is_an_object(self, tmp_path: Any) -> None:
        method = create_method("ahil", beta_bag=5.0)
        named = quick("ahil", method_options={"beta_bag": 5.0}).fit(X, BAGS, SHARE)
        own = clone(quick(method)).fit(X, BAGS, SHARE)
        assert (own.predict_proba(X) == named.predict_proba(X)).all()
        with pytest.raises(LLPError, match=r"the method is an object \(AHIL\)"):
            own.save(tmp_path / "own")
        assert not (tmp_path / "own").exists()
        with pytest.raises(LLPError, match="method_options are for a method that is made here"):
            quick(method, method_options={"beta_bag": 1.0}).fit(X, BAGS, SHARE)
        with pytest.raises(LLPError, match="learns features and no classes"):
            quick(create_method("simclr")).fit(X, BAGS, SHARE)


class TestLLPSearchCV:
    @pytest.mark.parametrize("scoring", ["bag_kl", "bag_mae", "count_score"])
    def test_scores_are_those_of_plain_loops(self, scoring: Any) -> None:
        search = LLPSearchCV(quick(), LR, cv=3, scoring=scoring, random_state=0).fit(X, BAGS, SHARE)
        for candidate, lr in enumerate(LR["lr"]):
            for fold, (train, test) in enumerate(BagKFold(3, random_state=0).split(X, BAGS)):
                fitted = quick(lr=lr).fit(X[train], BAGS[train], SHARE)
                score = fitted.score_bags(X[test], BAGS[test], SHARE, criterion=scoring)
                assert search.cv_results_[f"split{fold}_test_score"][candidate] == pytest.approx(score)
        assert search.best_params_ == {"lr": 1e-2}  # the other has not begun to learn
        assert search.best_score_ == search.cv_results_["mean_test_score"].max()
        assert search.score(X, BAGS, proportions=SHARE) == search.best_estimator_.score_bags(
            X, BAGS, SHARE, criterion=scoring
        )

    def test_the_best_is_fitted_to_all_bags(self, search: LLPSearchCV) -> None:
        best = quick(lr=1e-2).fit(X, BAGS, SHARE)
        assert (search.predict(X) == best.predict(X)).all()
        assert search.predict_proba(X) == pytest.approx(best.predict_proba(X))
        assert search.predict_log_proba(X) == pytest.approx(best.predict_log_proba(X))
        assert search.score(X, Y) == best.score(X, Y) > 0.9
        assert search.classes_.tolist() == [0, 1] and search.n_features_in_ == 3 and search.n_splits_ == 3
        again = pickle.loads(pickle.dumps(search))
        assert (again.predict(X) == best.predict(X)).all()

    def test_without_refit_nothing_predicts(self) -> None:
        search = LLPSearchCV(quick(epochs=1), LR, cv=2, refit=False).fit(X, BAGS, SHARE)
        assert search.best_params_["lr"] in LR["lr"] and not hasattr(search, "classes_")
        with pytest.raises(LLPError, match="refit=False"):
            search.predict(X)

    def test_clones(self) -> None:
        copy = clone(LLPSearchCV(quick(lr=0.5), LR, n_iter=2, cv=BagKFold(4)))
        assert copy.estimator.lr == 0.5 and copy.n_iter == 2 and copy.cv.n_splits == 4
        assert copy.set_params(estimator__lr=0.1).estimator.lr == 0.1

    @pytest.mark.parametrize("routing", [False, True])
    def test_a_pipeline_needs_no_routing(self, routing: bool) -> None:
        inner = make_pipeline(StandardScaler(), quick())
        pipeline = make_pipeline(StandardScaler(), inner)
        space = {"pipeline__llpclassifier__lr": [1e-5, 1e-2]}
        frame = pd.DataFrame(X, columns=list("abc"))
        with sklearn.config_context(enable_metadata_routing=routing):
            search = LLPSearchCV(pipeline, space, cv=2, scoring="count_score", random_state=0).fit(frame, BAGS, SHARE)
            assert search.best_params_ == {"pipeline__llpclassifier__lr": 1e-2}
            assert search.score(frame, Y) > 0.9 and search.score(frame, BAGS, proportions=SHARE) > 0
            assert search.feature_names_in_.tolist() == ["a", "b", "c"]

    def test_as_many_bags_as_rows(self) -> None:
        """Where scikit-learn would cut the mapping with the rows: bags of one row, or bags that have none here."""
        x, y = X[:20], Y[:20]
        ones = {f"bag {row}": {"good": 1.0 - label, "bad": float(label)} for row, label in enumerate(y)}
        search = LLPSearchCV(quick(), LR, cv=2, random_state=0).fit(x, list(ones), ones)
        assert search.classes_.tolist() == ["good", "bad"] and np.isfinite(search.best_score_)
        more = {bag: SHARE.get(bag, 0.5) for bag in range(len(X))}
        found = LLPSearchCV(quick(), LR, cv=2, random_state=0).fit(X, BAGS, more)
        expected = LLPSearchCV(quick(), LR, cv=2, random_state=0).fit(X, BAGS, SHARE)
        assert found.best_score_ == expected.best_score_

    def test_every_form_of_proportions_says_the_same(self, search: LLPSearchCV) -> None:
        table = np.array([[1 - share, share] for share in SHARE.values()])
        for bags, proportions in (
            (BAGS, table),  # in sorted order of the ids, which is known before the rows are split
            (BAGS, pd.DataFrame(table, index=[*SHARE], columns=["good", "bad"])),
            (None, Bags.from_table(BAGS, dict(zip(SHARE, table, strict=True)))),
            ([f"lot {bag:02}" for bag in BAGS], {f"lot {bag:02}": share for bag, share in SHARE.items()}),
        ):
            other = LLPSearchCV(quick(), LR, cv=3, random_state=0).fit(X, bags, proportions)
            assert other.best_score_ == pytest.approx(search.best_score_)

    def test_rows_without_proportions_are_trained_on_and_judge_nothing(self) -> None:
        known = {bag: SHARE[bag] for bag in range(10, 25)}
        ids = [None if bag == 29 else bag for bag in BAGS.tolist()]
        classifier = quick(lr=1e-2, unlabelled="keep")
        search = LLPSearchCV(classifier, {"lr": [1e-2]}, cv=3, random_state=0).fit(X, ids, known)
        judges = np.flatnonzero(BAGS < 25)
        for fold, (_, test) in enumerate(BagKFold(3, random_state=0).split(judges, BAGS[judges])):
            rows = judges[test]
            train = np.setdiff1d(np.arange(len(X)), rows)
            fitted = clone(classifier).fit(X[train], [ids[row] for row in train], known)
            score = fitted.score_bags(X[rows], BAGS[rows], known)
            assert search.cv_results_[f"split{fold}_test_score"][0] == pytest.approx(score)

    def test_draws_of_methods_and_their_numbers(self) -> None:
        space = [
            {"method": ["rot"], "method_options__rounds": randint(1, 9), "lr": loguniform(1e-4, 1e-1)},
            {"method": ["dllp"], "lr": loguniform(1e-4, 1e-1)},
        ]
        found = [
            LLPSearchCV(quick(epochs=1), space, n_iter=4, cv=2, random_state=3, refit=False).fit(X, BAGS, SHARE)
            for _ in range(2)
        ]
        drawn = found[0].cv_results_["params"]
        assert len(drawn) == 4 and {params["method"] for params in drawn} == {"rot", "dllp"}
        assert drawn == found[1].cv_results_["params"]
        assert np.isfinite(found[0].cv_results_["mean_test_score"]).all()

    def test_in_several_processes(self, search: LLPSearchCV) -> None:
        other = LLPSearchCV(quick(), LR, cv=3, random_state=0, n_jobs=2).fit(X, BAGS, SHARE)
        assert other.cv_results_["mean_test_score"] == pytest.approx(search.cv_results_["mean_test_score"])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scoring": "accuracy"}, "unknown scoring 'accuracy'"),
            ({"estimator": StandardScaler()}, "an LLPClassifier, or a Pipeline that ends in one"),
            ({"param_distributions": {"lr": loguniform(1e-4, 1)}}, "say by n_iter how many"),
            ({"cv": 21}, "20 bags cannot be split into 21 folds"),
            ({"cv": "five"}, "a number of folds or a splitter"),
            ({"cv": KFold(3)}, "cv cuts bags in two"),
        ],
    )
    def test_what_makes_no_sense(self, options: dict[str, Any], message: str) -> None:
        arguments: dict[str, Any] = {"estimator": quick(), "param_distributions": LR} | options
        with pytest.raises(LLPError, match=message):
            LLPSearchCV(**arguments).fit(X, BAGS, SHARE)

    def test_bags_beside_y(self, search: LLPSearchCV) -> None:
        other = LLPSearchCV(quick(), LR, cv=3, random_state=0).fit(X, Y, SHARE, bags=BAGS)
        assert other.best_score_ == search.best_score_

    def test_rows_in_no_bag_and_bags_of_which_nothing_is_known(self) -> None:
        random = Bags.random(Y, bag_size=9, seed=0)
        assert (random.bag_of < 0).any()
        kept = Bags.from_table(BAGS.tolist(), {b: [1 - p, p] for b, p in SHARE.items() if b != 12}, unlabelled="keep")
        for bags in (random, kept):
            search = LLPSearchCV(quick(), LR, cv=3, random_state=0).fit(X, proportions=bags)
            assert search.best_params_ == {"lr": 1e-2}
            assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        direct = quick(lr=1e-2).fit(X, proportions=kept)  # whose bags have the same order by number and by text
        np.testing.assert_allclose(search.predict_proba(X), direct.predict_proba(X), atol=1e-5)

    def test_classes_may_be_an_array(self) -> None:
        frame = pd.DataFrame({"good": 1 - pd.Series(SHARE), "bad": pd.Series(SHARE), "size": 5})
        search = LLPSearchCV(quick(classes=np.array(["good", "bad"])), LR, cv=3, random_state=0).fit(X, BAGS, frame)
        assert search.classes_.tolist() == ["good", "bad"]

    def test_bags_are_needed(self) -> None:
        with pytest.raises(LLPError, match="judged by the proportions of bags"):
            LLPSearchCV(quick(), LR).fit(X, Y)
        with pytest.raises(LLPError, match="row 0 is in bag"):
            LLPSearchCV(quick(), LR).fit(X, BAGS, {99: 0.5})

    def test_another_splitter(self) -> None:
        search = LLPSearchCV(quick(lr=1e-2), {"epochs": [1]}, cv=GroupKFold(4)).fit(X, BAGS, SHARE)
        assert search.n_splits_ == 4


def test_uncertain_bags_are_searched_by_as_what_they_are() -> None:
    generator = np.random.default_rng(0)
    bags = np.arange(240) // 12
    y = (generator.random(240) < generator.random(20)[bags]).astype(int)
    x = generator.normal(size=(240, 2)) + 3 * y[:, None]
    counts = {bag: [12 - y[bags == bag].sum() + 1, y[bags == bag].sum() - 1] for bag in range(20)}  # some are below 0
    counts[3] = [math.nan, counts[3][1]]
    noisy = LLPClassifier("dllp", epochs=40, bag_noise="laplace", bag_noise_scale=1.0, random_state=0, threads=1)
    search = LLPSearchCV(noisy, {"lr": [1e-6, 1e-2]}, cv=2, scoring="count_score", random_state=0)
    assert search.fit(x, bags, counts).best_params_ == {"lr": 1e-2}
    frame = pd.DataFrame.from_dict(counts, orient="index", columns=["no", "yes"])
    with pytest.raises(LLPError, match="searched by as a mapping"):
        search.fit(x, bags, frame)
