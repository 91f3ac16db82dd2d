"""The bag-level proportion loss (Eq. 2-3)."""

import torch
from torch import Tensor

from torchllp.functional.reductions import BagColumns, bag_sizes


def log_mean_probability(
    log_p: Tensor, bag_index: Tensor, num_bags: int, columns: BagColumns | None = None, sizes: Tensor | None = None
) -> Tensor:
    """Log of the mean predicted probability of each class over each bag, ``log p-bar [B, C]`` (Eq. 3).

    ``log_p [N, C]`` are log-probabilities; ``columns`` are their ``BagColumns``, and ``sizes [B]`` the ``bag_sizes``,
    where at hand.

    >>> import torch
    >>> log_p = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    >>> log_mean_probability(log_p, torch.tensor([0, 0]), 1).exp()
    tensor([[0.7000, 0.3000]])
    """
    columns = BagColumns.of(log_p, bag_index, num_bags) if columns is None else columns
    sizes = bag_sizes(bag_index, num_bags, log_p.dtype) if sizes is None else sizes.to(log_p.dtype)
    return columns.logsumexp() - sizes.log()[:, None]


def with_rest(proportions: Tensor, log_mean: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Proportions and log-means in which all classes of a bag that were not observed are one, the last, ``[B, C + 1]``.

    Their sum is what is known of them: 1 less the classes that were ``observed [B, C]``. Where all were, the last class
    is absent.

    >>> log_mean = torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> shares, log_mean = with_rest(torch.tensor([[0.6, 0.2, 0.2]]), log_mean, torch.tensor([[True, False, False]]))
    >>> shares, log_mean.exp()
    (tensor([[0.6000, 0.0000, 0.0000, 0.4000]]), tensor([[0.7000, 1.0000, 1.0000, 0.3000]]))
    """
    absent = observed.all(1, keepdim=True)  # their logsumexp would be minus infinity, which has no gradient
    rest = torch.where(observed & ~absent, -torch.inf, log_mean).logsumexp(1, keepdim=True)
    shares = torch.cat([proportions, torch.where(observed, 0.0, proportions).sum(1, keepdim=True)], 1)
    known = torch.cat([observed, ~absent], 1)
    return torch.where(known, shares, 0.0), torch.where(known, torch.cat([log_mean, rest], 1), 0.0)


def noise_weight(proportions: Tensor, sizes: Tensor, variance: Tensor, observed: Tensor | None = None) -> Tensor:
    """How much a bag's proportions are worth against exact ones, ``[B]``: ``v / (v + s)``, from 0 to 1.

    ``v = p (1 - p) / M`` is the variance of a share in a bag of ``M`` instances (``sizes [B]``), ``s`` that of the
    noise in it, from the ``variance [B]`` of a reported count; both are summed over the classes (that were
    ``observed [B, C]``). It is one weight a bag: one a class would move the loss's minimum away from ``proportions``. A
    share is taken to be half an instance from 0 and from 1 at least, as noise may have brought it there.

    >>> shares, size, variance = torch.tensor([[0.5, 0.5]]), torch.tensor([16.0]), torch.tensor([4.0])
    >>> noise_weight(shares, size, variance)
    tensor([0.5000])
    """
    size = sizes[:, None]
    p = proportions.maximum(0.5 / size).minimum(1 - 0.5 / size)
    spread, noise = p * (1 - p) / size, (variance / sizes**2)[:, None].expand_as(p)
    if observed is not None:
        spread, noise = torch.where(observed, spread, 0.0), torch.where(observed, noise, 0.0)
    spread, noise = spread.sum(1), noise.sum(1)
    return spread / (spread + noise).clamp(min=torch.finfo(p.dtype).tiny)


def proportion_loss(proportions: Tensor, log_mean: Tensor) -> Tensor:
    """Cross-entropy of the known proportions and the predicted ones, one value a bag, ``[B]`` (Eq. 2, inner term).

    ``proportions [B, C]``; ``log_mean [B, C]`` from :func:`log_mean_probability`. A bag whose row is all zero
    (nothing is known of it) has loss 0 and no gradient.

    >>> import torch
    >>> proportion_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.7, 0.3]]).log())
    tensor([0.7803])
    """
    return -(proportions * log_mean).sum(1)


def proportion_kl(proportions: Tensor, log_mean: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the predicted proportions from the known ones, ``[B]``; 0 is a perfect bag.

    It is :func:`proportion_loss` less the entropy of the known proportions, which no model can change.

    >>> import torch
    >>> proportion_kl(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.5]]).log())
    tensor([0.])
    """
    return (proportions.xlogy(proportions) - proportions * log_mean).sum(1)
