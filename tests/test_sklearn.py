"""LLPClassifier as an estimator: inputs, bags, errors, cross-validation, files."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from torchllp import Bags, LLPClassifier, LLPError
from torchllp.views.table import TableViews

QUICK: dict[str, Any] = {"epochs": 5, "lr": 0.01, "instances_per_step": 64, "held_out": 0.0, "random_state": 0}


def make(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers of two classes that are easily told apart, in bags of very different shares."""
    generator = np.random.default_rng(seed)
    bags = generator.integers(30, size=300)
    y = (generator.random(300) < generator.random(30)[bags]).astype(int)
    return np.rint(40 + 10 * generator.normal(size=(300, 3)) + 25 * y[:, None]).clip(0, 255), bags, y


X, BAGS, Y = make()
SHARE = {bag: Y[bag == BAGS].mean() for bag in range(30)}
BOTH = {bag: [1 - share, share] for bag, share in SHARE.items()}
FRAME = pd.DataFrame.from_dict(BOTH, orient="index", columns=["good", "bad"])
COUNTS = pd.crosstab(pd.Series(BAGS, name="lot"), pd.Series(np.where(Y, "bad", "good"), name="class"))


def quick(**options: Any) -> LLPClassifier:
    return LLPClassifier(**QUICK | options)


@pytest.fixture(scope="module")
def fitted() -> LLPClassifier:
    return quick().fit(X, BAGS, SHARE)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@parametrize_with_checks([LLPClassifier()])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    """All of them, with no expected failure."""
    check(estimator)


class TestInputs:
    @pytest.mark.parametrize(
        "convert",
        [
            lambda x: x.astype(np.float16),
            lambda x: x.astype(np.float32),
            lambda x: x.astype(np.longdouble),
            lambda x: x.astype(np.int32),
            lambda x: x.astype(np.uint8),
            lambda x: x.astype(">f8"),
            lambda x: x.astype(object),
            lambda x: np.asfortranarray(x),
            lambda x: x.tolist(),
            lambda x: torch.from_numpy(x),
            lambda x: torch.from_numpy(x).to(torch.bfloat16),
            lambda x: pd.DataFrame(x, columns=list("abc")),
            lambda x: pd.DataFrame(x, index=pd.Index(range(7, 307), name="part")),
            lambda x: pl.DataFrame(x.astype(np.int16), schema=list("abc")),
            lambda x: pa.table(dict(zip("abc", x.T, strict=True))),
        ],
    )
    def test_the_same_numbers_in_any_form_give_the_same(self, convert: Any, fitted: LLPClassifier) -> None:
        other = quick().fit(convert(X), BAGS, SHARE)
        assert other.n_features_in_ == 3
        # float16 and bfloat16 hold all of these numbers
        np.testing.assert_array_equal(other.predict_proba(convert(X)), fitted.predict_proba(X))

    def test_it_learns(self, fitted: LLPClassifier) -> None:
        assert fitted.score(X, Y) > 0.9
        assert fitted.score(make(1)[0], make(1)[2]) > 0.9

    def test_frames_with_categories(self) -> None:
        generator = np.random.default_rng(1)
        frame = pd.DataFrame(
            {
                "noise": generator.normal(size=300),
                "text": np.where(Y, "red", "blue"),
                "category": pd.Categorical(np.where(Y, 7, 3)),
                "code": np.where(Y, 1, 2) + 2 * generator.integers(2, size=300),
            }
        )
        frame.loc[:9, "noise"] = np.nan
        for columns in (["noise", "text"], ["noise", "category"]):
            assert quick().fit(frame[columns], BAGS, SHARE).score(frame[columns], Y) > 0.95
        numbers = frame[["noise", "code"]]
        named = quick(categorical_features=["code"]).fit(numbers, BAGS, SHARE)
        assert named.score(numbers, Y) > 0.95 and named.model_.body[1].in_features == 5
        assert named.feature_names_in_.tolist() == ["noise", "code"]
        placed = quick(categorical_features=np.array([1])).fit(numbers.to_numpy(), BAGS, SHARE)
        np.testing.assert_array_equal(placed.predict_proba(numbers.to_numpy()), named.predict_proba(numbers))
        mixed = frame[["noise", "text"]].to_numpy()
        assert quick(categorical_features=[1]).fit(mixed, BAGS, SHARE).score(mixed, Y) > 0.95
        with pytest.raises(ValueError, match="could not convert string to float"):
            quick().fit(mixed, BAGS, SHARE)
        with pytest.raises(LLPError, match="no column 'colour'"):
            quick(categorical_features=["colour"]).fit(frame, BAGS, SHARE)

    def test_missing_numbers_are_the_mean(self) -> None:
        x = X.copy()
        x[::7, 0] = np.nan
        assert quick().fit(x, BAGS, SHARE).score(x, Y) > 0.9
        x[3, 2] = np.inf
        with pytest.raises(ValueError, match="infinity"):
            quick().fit(x, BAGS, SHARE)

    def test_columns_must_be_those_fitted_to(self) -> None:
        frame = pd.DataFrame(X, columns=list("abc"))
        with pytest.raises(LLPError, match="X: two columns are called 'a'"):
            quick().fit(frame.set_axis(["a", "a", "b"], axis=1), BAGS, BOTH)
        fitted = quick(epochs=1).fit(frame, BAGS, SHARE)
        with pytest.raises(ValueError, match="same order"):
            fitted.predict(frame[["b", "a", "c"]])
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(frame.rename(columns={"a": "z"}))
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            np.testing.assert_array_equal(fitted.predict(X), fitted.predict(frame))

    def test_sparse_matrices_are_refused(self) -> None:
        import scipy.sparse

        with pytest.raises(TypeError, match="Sparse data was passed"):
            quick().fit(scipy.sparse.csr_matrix(X), BAGS, SHARE)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    digits: Any = load_digits()
    rows = digits.target < 2
    labels = digits.target[rows]
    bags = np.random.default_rng(0).integers(60, size=len(labels))
    return np.rint(digits.images[rows, None] * (255 / 16)).astype(np.uint8), bags, labels


