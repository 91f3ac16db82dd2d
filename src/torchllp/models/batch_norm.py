"""Forwards that use batch statistics and leave no trace of themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def unmoved_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norm in training mode still normalises by the batch, but its running statistics stay as they are.

    >>> import torch
    >>> norm = nn.BatchNorm1d(1)
    >>> with unmoved_statistics(norm):
    ...     norm(torch.tensor([[1.0], [3.0]])).flatten()
    tensor([-1.0000,  1.0000], grad_fn=<ViewBackward0>)
    >>> norm.running_mean
    tensor([0.])
    """
    tracking = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
