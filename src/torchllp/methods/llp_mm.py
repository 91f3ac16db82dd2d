"""LLP-MM: match more moments of a bag's counts than their mean."""

from torchllp.methods.custom import Custom


class LLPMM(Custom):
    """Moment matching as in LLP-MM (2026): factorial moments of the counts up to an order, on the weak view.

    Args:
        order: how many moments; 1 is ``dllp``, and more come nearer to the likelihood of the counts.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
    """

    def __init__(self, *, order: int = 2, bag_weighting: str = "equal") -> None:
        super().__init__(bag_term="moments", order=order, pseudo_labels="none", bag_weighting=bag_weighting)
