"""LLPFC: which bag an instance is in, taken as a noisy label of its class."""

import logging

import numpy as np
import torch
from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import draw_groups, log_probabilities, noise_transition, simplex_least_squares
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_whole
from torchllp.methods.terms import bag_term
from torchllp.randomness import seed_of
from torchllp.registry import unknown_name

log = logging.getLogger("torchllp")


class LLPFC(Method):
    """LLPFC (Zhang, Wang & Scott, NeurIPS 2022): learning with label noise, by forward correction.

    Args:
        noisy_prior: how probable the bags of a group are taken to be: ``"uniform"``, or ``"approx"``, by which the
            group has the classes' overall shares as nearly as it can.
        regroup_every: epochs after which bags are grouped anew.
    """

    log_row: Tensor
    weight: Tensor

    def __init__(self, *, noisy_prior: str = "uniform", regroup_every: int = 20) -> None:
        super().__init__()
        if noisy_prior not in ("uniform", "approx"):
            raise unknown_name("noisy_prior", noisy_prior, ("uniform", "approx"))
        check_whole(regroup_every=regroup_every)
        self.noisy_prior = noisy_prior
        self.regroup_every = int(regroup_every)
        self.undefined_columns = 0
        self._grouped_for: tuple[Bags, int, int] | None = None
        # Not saved: they follow from the bags, the seed and the epoch. For each bag its row of log T, and the weight
        # of its instances.
        self.register_buffer("log_row", torch.empty(0, 0), persistent=False)
        self.register_buffer("weight", torch.empty(0), persistent=False)

    def check(self, bags: Bags) -> None:
        bags.need_all_observed("llpfc")
        num_labelled = int(bags.is_labelled.sum())
        if num_labelled < bags.num_classes:
            raise LLPError(
                f"llpfc needs a bag with known proportions for each class to train on, and there are {num_labelled} "
                f"such bags for {bags.num_classes} classes"
            )

    def groups(self, bags: Bags, epoch: int, seed: int) -> np.ndarray:
        """The bags (rows of ``bags``) of each group in this epoch, ``[G, C]``; those left over are in none."""
        self.check(bags)
        labelled = np.flatnonzero(bags.is_labelled)
        rng = np.random.default_rng(seed_of("groups", seed, epoch // self.regroup_every))
        return labelled[draw_groups(bags.proportions[labelled] > 0, rng)]

    def start_epoch(self, bags: Bags, epoch: int, seed: int) -> None:
        grouped_for = (bags, seed, epoch // self.regroup_every)
        if grouped_for == self._grouped_for:
            return
        groups, prior = self.groups(bags, epoch, seed), bags.class_shares
        log_row, weight = np.zeros(bags.proportions.shape), np.zeros(len(bags))
        before, self.undefined_columns = self.undefined_columns, 0
        for group in groups:
            gamma, sizes = bags.proportions[group], bags.sizes[group]
            alpha = np.full(len(group), 1 / len(group))
            if self.noisy_prior == "approx":
                alpha = simplex_least_squares(gamma.T, prior)
            log_t, undefined = noise_transition(gamma, alpha)
            has_weight = alpha > 0  # the other rows are all -inf, and would make 0 * inf of a weight of 0
            log_row[group[has_weight]] = log_t[has_weight]
            weight[group] = alpha * sizes.sum() / sizes
            self.undefined_columns += int(undefined.sum())
        if self.undefined_columns not in (0, before):
            log.warning(
                "llpfc: from epoch %d on, groups of bags say nothing of %d of their %d classes (%d groups)",
                epoch + 1,
                self.undefined_columns,
                groups.size,
                len(groups),
            )
        self.log_row = torch.tensor(log_row, dtype=self.log_row.dtype, device=self.log_row.device)
        self.weight = torch.tensor(weight, dtype=self.weight.dtype, device=self.weight.device)
        self._grouped_for = grouped_for

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        if batch.bags is None or self._grouped_for is None:
            raise LLPError("llpfc groups the training bags: call start_epoch first, and say which are in batch.bags")
        log_p = log_probabilities(model(batch.weak))  # [N, C]
        bag = batch.bags.index_select(0, batch.bag_index)
        log_noisy = (self.log_row.index_select(0, bag) + log_p).logsumexp(1)  # log-probability of the bag, in its group
        loss = -(self.weight.index_select(0, bag) * log_noisy).sum() / batch.num_instances
        return {
            "loss": loss,
            "bag_kl": bag_term(log_p.detach(), batch)[1],
            "undefined_columns": log_p.new_full((), self.undefined_columns),
            "log_p": log_p.detach(),
        }
