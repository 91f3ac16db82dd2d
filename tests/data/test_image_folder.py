import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchllp.data import image_cache
from torchllp.data.image_folder import load_folder, load_listed
from torchllp.errors import LLPError

SIDE = 8
FILES = ("bag 10/a.png", "bag 10/b.PNG", "bag 2/deep/er/z.jpg", "bag 2/x.bmp", "c/a.webp")
"""In the order they must come in, each of one grey level."""


def write_image(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 7), (level,) * 3).save(path)


def levels(pixels: np.ndarray) -> list[int]:
    assert pixels.shape == (len(pixels), 3, SIDE, SIDE) and pixels.dtype == np.uint8
    assert (pixels == pixels[:, :1, :1, :1]).all()
    return pixels[:, 0, 0, 0].tolist()


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def place(row: int) -> str:
    return f"rows.csv, row {row + 2}, column 'file'"


def never(*_: object) -> None:
    raise AssertionError("decoded again")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(FILES):
        write_image(tmp_path / "pictures" / name, 10 * number)
    return tmp_path / "pictures"


def refusal(folder: Path, names: list[str] | None = None, side: int = SIDE) -> str:
    """The one sentence, which leaves nothing half-written."""
    before = everything_in(folder)
    with pytest.raises(LLPError) as caught:
        load_folder(folder, side) if names is None else load_listed(folder, names, side, place)
    assert everything_in(folder) == before
    return str(caught.value)


def test_each_sub_folder_is_a_group(folder: Path) -> None:
    images = load_folder(folder, SIDE)
    assert levels(images.pixels) == [0, 10, 20, 30, 40] and isinstance(images.pixels, np.memmap)
    assert images.files == FILES
    assert images.groups == ("bag 10", "bag 10", "bag 2", "bag 2", "c")


def test_folder_by_a_relative_path_and_by_a_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    Path("link").symlink_to("pictures")
    for path in (Path("pictures"), Path("link"), Path("../" + folder.parent.name, "pictures")):
        assert load_folder(path, SIDE).files == FILES
        assert levels(load_listed(path, FILES[1:3], SIDE, place)) == [10, 20]


def test_what_is_hidden_or_no_image_is_left_out(folder: Path) -> None:
    for name in (".hidden/a.png", "c/.a.png", "c/.thumbnails/a.png"):
        write_image(folder / name, 99)
    for name in ("README.md", "c/boxes.txt", "c/a.npy"):
        (folder / name).write_text("no image")
    (folder / "c" / "outside.txt").symlink_to("/etc/hostname")
    (folder / "c" / "empty").mkdir()
    assert load_folder(folder, SIDE).files == FILES


def test_caches_are_no_images_and_stand_side_by_side(folder: Path) -> None:
    for side in (SIDE, 4):
        load_folder(folder, side)
    for names in (FILES[:2], FILES[2:], FILES[2:][::-1]):
        load_listed(folder, names, SIDE, place)
    caches = sorted(path.name for path in folder.glob("*.npy"))
    assert caches[0] == "torchllp-4x4.npy" and caches[-1] == "torchllp-8x8.npy" and len(caches) == 5
    assert sorted(path.stem for path in folder.glob("*.json")) == sorted(name[:-4] for name in caches)


def test_second_load_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = [FILES[:2], FILES[2:], FILES[1:3]]
    first = load_folder(folder, SIDE), [load_listed(folder, names, SIDE, place) for names in lists]
    before = everything_in(folder)
    monkeypatch.setattr(image_cache, "decode_image", never)
    again = load_folder(folder, SIDE, never), [load_listed(folder, names, SIDE, place, never) for names in lists]
    assert np.array_equal(first[0].pixels, again[0].pixels) and first[0][1:] == again[0][1:]
    assert all(np.array_equal(one, other) for one, other in zip(first[1], again[1], strict=True))
    assert everything_in(folder) == before


