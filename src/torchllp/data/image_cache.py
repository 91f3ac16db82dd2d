"""Images in groups (classes, bags), decoded once to one size and kept beside their files for the next run."""

import hashlib
import json
import mmap
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from torchllp.errors import LLPError

VERSION = 2
"""Part of the fingerprint: raise it when the same files become other pixels."""
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""All that Pillow may take a file for: for some others it starts programs."""
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}
"""What the names of image files end with, in small letters."""
BLOCK = 64
"""Images that are decoded before they are written: what building a cache needs in memory, and a step of its bar."""
NAMED = 10
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What the orientation of a photograph asks for. Pillow's own exif_transpose also writes the other facts of the camera
anew, and fails for some."""

Source = Path | np.ndarray
"""An image file, or uint8 pixels ``[height, width, 3]``."""
Progress = Callable[[int, int], None]
"""Takes how many are done, and how many there are."""


class Images(NamedTuple):
    """Images sorted by group."""

    pixels: np.ndarray
    """uint8 ``[N, 3, side, side]``; a memory map, unless the cache could not be written."""
    names: tuple[str, ...]
    """Of the groups."""
    counts: tuple[int, ...]
    """Images in each group."""


def load_images(
    cache: Path,
    files: Sequence[Path],
    read: Callable[[], Mapping[str, Sequence[Source]]],
    side: int,
    progress: Progress | None = None,
) -> Images:
    """The groups that ``read`` gives, as RGB images of one size; from ``cache`` while ``files`` are as they were.

    The images of a group keep their order, the groups are sorted by name. Beside ``cache``, an ``.npy`` file, there is
    a ``.json`` of the same name. Where neither can be written, the images are held in memory. ``progress`` is called
    only while images are decoded.
    """
    fingerprint = _fingerprint(cache.parent, files, side)
    cached = _open_cache(cache, fingerprint, side)
    if cached is not None:
        return cached
    groups = sorted(read().items())
    names, counts = tuple(name for name, _ in groups), tuple(len(images) for _, images in groups)
    sources = [source for _, images in groups for source in images]
    facts = {"fingerprint": fingerprint, "names": names, "counts": counts}
    shape = (len(sources), 3, side, side)
    try:
        _write_cache(cache, facts, decode_images(sources, side, progress), shape)
        pixels = _map(cache)
    except OSError:  # of the cache: decoding raises none
        pixels = np.empty(shape, dtype=np.uint8)
        start = 0
        for block in decode_images(sources, side, progress):
            pixels[start : start + len(block)] = block
            start += len(block)
    return Images(pixels, names, counts)


def decode_images(sources: Sequence[Source], side: int, progress: Progress | None = None) -> Iterator[np.ndarray]:
    """Blocks ``[n, 3, side, side]`` of the images in order; at the end one error names all that are broken."""
    broken: list[str] = []
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(sources), BLOCK):
            block = sources[start : start + BLOCK]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's, which do not say of which file
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                decoded = list(pool.map(lambda source: _decode_or_name(source, side), block))
            broken += [name for name in decoded if isinstance(name, str)]
            if progress is not None:
                progress(start + len(block), len(sources))
            if not broken:
                yield np.stack([image for image in decoded if not isinstance(image, str)])
    if broken:
        broken = list(dict.fromkeys(broken))  # a file may be listed twice
        raise LLPError(f"images that cannot be read, {len(broken):,} in all: {', '.join(map(str, broken))}")


def _decode_or_name(source: Source, side: int) -> np.ndarray | str:
    """The image or, if it is broken, its name."""
    try:
        return decode_image(source, side)
    except LLPError as error:
        return f"{source} ({error})"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return f"{source} (more than {Image.MAX_IMAGE_PIXELS:,} pixels)"
    except Exception:  # Pillow raises a dozen kinds for a damaged file
        return str(source)


def decode_image(source: Source, side: int) -> np.ndarray:
    """One RGB image ``[3, side, side]``, turned the way up that its camera says; of several frames the first."""
    with Image.fromarray(source) if isinstance(source, np.ndarray) else Image.open(source, formats=FORMATS) as image:
        resized = _to_rgb(image).resize((side, side), Image.Resampling.BILINEAR)
        turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return np.asarray(resized if turn is None else resized.transpose(turn)).transpose(2, 0, 1)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Grey of 16 bits keeps its upper 8, as Pillow does for colours; what is transparent shows white, as on a page.

    >>> half = np.array([[0, 32768, 65535]], dtype=np.uint16)
    >>> np.asarray(_to_rgb(Image.fromarray(half)))[0, :, 0].tolist()
    [0, 128, 255]
    >>> _to_rgb(Image.new("RGBA", (1, 1), (0, 0, 255, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode.startswith("I") or image.mode == "F":  # convert would make all above 255 white
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise LLPError("its values have no known range")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


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
        pixels = _map(cache)
        if pixels.dtype != np.uint8 or pixels.shape != (sum(facts["counts"]), 3, side, side):
            return None
        return Images(pixels, tuple(facts["names"]), tuple(facts["counts"]))
    except (OSError, EOFError, ValueError, TypeError, KeyError):  # not there, or damaged by others
        return None


def _map(cache: Path) -> np.ndarray:
    """The array of an ``.npy`` file that may be larger than memory; what is written to it is not written to the file.

    It can be written to, since torch takes no read-only array.
    """
    if sys.platform != "linux":
        return np.load(cache, mmap_mode="c")
    found = np.load(cache, mmap_mode="r")
    reserve_nothing = getattr(mmap, "MAP_NORESERVE", 0x4000)  # else a map of more than the memory is refused
    with open(cache, "rb") as file:
        memory = mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE | reserve_nothing, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    return np.ndarray(found.shape, found.dtype, memory, found.offset).view(np.memmap)


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
