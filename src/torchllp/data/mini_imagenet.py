"""Mini-ImageNet: 100 classes of 600 photographs, read from whichever of its three usual forms is there.

It was made for few-shot learning, in three parts of 64, 16 and 20 classes. Here the parts are merged, and each class is
cut into training and test images.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchllp.data.dataset import Dataset, Instances
from torchllp.data.files import data_directory
from torchllp.data.image_cache import SUFFIXES, Images, Source, first_of, load_images
from torchllp.data.image_folder import visible
from torchllp.data.safe_pickle import load_arrays
from torchllp.errors import LLPError
from torchllp.registry import unknown_name

SIDE = 64
NUM_CLASSES, NUM_IMAGES = 100, 60_000
PARTS = ("train", "val", "test")
PICKLES = [f"mini-imagenet-cache-{part}.pkl" for part in PARTS]
TABLES = [f"{part}.csv" for part in PARTS]
SPLITS = {"paper": (80, 20), "500-100": (500, 100)}
"""Training and test images of each class."""

Files = Mapping[str, Sequence[Path]]
"""The image files of each class."""


def load(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False, split: str = "paper") -> Dataset:
    """Mini-ImageNet at 64x64, from ``<data_dir>/mini-imagenet``; the resized images are cached there.

    ``split`` takes of each class, by file name, the first 80 images to train and the next 20 to test (``"paper"``, by
    its word), or the first 500 and the next 100 (``"500-100"``, by its code). ``download`` gets nothing: nobody offers
    one.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    folder = data_directory(data_dir) / "mini-imagenet"
    files, read = find_images(folder)
    images = load_images(folder / f"torchllp-{SIDE}x{SIDE}.npy", files, read, SIDE)
    needed = sum(SPLITS[split])
    for name, number in zip(images.names, images.counts, strict=True):
        if number < needed:
            raise LLPError(f"{folder}: split {split!r} needs {needed} images a class, and {name} has {number}")
    train, test = split_images(images, *SPLITS[split])
    data = Dataset.from_images("mini-imagenet", train, test, class_names=images.names, flip=True)
    return replace(data, warnings=tuple(warnings_of(folder, images)))


def split_images(images: Images, num_train: int, num_test: int) -> tuple[Instances, Instances]:
    """So many training images of each class, and the next ones to test."""
    counts = np.array(images.counts)
    labels = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(labels)) - (counts.cumsum() - counts)[labels]
    pixels = torch.from_numpy(images.pixels)

    def instances(chosen: np.ndarray) -> Instances:
        return Instances(pixels[torch.from_numpy(chosen)], torch.from_numpy(labels[chosen]))

    return instances(place < num_train), instances((place >= num_train) & (place < num_train + num_test))


def warnings_of(folder: Path, images: Images) -> Iterator[str]:
    if (len(images.names), len(images.pixels)) != (NUM_CLASSES, NUM_IMAGES):
        yield (
            f"{folder}: not the whole Mini-ImageNet ({len(images.pixels):,} images of {len(images.names)} classes, "
            f"not {NUM_IMAGES:,} of {NUM_CLASSES})"
        )
    if not isinstance(images.pixels, np.memmap):
        yield f"{folder}: cannot be written, so that the images are decoded anew for each run"


def find_images(folder: Path) -> tuple[Sequence[Path], Callable[[], Mapping[str, Sequence[Source]]]]:
    """All files of the first form that is there (pickles, tables, folders), and what reads the images of each class."""
    pickles = all_or_none(folder, PICKLES)
    if pickles:
        return pickles, lambda: read_pickles(pickles)
    tables = all_or_none(folder, TABLES)
    found = list_tables(folder, tables) if tables else list_folders(folder)
    classes = {name: sorted(found[name], key=lambda path: (path.name, path)) for name in sorted(found)}
    return [*tables, *(path for paths in classes.values() for path in paths)], lambda: classes


