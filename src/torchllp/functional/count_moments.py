"""What lies between the mean of a bag's predictions and the probability of its counts: a Gaussian, and moments."""

import math

import torch
from torch import Tensor

from torchllp.functional.reductions import BagColumns, bag_sizes, bag_sum

ROUNDING = 1e-9
"""A share of less is that of proportions which do not sum to 1 to the last digit."""


def gaussian_count_loss(
    log_p: Tensor, bag_index: Tensor, counts: Tensor, noise_variance: Tensor | None = None
) -> Tensor:
    """Minus the log-density of each count, ``[B, C]``, but for a constant, if counts were Gaussian; in doubles.

    ``(m - mu)^2 / (2 v) + log(v) / 2``, where the count of a class has the mean ``mu = sum P`` and the variance
    ``v = sum P (1 - P) + 1/4``: that of independent instances, and a quarter so that certain predictions stay finite.
    ``counts [B, C]`` are known, or reported with noise of ``noise_variance [B]``, which adds to ``v``. A class that was
    not observed (NaN) has 0.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]).log()
    >>> gaussian_count_loss(log_p, torch.tensor([0, 0, 0]), torch.tensor([[2.0, 1.0]]))
    tensor([[-0.0897, -0.0897]], dtype=torch.float64)
    """
    num_bags, p = len(counts), _normalized(log_p).exp()
    observed, counts = ~counts.isnan(), counts.double()
    mean = bag_sum(p, bag_index, num_bags)
    variance = bag_sum(p * (1 - p), bag_index, num_bags) + 0.25
    if noise_variance is not None:
        variance = variance + noise_variance[:, None]
    loss = (torch.where(observed, counts, 0.0) - mean).square() / (2 * variance) + variance.log() / 2
    return torch.where(observed, loss, 0.0)


def moments_loss(log_p: Tensor, bag_index: Tensor, counts: Tensor, *, order: int, largest: int | None = None) -> Tensor:
    """Cross-entropy of the factorial moments of the counts up to ``order``, ``[B]``, in double precision.

    Take ``r`` different instances of a bag at random. That all of them are of class ``c`` has by the known counts the
    probability ``binom(m, r) / binom(M, r)``, and by the predictions ``e_r / binom(M, r)``, where ``e_r`` is the sum
    over all sets of ``r`` instances of the product of their ``P``: the factorial moments of the count. The loss is the
    cross-entropy of "which class do they have in common, if any" for ``r = 1`` (Eq. 2 itself), ``2``, ... ``order``,
    added up. Bags of fewer than ``r`` instances have none for that ``r``. Classes that were not observed (NaN in
    ``counts [B, C]``) are not told from "none in common". A bag that is all NaN has 0.

    ``largest`` is the size of the largest bag, where it is known: then nothing waits for the device.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    >>> bag_index, counts = torch.tensor([0, 0]), torch.tensor([[1.0, 1.0]])
    >>> moments_loss(log_p, bag_index, counts, order=1)  # as Eq. 2
    tensor([0.6982], dtype=torch.float64)
    >>> moments_loss(log_p, bag_index, counts, order=2)  # and that they differ, which has probability 0.74
    tensor([0.9993], dtype=torch.float64)
    """
    num_bags = len(counts)
    observed = ~counts.isnan()
    m = torch.where(observed, counts, 0.0).double()
    sizes = bag_sizes(bag_index, num_bags, torch.float64)
    shift, sums = _symmetric_sums(_normalized(log_p), bag_index, num_bags, order, largest)
    loss = m.new_zeros(num_bags)
    known, sets = torch.ones_like(m), torch.ones_like(sizes)
    for r in range(1, order + 1):
        known = known * (m - (r - 1)).clamp(min=0) / r
        sets = sets * (sizes - (r - 1)).clamp(min=0) / r
        exists = sets > 0
        each = torch.where(exists, sets, 1.0)[:, None]
        log_share = sums[r].clamp(min=torch.finfo(m.dtype).tiny).log() + r * shift - each.log()
        log_share = torch.where(observed & exists[:, None], log_share, -torch.inf)
        target = known / each
        rest = 1 - target.sum(1)
        none_in_common = (1 - log_share.exp().sum(1)).clamp(min=torch.finfo(m.dtype).eps)
        common = torch.where(target > 0, target * torch.where(target > 0, log_share, 0.0), 0.0).sum(1)
        other = torch.where(rest > ROUNDING, rest * none_in_common.log(), 0.0)
        loss = loss - torch.where(exists & observed.any(1), common + other, 0.0)
    return loss


def _normalized(log_p: Tensor) -> Tensor:
    """In double precision, in which a class near 1 is 1 less the others again."""
    return log_p.double().log_softmax(1)


def _symmetric_sums(
    log_p: Tensor, bag_index: Tensor, num_bags: int, order: int, largest: int | None
) -> tuple[Tensor, list[Tensor]]:
    """``e_r`` of each bag and class for ``r = 0 ... order``, ``[B, C]`` each, over ``exp(r shift)``; and the shift.

    They are the coefficients of the product of ``1 + P x`` over the bag, which is multiplied out in pairs, then pairs
    of pairs: no term is below 0, so no digit is lost. Larger powers of ``x`` are dropped on the way.
    """
    columns = BagColumns.of(log_p, bag_index, num_bags)
    sizes = bag_sizes(bag_index, num_bags, torch.float64).long()
    largest = int(sizes.max()) if largest is None else largest
    width = 2 ** math.ceil(math.log2(max(1, largest)))
    place = _place_in_bag(bag_index, sizes)
    padded = log_p.new_zeros(num_bags, width, log_p.shape[1]).index_put((bag_index, place), columns.ratio)
    sums = [torch.ones_like(padded), padded] + [torch.zeros_like(padded) for _ in range(order - 1)]
    while sums[0].shape[1] > 1:
        left, right = [x[:, 0::2] for x in sums], [x[:, 1::2] for x in sums]
        products = [[left[i] * right[r - i] for i in range(r + 1)] for r in range(order + 1)]
        sums = [torch.stack(terms).sum(0) for terms in products]
    return columns.shift, [x.squeeze(1) for x in sums]


def _place_in_bag(bag_index: Tensor, sizes: Tensor) -> Tensor:
    """0, 1, ... for the instances of each bag, ``[N]``."""
    order = bag_index.argsort(stable=True)
    start = sizes.cumsum(0) - sizes
    place = torch.arange(len(bag_index), device=bag_index.device) - start.index_select(0, bag_index[order])
    return torch.empty_like(place).scatter(0, order, place)
