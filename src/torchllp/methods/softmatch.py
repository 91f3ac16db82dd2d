"""SoftMatch for bags: the bag loss plus pseudo-labels, trusted the more the surer they are among all instances."""

from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.functional import log_probabilities
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_not_negative
from torchllp.methods.pseudo_labels import likeliest_labels
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting, instance_term
from torchllp.methods.weights import ConfidenceWeights


class SoftMatch(Method):
    """SoftMatch (Chen et al., ICLR 2023) beside the bag loss.

    Args:
        instance_weight: weight of the instance-level loss (lambda).
        ema_decay: how much of the running mean and variance a step keeps (m).
        n_sigma: how fast trust falls below the mean; larger trusts less.
        align: True computes trust from predictions aligned to the uniform distribution of classes (UA).
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions), ``"count"`` (how probable its counts
            are), ``"gaussian"`` (the same by a normal distribution) or ``"moments"`` (of the counts).
    """

    views = ("weak", "strong")

    def __init__(
        self,
        *,
        instance_weight: float = 0.5,
        ema_decay: float = 0.999,
        n_sigma: float = 2.0,
        align: bool = False,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__()
        check_not_negative(instance_weight=instance_weight)
        self.instance_weight = instance_weight
        self.weights = ConfidenceWeights(ema_decay=ema_decay, n_sigma=n_sigma, align=align)
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p, log_p_strong = log_probabilities(model(batch.both_views())).chunk(2)  # [N, C] each

        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        label = likeliest_labels(log_p)
        trust = self.weights(log_p, batch)
        instance_loss = instance_term(log_p_strong, label, batch, trust)
        return {
            "loss": bag_loss + self.instance_weight * instance_loss,
            "bag_kl": bag_kl,
            "instance_loss": instance_loss.detach(),
            "log_p": log_p.detach(),
            "pseudo_labels": label,
            "trust": trust,
        }
