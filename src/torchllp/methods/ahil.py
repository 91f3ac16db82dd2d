"""L2P-AHIL: the bag loss plus pseudo-labels, each trusted by its dual entropy weight."""

from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import BagColumns, log_probabilities
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_not_negative, check_positive
from torchllp.methods.pseudo_labels import likeliest_labels
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting, instance_term
from torchllp.methods.weights import Beta, dual_entropy_weights
from torchllp.registry import unknown_name


class AHIL(Method):
    """L2P-AHIL (Ma et al., CVPR 2025), Eq. 1-10.

    Args:
        instance_weight: weight of the instance-level loss (lambda).
        beta: ``"fixed"`` (the next two, as in the paper) or ``"auto"`` (in their place widths that fit the number of
            classes and the size of each bag).
        beta_bag: width of the bag-level trust (beta_b); larger trusts more.
        beta_instance: width of the instance-level trust (beta_i).
        weigh_bags: False leaves the bag-level weight out (Table 2).
        weigh_instances: False leaves the instance-level weight out (Table 2).
        bag_weighting: ``"equal"`` (every bag counts the same, Eq. 2) or ``"size"`` (every instance does).
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions), ``"count"`` (how probable its counts
            are), ``"gaussian"`` (the same by a normal distribution) or ``"moments"`` (of the counts).
    """

    views = ("weak", "strong")
    in_chunks = True

    def __init__(
        self,
        *,
        instance_weight: float = 0.5,
        beta: str = "fixed",
        beta_bag: float = 1.0,
        beta_instance: float = 1.0,
        weigh_bags: bool = True,
        weigh_instances: bool = True,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__()
        check_not_negative(instance_weight=instance_weight)
        if beta not in ("fixed", "auto"):
            raise unknown_name("beta", beta, ("fixed", "auto"))
        widths = {"beta_bag": beta_bag, "beta_instance": beta_instance}
        check_positive(**widths)
        for name, width in widths.items():
            if beta == "auto" and width != 1:
                raise LLPError(f"{name} {width:g} and beta 'auto' exclude one another: leave one of them out")
        self.instance_weight = instance_weight
        self.beta_bag: Beta = None if not weigh_bags else "auto" if beta == "auto" else beta_bag
        self.beta_instance: Beta = None if not weigh_instances else "auto" if beta == "auto" else beta_instance
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p, log_p_strong = log_probabilities(model(batch.both_views())).chunk(2)  # [N, C] each
        columns = BagColumns.of(log_p, batch.bag_index, len(batch.proportions))  # used by both, and costly

        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, columns, term=self.bag_term)  # Eq. 2-3
        label = likeliest_labels(log_p)  # Eq. 4
        trust = dual_entropy_weights(  # Eq. 6-10
            log_p, label, batch, beta_bag=self.beta_bag, beta_instance=self.beta_instance, columns=columns
        )
        instance_loss = instance_term(log_p_strong, label, batch, trust)  # Eq. 5
        return {
            "loss": bag_loss + self.instance_weight * instance_loss,  # Eq. 1
            "bag_kl": bag_kl,
            "instance_loss": instance_loss.detach(),
            "log_p": log_p.detach(),
            "pseudo_labels": label,
            "trust": trust,
        }