class TestImages:
    def test_any_layout_and_scale_gives_the_same(self, digits: tuple[np.ndarray, ...]) -> None:
        images, bags, labels = digits
        shares = {bag: labels[bags == bag].mean() for bag in np.unique(bags)}
        options = {"epochs": 12, "held_out": 0.0, "random_state": 0}
        first = LLPClassifier(**options).fit(images, bags, shares)
        assert first.score(images, labels) > 0.95 and first.n_features_in_ == 64
        for other in (
            np.moveaxis(images, 1, 3),
            images.astype(np.int64),
            images / np.float64(255),
            torch.tensor(images),
        ):
            again = LLPClassifier(**options).fit(other, bags, shares)
            np.testing.assert_array_equal(again.predict_proba(other), first.predict_proba(images))

    def test_errors_name_the_image(self, digits: tuple[np.ndarray, ...]) -> None:
        images, _, labels = digits
        fitted = LLPClassifier("dllp", "mlp", epochs=1).fit(images, labels)
        for wrong, message in (
            (images[:, :, :4], r"trained on images of shape \(1, 8, 8\), not \(1, 4, 8\)"),
            (images / 255, "levels from 0 to 255, and these are float64"),
            (
                images.astype(int) + (np.arange(len(images)) == 5)[:, None, None, None] * 300,
                r"image 5: the value 3\d\d",
            ),
            (images.reshape(len(images), -1), "was fitted to images, and these are rows"),
            (pl.DataFrame(images.reshape(len(images), -1)), "was fitted to images, and these are rows"),
        ):
            with pytest.raises(LLPError, match=message):
                fitted.predict(wrong)
        with pytest.raises(LLPError, match="1 or 3 channels"):
            LLPClassifier().fit(np.zeros((4, 2, 8, 8)), [0, 1, 0, 1])
        with pytest.raises(LLPError, match="was fitted to rows, and these are images"):
            quick(epochs=1).fit(X, BAGS, SHARE).predict(images)
        with pytest.raises(LLPError, match="only images can be mirrored"):
            quick(flip=True).fit(X, BAGS, SHARE)


