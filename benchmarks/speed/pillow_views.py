"""Weak and strong views the usual way: image by image, by torchvision's transforms and Pillow's operations."""

import random
from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor
from torchvision import transforms

GREY = 128
PADDING = 4


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_grey(image))


def _grey(image: Image.Image) -> int | tuple[int, ...]:
    return GREY if image.mode == "L" else (GREY,) * 3


class Operation(NamedTuple):
    """One of FixMatch's 14, by the image and a magnitude from its range."""

    apply: Callable[[Image.Image, float], Image.Image]
    start: float = 0.0
    end: float = 0.0


OPERATIONS = {
    "identity": Operation(lambda image, _: image),
    "autocontrast": Operation(lambda image, _: ImageOps.autocontrast(image)),
    "equalize": Operation(lambda image, _: ImageOps.equalize(image)),
    "rotate": Operation(lambda image, v: image.rotate(v, Image.Resampling.NEAREST, fillcolor=_grey(image)), -30, 30),
    "solarize": Operation(lambda image, v: ImageOps.solarize(image, ceil(v)), 256, 0),
    "color": Operation(lambda image, v: ImageEnhance.Color(image).enhance(v), 0.05, 0.95),
    "contrast": Operation(lambda image, v: ImageEnhance.Contrast(image).enhance(v), 0.05, 0.95),
    "brightness": Operation(lambda image, v: ImageEnhance.Brightness(image).enhance(v), 0.05, 0.95),
    "sharpness": Operation(lambda image, v: ImageEnhance.Sharpness(image).enhance(v), 0.05, 0.95),
    "shear_x": Operation(lambda image, v: _affine(image, 1, v, 0, 0, 1, 0), -0.3, 0.3),
    "shear_y": Operation(lambda image, v: _affine(image, 1, 0, 0, v, 1, 0), -0.3, 0.3),
    "translate_x": Operation(lambda image, v: _affine(image, 1, 0, v * image.width, 0, 1, 0), -0.3, 0.3),
    "translate_y": Operation(lambda image, v: _affine(image, 1, 0, 0, 0, 1, v * image.height), -0.3, 0.3),
    "posterize": Operation(lambda image, v: ImageOps.posterize(image, round(v)), 3.5, 8.5),
}


class PillowViews:
    """The views of ``ImageViews(flip=True)`` of images of one side, each image on its own."""

    def __init__(self, *, mean: tuple[float, ...], std: tuple[float, ...], side: int) -> None:
        self.side = side
        self.crop = transforms.Compose(
            [
                transforms.RandomCrop(side, padding=PADDING, padding_mode="reflect"),
                transforms.RandomHorizontalFlip(),
            ]
        )
        self.finish = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])

    def weak(self, image: Image.Image) -> Tensor:
        return self.finish(self.crop(image))

    def strong(self, image: Image.Image) -> Tensor:
        image = self.crop(image)
        for operation in random.choices(list(OPERATIONS.values()), k=2):
            if random.random() < 0.5:
                image = operation.apply(image, random.uniform(operation.start, operation.end))
        return self.finish(self.cut_out(image))

    def cut_out(self, image: Image.Image) -> Image.Image:
        """Grey in a square around a random pixel, of a random side up to half of the image's."""
        side = random.randint(0, self.side // 2)
        if side:
            left, top = (random.randrange(self.side) - side // 2 for _ in range(2))
            image = image.copy()  # the identity has returned the image it was given
            ImageDraw.Draw(image).rectangle((left, top, left + side - 1, top + side - 1), fill=_grey(image))
        return image
