"""Small random files in the formats of the benchmarks, to try out everything that reads the real ones."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.io import savemat

NUM_TEST = 200


def write_generated(dataset: str, folder: Path) -> None:
    """Write the files of a data set below ``folder``, enough for a hundred bags of 8; the digits need none."""
    if dataset in _WRITERS:
        _WRITERS[dataset](folder, np.random.default_rng(0))


def _images(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.integers(0, 256, shape, np.uint8)


def _write_fashion_mnist(folder: Path, random: np.random.Generator) -> None:
    folder = folder / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, number in (("train", 200), ("t10k", NUM_TEST)):
        labels = np.arange(number, dtype=np.uint8) % 10
        for values, what in ((_images(random, number, 28, 28), "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape)
            (folder / f"{part}-{what}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))


def _write_svhn(folder: Path, random: np.random.Generator) -> None:
    folder = folder / "svhn"
    folder.mkdir(parents=True)
    for part, number in (("train", 200), ("test", NUM_TEST)):
        labels = np.arange(number, dtype=np.uint8)[:, None] % 10 + 1
        savemat(folder / f"{part}_32x32.mat", {"X": _images(random, 32, 32, 3, number), "y": labels})


def _write_cifar10(folder: Path, random: np.random.Generator) -> None:
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    parts = [(f"data_batch_{part}", 40) for part in range(1, 6)] + [("test_batch", NUM_TEST)]
    for file, number in parts:
        content = {"data": _images(random, number, 3072), "labels": (np.arange(number) % 10).tolist()}
        (folder / file).write_bytes(pickle.dumps(content, 2))


def _write_cifar100(folder: Path, random: np.random.Generator) -> None:
    folder = folder / "cifar-100-python"
    folder.mkdir(parents=True)
    for file, number in (("train", 1000), ("test", NUM_TEST)):
        content = {"data": _images(random, number, 3072), "fine_labels": (np.arange(number) % 100).tolist()}
        (folder / file).write_bytes(pickle.dumps(content, 2))


def _write_mini_imagenet(folder: Path, random: np.random.Generator) -> None:
    """Of ten classes in place of a hundred, because each must have a hundred images."""
    folder = folder / "mini-imagenet"
    folder.mkdir(parents=True)
    for part, classes in (("train", range(6)), ("val", range(6, 8)), ("test", range(8, 10))):
        rows = {f"n{name:08}": [*range(100 * place, 100 * (place + 1))] for place, name in enumerate(classes)}
        content = {"image_data": _images(random, 100 * len(rows), 84, 84, 3), "class_dict": rows}
        (folder / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content, 2))


_WRITERS: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "fashion-mnist": _write_fashion_mnist,
    "svhn": _write_svhn,
    "cifar10": _write_cifar10,
    "cifar100": _write_cifar100,
    "mini-imagenet": _write_mini_imagenet,
}