class TestBagIds:
    @pytest.mark.parametrize(
        "convert",
        [
            list,
            np.int32,
            np.float64,
            torch.tensor,
            pd.Series,
            pl.Series,
            pa.array,
            lambda ids: pd.DataFrame({"lot": ids}),
        ],
    )
    def test_the_same_ids_in_any_form_give_the_same(self, convert: Any, fitted: LLPClassifier) -> None:
        other = quick().fit(X, convert(BAGS), SHARE)
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))

    @pytest.mark.parametrize(
        "name",
        [
            lambda bag: f"lot {bag}",
            lambda bag: ("press", bag),
            lambda bag: bag / 7,
            lambda bag: pd.Timestamp("2026-01-01") + pd.Timedelta(days=bag),
            lambda bag: bag if bag % 2 else f"lot {bag}",
            lambda bag: frozenset([bag]),
        ],
    )
    def test_ids_are_any_hashable_values(self, name: Any) -> None:
        shares = {name(bag): share for bag, share in SHARE.items()}
        ids = [name(bag) for bag in BAGS.tolist()]
        fitted = quick().fit(X, ids, shares)
        assert fitted.score(X, Y) > 0.9
        assert fitted.predict_bags(X, ids).keys() == shares.keys()

    def test_ids_in_arrays_are_those_of_python(self) -> None:
        tens, ones = BAGS // 10, BAGS % 10
        shares = {(bag // 10, bag % 10): share for bag, share in SHARE.items()}
        pairs = zip(tens.astype(np.int32), ones.astype(float), strict=True)
        assert quick().fit(X, list(pairs), shares).score(X, Y) > 0.9
        days = np.datetime64("2026-01-01", "ns") + BAGS * np.timedelta64(1, "D")
        by_day = {pd.Timestamp("2026-01-01") + pd.Timedelta(days=bag): share for bag, share in SHARE.items()}
        fitted = quick().fit(X, days, by_day)
        assert fitted.score(X, Y) > 0.9 and fitted.predict_bags(X, days).keys() == by_day.keys()

    def test_several_columns_are_an_id_together(self) -> None:
        columns = pd.DataFrame({"tens": BAGS // 10, "ones": BAGS % 10})
        shares = columns.assign(bad=Y).groupby(["tens", "ones"])[["bad"]].mean()
        assert quick().fit(X, columns, shares).score(X, np.where(Y, "bad", "not bad")) > 0.9

    def test_ids_that_look_alike_are_refused(self) -> None:
        with pytest.raises(LLPError, match="the bag ids 7 and '7' look alike"):
            quick().fit(X[:3], [7, "7", 7], {7: 0.5, "7": 0.5})
        with pytest.raises(LLPError, match="the bag ids 0 and '0' look alike"):
            quick().fit(X[:2], [0, 1], {"0": 0, "1": 1})


class TestProportions:
    @pytest.mark.parametrize(
        "form",
        [
            BOTH,
            {bag: np.array(row) for bag, row in BOTH.items()},
            pd.Series(SHARE, name="anything"),
            np.array(list(SHARE.values())),
            list(BOTH.values()),
            torch.tensor(list(BOTH.values()), dtype=torch.float64),
            SHARE | {99: 0.5},
            {bag: [(bag == BAGS).sum() - Y[bag == BAGS].sum(), Y[bag == BAGS].sum()] for bag in range(30)},
            Bags.from_labels(BAGS, Y),
        ],
    )
    def test_classes_without_names_are_numbers(self, form: Any, fitted: LLPClassifier) -> None:
        other = quick().fit(X, BAGS, form)
        np.testing.assert_array_equal(other.classes_, [0, 1])
        assert other.classes_.dtype.kind == "i"
        np.testing.assert_allclose(other.predict_proba(X), fitted.predict_proba(X), atol=1e-4)

    @pytest.mark.parametrize(
        "form",
        [
            FRAME,
            FRAME.rename_axis("bag").reset_index(),
            FRAME.rename_axis("lot").reset_index(),
            pl.DataFrame(FRAME.rename_axis("lot").reset_index()),
            pa.table(FRAME.rename_axis("lot").reset_index()),
            COUNTS[["good", "bad"]],
            COUNTS.assign(size=COUNTS.sum(axis=1))[["size", "good", "bad"]],
            {bag: {"good": row[0], "bad": row[1]} for bag, row in BOTH.items()},
            Bags.from_labels(BAGS, Y, class_names=["good", "bad"]),
        ],
    )
    def test_names_are_those_of_the_columns(self, form: Any, fitted: LLPClassifier) -> None:
        other = quick().fit(X, pd.Series(BAGS, name="lot"), form)
        assert other.classes_.tolist() == ["good", "bad"]
        np.testing.assert_allclose(other.predict_proba(X), fitted.predict_proba(X), atol=1e-4)

    def test_one_column_is_the_share_of_its_class(self, fitted: LLPClassifier) -> None:
        for form in (FRAME[["bad"]], COUNTS[["bad"]]):
            one = quick().fit(X, BAGS, form)
            assert one.classes_.tolist() == ["not bad", "bad"]
            np.testing.assert_allclose(one.predict_proba(X), fitted.predict_proba(X), atol=1e-4)
        one = quick(classes=["good", "bad"]).fit(X, BAGS, FRAME[["good"]])
        assert one.classes_.tolist() == ["good", "bad"]
        np.testing.assert_allclose(one.predict_proba(X), fitted.predict_proba(X), atol=1e-4)
        assert one.score_bags(X, BAGS, FRAME[["good"]]) == pytest.approx(one.score_bags(X, BAGS, FRAME[["bad"]]))
        zero_or_one = pd.DataFrame({"bad": [0, 1]}, index=["a", "b"])
        assert quick().fit(X[:4], list("aabb"), zero_or_one).classes_.tolist() == ["not bad", "bad"]

    def test_counts_stay_counts_in_a_part_of_the_rows(self, fitted: LLPClassifier) -> None:
        few = np.isin(BAGS, [bag for bag in range(30) if COUNTS.bad[bag] <= 4])
        assert few.any()
        for form in (COUNTS.bad, COUNTS[["good", "bad"]]):
            labels = fitted.predict_in_bags(X[few], BAGS[few], form)
            assert labels.sum() == COUNTS.bad[np.unique(BAGS[few])].sum()
        ones = {"a": 1, "b": 0, "c": 3}  # 1 of 2, though alone it could be a share
        assert fitted.predict_in_bags(X[:4], list("aabb"), ones).sum() == 1

    def test_the_parameter_classes_names_orders_and_selects(self, fitted: LLPClassifier) -> None:
        named = quick(classes=["good", "bad"]).fit(X, BAGS, SHARE)
        np.testing.assert_array_equal(named.predict(X), np.array(["good", "bad"])[fitted.predict(X)])
        turned = quick(classes=["bad", "good"]).fit(X, BAGS, FRAME.assign(comment="x"))
        assert turned.score(X, np.where(Y, "bad", "good")) > 0.9
        assert turned.score_bags(X, BAGS, FRAME) > -0.1
        renamed = quick(classes=np.array([0, 1])).fit(X, BAGS, FRAME)
        assert renamed.score(X, Y) > 0.9
        with pytest.raises(LLPError, match="nothing is said of class 'ugly'"):
            quick(classes=["good", "bad", "ugly"]).fit(X, BAGS, FRAME)
        with pytest.raises(LLPError, match="has 2 classes and not the 3"):
            quick(classes=[0, 1, 2]).fit(X, BAGS, SHARE)

    def test_bags_bring_their_rows(self, fitted: LLPClassifier) -> None:
        bags = Bags.random(Y, bag_size=8, seed=0)
        other = quick().fit(X, proportions=bags)
        assert other.score(X, Y) > 0.9 and other.score(X, proportions=bags) > -0.1
        named = Bags.random(Y, bag_size=8, seed=0, class_names=["good", "bad"])
        turned = quick(classes=["bad", "good"]).fit(X, proportions=named)
        assert turned.score(X, np.where(Y, "bad", "good")) > 0.9
        assert turned.score_bags(X, None, named) > -0.1
        with pytest.raises(LLPError, match="the bags are of the classes good, bad, not good, ugly"):
            quick(classes=["good", "ugly"]).fit(X, proportions=named)
        with pytest.raises(LLPError, match="over 300 rows and X has 299"):
            quick().fit(X[1:], proportions=bags)

    def test_numbers_are_rescaled_if_asked_for(self, fitted: LLPClassifier) -> None:
        percentages = {bag: [100 * share for share in row] for bag, row in BOTH.items()}
        with pytest.raises(LLPError, match=r"sum to 100 instead of 1 .*: divide percentages by 100, or say normalize"):
            quick().fit(X, BAGS, percentages)
        rescaled = quick(normalize=True).fit(X, BAGS, percentages)
        np.testing.assert_allclose(rescaled.predict_proba(X), fitted.predict_proba(X), atol=1e-4)

    def test_an_array_that_was_cut_by_rows_is_refused(self) -> None:
        with pytest.raises(LLPError, match="one row for each row of X, as cross-validation cuts it"):
            quick().fit(X, BAGS, np.full(300, 0.5))
        with pytest.raises(LLPError, match="one row for each row of X"):  # of bags of one in another order
            quick().fit(X[:3], [2, 1, 3], [0.0, 1.0, 0.0])
        assert quick().fit(X[:3], [1, 2, 3], [0.0, 1.0, 0.0])
        with pytest.raises(LLPError, match="an array of 29 rows for 30 bags"):
            quick().fit(X, BAGS, np.full(29, 0.5))
        with pytest.raises(LLPError, match="sorted order of the bags' ids, and these have none"):
            quick().fit(X[:4], ["a", 1, 1, 1], [0.5, 0.5])

    @pytest.mark.parametrize(
        ("proportions", "message"),
        [
            (SHARE | {3: 1.2}, "bag '3': 1.2 of the second class is not from 0 to 1"),
            (BOTH | {3: [0.5, 0.2]}, "bag '3': the classes sum to 0.7 instead of 1"),
            (BOTH | {3: [1.5, -0.5]}, "bag '3': class '1' is -0.5: negative"),
            (BOTH | {3: [0.5, 0.2, 0.3]}, "bag '3' has 3 numbers in the bag table and the first bag 2"),
            (SHARE | {3: float("nan")}, "1 of the rows' bags are without any class that was observed"),
            (BOTH | {3: "many"}, "bag '3' has 'many'"),
            (BOTH | {3: {"good": 1}}, "bag 0 has .*, and other bags a mapping"),
            (SHARE | {3: "many"}, "bag '3' has 'many' in proportions, which is no number"),
            (SHARE | {3: 1000}, "bag '3': 1000 of the second class is not from 0 to 1"),
            (dict.fromkeys(SHARE, 1000), r"bag '0': 1000 of the second class is not from 0 to \d+$"),
            (FRAME.assign(bad=0.2), r"bag '0': the classes sum to 0.\d+ instead of 1"),
            (FRAME.assign(good=1.2, bad=np.nan), "bag '0': the observed classes sum to 1.2, more than 1"),
            (COUNTS.drop(index=3), "is in bag 3, which is not in proportions"),
            (COUNTS + 1, r"bag '0': the classes sum to \d+ instead of the bag's \d+ rows"),
            (pd.concat([FRAME, FRAME[:1]]), "bag 0 is there 2 times"),
            (pd.concat([pd.Series(SHARE)] * 2), "bag 0 is there 2 times"),
            (Bags.from_labels(BAGS, Y).select(np.arange(29)), "is in bag 29, which is not in proportions"),
            (pl.DataFrame(FRAME), "none of the columns good, bad is known to have the bags' ids"),
            (FRAME.set_axis(["a", "a"], axis=1), "proportions: two columns are called 'a'"),
            (BOTH | {3: ["half", 0.5]}, "bag '3' has 'half' in the bag table, which is no number"),
            (0.4, "proportions must be a mapping from bag ids, a frame, Bags or an array with a row a bag, not 0.4"),
            ("shares.csv", "proportions must be .*, not 'shares.csv'"),
        ],
    )
    def test_errors_say_where(self, proportions: Any, message: str) -> None:
        with pytest.raises(LLPError, match=message):
            quick().fit(X, BAGS, proportions)

    def test_nothing_known_of_the_bags_is_said(self) -> None:
        fitted = quick().fit(X, BAGS, BOTH)
        for use in (fitted.score_bags, fitted.predict_in_bags):
            with pytest.raises(LLPError, match=r"proportions must be .*, not None"):
                use(X, BAGS, None)


class TestRowsInNoBag:
    def test_are_refused_with_the_first(self) -> None:
        some = {bag: share for bag, share in SHARE.items() if bag not in (4, 5)}
        row = int(np.isin(BAGS, (4, 5)).argmax())
        message = (
            rf"row {row} is in bag {BAGS[row]}, which is not in proportions, whose bags are such as 0 \(2 such bags"
        )
        with pytest.raises(LLPError, match=message):
            quick().fit(X, BAGS, some)
        with pytest.raises(LLPError, match="row 1 has no bag id"):
            quick().fit(X[:3], ["a", None, "b"], {"a": 0, "b": 1})
        with pytest.raises(LLPError, match="unlabelled must be 'keep' or 'drop'"):
            quick(unlabelled="ignore").fit(X, BAGS, some)

    @pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
    @pytest.mark.parametrize("unlabelled", ["keep", "drop"])
    def test_are_kept_or_dropped(self, unlabelled: Any, missing: Any) -> None:
        some = {bag: share for bag, share in SHARE.items() if bag not in (4, 5)}
        ids = [missing, *BAGS.tolist()[1:]]
        fitted = quick(unlabelled=unlabelled).fit(X, ids, some | {BAGS[0]: 0.5})
        assert fitted.score(X, Y) > 0.85
        assert fitted.score_bags(X, ids, some) > -0.2
        assert len(fitted.predict_in_bags(X, ids, some)) == 300
        with pytest.raises(LLPError, match="no bag in the bag table"):
            fitted.score_bags(X, ids, {})


class TestLabels:
    @pytest.mark.parametrize("method", ["ahil", "dllp", "flmm", "llp-vat", "llpfc", "rot", "softmatch", "supervised"])
    def test_every_method_learns_from_labels(self, method: str) -> None:
        y = np.array(["good", "bad"])[Y]
        fitted = quick(method=method).fit(X, y)
        assert fitted.classes_.tolist() == ["bad", "good"]
        assert fitted.score(X, y) > 0.9

    def test_a_bag_of_one_is_its_label(self) -> None:
        names = [str(row) for row in range(300)]
        as_bags = quick(method="dllp", classes=[0, 1]).fit(X, names, dict(zip(names, Y, strict=True)))
        as_labels = quick(method="dllp").fit(X, Y)
        assert (as_bags.predict(X) == as_labels.predict(X)).mean() > 0.97

    def test_labels_are_not_looked_at_beside_bags(self, fitted: LLPClassifier) -> None:
        other = quick().fit(X, np.zeros(300), SHARE, bags=BAGS)
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "requires y to be passed, but the target y is None"),
            ({"y": Y, "bags": BAGS}, "bags were given without the proportions of bags"),
            ({"proportions": SHARE}, "give one bag id a row"),
            ({"y": BAGS[1:], "proportions": SHARE}, "299 bag ids for the 300 rows"),
            ({"y": [{}] * 300, "proportions": SHARE}, "row 0 has the bag id {}, which is not hashable"),
        ],
    )
    def test_what_is_missing_is_said(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(LLPError, match=message):
            quick().fit(X, **arguments)


class TestPredictions:
    def test_in_bags_agree_with_the_counts(self, fitted: LLPClassifier) -> None:
        labels = fitted.predict_in_bags(X, BAGS, SHARE)
        for bag in range(30):
            assert labels[bag == BAGS].sum() == Y[bag == BAGS].sum()
        assert (labels == Y).mean() >= fitted.score(X, Y)
        turned = fitted.predict_in_bags(X, BAGS, COUNTS[["good", "bad"]])
        np.testing.assert_array_equal(turned, labels)

    def test_of_bags_are_means_by_id(self, fitted: LLPClassifier) -> None:
        x, bags, y = make(5)
        found = fitted.predict_bags(x, bags)
        assert list(found) == sorted(set(bags.tolist()))
        np.testing.assert_allclose(found[7], fitted.predict_proba(x[bags == 7]).mean(0), atol=1e-6)
        assert np.mean([abs(found[bag][1] - y[bags == bag].mean()) for bag in found]) < 0.1
        assert fitted.score_bags(x, bags, found) == pytest.approx(0, abs=1e-6)  # what it says itself is perfect
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            fitted.predict_bags(x, bags[1:])
        missing = fitted.predict_bags(x, np.where(bags == 3, np.nan, bags), interval=0.9)
        assert list(missing) == [bag for bag in found if bag != 3]
        np.testing.assert_allclose(missing[7][1], found[7], atol=1e-6)

    def test_bag_ids_are_no_labels_to_be_scored_by(self, fitted: LLPClassifier) -> None:
        with pytest.raises(LLPError, match=r"y has .* and none of the classes"):
            fitted.score(X, [f"bag {bag}" for bag in BAGS])
        with pytest.raises(LLPError, match=r"y has 'bag \d+' and none of the classes"):
            fitted.score(X, pd.Series([f"bag {bag}" for bag in BAGS], index=range(1, 301)))
        with pytest.raises(LLPError, match="y is None: labels are scored"):
            fitted.score(X)

    def test_float_images_that_are_a_little_above_1_are_refused(self) -> None:
        images = np.random.default_rng(0).random((len(X), 1, 8, 8))
        with pytest.raises(LLPError, match=r"the largest value is 1\.0\d+: floats are from 0 to 1"):
            quick(epochs=1).fit(1.02 * images / images.max(), BAGS, SHARE)

    def test_the_score_of_bags(self, fitted: LLPClassifier) -> None:
        p = fitted.predict_bags(X, BAGS)
        known = np.array([BOTH[bag] for bag in p])
        mean = np.array(list(p.values()))
        kl = np.where(known > 0, known * np.log(np.where(known > 0, known, 1) / mean), 0).sum(1).mean()
        assert fitted.score_bags(X, BAGS, SHARE) == pytest.approx(-kl, rel=1e-4)
        assert fitted.score(X, BAGS, proportions=SHARE) == fitted.score_bags(X, BAGS, SHARE)
        worse = {bag: 1 - share for bag, share in SHARE.items()}
        assert fitted.score_bags(X, BAGS, worse) < fitted.score_bags(X, BAGS, SHARE)

    def test_log_probabilities(self, fitted: LLPClassifier) -> None:
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))

    def test_thousands_of_rows(self, fitted: LLPClassifier) -> None:
        many = np.tile(X, (10, 1))
        np.testing.assert_allclose(fitted.predict_proba(many)[:300], fitted.predict_proba(X), atol=1e-6)


