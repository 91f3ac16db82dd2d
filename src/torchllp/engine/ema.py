"""The averaged model, which is the one evaluated."""

from copy import deepcopy

import torch
from torch import Tensor, nn


def warmed_up_decay(decay: float, step: int) -> float:
    """``min(decay, (1 + k) / (10 + k))``: an average of few steps forgets its start quickly.

    >>> warmed_up_decay(0.999, 0), warmed_up_decay(0.999, 10**6)
    (0.1, 0.999)
    """
    return min(decay, (1 + step) / (10 + step))


class EMA(nn.Module):
    """Exponential moving average of a model's weights; batch-norm statistics are copied as they are.

    A few kernels for all weights together: ``torch.optim.swa_utils.AveragedModel`` took a tenth of the step of a small
    network.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self.module = deepcopy(model)
        self.decay = decay
        self.num_updates = 0
        # kept, as to walk over the modules takes longer than the update
        self._averaged: list[Tensor] = list(self.module.parameters())
        self._current: list[Tensor] = list(model.parameters())
        self._copies: list[Tensor] = list(self.module.buffers())
        self._originals: list[Tensor] = list(model.buffers())

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights of the model, after a step."""
        torch._foreach_lerp_(self._averaged, self._current, 1 - warmed_up_decay(self.decay, self.num_updates))
        if self._originals:
            torch._foreach_copy_(self._copies, self._originals)
        self.num_updates += 1

    def get_extra_state(self) -> int:
        return self.num_updates

    def set_extra_state(self, state: int) -> None:
        self.num_updates = state
