"""SimCLR: features without labels, by telling which two views are of the same instance."""

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import contrast_accuracy, contrast_log_probabilities
from torchllp.methods.method import Method
from torchllp.models.features import features_of


class SimCLR(Method):
    """SimCLR (Chen et al., ICML 2020): pre-training for methods that start from its features, such as ``flmm``.

    Args:
        temperature: of the similarities; smaller looks at the most similar instances only.
        num_dimensions: of the embeddings that are compared.
    """

    views = ("weak", "strong")
    contrastive = True
    learns_classes = False
    projection: nn.Module

    def __init__(self, *, temperature: float = 0.5, num_dimensions: int = 128) -> None:
        super().__init__()
        if not temperature > 0:
            raise LLPError(f"temperature must be above 0, not {temperature}")
        if num_dimensions < 1 or num_dimensions != int(num_dimensions):
            raise LLPError(f"num_dimensions must be a whole number of 1 or above, not {num_dimensions}")
        self.temperature = temperature
        self.num_dimensions = int(num_dimensions)

    def fit_to(self, model: nn.Module, example: Tensor) -> None:
        was_training = model.training
        with torch.no_grad():
            num_features = features_of(model.eval(), example).shape[1]
        model.train(was_training)
        self.projection = nn.Sequential(
            nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, self.num_dimensions)
        )

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        first, second = self.projection(features_of(model, batch.both_views())).chunk(2)
        log_p, partner = contrast_log_probabilities(first, second, self.temperature)
        loss = nll_loss(log_p, partner, reduction="sum") / (2 * batch.num_instances)
        return {"loss": loss, "contrast_accuracy": contrast_accuracy(log_p, partner)}
