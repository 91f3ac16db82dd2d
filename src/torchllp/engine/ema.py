"""The averaged model, which is the one evaluated."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def warmed_up_decay(decay: float, step: int) -> float:
    """``min(decay, (1 + k) / (10 + k))``: an average of few steps forgets its start quickly.

    >>> warmed_up_decay(0.999, 0), warmed_up_decay(0.999, 10**6)
    (0.1, 0.999)
    """
    return min(decay, (1 + step) / (10 + step))


class EMA(AveragedModel):
    """Exponential moving average of a model's weights; batch-norm statistics are copied as they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        def average(averaged: Sequence[Tensor], current: Sequence[Tensor], _: Tensor | int) -> None:
            # n_averaged lives on the CPU, so reading it does not wait for the device.
            weight = 1 - warmed_up_decay(decay, int(self.n_averaged) - 1)
            torch._foreach_lerp_(list(averaged), list(current), weight)

        super().__init__(model, multi_avg_fn=average)
        self.n_averaged.fill_(1)  # the first weights are in the average: step 0 averages and does not copy
