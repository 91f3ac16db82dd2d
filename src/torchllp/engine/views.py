"""The views that a data set's instances are trained on."""

import torch

from torchllp.config import Recipe
from torchllp.data.dataset import Dataset
from torchllp.errors import LLPError
from torchllp.views.contrastive import ContrastiveViews
from torchllp.views.image import ImageViews
from torchllp.views.table import TableViews
from torchllp.views.views import Views

DONORS = 16_384
"""Rows of a large table whose values the strong view takes. They are kept where views are made, also if the rows are
streamed, and are few enough for a cache: to look for values in all of 100,000 rows takes three times as long."""


def views_of(data: Dataset, recipe: Recipe, *, contrastive: bool = False, device: torch.device | None = None) -> Views:
    """Views of images, or of rows: there, without an encoder, every feature is a column of numbers.

    ``contrastive`` asks for SimCLR's views of images; of rows the weak and the strong one are such a pair.
    ``device`` is where the views are made, if the data are elsewhere.
    """
    if data.is_images and contrastive:
        return ContrastiveViews(mean=data.mean, std=data.std, flip=data.flip)
    if data.is_images:
        return ImageViews(
            mean=data.mean, std=data.std, flip=data.flip, translate=data.translate, randaugment=recipe.randaugment
        )
    rows = data.train.inputs
    if rows.dtype != torch.float32 or rows.ndim != 2:
        raise LLPError(
            f"{data.name}: instances are uint8 images or float32 features of shape [number, features], "
            f"not {rows.dtype} of shape {list(rows.shape)}"
        )
    every = range(rows.shape[1])
    return TableViews(
        columns=tuple(every) if data.encoder is None else data.encoder.columns,
        is_number=tuple(True for _ in every) if data.encoder is None else data.encoder.is_number,
        source=(rows if len(rows) <= 4 * DONORS else rows[:: len(rows) // DONORS]).to(device or rows.device),
        noise=recipe.noise,
        corruption=recipe.corruption,
    )
