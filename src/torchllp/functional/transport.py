"""Optimal transport of a bag's instances to its classes: soft labels that agree with the known counts."""

import torch
from torch import Tensor

from torchllp.functional.reductions import bag_logsumexp, bag_sum


@torch.no_grad()
def bag_transport(
    log_p: Tensor, bag_index: Tensor, counts: Tensor, *, eps: float = 1.0, rounds: int = 25
) -> tuple[Tensor, Tensor]:
    """The entropic transport plan of every bag, ``[N, C]``, and how far it still is from its counts, ``[B]``.

    Over plans ``T >= 0`` whose rows sum to 1 and whose columns sum to ``counts [B, C]`` over each bag, it is the one
    with the smallest ``sum -T log_p + eps sum T log T``: as near to the predictions as the counts allow. Sinkhorn's
    rounds scale the columns, then the rows, in the log domain; rows are therefore exact and the error of the worst
    column (in instances) tells what the rounds have left. A class with count 0 gets exactly 0. A bag whose counts are
    all 0 is one of which nothing is known: its rows are ``softmax(log_p / eps)``.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]).log()
    >>> plan, column_error = bag_transport(log_p, torch.tensor([0, 0, 0]), torch.tensor([[1.0, 2.0]]))
    >>> plan
    tensor([[0.5209, 0.4791],
            [0.3258, 0.6742],
            [0.1534, 0.8466]])
    """
    num_bags = len(counts)
    counts = counts.to(log_p.dtype)
    log_counts, log_kernel = counts.log(), log_p / eps
    is_known = (counts > 0).any(1, keepdim=True)
    unscaled = torch.where(is_known, -torch.inf, 0.0).to(log_p.dtype).expand_as(counts)

    def scale(columns: Tensor) -> Tensor:
        """The plan of these column scalings (in the log domain), its rows scaled to 1."""
        columns = torch.where(counts > 0, columns, unscaled)
        scaled = log_kernel + columns.index_select(0, bag_index)
        plan = (scaled - scaled.amax(1, keepdim=True)).exp_()
        return plan.div_(plan.sum(1, keepdim=True))  # softmax; torch's own takes five times as long for ten classes

    columns = log_counts - bag_logsumexp(log_kernel, bag_index, num_bags)
    plan = scale(columns)
    for _ in range(rounds - 1):
        # No plain sum can vanish here: where columns sum to m, rows sum to the bag's size M at most, so that after rows
        # are scaled a column still has m / M.
        columns = columns + log_counts - bag_sum(plan, bag_index, num_bags).log()
        plan = scale(columns)
    column_error = torch.where(is_known, bag_sum(plan, bag_index, num_bags) - counts, 0.0).abs().amax(1)
    return plan, column_error
