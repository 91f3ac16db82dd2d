"""What all our models have in common."""

from torch import Tensor, nn


class Classifier(nn.Module):
    """A body that turns instances into features, and a linear head that turns features into logits."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """The features ``[N, D]`` of instances ``[N, ...]``."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        """The logits ``[N, C]`` of instances ``[N, ...]``."""
        return self.head(self.features(x))
