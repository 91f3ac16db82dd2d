import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.datasets
from scipy.io import savemat

from torchllp.data import svhn
from torchllp.data.dataset import Instances
from torchllp.errors import LLPError

RNG = np.random.default_rng(0)
IMAGES = {part: RNG.integers(0, 256, (32, 32, 3, count), np.uint8) for part, count in (("train", 20), ("test", 7))}
LABELS = {part: RNG.permutation(images.shape[3]).astype(np.uint8) % 10 + 1 for part, images in IMAGES.items()}


def write(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        write_mat(folder / f"{part}_32x32.mat", X=IMAGES[part], y=LABELS[part][:, None])
    return folder


def write_mat(path: Path, **values: Any) -> None:
    savemat(path, values, do_compression=True)


def check(found: Instances | None, part: str) -> None:
    assert found is not None and found.labels is not None and found.labels.dtype == torch.int64
    assert found.labels.tolist() == [0 if label == 10 else label for label in LABELS[part]]
    assert found.inputs.shape == (IMAGES[part].shape[3], 3, 32, 32)
    for row, image in enumerate(found.inputs.numpy()):
        for channel in range(3):
            assert np.array_equal(image[channel], IMAGES[part][:, :, channel, row])


@pytest.mark.parametrize("place", ["SVHN", "svhn", "."])
def test_every_pixel_and_label_is_that_of_the_files(tmp_path: Path, place: str) -> None:
    write(tmp_path / place)
    data = svhn.load(tmp_path)
    assert 10 in LABELS["train"]
    check(data.train, "train")
    check(data.test, "test")
    assert data.name.startswith("svhn (not the published files, ") and data.translate and not data.flip
    assert data.class_names == tuple("0123456789")
    assert data.mean == pytest.approx(IMAGES["train"].mean((0, 1, 3)) / 255)
    assert data.std == pytest.approx(IMAGES["train"].std((0, 1, 3)) / 255)


def test_torchvision_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.svhn.check_integrity", lambda *_: True)
    theirs = torchvision.datasets.SVHN(write(tmp_path))
    ours = svhn.load(tmp_path).train
    assert ours.labels is not None
    assert np.array_equal(ours.inputs.numpy(), theirs.data) and np.array_equal(ours.labels.numpy(), theirs.labels)


def test_other_files_than_the_published_ones_are_named_once_each(tmp_path: Path) -> None:
    folder = write(tmp_path / "SVHN")
    for file, warning in zip(svhn.PUBLISHED, svhn.load(tmp_path).warnings, strict=True):
        assert warning.startswith(f"{folder / file}: not the published file")


def test_checksums_are_those_of_torchvision() -> None:
    theirs = torchvision.datasets.SVHN.split_list
    assert {theirs[part][1]: theirs[part][2] for part in ("train", "test")} == svhn.PUBLISHED


def test_missing_files_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torchvision.datasets, "SVHN")  # a download that nobody asked for would fail
    (write(tmp_path / "SVHN") / "test_32x32.mat").unlink()
    with pytest.raises(LLPError, match=r"no test_32x32.mat in .*SVHN or .*svhn or .*--dataset svhn --download"):
        svhn.load(tmp_path)


def test_only_missing_files_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(root: Path, **options: object) -> None:
        calls.append((root, options))
        write(root)

    monkeypatch.setattr(torchvision.datasets, "SVHN", download)
    for _ in range(2):
        check(svhn.load(tmp_path, download=True).train, "train")
    assert calls == [(tmp_path, {"split": split, "download": True}) for split in ("train", "test")]


def images(count: int, *size: int) -> np.ndarray:
    return np.zeros((*(size or (32, 32, 3)), count), np.uint8)


WRONG = {
    "no X": ({"y": [[1]]}, "has no 'X'"),
    "no y": ({"X": images(2)}, "has no 'y'"),
    "28x28": ({"X": images(2, 28, 28, 3), "y": [[1], [2]]}, "'X' is uint8 of 28x28x3x2, not uint8 of 32x32x3"),
    "grey": ({"X": images(2, 32, 32), "y": [[1], [2]]}, "'X' is uint8 of 32x32x2, not uint8 of 32x32x3"),
    "floats": ({"X": images(2) / 255, "y": [[1], [2]]}, "'X' is float64 of 32x32x3x2, not uint8"),
    "none": ({"X": images(0), "y": np.zeros((0, 1))}, "'X' is uint8 of 32x32x3x0, not uint8"),
    "one label": ({"X": images(2), "y": [[1]]}, "'y' is int64 of 1, not one number for each of the 2 images"),
    "label 11": ({"X": images(2), "y": [[10], [11]]}, "'y' has 11 at row 1, not one of 1 to 10"),
    "label 0": ({"X": images(2), "y": [[0], [1]]}, "'y' has 0 at row 0, not one of 1 to 10"),
    "label nan": ({"X": images(2), "y": [[1], [np.nan]]}, "'y' has nan at row 1, not one of 1 to 10"),
    "label 1.5": ({"X": images(2), "y": [[1], [1.5]]}, "'y' has 1.5 at row 1, not one of 1 to 10"),
    "cells": ({"X": images(2), "y": np.array([[1], "a"], object)}, "'y' is object of 2, not one number for each"),
    "labels of text": ({"X": images(2), "y": ["ab", "cd"]}, "'y' is <U2 of 2, not one number for each of the 2 images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_contents_are_named(tmp_path: Path, case: str) -> None:
    content, message = WRONG[case]
    path = write(tmp_path) / "test_32x32.mat"
    write_mat(path, **content)
    with pytest.raises(LLPError, match=message) as caught:
        svhn.load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path) / "train_32x32.mat"
    whole = path.read_bytes()
    hdf5 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(400)  # the later format, which is HDF5
    for content in (b"", b"<html>404</html>" * 20, whole[:100], whole[: len(whole) // 2], whole[:-1], hdf5):
        path.write_bytes(content)
        with pytest.raises(LLPError, match=r"train_32x32.mat: not a readable .mat file \(.+\)") as caught:
            svhn.load(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real digits, re-cropped: all test digits and the first 30,000 for training, in the official layout."""
    if "TORCHLLP_DATA" not in os.environ:
        pytest.skip("TORCHLLP_DATA does not say where data is")
    out = tmp_path_factory.mktemp("data") / "SVHN"
    script = Path(os.environ["TORCHLLP_DATA"]) / "SVHN" / "unpack.py"
    subprocess.run([sys.executable, script, out], check=True, capture_output=True)
    return out.parent


def test_real_digits(unpacked: Path) -> None:
    data = svhn.load(unpacked)
    assert data.test is not None and data.train.labels is not None and data.test.labels is not None
    assert data.train.inputs.shape == (30_000, 3, 32, 32) and data.test.inputs.shape == (26_032, 3, 32, 32)
    counts = data.train.labels.bincount(minlength=10).tolist()
    assert counts == [2059, 5695, 4326, 3464, 3085, 2829, 2272, 2294, 1999, 1977]  # not balanced
    assert data.test.labels.bincount().tolist() == [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    assert data.name == "svhn (not the published files, 30,000 training images)"  # in every table
    assert len(data.warnings) == 2 and all("not the published file" in warning for warning in data.warnings)
    assert data.mean == pytest.approx([0.4377, 0.4438, 0.4728], abs=0.02)  # those of all 73,257
