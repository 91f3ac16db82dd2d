"""What every source of data becomes: instances on the device, and what the views must know of them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Instances:
    """Rows of data, and their labels where they are known."""

    inputs: Tensor
    """uint8 images, ``[N, C, H, W]``."""
    labels: Tensor | None = None
    """``[N]``, -1 where unknown; used to evaluate, and by methods that say ``uses_labels``."""

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> "Instances":
        labels = None if self.labels is None else self.labels.to(device)
        return Instances(self.inputs.to(device), labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training instances, test instances where there are any, and how images of this kind may be viewed."""

    name: str
    train: Instances
    test: Instances | None
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    """Of each channel over the training images, on a scale of 0 to 1."""
    std: tuple[float, ...]
    flip: bool = False
    """Whether an image and its mirror image are of the same class."""
    translate: bool = False
    """Whether the weak view translates in place of the flip (SVHN)."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one instance."""
        return tuple(self.train.inputs.shape[1:])

    def to(self, device: torch.device | str) -> "Dataset":
        return replace(self, train=self.train.to(device), test=self.test and self.test.to(device))
