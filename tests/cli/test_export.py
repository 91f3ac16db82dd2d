"""`llp export` of runs on digits, a mixed table and images in colour."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from commands import here
from own_tables import BAGS, OURS, RECIPE, ROWS, predictions, write
from torchllp import Run, load_dataset, load_exported

QUICK = ["--epochs", "1", "--threads", "1"]

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["torchllp"] = None
import numpy as np, onnxruntime, pandas as pd

session = onnxruntime.InferenceSession(sys.argv[1])
rows = pd.read_csv(sys.argv[2])
seconds = (pd.to_datetime(rows["when"]) - pd.Timestamp(0)) // pd.Timedelta("1s")
numbers = rows.assign(when=seconds)[["x", "z", "when"]].to_numpy(float)
categories = rows[["colour"]].fillna("").to_numpy(object)
np.save(sys.argv[3], session.run(None, {"numbers": numbers, "categories": categories})[0])
"""

WITHOUT = """
import sys
from torchllp.cli import main

run, first, second = sys.argv[1:]
sys.modules["onnx"] = sys.modules["onnxscript"] = None
assert main(["export", run, "-o", first]) == 1
del sys.modules["onnx"], sys.modules["onnxscript"]
sys.modules["onnxruntime"] = None
assert main(["export", run, "-o", second]) == 0
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `digits`, `table` and `colours`, and two that are no classifiers."""
    path = tmp_path_factory.mktemp("export")
    missing = np.arange(len(ROWS["x"])) % 7 == 0
    rows = {
        **ROWS,
        "x": np.where(missing, np.nan, ROWS["x"]),
        "colour": np.where(missing, None, ROWS["colour"]),
        "when": np.datetime64("2024-05-01T12:00:00", "s") + np.arange(len(missing)),
    }
    table = ["--instances", write(path / "rows.csv", rows), "--bags", write(path / "bags.csv", BAGS), *OURS]
    generator = np.random.default_rng(0)
    for i in range(24):
        folder = path / "images" / f"bag-{i // 4}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (path / "image-bags.csv").write_text(
        "bag,dark,light\n" + "".join(f"bag-{i},{i % 4},{4 - i % 4}\n" for i in range(6))
    )
    images = ["--images", path / "images", "--bags", path / "image-bags.csv", "--image-size", "8"]
    for name, flags in (
        ("digits", QUICK),
        ("table", [*table, *RECIPE, "--epochs", "3"]),
        ("colours", [*images, *QUICK]),
    ):
        result = here("train", *flags, "--run", path / name)
        assert result.returncode == 0, result.stderr
    result = here("pretrain", "--model", "small-cnn", *QUICK, "--run", path / "pretrained")
    assert result.returncode == 0, result.stderr
    shutil.copytree(path / "digits", path / "unfinished")
    for name in ("model.safetensors", "model.json", "summary.json"):
        (path / "unfinished" / name).unlink()
    return path


def probabilities(run: Path, source: Path, output: Path) -> np.ndarray:
    """Those of `llp predict`."""
    found, _ = predictions(run, source, output)
    return np.array([[float(value) for name, value in row.items() if name.startswith("p(")] for row in found])


def test_a_table_runs_without_torch(runs: Path, tmp_path: Path) -> None:
    """Another process, with nothing but pandas and onnxruntime, on the rows as they are in the file."""
    path = tmp_path / "model.onnx"
    result = here("export", runs / "table", "-o", path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"{path}: onnx"
    assert lines[1].startswith("takes numbers, float64 [batch, 3] of x, z, when: NaN where missing; dates are seconds")
    assert lines[2].startswith("takes categories, string [batch, 1] of colour: texts")
    assert lines[3] == "gives probabilities, float32 [batch, 2] of good, bad"
    text, _, difference = lines[4].rpartition(" ")
    assert text == "verified by onnxruntime: the largest difference of a probability is" and float(difference) < 1e-5
    assert result.stderr == ""

    command = [sys.executable, "-c", WITHOUT_TORCH, path, runs / "rows.csv", tmp_path / "found.npy"]
    assert subprocess.run(command, timeout=300).returncode == 0
    found, expected = (
        np.load(tmp_path / "found.npy"),
        probabilities(runs / "table", runs / "rows.csv", tmp_path / "p.csv"),
    )
    assert found.shape == (400, 2)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_images_in_colour(runs: Path, tmp_path: Path) -> None:
    result = here("export", runs / "colours")
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert "takes images, uint8 [batch, 3, 8, 8]: levels from 0 to 255, channels first\n" in result.stdout
    files = sorted((runs / "images").rglob("*.png"))
    images = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files])
    session = onnxruntime.InferenceSession(runs / "colours" / "model.onnx")
    expected = probabilities(runs / "colours", runs / "images", tmp_path / "p.csv")
    for size in (1, 24):
        found = session.run(None, {"images": images[:size]})[0]
        np.testing.assert_allclose(found, expected[:size], atol=1e-5)


