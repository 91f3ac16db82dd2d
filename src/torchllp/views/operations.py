"""RandAugment's operations on whole batches of uint8 images, with the results that Pillow gives for single ones.

Each kernel takes images [n, C, H, W] of 1 or 3 channels and one argument an image; operations that are the same
arithmetic with other numbers share one. The arithmetic is in integers or float32, as in Pillow's C code. Autocontrast
alone is Python in Pillow, whose longer sum of floats can end just below a whole level: one level less than here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

FILL = 128  # grey, for pixels that come from outside the image or are cut out


def take_pixels(images: Tensor, index: Tensor) -> Tensor:
    """Pixels [n, C, P] of flat images [n, C, H * W], from the same places `index` [n, P] in all channels."""
    return images.gather(2, index[:, None].expand(-1, images.shape[1], -1))


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel's range to 0 ... 255; a constant channel stays as it is."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    constant = low == high
    span = (high - low).masked_fill(constant, 255)
    return ((images - low.masked_fill(constant, 0)) * 255.0 / span).to(torch.uint8)


def equalize(images: Tensor) -> Tensor:
    """Flatten each channel's histogram by a look-up table; too few pixels or one level only change nothing."""
    level = images.flatten(2).long()
    num_pixels = level.shape[2]
    histogram = level.new_zeros(*level.shape[:2], 256).scatter_add_(2, level, torch.ones_like(level))
    brightest = histogram.gather(2, level.amax(2, keepdim=True))
    step = (num_pixels - brightest) // 255
    below = histogram.cumsum(2) - histogram
    table = torch.where(step > 0, (step // 2 + below) // step.clamp(min=1), torch.arange(256, device=images.device))
    return table.clamp(max=255).to(torch.uint8).gather(2, level).view_as(images)


def tone(images: Tensor, mask: Tensor, threshold: Tensor) -> Tensor:
    """Posterize (keep the bits of `mask`) and solarize (invert from `threshold` on)."""
    images = images & _per_image(mask)
    return images ^ _all_bits(images >= _per_image(threshold))


def enhance(images: Tensor, factor: Tensor, grey: Tensor, mean: Tensor) -> Tensor:
    """Blend each image with its grey version (color), the mean of that (contrast) or black (brightness).

    `grey` and `mean` are 1 for the images that are blended so, else 0.
    """
    pixels = images.float()
    luma = _luma(pixels)
    num_pixels = luma[0].numel()
    total = luma.sum((1, 2, 3), dtype=torch.int64)
    rounded_mean = (2 * total + num_pixels) // (2 * num_pixels)
    return _blend(_per_image(grey) * luma + _per_image(mean * rounded_mean), pixels, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with its smooth version: centre 5, neighbours 1, over 13; the border is not smoothed."""
    pixels = images.float()
    columns = pixels[..., :-2] + pixels[..., 1:-1] + pixels[..., 2:]
    square = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    smooth = pixels.clone()
    inner = smooth[..., 1:-1, 1:-1]
    inner.copy_(((square + 4 * inner) / 13 + 0.5).floor())
    return _blend(smooth, pixels, factor)


def affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Take the pixel x, y of the result from column (ax + by + c) and row (dx + ey + f), grey where that is outside.

    `matrix` [n, 6] holds a, b, c, d, e, f in units of 1 / 65536 pixel: Pillow's fixed-point arithmetic.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    a, b, c, d, e, f = matrix[:, :, None, None].unbind(1)
    column = ((a * x + (b * y + c)) >> 16).clamp(-1, width) + 1
    row = ((d * x + (e * y + f)) >> 16).clamp(-1, height) + 1
    framed = functional.pad(images, (1, 1, 1, 1), value=FILL)  # where all that is outside comes from
    return take_pixels(framed.flatten(2), (row * (width + 2) + column).flatten(1).long()).view_as(images)


def crop(images: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
    """Shift each image, with what comes in from outside reflected, then flip it left to right: one gather."""
    height, width = images.shape[2:]
    rows, columns = _reflected(down, height), _reflected(right, width)
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    index = rows[:, :, None] * width + columns[:, None, :]
    return take_pixels(images.flatten(2), index.flatten(1)).view_as(images)


def cutout(images: Tensor, centre: Tensor, side: Tensor) -> Tensor:
    """Grey in a square around `centre` [n, 2] (row and column), clipped at the border."""
    height, width = images.shape[2:]
    row, column = centre.unbind(1)
    mask = _covered(row, side, height)[:, None, :, None] & _covered(column, side, width)[:, None, None, :]
    return images ^ ((images ^ FILL) & mask)


KERNELS: dict[str, Callable[..., Tensor]] = {
    kernel.__name__: kernel for kernel in (autocontrast, equalize, tone, enhance, sharpness, affine)
}


def _per_image(value: Tensor) -> Tensor:
    return value[:, None, None, None]


def _all_bits(condition: Tensor) -> Tensor:
    """255 where the condition holds, else 0: to choose pixels bitwise, which is much faster than `where`."""
    return condition.to(torch.uint8) * 255


def _reflected(shift: Tensor, side: int) -> Tensor:
    """The positions [n, side] that a shifted row or column of pixels is taken from."""
    position = (torch.arange(side, device=shift.device) + shift[:, None]).abs()
    return (side - 1) - (side - 1 - position).abs()


def _covered(centre: Tensor, length: Tensor, side: int) -> Tensor:
    """255 at the positions [n, side] that lie in a stretch around `centre`, else 0."""
    distance = torch.arange(side, device=centre.device) - (centre - length // 2)[:, None]
    return _all_bits((distance >= 0) & (distance < length[:, None]))


def _blend(degenerate: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """From `degenerate` (factor 0) to `pixels` (factor 1) or beyond, cut down to whole levels from 0 to 255."""
    return (degenerate + _per_image(factor) * (pixels - degenerate)).clamp_(0, 255).to(torch.uint8)


def _luma(pixels: Tensor) -> Tensor:
    """ITU-R 601 grey in Pillow's 16-bit weights, which stay below 2^24 and so are exact in float32."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()
