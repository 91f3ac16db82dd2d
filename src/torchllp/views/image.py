"""Weak and strong views of images: every image has its own random parameters, every kernel takes the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.profiler import record_function

from torchllp.errors import LLPError
from torchllp.views.operations import KERNELS, crop, cutout
from torchllp.views.parameters import StrongParameters, StrongPlan, WeakParameters


@dataclass(frozen=True)
class NormalisedImages:
    """What all views of images end with: levels from 0 to 255 as a model is given them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def plain(self, images: Tensor) -> Tensor:
        """No augmentation, for evaluation: (x / 255 - mean) / std."""
        num_channels = images.shape[1]
        if not num_channels == len(self.mean) == len(self.std):
            raise LLPError(
                f"images of {num_channels} channels need a mean and a std for each of them, "
                f"not mean={self.mean} and std={self.std}"
            )
        mean, std = _normalisation(self.mean, self.std, images.device)
        return images.float().sub_(mean).div_(std)


@dataclass(frozen=True)
class ImageViews(NormalisedImages):
    """Views of uint8 images [N, C, H, W] of 1 or 3 channels, as normalised float32 of the same shape.

    Weak: crop out of the image reflect-padded by min(4, ceil(side / 8)); then `flip` (p 0.5, only where left and right
    do not matter) or `translate` (SVHN: up to 12.5 % of the side more, reflected as well).

    Strong: a weak view of its own, 2 of FixMatch's 14 operations, each applied with p 0.5, and cutout of a grey square.
    `randaugment="random"`: magnitudes are uniform, and the square's side is uniform up to half the image.
    `"fixed"`: level 10 of AHIL's published code. Enhance factors are 1.9; 4 bits are kept; solarize changes nothing;
    translation by 10/32 of the side, rotation by 30 degrees and shear by 0.3 are to a random side; the square's side is
    half the image. One difference is known: that code interpolates bilinearly, here the nearest pixel is taken.

    Drawing is on the CPU, for all ranks at once; a rank selects its rows and moves them, the strong ones as a plan:

    >>> views = ImageViews(mean=(0.5,), std=(0.25,))
    >>> images = torch.full((4, 1, 8, 8), 255, dtype=torch.uint8)
    >>> generator, mine = torch.Generator().manual_seed(0), torch.tensor([2, 3])
    >>> weak = views.draw_weak(4, images.shape, generator).select(mine).to("cpu")
    >>> views.weak(images[mine], weak).unique()
    tensor([2.])
    >>> strong = views.draw_strong(4, images.shape, generator).select(mine).prepare().to("cpu")
    >>> views.strong(images[mine], strong).shape
    torch.Size([2, 1, 8, 8])
    """

    flip: bool = False
    translate: bool = False
    randaugment: Literal["random", "fixed"] = "random"

    def __post_init__(self) -> None:
        if self.flip and self.translate:
            raise LLPError("the weak view translates in place of the flip: set flip or translate, not both")
        if self.randaugment not in ("random", "fixed"):
            raise LLPError(f"randaugment is 'random' or 'fixed', not {self.randaugment!r}")

    def draw_weak(self, num_images: int, shape: Sequence[int], generator: torch.Generator) -> WeakParameters:
        """Draw for images whose `shape` ends in height and width."""
        height, width = shape[-2:]
        return WeakParameters.draw(num_images, (height, width), generator, flip=self.flip, translate=self.translate)

    def draw_strong(self, num_images: int, shape: Sequence[int], generator: torch.Generator) -> StrongParameters:
        """Draw for images whose `shape` ends in height and width, a weak view included."""
        weak = self.draw_weak(num_images, shape, generator)
        return StrongParameters.draw(weak, generator, fixed=self.randaugment == "fixed")

    def weak(self, images: Tensor, parameters: WeakParameters) -> Tensor:
        """The weak view by parameters that are on the images' device."""
        with record_function("view/weak"):
            return self.plain(_crop(images, parameters))

    def strong(self, images: Tensor, plan: StrongPlan) -> Tensor:
        """The strong view by a plan that is on the images' device."""
        with record_function("view/crop"):
            images = _crop(images, plan.weak)  # a new tensor: the groups write to it
        for group in plan.groups:
            with record_function(f"view/{group.kernel}"):
                members = images.index_select(0, group.members)
                images.index_copy_(0, group.members, KERNELS[group.kernel](members, *group.arguments))
        with record_function("view/cutout"):
            return self.plain(cutout(images, plan.cut_centre, plan.cut_side))


def _crop(images: Tensor, weak: WeakParameters) -> Tensor:
    return crop(images, weak.down, weak.right, weak.flip)


@lru_cache(maxsize=16)
def _normalisation(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation in levels, [C, 1, 1] each, kept because to bring them to a device may wait for it."""
    levels = (255 * torch.tensor([mean, std], dtype=torch.float32)[:, :, None, None]).to(device)
    return levels[0], levels[1]
