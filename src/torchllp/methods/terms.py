"""Terms of a loss that several methods share, from a batch and its predictions."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from torchllp.batch import BagBatch
from torchllp.functional import (
    BagColumns,
    contrast_accuracy,
    contrast_log_probabilities,
    count_log_probability,
    gaussian_count_loss,
    log_mean_probability,
    moments_loss,
    noise_variance,
    noise_weight,
    proportion_kl,
    proportion_loss,
    whole_bag_counts,
    with_rest,
)
from torchllp.registry import unknown_name


def check_bag_weighting(name: str) -> str:
    """``name`` if it is a way for bags to share the bag-level loss, else a clear error."""
    if name not in ("equal", "size"):
        raise unknown_name("bag_weighting", name, ("equal", "size"))
    return name


def mean_term(log_p: Tensor, batch: BagBatch, proportions: Tensor, log_mean: Tensor) -> Tensor:
    """Cross-entropy of known and predicted proportions (Eq. 2); that of a noisy bag weighs less."""
    loss = proportion_loss(proportions, log_mean)
    if batch.noise_kind is None or batch.noise_scale is None:
        return loss
    variance = noise_variance(batch.noise_kind, batch.noise_scale.to(loss.dtype))
    return noise_weight(batch.proportions.to(loss.dtype), batch.sizes.to(loss.dtype), variance, batch.observed) * loss


def count_term(log_p: Tensor, batch: BagBatch, proportions: Tensor, log_mean: Tensor) -> Tensor:
    """Sum over the classes of minus the log-probability of the reported count, each class against all others.

    In nats an instance, as all terms are.
    """
    counts = _counts(batch)
    if batch.reported is None:  # shares that may be rounded, of counts that are whole and sum to the bag's size
        counts = torch.where(counts.isnan(), torch.nan, whole_bag_counts(batch.proportions, batch.sizes))
    log_probability = count_log_probability(
        log_p,
        batch.bag_index,
        counts,
        noise=batch.noise_kind,
        scale=batch.noise_scale,
        largest=batch.largest_bag,
    )
    return _an_instance(-log_probability.sum(1), batch).to(log_p.dtype)


def gaussian_term(log_p: Tensor, batch: BagBatch, proportions: Tensor, log_mean: Tensor) -> Tensor:
    """The same, if counts were Gaussian."""
    variance = None
    if batch.noise_kind is not None and batch.noise_scale is not None:
        variance = noise_variance(batch.noise_kind, batch.noise_scale.to(log_p.dtype))
    loss = gaussian_count_loss(log_p, batch.bag_index, _counts(batch), variance).sum(1)
    return _an_instance(loss, batch).to(log_p.dtype)


def _an_instance(nats: Tensor, batch: BagBatch) -> Tensor:
    """What is told of whole bags, over their mean size in this step.

    Bags keep their weights in the likelihood, and the gradient does not grow with them: as it is, it would make SGD
    diverge in bags of 64 by the learning rate that suits the mean.
    """
    return nats / batch.mean_bag_size


def moments_term(log_p: Tensor, batch: BagBatch, proportions: Tensor, log_mean: Tensor, *, order: int = 2) -> Tensor:
    """Cross-entropy of the factorial moments of the counts; of noisy ones, of their best guess."""
    counts = torch.where(batch.is_labelled[:, None], batch.proportions * batch.sizes[:, None], torch.nan)
    if batch.observed is not None:
        counts = torch.where(batch.observed, counts, torch.nan)
    return moments_loss(log_p, batch.bag_index, counts, order=order, largest=batch.largest_bag).to(log_p.dtype)


def _counts(batch: BagBatch) -> Tensor:
    """The counts as they were reported, ``[B, C]``; NaN for what is not known."""
    counts = batch.proportions * batch.sizes[:, None] if batch.reported is None else batch.reported
    return torch.where(batch.is_labelled[:, None], counts, torch.nan)


BagTerm = Callable[[Tensor, BagBatch, Tensor, Tensor], Tensor]
BAG_TERMS: dict[str, BagTerm] = {
    "mean": mean_term,
    "count": count_term,
    "gaussian": gaussian_term,
    "moments": moments_term,
}
"""A loss a bag, ``[B]``, 0 where it is not labelled, from the log-probabilities ``[N, C]``, the batch, and the known
and the predicted proportions, in which classes that were not observed are one class."""


def check_bag_term(name: str) -> str:
    """``name`` if it is a bag-level loss, else a clear error."""
    if name not in BAG_TERMS:
        raise unknown_name("bag_term", name, BAG_TERMS)
    return name


def bag_term(
    log_p: Tensor,
    batch: BagBatch,
    weighting: str = "equal",
    columns: BagColumns | None = None,
    *,
    term: str | BagTerm = "mean",
) -> tuple[Tensor, Tensor]:
    """The bag-level loss (Eq. 2-3) and, detached, a KL divergence of the proportions, which is 0 when perfect.

    Both are means over the labelled bags; with ``weighting="size"`` the loss is a mean over their instances. ``term``
    is one of ``BAG_TERMS``, or its name.
    """
    log_mean = log_mean_probability(log_p, batch.bag_index, len(batch.proportions), columns, batch.sizes)
    proportions = batch.proportions.to(log_mean.dtype)
    if batch.observed is not None:
        proportions, log_mean = with_rest(proportions, log_mean, batch.observed)
    loss = (BAG_TERMS[term] if isinstance(term, str) else term)(log_p, batch, proportions, log_mean)
    if weighting == "size":
        total = (batch.sizes * loss).sum() / batch.num_labelled_instances
    else:
        total = loss.sum() / batch.num_bags
    return total, proportion_kl(proportions, log_mean.detach()).sum() / batch.num_bags


def instance_term(
    log_p: Tensor,
    target: Tensor,
    batch: BagBatch,
    weight: Tensor | None = None,
    *,
    num_instances: float | Tensor | None = None,
) -> Tensor:
    """The instance-level loss (Eq. 5): the mean over all instances of weight times cross-entropy.

    ``log_p [N, C]`` is usually of the strong view; ``target`` is a class an instance, ``[N]``, or a distribution over
    the classes, ``[N, C]``; ``num_instances`` is what the sum is divided by, if not the batch's.
    """
    cross_entropy = -(target * log_p).sum(1) if target.ndim == 2 else nll_loss(log_p, target, reduction="none")
    if weight is not None:
        cross_entropy = weight * cross_entropy
    return cross_entropy.sum() / (batch.num_instances if num_instances is None else num_instances)


def contrast_term(embeddings: Tensor, batch: BagBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """NT-Xent of both views' embeddings ``[2N, D]``, and the share of them that are nearest to their partner."""
    first, second = embeddings.chunk(2)
    log_p, partner = contrast_log_probabilities(first, second, temperature)
    loss = nll_loss(log_p, partner, reduction="sum") / (2 * batch.num_instances)
    return loss, contrast_accuracy(log_p, partner)
