import json
import os
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from torchllp.data import image_cache
from torchllp.data.image_cache import Images, Progress, Source, decode_image, load_images
from torchllp.errors import LLPError

SIDE = 8


@pytest.fixture
def groups(tmp_path: Path) -> dict[str, list[Path]]:
    """Two groups of images of several sizes."""
    generator = np.random.default_rng(0)
    found: dict[str, list[Path]] = {"b": [], "a": []}
    for number, name in enumerate("bbbaa"):
        path = tmp_path / f"{name}{number}.png"
        Image.fromarray(generator.integers(0, 256, (9 + number, 14, 3), dtype=np.uint8)).save(path)
        found[name].append(path)
    return found


def load(folder: Path, groups: Mapping[str, Sequence[Source]], progress: Progress | None = None) -> Images:
    files = [path for paths in groups.values() for path in paths if isinstance(path, Path)]
    return load_images(folder / "cache.npy", files, lambda: groups, SIDE, progress)


def resized(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def expected(path: Path) -> np.ndarray:
    return resized(Image.open(path))


def never(*_: object) -> None:
    raise AssertionError("decoded again")


def test_groups_are_sorted_and_keep_their_order(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    images = load(tmp_path, groups)
    assert images.names == ("a", "b") and images.counts == (2, 3)
    assert np.array_equal(images.pixels, np.stack([expected(path) for path in groups["a"] + groups["b"]]))
    assert isinstance(images.pixels, np.memmap) and images.pixels.flags.writeable


def test_more_images_than_a_block(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = np.array(load(tmp_path, groups).pixels)
    monkeypatch.setattr(image_cache, "BLOCK", 2)
    monkeypatch.setattr(image_cache, "VERSION", 0)  # another version decodes anew
    assert np.array_equal(load(tmp_path, groups).pixels, whole)


def test_pixels_and_files_become_the_same(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    for path in groups["a"]:
        assert np.array_equal(decode_image(np.asarray(Image.open(path)), SIDE), decode_image(path, SIDE))


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK", "LA"])
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (10, 11, 3), dtype=np.uint8)
    image = Image.fromarray(values).convert("L" if mode in ("L", "LA", "1") else "RGB").convert(mode)
    path = tmp_path / "image.tiff"
    image.save(path)
    decoded = decode_image(path, SIDE)
    assert decoded.shape == (3, SIDE, SIDE) and decoded.dtype == np.uint8
    assert np.array_equal(decoded, resized(image))


@pytest.mark.parametrize("kind", [".png", ".tiff", ".ppm", "big-endian.tiff"])
def test_grey_of_16_bits_keeps_its_contrast(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (SIDE, SIDE)).astype(">u2" if "big" in kind else "<u2")
    path = tmp_path / f"image{kind}"
    Image.fromarray(values).save(path)
    assert np.array_equal(decode_image(path, SIDE), np.stack([values // 256] * 3))


def test_values_without_a_known_range_are_refused(tmp_path: Path) -> None:
    values = np.linspace(0, 1, SIDE * SIDE).reshape(SIDE, SIDE)
    paths = [tmp_path / f"{name}.tiff" for name in ("float", "large", "negative", "fits")]
    for path, image in zip(paths, (values.astype(np.float32), 70_000 * values, -9 * values, 9 * values), strict=True):
        Image.fromarray(image if image.dtype == np.float32 else image.astype(np.int32)).save(path)
    with pytest.raises(LLPError) as caught:
        load(tmp_path, {"a": paths})
    names = ", ".join(f"{path} (its values have no known range)" for path in paths[:3])
    assert str(caught.value) == f"images that cannot be read, 3 in all: {names}"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_what_is_transparent_shows_white(tmp_path: Path, mode: str) -> None:
    """The left half has a colour that nobody sees."""
    grey, options = Image.fromarray(np.repeat(np.uint8([[40, 80]]), SIDE // 2, axis=1).repeat(SIDE, axis=0)), {}
    image = grey.convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(grey.point(lambda value: 0 if value == 40 else 255))
    else:  # one colour stands for nothing
        options["transparency"] = (40, 40, 40) if mode == "RGB" else image.getpixel((0, 0))
    image.save(tmp_path / "image.png", **options)
    decoded = decode_image(tmp_path / "image.png", SIDE)
    assert (decoded[:, :, : SIDE // 2] == 255).all() and (decoded[:, :, SIDE // 2 :] == 80).all()


def test_half_transparent_is_mixed_with_white(tmp_path: Path) -> None:
    Image.new("RGBA", (5, 5), (255, 0, 0, 51)).save(tmp_path / "image.png")
    assert decode_image(tmp_path / "image.png", SIDE)[:, 0, 0].tolist() == [255, 204, 204]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff", "webp"])
def test_photographs_are_the_way_up_that_their_camera_says(tmp_path: Path, kind: str, orientation: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x112] = orientation
    path = tmp_path / f"image.{kind}"
    Image.fromarray(values).save(path, exif=exif)
    upright = resized(ImageOps.exif_transpose(Image.open(path)))
    assert np.abs(decode_image(path, SIDE) - upright.astype(int)).max() <= 1  # rounding: turned after it is resized


def test_damaged_facts_of_the_camera_do_no_harm(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    image, exif = Image.radial_gradient("L").convert("RGB").resize((9, 12)), Image.Exif()
    exif[0x112], exif[0x10F] = 6, "maker"
    whole = exif.tobytes()
    facts = [whole.replace(b"\x01\x0f", b"\x01\x00"), whole[:20], whole[:-9], b"Exif\0\0nothing"]
    paths = [tmp_path / f"{number}.jpg" for number in range(len(facts))]
    for path, content in zip(paths, facts, strict=True):
        image.save(path, exif=content)
    with pytest.raises(Exception, match="not an integer"):  # what Pillow does with the first
        ImageOps.exif_transpose(Image.open(paths[0]))
    recwarn.clear()
    assert load(tmp_path, {"a": paths}).counts == (4,)
    assert not recwarn.list


def test_bombs_are_named_before_they_are_decoded(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Pillow warns of one that is larger than its limit, and refuses one that is twice as large."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 14 * 12)
    groups["a"].append(tmp_path / "bomb.png")
    Image.new("1", (1000, 1000)).save(groups["a"][-1])
    monkeypatch.setattr(Image.Image, "resize", never)
    with pytest.raises(LLPError) as caught:
        load(tmp_path, {"a": [groups["a"][1], groups["a"][2]]})
    names = ", ".join(f"{path} (more than 168 pixels)" for path in groups["a"][1:])
    assert str(caught.value) == f"images that cannot be read, 2 in all: {names}"
    assert not recwarn.list and not (tmp_path / "cache.npy").exists()


def test_second_load_decodes_nothing(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path, groups)
    monkeypatch.setattr(image_cache, "decode_image", never)
    again = load(tmp_path, groups)
    assert np.array_equal(first.pixels, again.pixels) and first[1:] == again[1:]


def test_progress_is_told_of_each_block_and_not_of_a_cache(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "BLOCK", 2)
    told: list[tuple[int, int]] = []
    load(tmp_path, groups, lambda done, total: told.append((done, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]
    load(tmp_path, groups, never)
    groups["b"][0].write_bytes(b"")
    told.clear()
    with pytest.raises(LLPError):
        load(tmp_path, groups, lambda done, total: told.append((done, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_building_a_cache_holds_few_images_in_memory(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "BLOCK", 4)
    monkeypatch.setattr(f"{__name__}.SIDE", 256)
    paths = groups["a"] * 50
    load(tmp_path, {"a": groups["a"]})  # what is only needed once
    tracemalloc.start()
    pixels = load(tmp_path, {"a": paths}).pixels
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pixels) == 100 and peak < pixels.nbytes / 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cache_may_be_larger_than_memory(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file has a hole instead of most images, so that it takes no room on the disk."""
    monkeypatch.setattr(f"{__name__}.SIDE", 1024)
    first = np.array(load(tmp_path, groups).pixels)
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    memory = sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    shape = (memory // first[0].nbytes + 100, *first.shape[1:])
    facts = json.loads((tmp_path / "cache.json").read_text())
    (tmp_path / "cache.json").write_text(json.dumps({**facts, "names": ["a"], "counts": shape[:1]}))
    with open(tmp_path / "cache.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.write(first.tobytes())
        file.truncate(file.tell() - first.nbytes + shape[0] * first[0].nbytes)
    monkeypatch.setattr(image_cache, "decode_image", never)
    pixels = load(tmp_path, groups).pixels
    assert pixels.shape == shape and pixels.nbytes > memory and np.array_equal(pixels[:5], first)
    pixels[-1] = 7
    assert (pixels[-1] == 7).all() and not pixels[-2].any()


def test_writing_to_the_map_leaves_the_cache(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    first = np.array(load(tmp_path, groups).pixels)
    load(tmp_path, groups).pixels[:] = 0
    assert np.array_equal(load(tmp_path, groups).pixels, first)


@pytest.mark.parametrize("change", ["size", "time", "name", "fewer", "side"])
def test_changed_files_are_decoded_again(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    load(tmp_path, groups)
    path = groups["a"][0]
    if change == "size":
        Image.new("RGB", (5, 5), "red").save(path)
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "name":
        groups["a"][0] = path.rename(tmp_path / "other.png")
    elif change == "fewer":
        groups["a"].pop()
    else:
        monkeypatch.setattr(f"{__name__}.SIDE", 4)
    images = load(tmp_path, groups)
    assert np.array_equal(images.pixels, np.stack([expected(path) for path in groups["a"] + groups["b"]]))
    monkeypatch.setattr(image_cache, "decode_image", never)
    load(tmp_path, groups)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"fingerprint": 3}'])
def test_damaged_facts_are_made_again(tmp_path: Path, groups: dict[str, list[Path]], content: bytes) -> None:
    first = np.array(load(tmp_path, groups).pixels)
    whole = (tmp_path / "cache.json").read_bytes()
    (tmp_path / "cache.json").write_bytes(content)
    assert np.array_equal(load(tmp_path, groups).pixels, first)
    assert (tmp_path / "cache.json").read_bytes() == whole


def test_damaged_pixels_are_made_again(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    first = np.array(load(tmp_path, groups).pixels)
    cache = tmp_path / "cache.npy"
    whole = cache.read_bytes()
    for content in (b"", whole[:4], whole[:90], whole[:-1], b"other" * 100):
        cache.write_bytes(content)
        assert np.array_equal(load(tmp_path, groups).pixels, first)
        assert cache.read_bytes() == whole
    np.save(cache, np.zeros((2, 3, SIDE, SIDE), dtype=np.uint8))
    assert np.array_equal(load(tmp_path, groups).pixels, first)
    cache.unlink()
    assert np.array_equal(load(tmp_path, groups).pixels, first)


def test_broken_images_are_named_all_at_once_and_nothing_is_cached(
    tmp_path: Path, groups: dict[str, list[Path]]
) -> None:
    groups["a"][0].write_bytes(groups["a"][0].read_bytes()[:-40])
    groups["b"][0].write_text("no image")
    groups["b"][1].write_bytes(b"")
    groups["b"][2].unlink()
    groups["b"][2].symlink_to("nowhere.png")
    before = sorted(os.listdir(tmp_path))
    names = ", ".join(map(str, [groups["a"][0], *groups["b"]]))
    with pytest.raises(LLPError) as caught:
        load(tmp_path, groups)
    assert str(caught.value) == f"images that cannot be read, 4 in all: {names}"
    assert sorted(os.listdir(tmp_path)) == before


def test_broken_image_that_is_listed_twice_is_named_once(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    groups["a"][0].write_bytes(b"")
    with pytest.raises(LLPError, match=f"1 in all: {groups['a'][0]}$"):
        load(tmp_path, {"a": groups["a"] * 2})


def test_all_of_many_broken_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "BLOCK", 4)
    paths = [tmp_path / f"{number:02}.png" for number in range(25)]
    for path in paths:
        path.write_bytes(b"no image")
    with pytest.raises(LLPError) as caught:
        load(tmp_path, {"a": paths})
    assert str(caught.value).endswith(f"25 in all: {', '.join(map(str, paths))}")


def test_failure_keeps_the_old_cache_and_the_old_cache_is_not_taken_for_new(
    tmp_path: Path, groups: dict[str, list[Path]]
) -> None:
    load(tmp_path, groups)
    old = [(tmp_path / name).read_bytes() for name in ("cache.npy", "cache.json")]
    groups["a"][0].write_bytes(b"")
    for _ in range(2):
        with pytest.raises(LLPError):
            load(tmp_path, groups)
        assert [(tmp_path / name).read_bytes() for name in ("cache.npy", "cache.json")] == old


def test_crash_between_the_two_files_is_no_cache(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tmp_path, groups)
    replace = os.replace
    with monkeypatch.context() as patch:

        def crash(source: Path, target: Path) -> None:
            if target.suffix == ".json":
                raise KeyboardInterrupt
            replace(source, target)

        patch.setattr(os, "replace", crash)
        os.utime(groups["a"][0], ns=(1, 1))
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path, groups)
    assert not (tmp_path / "cache.json").exists() and not list(tmp_path.glob(".torchllp*"))
    assert load(tmp_path, groups).counts == (2, 3)


def test_without_a_place_to_write_the_images_are_in_memory(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    (tmp_path / "cache.npy").mkdir()
    before = sorted(os.listdir(tmp_path))
    images = load(tmp_path, groups)
    assert not isinstance(images.pixels, np.memmap) and images.counts == (2, 3)
    assert np.array_equal(images.pixels, np.stack([expected(path) for path in groups["a"] + groups["b"]]))
    assert sorted(os.listdir(tmp_path)) == before


def test_read_only_folder(tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(image_cache.tempfile, "TemporaryDirectory", refuse)
    assert load(tmp_path, groups).pixels.shape == (5, 3, SIDE, SIDE)
    assert not (tmp_path / "cache.npy").exists()
