"""SVHN's cropped digits, from the two .mat files."""

import os
from pathlib import Path

import numpy as np
import torch
from scipy.io import loadmat

from torchllp.data.dataset import Dataset, Instances
from torchllp.data.files import data_directory, find_or_download, with_provenance
from torchllp.errors import LLPError

NAME = "svhn"
TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"
PUBLISHED = {TRAIN: "e26dedcc434d2e4c54c9b2d4a06d8373", TEST: "eb5a983be6a315427106f1b164d9cef3"}
"""The two files and their MD5s."""


def load(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """73,257 training and 26,032 test digits, not balanced; a mirrored digit is no digit, a moved one is."""
    root = data_directory(data_dir)
    folders = [root / "SVHN", root / "svhn", root]
    folder = find_or_download(NAME, root, folders, list(PUBLISHED), _download if download else None)
    train, test = _instances(folder / TRAIN), _instances(folder / TEST)
    data = Dataset.from_images(NAME, train, test, class_names="0123456789", translate=True)
    return with_provenance(data, folder, PUBLISHED)


def _download(root: Path) -> None:
    from torchvision.datasets import SVHN

    for split in ("train", "test"):
        SVHN(root, split=split, download=True)


def _instances(path: Path) -> Instances:
    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a damaged file can raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LLPError(f"{path}: not a readable .mat file ({reason})") from error
    for key in ("X", "y"):
        if key not in content:
            raise LLPError(f"{path}: has no '{key}'")
    images, labels = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or not images.size:
        sizes = "x".join(map(str, images.shape))
        raise LLPError(f"{path}: 'X' is {images.dtype} of {sizes}, not uint8 of 32x32x3 and the number of images")
    if labels.dtype.kind not in "uif" or len(labels) != images.shape[3]:
        raise LLPError(
            f"{path}: 'y' is {labels.dtype} of {len(labels)}, not one number for each of the {images.shape[3]} images"
        )
    for row in np.flatnonzero(~np.isin(labels, np.arange(1, 11)))[:1]:
        raise LLPError(f"{path}: 'y' has {labels[row]} at row {row}, not one of 1 to 10")
    digits = labels.astype(np.int64) % 10  # the files write the digit 0 as 10
    return Instances(torch.from_numpy(images.transpose(3, 2, 0, 1).copy()), torch.from_numpy(digits))
