import os
import pickle
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.datasets

from torchllp.data import cifar
from torchllp.data.dataset import Dataset, Instances
from torchllp.errors import LLPError

RNG = np.random.default_rng(0)
NAMES = {
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    "cifar100": [f"class {label}" for label in range(100)],
}
LOAD: dict[str, Callable[..., Dataset]] = {"cifar10": cifar.load_cifar10, "cifar100": cifar.load_cifar100}
SOURCE = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}
both = pytest.mark.parametrize("name", ["cifar10", "cifar100"])


def python2(value: Any) -> bytes:
    """As Python 2 pickled the original files: protocol 2, text and bytes alike, numpy of that time."""
    match value:
        case dict():
            return b"}(" + b"".join(python2(key) + python2(item) for key, item in value.items()) + b"u"
        case list():
            return b"](" + b"".join(map(python2, value)) + b"e"
        case int():
            return b"J" + struct.pack("<i", value)
        case str():
            return python2(value.encode("latin1"))
        case bytes():
            short = len(value) < 256
            return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value
        case np.ndarray(shape=(rows, columns)):
            start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R(K\1"
            dtype = b"cnumpy\ndtype\nU\2u1K\0K\1\x87R(K\3U\1|NNN" + python2(-1) * 2 + b"K\0tb"
            return (
                start + python2(rows) + python2(columns) + b"\x86" + dtype + b"\x89" + python2(value.tobytes()) + b"tb"
            )
    raise TypeError(value)


def original(value: Any) -> bytes:
    return b"\x80\2" + python2(value) + b"."


def batch(name: str, count: int) -> dict[str, Any]:
    data = RNG.integers(0, 256, (count, 3072), np.uint8)
    fine = RNG.integers(0, len(NAMES[name]), count).tolist()
    labels = (
        {"labels": fine}
        if name == "cifar10"
        else {"coarse_labels": [label // 5 for label in fine], "fine_labels": fine}
    )
    return {"batch_label": "a batch", "filenames": ["a.png"] * count} | labels | {"data": data}


def contents(name: str) -> dict[str, dict[str, Any]]:
    source = SOURCE[name]
    files = {file: batch(name, 4 + number) for number, file in enumerate([*source.train, *source.test])}
    names = {source.class_names: NAMES[name], "num_vis": 3072}
    return files | dict.fromkeys(source.meta, names)


CONTENTS = {name: contents(name) for name in SOURCE}


def write(name: str, root: Path, dump: Callable[[Any], bytes] = original, flat: bool = False) -> Path:
    folder = root if flat else root / SOURCE[name].folder
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in CONTENTS[name].items():
        (folder / file).write_bytes(dump(content))
    return folder


def verify(name: str, data: Dataset) -> None:
    source = SOURCE[name]
    for found, files in ((data.train, source.train), (data.test, source.test)):
        batches = [CONTENTS[name][file] for file in files]
        assert isinstance(found, Instances) and found.labels is not None and found.labels.dtype == torch.int64
        assert found.labels.tolist() == [label for content in batches for label in content[source.labels]]
        rows = np.concatenate([content["data"] for content in batches])
        assert found.inputs.shape == (len(rows), 3, 32, 32) and found.inputs.dtype == torch.uint8
        for channel in range(3):  # 1,024 red, then green, then blue values, each row by row
            plane = rows[:, 1024 * channel : 1024 * (channel + 1)]
            for line in range(32):
                assert np.array_equal(found.inputs[:, channel, line].numpy(), plane[:, 32 * line : 32 * line + 32])
    assert data.class_names == tuple(NAMES[name])
    assert data.name == f"{name} (not the published files, {len(data.train)} training images)"
    assert data.flip and not data.translate


@both
@pytest.mark.parametrize("flat", [False, True])
def test_every_pixel_and_label_is_that_of_the_files(tmp_path: Path, name: str, flat: bool) -> None:
    write(name, tmp_path, flat=flat)
    data = LOAD[name](tmp_path)
    verify(name, data)
    pixels = np.concatenate([CONTENTS[name][file]["data"] for file in SOURCE[name].train]).reshape(-1, 3, 1024) / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2))) and data.std == pytest.approx(pixels.std((0, 2)))