class TestTraining:
    def test_random_state_decides_everything(self, fitted: LLPClassifier) -> None:
        same = quick(random_state=np.random.RandomState(0)).fit(X, BAGS, SHARE)
        np.testing.assert_array_equal(same.predict_proba(X), fitted.predict_proba(X))
        other = quick(random_state=1).fit(X, BAGS, SHARE)
        assert not np.array_equal(other.predict_proba(X), fitted.predict_proba(X))

    def test_the_process_is_left_as_it_was(self) -> None:
        before = torch.get_rng_state(), check_random_state(None).get_state()[1].copy(), torch.get_num_threads()
        quick(threads=2, epochs=1).fit(X, BAGS, SHARE).predict(X)
        assert torch.equal(before[0], torch.get_rng_state()) and before[2] == torch.get_num_threads()
        np.testing.assert_array_equal(before[1], check_random_state(None).get_state()[1])

    def test_the_recipe_is_that_of_rows_or_images(self) -> None:
        assert len(LLPClassifier("dllp").fit(X[:20], Y[:20]).metrics_) == 50
        settings = {"epochs": np.int64(2), "optimizer": "sgd", "weight_decay": 0, "instances_per_step": np.int32(100)}
        fitted = LLPClassifier("dllp", "linear", lr=np.float32(0.5), held_out=0, **settings).fit(X, Y)
        assert fitted.metrics_[0]["steps"] == 3 and len(fitted.metrics_) == 2
        assert fitted.metrics_[0]["lr"] > 0.4

    def test_held_out_bags_choose_the_epoch(self, fitted: LLPClassifier) -> None:
        assert fitted.chosen_epoch_ is None
        chosen = quick(held_out=None).fit(X, BAGS, SHARE)
        errors = [row["held_out/bag_kl"] for row in chosen.metrics_]
        assert chosen.chosen_epoch_ == 1 + int(np.argmin(errors))
        by_counts = quick(held_out=None, choose_by="count_score").fit(X, BAGS, SHARE)
        scores = [row["held_out/count_score"] for row in by_counts.metrics_]
        assert by_counts.chosen_epoch_ == 1 + int(np.argmax(scores))

    def test_progress_is_printed_if_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        quick().fit(X, BAGS, SHARE).predict(X)
        assert capsys.readouterr() == ("", "")
        quick(verbose=1).fit(X, BAGS, SHARE)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 5 and lines[0].startswith("epoch    1  train/loss") and lines[-1].endswith(" 0 s left")
        quick(verbose=1, held_out=0.2, choose_by="count_score").fit(X, BAGS, SHARE)
        assert all("held_out/count_score" in line for line in capsys.readouterr().out.splitlines())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "ahli"}, "did you mean 'ahil'"),
            ({"method": "simclr"}, "learns features and no classes"),
            ({"method": "supervised"}, "needs the labels"),
            ({"model": "mpl"}, "did you mean 'mlp'"),
            ({"model": 5}, "model must be a name, a module, or a function"),
            ({"model": nn.Linear(3, 3)}, r"output for one instance has shape \(1, 3\) and should have \(1, 2\)"),
            ({"model": nn.Linear(3, 2), "model_options": {"a": 1}}, "is a module already"),
            ({"epochs": 0}, "epochs: input should be greater than or equal to 1, not 0"),
            ({"held_out": 1.5}, "held_out: input should be less than 1"),
            ({"lr": -1}, "lr: input should be greater than 0"),
            ({"method_options": {"betas": 1}}, "method 'ahil' has no option 'betas'"),
            ({"device": "abacus"}, "device 'abacus' cannot be used here"),
        ],
    )
    def test_wrong_parameters_are_told(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(LLPError, match=message):
            quick(**options).fit(X, BAGS, SHARE)

    def test_warnings_of_the_columns_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        quick(epochs=1).fit(np.column_stack([X, np.full(300, np.nan)]), BAGS, SHARE)
        assert "X: column 'x3' has no value in any row, and is left out" in caplog.text


class Small(nn.Module):
    def __init__(self, num_classes: int, input_shape: tuple[int, ...], hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*input_shape, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class CountingViews(TableViews):
    """A user's own: the same as ours, and a mark on what was asked of them."""

    asked: ClassVar[set[str]] = set()

    def weak(self, rows: torch.Tensor, parameters: Any) -> torch.Tensor:
        self.asked.add("weak")
        return super().weak(rows, parameters)

    def plain(self, rows: torch.Tensor) -> torch.Tensor:
        self.asked.add("plain")
        return super().plain(rows)


def own_views() -> CountingViews:
    return CountingViews(columns=(0, 1, 2), is_number=(True,) * 3, source=torch.randn(9, 3))


class TestOwnParts:
    def test_a_factory_is_called_at_each_fit(self) -> None:
        classifier = quick(model=Small, model_options={"hidden": 5}, epochs=20).fit(X, BAGS, SHARE)
        assert isinstance(classifier.model_, Small) and classifier.model_.layers[0].out_features == 5
        assert classifier.score(X, Y) > 0.9
        again = clone(classifier).fit(X, BAGS, SHARE)
        np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))

    def test_views(self) -> None:
        classifier = quick(views=own_views()).fit(X, BAGS, SHARE)
        CountingViews.asked.clear()
        assert classifier.score(X, Y) > 0.9
        assert CountingViews.asked == {"plain"}
        clone(classifier).fit(X, BAGS, SHARE)
        assert CountingViews.asked == {"plain", "weak"}


