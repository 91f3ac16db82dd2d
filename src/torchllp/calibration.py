"""What held-out bags say of predicted probabilities: how sure they should be, and how far bags' totals are off."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from torchllp.errors import LLPError
from torchllp.functional import bag_evidence, bag_mean, bag_sizes, bag_sum, count_log_probability

PRIOR_DEVIATION = 0.5
"""Of the logarithm of the temperature. Few bags that are all met exactly would otherwise make predictions certain."""
LARGEST = 10.0
NUM_DRAWS = 400
MOST_ERRORS = 1000


@dataclass(frozen=True, eq=False)
class Calibration:
    """A temperature for log-probabilities, and the errors of bags that are left then.

    Attributes:
        temperature: what logits are divided by; above 1 makes predictions less sure.
        bag_errors: known less predicted shares of held-out bags, ``[B, C]``; empty where no bag was held out.
        by_chance: mean square of these errors that there would be if every probability were right, ``[C]``.
    """

    temperature: float
    bag_errors: np.ndarray
    by_chance: np.ndarray

    @classmethod
    def none(cls, num_classes: int) -> "Calibration":
        """Predictions as they are."""
        return cls(1.0, np.empty((0, num_classes)), np.zeros(num_classes))

    @classmethod
    def fit(
        cls,
        log_p: Tensor,
        bag_index: Tensor,
        counts: Tensor,
        *,
        noise: str | None = None,
        scale: Tensor | None = None,
    ) -> "Calibration":
        """From predictions of held-out bags whose counts ``[B, C]`` are known; no instance's label is needed.

        The temperature makes the counts most probable (Poisson-binomial, each class against all others). They may be
        uncertain, as in :func:`~torchllp.functional.count_log_probability`; noise then counts among the bags' errors.

        >>> log_p = torch.tensor([[0.99, 0.01], [0.01, 0.99]]).log().repeat(50, 1)
        >>> fitted = Calibration.fit(log_p, torch.arange(10).repeat_interleave(10), torch.tensor([[4, 6], [6, 4]] * 5))
        >>> round(fitted.temperature, 1)
        2.2
        """
        log_p, counts = log_p.detach().double(), counts.double()

        def surprise(log_temperature: float) -> float:
            tempered = (log_p / math.exp(log_temperature)).log_softmax(1)
            fits = count_log_probability(tempered, bag_index, counts, noise=noise, scale=scale)
            return (log_temperature / PRIOR_DEVIATION) ** 2 / 2 - bag_evidence(fits, counts).sum().item()

        bound = math.log(LARGEST)
        found = minimize_scalar(surprise, bounds=(-bound, bound), method="bounded", options={"xatol": 1e-3})
        temperature = math.exp(found.x)
        return cls(temperature, *_errors((log_p / temperature).softmax(1), bag_index, counts))

    def __call__(self, log_p: Tensor) -> Tensor:
        """Calibrated log-probabilities, ``[N, C]``."""
        return log_p if self.temperature == 1 else (log_p / self.temperature).log_softmax(1)

    def bag_intervals(self, p: Tensor, bag_index: Tensor, num_bags: int, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the bags' true shares, ``[B, C]`` each, that hold with probability ``level`` for each share.

        Two sources of error are drawn again and again: the class of each instance, from its calibrated probabilities
        ``p [N, C]``, and a Gaussian error of the whole bag with the covariance of those of held-out bags, less what
        chance explains of it. How large errors are is itself uncertain where few bags tell it, as in a t-distribution.
        The predicted share is always inside.
        """
        if not 0 < level < 1:
            raise LLPError(f"the level of an interval is between 0 and 1, not {level}")
        generator = torch.Generator().manual_seed(0)  # the same bags have the same intervals
        edges = p.double().cumsum(1)[:, :-1]
        num_classes, draws = p.shape[1], []
        errors, by_chance = torch.from_numpy(self.bag_errors), torch.from_numpy(self.by_chance)
        mean_square = errors.square().mean(0).clamp(min=1e-12)
        _, spread, axes = torch.linalg.svd(errors / max(len(errors), 1) ** 0.5, full_matrices=False)
        for _ in range(NUM_DRAWS):
            classes = (torch.rand(len(p), 1, generator=generator, dtype=torch.float64) > edges).sum(1)
            share = bag_mean(torch.nn.functional.one_hot(classes, num_classes).double(), bag_index, num_bags)
            if len(errors):
                normal = torch.randn(num_bags, len(spread), generator=generator, dtype=torch.float64)
                chi_square = torch.randn(len(errors), generator=generator, dtype=torch.float64).square().mean()
                left = (1 / chi_square - by_chance / mean_square).clamp(min=0).sqrt()
                share = share + left * (normal * spread @ axes)
            draws.append(share.clamp(0, 1).numpy())
        predicted = bag_mean(p.double(), bag_index, num_bags).numpy()
        low, high = np.quantile(np.stack(draws), [(1 - level) / 2, (1 + level) / 2], axis=0)
        return np.minimum(low, predicted), np.maximum(high, predicted)

    def to_json(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "bag_errors": self.bag_errors.tolist(),
            "by_chance": self.by_chance.tolist(),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any], num_classes: int) -> "Calibration":
        errors = np.array(content["bag_errors"]).reshape(-1, num_classes)
        return cls(content["temperature"], errors, np.array(content["by_chance"]))


def _errors(p: Tensor, bag_index: Tensor, counts: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Known less predicted shares of bags, ``[B, C]``, and how much of their mean square chance explains, ``[C]``.

    A class's share of a bag varies by chance even if every probability is right.
    """
    num_bags = len(counts)
    sizes = bag_sizes(bag_index, num_bags, p.dtype)[:, None]
    errors = counts / sizes - bag_mean(p, bag_index, num_bags)
    by_chance = bag_sum(p * (1 - p), bag_index, num_bags) / sizes.square()
    by_chance = by_chance.where(~errors.isnan(), torch.nan).nanmean(0).nan_to_num()
    found = errors[:MOST_ERRORS].numpy()
    for of_class in found.T:  # where a class was not observed, errors that were stand in for its own
        missing = np.isnan(of_class)
        of_class[missing] = np.resize(of_class[~missing], missing.sum()) if not missing.all() else 0.0
    return found, by_chance.numpy()