@both
def test_torchvision_reads_the_same(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(name, tmp_path)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    theirs = getattr(torchvision.datasets, name.upper())(tmp_path)
    ours = LOAD[name](tmp_path)
    assert ours.train.labels is not None
    assert np.array_equal(ours.train.inputs.permute(0, 2, 3, 1).numpy(), theirs.data)
    assert ours.train.labels.tolist() == theirs.targets and list(ours.class_names) == theirs.classes


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("keys", ["text", "bytes"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_rewritten_by_python_3(tmp_path: Path, protocol: int, keys: str, order: Any) -> None:
    def dump(content: dict[Any, Any]) -> bytes:
        content = {key: np.asarray(item, order=order) if key == "data" else item for key, item in content.items()}
        if keys == "bytes":
            content = {key.encode(): item for key, item in content.items()}
            content |= {key: [n.encode() for n in item] for key, item in content.items() if key == b"label_names"}
        return pickle.dumps(content, protocol=protocol)

    write("cifar10", tmp_path, dump)
    verify("cifar10", cifar.load_cifar10(tmp_path))


@both
def test_classes_are_numbers_without_the_file_of_names(tmp_path: Path, name: str) -> None:
    folder = write(name, tmp_path)
    for file in SOURCE[name].meta:
        (folder / file).unlink()
    assert LOAD[name](tmp_path).class_names == tuple(str(label) for label in range(len(NAMES[name])))


@both
def test_other_files_than_the_published_ones_are_named_once_each(tmp_path: Path, name: str) -> None:
    folder = write(name, tmp_path)
    warnings = LOAD[name](tmp_path).warnings
    for file, warning in zip(CONTENTS[name], warnings, strict=True):
        assert warning.startswith(f"{folder / file}: not the published file")


@both
def test_checksums_and_folders_are_those_of_torchvision(name: str) -> None:
    source, theirs = SOURCE[name], getattr(torchvision.datasets, name.upper())
    assert source.train == dict(theirs.train_list) and source.test == dict(theirs.test_list)
    assert source.meta == {theirs.meta["filename"]: theirs.meta["md5"]} and source.class_names == theirs.meta["key"]
    assert source.folder == theirs.base_folder


@both
def test_missing_files_say_how_to_get_them(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torchvision.datasets, name.upper())  # a download that nobody asked for would fail
    last = [*SOURCE[name].test][-1]
    (write(name, tmp_path) / last).unlink()
    with pytest.raises(LLPError, match=rf"no {last} in .*{SOURCE[name].folder} or .*--dataset {name} --download"):
        LOAD[name](tmp_path)


@both
def test_only_missing_files_are_downloaded(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(root: Path, **options: object) -> None:
        calls.append((root, options))
        write(name, root)

    monkeypatch.setattr(torchvision.datasets, name.upper(), download)
    for _ in range(2):
        verify(name, LOAD[name](tmp_path, download=True))
    assert calls == [(tmp_path, {"download": True})]


class Call:
    """Pickled as a call of a function, which pickle.load would run."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_nothing_in_a_file_is_executed(tmp_path: Path, protocol: int, file: str) -> None:
    path, trace = write("cifar10", tmp_path) / file, tmp_path / "trace"
    for function, args, name in (
        (os.mkdir, (str(trace),), r"(posix|nt)\.mkdir"),
        (eval, (f"open({str(trace)!r}, 'w')",), r"builtins\.eval"),
        (subprocess.check_call, (["touch", str(trace)],), r"subprocess\.check_call"),
        (np.load, (str(trace),), r"numpy\.load"),
    ):
        content = {"more": Call(function, *args)} | CONTENTS["cifar10"][file]
        path.write_bytes(pickle.dumps(content, protocol=protocol, fix_imports=False))
        with pytest.raises(LLPError, match=rf"{file}: refused, since it asks for {name}, which no array needs"):
            cifar.load_cifar10(tmp_path)
        assert not trace.exists()


def test_bytes_are_never_taken_for_objects(tmp_path: Path) -> None:
    """np.ndarray itself would make an array of Python objects from these addresses, and crash or worse."""
    path = write("cifar10", tmp_path) / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Call(np.ndarray, (1,), "O", b"A" * 8), "labels": [0]}))
    with pytest.raises(LLPError, match="data_batch_1: not a pickle that can be read"):
        cifar.load_cifar10(tmp_path)


def rows(count: int, width: int = 3072) -> np.ndarray:
    return np.zeros((count, width), np.uint8)


WHOLE = original(CONTENTS["cifar10"]["data_batch_2"])
DAMAGED = {
    "empty": (b"", "not a pickle that can be read"),
    "cut in half": (WHOLE[: len(WHOLE) // 2], "not a pickle that can be read"),
    "cut at the end": (WHOLE[:-1], "not a pickle that can be read"),
    "text": (b"<html>404</html>", "not a pickle that can be read"),
    "cut array": (
        WHOLE.replace(python2(5) + python2(3072), python2(6) + python2(3072)),
        "not a pickle that can be read .*cannot reshape",
    ),
    "floats": (
        pickle.dumps({"data": rows(2).astype(float), "labels": [1, 2]}, 2),
        "'data' is float64 of shape 2x3072, not one row of 3072 uint8 values",
    ),
    "list": (original([1, 2]), "holds a list, not a dictionary"),
    "no data": (original({"labels": [1]}), "has no 'data'"),
    "no labels": (original({"data": rows(1), "fine_labels": [1]}), "has no 'labels'"),
    "data of text": (original({"data": "abc", "labels": [1]}), "'data' is no array"),
    "28x28": (
        original({"data": rows(2, 784), "labels": [1, 2]}),
        "'data' is uint8 of shape 2x784, not one row of 3072",
    ),
    "no images": (original({"data": rows(0), "labels": []}), "'data' is uint8 of shape 0x3072, not one row of 3072"),
    "one label": (original({"data": rows(2), "labels": [1]}), "'labels' has 1 labels for 2 images"),
    "labels of text": (original({"data": rows(2), "labels": "ab"}), "'labels' has no list of labels for 2 images"),
    "label 10": (original({"data": rows(2), "labels": [9, 10]}), "'labels' has 10 at row 1, not one of 0 to 9"),
    "label -1": (original({"data": rows(2), "labels": [-1, 1]}), "'labels' has -1 at row 0, not one of 0 to 9"),
    "label a": (original({"data": rows(2), "labels": [3, "a"]}), "'labels' has 'a' at row 1, not one of 0 to 9"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_named(tmp_path: Path, case: str) -> None:
    content, message = DAMAGED[case]
    path = write("cifar10", tmp_path) / "data_batch_2"
    path.write_bytes(content)
    with pytest.raises(LLPError, match=message) as caught:
        cifar.load_cifar10(tmp_path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_any_cut_of_a_file_is_an_error(tmp_path: Path) -> None:
    path = write("cifar10", tmp_path) / "data_batch_2"
    for length in [*range(200), *range(200, len(WHOLE), 997), *range(len(WHOLE) - 5, len(WHOLE))]:
        path.write_bytes(WHOLE[:length])
        with pytest.raises(LLPError):
            cifar.load_cifar10(tmp_path)


def test_the_names_must_be_those_of_all_classes(tmp_path: Path) -> None:
    path = write("cifar10", tmp_path) / "batches.meta"
    for content, message in (
        ({"label_names": ["cat", "dog"]}, "'label_names' is not a list of 10 names"),
        ({"fine_label_names": ["cat"]}, "has no 'label_names'"),
    ):
        path.write_bytes(original(content))
        with pytest.raises(LLPError, match=f"batches.meta: {message}"):
            cifar.load_cifar10(tmp_path)


def test_fine_labels_go_to_99(tmp_path: Path) -> None:
    path = write("cifar100", tmp_path) / "test"
    path.write_bytes(original({"data": rows(2), "fine_labels": [99, 100], "coarse_labels": [1, 1]}))
    with pytest.raises(LLPError, match="test: 'fine_labels' has 100 at row 1, not one of 0 to 99"):
        cifar.load_cifar100(tmp_path)
