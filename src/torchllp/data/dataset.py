"""What every source of data becomes: instances on the device, and what the views must know of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchllp.errors import LLPError

if TYPE_CHECKING:
    from torchllp.data.table_encoder import TableEncoder


HASHED = 4096
"""Instances whose bytes are in memory at a time."""


def check_images(images: Tensor) -> None:
    """Raise unless these are images as the views take them."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise LLPError(
            "images are uint8 values of shape [number, channels, height, width] with 1 or 3 channels, "
            f"not {images.dtype} of shape {list(images.shape)}"
        )


@dataclass(frozen=True, eq=False)
class Instances:
    """Rows of data, and their labels where they are known."""

    inputs: Tensor
    """uint8 images ``[N, C, H, W]``, or float32 features ``[N, D]``."""
    labels: Tensor | None = None
    """``[N]``, -1 where unknown; used to evaluate, and by methods that say ``uses_labels``."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_labelled(self) -> bool:
        """Whether any label is known; waits for the device."""
        return self.labels is not None and bool((self.labels >= 0).any())

    def to(self, device: torch.device | str) -> "Instances":
        labels = None if self.labels is None else self.labels.to(device)
        return Instances(self.inputs.to(device), labels)

    def first(self, number: int | None) -> "Instances":
        """The first of them, or all."""
        return Instances(self.inputs[:number], None if self.labels is None else self.labels[:number])


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training instances, test instances where there are any, and how instances of this kind may be viewed."""

    name: str
    train: Instances
    test: Instances | None
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    """Of images: the mean of each channel over the training images, on a scale of 0 to 1."""
    std: tuple[float, ...] = ()
    encoder: "TableEncoder | None" = None
    """Of a table: how its columns became features."""
    flip: bool = False
    """Whether an image and its mirror image are of the same class."""
    translate: bool = False
    """Whether the weak view translates in place of the flip (SVHN)."""
    tests_on: str = "test instances"
    """What ``test`` is, in words: the training instances themselves, where only these have labels."""
    notes: tuple[str, ...] = ()
    """How the files were understood."""
    warnings: tuple[str, ...] = ()
    """What a user should know of these files, such as a checksum that is not the published one."""

    @classmethod
    def from_images(
        cls,
        name: str,
        train: Instances,
        test: Instances | None = None,
        *,
        class_names: Sequence[str],
        flip: bool = False,
        translate: bool = False,
    ) -> "Dataset":
        """A data set of images, with the mean and deviation of each channel taken from the training images.

        >>> images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
        >>> data = Dataset.from_images("dots", Instances(images), class_names=["black", "white"])
        >>> data.mean, data.std
        ((0.5,), (0.5,))
        """
        check_images(train.inputs)
        level = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.zeros(train.inputs.shape[1], 256, dtype=torch.int64)  # histograms are quick and exact
        rows = max(1, 2**24 // train.inputs[0].numel())  # 16 MB: the images may be a map that is larger than memory
        for block in train.inputs.split(rows):
            histograms = [torch.bincount(channel.flatten(), minlength=256) for channel in block.unbind(1)]
            counts += torch.stack(histograms).cpu()
        share = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
        mean = share @ level
        std = (share * (level - mean[:, None]).square()).sum(1).sqrt()
        std = torch.where(std > 0, std, 1.0)  # a channel without any contrast is only shifted
        return cls(
            name=name,
            train=train,
            test=test,
            class_names=tuple(class_names),
            mean=tuple(mean.tolist()),
            std=tuple(std.tolist()),
            flip=flip,
            translate=translate,
        )

    @cached_property
    def description(self) -> dict[str, Any]:
        """What is trained on: the SHA-256 of inputs and labels, and how inputs were made of the columns of a table."""
        labels = self.train.labels
        return {
            "dataset": self.name,
            "inputs": _sha256(self.train.inputs),
            "labels": None if labels is None else _sha256(labels),
            "encoder": None if self.encoder is None else self.encoder.to_json(),
        }

    @property
    def is_images(self) -> bool:
        return self.train.inputs.dtype == torch.uint8

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one instance."""
        return tuple(self.train.inputs.shape[1:])

    def to(self, device: torch.device | str) -> "Dataset":
        train = self.train.to(device)
        test = train if self.test is self.train else self.test and self.test.to(device)
        return replace(self, train=train, test=test)


def _sha256(tensor: Tensor) -> str:
    digest = hashlib.sha256(str(tuple(tensor.shape)).encode())
    for block in tensor.split(HASHED):
        digest.update(block.cpu().contiguous().numpy().data)
    return digest.hexdigest()
