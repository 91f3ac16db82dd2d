"""The dual entropy weight: how far a pseudo-label is to be trusted (Eq. 6-10)."""

import torch
from torch import Tensor

from torchllp.functional.probabilities import entropy
from torchllp.functional.reductions import BagColumns, bag_sizes

AUTO_BETA = 0.2
"""The constant of :func:`auto_beta`: with it beta_instance is near the paper's 1 for 10 classes and 5 for 100."""


def concentration(entropy_gap: Tensor, beta: float | Tensor) -> Tensor:
    """The mapping ``sigma(x; beta) = exp(-x^2 / beta)``: 1 where the entropies agree, towards 0 where they differ.

    >>> concentration(torch.tensor([0.0, 1.0]), beta=1.0)
    tensor([1.0000, 0.3679])
    """
    return (-entropy_gap.square() / beta).exp()


def auto_beta(num_outcomes: Tensor, b: float = AUTO_BETA) -> Tensor:
    """The beta ``b (log n)^2`` of entropies of ``n`` outcomes, with which they are taken in units of ``log n``.

    Then ``sigma(x; beta) = exp(-(x / log n)^2 / b)``: the same trust for the same share of the largest entropy,
    whatever the number of classes or the size of the bag. One outcome has no entropy to weigh by: infinity, weight 1.

    >>> auto_beta(torch.tensor([1.0, 2.0, 100.0]), b=1.0)
    tensor([    inf,  0.4805, 21.2076])
    """
    return torch.where(num_outcomes > 1, b * num_outcomes.log().square(), torch.inf)


def bag_weight(column_entropy: Tensor, counts: Tensor, beta: float | Tensor) -> Tensor:
    """Trust in each class of each bag, ``[B, C]`` (Eq. 8).

    ``column_entropy [B, C]`` is the entropy of each class column normalised over the bag (``bag_entropy``); its
    reference is ``log m`` for a class that ``counts`` says ``m`` instances have. ``m`` may be any number above 0; a
    class that is absent (``m = 0``) has weight exactly 0, the limit of the formula. ``beta`` may be one a bag,
    ``[B, 1]``.

    >>> bag_weight(torch.tensor([[0.6931, 1.5, 0.2]]), torch.tensor([[2.0, 2.0, 0.0]]), beta=1.0)
    tensor([[1.0000, 0.5215, 0.0000]])
    """
    present = counts > 0
    reference = torch.where(present, counts, 1.0).log()
    return torch.where(present, concentration(column_entropy - reference, beta), 0.0)


def instance_weight(log_p: Tensor, beta: float | Tensor) -> Tensor:
    """Trust in each instance's prediction, ``[N]`` (Eq. 10): 1 where it is certain of one class.

    >>> instance_weight(torch.tensor([[0.5, 0.5], [1.0, 1e-30]]).log(), beta=1.0)
    tensor([0.6185, 1.0000])
    """
    return concentration(entropy(log_p), beta)


def dual_entropy_weight(
    log_p: Tensor,
    label: Tensor,
    bag_index: Tensor,
    proportions: Tensor,
    *,
    beta_bag: float | Tensor | None = 1.0,
    beta_instance: float | Tensor | None = 1.0,
    is_labelled: Tensor | None = None,
    observed: Tensor | None = None,
    columns: BagColumns | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Weight of each instance's pseudo-label, ``[N]``: bag weight of its class times instance weight (Eq. 6).

    ``log_p [N, C]`` are log-probabilities, ``label [N]`` the pseudo-labels, ``proportions [B, C]`` what is known of
    the bags. A beta of None switches that factor off (it is then 1, for absent classes too). In bags that are not
    labelled (``is_labelled [B]`` False), and for classes that were not ``observed [B, C]``, there is nothing to
    compare with and the bag factor is 1.
    ``columns`` are the ``BagColumns`` of ``log_p``, and ``sizes [B]`` the ``bag_sizes``, where at hand.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    >>> bag_index, proportions = torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]])
    >>> dual_entropy_weight(log_p, log_p.argmax(1), bag_index, proportions)
    tensor([0.7186, 0.6893])
    """
    weight = torch.ones_like(log_p[:, 0])
    if beta_bag is not None:
        num_bags = len(proportions)
        sizes = bag_sizes(bag_index, num_bags, log_p.dtype) if sizes is None else sizes.to(log_p.dtype)
        columns = BagColumns.of(log_p, bag_index, num_bags) if columns is None else columns
        by_class = bag_weight(columns.entropy(), proportions * sizes[:, None], beta_bag)
        if is_labelled is not None:
            by_class = torch.where(is_labelled[:, None], by_class, 1.0)
        if observed is not None:
            by_class = torch.where(observed, by_class, 1.0)
        weight = by_class[bag_index, label]
    if beta_instance is not None:
        weight = weight * instance_weight(log_p, beta_instance)
    return weight
