"""Predictions of a whole set of instances, and what they are worth."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.calibration import Calibration
from torchllp.data.dataset import Instances
from torchllp.engine.distributed import ALONE, Processes
from torchllp.functional import log_probabilities, whole_counts
from torchllp.metrics import accuracy, bag_errors, count_score, prior_log_probability
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


@torch.no_grad()
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
    was_training, device = model.training, next(model.parameters()).device
    if processes.count > 1:
        parts = (torch.arange(len(inputs)) if rows is None else rows).tensor_split(processes.count)
        return processes.gather(predict(model, views, inputs, parts[processes.rank]), [*map(len, parts)])
    size = evaluation_batch(tuple(inputs.shape[1:]), device)
    chunks = inputs.split(size) if rows is None else (inputs[part] for part in rows.split(size))
    model.eval()
    try:
        return torch.cat([log_probabilities(model(views.plain(chunk.to(device)))) for chunk in chunks])
    finally:
        model.train(was_training)


def class_prior(bags: Bags) -> np.ndarray:
    """Share of each class in all labelled bags, ``[C]``; half an instance more of each: no class is impossible."""
    known = bags.counts[bags.is_labelled].sum(0) + 0.5
    return known / known.sum()


def reported_counts(bags: Bags) -> dict[str, Any]:
    """Counts of labelled bags with their noise, as arguments of :func:`~torchllp.functional.count_log_probability`.

    Those that are known exactly are made whole.
    """
    if bags.reported is None:
        whole = np.stack([*map(whole_counts, bags.proportions, bags.sizes.tolist())])
        return {"counts": torch.tensor(whole)}
    noise: dict[str, Any] = {}
    if bags.noise is not None:
        noise = {"noise": bags.noise.kind, "scale": torch.tensor(bags.noise.scale)}
    return {"counts": torch.tensor(bags.reported)} | noise


class HeldOut:
    """Bags that are not trained on, to judge predictions by without a label."""

    def __init__(self, bags: Bags, trained_on: Bags, train: Instances, device: torch.device | None = None) -> None:
        """``device`` is the model's, if the instances are elsewhere."""
        device = device or train.inputs.device
        self.train = train
        self.members = torch.tensor(bags.members, device=train.inputs.device)
        self.bag_index = torch.tensor(bags.bag_of[bags.members], device=device)
        self.proportions = torch.tensor(bags.proportions, dtype=torch.float32, device=device)
        self.observed = torch.tensor(bags.observed, device=device)
        self.reports = reported_counts(bags)
        self.prior = torch.tensor(class_prior(trained_on))
        self.by_prior = prior_log_probability(self.prior, self.bag_index.cpu(), **self.reports)

    def judge(
        self,
        model: nn.Module,
        views: Views,
        processes: Processes = ALONE,
    ) -> dict[str, Tensor]:
        """The criteria an epoch can be chosen by, see `metrics`."""
        log_p = predict(model, views, self.train.inputs, self.members, processes)
        on_cpu = log_p.cpu(), self.bag_index.cpu()  # in doubles, which not every device has
        score = count_score(*on_cpu, prior=self.prior, by_prior=self.by_prior, **self.reports)
        return bag_errors(log_p, self.bag_index, self.proportions, self.observed) | {"count_score": score}

    def calibrate(self, model: nn.Module, views: Views) -> Calibration:
        """What these bags say of the probabilities that a model gives."""
        log_p = predict(model, views, self.train.inputs, self.members)
        return Calibration.fit(log_p.cpu(), self.bag_index.cpu(), **self.reports)


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
