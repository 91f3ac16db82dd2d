"""Images of the user's own, from folders and tables to predictions, by the real command."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from commands import here
from torchllp import Run
from torchllp.predictor import Predictor

CLASSES = ("zero", "one")
SHORT = ("--epochs", "15", "--threads", "1", "--image-size", "8", "--device", "cpu")


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint(pixels * (255 / 16)).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Zeros and ones: 25 slides of 12 images with a table of their counts, and 60 labelled images by class."""
    folder = tmp_path_factory.mktemp("images")
    digits = load_digits()
    rows = np.random.default_rng(0).permutation(np.flatnonzero(digits.target < 2))
    counts = np.zeros((25, 2), dtype=int)
    with open(folder / "tiles.csv", "w") as table:
        table.write("tile,slide,digit\n")
        for i, row in enumerate(rows[:300]):
            bag, label = divmod(i, 12)[0], digits.target[row]
            counts[bag, label] += 1
            save(folder / "slides" / f"slide-{bag:02d}" / f"{i:03d}.png", digits.images[row])
            table.write(f"slide-{bag:02d}/{i:03d}.png,slide-{bag:02d},{CLASSES[label]}\n")
    for i, row in enumerate(rows[300:]):
        save(folder / "known" / CLASSES[digits.target[row]] / f"{i:03d}.png", digits.images[row])
    lines = [f"slide-{bag:02d},{zero},{one}\n" for bag, (zero, one) in enumerate(counts)]
    (folder / "slides.csv").write_text("slide,zero,one\n" + "".join(lines))
    return folder


@pytest.fixture(scope="module")
def run(files: Path) -> Path:
    flags = ("--images", "slides", "--bags", "slides.csv", "--bag-column", "slide", "--test", "known", "--run", "run")
    result = here("train", *flags, *SHORT, cwd=files)
    assert result.returncode == 0, result.stderr
    assert "Accuracy on the test instances of slides" in result.stdout
    assert "slides.csv: the bags are given as counts" in result.stdout
    return files / "run"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def test_a_folder_of_bags_trains_a_classifier_of_single_images(run: Path, files: Path) -> None:
    summary = Run.open(run).summary
    assert summary["num_bags"] == 25 and summary["accuracy"]["last"] > 0.9
    assert (files / "slides" / "torchllp-8x8.npy").stat().st_size > 300 * 3 * 64


def test_a_table_of_paths_gives_the_same_bags_and_images(run: Path, files: Path, tmp_path: Path) -> None:
    flags = ("--images", "slides", "--instances", "tiles.csv", "--path-column", "tile", "--bag-column", "slide")
    result = here("train", *flags, "--bags", "slides.csv", "--run", tmp_path / "run", *SHORT, cwd=files)
    assert result.returncode == 0, result.stderr
    # no test images now, and otherwise the same training
    assert Run.open(tmp_path / "run").model_file.read_bytes() == Run.open(run).model_file.read_bytes()
    assert Run.open(tmp_path / "run").summary["accuracy"] == {}
    assert "Mean error of a class's share in held-out bags" in result.stdout
    labelled = here(
        "evaluate",
        tmp_path / "run",
        "--instances",
        "tiles.csv",
        "--images",
        "slides",
        "--label-column",
        "digit",
        cwd=files,
    )
    assert labelled.returncode == 0 and "accuracy" in labelled.stdout, labelled.stderr


def test_folders_are_classified_whatever_the_size_of_their_images(run: Path, files: Path, tmp_path: Path) -> None:
    for path in (files / "known" / "zero").glob("*.png"):
        large = Image.open(path).resize((31, 17))
        large.save(tmp_path / path.name)  # beside one another, in no sub-folder
    result = here("predict", run, tmp_path, "-o", tmp_path / "flat.csv")
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "flat.csv")
    assert [row["file"] for row in rows] == sorted(path.name for path in tmp_path.glob("*.png"))
    assert np.mean([row["class"] == "zero" for row in rows]) > 0.8


