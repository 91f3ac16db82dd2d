"""scikit-learn's digits: 1,797 grey images of 8x8 that ship with the package. Nothing is downloaded."""

import os
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from torchllp.data.dataset import Dataset, Instances

NUM_TEST = 360
SPLIT_SEED = 0
"""The test rows are the same for every run, whatever its own seed."""


def load(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """The digits, cut once and for all into 1,437 training rows and 360 stratified test rows.

    They are in scikit-learn: ``data_dir`` and ``download`` are nothing to them.
    """
    digits: Any = load_digits()
    labels = digits.target
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]  # the file has 17 grey levels
    train, test = train_test_split(np.arange(len(labels)), test_size=NUM_TEST, stratify=labels, random_state=SPLIT_SEED)

    def instances(rows: np.ndarray) -> Instances:
        return Instances(torch.from_numpy(pixels[rows]), torch.from_numpy(labels[rows].astype(np.int64)))

    return Dataset.from_images("digits", instances(train), instances(test), class_names="0123456789")
