"""How probable the known counts of a bag are, or noisy ones, given the predictions (Poisson-binomial)."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torchllp.functional.count_noise import Reports, reports
from torchllp.functional.reductions import bag_sizes, bag_sum

ELEMENTS = 2**22
"""Numbers that are in memory at a time, for each of a few tensors."""
BISECTIONS = 64


def whole_bag_counts(proportions: Tensor, sizes: Tensor) -> Tensor:
    """Whole numbers nearest to ``proportions [B, C]`` times ``sizes [B]`` that sum to the sizes, ``[B, C]``.

    By largest remainder, in doubles; of equal ones, to four decimals, that of the first class counts as the largest.

    >>> whole_bag_counts(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([5]))
    tensor([[3., 1., 1.]], dtype=torch.float64)
    """
    sizes = sizes.double()[:, None]
    quota = (proportions.double() * sizes).round(decimals=4)  # remainders are equal that would be but for rounding
    counts = quota.floor()
    largest_first = (counts - quota).argsort(dim=1, stable=True)
    rank = largest_first.argsort(dim=1)
    return counts + (rank < sizes - counts.sum(1, keepdim=True))


def bag_evidence(log_probability: Tensor, counts: Tensor) -> Tensor:
    """What :func:`count_log_probability` ``[B, C]`` says of each bag, as one number ``[B]``.

    It is the sum over the classes, less what is said twice: the counts of all classes but one tell that of the last. A
    class that was not observed (NaN in ``counts [B, C]``) says nothing. Noisy counts are taken alike, though their last
    one would tell a little more.

    >>> bag_evidence(torch.tensor([[-1.0, -1.0], [-1.0, 0.0]]), torch.tensor([[2, 1], [2, math.nan]]))
    tensor([-1., -1.])
    """
    num_observed = (~counts.isnan()).sum(1)
    said_once = num_observed.clamp(max=counts.shape[1] - 1) / num_observed.clamp(min=1)
    return said_once * log_probability.sum(1)


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


def count_log_probability(
    log_p: Tensor,
    bag_index: Tensor,
    counts: Tensor,
    *,
    noise: str | None = None,
    scale: Tensor | None = None,
    largest: int | None = None,
) -> Tensor:
    """Log of ``Pr[count of class c = counts_ic]`` for each bag and class, ``[B, C]``, in double precision.

    Each instance is of class ``c`` with its predicted probability, independently of the others; ``counts [B, C]`` are
    whole numbers that add up to the bag. Every class is taken against all others, by itself. The gradient is exact.

    Of counts ``z`` that were reported with ``noise`` of some ``scale [B]`` (see :mod:`~.count_noise`) it is the log of
    ``sum_k Pr[count = k] Pr[z | k]``; with Gaussian noise that is a density. A class that was not observed (NaN) has 0.

    ``largest`` is the size of the largest bag, where it is known: then nothing waits for the device.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]).log()
    >>> bag_index, counts = torch.tensor([0, 0, 0]), torch.tensor([[2, 1]])
    >>> count_log_probability(log_p, bag_index, counts).exp()
    tensor([[0.4440, 0.4440]], dtype=torch.float64)
    >>> count_log_probability(log_p, bag_index, counts, noise="rounding", scale=torch.tensor([2])).exp()
    tensor([[0.9920, 0.9920]], dtype=torch.float64)
    """
    observed = ~counts.isnan()
    a = log_odds(log_p.double()).clamp(-1e6, 1e6)
    if a.shape[1] == 2 and noise is None:  # one count: the other is what is left of the bag
        left = bag_sizes(bag_index, len(counts), a.dtype) - counts[:, 1]
        counts, a = torch.where(observed[:, 0], counts[:, 0], left)[:, None], a[:, :1]
    known = reports(counts.nan_to_num(0).double(), noise, scale)
    return torch.where(observed, _CountLogProbability.apply(a, bag_index, known, largest), 0.0)


class _CountLogProbability(torch.autograd.Function):
    """As a function of the log-odds ``a``.

    Adding ``t`` to all of them changes ``log Pr[k]`` by ``t k`` and a constant. With the ``t`` for which the mean count
    is where ``Pr[z | k] exp(-t k)`` is largest, the sum over ``k`` is not small against its terms, and the plain
    discrete Fourier transform of the distribution has all digits that it needs.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, bag_index: Tensor, known: Reports, largest: int | None) -> Tensor:
        num_bags = len(known.z)
        sizes = bag_sizes(bag_index, num_bags, a.dtype)[:, None]
        tilt = _tilt(a, bag_index, known)
        tilted = a + tilt.index_select(0, bag_index)
        q = tilted.sigmoid()
        length = _length(q, bag_index, sizes, largest)
        # the counts from `first` on, as many as the transform is long: all of them, or those around the mean
        first = (bag_sum(q, bag_index, num_bags).round() - length // 2).minimum(sizes - length + 1).clamp(min=0)
        k = first[..., None] + torch.arange(length, dtype=a.dtype, device=a.device)
        log_weight = torch.where(k <= sizes[..., None], known.log_probability(k) - tilt[..., None] * k, -torch.inf)
        largest_weight = log_weight.amax(2)
        weights = (log_weight - largest_weight.nan_to_num(neginf=0)[..., None]).exp()
        total = _expectation(q, bag_index, first, weights).clamp(min=torch.finfo(a.dtype).tiny)
        ctx.save_for_backward(a, q, bag_index, first, weights, total)
        change = logsigmoid(-a) - logsigmoid(-tilted)  # of log(1 + e^a), for which softplus drops digits
        return bag_sum(change, bag_index, num_bags) + largest_weight + total.log()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """For each instance: how probable the class is given the report, less how probable it is without."""
        a, q, bag_index, first, weights, total = ctx.saved_tensors
        given = _membership(q, bag_index, first, weights) / total.index_select(0, bag_index)
        return gradients[0].index_select(0, bag_index) * (given.clamp(0, 1) - a.sigmoid()), None, None, None


def _tilt(a: Tensor, bag_index: Tensor, known: Reports) -> Tensor:
    """The ``t`` of each bag and class, ``[B, C]``, that is the slope of ``log Pr[z | k]`` where the mean count is.

    It is kept from where nearly all instances are of the class, or nearly none: no more is won beyond.
    """
    num_bags, shape = len(known.z), known.z.shape
    index = bag_index[:, None].expand_as(a)
    room = bag_sizes(bag_index, num_bags, a.dtype).log()[:, None] + 1
    low = -a.new_full(shape, -torch.inf).scatter_reduce(0, index, a, "amax") - room
    high = -a.new_full(shape, torch.inf).scatter_reduce(0, index, a, "amin") + room
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mean = bag_sum((a + middle.index_select(0, bag_index)).sigmoid(), bag_index, num_bags)
        below = known.slope(mean) > middle
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _length(q: Tensor, bag_index: Tensor, sizes: Tensor, largest: int | None) -> int:
    """How long a transform must be.

    One of length K adds up the probabilities of all counts that are K apart. Counts 12 standard deviations and 16 from
    the mean have none to speak of, so for large bags K is much smaller than the bag.
    """
    if largest is None:
        variance = bag_sum(q * (1 - q), bag_index, len(sizes)).amax()
        length = int(torch.fmin(sizes.amax(), 24 * variance.sqrt() + 32)) + 1  # of NaN and a number: the number
    else:
        length = int(min(largest, 12 * math.sqrt(largest) + 32)) + 1  # a variance is at most a quarter of the size
    return length + 1 - length % 2  # odd: at half a turn a factor of the product could be 0


def _frequencies(weights: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Angles of the transform, and the transform of the weights there (real part, minus the imaginary), in chunks.

    Half of the angles are enough, for the others are their conjugates.
    """
    length = weights.shape[2]
    place = torch.arange(length, dtype=weights.dtype, device=weights.device)
    angles = 2 * math.pi / length * place[: length // 2 + 1]
    for angle in angles.split(chunk):
        turn = place[:, None] * angle
        both = torch.where(angle > 0, 2.0, 1.0).to(weights.dtype) / length
        yield angle, weights @ (both * turn.cos()), weights @ (both * turn.sin())


def _factors(q: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Log-modulus and phase of ``1 - q + q e^(i angle)``, ``[N, C, K]``."""
    q, cos, sin = q[..., None], angle.cos(), angle.sin()
    return 0.5 * torch.log1p(-2 * q * (1 - q) * (1 - cos)), torch.atan2(q * sin, 1 - q + q * cos)


def _expectation(q: Tensor, bag_index: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """Mean of the count's weight, ``[B, C]``, where ``weights [B, C, K]`` are those of ``first [B, C]`` and on.

    By Parseval's theorem: the sum over the angles of the transform of the weights times that of the probabilities,
    which is a product over the bag.
    """
    total = torch.zeros_like(first)
    for angle, real, imaginary in _frequencies(weights, max(1, ELEMENTS // q.numel())):
        modulus, phase = (bag_sum(part, bag_index, len(first)) for part in _factors(q, angle))
        phase = phase - angle * first[..., None]
        total += (modulus.exp() * (real * phase.cos() + imaginary * phase.sin())).sum(2)
    return total


def _membership(q: Tensor, bag_index: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """The same mean over those cases alone in which the instance is of the class, ``[N, C]``."""
    total = torch.zeros_like(q)
    others = first.index_select(0, bag_index)[..., None] - 1  # what is left for the other instances
    for angle, real, imaginary in _frequencies(weights, max(1, ELEMENTS // q.numel())):
        modulus, phase = _factors(q, angle)
        modulus_of, phase_of = (bag_sum(part, bag_index, len(first)) for part in (modulus, phase))
        modulus = modulus_of.index_select(0, bag_index) - modulus
        phase = phase_of.index_select(0, bag_index) - phase - angle * others
        real, imaginary = (part.index_select(0, bag_index) for part in (real, imaginary))
        total += (modulus.exp() * (real * phase.cos() + imaginary * phase.sin())).sum(2)
    return q * total
