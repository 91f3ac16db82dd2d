"""Any mix of a bag term, pseudo-labels and their weights; also the base of methods that are such a mix."""

from functools import partial

from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.functional import log_probabilities
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_below_one, check_not_negative, check_positive, check_whole
from torchllp.methods.pseudo_labels import assigned_labels, likeliest_labels, transported_labels
from torchllp.methods.terms import (
    BAG_TERMS,
    bag_term,
    check_bag_term,
    check_bag_weighting,
    instance_term,
    moments_term,
)
from torchllp.methods.weights import ConfidenceWeights, dual_entropy_weights, known_bags, threshold_weights
from torchllp.registry import unknown_name

PSEUDO_LABELS = ("argmax", "transport", "transport-hard", "assignment", "none")
WEIGHTS = ("dual-entropy", "instance", "bag", "truncated-gaussian", "threshold", "none")
NEEDS_COUNTS = ("transport", "transport-hard", "assignment")


class Custom(Method):
    """A bag-level loss and an instance-level loss on weighted pseudo-labels, each part chosen by name.

    ``bag term + instance_weight * mean over instances of weight * cross-entropy(strong view, pseudo-label)``

    Args:
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions, Eq. 2), ``"count"`` (how probable its
            counts are), ``"gaussian"`` (the same, if they were Gaussian) or ``"moments"`` (what ``order`` random
            instances of the bag have in common).
        order: of the moments.
        pseudo_labels: ``"argmax"`` (the likeliest class), ``"transport"`` (soft labels by optimal transport to the
            bag's counts), ``"transport-hard"`` (their largest class), ``"assignment"`` (the likeliest labels that meet
            the counts exactly) or ``"none"`` (no instance-level loss).
        weights: ``"dual-entropy"`` (AHIL's, Eq. 6-10), ``"instance"`` or ``"bag"`` (one of its factors),
            ``"truncated-gaussian"`` (SoftMatch's), ``"threshold"`` (1 above a confidence) or ``"none"`` (1).
        instance_weight: weight of the instance-level loss.
        beta_bag: width of the bag-level trust; larger trusts more.
        beta_instance: width of the instance-level trust.
        threshold: confidence in its label that an instance needs.
        n_sigma: how fast trust falls below the mean confidence; larger trusts less.
        ema_decay: how much of the running mean and variance of the confidence a step keeps.
        eps: entropy of the transport plan.
        rounds: Sinkhorn rounds.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
    """

    def __init__(
        self,
        *,
        bag_term: str = "count",
        order: int = 2,
        pseudo_labels: str = "argmax",
        weights: str = "dual-entropy",
        instance_weight: float = 0.5,
        beta_bag: float = 1.0,
        beta_instance: float = 1.0,
        threshold: float = 0.6,
        n_sigma: float = 2.0,
        ema_decay: float = 0.999,
        eps: float = 1.0,
        rounds: int = 25,
        bag_weighting: str = "equal",
    ) -> None:
        super().__init__()
        if pseudo_labels not in PSEUDO_LABELS:
            raise unknown_name("pseudo_labels", pseudo_labels, PSEUDO_LABELS)
        if weights not in WEIGHTS:
            raise unknown_name("weights", weights, WEIGHTS)
        check_not_negative(instance_weight=instance_weight)
        check_positive(beta_bag=beta_bag, beta_instance=beta_instance, eps=eps)
        check_below_one(threshold=threshold)
        check_whole(order=order, rounds=rounds)
        term = BAG_TERMS[check_bag_term(bag_term)]
        self.bag_term = partial(moments_term, order=int(order)) if term is moments_term else term
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.pseudo_labels, self.weights, self.instance_weight = pseudo_labels, weights, instance_weight
        self.beta_bag = beta_bag if weights in ("dual-entropy", "bag") else None
        self.beta_instance = beta_instance if weights in ("dual-entropy", "instance") else None
        self.threshold, self.eps, self.rounds = threshold, eps, int(rounds)
        self.confidence = None
        if weights == "truncated-gaussian":
            self.confidence = ConfidenceWeights(ema_decay=ema_decay, n_sigma=n_sigma, align=False)
        self.views = ("weak",) if pseudo_labels == "none" else ("weak", "strong")

    def check(self, bags: Bags) -> None:
        if self.pseudo_labels in NEEDS_COUNTS:
            bags.need_all_observed(f"pseudo_labels={self.pseudo_labels}")

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        if self.pseudo_labels == "none":
            log_p = log_probabilities(model(batch.weak))
            loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
            return {"loss": loss, "bag_kl": bag_kl, "log_p": log_p.detach()}
        log_p, log_p_strong = log_probabilities(model(batch.both_views())).chunk(2)  # [N, C] each
        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        target, label = self._labels(log_p, batch)
        trust = self._trust(log_p.detach(), label, batch)
        num_instances = batch.num_instances
        if self.pseudo_labels in NEEDS_COUNTS:  # no counts, no target: the others are what the mean is over
            trust, num_instances = trust * known_bags(batch), batch.num_labelled_instances
        instance_loss = instance_term(log_p_strong, target, batch, trust, num_instances=num_instances)
        return {
            "loss": bag_loss + self.instance_weight * instance_loss,
            "bag_kl": bag_kl,
            "instance_loss": instance_loss.detach(),
            "log_p": log_p.detach(),
            "pseudo_labels": label,
            "trust": trust,
        }

    def _labels(self, log_p: Tensor, batch: BagBatch) -> tuple[Tensor, Tensor]:
        """The targets of the cross-entropy, and one class an instance, which they are or are nearest to."""
        if self.pseudo_labels == "argmax":
            target = likeliest_labels(log_p)
        elif self.pseudo_labels == "assignment":
            target = assigned_labels(log_p, batch)
        else:
            plan, _ = transported_labels(log_p, batch, eps=self.eps, rounds=self.rounds)
            label = likeliest_labels(plan)
            return (label if self.pseudo_labels == "transport-hard" else plan), label
        return target, target

    def _trust(self, log_p: Tensor, label: Tensor, batch: BagBatch) -> Tensor:
        if self.confidence is not None:
            return self.confidence(log_p, batch)
        if self.weights == "threshold":
            return threshold_weights(log_p, label, self.threshold)
        return dual_entropy_weights(log_p, label, batch, beta_bag=self.beta_bag, beta_instance=self.beta_instance)