@pytest.mark.parametrize("change", ["content", "moved", "more"])
def test_changed_folder_is_decoded_again(folder: Path, change: str) -> None:
    load_folder(folder, SIDE)
    if change == "content":
        write_image(folder / FILES[0], 200)
        assert levels(load_folder(folder, SIDE).pixels) == [200, 10, 20, 30, 40]
    elif change == "moved":
        (folder / FILES[0]).rename(folder / "c" / "z.png")
        images = load_folder(folder, SIDE)
        assert levels(images.pixels) == [10, 20, 30, 40, 0] and images.groups[-1] == "c"
    else:
        write_image(folder / "a" / "a.png", 50)
        images = load_folder(folder, SIDE)
        assert levels(images.pixels) == [50, 0, 10, 20, 30, 40] and images.groups[0] == "a"


def test_listed_images_come_in_the_order_of_the_list(folder: Path) -> None:
    names = [FILES[4], FILES[2], FILES[0], FILES[2], "bag 2/../c/a.webp"]
    assert levels(load_listed(folder, names, SIDE, place)) == [40, 20, 0, 20, 40]
    write_image(folder / FILES[2], 77)
    assert levels(load_listed(folder, names, SIDE, place)) == [40, 77, 0, 77, 40]


def test_listed_images_need_no_sub_folder_nor_suffix(folder: Path) -> None:
    (folder / FILES[1]).rename(folder / "one")
    assert levels(load_listed(folder, ["one", FILES[0]], SIDE, place)) == [10, 0]


@pytest.mark.parametrize("listed", [False, True])
def test_progress(folder: Path, listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "BLOCK", 2)
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    if listed:
        load_listed(folder, FILES, SIDE, place, progress)
    else:
        load_folder(folder, SIDE, progress)
    assert told == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("listed", [False, True])
