"""LLP-PVC: how probable the counts of a bag are, in place of its mean prediction."""

from torchllp.methods.custom import Custom


class LLPPVC(Custom):
    """The count likelihood of LLP-PVC (ICLR 2026), on the weak view.

    Args:
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
    """

    def __init__(self, *, bag_weighting: str = "equal") -> None:
        super().__init__(bag_term="count", pseudo_labels="none", bag_weighting=bag_weighting)
