"""CIFAR-10 and CIFAR-100 from the batches of their Python version, which are pickles: nothing in them is executed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchllp.data.dataset import Dataset, Instances
from torchllp.data.files import data_directory, find_or_download, with_provenance
from torchllp.data.safe_pickle import load_arrays
from torchllp.errors import LLPError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Source:
    """How the two data sets differ. Files come with their published MD5s."""

    name: str
    folder: str
    torchvision: str
    """The class that downloads it."""
    train: dict[str, str]
    test: dict[str, str]
    meta: dict[str, str]
    """The file of class names, without which classes are numbers."""
    labels: str
    """Key of the labels in a batch."""
    class_names: str
    """Key of the class names in the meta file."""
    num_classes: int


CIFAR10 = Source(
    name="cifar10",
    folder="cifar-10-batches-py",
    torchvision="CIFAR10",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
    labels="labels",
    class_names="label_names",
    num_classes=10,
)
CIFAR100 = Source(
    name="cifar100",
    folder="cifar-100-python",
    torchvision="CIFAR100",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
    labels="fine_labels",
    class_names="fine_label_names",
    num_classes=100,
)


def load_cifar10(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """50,000 training and 10,000 test photographs of 10 classes; a photograph may be mirrored."""
    return _load(CIFAR10, data_directory(data_dir), download)


def load_cifar100(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """50,000 training and 10,000 test photographs with their 100 fine labels; a photograph may be mirrored."""
    return _load(CIFAR100, data_directory(data_dir), download)


def _load(source: Source, root: Path, download: bool) -> Dataset:
    folders, files = [root / source.folder, root], [*source.train, *source.test]
    fetch = partial(_download, source) if download else None
    folder = find_or_download(source.name, root, folders, files, fetch)
    train, test = _instances(source, folder, source.train), _instances(source, folder, source.test)
    data = Dataset.from_images(source.name, train, test, class_names=_class_names(source, folder), flip=True)
    published = source.train | source.test | source.meta
    present = {file: md5 for file, md5 in published.items() if (folder / file).is_file()}
    return with_provenance(data, folder, present)


def _download(source: Source, root: Path) -> None:
    import torchvision.datasets

    getattr(torchvision.datasets, source.torchvision)(root, download=True)


def _instances(source: Source, folder: Path, files: Iterable[str]) -> Instances:
    images, labels = [], []
    for path in [folder / file for file in files]:
        batch = _read(path)
        images.append(_images(path, batch))
        labels += _labels(path, batch, source, len(images[-1]))
    return Instances(torch.from_numpy(np.concatenate(images)), torch.tensor(labels))


def _images(path: Path, batch: dict[str, Any]) -> np.ndarray:
    values = _get(path, batch, "data")
    if not isinstance(values, np.ndarray):
        raise LLPError(f"{path}: 'data' is no array")
    if values.dtype != np.uint8 or values.ndim != 2 or values.shape[1] != PIXELS or not len(values):
        found = f"{values.dtype} of shape {'x'.join(map(str, values.shape))}"
        raise LLPError(f"{path}: 'data' is {found}, not one row of {PIXELS} uint8 values (3x32x32) an image")
    return values.reshape(-1, *SHAPE)


def _labels(path: Path, batch: dict[str, Any], source: Source, count: int) -> list[int]:
    labels = _get(path, batch, source.labels)
    if not isinstance(labels, list) or len(labels) != count:
        found = f"{len(labels)} labels" if isinstance(labels, list) else "no list of labels"
        raise LLPError(f"{path}: '{source.labels}' has {found} for {count} images")
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < source.num_classes:
            last = source.num_classes - 1
            raise LLPError(f"{path}: '{source.labels}' has {label!r:.40} at row {row}, not one of 0 to {last}")
    return labels


def _class_names(source: Source, folder: Path) -> list[str]:
    path = folder / next(iter(source.meta))
    if not path.is_file():
        return [str(label) for label in range(source.num_classes)]
    names = _get(path, _read(path), source.class_names)
    if not isinstance(names, list) or len(names) != source.num_classes:
        raise LLPError(f"{path}: '{source.class_names}' is not a list of {source.num_classes} names")
    return [_text(name) for name in names]


def _get(path: Path, content: dict[str, Any], key: str) -> Any:
    if key not in content:
        raise LLPError(f"{path}: has no '{key}'")
    return content[key]


def _read(path: Path) -> dict[str, Any]:
    """The dictionary of a file, with text as keys whatever wrote it."""
    content = load_arrays(path)
    if not isinstance(content, dict):
        raise LLPError(f"{path}: holds a {type(content).__name__}, not a dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
