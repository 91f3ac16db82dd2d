"""A linear classifier, for precomputed features."""

from torch import nn

from torchllp.models.classifier import Classifier


class LinearModel(Classifier):
    """One linear layer on the flattened instance."""

    def __init__(self, *, in_features: int, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(in_features, num_classes))
