"""SimCLR's views of images: every image has its own random parameters, every kernel takes the whole batch.

The kernels take and give pixels as float32 levels from 0 to 255 and equal torchvision's functions of the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import record_function

from torchllp.views.image import NormalisedImages
from torchllp.views.parameters import Drawn

AREA = (0.2, 1.0)  # the box's share of the image
RATIO = (3 / 4, 4 / 3)  # its width over its height
NUM_TRIES = 10  # boxes to draw before the central one is taken
JITTER_SHARE, FACTOR_REACH, HUE_REACH = 0.8, 0.8 * 0.5, 0.2 * 0.5  # strength 0.5, SimCLR's for small images
GREY_SHARE = 0.2


@dataclass(frozen=True)
class ContrastiveDraw(Drawn):
    """Each image's box in whole pixels, its flip and its colours; factors are 1 and the hue 0 where nothing changes."""

    start: Tensor  # [N, 2] float32, the box's first row and column
    length: Tensor  # [N, 2] float32, its height and width
    flip: Tensor  # [N] bool
    brightness: Tensor  # [N] float32
    contrast: Tensor  # [N] float32
    saturation: Tensor  # [N] float32
    hue: Tensor  # [N] float32, in turns
    grey: Tensor  # [N] bool

    @classmethod
    def draw(cls, num_images: int, size: tuple[int, int], generator: torch.Generator, *, flip: bool) -> Self:
        """Draw for images of height and width `size`.

        The box is that of torchvision's RandomResizedCrop: the first of 10 tries that fits into the image, else the
        largest central box whose ratio is allowed.
        """

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return low + (high - low) * torch.rand(num_images, *shape, generator=generator, dtype=torch.float64)

        height, width = size
        area = height * width * uniform(*AREA, NUM_TRIES)
        ratio = uniform(math.log(RATIO[0]), math.log(RATIO[1]), NUM_TRIES).exp()
        tries = torch.stack([(area / ratio).sqrt().round(), (area * ratio).sqrt().round()], 2)
        central = [min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))]
        boxes = torch.cat([tries, tries.new_tensor(central).expand(num_images, 1, 2)], 1)
        fits = ((boxes > 0) & (boxes <= torch.tensor(size))).all(2)
        first = fits.byte().argmax(1)  # of equal ones the first, and the central box always fits
        length = boxes[torch.arange(num_images), first]
        room = torch.tensor(size) - length
        place = uniform(0, 1, 2) * (room + 1)
        start = torch.where((first == NUM_TRIES)[:, None], room / 2, place).floor()

        flipped = uniform(0, 1) < 0.5 if flip else torch.zeros(num_images).bool()
        jittered = uniform(0, 1) < JITTER_SHARE
        factors = torch.where(jittered[:, None], uniform(1 - FACTOR_REACH, 1 + FACTOR_REACH, 3), 1.0).float()
        brightness, contrast, saturation = factors.unbind(1)
        hue = torch.where(jittered, uniform(-HUE_REACH, HUE_REACH), 0.0).float()
        grey = uniform(0, 1) < GREY_SHARE
        return cls(start.float(), length.float(), flipped, brightness, contrast, saturation, hue, grey)

    def prepare(self) -> Self:
        """Itself: each image takes the same kernels, so there is nothing to group."""
        return self


