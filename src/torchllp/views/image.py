"""Weak and strong views of images: every image has its own random parameters, every kernel takes the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.profiler import record_function

from torchllp.views.operations import KERNELS, cutout, take_pixels
from torchllp.views.parameters import StrongParameters, StrongPlan, WeakParameters, WeakPlan


@dataclass(frozen=True)
class ImageViews:
    """Views of uint8 images [N, C, H, W] of 1 or 3 channels, as normalised float32 of the same shape.

    Weak: crop out of the image reflect-padded by min(4, ceil(side / 8)); then `flip` (p 0.5, only where left and right
    do not matter) or `translate` (SVHN: up to 12.5 % of the side more, reflected as well).

    Strong: a weak view of its own, 2 of FixMatch's 14 operations, then cutout of a grey square with a side uniform up
    to half the image. `randaugment="random"`: each operation is applied with p 0.5 at a uniform magnitude.
    `"fixed"`: always, at level 10 of 10 of the public FixMatch code: rotation 30 degrees, shear and translation 0.3 to
    a random side, enhance factors 0.95, 8 bits, solarize threshold 0.

    Drawing is on the CPU, for all ranks at once; a rank selects its rows, prepares a plan and moves it:

    >>> views = ImageViews(mean=(0.5,), std=(0.25,))
    >>> images = torch.full((4, 1, 8, 8), 255, dtype=torch.uint8)
    >>> drawn = views.draw_strong(4, images.shape, torch.Generator().manual_seed(0))
    >>> plan = drawn.select(torch.tensor([2, 3])).prepare().to("cpu")
    >>> views.strong(images[2:], plan).shape
    torch.Size([2, 1, 8, 8])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = False
    translate: bool = False
    randaugment: Literal["random", "fixed"] = "random"

    def draw_weak(self, num_images: int, shape: Sequence[int], generator: torch.Generator) -> WeakParameters:
        """Draw for images whose `shape` ends in height and width."""
        height, width = shape[-2:]
        return WeakParameters.draw(num_images, (height, width), generator, flip=self.flip, translate=self.translate)

    def draw_strong(self, num_images: int, shape: Sequence[int], generator: torch.Generator) -> StrongParameters:
        """Draw for images whose `shape` ends in height and width, a weak view included."""
        weak = self.draw_weak(num_images, shape, generator)
        return StrongParameters.draw(weak, generator, fixed=self.randaugment == "fixed")

    def weak(self, images: Tensor, plan: WeakPlan) -> Tensor:
        """The weak view by a plan that is on the images' device."""
        with record_function("view/weak"):
            return self.plain(_crop(images, plan))

    def strong(self, images: Tensor, plan: StrongPlan) -> Tensor:
        """The strong view by a plan that is on the images' device."""
        with record_function("view/crop"):
            images = _crop(images, plan.weak)
        for layer in plan.layers:
            with record_function("view/sort"):
                images = images.index_select(0, layer.order)
            for group in layer.groups:
                with record_function(f"view/{group.kernel}"):
                    members = images[group.start : group.stop]
                    members.copy_(KERNELS[group.kernel](members, *group.arguments))
        with record_function("view/cutout"):
            images = cutout(images.index_select(0, plan.restore), plan.cut_rows, plan.cut_columns)
            return self.plain(images)

    def plain(self, images: Tensor) -> Tensor:
        """No augmentation, for evaluation: (x / 255 - mean) / std."""
        levels = 255 * torch.tensor([self.mean, self.std], dtype=torch.float32)[:, :, None, None]
        mean, std = levels.to(images.device, non_blocking=True)
        return images.float().sub_(mean).div_(std)


def _crop(images: Tensor, plan: WeakPlan) -> Tensor:
    """Shift, reflection and flip as one gather."""
    index = plan.row_starts[:, :, None] + plan.columns[:, None, :]
    return take_pixels(images.flatten(2), index.flatten(1)).view_as(images)
