"""Fashion-MNIST, read straight from its four .gz files."""

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
import torch

from torchllp.data.dataset import Dataset, Instances
from torchllp.data.files import data_directory, find_or_download, with_provenance
from torchllp.errors import LLPError

NAME = "fashion-mnist"
CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
PUBLISHED = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
"""The four files and their MD5s."""


def load(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """60,000 training and 10,000 test images; a garment may be mirrored."""
    root = data_directory(data_dir)
    folders = [root / "FashionMNIST" / "raw", root]
    folder = find_or_download(NAME, root, folders, list(PUBLISHED), _download if download else None)
    train, test = _instances(folder, "train"), _instances(folder, "t10k")
    data = Dataset.from_images(NAME, train, test, class_names=CLASS_NAMES, flip=True)
    return with_provenance(data, folder, PUBLISHED)


def _download(root: Path) -> None:
    from torchvision.datasets import FashionMNIST

    FashionMNIST(root, download=True)


def _instances(folder: Path, part: str) -> Instances:
    images_file, labels_file = folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz"
    images, labels = _read_idx(images_file, dimensions=3), _read_idx(labels_file, dimensions=1)
    if images.shape[1:] != (28, 28):
        raise LLPError(f"{images_file}: images of {images.shape[1]}x{images.shape[2]}, not 28x28")
    if len(labels) != len(images):
        raise LLPError(f"{labels_file}: {len(labels)} labels for the {len(images)} images of {images_file.name}")
    for row in np.flatnonzero(labels >= len(CLASS_NAMES))[:1]:
        raise LLPError(f"{labels_file}: label {labels[row]} at row {row}, not one of 0 to {len(CLASS_NAMES) - 1}")
    return Instances(torch.tensor(images[:, None]), torch.tensor(labels, dtype=torch.int64))


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """The values of an idx file: 0, 0, 8 for uint8, the number of dimensions, each size as 4 bytes, the values."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise LLPError(f"{path}: not a readable gzip file ({error})") from error
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise LLPError(
            f"{path}: not an idx file of uint8 values in {dimensions} dimensions "
            f"(it has {len(content)} bytes and begins with 0x{content[:4].hex()})"
        )
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) - start != math.prod(shape) or 0 in shape:
        sizes = "x".join(map(str, shape))
        raise LLPError(f"{path}: its header says {sizes} values, and it has {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
