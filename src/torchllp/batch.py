"""BagBatch: whole bags on the device, with their views. What a method sees of a step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchllp.device import move
from torchllp.errors import LLPError
from torchllp.functional import bag_sizes


def _identity(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, kw_only=True, eq=False)
class BagBatch:
    """Whole bags, flat: instance ``j`` is row ``j`` of every ``[N, ...]`` tensor and in bag ``bag_index[j]``.

    Only ``weak``, ``bag_index`` and ``proportions`` are needed to call a method by hand.

    Losses are written ``x.sum() / batch.num_instances`` and ``x.sum() / batch.num_bags``. In one process these are the
    instances, and the labelled bags, of the batch (``num_labelled_instances``: the instances of these bags). Over
    several processes they are the totals of all of them divided by the number of processes, so that the average of the
    processes' gradients is the gradient of the whole step even when bags differ in size.
    """

    weak: Tensor
    """Weak view, ``[N, ...]``."""
    strong: Tensor | None = None
    """Strong view, ``[N, ...]``; None unless the method's ``views`` asks for it."""
    bag_index: Tensor
    """Which of this batch's bags each instance is in, ``[N]``."""
    proportions: Tensor
    """Class shares of each bag, ``[B, C]``; rows of zeros for bags that are not labelled."""
    is_labelled: Tensor = field(default=None)  # pyrefly: ignore[bad-assignment]  # filled in below
    """Whether the proportions of each bag are known, ``[B]``; all of them unless said."""
    reported: Tensor | None = None
    """Counts as they were reported, ``[B, C]``, NaN for a class that was not observed; None: by the proportions."""
    noise_kind: str | None = None
    """How the reported counts differ from the true ones, see :class:`torchllp.noise.Noise`; None if they do not."""
    noise_scale: Tensor | None = None
    """The scale of that noise, ``[B]``."""
    largest_bag: int | None = None
    """Number of instances of the largest bag, where it is known; else who needs it waits for the device."""
    bags: Tensor | None = None
    """Each bag's row in the training ``Bags``, ``[B]``."""
    labels: Tensor | None = None
    """True labels, ``[N]``, -1 where unknown; None unless the method's ``uses_labels`` asks for them."""
    progress: float = 0.0
    """How much of the training is done, in [0, 1]."""
    generator: torch.Generator | None = None
    """The step's random numbers, on the CPU: draw there, then move."""
    step_rows: Tensor | None = None
    """Which of the step's instances, those of all processes together, these are, ``[N]``, on the CPU; None: all."""
    step_size: int = field(default=None)  # pyrefly: ignore[bad-assignment]
    """Number of the step's instances, of all processes together."""
    num_bags: float | Tensor = field(default=None)  # pyrefly: ignore[bad-assignment]
    num_instances: float = field(default=None)  # pyrefly: ignore[bad-assignment]
    num_labelled_instances: float | Tensor = field(default=None)  # pyrefly: ignore[bad-assignment]
    mean_bag_size: float | Tensor = field(default=None)  # pyrefly: ignore[bad-assignment]
    """Of the step's labelled bags, those of all processes together."""
    reduce: Callable[[Tensor], Tensor] = _identity
    """Sums a tensor over all processes; running statistics are made from sums passed through it."""

    def __post_init__(self) -> None:
        def default(name: str, make: Callable[[], object]) -> None:
            if getattr(self, name) is None:
                object.__setattr__(self, name, make())

        device = self.proportions.device
        default("is_labelled", lambda: torch.ones(len(self.proportions), dtype=torch.bool, device=device))
        default("step_size", lambda: len(self.bag_index))
        default("num_bags", lambda: self.is_labelled.sum().clamp(min=1))
        default("num_instances", lambda: len(self.bag_index))
        default("num_labelled_instances", lambda: self.is_labelled[self.bag_index].sum().clamp(min=1))
        default("mean_bag_size", lambda: torch.as_tensor(self.num_labelled_instances).double() / self.num_bags)

    @cached_property
    def sizes(self) -> Tensor:
        """Number of instances of each bag, ``[B]``, float32."""
        return bag_sizes(self.bag_index, len(self.proportions))

    @property
    def observed(self) -> Tensor | None:
        """Whether a class was observed in a bag, ``[B, C]``; None: all were."""
        return None if self.reported is None else ~self.reported.isnan()

    def noise(self) -> Tensor:
        """Standard normal numbers like ``weak``, which the next call draws anew."""
        return self.draw(lambda number, generator: torch.randn(number, *self.weak.shape[1:], generator=generator))

    def draw(self, numbers: Callable[[int, torch.Generator | None], Tensor]) -> Tensor:
        """Random numbers for each instance, ``[N, ...]`` of the dtype of ``weak``.

        ``numbers(n, generator)`` draws those of the step's ``n`` instances on the CPU; this process takes its own, so
        how bags are spread over processes changes nothing.
        """
        everyone = numbers(self.step_size, self.generator)
        mine = everyone if self.step_rows is None else everyone[self.step_rows]
        return move(mine, self.weak.device).to(self.weak.dtype)

    def both_views(self) -> Tensor:
        """Weak, then strong view, ``[2 N, ...]``: one forward for both, so that they share batch-norm statistics."""
        if self.strong is None:
            raise LLPError("this method compares a weak and a strong view, and the batch has no strong view")
        return torch.cat([self.weak, self.strong])
