"""RandAugment's operations on whole batches of uint8 images, with the results that Pillow gives for single ones.

Each kernel takes images [n, C, H, W] of 1 or 3 channels and one argument an image; operations that are the same
arithmetic with other numbers share one. The arithmetic is in integers, or in float32 where it is exact or rounds as
Pillow's C code does, so CPU and GPU agree.
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
    varies = high > low
    low, span = torch.where(varies, low, 0), torch.where(varies, high - low, 255)
    return ((images - low) * 255.0 / span).to(torch.uint8)


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
    return images ^ -(images >= _per_image(threshold)).to(torch.uint8)


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


def cutout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Grey where both the row's and the column's mask (uint8, 0 or 255) are set. Bitwise: much faster than `where`."""
    mask = rows[:, None, :, None] & columns[:, None, None, :]
    return images ^ ((images ^ FILL) & mask)


KERNELS: dict[str, Callable[..., Tensor]] = {
    kernel.__name__: kernel for kernel in (autocontrast, equalize, tone, enhance, sharpness, affine)
}


def _per_image(value: Tensor) -> Tensor:
    return value[:, None, None, None]


def _blend(degenerate: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """From `degenerate` (factor 0) to `pixels` (factor 1), cut down to whole levels."""
    return (degenerate + _per_image(factor) * (pixels - degenerate)).to(torch.uint8)


def _luma(pixels: Tensor) -> Tensor:
    """ITU-R 601 grey in Pillow's 16-bit weights, which stay below 2^24 and so are exact in float32."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()
