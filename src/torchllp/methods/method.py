"""What every method is: a small module that turns a model and a batch of bags into a loss."""

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from torchllp.batch import BagBatch

if TYPE_CHECKING:
    from torchllp.bags import Bags


class Method(nn.Module):
    """Base of all methods. Subclasses take keyword-only plain numbers and define :meth:`forward`.

    A method may have parameters and buffers: they are optimised and saved with the model, but not exported with it.
    """

    views: tuple[str, ...] = ("weak",)
    """Views that :meth:`forward` may read: ``("weak",)`` or ``("weak", "strong")``; no other is made."""
    uses_labels: ClassVar[bool] = False
    """Whether :meth:`forward` reads ``batch.labels``; no other method ever sees them."""

    in_chunks: ClassVar[bool] = False
    """Whether a step larger than memory can be trained on: :meth:`forward` calls the model once, on all its views in
    their order, and does nothing else with them."""

    needs_whole_step: ClassVar[bool] = False
    """Whether it compares all instances of a step, which then cannot be spread over processes."""

    contrastive: ClassVar[bool] = False
    """Whether the two views of an image are SimCLR's, both of one kind, in place of a weak and a strong one."""
    learns_classes: ClassVar[bool] = True
    """Whether it trains a classifier; one that does not learns features alone, and needs neither bags nor classes."""

    for_frozen_features: ClassVar[bool] = False
    """Whether it is meant for the head alone, on features that were learnt before; it trains whole networks as well."""

    for_images: ClassVar[bool] = False
    """Whether it is known to fail on rows of a table; it can be tried on them."""

    def check(self, bags: "Bags") -> None:
        """Raise unless these training bags can be learnt from; any can unless overridden."""

    def fit_to(self, model: nn.Module, example: Tensor) -> None:
        """Called once before training, with the model and one instance ``[1, ...]``; nothing unless overridden.

        A method whose parameters depend on the shape of the model's features makes them here.
        """

    def views_at(self, progress: float) -> tuple[str, ...]:
        """The views that :meth:`forward` reads at this point of the training; ``views`` unless overridden."""
        return self.views

    def has_begun(self, progress: float) -> bool:
        """Whether classes are learnt by the time that ``progress`` of the training is done, else no epoch is chosen."""
        return True

    def start_epoch(self, bags: "Bags", epoch: int, seed: int) -> None:
        """Called before each epoch's first step, with the training bags; does nothing unless overridden."""

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        """The step's ``loss`` and what else is worth seeing.

        ``loss`` is a scalar to be minimised. Other scalars are parts of it, logged under their names. The keys

        - ``log_p [N, C]``: log-probabilities of the weak view,
        - ``pseudo_labels [N]`` and ``trust [N]``: the labels the method made for itself and their weights,

        have one value an instance; the engine makes its metrics of them. All but ``loss`` are detached.
        """
        raise NotImplementedError
