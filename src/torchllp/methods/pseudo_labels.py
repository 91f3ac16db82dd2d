"""Ways to make pseudo-labels from a batch's predictions; no gradient flows through them."""

import torch
from torch import Tensor

from torchllp.batch import BagBatch
from torchllp.functional import bag_transport


@torch.no_grad()
def likeliest_labels(log_p: Tensor) -> Tensor:
    """The class of the largest probability, ``[N]`` (Eq. 4)."""
    return log_p.argmax(1)


@torch.no_grad()
def transported_labels(log_p: Tensor, batch: BagBatch, *, eps: float, rounds: int) -> tuple[Tensor, Tensor]:
    """Soft labels that agree with the counts of each bag, ``[N, C]``, and by how much they still miss them, ``[B]``.

    A bag whose proportions are not known has its predictions for labels.
    """
    counts = batch.proportions * batch.sizes[:, None]
    return bag_transport(log_p, batch.bag_index, counts, eps=eps, rounds=rounds)
