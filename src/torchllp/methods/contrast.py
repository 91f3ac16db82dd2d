"""Our own, for large bags: features by contrast, then a head on them by the bags, and if asked for AHIL on both."""

import torch
from torch import Tensor, nn

from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import log_probabilities, whitened_linear
from torchllp.methods.custom import Custom
from torchllp.methods.numbers import check_not_negative, check_positive, check_whole
from torchllp.methods.terms import bag_term, contrast_term
from torchllp.models.features import as_predicted, check_head, features_of, head_of, projection_of

RECENT = 0.03
"""Share of a step in the running mean and covariance of the features, from the step on at which a mean has less."""


class Contrast(Custom):
    """What large bags cannot teach is learnt from the instances first, in one training of stages.

    1. The features learn to tell instances apart, without classes.
    2. They stay, and the head learns the bags' proportions, by the gradient for whitened features.
    3. If asked for: both learn on by AHIL's loss, proportions and pseudo-labels by their dual entropy weights.

    Args:
        classes_from: share of the training after which the second stage begins.
        labels_from: share of the training after which the third stage begins; 1: never.
        head_rate: how many times the recipe's learning rate the head's is in the second stage (for SGD).
        damping: share of their mean variance that is added to the covariance of the features.
        temperature: of the similarities; smaller looks at the most similar instances only.
        num_dimensions: of the embeddings that are compared.
        instance_weight: weight of the instance-level loss.
        beta_bag: width of the bag-level trust; larger trusts more.
        beta_instance: width of the instance-level trust.
        bag_weighting: ``"equal"`` (every bag counts the same) or ``"size"`` (every instance does).
        bag_term: the bag-level loss: ``"mean"``, ``"count"``, ``"gaussian"`` or ``"moments"``.
    """

    needs_whole_step = True
    for_images = True
    projection: nn.Module
    mean: Tensor
    covariance: Tensor
    num_steps: Tensor

    def __init__(
        self,
        *,
        classes_from: float = 0.5,
        labels_from: float = 1.0,
        head_rate: float = 10.0,
        damping: float = 0.1,
        temperature: float = 0.5,
        num_dimensions: int = 128,
        instance_weight: float = 0.5,
        beta_bag: float = 1.0,
        beta_instance: float = 1.0,
        bag_weighting: str = "equal",
        bag_term: str = "mean",
    ) -> None:
        super().__init__(
            bag_term=bag_term,
            instance_weight=instance_weight,
            beta_bag=beta_bag,
            beta_instance=beta_instance,
            bag_weighting=bag_weighting,
        )
        if not 0 <= classes_from <= labels_from <= 1 or classes_from == 1:
            raise LLPError(
                "classes_from must be from 0 to below 1, and labels_from from there to 1, "
                f"not {classes_from} and {labels_from}"
            )
        check_not_negative(damping=damping)
        check_positive(head_rate=head_rate, temperature=temperature)
        check_whole(num_dimensions=num_dimensions)
        self.classes_from, self.labels_from = classes_from, labels_from
        self.head_rate, self.damping = head_rate, damping
        self.temperature, self.num_dimensions = temperature, int(num_dimensions)

    def fit_to(self, model: nn.Module, example: Tensor) -> None:
        head = check_head(model, example)
        if {*model.parameters()} <= {*head.parameters()}:
            raise LLPError("contrast learns features first, and this model has nothing but a head: take another method")
        self.projection = projection_of(model, example, self.num_dimensions)
        num_features = as_predicted(model, example).shape[1]
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("covariance", torch.zeros(num_features, num_features))
        self.register_buffer("num_steps", torch.tensor(0.0))

    def views_at(self, progress: float) -> tuple[str, ...]:
        return ("weak",) if self.classes_from <= progress < self.labels_from else self.views

    def has_begun(self, progress: float) -> bool:
        return progress > self.classes_from

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        if batch.progress < self.classes_from:
            embeddings = self.projection(features_of(model, batch.both_views()))
            loss, accuracy = contrast_term(embeddings, batch, self.temperature)
            return {"loss": loss, "contrast_accuracy": accuracy}
        if batch.progress < self.labels_from:
            log_p = log_probabilities(self._head_alone(model, batch.weak))
            loss, bag_kl = bag_term(log_p, batch, self.bag_weighting, term=self.bag_term)
            return {"loss": loss, "bag_kl": bag_kl, "log_p": log_p.detach()}
        return super().forward(model, batch)

    def _head_alone(self, model: nn.Module, x: Tensor) -> Tensor:
        """The logits by which ``x`` is predicted, ``[N, C]``, with the gradient for a head on whitened features."""
        features, head = as_predicted(model, x), head_of(model)
        assert head is not None  # it was checked
        with torch.autocast(x.device.type, enabled=False):
            self._update_statistics(features.to(self.mean.dtype))
        statistics = (self.mean, self.covariance)
        return whitened_linear(features, head.weight, head.bias, *statistics, damping=self.damping, rate=self.head_rate)

    def _update_statistics(self, features: Tensor) -> None:
        self.num_steps += 1
        share = (1 / self.num_steps).clamp(min=RECENT)
        self.mean.lerp_(features.mean(0), share)
        centred = features - self.mean
        self.covariance.lerp_(centred.T @ centred / len(features), share)
