"""The bag-level proportion loss (Eq. 2-3)."""

from torch import Tensor

from torchllp.functional.reductions import bag_logsumexp, bag_sizes


def log_mean_probability(log_p: Tensor, bag_index: Tensor, num_bags: int, logsumexp: Tensor | None = None) -> Tensor:
    """Log of the mean predicted probability of each class over each bag, ``log p-bar [B, C]`` (Eq. 3).

    ``log_p [N, C]`` are log-probabilities; ``logsumexp [B, C]`` is their ``bag_logsumexp`` where it is at hand.

    >>> import torch
    >>> log_p = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    >>> log_mean_probability(log_p, torch.tensor([0, 0]), 1).exp()
    tensor([[0.7000, 0.3000]])
    """
    if logsumexp is None:
        logsumexp = bag_logsumexp(log_p, bag_index, num_bags)
    return logsumexp - bag_sizes(bag_index, num_bags, log_p.dtype).log()[:, None]


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
    return proportion_loss(proportions, log_mean) + proportions.xlogy(proportions).sum(1)
