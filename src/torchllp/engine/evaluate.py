"""Predictions of a whole set of instances, and what they are worth."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.calibration import Calibration
from torchllp.data.dataset import Instances
from torchllp.engine.distributed import ALONE, Processes
from torchllp.functional import log_probabilities, whole_bag_counts
from torchllp.metrics import accuracy, bag_errors, count_score, prior_log_probability
from torchllp.models.features import features_of, predicting
from torchllp.views.views import Views

LARGEST_BATCH = 1024
PIXELS, PIXELS_ON_CPU = 1024 * 32 * 32, 256 * 32 * 32
"""Of a batch that is only predicted: a ResNet-50 takes about 5 GB for so many pixels on a GPU. On a CPU what a layer
gives should be small enough to be read from the cache by the next."""


def evaluation_batch(shape: tuple[int, ...], device: torch.device) -> int:
    """How many instances of this shape, ``[C, H, W]`` or ``[D]``, are predicted at a time.

    >>> evaluation_batch((3, 32, 32), torch.device("cuda")), evaluation_batch((3, 32, 32), torch.device("cpu"))
    (1024, 256)
    >>> evaluation_batch((3, 224, 224), torch.device("cuda")), evaluation_batch((100,), torch.device("cpu"))
    (20, 1024)
    """
    pixels = shape[1] * shape[2] if len(shape) == 3 else 1
    return max(1, min(LARGEST_BATCH, (PIXELS_ON_CPU if device.type == "cpu" else PIXELS) // pixels))


def predict(
    model: nn.Module,
    views: Views,
    inputs: Tensor,
    rows: Tensor | None = None,
    processes: Processes = ALONE,
) -> Tensor:
    """Log-probabilities of raw instances, ``[N, C]``, on the model's device; its mode is left as it was.

    With ``rows``, of those alone; the inputs may be larger than memory. Several ``processes`` share the work.
    """
    device = next(model.parameters()).device
    if processes.count > 1:
        parts = (torch.arange(len(inputs)) if rows is None else rows).tensor_split(processes.count)
        return processes.gather(predict(model, views, inputs, parts[processes.rank]), [*map(len, parts)])
    with predicting(model):
        chunks = _prepared(views, inputs, rows, device)
        return torch.cat([log_probabilities(model(chunk)) for chunk in chunks])


def predict_features(model: nn.Module, views: Views, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
    """The features by which raw instances are predicted, ``[N, D]``, on the CPU; with ``rows``, of those alone."""
    device = next(model.parameters()).device
    with predicting(model):
        chunks = _prepared(views, inputs, rows, device)
        return torch.cat([features_of(model, chunk).flatten(1).float().cpu() for chunk in chunks])


def _prepared(views: Views, inputs: Tensor, rows: Tensor | None, device: torch.device) -> Iterator[Tensor]:
    """Raw instances as a model takes them, as many at a time as it should predict."""
    size = evaluation_batch(tuple(inputs.shape[1:]), device)
    chunks = inputs.split(size) if rows is None else (inputs[part] for part in rows.split(size))
    return (views.plain(chunk.to(device)) for chunk in chunks)


def class_prior(bags: Bags) -> np.ndarray:
    """Share of each class in all labelled bags, ``[C]``; half an instance more of each: no class is impossible."""
    known = bags.counts[bags.is_labelled].sum(0) + 0.5
    return known / known.sum()


def reported_counts(bags: Bags) -> dict[str, Any]:
    """Counts of labelled bags with their noise, as arguments of :func:`~torchllp.functional.count_log_probability`.

    Those that are known exactly are made whole.
    """
    if bags.reported is None:
        return {"counts": whole_bag_counts(torch.tensor(bags.proportions), torch.tensor(bags.sizes))}
    noise: dict[str, Any] = {}
    if bags.noise is not None:
        noise = {"noise": bags.noise.kind, "scale": torch.tensor(bags.noise.scale)}
    return {"counts": torch.tensor(bags.reported)} | noise


class HeldOut:
    """Bags that are not trained on, to judge predictions by without a label."""

    def __init__(self, bags: Bags, trained_on: Bags, train: Instances) -> None:
        self.train = train
        self.members = torch.tensor(bags.members, device=train.inputs.device)
        self.bag_index = torch.tensor(bags.bag_of[bags.members])
        self.proportions = torch.tensor(bags.proportions, dtype=torch.float32)
        self.observed = torch.tensor(bags.observed)
        self.reports = reported_counts(bags)
        self.prior = torch.tensor(class_prior(trained_on))
        self.by_prior = prior_log_probability(self.prior, self.bag_index, **self.reports)

    def judge(
        self,
        model: nn.Module,
        views: Views,
        processes: Processes = ALONE,
    ) -> dict[str, Tensor]:
        """The criteria an epoch can be chosen by, see `metrics`."""
        # On the CPU, where the bags are and doubles, which not every device has.
        log_p = predict(model, views, self.train.inputs, self.members, processes).cpu()
        score = count_score(log_p, self.bag_index, prior=self.prior, by_prior=self.by_prior, **self.reports)
        return bag_errors(log_p, self.bag_index, self.proportions, self.observed) | {"count_score": score}

    def calibrate(self, model: nn.Module, views: Views) -> Calibration:
        """What these bags say of the probabilities that a model gives."""
        log_p = predict(model, views, self.train.inputs, self.members)
        return Calibration.fit(log_p.cpu(), self.bag_index, **self.reports)


def evaluate(
    model: nn.Module,
    views: Views,
    held_out: HeldOut | None,
    test: Instances | None,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """What held-out bags say, and accuracy where test labels exist, by the name they have in the metrics."""
    metrics: dict[str, Tensor] = {}
    if held_out is not None:
        metrics |= {f"held_out/{name}": value for name, value in held_out.judge(model, views, processes).items()}
    if test is not None and test.labels is not None and test.is_labelled:
        log_p = predict(model, views, test.inputs, processes=processes)
        metrics["test/accuracy"] = accuracy(log_p, test.labels.to(log_p.device))
    return {name: value.item() for name, value in metrics.items()}
