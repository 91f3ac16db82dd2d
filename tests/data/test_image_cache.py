import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchllp.data import image_cache
from torchllp.data.image_cache import Images, Source, decode_image, load_images
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


def load(folder: Path, groups: Mapping[str, Sequence[Source]]) -> Images:
    files = [path for paths in groups.values() for path in paths if isinstance(path, Path)]
    return load_images(folder / "cache.npy", files, lambda: groups, SIDE)


def expected(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).resize((SIDE, SIDE), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


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
    monkeypatch.setattr(image_cache, "VERSION", 2)  # a new version decodes anew
    assert np.array_equal(load(tmp_path, groups).pixels, whole)


def test_pixels_and_files_become_the_same(tmp_path: Path, groups: dict[str, list[Path]]) -> None:
    for path in groups["a"]:
        image = decode_image(path, SIDE)
        assert image is not None
        assert np.array_equal(decode_image(np.asarray(Image.open(path)), SIDE), image)  # pyrefly: ignore


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK", "LA"])
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (10, 11, 3), dtype=np.uint8)
    image = Image.fromarray(values).convert("L" if mode in ("L", "LA", "1") else "RGB").convert(mode)
    path = tmp_path / "image.tiff"
    image.save(path)
    decoded = decode_image(path, SIDE)
    assert decoded is not None and decoded.shape == (3, SIDE, SIDE) and decoded.dtype == np.uint8
    assert np.array_equal(decoded, np.asarray(image.convert("RGB").resize((SIDE, SIDE), 2)).transpose(2, 0, 1))


def test_second_load_decodes_nothing(
    tmp_path: Path, groups: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path, groups)
    monkeypatch.setattr(image_cache, "decode_image", never)
    again = load(tmp_path, groups)
    assert np.array_equal(first.pixels, again.pixels) and first[1:] == again[1:]


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
    groups["b"][1].write_bytes(b"")
    groups["b"][2].unlink()
    groups["b"][2].symlink_to("nowhere.png")
    before = sorted(os.listdir(tmp_path))
    names = f"{groups['a'][0]}, {groups['b'][1]}, {groups['b'][2]}"
    with pytest.raises(LLPError) as caught:
        load(tmp_path, groups)
    assert str(caught.value) == f"images that cannot be read, 3 in all: {names}"
    assert sorted(os.listdir(tmp_path)) == before


def test_only_ten_of_many_broken_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "BLOCK", 4)
    paths = [tmp_path / f"{number:02}.png" for number in range(25)]
    for path in paths:
        path.write_bytes(b"no image")
    with pytest.raises(LLPError) as caught:
        load(tmp_path, {"a": paths})
    assert str(caught.value).endswith(f"25 in all: {', '.join(map(str, paths[:10]))} and 15 more")


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