def all_or_none(folder: Path, names: Sequence[str]) -> list[Path]:
    """These files of the folder; some without the others would be a data set without some of the classes."""
    there = [folder / name for name in names if (folder / name).is_file()]
    if there and len(there) < len(names):
        missing = next(name for name in names if folder / name not in there)
        raise LLPError(f"{folder / missing}: not there, but {there[0].name} is, and each has classes of its own")
    return there


def list_folders(folder: Path) -> Files:
    """One sub-folder a class, also below ``train``, ``val`` and ``test``."""
    levels = [folder / part for part in PARTS if (folder / part).is_dir()]
    classes = defaultdict(list)
    for class_folder in [path for level in levels or [folder] for path in visible(level) if path.is_dir()]:
        images = [path for path in visible(class_folder) if path.suffix.lower() in SUFFIXES]
        if not images:
            raise LLPError(f"{class_folder}: no image in the folder of this class")
        classes[class_folder.name] += images
    if not classes:
        raise LLPError(
            f"mini-imagenet cannot be downloaded: put it into {folder} as one sub-folder of images a class, as "
            f"{', '.join(PICKLES)}, or as {', '.join(TABLES)} with images/, or say where it is by --data-dir or "
            "TORCHLLP_DATA"
        )
    return classes


def list_tables(folder: Path, tables: Sequence[Path]) -> Files:
    """The images that the tables name, each once."""
    classes, seen, missing = defaultdict(list), {}, []
    for table in tables:
        for row, name, label in read_table(table):
            path, place = folder / "images" / name, f"{table.name}, row {row}"
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise LLPError(f"{table}, row {row}: {name!r} is not inside {folder / 'images'}")
            if path in seen:  # it could be in both parts of the split
                raise LLPError(f"{table}, row {row}: {name!r} is already in {seen[path]}")
            if not path.is_file():
                missing.append(f"{name} ({place})")
            seen[path] = place
            classes[label].append(path)
    if missing:
        raise LLPError(f"{folder / 'images'}: {len(missing):,} missing: {first_of(missing)}")
    return classes


def read_table(table: Path) -> Iterator[tuple[int, str, str]]:
    """Row (the header is row 1), file name and label of each image."""
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LLPError(f"{table}: not a CSV file that can be read ({error})") from error
    if not {"filename", "label"} <= set(columns):
        raise LLPError(f"{table}: needs the columns filename and label, and has {', '.join(columns) or 'none'}")
    if not rows:
        raise LLPError(f"{table}: no rows below the header")
    for number, row in rows:
        for column in ("filename", "label"):
            if not row[column]:
                raise LLPError(f"{table}, row {number}: no {column}")
        yield number, row["filename"], row["label"]


def read_pickles(files: Sequence[Path]) -> Mapping[str, Sequence[np.ndarray]]:
    """The images of each class in the order of its rows."""
    classes = defaultdict(list)
    for file in files:
        content = load_arrays(file)
        check_pickle(file, content)
        for name, rows in content["class_dict"].items():
            classes[name] += [content["image_data"][row] for row in rows]
    return classes


def check_pickle(file: Path, content: Any) -> None:
    """Raise unless there are images and, for each class, rows of them that no other class has."""
    if not isinstance(content, dict) or not {"image_data", "class_dict"} <= content.keys():
        raise LLPError(f"{file}: not a dictionary with image_data and class_dict")
    images, classes = content["image_data"], content["class_dict"]
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[3:] != (3,) or not images.size:
        raise LLPError(f"{file}: image_data is not a uint8 array of shape [number, height, width, 3]")
    if not isinstance(classes, dict) or not classes:
        raise LLPError(f"{file}: class_dict is not a dictionary of classes and their rows")
    seen = set()
    for name, rows in classes.items():
        if not isinstance(name, str) or not isinstance(rows, list | np.ndarray) or not len(rows):
            raise LLPError(f"{file}: class {name!r} of class_dict is not a name with a list of rows")
        for row in rows:
            if not isinstance(row, int | np.integer) or not 0 <= row < len(images) or row in seen:
                raise LLPError(f"{file}: row {row!r} of class {name!r} is not in image_data, or is listed twice")
            seen.add(row)