def plainly(run: Path, options: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The run's model with normalisation and temperature as its description says, in plain torch."""
    opened = Run.open(run)
    data, model = opened.description["data"], opened.load_model(**options)
    mean, std = (torch.tensor(data[name])[:, None, None] for name in ("mean", "std"))
    temperature = opened.description["calibration"]["temperature"]
    return lambda images: (model((images / 255 - mean) / std) / temperature).softmax(1).detach()


def test_torch_export_and_other_weights(runs: Path, tmp_path: Path) -> None:
    test = load_dataset("digits").test
    assert test is not None
    found = {}
    for name, flags, options in (
        ("chosen", [], {}),
        ("last", ["--weights", "last", "--raw"], {"weights": "last", "raw": True}),
    ):
        path = tmp_path / f"{name}.pt2"
        result = here("export", runs / "digits", "--to", "torch-export", "-o", path, *flags)
        assert result.returncode == 0 and "verified by torch.export.load" in result.stdout, result.stderr
        found[name] = torch.export.load(path).module()(images=test.inputs).detach()
        classifier = plainly(runs / "digits", options)
        torch.testing.assert_close(found[name], classifier(test.inputs), atol=1e-5, rtol=0)
    assert (found["chosen"] - found["last"]).abs().max() > 1e-3


def test_a_folder_outlives_its_run(runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "table", tmp_path / "run")
    result = here("export", run, "--to", "safetensors")
    assert result.returncode == 0, result.stderr
    again = here("export", run, "--to", "safetensors")
    assert again.returncode == 1 and again.stderr.startswith(f"llp: {run}/exported: there is something here already")
    assert here("export", run, "--to", "safetensors", "--overwrite").returncode == 0
    shutil.move(run / "exported", tmp_path / "kept")
    shutil.rmtree(run)
    loaded = load_exported(tmp_path / "kept")
    assert loaded.class_names == ("good", "bad")
    expected = probabilities(runs / "table", runs / "rows.csv", tmp_path / "p.csv")
    np.testing.assert_allclose(loaded.predict_proba(runs / "rows.csv"), expected, atol=1e-5)


def test_a_run_whose_data_is_gone(runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "table", tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace("rows.csv", "gone.csv"))
    result = here("export", run, "--to", "torch-export")
    assert result.returncode == 0 and "verified by torch.export.load" in result.stdout
    assert "verified on made-up instances alone" in result.stderr and "gone.csv: there is no such file" in result.stderr


@pytest.mark.parametrize(
    ("run", "flags", "code", "message"),
    [
        ("nope", [], 1, "nope: not a run"),
        ("unfinished", [], 1, "unfinished: the run has no model yet: continue it by llp train --resume"),
        ("pretrained", [], 1, "pretrained: was pre-trained and knows no classes"),
        ("digits", ["--to", "tensorflow"], 2, "tensorflow"),
        ("digits", ["-o", "digits.pt2"], 1, "digits.pt2: files of onnx end in .onnx"),
        ("digits", ["-o", "nowhere/digits.onnx"], 1, "nowhere/digits.onnx: there is no such directory"),
    ],
)
def test_misuse(runs: Path, run: str, flags: list[str], code: int, message: str) -> None:
    before = sorted(runs.rglob("*"))
    result = here("export", runs / run, *flags)
    assert result.returncode == code and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stdout == ""
    assert sorted(runs.rglob("*")) == before


def test_packages_that_are_not_installed(runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, runs / "table", tmp_path / "a.onnx", tmp_path / "b.onnx"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "llp: ONNX files are written by onnx and onnxscript: say pip install 'torchllp[onnx]'\n"
    assert "not verified, because onnxruntime is not installed" in result.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["b.onnx"]
    about = onnxruntime.InferenceSession(tmp_path / "b.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["good", "bad"]
