"""Choosing without labels, as scikit-learn does it: folds of whole bags, and a search that is judged by bags."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import BaseCrossValidator, GridSearchCV, ParameterGrid, RandomizedSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from torchllp.data.arrays import as_array
from torchllp.data.proportions import ids_of_rows, sorted_ids
from torchllp.errors import LLPError
from torchllp.metrics import CRITERIA
from torchllp.registry import unknown_name
from torchllp.sklearn import LLPClassifier
from torchllp.sklearn_files import plain


class BagKFold(BaseCrossValidator):
    """Folds of whole bags, whose ids are ``y``, or ``groups`` where these are given.

    The folds differ by one bag at most, and by as few rows as dealing the bags out, the largest first, allows. Which
    bags come together is drawn by ``random_state``. Ids are any hashable values, as for :class:`LLPClassifier`.

    >>> lots = ["a", "a", "a", "b", "b", "c", "d"]
    >>> for train, test in BagKFold(2, random_state=0).split(lots, lots):
    ...     print(sorted({lots[row] for row in train}), sorted({lots[row] for row in test}))
    ['b', 'c'] ['a', 'd']
    ['a', 'd'] ['b', 'c']
    """

    __metadata_request__split = {"groups": True}  # taken where they are given: nobody has to ask for them # noqa: RUF012

    def __init__(self, n_splits: int = 5, *, random_state: int | np.random.RandomState | None = None) -> None:
        self.n_splits = n_splits
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits

    def _iter_test_masks(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[np.ndarray]:
        if y is None and groups is None:
            raise LLPError("folds are made of whole bags: give the bag of each row as y or groups")
        fold_of = self._deal(ids_of_rows(y if groups is None else groups))
        for fold in range(self.n_splits):
            yield fold_of == fold

    def _deal(self, ids: Sequence[Any]) -> np.ndarray:
        """The fold of each row."""
        once = sorted_ids(ids)
        place = {bag: number for number, bag in enumerate(once)}
        bag_of = np.array([place[bag] for bag in ids])
        if not 2 <= self.n_splits <= len(once):
            raise LLPError(f"{len(once)} bags cannot be split into {self.n_splits} folds: it takes 2 to {len(once)}")
        sizes = np.bincount(bag_of)
        order = check_random_state(self.random_state).permutation(len(once))
        order = order[np.argsort(-sizes[order], kind="stable")]
        num_rows, fold_of_bag = np.zeros(self.n_splits, dtype=np.int64), np.zeros(len(once), dtype=np.int64)
        for first in range(0, len(once), self.n_splits):  # a bag for each fold, the largest for the smallest one
            bags = order[first : first + self.n_splits]
            folds = np.argsort(num_rows, kind="stable")[: len(bags)]
            fold_of_bag[bags] = folds
            num_rows[folds] += sizes[bags]
        return fold_of_bag[bag_of]


class LLPSearchCV(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A search for parameters of :class:`LLPClassifier`, or of a pipeline that ends in one, by bags that are held out.

    No label is looked at, and nothing has to be routed. Each candidate is fitted without the bags of one fold and
    judged by them, fold after fold; more is better, whatever the criterion.

    Args:
        estimator: an :class:`LLPClassifier`, or a ``Pipeline`` whose last step is one.
        param_distributions: parameter -> list of values, or a distribution with a method ``rvs``; or a list of such
            mappings. ``method_options__beta_bag`` is one of the method's numbers.
        n_iter: how many candidates are drawn at random; None tries every combination of the lists.
        cv: number of folds (None: 5), by :class:`BagKFold`; or another splitter, which gets bag ids as ``y`` and as
            ``groups``.
        scoring: ``"bag_kl"``, ``"bag_mae"`` (both with a minus) or ``"count_score"``, see
            :meth:`LLPClassifier.score_bags`.
        refit: whether to fit the best candidate to all bags at the end.
        n_jobs: how many fits run at once, as scikit-learn has it; give each few ``threads``.
        random_state: of the draws and of the folds, not of the classifier.
        verbose: as in ``GridSearchCV``.

    Attributes:
        best_params_, best_score_, best_index_, cv_results_, best_estimator_, refit_time_, n_splits_: as in
            ``GridSearchCV``.
        classes_, n_features_in_, feature_names_in_: those of the best estimator.

    The best score of many candidates is better than what new bags will give: it was picked.

    >>> X, lots = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 2), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    >>> share_of_defects = {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}
    >>> classifier = LLPClassifier("dllp", epochs=30, random_state=0)
    >>> search = LLPSearchCV(classifier, {"lr": [1e-6, 1e-2]}, cv=2, random_state=0).fit(X, lots, share_of_defects)
    >>> search.best_params_, search.predict([[-2.0], [2.0]])
    ({'lr': 0.01}, array([0, 1]))
    """

    best_estimator_: Any

    def __init__(
        self,
        estimator: LLPClassifier | Pipeline,
        param_distributions: Mapping[str, Any] | Sequence[dict[str, Any]],
        *,
        n_iter: int | None = None,
        cv: int | BaseCrossValidator | None = None,
        scoring: Literal["bag_kl", "bag_mae", "count_score"] = "bag_kl",
        refit: bool = True,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, proportions: Any = None, *, bags: Any = None) -> Self:
        """Search, then fit the best to all bags. Bags and their proportions are as in :meth:`LLPClassifier.fit`."""
        if self.scoring not in CRITERIA:
            raise unknown_name("scoring", self.scoring, CRITERIA)
        if proportions is None:
            raise LLPError("the search is judged by the proportions of bags: give them, and the bag of each row as y")
        steps, classifier = _last_step(self.estimator)
        X = as_array(X)
        bags = y if bags is None else bags
        known, classes = classifier._bags(bags, proportions, len(X), plain(classifier.classes))
        own = [None if bag < 0 else known.bag_ids[bag] for bag in known.bag_of]  # of Bags, which need no others
        ids = own if bags is None else ids_of_rows(bags)
        is_judge = np.append(known.is_labelled, False)[known.bag_of]
        if known.reported is None:
            shares = [dict(zip(classes, row, strict=True)) for row in known.proportions.tolist()]
            whole = _Whole({ids[row]: shares[known.bag_of[row]] for row in np.flatnonzero(is_judge)})
        elif isinstance(proportions, Mapping):
            whole = _Whole(proportions)  # as it is: noise is in its unit
        else:
            raise LLPError("bags that are uncertain are searched by as a mapping from bag id to one number a class")
        estimator = self.estimator
        if bags is None:  # rows in no bag, and bags of which nothing is known, are in Bags on purpose
            estimator = clone(estimator).set_params(**{f"{steps}unlabelled": "keep"})
        search = self._search(estimator, self._folds(ids, is_judge), _BagScorer(whole, self.scoring))
        with config_context(enable_metadata_routing=False):
            search.fit(X, ids, **{f"{steps}proportions": whole})
        for name in ("cv_results_", "n_splits_", "best_index_", "best_params_", "best_score_"):
            setattr(self, name, getattr(search, name))
        for name in ("best_estimator_", "refit_time_", "classes_", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)  # of a fit before
            if self.refit and hasattr(search, name):
                setattr(self, name, getattr(search, name))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row, by the best estimator."""
        return self._best.predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of ``classes_``, by the best estimator."""
        return self._best.predict_proba(X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return self._best.predict_log_proba(X)

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, proportions: Any = None, bags: Any = None
    ) -> float:
        """How well the best estimator meets the proportions of bags, by ``scoring``; without them, its accuracy."""
        if proportions is None:
            return self._best.score(X, y, sample_weight=sample_weight)
        return _score_bags(self._best, X, y if bags is None else bags, proportions, self.scoring)

    @property
    def _best(self) -> Any:
        check_is_fitted(self, "cv_results_")
        if not self.refit:
            raise LLPError("nothing was fitted to all bags, by refit=False: fit a classifier with best_params_")
        return self.best_estimator_

    def _search(
        self, estimator: Any, folds: list[tuple[np.ndarray, np.ndarray]], scorer: "_BagScorer"
    ) -> GridSearchCV | RandomizedSearchCV:
        options: dict[str, Any] = {
            "scoring": scorer,
            "cv": folds,
            "refit": self.refit,
            "n_jobs": self.n_jobs,
            "verbose": self.verbose,
        }
        if self.n_iter is None:
            try:
                ParameterGrid(self.param_distributions)
            except TypeError as error:
                raise LLPError(f"{error}: say by n_iter how many candidates to draw from distributions") from error
            return GridSearchCV(estimator, self.param_distributions, **options)
        return RandomizedSearchCV(
            estimator, self.param_distributions, n_iter=self.n_iter, random_state=self.random_state, **options
        )

    def _folds(self, ids: list[Any], is_judge: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Training and test rows. Bags of which nothing is known judge nothing, and are trained on in every fold."""
        judges, others = np.flatnonzero(is_judge), np.flatnonzero(~is_judge)
        of_judges = [ids[row] for row in judges]
        cv: Any = 5 if self.cv is None else self.cv
        if isinstance(cv, Integral):
            cv = BagKFold(int(cv), random_state=self.random_state)
        if not hasattr(cv, "get_n_splits"):
            raise LLPError(f"cv must be a number of folds or a splitter such as BagKFold, not {cv!r}")
        split = cv.split(judges, of_judges, of_judges)
        folds = [(np.sort(np.append(judges[train], others)), judges[test]) for train, test in split]
        for train, test in folds:
            cut = {ids[row] for row in test} & {ids[row] for row in train}
            if cut:
                raise LLPError(
                    f"cv cuts bags in two, such as {next(iter(cut))!r}: take BagKFold, which keeps them whole"
                )
        return folds


class _Whole:
    """A mapping without a length: scikit-learn cuts whatever is as long as X by rows, a mapping too."""

    def __init__(self, table: Mapping[Any, Any]) -> None:
        self.table = table
        self.keys, self.items = table.keys, table.items


class _BagScorer:
    """A scorer, which other processes can be sent."""

    def __init__(self, proportions: "_Whole", criterion: str) -> None:
        self.proportions, self.criterion = proportions, criterion

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        return _score_bags(estimator, X, y, self.proportions, self.criterion)


def _score_bags(estimator: Any, X: Any, bags: Any, proportions: Any, criterion: Any) -> float:
    while isinstance(estimator, Pipeline):
        X, estimator = estimator[:-1].transform(X) if len(estimator) > 1 else X, estimator[-1]
    return estimator.score_bags(X, bags, proportions, criterion=criterion)


def _last_step(estimator: Any) -> tuple[str, LLPClassifier]:
    """The classifier at the end of a pipeline, and what goes before the names of its parameters."""
    steps = ""
    while isinstance(estimator, Pipeline):
        name, estimator = estimator.steps[-1]
        steps += f"{name}__"
    if not isinstance(estimator, LLPClassifier):
        raise LLPError(f"estimator must be an LLPClassifier, or a Pipeline that ends in one, not {estimator!r}")
    return steps, estimator
