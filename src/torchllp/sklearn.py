"""LLPClassifier: learning from label proportions as a scikit-learn estimator."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]
from torch import Tensor, nn

from torchllp.bags import Bags, num_held_out
from torchllp.config import Config
from torchllp.data.arrays import Images, Rows, are_images, as_array, is_frame
from torchllp.data.dataset import Instances
from torchllp.data.proportions import bags_over, ids_of_rows, sorted_ids
from torchllp.engine.evaluate import predict
from torchllp.engine.precision import pick_device
from torchllp.engine.process import seeded
from torchllp.engine.train import Observer, Row, State, train
from torchllp.errors import LLPError
from torchllp.functional import bag_mean
from torchllp.job import epoch_line
from torchllp.methods import METHODS, create_method
from torchllp.metrics import bag_errors
from torchllp.models import create_model
from torchllp.noise import NoiseKind
from torchllp.predictor import labels_in_bags
from torchllp.presets import TABLE, preset
from torchllp.sklearn_files import load_classifier, plain, plain_views, save_classifier
from torchllp.views.views import Views

log = logging.getLogger("torchllp")


class LLPClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of single instances, fitted on bags of which only the class proportions are known.

    Without ``proportions``, :meth:`fit` takes labels and makes every row its own bag, which is supervised learning.
    ``X`` is a 2-D array or tensor of numbers, a frame (pandas, polars, Arrow) with texts and categories too, or a 4-D
    array of images. Numbers are standardised and categories encoded, so nothing needs to be done before.

    Args:
        method: see ``llp methods``; ``method_options`` are its numbers, by name.
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
        metrics_: a row of metrics an epoch; chosen_epoch_: the one that was chosen, or None.
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
        method: str = "ahil",
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.input_tags.allow_nan = True  # a missing number is taken as the mean
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None, proportions: Any = None, *, bags: Any = None) -> Self:
        """Fit to bags and their proportions, or to labels.

        With ``proportions``, ``y`` (or ``bags``, and then ``y`` is not looked at) has one bag id a row: numbers,
        strings, any hashable values, or several columns that are an id together. Without, ``y`` are labels.

        ``proportions`` is a mapping (or pandas series) from each bag's id to one number a class, or to the share of the
        second of two classes; a frame with a column a class, whose ids are its index or the column that is called like
        that of ``y`` or ``"bag"``; :class:`~torchllp.Bags`; or an array in sorted order of the ids. Whole numbers that
        do not sum to 1 are counts; NaN is a class that was not observed. Bags without a row in ``X`` are left out.
        """
        if y is None and proportions is None:
            raise LLPError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: labels, or bag ids together "
                "with proportions"
            )
        if bags is not None and proportions is None:
            raise LLPError("bags were given without their proportions")
        X = self._checked(X, reset=True)
        reader, inputs = Images.fit(X) if are_images(X) else Rows.fit(X, plain(self.categorical_features) or ())
        known, classes, labels = self._supervision(y, proportions, bags, len(inputs))
        class_names = [str(c) for c in classes]
        data = reader.dataset(Instances(inputs, labels), class_names, flip=self.flip)
        for warning in () if data.encoder is None else data.encoder.warnings:
            log.warning(warning)

        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        config = self._config(is_images=data.is_images, seed=int(seed))
        train_bags, held_out = known.hold_out(
            num_held_out(config.data.held_out, int(known.is_labelled.sum())), config.seed
        )
        with seeded("first weights", config.seed):
            model = self._new_model(len(classes), reader)
        outcome = train(
            model,
            create_method(config.method.name, **config.method.options),
            data,
            train_bags,
            held_out=held_out,
            recipe=config.recipe,
            compute=config.compute,
            seed=config.seed,
            views=self.views,
            observer=_Printer() if self.verbose else None,
        )
        self.classes_ = np.asarray(classes)
        self.reader_ = reader
        self.views_ = self.views or plain_views(reader, data.mean, data.std)
        self.model_ = outcome.model.cpu().to(memory_format=torch.contiguous_format)  # as it is when loaded
        self.metrics_ = outcome.metrics
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

    def predict_bags(self, X: Any, bags: Any) -> dict[Any, np.ndarray]:
        """The proportions of bags, new ones too: bag id -> mean probability of each of ``classes_``.

        :meth:`fit`, :meth:`score_bags` and :meth:`predict_in_bags` take such a mapping.
        """
        p, ids = np.exp(self._log_p(X)), ids_of_rows(bags)
        check_consistent_length(p, ids)
        once = sorted_ids(ids)
        place = {bag: row for row, bag in enumerate(once)}
        means = bag_mean(torch.from_numpy(p), torch.tensor([place[bag] for bag in ids]), len(once))
        return dict(zip(once, means.numpy(), strict=True))

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
        return float(accuracy_score(as_array(y), self.predict(X), sample_weight=sample_weight))

    def score_bags(self, X: Any, bags: Any, proportions: Any) -> float:
        """Minus the mean divergence (KL) of predicted from known proportions of bags: 0 is perfect, more is better."""
        log_p = self._log_p(X)
        known, _ = self._bags(bags, proportions, len(log_p), self.classes_.tolist())
        known = known.select(np.flatnonzero(known.is_labelled))
        rows = known.members
        of_bags = log_p[rows], known.bag_of[rows], known.proportions.copy(), known.observed
        errors = bag_errors(*map(torch.from_numpy, of_bags))
        return -float(errors["bag_kl"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted classifier to a directory: ``model.safetensors`` and ``estimator.json``, without pickle.

        A module or views of one's own, and a ``random_state`` that is no number, are not in it: see :meth:`load`.
        """
        check_is_fitted(self)
        save_classifier(self, Path(path))

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

    def _bags(
        self, bags: Any, proportions: Any, num_rows: int, classes: Sequence[Any] | None
    ) -> tuple[Bags, Sequence[Any]]:
        options: dict[str, Any] = {"normalize": self.normalize, "unlabelled": self.unlabelled}
        options |= {"noise": self.bag_noise, "noise_scale": self.bag_noise_scale}
        return bags_over(bags, proportions, num_rows=num_rows, classes=classes, **options)

    def _config(self, *, is_images: bool, seed: int) -> Config:
        """The recipe for this kind of instances, with what the user has set."""
        named = self.model if isinstance(self.model, str) else None
        recipe = ("epochs", "lr", "optimizer", "weight_decay", "instances_per_step", "choose_by")
        layer = {
            "data": {"held_out": plain(self.held_out)},
            "method": {"name": self.method, "options": self.method_options or {}},
            "recipe": {name: plain(getattr(self, name)) for name in recipe if getattr(self, name) is not None},
            "compute": {"device": self.device, "threads": plain(self.threads)},
            "seed": seed,
        }
        config = Config.layered(preset("quick", "images" if is_images else TABLE, named), layer)
        if not METHODS.load(config.method.name).learns_classes:
            raise LLPError(f"{config.method.name} learns features and no classes: it is for `llp pretrain`")
        return config

    def _new_model(self, num_classes: int, reader: Rows | Images) -> nn.Module:
        options, shape = self.model_options or {}, reader.input_shape
        if isinstance(self.model, str):
            usual = "small-cnn" if isinstance(reader, Images) else "mlp"
            name = usual if self.model == "auto" else self.model
            return create_model(name, num_classes=num_classes, input_shape=shape, **options)
        if isinstance(self.model, nn.Module):
            if options:
                raise LLPError("model_options are for a model that is made here, and this one is a module already")
            return deepcopy(self.model)
        made = self.model(num_classes, shape, **options) if callable(self.model) else None
        if not isinstance(made, nn.Module):
            raise LLPError(f"model must be a name, a module, or a function that makes a module, not {self.model!r}")
        return made

    def _log_p(self, X: Any) -> np.ndarray:
        """Log-probabilities, ``[N, C]``."""
        check_is_fitted(self)
        inputs = self.reader_.read(self._checked(X, reset=False))
        try:
            log_p = predict(self.model_.to(pick_device(self.device)), self.views_, inputs)
        finally:
            self.model_.cpu()  # where it can be pickled for any other machine
        return log_p.cpu().double().log_softmax(1).numpy()


class _Printer(Observer):
    """A line an epoch with the time left."""

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        self.num_epochs, self.started = num_epochs, time.perf_counter()

    def on_epoch(self, row: Row, state: State) -> None:
        each = (time.perf_counter() - self.started) / row["epoch"]
        print(f"{epoch_line(row)}, {each * (self.num_epochs - row['epoch']):.0f} s left", flush=True)
