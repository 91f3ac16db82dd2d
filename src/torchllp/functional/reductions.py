"""Reductions over bags that are given by an index, not by a shape.

Everywhere: ``x`` is ``[N, ...]``, ``bag_index`` is ``[N]`` and says in which of the ``num_bags`` bags each instance is,
results are ``[num_bags, ...]``. Instances of a bag need not be neighbours. Every bag has at least one instance.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class BagColumns:
    """The columns of a bag as exponentials: what :func:`bag_logsumexp` and :func:`bag_entropy` both need.

    Each is taken relative to the largest value of its column in its bag, so that no exponent is above 0 and one is 0.
    """

    bag_index: Tensor
    shift: Tensor
    """The largest value, ``[num_bags, ...]``; without gradient, which cancels in all that is made of this."""
    exponent: Tensor
    """``x - shift``, ``[N, ...]``."""
    ratio: Tensor
    """``exp(x - shift)``, ``[N, ...]``."""
    total: Tensor
    """The sum of the ratios over the bag, ``[num_bags, ...]``, from 1 to the bag's size."""

    @classmethod
    def of(cls, x: Tensor, bag_index: Tensor, num_bags: int) -> "BagColumns":
        with torch.no_grad():
            index = bag_index.view(-1, *[1] * (x.ndim - 1)).expand_as(x)
            lowest = x.new_full((num_bags, *x.shape[1:]), torch.finfo(x.dtype).min)
            shift = lowest.scatter_reduce(0, index, x.detach(), "amax")
        exponent = x - shift.index_select(0, bag_index)
        ratio = exponent.exp()
        return cls(bag_index, shift, exponent, ratio, bag_sum(ratio, bag_index, num_bags))

    def logsumexp(self) -> Tensor:
        return self.shift + self.total.log()

    def entropy(self) -> Tensor:
        return self.total.log() - bag_sum(self.ratio * self.exponent, self.bag_index, len(self.total)) / self.total


def bag_logsumexp(x: Tensor, bag_index: Tensor, num_bags: int) -> Tensor:
    """``log sum exp`` over each bag, as stable as :func:`torch.logsumexp`.

    >>> bag_logsumexp(torch.tensor([0.0, -1e4, 0.0]), torch.tensor([0, 1, 0]), 2)
    tensor([ 6.9315e-01, -1.0000e+04])
    """
    return BagColumns.of(x, bag_index, num_bags).logsumexp()


def bag_entropy(log_x: Tensor, bag_index: Tensor, num_bags: int) -> Tensor:
    """Entropy (nats) of each column of ``x`` after normalising it over the bag.

    >>> bag_entropy(torch.tensor([1.0, 5.0, 1.0]).log(), torch.tensor([0, 1, 0]), 2)
    tensor([0.6931, 0.0000])
    """
    return BagColumns.of(log_x, bag_index, num_bags).entropy()
