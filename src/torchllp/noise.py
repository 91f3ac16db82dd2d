"""Noise: how the counts that are reported of bags differ from the true ones."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from torchllp.errors import LLPError

NoiseKind = Literal["gaussian", "laplace", "rounding"]
NOISES: tuple[NoiseKind, ...] = get_args(NoiseKind)
"""What may be between a count and its report."""
SLACK = 1e-6
"""By how much of its own size a report may lie beyond its rounding: it may have been a share in single precision."""


@dataclass(frozen=True, eq=False)
class Noise:
    """How the reported counts of bags differ from the true ones.

    Attributes:
        kind: ``"gaussian"`` (a normal number was added), ``"laplace"`` (a whole number was, of the discrete Laplace
            distribution, as for differential privacy) or ``"rounding"``.
        scale: one number a bag, ``[B]``: the standard deviation, in instances; epsilon; or the step, in instances. The
            counts of a bag with a deviation or a step of 0, or an epsilon of infinity, are exact.
    """

    kind: NoiseKind
    scale: np.ndarray

    def __post_init__(self) -> None:
        if self.kind not in NOISES:
            raise LLPError(f"there is no noise {self.kind!r}: it is one of {', '.join(NOISES)}")
        scale = np.array(self.scale, dtype=np.float64)
        scale.setflags(write=False)
        object.__setattr__(self, "scale", scale)
        fits = scale > 0 if self.kind == "laplace" else (scale >= 0) & np.isfinite(scale)
        for value in scale[~fits][:1]:
            what = {"gaussian": "standard deviation", "laplace": "epsilon", "rounding": "step"}[self.kind]
            least = "above 0" if self.kind == "laplace" else "a number of 0 or above"
            raise LLPError(f"the scale of {self.kind} noise is its {what}, {least}, not {value:g}")

    @property
    def is_exact(self) -> np.ndarray:
        """Whether a bag's counts were reported as they are, ``[B]``."""
        return self.scale == exact_scale(self.kind)

    def select(self, bags: np.ndarray) -> "Noise":
        """The noise of these bags alone."""
        return Noise(self.kind, self.scale[bags])

    def counts_rounded_to(self, reported: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest count, of a bag's 0 to ``sizes [B, 1]``, that rounds to what was reported."""
        reach = self.scale[:, None] / 2 + SLACK * (1 + np.abs(reported))
        return np.ceil(reported - reach).clip(min=0), np.floor(reported + reach).clip(max=sizes)


def exact_scale(kind: NoiseKind) -> float:
    """The scale that says that there is no noise."""
    return math.inf if kind == "laplace" else 0.0
