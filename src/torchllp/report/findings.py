"""What the classifier of a finished run says of the instances that the run has: the material of its report."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.data.dataset import Instances
from torchllp.data.image_cache import Progress
from torchllp.engine.evaluate import predict, predict_features
from torchllp.errors import LLPError
from torchllp.functional import bag_mean
from torchllp.methods import create_method
from torchllp.methods.ahil import AHIL
from torchllp.methods.pseudo_labels import likeliest_labels
from torchllp.methods.weights import dual_entropy_weights
from torchllp.metrics import confusion_matrix
from torchllp.predictor import Predictor
from torchllp.report.proportions import Shares
from torchllp.report.reliability import Reliability
from torchllp.run import Run
from torchllp.supervision import bags_of, check_inputs, load_supervision

MOST_TESTED = 20_000
"""Labelled instances that are predicted at most; so are the next two of those in bags."""
MOST_IN_TRAINING_BAGS = 15_000
MOST_IN_HELD_OUT_BAGS = 5_000


@dataclass(frozen=True, eq=False)
class Tested:
    """Predictions of labelled instances."""

    rows: Tensor
    """Which of the instances, ``[N]``."""
    log_p: Tensor
    """Log-probabilities as the model gives them, ``[N, C]``."""
    labels: Tensor
    """``[N]``."""
    num_there: int
    """Labelled instances that there are."""


@dataclass(frozen=True, eq=False)
class InBags:
    """Predictions of the instances of whole bags."""

    bags: Bags
    rows: np.ndarray
    """The instances, bag by bag, ``[N]``."""
    bag_index: Tensor
    """``[N]``."""
    log_p: Tensor
    """Log-probabilities as the model gives them, ``[N, C]``."""
    num_there: int
    """Bags that there are."""


class Findings:
    """A finished run's classifier with the run's data; predictions are made when they are asked for."""

    def __init__(
        self, run: Run, *, data_dir: Path | None = None, device: str = "auto", progress: Progress | None = None
    ) -> None:
        """``data_dir`` is where the files of a named data set are now; ``progress`` is told of images decoded."""
        self.run = run
        self.predictor = Predictor(run, device=device, progress=progress)
        self.data, self.bags, self.train_bags, self.held_out = load_supervision(
            run.config_with(data_dir), bags_of(run), progress
        )
        check_inputs(run, self.data)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.predictor.class_names

    @cached_property
    def tested(self) -> Tested | None:
        """The labelled test instances, of many a random part; None if there are none."""
        found = self._labelled(MOST_TESTED)
        if found is None:
            return None
        test, rows, labels, num_there = found
        return Tested(rows, self._log_p(test, rows), labels, num_there)

    @cached_property
    def in_training_bags(self) -> InBags | None:
        """The instances of training bags, of many bags a random part; None if no bag is small enough."""
        return self._in_bags(self.train_bags, MOST_IN_TRAINING_BAGS)

    @cached_property
    def in_held_out_bags(self) -> InBags | None:
        """The same of the held-out bags; None also if there are none."""
        return None if self.held_out is None else self._in_bags(self.held_out, MOST_IN_HELD_OUT_BAGS)

    @cached_property
    def confusion(self) -> Tensor | None:
        """Test instances of each true class (rows) by predicted class (columns), ``[C, C]``."""
        if self.tested is None:
            return None
        return confusion_matrix(self.tested.log_p.argmax(1), self.tested.labels, len(self.class_names))

    @cached_property
    def reliability(self) -> dict[str, Reliability]:
        """Of the test instances, before and after calibration, in words; nothing without labels or held-out bags."""
        if self.tested is None:
            return {}
        log_p, labels, calibration = self.tested.log_p, self.tested.labels, self.predictor.calibration
        panels = {"As the model gives probabilities": Reliability.of(log_p, labels)}
        if self.held_out is not None:
            panels["Calibrated on held-out bags"] = Reliability.of(calibration(log_p), labels)
        return panels

    @cached_property
    def proportions(self) -> dict[str, Shares]:
        """Given and predicted shares of training bags and of held-out bags, in words, as far as there are."""
        kinds = {"training bags": self.in_training_bags, "held-out bags": self.in_held_out_bags}
        shares = {name: self._shares(bags) for name, bags in kinds.items() if bags is not None}
        return {name: pair for name, pair in shares.items() if pair is not None}

    def _shares(self, predicted: InBags) -> Shares | None:
        """Given and predicted shares of the labelled bags, by calibrated probabilities; None without such a bag."""
        bags = predicted.bags
        if not bags.is_labelled.any():
            return None
        p = self.predictor.calibration(predicted.log_p).exp()
        means = bag_mean(p, predicted.bag_index, len(bags)).numpy()
        given = np.where(bags.observed, bags.proportions, np.nan)
        return given[bags.is_labelled], means[bags.is_labelled]

    def trust(self, predicted: InBags) -> tuple[np.ndarray, str]:
        """How far each likeliest class is trusted, ``[N]``, and what that is in words."""
        method = create_method(self.run.config.method.name, **self.run.config.method.options)
        label, bags = likeliest_labels(predicted.log_p), predicted.bags
        if not isinstance(method, AHIL) or method.beta_bag is method.beta_instance is None:
            words = "the largest predicted probability, since the method has no trust that can be told afterwards"
            return predicted.log_p.amax(1).exp().numpy(), words
        batch = BagBatch(
            weak=predicted.log_p,
            bag_index=predicted.bag_index,
            proportions=torch.tensor(bags.proportions, dtype=torch.float32),
            is_labelled=torch.tensor(bags.is_labelled),
            reported=None if bags.reported is None else torch.tensor(bags.reported, dtype=torch.float32),
        )
        betas = {"beta_bag": method.beta_bag, "beta_instance": method.beta_instance}
        weights = dual_entropy_weights(predicted.log_p, label, batch, **betas)
        return weights.numpy(), "the dual entropy weight (Eq. 6 to 10)"

    def features(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the head for labelled test instances, ``[N, D]``, and their labels; of many a random part."""
        found = self._labelled(most)
        if found is None:
            raise LLPError(f"{self.run.path}: no test instance has a label to be coloured by")
        test, rows, labels, _ = found
        features = predict_features(self.predictor.model, self.predictor.views, test.inputs, rows)
        return features.numpy(), labels.numpy()

    def _labelled(self, most: int) -> tuple[Instances, Tensor, Tensor, int] | None:
        """The test instances, which of them have a label (of many a random part), these labels, and how many have."""
        test = self.data.test
        if test is None or test.labels is None or not test.is_labelled:
            return None
        known = torch.nonzero(test.labels.cpu() >= 0).squeeze(1)
        chosen = np.random.default_rng(0).permutation(len(known))[:most]
        rows = known[torch.from_numpy(np.sort(chosen))]
        return test, rows, test.labels.cpu()[rows], len(known)

    def _in_bags(self, bags: Bags, most: int) -> InBags | None:
        small = np.flatnonzero(bags.sizes <= most)
        order = np.random.default_rng(0).permutation(small)
        chosen = np.sort(order[np.cumsum(bags.sizes[order]) <= most])
        if not len(chosen):
            return None
        rows, index = bags.members_of(chosen)
        log_p = self._log_p(self.data.train, torch.from_numpy(rows))
        return InBags(bags.select(chosen), rows, torch.from_numpy(index), log_p, len(bags))

    def _log_p(self, instances: Instances, rows: Tensor) -> Tensor:
        return predict(self.predictor.model, self.predictor.views, instances.inputs, rows).cpu()
