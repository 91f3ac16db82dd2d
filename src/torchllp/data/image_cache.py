"""Images in groups (classes, bags), decoded once to one size and kept beside their files for the next run."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from torchllp.errors import LLPError

VERSION = 1
"""Part of the fingerprint: raise it when the same files become other pixels."""
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""All that Pillow may take a file for: for some others it starts programs."""
BLOCK = 1024
"""Images that are decoded before they are written: what building a cache needs in memory."""
NAMED = 10

Source = Path | np.ndarray
"""An image file, or uint8 pixels ``[height, width, 3]``."""


class Images(NamedTuple):
    """Images sorted by group."""

    pixels: np.ndarray
    """uint8 ``[N, 3, side, side]``; a memory map, unless the cache could not be written."""
    names: tuple[str, ...]
    """Of the groups."""
    counts: tuple[int, ...]
    """Images in each group."""


def load_images(
    cache: Path, files: Sequence[Path], read: Callable[[], Mapping[str, Sequence[Source]]], side: int
) -> Images:
    """The groups that ``read`` gives, as RGB images of one size; from ``cache`` while ``files`` are as they were.

    The images of a group keep their order, the groups are sorted by name. Beside ``cache``, an ``.npy`` file, there is
    a ``.json`` of the same name. Where neither can be written, the images are held in memory.
    """
    fingerprint = _fingerprint(cache.parent, files, side)
    cached = _open_cache(cache, fingerprint, side)
    if cached is not None:
        return cached
    groups = sorted(read().items())
    names, counts = tuple(name for name, _ in groups), tuple(len(images) for _, images in groups)
    sources = [source for _, images in groups for source in images]
    facts = {"fingerprint": fingerprint, "names": names, "counts": counts}
    try:
        _write_cache(cache, facts, decode_images(sources, side), (len(sources), 3, side, side))
        pixels = np.load(cache, mmap_mode="c")  # torch takes no read-only array
    except OSError:  # of the cache: decoding raises none
        pixels = np.concatenate(list(decode_images(sources, side)))
    return Images(pixels, names, counts)


def decode_images(sources: Sequence[Source], side: int) -> Iterator[np.ndarray]:
    """Blocks ``[n, 3, side, side]`` of the images in order; at the end one error names all that are broken."""
    broken: list[Source] = []
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(sources), BLOCK):
            block = sources[start : start + BLOCK]
            images = list(pool.map(lambda source: decode_image(source, side), block))
            broken += [source for source, image in zip(block, images, strict=True) if image is None]
            if not broken:
                yield np.stack([image for image in images if image is not None])
    if broken:
        raise LLPError(f"images that cannot be read, {len(broken):,} in all: {first_of(broken)}")


def decode_image(source: Source, side: int) -> np.ndarray | None:
    """One RGB image ``[3, side, side]``, or None if it is broken."""
    try:
        with (
            Image.fromarray(source) if isinstance(source, np.ndarray) else Image.open(source, formats=FORMATS) as image
        ):
            resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    except Exception:  # Pillow raises a dozen kinds for a damaged file
        return None
    return np.asarray(resized).transpose(2, 0, 1)


def first_of(names: Sequence[object]) -> str:
    """A list that stays readable when everything is wrong.

    >>> first_of(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(map(str, names[:NAMED])) + more


def _fingerprint(root: Path, files: Iterable[Path], side: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {side}".encode())
    for file in files:
        try:
            found = file.stat()
            state = f"{found.st_size} {found.st_mtime_ns}"
        except OSError:
            state = "unreadable"  # decoding names it with all the others
        digest.update(f"\n{os.path.relpath(file, root)!r} {state}".encode())
    return digest.hexdigest()


def _open_cache(cache: Path, fingerprint: str, side: int) -> Images | None:
    """The cache, if it is whole and of these files."""
    try:
        facts = json.loads(cache.with_suffix(".json").read_text(encoding="utf-8"))
        if facts["fingerprint"] != fingerprint:
            return None
        pixels = np.load(cache, mmap_mode="c")
        if pixels.dtype != np.uint8 or pixels.shape != (sum(facts["counts"]), 3, side, side):
            return None
        return Images(pixels, tuple(facts["names"]), tuple(facts["counts"]))
    except (OSError, EOFError, ValueError, TypeError, KeyError):  # not there, or damaged by others
        return None


def _write_cache(cache: Path, facts: Mapping[str, Any], blocks: Iterable[np.ndarray], shape: tuple[int, ...]) -> None:
    """Write both files so that the facts are there only while the whole of their pixels is."""
    facts_path = cache.with_suffix(".json")
    with tempfile.TemporaryDirectory(prefix=".torchllp-", dir=cache.parent) as directory:  # each process its own
        new_pixels, new_facts = Path(directory) / cache.name, Path(directory) / facts_path.name
        with open(new_pixels, "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())
        new_facts.write_text(json.dumps(facts), encoding="utf-8")
        facts_path.unlink(missing_ok=True)
        os.replace(new_pixels, cache)
        os.replace(new_facts, facts_path)