@dataclass(frozen=True)
class ContrastiveViews(NormalisedImages):
    """Views of uint8 images [N, C, H, W] of 1 or 3 channels for SimCLR, as normalised float32 of the same shape.

    Weak and strong are views of one kind, each with a draw of its own: a box of 0.2 to 1 of the area, scaled to the
    size of the image; `flip` (p 0.5, only where left and right do not matter); jitter of strength 0.5 (p 0.8); grey
    (p 0.2). Of the colours only brightness and contrast change images of 1 channel. One difference is known: the jitter
    is brightness, contrast, saturation and hue always in this order, which torchvision shuffles at each call.

    Drawing is on the CPU, for all ranks at once; a rank selects its rows and moves them:

    >>> views = ContrastiveViews(mean=(0.5,), std=(0.25,))
    >>> images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    >>> generator, mine = torch.Generator().manual_seed(0), torch.tensor([2, 3])
    >>> weak = views.draw_weak(4, images.shape, generator).select(mine).to("cpu")
    >>> views.weak(images[mine], weak).unique()
    tensor([-2.])
    >>> strong = views.draw_strong(4, images.shape, generator).select(mine).prepare().to("cpu")
    >>> views.strong(images[mine], strong).shape
    torch.Size([2, 1, 8, 8])
    """

    flip: bool = False

    def draw_weak(self, num_images: int, shape: Sequence[int], generator: torch.Generator) -> ContrastiveDraw:
        """Draw for images whose `shape` ends in height and width."""
        height, width = shape[-2:]
        return ContrastiveDraw.draw(num_images, (height, width), generator, flip=self.flip)

    def draw_strong(self, num_images: int, shape: Sequence[int], generator: torch.Generator) -> ContrastiveDraw:
        """Draw the other view, as `draw_weak` does."""
        return self.draw_weak(num_images, shape, generator)

    def weak(self, images: Tensor, drawn: ContrastiveDraw) -> Tensor:
        """The view by a draw that is on the images' device."""
        with record_function("view/contrastive"):
            pixels = resized_crop(images, drawn.start, drawn.length, drawn.flip)
            pixels = adjust_contrast(adjust_brightness(pixels, drawn.brightness), drawn.contrast)
            if images.shape[1] == 3:
                pixels = adjust_hue(adjust_saturation(pixels, drawn.saturation), drawn.hue)
                pixels = torch.where(_per_image(drawn.grey), luma(pixels), pixels)
            return self.plain(pixels)

    def strong(self, images: Tensor, drawn: ContrastiveDraw) -> Tensor:
        """The other view, as `weak` makes it."""
        return self.weak(images, drawn)


def resized_crop(images: Tensor, start: Tensor, length: Tensor, flip: Tensor) -> Tensor:
    """Each image's box, scaled bilinearly to the size of the image, then flipped left to right."""
    height, width = images.shape[2:]
    rows, columns = (_places(start[:, i], length[:, i], side) for i, side in enumerate((height, width)))
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    grid = torch.stack(torch.broadcast_tensors(columns[:, None, :], rows[:, :, None]), 3)
    return functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


def adjust_brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with black."""
    return (pixels * _per_image(factor)).clamp_(max=255)


def adjust_contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with the mean of its grey version, which is the grey version of its mean."""
    return _blend(luma(pixels.mean((2, 3), keepdim=True)), pixels, factor)


def adjust_saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with its grey version."""
    return _blend(luma(pixels), pixels, factor)


def adjust_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of images of 3 channels, by a sixth of the circle at most.

    On a circle of length 6 red is at 0, green at 2 and blue at 4. A channel is at its highest where the hue is up to 1
    away, and falls from there to its lowest, at 2. All lengths are times the chroma, so there is no division by it.
    """
    red, green, blue = pixels.split(1, 1)
    low, high = pixels.amin(1, keepdim=True), pixels.amax(1, keepdim=True)
    chroma = high - low
    from_green, from_blue = (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4)
    hue = torch.where(red == high, green - blue, torch.where(green == high, from_green, from_blue))
    hue.addcmul_(_per_image(turns), chroma, value=6)
    channel = torch.arange(0.0, 6.0, 2.0, device=pixels.device)[:, None, None]
    # The distance on the circle is 3 - | |hue - channel| - 3 |, as long as the two are no more than 6 apart.
    level = torch.addcmul(hue, channel, chroma, value=-1).abs_().sub_(chroma, alpha=3).abs_()
    return level.add_(low - chroma).clamp_(low, high)


def luma(pixels: Tensor) -> Tensor:
    """The grey version, of 1 channel, in torchvision's weights."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _per_image(value: Tensor) -> Tensor:
    return value[:, None, None, None]


def _blend(degenerate: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """From `degenerate` (factor 0) to `pixels` (factor 1) or beyond."""
    return torch.lerp(degenerate, pixels, _per_image(factor)).clamp_(0, 255)


def _places(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Where each of `side` pixels is taken from, [n, side], in grid_sample's unit: the image is from -1 to 1."""
    centre = (torch.arange(side, device=start.device) + 0.5) * (length / side)[:, None] - 0.5
    centre = torch.minimum(centre.clamp_(min=0), length[:, None] - 1)  # nothing from beside the box
    return (2 * (start[:, None] + centre) + 1) / side - 1
