import gzip
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets

from torchllp.data import fashion_mnist
from torchllp.data.dataset import Instances
from torchllp.errors import LLPError

RNG = np.random.default_rng(0)
IMAGES = {"train": RNG.integers(0, 256, (20, 28, 28), np.uint8), "t10k": RNG.integers(0, 256, (7, 28, 28), np.uint8)}
LABELS = {"train": RNG.permutation(20).astype(np.uint8) % 10, "t10k": np.arange(3, 10, dtype=np.uint8)}

needs_data = pytest.mark.skipif("TORCHLLP_DATA" not in os.environ, reason="TORCHLLP_DATA does not say where data is")


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def write(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", IMAGES[part])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", LABELS[part])
    return folder


def check(found: Instances | None, part: str) -> None:
    assert found is not None and found.labels is not None and found.labels.dtype == torch.int64
    assert np.array_equal(found.inputs.numpy(), IMAGES[part][:, None])
    assert found.labels.tolist() == LABELS[part].tolist()


@pytest.mark.parametrize("place", ["FashionMNIST/raw", "."])
def test_every_pixel_and_label_is_that_of_the_files(tmp_path: Path, place: str) -> None:
    before = sorted(write(tmp_path / place).iterdir())
    data = fashion_mnist.load(tmp_path)
    check(data.train, "train")
    check(data.test, "t10k")
    assert data.name == f"fashion-mnist (not the published files, {len(data.train)} training images)"
    assert data.flip and not data.translate
    assert data.class_names == tuple(torchvision.datasets.FashionMNIST.classes)
    assert data.mean == pytest.approx([IMAGES["train"].mean() / 255])
    assert data.std == pytest.approx([IMAGES["train"].std() / 255])
    assert sorted((tmp_path / place).iterdir()) == before  # nothing is unpacked beside them


def test_other_files_than_the_published_ones_are_named_once_each(tmp_path: Path) -> None:
    folder = write(tmp_path / "FashionMNIST" / "raw")
    warnings = fashion_mnist.load(tmp_path).warnings
    assert len(warnings) == 4
    for file, warning in zip(fashion_mnist.PUBLISHED, warnings, strict=True):
        assert warning.startswith(f"{folder / file}: not the published file")


def test_checksums_are_those_of_torchvision() -> None:
    assert list(fashion_mnist.PUBLISHED.items()) == torchvision.datasets.FashionMNIST.resources


def test_missing_files_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torchvision.datasets, "FashionMNIST")  # a download that nobody asked for would fail
    with pytest.raises(LLPError, match=r"no train-images-idx3-ubyte.gz in .*raw or .*--dataset fashion-mnist"):
        fashion_mnist.load(tmp_path)


def test_only_missing_files_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(root: Path, **options: object) -> None:
        calls.append((root, options))
        write(root / "FashionMNIST" / "raw")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", download)
    for _ in range(2):
        check(fashion_mnist.load(tmp_path, download=True).train, "train")
    assert calls == [(tmp_path, {"download": True})]


GZ = gzip.compress(struct.pack(">4I", 0x0803, 20, 28, 28) + IMAGES["train"].tobytes())
DAMAGED = {
    "truncated": (GZ[:-2000], r"not a readable gzip file"),
    "not gzip": (b"PK\3\4 something else", r"not a readable gzip file"),
    "flipped bits": (GZ[:5000] + bytes(b ^ 255 for b in GZ[5000:5100]) + GZ[5100:], r"not a readable gzip file"),
    "empty": (b"", r"not an idx file .* has 0 bytes"),
    "labels": (gzip.compress(struct.pack(">2I", 0x0801, 20) + bytes(20)), r"not an idx file .* 0x00000801"),
    "header only": (gzip.compress(struct.pack(">2I", 0x0803, 20)), r"not an idx file .* 8 bytes"),
    "floats": (gzip.compress(struct.pack(">4I", 0x0D03, 20, 28, 28) + bytes(15680)), r"not an idx file .* 0x00000d03"),
    "short": (gzip.compress(struct.pack(">4I", 0x0803, 20, 28, 28) + bytes(9)), r"says 20x28x28 values, and it has 9$"),
    "long": (gzip.compress(struct.pack(">4I", 0x0803, 1, 28, 28) + bytes(785)), r"says 1x28x28 values, and it has 785"),
    "none": (gzip.compress(struct.pack(">4I", 0x0803, 0, 28, 28)), r"says 0x28x28 values, and it has 0"),
    "other size": (gzip.compress(struct.pack(">4I", 0x0803, 20, 8, 9) + bytes(1440)), r"images of 8x9, not 28x28"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_named(tmp_path: Path, case: str) -> None:
    content, message = DAMAGED[case]
    path = write(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(LLPError, match=message) as caught:
        fashion_mnist.load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")


def test_labels_must_fit_images_and_classes(tmp_path: Path) -> None:
    path = write(tmp_path) / "t10k-labels-idx1-ubyte.gz"
    write_idx(path, LABELS["t10k"][:5])
    with pytest.raises(LLPError, match=r"t10k-labels\S+: 5 labels for the 7 images of t10k-images-idx3-ubyte.gz"):
        fashion_mnist.load(tmp_path)
    write_idx(path, np.array([0, 9, 10, 3, 4, 200, 1], np.uint8))
    with pytest.raises(LLPError, match=r"t10k-labels\S+: label 10 at row 2, not one of 0 to 9"):
        fashion_mnist.load(tmp_path)


@needs_data
def test_real_files_are_as_torchvision_reads_them(tmp_path: Path) -> None:
    folder = Path(os.environ["TORCHLLP_DATA"]) / "FashionMNIST"
    before = sorted(folder.rglob("*"))
    data = fashion_mnist.load()
    assert sorted(folder.rglob("*")) == before
    assert data.warnings == ()
    assert data.mean == pytest.approx([0.2860], abs=1e-4) and data.std == pytest.approx([0.3530], abs=1e-4)

    shutil.copytree(folder, tmp_path / "FashionMNIST", copy_function=shutil.copyfile)
    (tmp_path / "FashionMNIST" / "raw").chmod(0o755)  # torchvision unpacks beside the files
    for found, train in ((data.train, True), (data.test, False)):
        theirs = torchvision.datasets.FashionMNIST(tmp_path, train=train, download=True)
        assert found is not None and found.labels is not None
        assert found.inputs.shape == (60_000 if train else 10_000, 1, 28, 28)
        assert found.labels.bincount().tolist() == [6_000 if train else 1_000] * 10
        assert torch.equal(found.inputs[:, 0], theirs.data) and torch.equal(found.labels, theirs.targets)
