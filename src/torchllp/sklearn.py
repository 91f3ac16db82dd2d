"""LLPClassifier: learning from label proportions as a scikit-learn estimator."""

import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]
from torch import Tensor, nn

from torchllp.bags import Bags, num_held_out
from torchllp.calibration import Calibration
from torchllp.config import Config
from torchllp.data.arrays import Images, Rows, are_images, as_array, is_frame, unique_columns
from torchllp.data.dataset import Instances
from torchllp.data.proportions import bags_over, ids_of_rows, sorted_ids, text_of_id
from torchllp.engine.alarms import alarms
from torchllp.engine.evaluate import HeldOut, class_prior, predict, reported_counts
from torchllp.engine.precision import pick_device
from torchllp.engine.process import seeded
from torchllp.engine.train import Observer, Row, State, train
from torchllp.errors import LLPError
from torchllp.export import FormatName, export_classifier, raw_classifier
from torchllp.functional import bag_mean
from torchllp.job import epoch_line
from torchllp.methods import create_method
from torchllp.methods.method import Method
from torchllp.metrics import CRITERIA, bag_errors, count_score
from torchllp.noise import NoiseKind
from torchllp.predictor import labels_in_bags
from torchllp.presets import TABLE, preset
from torchllp.registry import unknown_name
from torchllp.run import new_model
from torchllp.sklearn_files import load_classifier, plain, plain_views, save_classifier
from torchllp.views.image import NormalisedImages
from torchllp.views.table import TableViews
from torchllp.views.views import Views

log = logging.getLogger("torchllp")


class LLPClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of single instances, fitted on bags of which only the class proportions are known.

    Without ``proportions``, :meth:`fit` takes labels and makes every row its own bag, which is supervised learning.
    ``X`` is a 2-D array or tensor of numbers, a frame (pandas, polars, Arrow) with texts and categories too, or a 4-D
    array of images. Numbers are standardised and categories encoded, so nothing needs to be done before.

    Args:
        method: a name, see ``llp methods``, whose numbers are ``method_options``; or a
            :class:`~torchllp.methods.method.Method`, which is copied at each fit.
        model: ``"auto"`` (``"mlp"`` for rows, ``"small-cnn"`` for images), another name of ``llp models``, a module,
            which is copied at each fit, or a function called as ``model(num_classes, input_shape, **model_options)``.
        classes: the classes in order, where ``proportions`` does not name them, or to take some of its columns.
        epochs, lr, optimizer, weight_decay, instances_per_step: as for ``llp train``; None is the recipe for rows, or
            for images.
        held_out: share of the bags that is held out to choose the epoch by. None: the larger of 10 % and 3 bags, none
            of fewer than 20.
        choose_by: how they choose it, as for ``llp train``.
        categorical_features: columns, by name or place, whose numbers are codes of categories.
        normalize: rescale proportions that do not sum to 1, or counts that do not sum to the bag's rows, as when bags
            were cut; refused otherwise.
        unlabelled: what to do with rows whose bag is not in ``proportions``: ``"keep"`` them without proportions,
            ``"drop"`` them, or refuse (None).
        bag_noise: how reported counts differ from the true ones: ``"gaussian"`` or ``"laplace"`` noise, or
            ``"rounding"``. ``proportions`` then has counts, which need not be whole, positive, or sum to anything.
        bag_noise_scale: its standard deviation, epsilon or step, for all bags or as a mapping from their ids.
        flip: whether images may be mirrored.
        views: an object like :class:`torchllp.views.views.Views`, in place of ours.
        random_state: the same whole number gives the same classifier, with the same number of threads.
        device, threads: as for ``llp train``.
        verbose: 1 prints a line an epoch.

    Attributes:
        classes_: the classes, in the order of the columns of :meth:`predict_proba`.
        model_: the trained module.
        class_prior_: the classes' shares in all bags of the fit, with half a row more of each.
        metrics_: a row of metrics an epoch; chosen_epoch_: the one that was chosen, or None.
        calibration_: what held-out bags say of the probabilities; those of :meth:`predict_proba` are calibrated by it.
        n_features_in_, feature_names_in_: as scikit-learn has them.

    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0], [-3.0], [3.0]])
    >>> lots = ["a", "a", "b", "b", "c", "c"]
    >>> share_of_defects = {"a": 0.0, "b": 1.0, "c": 0.5}
    >>> classifier = LLPClassifier("dllp", epochs=30, lr=0.01, random_state=0).fit(X, lots, share_of_defects)
    >>> classifier.predict(X)
    array([0, 0, 1, 1, 0, 1])
    """

    def __init__(
        self,
        method: str | Method = "ahil",
        model: str | nn.Module | Callable[..., nn.Module] = "auto",
        *,
        method_options: dict[str, Any] | None = None,
        model_options: dict[str, Any] | None = None,
        classes: Sequence[Any] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        optimizer: Literal["sgd", "adamw"] | None = None,
        weight_decay: float | None = None,
        instances_per_step: int | None = None,
        held_out: float | None = None,
        choose_by: Literal["bag_kl", "bag_mae", "count_score"] | None = None,
        categorical_features: Sequence[str | int] | None = None,
        normalize: bool = False,
        unlabelled: Literal["keep", "drop"] | None = None,
        bag_noise: NoiseKind | None = None,
        bag_noise_scale: float | Mapping[Any, float] | None = None,
        flip: bool = False,
        views: Views | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        threads: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.method_options = method_options
        self.model_options = model_options
        self.classes = classes
        self.epochs = epochs
        self.lr = lr
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.instances_per_step = instances_per_step
        self.held_out = held_out
        self.choose_by = choose_by
        self.categorical_features = categorical_features
        self.normalize = normalize
        self.unlabelled = unlabelled
        self.bag_noise = bag_noise
        self.bag_noise_scale = bag_noise_scale
        self.flip = flip
        self.views = views
        self.random_state = random_state
        self.device = device
        self.threads = threads
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``method_options__beta_bag=5`` sets one of the options and leaves the others."""
        whole: dict[str, Any] = {}
        for name, value in params.items():
            owner, _, option = name.partition("__")
            if option and owner in ("method_options", "model_options"):
                whole[owner] = {**(whole.get(owner, params.get(owner, getattr(self, owner))) or {}), option: value}
            else:
                whole.setdefault(name, value)
        return super().set_params(**whole)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.input_tags.allow_nan = True  # a missing number is taken as the mean
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None, proportions: Any = None, *, bags: Any = None, labels: Any = None) -> Self:
        """Fit to bags and their proportions, or to labels.

        With ``proportions``, ``y`` (or ``bags``, and then ``y`` is not looked at) has one bag id a row: numbers,
        strings, any hashable values, or several columns that are an id together. Without, ``y`` are labels.

        ``proportions`` is a mapping (or pandas series) from each bag's id to one number a class, or to the share of the
        second of two classes; a frame with a column a class, whose ids are its index or the column that is called like
        that of ``y`` or ``"bag"``; :class:`~torchllp.Bags`; or an array in sorted order of the ids. Whole numbers that
        do not sum to 1 are counts; NaN is a class that was not observed. Bags without a row in ``X`` are left out.

        ``labels`` are the classes of the few rows of which they are known, with None or NaN for all others: a row
        with a label is learnt from by itself, and its bag by what is left.
        """
        if y is None and proportions is None:
            raise LLPError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: labels, or bag ids together "
                "with proportions"
            )
        if (bags is not None or labels is not None) and proportions is None:
            what = "bags" if bags is not None else "labels of some rows"
            raise LLPError(f"{what} were given without the proportions of bags")
        X = self._checked(X, reset=True)
        reader, inputs = Images.fit(X) if are_images(X) else Rows.fit(X, plain(self.categorical_features) or ())
        known, classes, targets = self._supervision(y, proportions, bags, len(inputs))
        class_names = [str(c) for c in classes]
        data = reader.dataset(Instances(inputs, targets), class_names, flip=self.flip)
        for warning in () if data.encoder is None else data.encoder.warnings:
            log.warning(warning)

        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        config = self._config(is_images=data.is_images, seed=int(seed))
        train_bags, held_out = known.hold_out(
            num_held_out(config.data.held_out, int(known.is_labelled.sum())), config.seed
        )
        if labels is not None:
            train_bags = train_bags.with_labels(self._known_labels(labels, classes, held_out, len(inputs)))
        with seeded("first weights", config.seed):
            model = self._new_model(len(classes), reader)
        outcome = train(
            model,
            self._new_method(config),
            data,
            train_bags,
            held_out=held_out,
            recipe=config.recipe,
            compute=config.compute,
            seed=config.seed,
            views=self.views,
            observer=_Printer(config.recipe.choose_by) if self.verbose else None,
        )
        for alarm in alarms(outcome.metrics, known.class_shares, config.recipe.epochs).values():
            warnings.warn(alarm, ConvergenceWarning, stacklevel=2)
        self.classes_ = np.asarray(classes)
        self.class_prior_ = class_prior(known)
        self.reader_ = reader
        self.views_ = self.views or plain_views(reader, data.mean, data.std)
        self.model_ = outcome.model.cpu().to(memory_format=torch.contiguous_format)  # as it is when loaded
        self.metrics_ = outcome.metrics
        self.calibration_ = Calibration.none(len(classes))
        if held_out is not None:
            self.calibration_ = HeldOut(held_out, train_bags, data.train).calibrate(self.model_, self.views_)
        self.chosen_epoch_ = None if outcome.chosen is None else int(outcome.chosen["epoch"])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        labels = self._log_p(X).argmax(1)
        return self.classes_[labels]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of ``classes_``, ``[N, C]``."""
        return np.exp(self._log_p(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return self._log_p(X)

    def predict_bags(self, X: Any, bags: Any, *, interval: float | None = None) -> dict[Any, np.ndarray]:
        """The proportions of bags, new ones too: bag id -> mean probability of each of ``classes_``.

        :meth:`fit`, :meth:`score_bags` and :meth:`predict_in_bags` take such a mapping. Rows without an id are in no
        bag. With ``interval``, say 0.9, it is bag id -> ``[3, C]``: the lower bound, the mean and the upper bound of
        each share, between which the true one is with that probability. Their width comes from the probabilities of the
        instances and from the errors of the bags that were held out, where there were any; bags of another kind than
        these may be further off.
        """
        p, ids = torch.from_numpy(np.exp(self._log_p(X))), ids_of_rows(bags)
        check_consistent_length(p, ids)
        there = [row for row, bag in enumerate(ids) if text_of_id(bag) is not None]
        p, ids = p[there], [ids[row] for row in there]
        once = sorted_ids(ids)
        place = {bag: row for row, bag in enumerate(once)}
        index = torch.tensor([place[bag] for bag in ids], dtype=torch.long)
        shares = bag_mean(p, index, len(once)).numpy()
        if interval is not None:
            low, high = self.calibration_.bag_intervals(p, index, len(once), interval)
            shares = np.stack([low, shares, high], axis=1)
        return dict(zip(once, shares, strict=True))

    def predict_in_bags(self, X: Any, bags: Any, proportions: Any) -> np.ndarray:
        """The likeliest classes that agree with what is known: in each bag as many of a class as ``proportions`` says.

        Proportions are rounded to whole rows (largest remainder). Bags and proportions are as in :meth:`fit`.
        """
        log_p = self._log_p(X)
        known, _ = self._bags(bags, proportions, len(log_p), self.classes_.tolist())
        known.need_all_observed("predict_in_bags")
        return self.classes_[labels_in_bags(log_p, log_p.argmax(1), known, known.proportions)]

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, proportions: Any = None, bags: Any = None
    ) -> float:
        """Accuracy, if ``y`` are labels. With ``proportions``: :meth:`score_bags`, where no label is needed."""
        if proportions is not None:
            return self.score_bags(X, y if bags is None else bags, proportions)
        if y is None:
            raise LLPError("y is None: labels are scored, or the proportions of bags")
        labels = np.asarray(as_array(y))
        if len(labels) and not np.isin(labels, self.classes_).any():
            raise LLPError(
                f"y has {labels[0]!r} and none of the classes {', '.join(map(str, self.classes_[:5]))}: labels are "
                "scored, and bags by their proportions"
            )
        return float(accuracy_score(labels, self.predict(X), sample_weight=sample_weight))

    def score_bags(
        self,
        X: Any,
        bags: Any,
        proportions: Any,
        *,
        criterion: Literal["bag_kl", "bag_mae", "count_score"] = "bag_kl",
    ) -> float:
        """How well the known proportions of bags are met; more is better, whatever the criterion.

        ``"bag_kl"`` and ``"bag_mae"`` are minus the divergence (KL) and minus the mean absolute difference of predicted
        from known proportions: 0 is perfect. ``"count_score"`` is how much more probable the counts are than by
        ``class_prior_``, in nats a row: 0 is no better than to know that alone.
        """
        if criterion not in CRITERIA:
            raise unknown_name("criterion", criterion, CRITERIA)
        log_p = self._log_p(X)
        known, _ = self._bags(bags, proportions, len(log_p), self.classes_.tolist())
        known = known.select(np.flatnonzero(known.is_labelled))
        rows = known.members
        predicted, bag_index = torch.from_numpy(log_p[rows]), torch.from_numpy(known.bag_of[rows])
        if criterion == "count_score":
            prior = torch.from_numpy(self.class_prior_)
            found = count_score(predicted, bag_index, prior=prior, **reported_counts(known))
        else:
            shares = torch.from_numpy(known.proportions.copy())
            found = bag_errors(predicted, bag_index, shares, torch.from_numpy(known.observed))[criterion]
        return CRITERIA[criterion] * float(found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted classifier to a directory: ``model.safetensors`` and ``estimator.json``, without pickle.

        A module or views of one's own, and a ``random_state`` that is no number, are not in it: see :meth:`load`. A
        method that is an object cannot be saved.
        """
        check_is_fitted(self)
        save_classifier(self, Path(path))

    def export(self, path: str | os.PathLike[str], to: FormatName = "onnx", *, overwrite: bool = False) -> float | None:
        """Write the fitted classifier to a file that runs without it, as ``llp export`` does.

        Returns the largest difference of a probability that was found by running the file; None if it could not be run.
        """
        check_is_fitted(self)
        if not isinstance(self.views_, NormalisedImages | TableViews):
            raise LLPError("views of your own are no part of the model, so what it takes cannot be exported with it")
        classifier = raw_classifier(
            self.model_,
            [str(c) for c in self.classes_],
            self.reader_.input_shape,
            mean=getattr(self.views_, "mean", ()),
            std=getattr(self.views_, "std", ()),
            encoder=self.reader_.encoder if isinstance(self.reader_, Rows) else None,
            temperature=self.calibration_.temperature,
            made_of=self._made_of(len(self.classes_), self.reader_) if isinstance(self.model, str) else None,
        )
        return export_classifier(classifier, Path(path), to, overwrite=overwrite).difference

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | Callable[..., nn.Module] | None = None,
        views: Views | None = None,
    ) -> Self:
        """The classifier that :meth:`save` wrote. ``model`` and ``views`` are needed where they were the user's own."""
        return load_classifier(cls, Path(path), model=model, views=views)

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """A frame, or an array of two or four dimensions, whose columns are those fitted on unless ``reset``."""
        X = as_array(X)
        if not reset and are_images(X) != isinstance(self.reader_, Images):
            what = "rows, and these are images" if are_images(X) else "images, and these are rows"
            raise LLPError(f"X: the classifier was fitted to {what}")
        if are_images(X):
            if reset:
                self.n_features_in_ = int(np.prod(X.shape[1:]))
                self.__dict__.pop("feature_names_in_", None)  # of rows that it was fitted to before
            return X
        if is_frame(X):
            unique_columns(X, "X")
            return validate_data(self, X, reset=reset, skip_check_array=True)
        numeric = self.categorical_features is None
        return validate_data(self, X, reset=reset, dtype="numeric" if numeric else None, ensure_all_finite="allow-nan")

    def _supervision(
        self, y: Any, proportions: Any, bags: Any, num_rows: int
    ) -> tuple[Bags, Sequence[Any] | np.ndarray, Tensor | None]:
        """The bags, their classes, and labels where these are what was given."""
        if proportions is not None:
            return *self._bags(y if bags is None else bags, proportions, num_rows, plain(self.classes)), None
        y = column_or_1d(as_array(y), warn=True)
        assert_all_finite(y, input_name="y", estimator_name=type(self).__name__)
        check_classification_targets(y)
        check_consistent_length(np.empty(num_rows), y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise LLPError(
                f"{type(self).__name__} tells classes apart, and y has 1 class only, {classes.tolist()[0]!r}"
            )
        names = [str(c) for c in classes]
        return Bags.from_labels(np.arange(num_rows), labels, class_names=names), classes, torch.from_numpy(labels)

    def _known_labels(
        self, labels: Any, classes: Sequence[Any] | np.ndarray, held_out: Bags | None, num_rows: int
    ) -> np.ndarray:
        """Labels as places in ``classes``, -1 where one is missing or its row is held out."""
        values = as_array(labels)
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        check_consistent_length(np.empty(num_rows), values)
        place = {c: i for i, c in enumerate(plain(classes))}
        found = np.full(num_rows, -1)
        for row, value in enumerate(values):
            if value is None or type(value).__name__ == "NAType" or value != value:  # pandas' NA; NaN
                continue
            if value not in place:
                names = ", ".join(map(repr, place))
                raise LLPError(f"labels, row {row}: {value!r} is none of the classes {names}")
            found[row] = place[value]
        return found if held_out is None else np.where(held_out.bag_of >= 0, -1, found)

    def _bags(
        self, bags: Any, proportions: Any, num_rows: int, classes: Sequence[Any] | None
    ) -> tuple[Bags, Sequence[Any]]:
        options: dict[str, Any] = {"normalize": self.normalize, "unlabelled": self.unlabelled}
        options |= {"noise": self.bag_noise, "noise_scale": self.bag_noise_scale}
        return bags_over(bags, proportions, num_rows=num_rows, classes=classes, **options)

    def _config(self, *, is_images: bool, seed: int) -> Config:
        """The recipe for this kind of instances, with what the user has set."""
        named = self.model if isinstance(self.model, str) else None
        options = self.method_options or {}
        if isinstance(options, dict):
            options = {name: plain(value) for name, value in options.items()}
        recipe = ("epochs", "lr", "optimizer", "weight_decay", "instances_per_step", "choose_by")
        layer = {
            "data": {"held_out": plain(self.held_out)},
            "method": {} if isinstance(self.method, Method) else {"name": self.method, "options": options},
            "recipe": {name: plain(getattr(self, name)) for name in recipe if getattr(self, name) is not None},
            "compute": {"device": self.device, "threads": plain(self.threads)},
            "seed": seed,
        }
        return Config.layered(preset("quick", "images" if is_images else TABLE, named), layer)

    def _new_method(self, config: Config) -> Method:
        if not isinstance(self.method, Method):
            method = create_method(config.method.name, **config.method.options)
        elif self.method_options:
            raise LLPError("method_options are for a method that is made here, and this one is an object already")
        else:
            method = deepcopy(self.method)
        if not method.learns_classes:
            raise LLPError(f"{self.method} learns features and no classes: it is for `llp pretrain`")
        return method

    def _made_of(self, num_classes: int, reader: Rows | Images) -> dict[str, Any]:
        """What a model that has a name is made of."""
        usual = "small-cnn" if isinstance(reader, Images) else "mlp"
        return {
            "name": usual if self.model == "auto" else self.model,
            "options": self.model_options or {},
            "num_classes": num_classes,
            "input_shape": list(reader.input_shape),
        }

    def _new_model(self, num_classes: int, reader: Rows | Images) -> nn.Module:
        options, shape = self.model_options or {}, reader.input_shape
        if isinstance(self.model, str):
            return new_model(self._made_of(num_classes, reader))
        if isinstance(self.model, nn.Module):
            if options:
                raise LLPError("model_options are for a model that is made here, and this one is a module already")
            return deepcopy(self.model)
        made = self.model(num_classes, shape, **options) if callable(self.model) else None
        if not isinstance(made, nn.Module):
            raise LLPError(f"model must be a name, a module, or a function that makes a module, not {self.model!r}")
        return made

    def _log_p(self, X: Any) -> np.ndarray:
        """Calibrated log-probabilities, ``[N, C]``."""
        check_is_fitted(self)
        inputs = self.reader_.read(self._checked(X, reset=False))
        try:
            log_p = predict(self.model_.to(pick_device(self.device)), self.views_, inputs)
        finally:
            self.model_.cpu()  # where it can be pickled for any other machine
        return self.calibration_(log_p.cpu()).numpy()


class _Printer(Observer):
    """A line an epoch with the time left."""

    def __init__(self, choose_by: str) -> None:
        self.choose_by = choose_by

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        self.num_epochs, self.started = num_epochs, time.perf_counter()

    def on_epoch(self, row: Row, state: State) -> None:
        each = (time.perf_counter() - self.started) / row["epoch"]
        print(f"{epoch_line(row, self.choose_by)}, {each * (self.num_epochs - row['epoch']):.0f} s left", flush=True)
