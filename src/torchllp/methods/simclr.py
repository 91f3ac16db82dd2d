"""SimCLR: features without labels, by telling which two views are of the same instance."""

from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.methods.method import Method
from torchllp.methods.numbers import check_positive, check_whole
from torchllp.methods.terms import contrast_term
from torchllp.models.features import features_of, projection_of


class SimCLR(Method):
    """SimCLR (Chen et al., ICML 2020): pre-training for methods that start from its features, such as ``flmm``.

    Args:
        temperature: of the similarities; smaller looks at the most similar instances only.
        num_dimensions: of the embeddings that are compared.
    """

    views = ("weak", "strong")
    contrastive = True
    needs_whole_step = True
    learns_classes = False
    projection: nn.Module

    def __init__(self, *, temperature: float = 0.5, num_dimensions: int = 128) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        check_whole(num_dimensions=num_dimensions)
        self.temperature = temperature
        self.num_dimensions = int(num_dimensions)

    def fit_to(self, model: nn.Module, example: Tensor) -> None:
        self.projection = projection_of(model, example, self.num_dimensions)

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        loss, accuracy = contrast_term(self.projection(features_of(model, batch.both_views())), batch, self.temperature)
        return {"loss": loss, "contrast_accuracy": accuracy}
