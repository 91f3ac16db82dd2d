"""ROT: the bag loss plus pseudo-labels that optimal transport makes agree with the bag's proportions."""

from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import log_probabilities
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_positive, check_whole
from torchllp.methods.pseudo_labels import likeliest_labels, transported_labels
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting, instance_term
from torchllp.methods.weights import known_bags
from torchllp.registry import unknown_name


class ROT(Method):
    """ROT (Dulac-Arnold et al., 2019): pseudo-labels are a bag's predictions, moved as little as its counts allow.

    Args:
        alpha: share of the bag-level loss; the instance-level loss has the rest.
        targets: ``"soft"`` (the rows of the plan) or ``"hard"`` (their largest class).
        eps: entropy of the plan; smaller is nearer to one class an instance, and needs more rounds.
        rounds: Sinkhorn rounds.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions), ``"count"`` (how probable its counts
            are), ``"gaussian"`` (the same by a normal distribution) or ``"moments"`` (of the counts).
    """

    views = ("weak", "strong")

    def __init__(
        self,
        *,
        alpha: float = 0.6,
        targets: str = "soft",
        eps: float = 1.0,
        rounds: int = 25,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise LLPError(f"alpha must be between 0 and 1, not {alpha}")
        if targets not in ("soft", "hard"):
            raise unknown_name("targets", targets, ("soft", "hard"))
        check_positive(eps=eps)
        check_whole(rounds=rounds)
        self.alpha = alpha
        self.targets = targets
        self.eps = eps
        self.rounds = int(rounds)
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def check(self, bags: Bags) -> None:
        bags.need_all_observed("rot")

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p, log_p_strong = log_probabilities(model(batch.both_views())).chunk(2)  # [N, C] each

        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        plan, column_error = transported_labels(log_p, batch, eps=self.eps, rounds=self.rounds)
        label = likeliest_labels(plan)
        target = label if self.targets == "hard" else plan
        # No counts, no transport, no target: the others are the instances that the mean is over.
        instance_loss = instance_term(
            log_p_strong, target, batch, known_bags(batch), num_instances=batch.num_labelled_instances
        )
        return {
            "loss": self.alpha * bag_loss + (1 - self.alpha) * instance_loss,
            "bag_kl": bag_kl,
            "instance_loss": instance_loss.detach(),
            "column_error": column_error.sum() / batch.num_bags,
            "log_p": log_p.detach(),
            "pseudo_labels": label,
        }