def test_the_bags_of_a_folder_are_summed_up_and_respected(run: Path, files: Path, tmp_path: Path) -> None:
    flags = ("--by-bag", "--respect-counts", files / "slides.csv", "-o", tmp_path / "p.csv")
    result = here("predict", run, files / "slides", *flags)
    assert result.returncode == 0, result.stderr
    known = {row["slide"]: row for row in rows_of(files / "slides.csv")}
    rows = rows_of(tmp_path / "p.csv")
    for slide, row in known.items():
        found = [p["class"] for p in rows if p["folder"] == slide]
        assert {name: str(found.count(name)) for name in CLASSES} == {name: row[name] for name in CLASSES}
    bags = rows_of(tmp_path / "p-by-bag.csv")
    assert [row["folder"] for row in bags] == sorted(known)
    for row in bags:
        of_bag = [float(p["p(one)"]) for p in rows if p["folder"] == row["folder"]]
        assert float(row["p(one)"]) == pytest.approx(np.mean(of_bag), abs=1e-4)


def test_labelled_folders_evaluate_the_run(run: Path, files: Path, tmp_path: Path) -> None:
    flags = ("--instances", files / "known", "--figure", tmp_path / "confusion.png")
    result = here("evaluate", run, *flags)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in ("macro F1", "average precision", "AUC", "calibration error"))
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_grey_models_take_folders_too(tmp_path: Path, files: Path) -> None:
    result = here("train", "--run", tmp_path / "digits", "--epochs", "2", "--threads", "1")
    assert result.returncode == 0, result.stderr
    result = here("predict", tmp_path / "digits", files / "known", "-o", tmp_path / "p.csv")
    assert result.returncode == 0, result.stderr
    assert len(rows_of(tmp_path / "p.csv")) == 60
    colours = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    grey = Predictor(Run.open(tmp_path / "digits"))._coloured(torch.from_numpy(colours).permute(0, 3, 1, 2))
    by_pillow = np.stack([Image.fromarray(image).convert("L") for image in colours])
    assert np.abs(grey[:, 0].numpy().astype(int) - by_pillow).max() <= 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--images", "slides", "--bags", "slides.csv"), "slides.csv: no column 'bag' (it has slide, zero, one)"),
        (("--images", "nowhere", "--bags", "slides.csv"), "nowhere: no such folder"),
        (
            ("--images", "slides", "--instances", "tiles.csv", "--bags", "slides.csv", "--bag-column", "slide"),
            "tiles.csv: name the column with the image files by --path-column",
        ),
        (
            ("--images", "slides", "--instances", "outside.csv", "--path-column", "tile", "--bag-column", "slide"),
            "outside.csv, row 3, column 'tile': '../slides.csv' is not inside ",
        ),
        (
            ("--images", "known", "--bags", "slides.csv", "--bag-column", "slide"),
            "slides.csv, row 2: bag 'slide-00' has no row in ",
        ),
        (
            ("--images", "slides", "--bags", "slides.csv", "--bag-column", "slide", "--test", "slides"),
            "slides, row 0, column 'folder': 'slide-00' is none of the classes zero, one",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(files: Path, flags: tuple[str, ...], message: str) -> None:
    (files / "outside.csv").write_text("tile,slide\nslide-00/000.png,a\n../slides.csv,a\n")
    bags = () if "--bags" in flags else ("--bags", "slides.csv")
    result = here("train", *flags, *bags, *SHORT, "--run", "wrong", cwd=files)
    assert result.returncode == 1, result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("llp: ") and message in line
    assert not (files / "wrong").exists()


def test_all_broken_images_are_named_before_training(tmp_path: Path) -> None:
    for bag in "ab":
        for i in range(3):
            save(tmp_path / "images" / bag / f"{i}.png", np.full((8, 8), 3 * i))
    whole = (tmp_path / "images" / "a" / "1.png").read_bytes()
    (tmp_path / "images" / "a" / "1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "images" / "b" / "2.png").write_text("no image")
    (tmp_path / "bags.csv").write_text("bag,x,y\na,1,2\nb,2,1\n")
    result = here("train", "--images", "images", "--bags", "bags.csv", "--run", "run", *SHORT, cwd=tmp_path)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "2 in all" in line and "a/1.png" in line and "b/2.png" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bags.csv", "images"]
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["a", "b"]


def test_paths_start_from_the_table_where_no_folder_is_named(files: Path, tmp_path: Path) -> None:
    """And images are read, not the other columns."""
    table = files / "slides" / "tiles.csv"
    table.write_text((files / "tiles.csv").read_text())
    flags = ("--instances", table, "--path-column", "tile", "--bag-column", "slide", "--bags", files / "slides.csv")
    result = here("train", *flags, "--run", tmp_path / "run", *SHORT)
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "run").description["model"]["input_shape"] == [3, 8, 8]
