"""LLP-DC: the bag loss plus pseudo-labels that meet the counts of the bag exactly."""

from torchllp.methods.custom import Custom


class LLPDC(Custom):
    """The feasible pseudo-labels of LLP-DC (CVPR 2026 Findings): a min-cost assignment, kept where it is confident.

    Args:
        instance_weight: weight of the instance-level loss.
        threshold: predicted probability of its label that an instance needs.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: the bag-level loss: ``"mean"``, ``"count"``, ``"gaussian"`` or ``"moments"``.
    """

    def __init__(
        self,
        *,
        instance_weight: float = 0.5,
        threshold: float = 0.6,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__(
            bag_term=bag_term,
            pseudo_labels="assignment",
            weights="threshold",
            instance_weight=instance_weight,
            threshold=threshold,
            bag_weighting=bag_weighting,
        )
