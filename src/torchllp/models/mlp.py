"""A multilayer perceptron, for tables and small images."""

from torch import nn

from torchllp.models.classifier import Classifier


class MLP(Classifier):
    """Two hidden layers of 256 ReLU units on the flattened instance."""

    def __init__(self, *, in_features: int, num_classes: int) -> None:
        body = nn.Sequential(nn.Flatten(), nn.Linear(in_features, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        super().__init__(body, nn.Linear(256, num_classes))
