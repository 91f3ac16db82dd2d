"""DLLP: match each bag's mean prediction to its proportions, and nothing else."""

from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.functional import log_probabilities
from torchllp.methods.method import Method
from torchllp.methods.terms import bag_term, check_bag_term, check_bag_weighting


class DLLP(Method):
    """Deep LLP (Ardehaly & Culotta, 2017): the proportion loss alone, on the weak view (Eq. 2-3).

    Args:
        bag_weighting: ``"equal"`` (every bag counts the same, Eq. 2) or ``"size"`` (every instance does).
        bag_term: ``"mean"`` (the bag's mean prediction against its proportions), ``"count"`` (how probable its counts
            are), ``"gaussian"`` (the same by a normal distribution) or ``"moments"`` (of the counts).
    """

    in_chunks = True

    def __init__(self, *, bag_weighting: str = "equal", bag_term: str = "mean") -> None:
        super().__init__()
        self.bag_weighting = check_bag_weighting(bag_weighting)
        self.bag_term = check_bag_term(bag_term)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        log_p = log_probabilities(model(batch.weak))
        bag_loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
        return {"loss": bag_loss, "bag_kl": bag_kl, "log_p": log_p.detach()}