def test_broken_images_are_named_all_at_once(folder: Path, listed: bool) -> None:
    whole = (folder / FILES[2]).read_bytes()
    (folder / FILES[2]).write_bytes(whole[: len(whole) // 2])
    (folder / FILES[0]).write_bytes(b"")
    (folder / FILES[4]).write_text("text, whatever its name says")
    broken = ", ".join(str(folder / FILES[number]) for number in (0, 2, 4))
    expected = f"images that cannot be read, 3 in all: {broken}"
    assert refusal(folder, list(FILES) if listed else None) == expected


def test_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(image_cache.tempfile, "TemporaryDirectory", refuse)
    before = everything_in(folder)
    for pixels in (load_folder(folder, SIDE).pixels, load_listed(folder, FILES, SIDE, place)):
        assert levels(pixels) == [0, 10, 20, 30, 40] and not isinstance(pixels, np.memmap)
    assert everything_in(folder) == before


@pytest.mark.parametrize("names", [None, ["a.png"]])
def test_no_folder(folder: Path, names: list[str] | None) -> None:
    nowhere, file = folder / "nowhere", folder / FILES[0]
    assert refusal(nowhere, names) == f"{nowhere}: no such folder"
    assert refusal(file, names) == f"{file}: not a folder"
    for side in (3, 1025, -8):
        assert refusal(folder, names, side) == f"images can be made 4 to 1024 pixels wide, not {side}"


def test_images_in_no_sub_folder(folder: Path) -> None:
    for name in ("z.jpg", "B.JPEG"):
        write_image(folder / name, 9)
    assert refusal(folder) == f"{folder}: images that are in no sub-folder, 2 in all: B.JPEG, z.jpg"


def test_sub_folders_without_an_image(folder: Path) -> None:
    (folder / "d" / "deeper").mkdir(parents=True)
    (folder / "b").mkdir()
    (folder / "b" / "notes.txt").write_text("no image")
    assert refusal(folder) == f"{folder}: sub-folders without any image, 2 in all: b, d"


def test_no_sub_folders(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    assert refusal(tmp_path) == f"{tmp_path}: no sub-folders, and each would be a group of images"


def test_sub_folder_that_cannot_be_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterdir = Path.iterdir

    def refuse(path: Path) -> object:
        if path.name == "deep":
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(LLPError) as caught:
        load_folder(folder, SIDE)
    assert str(caught.value) == f"{folder / 'bag 2' / 'deep'}: cannot be read (Permission denied)"


def test_links_to_files_inside_are_followed(folder: Path) -> None:
    (folder / "c" / "link.png").symlink_to(folder / FILES[1])
    assert levels(load_folder(folder, SIDE).pixels) == [0, 10, 20, 30, 40, 10]
    assert levels(load_listed(folder, ["c/link.png"], SIDE, place)) == [10]


@pytest.mark.parametrize("target", ["../../secret.png", "../../secrets", "../bag 2", "../c"])
@pytest.mark.parametrize("link", ["c/link.png", "c/link"])
def test_other_links_are_refused(folder: Path, link: str, target: str) -> None:
    """Out of the folder, or to a folder, which may be the one that the link is in."""
    write_image(folder.parent / "secret.png", 1)
    write_image(folder.parent / "secrets" / "a.png", 1)
    (folder / link).symlink_to(target)
    if link == "c/link" and target.endswith(".png"):
        assert load_folder(folder, SIDE).files == FILES  # by its name it is no image
        return
    resolved = os.path.realpath(folder / "c" / target)
    expected = f"{folder / link}: a link to {resolved}, and only links to files inside {folder} are followed"
    assert refusal(folder) == expected


def test_sub_folder_that_is_a_link_is_refused(folder: Path) -> None:
    write_image(folder.parent / "secrets" / "a.png", 1)
    (folder / "d").symlink_to(folder.parent / "secrets")
    assert refusal(folder).startswith(f"{folder / 'd'}: a link to {folder.parent / 'secrets'}, and only")


def test_link_to_nowhere_is_a_broken_image(folder: Path) -> None:
    (folder / "c" / "b.png").symlink_to("nowhere.png")
    assert refusal(folder) == f"images that cannot be read, 1 in all: {folder / 'c' / 'b.png'}"


@pytest.mark.parametrize("name", ["../secret.png", "c/../../secret.png", "/etc/passwd", "c/link.png", "a\0b.png"])
def test_listed_path_that_leads_outside(folder: Path, name: str) -> None:
    write_image(folder.parent / "secret.png", 1)
    (folder / "c" / "link.png").symlink_to("../../secret.png")
    expected = f"rows.csv, row 3, column 'file': {name!r} is not inside {folder}"
    assert refusal(folder, [FILES[0], name]) == expected


def test_absolute_paths_to_the_inside_are_as_good_as_others(folder: Path) -> None:
    images = [load_listed(folder, [name], 8, place) for name in (FILES[0], str(folder / FILES[0]))]
    np.testing.assert_array_equal(*images)
    assert refusal(folder, [str(folder.parent / "x.png")]).endswith(f"is not inside {folder}")


def test_listed_paths_that_are_missing_are_named_all_at_once(folder: Path) -> None:
    missing = ["a.png", "", "bag 2", "x" * 300]
    named = ", ".join(f"{name!r} ({place(row + 1)})" for row, name in enumerate(missing))
    assert refusal(folder, [FILES[0], *missing]) == f"{folder}: 4 missing: {named}"
    assert refusal(folder, ["a.png"] * 12).endswith(f"'a.png' ({place(9)}) and 2 more")


LIMITED = """
import os, resource, sys
import numpy as np, torch
from torchllp import Dataset, Instances

pixels = np.memmap(sys.argv[1], np.uint8, "c", shape=(5461, 3, 128, 128))
Dataset.from_images("warm", Instances(torch.from_numpy(pixels[:9])), class_names=["a", "b"])
room = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + 2**26
resource.setrlimit(resource.RLIMIT_AS, (room, room))
print(Dataset.from_images("large", Instances(torch.from_numpy(pixels)), class_names=["a", "b"]).mean)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_images_larger_than_memory_become_a_data_set(tmp_path: Path) -> None:
    """256 MB of them, where there is room for 64 more; a channel has 85. Their file is a hole, which reads as 0."""
    path = tmp_path / "pixels"
    with open(path, "wb") as file:
        file.truncate(5461 * 3 * 128 * 128)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # each thread has memory of its own
    done = subprocess.run([sys.executable, "-c", LIMITED, path], env=environment, capture_output=True, text=True)
    assert done.stdout == "(0.0, 0.0, 0.0)\n", done.stderr
