"""Weak and strong views of a batch at once, against torchvision's way of one Pillow image after the other."""

import torch
from benchmarks.speed.measure import Goal, Row, how_much_quicker, turn_by_turn
from benchmarks.speed.pillow_views import PillowViews
from PIL import Image
from torch import Tensor

from torchllp.views.image import ImageViews

SHAPES = {"CIFAR": (3, 32, 32), "Fashion-MNIST": (1, 28, 28)}
GOAL = Goal("at least", 10.0)
PILLOW, NORMALISED = "torchvision's per-image PIL views", "normalising the images twice"


def both_views(views: ImageViews, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Drawn and made as the training loop does it."""
    weak = views.draw_weak(len(images), images.shape, generator)
    strong = views.draw_strong(len(images), images.shape, generator).prepare()
    return views.weak(images, weak), views.strong(images, strong)


def pillow_image(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy())


def both_pillow_views(views: PillowViews, images: list[Image.Image]) -> tuple[Tensor, Tensor]:
    return torch.stack([views.weak(image) for image in images]), torch.stack([views.strong(image) for image in images])


def measure(num_images: int = 1024, repeats: int = 7) -> list[Row]:
    rows = []
    for name, shape in SHAPES.items():
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (num_images, *shape), generator=generator, dtype=torch.uint8)
        pillow_images = [pillow_image(image) for image in images]
        mean, std = (0.5,) * shape[0], (0.25,) * shape[0]
        views, pillow_views = ImageViews(mean, std, flip=True), PillowViews(mean=mean, std=std, side=shape[1])
        calls = {
            "ours": lambda views=views, images=images, generator=generator: both_views(views, images, generator),
            PILLOW: lambda views=pillow_views, images=pillow_images: both_pillow_views(views, images),
            NORMALISED: lambda views=views, images=images: (views.plain(images), views.plain(images)),
        }
        times = turn_by_turn(calls, repeats)
        words = f"weak and strong views of {num_images:,} images as in {name}"
        rows.append(how_much_quicker(words, times, PILLOW, goal=GOAL, limit=NORMALISED))
    return rows
