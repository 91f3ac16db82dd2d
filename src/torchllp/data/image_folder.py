"""A user's own images: a folder with one sub-folder a group (a bag, or a class), or files that a table names."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchllp.data.image_cache import SUFFIXES, Progress, first_of, load_images
from torchllp.errors import LLPError

MIN_SIDE, MAX_SIDE = 4, 1024


class FolderImages(NamedTuple):
    """Images sorted by group, and by path in each group."""

    pixels: np.ndarray
    """uint8 ``[N, 3, side, side]``; a memory map, unless the folder could not be written to."""
    files: tuple[str, ...]
    """The path of each image in the folder, with forward slashes."""
    groups: tuple[str, ...]
    """For each image the name of its sub-folder."""


def load_folder(folder: Path, side: int, progress: Progress | None = None, *, need_groups: bool = True) -> FolderImages:
    """All images of the sub-folders, each a group, cached in the folder as ``torchllp-<side>x<side>.npy``.

    Images further down belong to the sub-folder as well. What is hidden is left out, and so are files whose suffix is
    not an image's. A link is followed only to a file inside the folder. Images beside the sub-folders are refused,
    unless ``need_groups`` is False: then they are the group ``""``.
    """
    _check(folder, side)
    try:
        groups = _list_groups(folder, need_groups=need_groups)
    except OSError as error:
        raise LLPError(f"{error.filename}: cannot be read ({error.strerror})") from error
    paths = [path for images in groups.values() for path in images]
    images = load_images(folder / f"torchllp-{side}x{side}.npy", paths, lambda: groups, side, progress)
    return FolderImages(
        images.pixels,
        tuple(path.relative_to(folder).as_posix() for path in paths),
        tuple(name for name, images in groups.items() for _ in images),
    )


def load_listed(
    folder: Path, names: Sequence[str], side: int, place: Callable[[int], str], progress: Progress | None = None
) -> np.ndarray:
    """The images ``[N, 3, side, side]`` at these paths inside the folder, in this order; a path may come twice.

    ``place`` says for an index into ``names`` where a user finds that name, such as "rows.csv, row 7, column 'file'".
    Each list has a cache of its own in the folder, so that tables for training and for testing keep theirs;
    those of lists that are no longer used may be deleted.
    """
    _check(folder, side)
    root, missing = Path(os.path.realpath(folder)), []
    for row, name in enumerate(names):
        # no path may hold \0, and to look for it is an error
        if "\0" in name or not _is_inside(root, folder / name):
            raise LLPError(f"{place(row)}: {name!r} is not inside {folder}")
        if not os.path.isfile(folder / name):
            missing.append(f"{name!r} ({place(row)})")
    if missing:
        raise LLPError(f"{folder}: {len(missing):,} missing: {first_of(missing)}")
    paths = [folder / name for name in names]
    key = hashlib.blake2b(json.dumps(list(names)).encode(), digest_size=8).hexdigest()
    return load_images(folder / f"torchllp-{side}x{side}-{key}.npy", paths, lambda: {"": paths}, side, progress).pixels


def visible(folder: Path) -> list[Path]:
    """What is in a folder and not hidden; nothing, if it is no folder."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def _check(folder: Path, side: int) -> None:
    if not MIN_SIDE <= side <= MAX_SIDE:
        raise LLPError(f"images can be made {MIN_SIDE} to {MAX_SIDE} pixels wide, not {side}")
    if not folder.is_dir():
        raise LLPError(f"{folder}: {'not a' if folder.exists() else 'no such'} folder")


def _list_groups(folder: Path, *, need_groups: bool) -> dict[str, list[Path]]:
    """The images of each sub-folder, sorted."""
    there = sorted(visible(folder), key=lambda path: path.name)
    root = Path(os.path.realpath(folder))
    loose = [image for path in there if not path.is_dir() for image in _images_at(path, root)]
    if loose and need_groups:
        names = first_of([path.name for path in loose])
        raise LLPError(f"{folder}: images that are in no sub-folder, {len(loose):,} in all: {names}")
    groups = {"": loose} if loose else {}
    groups |= {path.name: sorted(_images_at(path, root)) for path in there if path.is_dir()}
    if not groups:
        raise LLPError(f"{folder}: no sub-folders, and each would be a group of images")
    empty = [name for name, images in groups.items() if not images]
    if empty:
        raise LLPError(f"{folder}: sub-folders without any image, {len(empty):,} in all: {first_of(empty)}")
    return groups


def _images_at(path: Path, root: Path) -> Iterator[Path]:
    """This image, or all images below this folder."""
    is_folder = path.is_dir()
    if not is_folder and path.suffix.lower() not in SUFFIXES:
        return
    if path.is_symlink() and (is_folder or not _is_inside(root, path)):  # a folder could be one that it is in
        target = os.path.realpath(path)
        raise LLPError(f"{path}: a link to {target}, and only links to files inside {root} are followed")
    if is_folder:
        for below in visible(path):
            yield from _images_at(below, root)
    else:
        yield path


def _is_inside(root: Path, path: Path) -> bool:
    """Whether a path leads into the folder, after all links."""
    return Path(os.path.realpath(path)).is_relative_to(root)
