"""What the engine asks of views, whatever the instances are: images or the rows of a table."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from torchllp.views.parameters import Drawn, Parameters


class StrongDrawn(Protocol):
    """The parameters of strong views as drawn, one row an instance."""

    def select(self, index: Tensor | slice, /) -> Self:
        """The parameters of some instances."""
        ...

    def prepare(self) -> Parameters:
        """The form that goes to the device."""
        ...


class Views(Protocol):
    """Draw on the CPU for all instances of a step, select, move, then view: only `weak` and `strong` use the device.

    The last argument of `weak` and `strong` is what the same views have drawn, on the device of the instances.
    """

    def draw_weak(self, num_instances: int, shape: Sequence[int], generator: torch.Generator, /) -> Drawn: ...

    def draw_strong(self, num_instances: int, shape: Sequence[int], generator: torch.Generator, /) -> StrongDrawn: ...

    def weak(self, instances: Tensor, parameters: Any, /) -> Tensor: ...

    def strong(self, instances: Tensor, parameters: Any, /) -> Tensor: ...

    def plain(self, instances: Tensor, /) -> Tensor: ...
