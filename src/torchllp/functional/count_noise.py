"""How a reported count differs from the true one: noise that was added to it, or rounding."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchllp.errors import LLPError
from torchllp.noise import NOISES, SLACK


class Reports(NamedTuple):
    """``log Pr[z | k]`` of reports ``z [B, C]``, as a concave function of the true count ``k``.

    It is ``log_height - curvature / 2 (z - k)^2 - rate |z - k|`` within ``reach`` of ``z``, and minus infinity beyond;
    all but ``z`` are ``[B, 1]`` or ``[B, C]``. Of an exact count only ``reach`` is not nothing: it is 0.
    """

    z: Tensor
    curvature: Tensor
    rate: Tensor
    reach: Tensor
    log_height: Tensor

    def log_probability(self, k: Tensor) -> Tensor:
        """``log Pr[z | k]`` for counts ``k [B, C, K]``."""
        z, curvature, rate, reach, log_height = (part[..., None] for part in self)
        gap = (z - k).abs()
        return torch.where(gap <= reach, log_height - 0.5 * curvature * gap.square() - rate * gap, -torch.inf)

    def slope(self, k: Tensor) -> Tensor:
        """By how much ``log Pr[z | k]`` rises as ``k [B, C]``, which need not be whole, does."""
        gap = self.z - k
        rise = self.curvature * gap + self.rate * gap.sign()
        return torch.where(gap.abs() <= self.reach, rise, torch.inf * gap.sign())


def reports(z: Tensor, noise: str | None = None, scale: Tensor | None = None) -> Reports:
    """What reports ``z [B, C]`` say, by the kind and the ``scale [B]`` of their noise.

    - ``"gaussian"``: a normal number of standard deviation ``scale`` was added, and ``Pr`` is a density.
    - ``"laplace"``: a whole number with ``Pr[n] ~ exp(-scale |n|)`` was added (the two-sided geometric mechanism).
    - ``"rounding"``: the count was rounded to a multiple of ``scale``. A count half-way may go either way.

    A bag with a scale of 0 (``"laplace"``: infinity) is exact, as are all without ``noise``.
    """
    none = torch.zeros_like(z[:, :1])
    if noise is None:
        return Reports(z.round(), none, none, none, none)
    if noise not in NOISES:
        raise LLPError(f"there is no noise {noise!r}: it is one of {', '.join(NOISES)}")
    if scale is None:
        raise LLPError(f"{noise} noise needs its scale, one number a bag")
    scale = scale.to(z.dtype)[:, None]
    slack = SLACK * (1 + z.abs())
    if noise == "rounding":
        return Reports(z, none, none, scale / 2 + slack, none)
    is_exact = scale.isinf() if noise == "laplace" else scale == 0
    z = torch.where(is_exact, z.round(), z)
    reach = torch.where(is_exact, 0.0, torch.inf)
    if noise == "laplace":
        rate = torch.where(is_exact, 0.0, scale)
        return Reports(z, none, rate, reach, torch.where(is_exact, 0.0, (scale / 2).tanh().log()))
    sd = torch.where(is_exact, 1.0, scale)
    curvature = torch.where(is_exact, 0.0, sd**-2)
    return Reports(z, curvature, none, reach, torch.where(is_exact, 0.0, -sd.log() - 0.5 * math.log(2 * math.pi)))


def noise_variance(noise: str, scale: Tensor) -> Tensor:
    """Variance of a report around its count, ``[B]``; see :func:`reports`.

    >>> noise_variance("gaussian", torch.tensor([0.0, 2.0]))
    tensor([0., 4.])
    >>> noise_variance("laplace", torch.tensor([torch.inf, 1.0]))
    tensor([0.0000, 1.8413])
    >>> noise_variance("rounding", torch.tensor([0.0, 6.0]))
    tensor([0., 3.])
    """
    if noise == "laplace":
        return 0.5 * (scale / 2).sinh() ** -2
    return scale.square() / (12 if noise == "rounding" else 1)
