"""SoftMatch for bags: the bag loss plus pseudo-labels, trusted the more the surer they are among all instances."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import log_probabilities, truncated_gaussian, uniform_alignment
from torchllp.methods.method import Method
from torchllp.methods.terms import bag_term, check_bag_weighting


class SoftMatch(Method):
    """SoftMatch (Chen et al., ICLR 2023) beside the bag loss.

    Args:
        instance_weight: weight of the instance-level loss (lambda).
        ema_decay: how much of the running mean and variance a step keeps (m).
        n_sigma: how fast trust falls below the mean; larger trusts less.
        align: True computes trust from predictions aligned to the uniform distribution of classes (UA).
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
    """

    views = ("weak", "strong")
    mean_gain: Tensor
    variance: Tensor
    class_gain: Tensor

    def __init__(
        self,
        *,
        instance_weight: float = 0.5,
        ema_decay: float = 0.999,
        n_sigma: float = 2.0,
        align: bool = False,
        bag_weighting: str = "equal",
    ) -> None:
        super().__init__()
        if instance_weight < 0:
            raise LLPError(f"instance_weight must be 0 or above, not {instance_weight}")
        if not 0 < ema_decay < 1:
            raise LLPError(f"ema_decay must be between 0 and 1, not {ema_decay}")
        if not n_sigma > 0:
            raise LLPError(f"n_sigma must be above 0, not {n_sigma}")
        self.instance_weight = instance_weight
        self.ema_decay = ema_decay
        self.n_sigma = n_sigma
        self.align = align
        self.bag_weighting = check_bag_weighting(bag_weighting)
        # Means start at 1/C, and C is known at the first step only: so they are kept less 1/C.
        self.register_buffer("mean_gain", torch.tensor(0.0))
        self.register_buffer("variance", torch.tensor(1.0))
        if align:
            self.register_buffer("class_gain", torch.empty(0))  # [C] from the first step on

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **others: Any) -> None:
        if self.align and prefix + "class_gain" in state_dict:
            self.class_gain.resize_(state_dict[prefix + "class_gain"].shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **others)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p, log_p_strong = log_probabilities(model(batch.both_views())).chunk(2)  # [N, C] each

        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting)
        with torch.no_grad():
            label = log_p.argmax(1)
            trust = self._trust(log_p, batch)
        cross_entropy = nll_loss(log_p_strong, label, reduction="none")
        instance_loss = (trust * cross_entropy).sum() / batch.num_instances
        return {
            "loss": bag_loss + self.instance_weight * instance_loss,
            "bag_kl": bag_kl,
            "instance_loss": instance_loss.detach(),
            "log_p": log_p.detach(),
            "pseudo_labels": label,
            "trust": trust,
        }

    def _trust(self, log_p: Tensor, batch: BagBatch) -> Tensor:
        """Weight of each instance, ``[N]``; the running statistics take the step in first."""
        uniform = 1 / log_p.shape[1]
        count = batch.reduce(log_p.new_full((), len(log_p)))  # of instances, on all processes
        if self.align:
            if not len(self.class_gain):
                self.class_gain.resize_(log_p.shape[1]).zero_()
            class_mean = batch.reduce(log_p.exp().sum(0)) / count
            log_p = uniform_alignment(log_p, uniform + self._update(self.class_gain, class_mean - uniform))
        confidence = log_p.amax(1).exp()
        step_mean = batch.reduce(confidence.sum()) / count
        squares = batch.reduce((confidence - step_mean).square().sum())
        mean = uniform + self._update(self.mean_gain, step_mean - uniform)
        # One instance has no unbiased variance: the running one then stays.
        step_variance = torch.where(count > 1, squares / (count - 1).clamp(min=1), self.variance)
        variance = self._update(self.variance, step_variance)
        return truncated_gaussian(confidence, mean, variance, self.n_sigma)

    def _update(self, running: Tensor, of_step: Tensor) -> Tensor:
        """Move a running value towards the step's; the result has the step's precision, which the buffer may lack."""
        updated = self.ema_decay * running.to(of_step.dtype) + (1 - self.ema_decay) * of_step
        running.copy_(updated)
        return updated
