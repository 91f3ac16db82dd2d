"""Mixing instances with others of their bag, for methods that learn between the instances."""

import torch
from scipy.special import betaincinv
from torch import Tensor


def partners_in_bags(bag_index: Tensor, keys: Tensor) -> Tensor:
    """A random order of the instances of each bag, as the row of each instance's partner, ``[N]``.

    ``keys [N, 2]`` are numbers between 0 and 1: instance and partner have the same rank in their bag by the first and
    the second column. So the pairs depend neither on the order of the rows nor on the other bags.

    >>> keys = torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.3, 0.4], [0.7, 0.7]])
    >>> partners_in_bags(torch.tensor([0, 0, 1, 0]), keys)
    tensor([1, 3, 2, 0])
    """
    by_key = keys.argsort(0)
    by_bag = bag_index[by_key].argsort(dim=0, stable=True)
    first, second = by_key.gather(0, by_bag).unbind(1)
    return torch.empty_like(first).scatter_(0, first, second)


def mixing_shares(uniform: Tensor, alpha: float) -> Tensor:
    """Shares of 0.5 to 1 that instances keep of themselves: the larger of x and 1 - x, where x is Beta(alpha, alpha).

    ``uniform`` are numbers between 0 and 1, whose quantiles are taken, on the CPU.

    >>> mixing_shares(torch.tensor([0.0, 0.25, 0.5, 1.0]), alpha=1.0)
    tensor([1.0000, 0.7500, 0.5000, 1.0000])
    """
    share = torch.from_numpy(betaincinv(alpha, alpha, uniform.double().numpy())).to(uniform)
    return torch.maximum(share, 1 - share)
