"""Ways to make pseudo-labels from a batch's predictions; no gradient flows through them."""

import torch
from torch import Tensor

from torchllp.batch import BagBatch
from torchllp.functional import assign_bags, bag_transport


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


@torch.no_grad()
def assigned_labels(log_p: Tensor, batch: BagBatch) -> Tensor:
    """The likeliest labels that meet the counts of each bag exactly, ``[N]``.

    A bag whose proportions are not known has its likeliest classes. They are found on the CPU, which waits for the
    device.
    """
    arrays = (x.cpu().numpy() for x in (log_p.double(), batch.bag_index, batch.proportions))
    return torch.from_numpy(assign_bags(*arrays)).to(log_p.device)
