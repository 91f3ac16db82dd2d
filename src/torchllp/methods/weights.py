"""Ways to weigh pseudo-labels, ``[N]`` values in [0, 1]; no gradient flows through them."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import (
    BagColumns,
    auto_beta,
    bag_mean,
    dual_entropy_weight,
    truncated_gaussian,
    uniform_alignment,
)
from torchllp.methods.numbers import check_positive

Beta = float | Literal["auto"] | None


@torch.no_grad()
def dual_entropy_weights(
    log_p: Tensor,
    label: Tensor,
    batch: BagBatch,
    *,
    beta_bag: Beta | Tensor,
    beta_instance: Beta | Tensor,
    columns: BagColumns | None = None,
) -> Tensor:
    """AHIL's: the weight of the label's class in its bag times that of the instance (Eq. 6-10); None leaves one out."""
    if isinstance(beta_bag, str):
        beta_bag = auto_beta(batch.sizes.to(log_p.dtype)[:, None])
    if isinstance(beta_instance, str):
        beta_instance = auto_beta(log_p.new_full((), log_p.shape[1]))
    return dual_entropy_weight(
        log_p,
        label,
        batch.bag_index,
        batch.proportions,
        beta_bag=beta_bag,
        beta_instance=beta_instance,
        is_labelled=batch.is_labelled,
        observed=batch.observed,
        columns=columns,
        sizes=batch.sizes,
    )


def known_bags(batch: BagBatch) -> Tensor:
    """1 for the instances of bags whose proportions are known, 0 for the others."""
    return batch.is_labelled.index_select(0, batch.bag_index).float()


@torch.no_grad()
def supported_weights(label: Tensor, batch: BagBatch, share: float) -> Tensor:
    """FLMm's: 1 where more than ``share`` of the bag is of the label's class, and at least as much is predicted so.

    A class that was not observed supports no label.
    """
    num_bags, num_classes = batch.proportions.shape
    predicted = bag_mean(one_hot(label, num_classes).to(batch.proportions.dtype), batch.bag_index, num_bags)
    # Less a little: 9 of 300 are 0.03 of them, whatever the rounding.
    is_supported = (batch.proportions > share) & (predicted >= share * (1 - 1e-6)) & batch.is_labelled[:, None]
    if batch.observed is not None:
        is_supported &= batch.observed
    return is_supported[batch.bag_index, label].to(batch.proportions.dtype)


@torch.no_grad()
def threshold_weights(log_p: Tensor, label: Tensor, threshold: float) -> Tensor:
    """1 where the predicted probability of the label is above ``threshold``, else 0."""
    return (log_p.gather(1, label[:, None]).squeeze(1).exp() > threshold).to(log_p.dtype)


class ConfidenceWeights(nn.Module):
    """SoftMatch's: a truncated Gaussian of the confidence, by its running mean and variance over all instances.

    Args:
        ema_decay: how much of the running mean and variance a step keeps (m).
        n_sigma: how fast the weight falls below the mean; larger trusts less.
        align: True weighs predictions aligned to the uniform distribution of classes (UA).
    """

    mean_gain: Tensor
    variance: Tensor
    class_gain: Tensor

    def __init__(self, *, ema_decay: float, n_sigma: float, align: bool) -> None:
        super().__init__()
        if not 0 < ema_decay < 1:
            raise LLPError(f"ema_decay must be between 0 and 1, not {ema_decay}")
        check_positive(n_sigma=n_sigma)
        self.ema_decay = ema_decay
        self.n_sigma = n_sigma
        self.align = align
        # Means start at 1/C, and C is known at the first step only: so they are kept less 1/C.
        self.register_buffer("mean_gain", torch.tensor(0.0))
        self.register_buffer("variance", torch.tensor(1.0))
        if align:
            self.register_buffer("class_gain", torch.empty(0))  # [C] from the first step on

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **others: Any) -> None:
        if self.align and prefix + "class_gain" in state_dict:
            self.class_gain.resize_(state_dict[prefix + "class_gain"].shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **others)

    @torch.no_grad()
    def forward(self, log_p: Tensor, batch: BagBatch) -> Tensor:
        """The weights; the running statistics take the step in first."""
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
