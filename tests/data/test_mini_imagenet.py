import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchllp import load_dataset
from torchllp.data import image_cache
from torchllp.data.dataset import Dataset
from torchllp.data.mini_imagenet import SPLITS, load
from torchllp.errors import LLPError

PARTS = ("train", "val", "test")
CLASSES = {"n03": "train", "n01": "train", "n04": "val", "n02": "test"}
"""Each class in the part that few-shot learning gives it."""
PER_CLASS = 7
PAPER = SPLITS["paper"]

Pixels = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def small_paper_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five images to train and two to test, which few images are enough for."""
    monkeypatch.setitem(SPLITS, "paper", (5, 2))


@pytest.fixture
def pixels() -> Pixels:
    """Images of each class in the order of their names."""
    generator = np.random.default_rng(0)
    return {name: generator.integers(0, 256, (PER_CLASS, 84, 84, 3), dtype=np.uint8) for name in CLASSES}


def file_names(name: str, number: int) -> list[tuple[int, str]]:
    """Row and file name, in an order that is not theirs."""
    return [(row, f"{name}{row:08}.png") for row in reversed(range(number))]


def write_folders(root: Path, pixels: Pixels) -> None:
    for name, images in pixels.items():
        (root / name).mkdir(parents=True)
        for row, file in file_names(name, len(images)):
            Image.fromarray(images[row]).save(root / name / file)


def write_levels(root: Path, pixels: Pixels) -> None:
    for name, images in pixels.items():
        write_folders(root / CLASSES[name], {name: images})


def write_pickles(root: Path, pixels: Pixels, protocol: int = 2) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        chosen = {name: images for name, images in pixels.items() if CLASSES[name] == part}
        start, rows = 0, {}
        for name, images in chosen.items():
            rows[name] = list(range(start, start + len(images)))
            start += len(images)
        content = {"image_data": np.concatenate(list(chosen.values())), "class_dict": rows}
        (root / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content, protocol))


def write_tables(root: Path, pixels: Pixels) -> None:
    (root / "images").mkdir(parents=True)
    for part in PARTS:
        lines = ["filename,label"]
        for name, images in pixels.items():
            for row, file in file_names(name, len(images)) if CLASSES[name] == part else []:
                Image.fromarray(images[row]).save(root / "images" / file)
                lines.append(f"{file},{name}")
        (root / f"{part}.csv").write_text("\n".join(lines) + "\n")


FORMS = {"folders": write_folders, "levels": write_levels, "pickles": write_pickles, "tables": write_tables}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[Path, Pixels], None]:
    return FORMS[request.param]


def resized(images: np.ndarray) -> torch.Tensor:
    small = [np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BILINEAR)) for image in images]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2)


def assert_same(first: Dataset, second: Dataset) -> None:
    assert first.test is not None and second.test is not None
    for one, other in ((first.train, second.train), (first.test, second.test)):
        assert torch.equal(one.inputs, other.inputs)
        assert one.labels is not None and other.labels is not None and torch.equal(one.labels, other.labels)
    assert first.class_names == second.class_names and first.mean == second.mean and first.std == second.std


def refusal(data_dir: Path, **options: str) -> str:
    """The one sentence, which leaves nothing half-written."""
    with pytest.raises(LLPError) as caught:
        load(data_dir, **options)  # pyrefly: ignore
    assert not list(data_dir.glob("**/*torchllp*"))
    return str(caught.value)


def test_each_form_gives_these_pixels_in_this_split(
    tmp_path: Path, pixels: Pixels, form: Callable[[Path, Pixels], None]
) -> None:
    form(tmp_path / "mini-imagenet", pixels)
    data = load(tmp_path)
    assert data.name == "mini-imagenet" and data.class_names == ("n01", "n02", "n03", "n04")
    assert data.test is not None and data.train.labels is not None and data.test.labels is not None
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert data.test.labels.tolist() == [0] * 2 + [1] * 2 + [2] * 2 + [3] * 2
    names = sorted(pixels)
    assert torch.equal(data.train.inputs, torch.cat([resized(pixels[name][:5]) for name in names]))
    assert torch.equal(data.test.inputs, torch.cat([resized(pixels[name][5:]) for name in names]))
    assert data.flip and not data.translate and data.input_shape == (3, 64, 64)
    scaled = data.train.inputs.double() / 255
    assert torch.allclose(torch.tensor(data.mean).double(), scaled.mean((0, 2, 3)))


@pytest.mark.parametrize(("split", "num_train", "num_test"), [("paper", 80, 20), ("500-100", 500, 100)])
def test_the_two_known_splits(tmp_path: Path, split, num_train: int, num_test: int, monkeypatch) -> None:
    """The first names train, the next ones test, the rest is in neither part. One cache serves both splits."""
    monkeypatch.setitem(SPLITS, "paper", PAPER)
    generator = np.random.default_rng(0)
    numbers = {"n03": 600, "n04": 603, "n02": 600}
    pixels = {name: generator.integers(0, 256, (number, 2, 2, 3), dtype=np.uint8) for name, number in numbers.items()}
    write_pickles(tmp_path / "mini-imagenet", pixels)
    data = load(tmp_path, split=split)
    assert data.test is not None and data.test.labels is not None and data.train.labels is not None
    assert data.train.labels.bincount().tolist() == [num_train] * 3
    assert data.test.labels.bincount().tolist() == [num_test] * 3
    for label, name in enumerate(sorted(pixels)):
        train, test = np.split(pixels[name][: num_train + num_test], [num_train])
        assert torch.equal(data.train.inputs[data.train.labels == label], resized(train))
        assert torch.equal(data.test.inputs[data.test.labels == label], resized(test))


def test_same_class_in_two_parts_is_merged_by_name(tmp_path: Path, pixels: Pixels) -> None:
    write_folders(tmp_path / "plain" / "mini-imagenet", pixels)
    root = tmp_path / "levels" / "mini-imagenet"
    for name in pixels:
        for row, file in file_names(name, PER_CLASS):
            (root / PARTS[row % 3] / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[name][row]).save(root / PARTS[row % 3] / name / file)
    assert_same(load(tmp_path / "plain"), load(tmp_path / "levels"))


@pytest.mark.parametrize("protocol", [0, 4, 5])
def test_pickles_of_other_protocols(tmp_path: Path, pixels: Pixels, protocol: int) -> None:
    for number in (2, protocol):
        write_pickles(tmp_path / str(number) / "mini-imagenet", pixels, number)
    assert_same(load(tmp_path / "2"), load(tmp_path / str(protocol)))


def test_order_of_rows_is_kept_in_pickles(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_pickles(root, pixels)
    path = root / "mini-imagenet-cache-test.pkl"
    content = {"image_data": pixels["n02"], "class_dict": {"n02": [6, 2, 4, 0, 1, 5, 3]}}
    path.write_bytes(pickle.dumps(content))
    data = load(tmp_path)
    assert data.test is not None
    assert torch.equal(data.train.inputs[5:10], resized(pixels["n02"][[6, 2, 4, 0, 1]]))
    assert torch.equal(data.test.inputs[2:4], resized(pixels["n02"][[5, 3]]))


def test_what_is_no_image_is_not_read(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_folders(root, pixels)
    first = load(tmp_path)
    (root / "n01" / ".n0100000000.png").write_bytes(b"hidden")
    (root / "n01" / "boxes.txt").write_text("0 0 1 1")
    (root / ".thumbnails").mkdir()
    (root / "README.md").write_text("about")
    assert_same(first, load(tmp_path))


def test_table_with_more_columns_and_a_byte_order_mark(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_tables(root, pixels)
    first = load(tmp_path)
    lines = (root / "val.csv").read_text().splitlines()
    (root / "val.csv").write_text("\ufeff" + "\r\n".join(f"x,{line}" for line in lines), encoding="utf-8")
    assert_same(first, load(tmp_path))


def test_by_name_and_from_the_environment(tmp_path: Path, pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pickles(tmp_path / "mini-imagenet", pixels)
    monkeypatch.setenv("TORCHLLP_DATA", str(tmp_path))
    assert_same(load_dataset("mini-imagenet"), load_dataset("mini-imagenet", str(tmp_path), split="paper"))


def test_cache_is_used(
    tmp_path: Path, pixels: Pixels, form: Callable[[Path, Pixels], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "mini-imagenet"
    form(root, pixels)
    first = load(tmp_path)
    for path in root.rglob("*"):  # other content of the same size and time
        if path.suffix in (".png", ".pkl"):
            found = path.stat()
            path.write_bytes(bytes(found.st_size))
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    again = load(tmp_path)
    assert_same(first, again)
    again.train.inputs.zero_()  # the instances are the caller's own
    assert_same(first, load(tmp_path))
    monkeypatch.setattr(image_cache, "decode_image", lambda *_: None)
    assert_same(first, load(tmp_path))


def test_cache_is_rebuilt_after_a_change(tmp_path: Path, pixels: Pixels, form: Callable[[Path, Pixels], None]) -> None:
    root = tmp_path / "mini-imagenet"
    form(root, pixels)
    first = load(tmp_path)
    changed = {name: 255 - images for name, images in pixels.items()}
    form(tmp_path / "new", changed)
    for path in (tmp_path / "new").rglob("*"):
        if path.is_file():
            path.replace(root / path.relative_to(tmp_path / "new"))
    data = load(tmp_path)
    assert not torch.equal(first.train.inputs, data.train.inputs)
    assert torch.equal(data.train.inputs[:5], resized(changed["n01"][:5]))


def test_other_labels_in_a_table_rebuild_the_cache(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_tables(root, pixels)
    load(tmp_path)
    (root / "val.csv").write_text((root / "val.csv").read_text().replace(",n04", ",bird"))
    assert load(tmp_path).class_names == ("bird", "n01", "n02", "n03")


def test_part_of_the_data_is_a_warning(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_pickles(root, pixels)
    part = f"{root}: not the whole Mini-ImageNet (28 images of 4 classes, not 60,000 of 100)"
    assert load(tmp_path).warnings == (part,)
    (root / "torchllp-64x64.npy").unlink()
    (root / "torchllp-64x64.npy").mkdir()
    slow = f"{root}: cannot be written, so that the images are decoded anew for each run"
    assert load(tmp_path).warnings == (part, slow)


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_no_data(tmp_path: Path, download: bool, exists: bool) -> None:
    root = tmp_path / "mini-imagenet"
    if exists:
        root.mkdir()
    with pytest.raises(LLPError) as caught:
        load(tmp_path, download=download)
    assert str(caught.value) == (
        f"mini-imagenet cannot be downloaded: put it into {root} as one sub-folder of images a class, as "
        "mini-imagenet-cache-train.pkl, mini-imagenet-cache-val.pkl, mini-imagenet-cache-test.pkl, or as train.csv, "
        "val.csv, test.csv with images/, or say where it is by --data-dir or TORCHLLP_DATA"
    )


def test_unknown_split(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, split="500-10") == "unknown split '500-10': did you mean '500-100'? (known: 500-100, paper)"
    )


def test_too_few_images_in_a_class(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_folders(root, {**pixels, "n02": pixels["n02"][:1]})
    for split, needed, name, number in (("paper", 7, "n02", 1), ("500-100", 600, "n01", PER_CLASS)):
        with pytest.raises(LLPError) as caught:
            load(tmp_path, split=split)
        assert str(caught.value) == f"{root}: split {split!r} needs {needed} images a class, and {name} has {number}"


def test_class_folder_without_images(tmp_path: Path, pixels: Pixels) -> None:
    write_folders(tmp_path / "mini-imagenet", pixels)
    empty = tmp_path / "mini-imagenet" / "n09"
    empty.mkdir()
    assert refusal(tmp_path) == f"{empty}: no image in the folder of this class"


@pytest.mark.parametrize("form", ["folders", "tables"])
def test_broken_images_are_named_together(tmp_path: Path, pixels: Pixels, form: str) -> None:
    root = tmp_path / "mini-imagenet"
    FORMS[form](root, pixels)
    paths = sorted(root.rglob("*.png"))[::9]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-60])
    assert refusal(tmp_path) == f"images that cannot be read, 4 in all: {', '.join(map(str, paths))}"


@pytest.mark.parametrize("form", ["pickles", "tables"])
def test_missing_part(tmp_path: Path, pixels: Pixels, form: str) -> None:
    root = tmp_path / "mini-imagenet"
    FORMS[form](root, pixels)
    path = next(root.glob("*val*"))
    path.unlink()
    there = path.name.replace("val", "train")
    assert refusal(tmp_path) == f"{path}: not there, but {there} is, and each has classes of its own"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": needs the columns filename and label, and has none"),
        (b"file,label\na.png,n01\n", ": needs the columns filename and label, and has file, label"),
        (b"filename,label\n", ": no rows below the header"),
        (b"filename,label\nn0400000000.png,n04\nn0400000001.png\n", ", row 3: no label"),
        (b"filename,label\n,n04\n", ", row 2: no filename"),
        (b"filename,label\n../train.csv,n04\n", ", row 2: '../train.csv' is not inside IMAGES"),
        (b"filename,label\nn04/../../a.png,n04\n", ", row 2: 'n04/../../a.png' is not inside IMAGES"),
        (b"filename,label\n/etc/passwd,n04\n", ", row 2: '/etc/passwd' is not inside IMAGES"),
        (b"filename,label\nn0100000000.png,n04\n", ", row 2: 'n0100000000.png' is already in train.csv, row 15"),
        (b"filename,label\n\xff\xfe.png,n04\n", ": not a CSV file that can be read (.*)"),
    ],
)
def test_bad_table(tmp_path: Path, pixels: Pixels, content: bytes, message: str) -> None:
    root = tmp_path / "mini-imagenet"
    write_tables(root, pixels)
    (root / "val.csv").write_bytes(content)
    expected = re.escape(f"{root / 'val.csv'}{message}".replace("IMAGES", str(root / "images"))).replace(r"\.\*", ".*")
    assert re.fullmatch(expected, refusal(tmp_path))


def test_images_of_a_table_that_are_missing_are_named_together(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_tables(root, pixels)
    for name in ("n0300000006.png", "n0200000005.png"):
        (root / "images" / name).unlink()
    missing = "n0300000006.png (train.csv, row 2), n0200000005.png (test.csv, row 3)"
    assert refusal(tmp_path) == f"{root / 'images'}: 2 missing: {missing}"


IMAGES = np.zeros((3, 4, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "not a dictionary with image_data and class_dict"),
        ({"image_data": IMAGES}, "not a dictionary with image_data and class_dict"),
        *[
            (
                {"image_data": images, "class_dict": {}},
                "image_data is not a uint8 array of shape [number, height, width, 3]",
            )
            for images in ("text", IMAGES[0], IMAGES[:0], IMAGES[..., :1], IMAGES.astype(np.float32))
        ],
        ({"image_data": IMAGES, "class_dict": {}}, "class_dict is not a dictionary of classes and their rows"),
        ({"image_data": IMAGES, "class_dict": [0, 1]}, "class_dict is not a dictionary of classes and their rows"),
        *[
            (
                {"image_data": IMAGES, "class_dict": {"n04": rows}},
                "class 'n04' of class_dict is not a name with a list of rows",
            )
            for rows in (3, [], "012")
        ],
        ({"image_data": IMAGES, "class_dict": {7: [0]}}, "class 7 of class_dict is not a name with a list of rows"),
        *[
            (
                {"image_data": IMAGES, "class_dict": {"n04": [0, row]}},
                f"row {row!r} of class 'n04' is not in image_data, or is listed twice",
            )
            for row in (3, -1, 0, "1", 1.0, None)
        ],
    ],
)
def test_bad_pickle(tmp_path: Path, pixels: Pixels, content: object, message: str) -> None:
    root = tmp_path / "mini-imagenet"
    write_pickles(root, pixels)
    path = root / "mini-imagenet-cache-val.pkl"
    path.write_bytes(pickle.dumps(content))
    assert refusal(tmp_path) == f"{path}: {message}"


def test_truncated_and_harmful_pickles(tmp_path: Path, pixels: Pixels) -> None:
    root = tmp_path / "mini-imagenet"
    write_pickles(root, pixels)
    path = root / "mini-imagenet-cache-test.pkl"
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(tmp_path).startswith(f"{path}: not a pickle that can be read (")
    path.write_bytes(pickle.dumps({"image_data": IMAGES, "class_dict": {"n02": os.system}}))
    assert refusal(tmp_path) == f"{path}: refused, since it asks for posix.system, which no array needs"
