"""Reductions over bags that are given by an index, not by a shape.

Everywhere: ``x`` is ``[N, ...]``, ``bag_index`` is ``[N]`` and says in which of the ``num_bags`` bags each instance is,
results are ``[num_bags, ...]``. Instances of a bag need not be neighbours. Every bag has at least one instance.
"""

import torch
from torch import Tensor


def bag_sizes(bag_index: Tensor, num_bags: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Number of instances of each bag, ``[num_bags]``.

    >>> bag_sizes(torch.tensor([0, 1, 0]), 2)
    tensor([2., 1.])
    """
    return bag_sum(torch.ones(bag_index.shape, dtype=dtype, device=bag_index.device), bag_index, num_bags)


def bag_sum(x: Tensor, bag_index: Tensor, num_bags: int) -> Tensor:
    """Sum over each bag.

    >>> bag_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 0]), 2)
    tensor([4., 2.])
    """
    return x.new_zeros((num_bags, *x.shape[1:])).index_add(0, bag_index, x)


def bag_mean(x: Tensor, bag_index: Tensor, num_bags: int) -> Tensor:
    """Mean over each bag.

    >>> bag_mean(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 0]), 2)
    tensor([2., 2.])
    """
    sizes = bag_sizes(bag_index, num_bags, x.dtype)
    return bag_sum(x, bag_index, num_bags) / sizes.view(-1, *[1] * (x.ndim - 1))


def bag_logsumexp(x: Tensor, bag_index: Tensor, num_bags: int) -> Tensor:
    """``log sum exp`` over each bag, as stable as :func:`torch.logsumexp`: no exponent is above 0, one is 0.

    >>> bag_logsumexp(torch.tensor([0.0, -1e4, 0.0]), torch.tensor([0, 1, 0]), 2)
    tensor([ 6.9315e-01, -1.0000e+04])
    """
    with torch.no_grad():  # the shift cancels, so it needs no gradient
        index = bag_index.view(-1, *[1] * (x.ndim - 1)).expand_as(x)
        lowest = x.new_full((num_bags, *x.shape[1:]), torch.finfo(x.dtype).min)
        shift = lowest.scatter_reduce(0, index, x.detach(), "amax")
    return shift + bag_sum((x - shift.index_select(0, bag_index)).exp(), bag_index, num_bags).log()


def bag_log_normalize(log_x: Tensor, bag_index: Tensor, num_bags: int, logsumexp: Tensor | None = None) -> Tensor:
    """Log of ``x`` divided by its sum over the bag, ``[N, ...]``: each column becomes a distribution over the bag.

    ``logsumexp`` is :func:`bag_logsumexp` of the same input, where it is already at hand.

    >>> bag_log_normalize(torch.tensor([1.0, 5.0, 3.0]).log(), torch.tensor([0, 1, 0]), 2).exp()
    tensor([0.2500, 1.0000, 0.7500])
    """
    if logsumexp is None:
        logsumexp = bag_logsumexp(log_x, bag_index, num_bags)
    return log_x - logsumexp.index_select(0, bag_index)


def bag_entropy(
    log_x: Tensor, bag_index: Tensor, num_bags: int, logsumexp: Tensor | None = None, sizes: Tensor | None = None
) -> Tensor:
    """Entropy (nats) of each column after normalising it over the bag.

    ``logsumexp`` and ``sizes`` are :func:`bag_logsumexp` and :func:`bag_sizes` of the same input, where at hand.

    Summed as ``log M`` less the divergence from the uniform distribution, whose terms are smaller than those of the
    entropy itself: in float32 the largest error for bags of 256 was 0.4 to 0.7 of that of the plain sum. (For bags of
    16 there is no gain.)

    >>> bag_entropy(torch.tensor([1.0, 5.0, 1.0]).log(), torch.tensor([0, 1, 0]), 2)
    tensor([0.6931, 0.0000])
    """
    log_share = bag_log_normalize(log_x, bag_index, num_bags, logsumexp)
    sizes = bag_sizes(bag_index, num_bags, log_x.dtype) if sizes is None else sizes.to(log_x.dtype)
    log_size = sizes.log().view(-1, *[1] * (log_x.ndim - 1))
    divergence = log_share.exp() * (log_share + log_size.index_select(0, bag_index))
    return log_size - bag_sum(divergence, bag_index, num_bags)