class TestFiles:
    def test_pickling(self, fitted: LLPClassifier) -> None:
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
        assert len(pickle.dumps(fitted)) < 400_000  # the model's weights, and not the rows

    def test_saving_over_another_is_whole_or_not_there(
        self, fitted: LLPClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fitted.save(tmp_path / "classifier")
        before = {file.name: file.read_bytes() for file in (tmp_path / "classifier").iterdir()}
        other = quick(epochs=1).fit(X, BAGS, SHARE)

        def full(*_: object) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("torchllp.run.Run.write_json", full)
            with pytest.raises(OSError, match="no space"):
                other.save(tmp_path / "classifier")
        assert before == {file.name: file.read_bytes() for file in (tmp_path / "classifier").iterdir()}
        (tmp_path / "classifier" / "estimator.json").unlink()  # as while the new files are put in their places
        with pytest.raises(LLPError, match=r"estimator\.json"):
            LLPClassifier.load(tmp_path / "classifier")
        other.save(tmp_path / "classifier")
        np.testing.assert_array_equal(
            LLPClassifier.load(tmp_path / "classifier").predict_proba(X), other.predict_proba(X)
        )

    @pytest.mark.parametrize("kind", [dict, pd.Series])
    def test_the_noise_of_each_bag_comes_back(self, kind: Any, tmp_path: Path) -> None:
        scales = kind({float(bag): 0.1 + bag / 100 for bag in range(30)})
        counts = {bag: [float((Y[bag == BAGS] == c).sum()) for c in (0, 1)] for bag in range(30)}
        fitted = quick(epochs=1, bag_noise="gaussian", bag_noise_scale=scales).fit(X, BAGS, counts)
        fitted.save(tmp_path / "classifier")
        loaded = LLPClassifier.load(tmp_path / "classifier")
        some, few = BAGS < 3, {bag: counts[bag] for bag in range(3)}
        scores = [one.score_bags(X[some], BAGS[some], few, criterion="count_score") for one in (fitted, loaded)]
        assert scores[0] == scores[1]

    @pytest.mark.parametrize("kind", ["rows", "frame", "images"])
    def test_saved_in_one_process_and_loaded_in_another(self, kind: str, tmp_path: Path) -> None:
        frame = pd.DataFrame(X, columns=list("abc")).assign(colour=np.where(Y, "red", "blue"))
        images = np.tile(X.astype(np.uint8)[:, :, None, None], (1, 1, 8, 8))
        instances: Any = {"rows": X, "frame": frame, "images": images}[kind]
        classifier = quick(epochs=2, held_out=0.1, classes=["good", "bad"], random_state=np.int64(3))
        classifier.fit(instances, BAGS, SHARE).save(tmp_path / "a" / "classifier")
        assert {file.name for file in (tmp_path / "a" / "classifier").iterdir()} == {
            "model.safetensors",
            "estimator.json",
        }
        with open(tmp_path / "instances.pickle", "wb") as file:
            pickle.dump(instances, file)
        script = (
            "import pickle, numpy as np; from torchllp import LLPClassifier\n"
            "classifier = LLPClassifier.load('a/classifier'); X = pickle.load(open('instances.pickle', 'rb'))\n"
            "np.savez('out.npz', p=classifier.predict_proba(X), labels=classifier.predict(X))\n"
        )
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
        with np.load(tmp_path / "out.npz") as out:
            np.testing.assert_array_equal(out["p"], classifier.predict_proba(instances))
            np.testing.assert_array_equal(out["labels"], classifier.predict(instances))
        loaded = LLPClassifier.load(tmp_path / "a" / "classifier")
        assert loaded.get_params() == classifier.get_params()
        for name in ("n_features_in_", "chosen_epoch_", "metrics_"):
            assert getattr(loaded, name) == getattr(classifier, name)
        if kind == "frame":
            assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "colour"]
            with pytest.raises(ValueError, match="feature names"):
                loaded.predict(frame[["a", "b"]])
        np.testing.assert_array_equal(  # and it can be fitted again
            loaded.fit(instances, BAGS, SHARE).predict_proba(instances), classifier.predict_proba(instances)
        )

    @pytest.mark.parametrize(
        "y", [Y, Y.astype(bool), Y + 0.0, np.where(Y, "a", "bc"), pd.Series(np.where(Y, "a", "b"))]
    )
    def test_classes_come_back_as_they_were(self, y: Any, tmp_path: Path) -> None:
        fitted = quick(epochs=1).fit(X, y)
        fitted.save(tmp_path)
        loaded = LLPClassifier.load(tmp_path)
        assert loaded.classes_.dtype == fitted.classes_.dtype
        np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))

    def test_own_parts_are_given_again(self, tmp_path: Path) -> None:
        module = Small(2, (3,))
        for model in (module, Small):
            fitted = quick(model=model, views=own_views(), random_state=np.random.RandomState(0)).fit(X, BAGS, SHARE)
            fitted.save(tmp_path)
            assert not {"model", "views", "random_state"} & json.loads((tmp_path / "estimator.json").read_text()).keys()
            with pytest.raises(LLPError, match="fitted with model of the user's own"):
                LLPClassifier.load(tmp_path)
            with pytest.raises(LLPError, match="fitted with views of the user's own"):
                LLPClassifier.load(tmp_path, model=model)
            loaded = LLPClassifier.load(tmp_path, model=model, views=own_views())
            np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
            with pytest.raises(LLPError, match="not those of such a model"):
                LLPClassifier.load(tmp_path, model=nn.Linear(3, 2), views=own_views())

    def test_errors(self, fitted: LLPClassifier, tmp_path: Path) -> None:
        with pytest.raises(sklearn.exceptions.NotFittedError):
            quick().save(tmp_path)
        fitted.save(tmp_path / "classifier")
        fitted.save(tmp_path / "classifier")  # over itself
        with pytest.raises(LLPError, match="something here already that is no classifier"):
            fitted.save(tmp_path)
        with pytest.raises(LLPError, match="something here already that is no classifier"):
            fitted.save(tmp_path / "classifier" / "estimator.json")
        with pytest.raises(LLPError, match="cannot be read"):
            LLPClassifier.load(tmp_path / "nowhere")
        with pytest.raises(LLPError, match="nothing that JSON can hold"):
            quick(epochs=1).fit(X, BAGS, SHARE).set_params(method_options={"a": {1}}).save(tmp_path / "other")


