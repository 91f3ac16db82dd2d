"""How probable the known counts of a bag are, given the predictions of its instances (Poisson-binomial)."""

import math
from typing import Any

import torch
from torch import Tensor

from torchllp.functional.reductions import bag_sizes, bag_sum

ELEMENTS = 2**22
"""Numbers that are in memory at a time, for each of a few tensors."""
BISECTIONS = 64


def log_odds(log_p: Tensor) -> Tensor:
    """``log p - log(1 - p)`` of each class against all others, ``[N, C]``, with all digits where a class is certain.

    There ``1 - p`` is the sum of the other classes; ``1 - exp(log_p)`` would be 0.

    >>> log_odds(torch.tensor([[0.0, -40.0]]))
    tensor([[ 40., -40.]])
    """
    largest = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, largest, -torch.inf).logsumexp(1, keepdim=True)
    rest = torch.log1p(-log_p.scatter(1, largest, -torch.inf).exp())  # of classes with at most one half
    return log_p - rest.scatter(1, largest, others)


def count_log_probability(log_p: Tensor, bag_index: Tensor, counts: Tensor) -> Tensor:
    """Log of ``Pr[count of class c = counts_ic]`` for each bag and class, ``[B, C]``, in double precision.

    Each instance is of class ``c`` with its predicted probability, independently of the others; ``counts [B, C]`` are
    whole numbers. Every class is taken against all others, by itself. The gradient is exact.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]).log()
    >>> count_log_probability(log_p, torch.tensor([0, 0, 0]), torch.tensor([[2, 1]])).exp()
    tensor([[0.4440, 0.4440]], dtype=torch.float64)
    """
    return _CountLogProbability.apply(log_odds(log_p.double()).clamp(-1e6, 1e6), bag_index, counts.double())


class _CountLogProbability(torch.autograd.Function):
    """As a function of the log-odds ``a``.

    Adding ``t`` to all of them changes ``log Pr[m]`` by a known amount. With the ``t`` for which ``m`` is the mean the
    probability is not small, and the plain discrete Fourier transform of the distribution has all its digits.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, bag_index: Tensor, counts: Tensor) -> Tensor:
        sizes = bag_sizes(bag_index, len(counts), a.dtype)[:, None]
        inside = (counts > 0) & (counts < sizes)
        tilt = _tilt(a, bag_index, torch.where(inside, counts, 0.5 * sizes))
        tilted = a + tilt.index_select(0, bag_index)
        probability = _spectrum(tilted, bag_index, counts, sizes)
        probability = torch.where(inside, probability, 1.0).clamp(min=torch.finfo(a.dtype).tiny)
        ctx.save_for_backward(a, tilted, bag_index, counts, sizes, probability)
        change = torch.nn.functional.softplus(tilted) - torch.nn.functional.softplus(a)
        of_tilted = bag_sum(change, bag_index, len(counts)) - tilt * counts + probability.log()
        none = -bag_sum(torch.nn.functional.softplus(a), bag_index, len(counts))
        every = -bag_sum(torch.nn.functional.softplus(-a), bag_index, len(counts))
        return torch.where(inside, of_tilted, torch.where(counts <= 0, none, every))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """For each instance: how probable the class is given the count, less how probable it is without."""
        a, tilted, bag_index, counts, sizes, probability = ctx.saved_tensors
        given = _membership(tilted, bag_index, counts, sizes) / probability.index_select(0, bag_index)
        counts_of, sizes_of = counts.index_select(0, bag_index), sizes.index_select(0, bag_index)
        given = torch.where(counts_of <= 0, 0.0, torch.where(counts_of >= sizes_of, 1.0, given))
        return gradients[0].index_select(0, bag_index) * (given - a.sigmoid()), None, None


def _tilt(a: Tensor, bag_index: Tensor, mean: Tensor) -> Tensor:
    """The ``t`` of each bag and class, ``[B, C]``, for which the mean count is ``mean``."""
    num_bags = len(mean)
    index = bag_index[:, None].expand_as(a)
    room = bag_sizes(bag_index, num_bags, a.dtype).log()[:, None] + 1
    low = -a.new_full(mean.shape, -torch.inf).scatter_reduce(0, index, a, "amax") - room
    high = -a.new_full(mean.shape, torch.inf).scatter_reduce(0, index, a, "amin") + room
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = bag_sum((a + middle.index_select(0, bag_index)).sigmoid(), bag_index, num_bags) < mean
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _frequencies(q: Tensor, bag_index: Tensor, sizes: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Angles of the transform and their weights, in chunks; half of them, for the others are their conjugates.

    A transform of length K adds up the probabilities of all counts that are K apart. Counts 12 standard deviations and
    16 from the mean have none to speak of, so for large bags K is much smaller than the bag.
    """
    variance = bag_sum(q * (1 - q), bag_index, len(sizes)).amax()
    length = int(torch.fmin(sizes.amax(), 24 * variance.sqrt() + 32)) + 1  # of NaN and a number: the number
    length += 1 - length % 2  # odd: at half a turn a factor of the product could be 0
    angle = 2 * math.pi / length * torch.arange(length // 2 + 1, dtype=q.dtype, device=q.device)
    weight = torch.where(angle > 0, 2.0, 1.0).to(q.dtype) / length
    chunk = max(1, ELEMENTS // q.numel())
    return list(zip(angle.split(chunk), weight.split(chunk), strict=True))


def _factors(q: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Log-modulus and phase of ``1 - q + q e^(i angle)``, ``[N, C, K]``."""
    q, cos, sin = q[..., None], angle.cos(), angle.sin()
    return 0.5 * torch.log1p(-2 * q * (1 - q) * (1 - cos)), torch.atan2(q * sin, 1 - q + q * cos)


def _spectrum(tilted: Tensor, bag_index: Tensor, counts: Tensor, sizes: Tensor) -> Tensor:
    """Probability of the counts, ``[B, C]``, by the inverse transform of the product over the bag."""
    q, total = tilted.sigmoid(), torch.zeros_like(counts)
    for angle, weight in _frequencies(q, bag_index, sizes):
        modulus, phase = (bag_sum(part, bag_index, len(counts)) for part in _factors(q, angle))
        total += (weight * modulus.exp() * (phase - angle * counts[..., None]).cos()).sum(2)
    return total


def _membership(tilted: Tensor, bag_index: Tensor, counts: Tensor, sizes: Tensor) -> Tensor:
    """Probability that the bag has its counts and the instance is of the class, ``[N, C]``."""
    q, total = tilted.sigmoid(), torch.zeros_like(tilted)
    others = counts.index_select(0, bag_index)[..., None] - 1  # what is left for the other instances
    for angle, weight in _frequencies(q, bag_index, sizes):
        modulus, phase = _factors(q, angle)
        modulus_of, phase_of = (bag_sum(part, bag_index, len(counts)) for part in (modulus, phase))
        modulus = modulus_of.index_select(0, bag_index) - modulus
        phase = phase_of.index_select(0, bag_index) - phase
        total += (weight * modulus.exp() * (phase - angle * others).cos()).sum(2)
    return q * total
