"""Terms of a loss that several methods share, from a batch and its predictions."""

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from torchllp.batch import BagBatch
from torchllp.functional import bag_sizes, log_mean_probability, proportion_kl, proportion_loss
from torchllp.registry import unknown_name


def check_bag_weighting(name: str) -> str:
    """``name`` if it is a way for bags to share the bag-level loss, else a clear error."""
    if name not in ("equal", "size"):
        raise unknown_name("bag_weighting", name, ("equal", "size"))
    return name


def bag_term(
    log_p: Tensor, batch: BagBatch, weighting: str = "equal", logsumexp: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The bag-level loss (Eq. 2-3) and, detached, the same as a KL divergence, which is 0 when perfect.

    Both are means over the labelled bags; with ``weighting="size"`` the loss is a mean over their instances.
    """
    num_bags = len(batch.proportions)
    log_mean = log_mean_probability(log_p, batch.bag_index, num_bags, logsumexp)
    proportions = torch.where(batch.is_labelled[:, None], batch.proportions.to(log_mean.dtype), 0.0)
    loss = proportion_loss(proportions, log_mean)
    if weighting == "size":
        total = (bag_sizes(batch.bag_index, num_bags, loss.dtype) * loss).sum() / batch.num_labelled_instances
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
