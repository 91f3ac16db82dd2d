"""A step whose instances do not fit into memory together: they go through the network chunk by chunk, twice."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from torchllp.errors import LLPError


class Chunked(nn.Module):
    """A model of instances that are named by number, and looked at a chunk at a time.

    What a method makes of a bag needs the predictions of the whole bag, ``[N, C]``, which are small; what is large are
    the views and all that the network keeps of them for its backward pass. So the first pass keeps nothing but the
    predictions, and the backward pass, when it reaches a chunk, makes its views and goes through the network once more:
    with the same random numbers, so its gradient is that of one pass. Batch norm in training sees a chunk at a time;
    its running statistics move in the second pass alone.

    Args:
        model: of instances.
        view: makes the views of some instances, one view after the other, ``[num_views * n, ...]``.
        num_instances: how many there are; the second view of instance ``i`` has the number ``num_instances + i``.
        chunk_size: number of instances at a time.
    """

    def __init__(
        self, model: nn.Module, view: Callable[[Tensor], Tensor], *, num_instances: int, chunk_size: int
    ) -> None:
        super().__init__()
        self.model, self.view = model, view
        self.num_instances, self.chunk_size = num_instances, chunk_size

    def forward(self, numbers: Tensor) -> Tensor:
        """Predictions of all instances, of their first view and then of their second, if that is asked for too."""
        num_views = len(numbers) // self.num_instances
        with set_checkpoint_early_stop(False):  # to the end, where a last batch norm may be
            predictions = [
                checkpoint(self._predict, chunk, num_views, use_reentrant=False, context_fn=self._passes)
                for chunk in torch.arange(self.num_instances).split(self.chunk_size)
            ]
        return torch.cat([view for views in zip(*predictions, strict=True) for view in views])

    def _predict(self, chunk: Tensor, num_views: int) -> tuple[Tensor, ...]:
        views = self.view(chunk)
        if len(views) != num_views * len(chunk):
            raise LLPError("a method that works in chunks calls the model once, on all views that it asks for")
        return self.model(views).chunk(num_views)

    def _passes(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return _buffers_stay(self.model), nullcontext()


@contextmanager
def _buffers_stay(model: nn.Module) -> Iterator[None]:
    before = [buffer.clone() for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