class TestTogether:
    def test_a_pipeline_without_routing(self, fitted: LLPClassifier) -> None:
        pipeline = make_pipeline(StandardScaler(), quick()).fit(X, BAGS, llpclassifier__proportions=SHARE)
        np.testing.assert_allclose(pipeline.predict_proba(X), fitted.predict_proba(X), atol=1e-3)
        assert pipeline.score(X, Y) > 0.9 and pipeline.classes_.tolist() == [0, 1]

    @pytest.mark.usefixtures("routing")
    def test_a_column_transformer_with_routing(self) -> None:
        frame = pd.DataFrame(X, columns=list("abc")).assign(colour=np.where(Y, "red", "blue"), part=np.arange(300))
        columns = make_column_transformer(
            (StandardScaler(), ["a", "b"]), (OneHotEncoder(sparse_output=False), ["colour"])
        ).set_output(transform="pandas")
        classifier = quick().set_fit_request(proportions=True).set_score_request(proportions=True)
        pipeline = make_pipeline(columns, classifier).fit(frame, BAGS, proportions=SHARE)
        assert (pipeline.predict(frame) == Y).mean() > 0.95
        assert pipeline[-1].n_features_in_ == 4
        assert pipeline.score(frame, BAGS, proportions=SHARE) > -0.1

    @pytest.mark.usefixtures("routing")
    @pytest.mark.parametrize("proportions", [SHARE, FRAME, Bags.from_labels(BAGS, Y)], ids=["mapping", "frame", "bags"])
    def test_cross_validation_without_a_label(self, proportions: Any) -> None:
        classifier = quick().set_fit_request(proportions=True).set_score_request(proportions=True)
        scores = cross_validate(
            classifier, X, BAGS, cv=GroupKFold(3), params={"proportions": proportions, "groups": BAGS}
        )
        assert scores["test_score"].shape == (3,) and (scores["test_score"] > -0.2).all()

    @pytest.mark.usefixtures("routing")
    def test_cross_validation_by_labels(self) -> None:
        classifier = quick().set_fit_request(proportions=True, bags=True)
        classifier.set_score_request(proportions=False, bags=False)  # so the score is the accuracy
        params = {"proportions": SHARE, "bags": BAGS, "groups": BAGS}
        scores = cross_val_score(classifier, X, Y, cv=GroupKFold(3), params=params)
        assert (scores > 0.85).all()

    @pytest.mark.usefixtures("routing")
    def test_arrays_are_refused_in_cross_validation(self) -> None:
        classifier = quick().set_fit_request(proportions=True, bags=True)
        params = {"bags": BAGS, "groups": BAGS, "proportions": np.array([SHARE[bag] for bag in BAGS])}
        with pytest.raises(LLPError, match="as cross-validation cuts it"):
            cross_val_score(classifier, X, Y, cv=GroupKFold(3), params=params, error_score="raise")

    @pytest.mark.usefixtures("routing")
    def test_a_search_on_bags_of_digits(self) -> None:
        digits: Any = load_digits(n_class=3)
        bags = np.random.default_rng(0).integers(60, size=len(digits.target))
        shares = pd.crosstab(pd.Series(bags), pd.Series(digits.target), normalize="index")
        classifier = LLPClassifier("dllp", lr=3e-3, epochs=10, held_out=0, random_state=0)
        classifier.set_fit_request(proportions=True).set_score_request(proportions=True)
        pipeline = make_pipeline(FunctionTransformer(), classifier)
        search = GridSearchCV(pipeline, {"llpclassifier__epochs": np.array([1, 10])}, cv=GroupKFold(2))
        search.fit(digits.data, bags, proportions=shares, groups=bags)
        assert search.best_params_ == {"llpclassifier__epochs": 10}
        assert search.classes_.tolist() == [0, 1, 2]
        assert (search.predict(digits.data) == digits.target).mean() > 0.95

    def test_cloning_keeps_every_parameter(self) -> None:
        options = {"model": Small, "views": None, "classes": ["a", "b"], "held_out": 0.3, "verbose": 1}
        classifier = quick(**options)
        assert clone(classifier).get_params() == classifier.get_params()
        assert "epochs=5" in repr(classifier)
