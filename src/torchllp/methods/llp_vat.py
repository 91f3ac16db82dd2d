"""LLP-VAT: the bag loss plus predictions that stay the same under the worst small change of an instance."""

import math

from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.device import full_precision
from torchllp.functional import adversarial_perturbation, log_probabilities, prediction_kl
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_not_negative, check_positive
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting
from torchllp.models.batch_norm import unmoved_statistics


def ramp_up(progress: float, length: float) -> float:
    """From nearly 0 to 1 over the first ``length`` of the training: ``exp(-5 (1 - progress / length)^2)``, then 1.

    >>> [round(ramp_up(progress, 0.4), 3) for progress in (0.0, 0.2, 0.4, 1.0)]
    [0.007, 0.287, 1.0, 1.0]
    """
    return 1.0 if progress >= length else math.exp(-5 * (1 - progress / length) ** 2)


class LLPVAT(Method):
    """LLP-VAT (Tsai & Lin, ACML 2020): virtual adversarial training beside the bag loss.

    A step costs three forwards and two backwards, the first of them to the input only.

    Args:
        consistency_weight: weight of the consistency loss after its ramp-up.
        ramp_up_share: share of the training over which that weight rises.
        eps: length of the perturbation of an instance of 3,072 values (CIFAR); of others it is scaled to their number.
        xi: length of the step by which its direction is found.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions), ``"count"`` (how probable its counts
            are), ``"gaussian"`` (the same by a normal distribution) or ``"moments"`` (of the counts).
    """

    def __init__(
        self,
        *,
        consistency_weight: float = 0.05,
        ramp_up_share: float = 0.4,
        eps: float = 6.0,
        xi: float = 1e-2,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__()
        check_not_negative(consistency_weight=consistency_weight, ramp_up_share=ramp_up_share)
        check_positive(eps=eps, xi=xi)
        self.consistency_weight = consistency_weight
        self.ramp_up_share = ramp_up_share
        self.eps = eps
        self.xi = xi
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        with full_precision(batch.weak.device):  # a step of 1e-2 over a whole instance drowns in coarser rounding
            log_p = log_probabilities(model(batch.weak))
            with unmoved_statistics(model):
                perturbed = batch.weak + self.perturbation(model, batch, log_p)
                log_q = log_probabilities(model(perturbed))

        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        consistency = prediction_kl(log_p.detach(), log_q).sum() / batch.num_instances
        weight = self.consistency_weight * ramp_up(batch.progress, self.ramp_up_share)
        return {
            "loss": bag_loss + weight * consistency,
            "bag_kl": bag_kl,
            "consistency": consistency.detach(),
            "log_p": log_p.detach(),
        }

    def perturbation(self, model: nn.Module, batch: BagBatch, log_p: Tensor) -> Tensor:
        """The change of each instance that changes its prediction ``log_p`` most, like ``batch.weak``."""

        def predict(x: Tensor) -> Tensor:
            return log_probabilities(model(x))

        eps = self.eps * math.sqrt(batch.weak[0].numel() / 3072)
        return adversarial_perturbation(predict, batch.weak, log_p, batch.noise(), xi=self.xi, eps=eps)
