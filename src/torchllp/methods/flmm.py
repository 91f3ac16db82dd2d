"""FLMm: the bag loss, certain predictions, and labels that a bag's proportions support; for frozen features."""

from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.functional import entropy, log_probabilities
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_below_one, check_not_negative
from torchllp.methods.pseudo_labels import likeliest_labels
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting, instance_term
from torchllp.methods.weights import supported_weights


class FLMm(Method):
    """FLMm (Yang et al., ACML 2021): a linear layer on features that were learnt without labels (``llp pretrain``).

    Args:
        entropy_weight: weight of the mean entropy of the predictions.
        label_weight: weight of the loss on pseudo-labels.
        support: share of a bag from which on a class is taken as present, both known and predicted.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions), ``"count"`` (how probable its counts
            are), ``"gaussian"`` (the same by a normal distribution) or ``"moments"`` (of the counts).
    """

    for_frozen_features = True

    def __init__(
        self,
        *,
        entropy_weight: float = 0.01,
        label_weight: float = 5e-4,
        support: float = 0.03,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__()
        check_not_negative(entropy_weight=entropy_weight, label_weight=label_weight)
        check_below_one(support=support)
        self.entropy_weight = entropy_weight
        self.label_weight = label_weight
        self.support = support
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p = log_probabilities(model(batch.weak))

        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        mean_entropy = entropy(log_p).sum() / batch.num_instances
        label = likeliest_labels(log_p)
        trust = supported_weights(label, batch, self.support)
        instance_loss = instance_term(log_p, label, batch, trust)
        return {
            "loss": bag_loss + self.entropy_weight * mean_entropy + self.label_weight * instance_loss,
            "bag_kl": bag_kl,
            "instance_loss": instance_loss.detach(),
            "log_p": log_p.detach(),
            "pseudo_labels": label,
            "trust": trust,
        }
