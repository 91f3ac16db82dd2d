"""Every format, written, run by what others would run it by, and refused where it cannot be."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from torchllp import LLPClassifier, LLPError, create_model, list_models, load_exported
from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.export import FORMATS, export_classifier, raw_classifier
from torchllp.export.classifier import RawClassifier
from torchllp.models import MODELS

EVERY_KIND = ["linear", "mlp", "resnet18", "small-cnn", "wrn-10-2"]
SHAPE = (3, 8, 8)
TABLE = {"x": [1.0, None, 3.0, 5.0], "shop": ["a b", "ü", "7", None], "z": [4, 5, 6, 6], "kind": ["p", "q", "p", "q"]}


def of_images(name: str) -> RawClassifier:
    """A model with statistics of its own in every batch norm."""
    torch.manual_seed(0)
    made_of = {"name": name, "options": {}, "num_classes": 4, "input_shape": list(SHAPE)}
    model = create_model(name, num_classes=4, input_shape=SHAPE).to(memory_format=torch.channels_last)
    with torch.no_grad():
        model.train()(torch.randn(32, *SHAPE))
    return raw_classifier(model, list("abcd"), SHAPE, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.2), made_of=made_of)


def of_rows(model: nn.Module | None = None) -> RawClassifier:
    torch.manual_seed(0)
    encoder = TableEncoder.fit(Table.of(TABLE), list(TABLE))
    width = len(encoder.columns)
    made_of = {"name": "mlp", "options": {}, "num_classes": 3, "input_shape": [width]}
    own, model = model, model or create_model("mlp", num_classes=3, input_shape=(width,))
    return raw_classifier(model, ["r", "s", "t"], (width,), encoder=encoder, made_of=None if own else made_of)


def run_onnx(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(path).run(["probabilities"], inputs)[0]


def test_every_kind_of_model_is_tried() -> None:
    assert {MODELS.entry(name).path for name in EVERY_KIND} == {MODELS.entry(name).path for name in list_models()}


@pytest.mark.parametrize("name", EVERY_KIND)
def test_models_run_by_onnxruntime(name: str, tmp_path: Path) -> None:
    classifier, path = of_images(name), tmp_path / "model.onnx"
    exported = export_classifier(classifier, path)
    assert exported.difference is not None and exported.difference < 1e-5
    images = np.random.default_rng(1).integers(256, size=(33, *SHAPE), dtype=np.uint8)
    expected = classifier.expected(images)
    for size in (1, 5, 33):
        found = run_onnx(path, {"images": images[:size]})
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[:size], atol=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "rows.onnx"
    return export_classifier(of_rows(), path).path


def test_texts_are_looked_up_by_onnxruntime(rows_file: Path) -> None:
    new = {"x": [np.nan, 2.5], "shop": ["ü", "never seen"], "z": [1, 2], "kind": ["q", ""]}
    numbers = np.array([[np.nan, 1], [2.5, 2]])
    texts = np.array([["ü", "q"], ["never seen", ""]], dtype=object)
    found = run_onnx(rows_file, {"numbers": numbers, "categories": texts})
    np.testing.assert_allclose(found, of_rows().expected(new), atol=1e-6)
    assert not np.allclose(found[0], found[1], atol=1e-3)


def test_what_an_onnx_file_says_of_itself(rows_file: Path) -> None:
    about = onnxruntime.InferenceSession(rows_file).get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["r", "s", "t"]
    assert (about["format_version"], about["torchllp"]) == ("1", version("torchllp"))
    inputs = json.loads(about["inputs"])
    assert list(inputs["numbers"]["columns"]) == ["x", "z"] and inputs["numbers"]["dtype"] == "float64"
    assert inputs["categories"]["columns"] == ["shop", "kind"] and inputs["categories"]["dtype"] == "string"
    assert json.loads(about["encoder"])["categories"]["kind"] == ["p", "q"]
    model = onnx.load(rows_file)
    onnx.checker.check_model(model, full_check=True)
    for one, dtype in zip(model.graph.input, (onnx.TensorProto.DOUBLE, onnx.TensorProto.STRING), strict=True):
        assert one.type.tensor_type.elem_type == dtype
        assert one.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert b".py" not in rows_file.read_bytes()  # no file of this machine


def test_a_torch_export_loads_without_the_library(tmp_path: Path) -> None:
    classifier, path = of_rows(), tmp_path / "rows.pt2"
    assert export_classifier(classifier, path, "torch-export").difference == pytest.approx(0, abs=1e-6)
    about = {"classifier.json": ""}
    module = torch.export.load(path, extra_files=about).module()
    description = json.loads(about["classifier.json"])
    assert description["class_names"] == ["r", "s", "t"] and description["inputs"]["codes"]["dtype"] == "int64"
    assert description["inputs"]["codes"]["columns"] == ["shop", "kind"]
    known = description["encoder"]["categories"]
    codes = torch.tensor([[known["shop"].index("ü"), -1], [known["shop"].index("7"), known["kind"].index("p")]])
    found = module(numbers=torch.tensor([[1.0, np.nan], [2.0, 9.0]], dtype=torch.float64), codes=codes)
    rows = {"x": [1.0, 2.0], "shop": ["ü", "7"], "z": [None, 9.0], "kind": ["else", "p"]}
    np.testing.assert_allclose(found.detach().numpy(), classifier.expected(rows), atol=1e-6)


def test_a_folder_of_weights_is_all_that_is_needed(tmp_path: Path) -> None:
    for name, classifier, new in (
        ("images", of_images("wrn-10-2"), np.random.default_rng(2).integers(256, size=(3, *SHAPE), dtype=np.uint8)),
        ("rows", of_rows(), pd.DataFrame(TABLE)),
    ):
        folder = tmp_path / name
        export_classifier(classifier, folder, "safetensors")
        assert sorted(path.name for path in folder.iterdir()) == ["classifier.json", "model.safetensors"]
        loaded = load_exported(folder)
        assert loaded.class_names == classifier.class_names and loaded.made_of == classifier.made_of
        np.testing.assert_allclose(loaded.predict_proba(new), classifier.expected(new), atol=1e-6)


class Restless(nn.Linear):
    """Never gives the same twice."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + torch.rand_like(input[:, :3])


class Branching(nn.Linear):
    """Depends on values in a way that no graph has."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if input.sum() > 0 else super().forward(-input)


@pytest.mark.parametrize(
    ("model", "to", "message"),
    [
        (Restless, "onnx", r"model.onnx: not written, because probabilities by onnxruntime differ from ours by 0\.\d+"),
        (Restless, "torch-export", r"model.pt2: not written, because probabilities by torch.export.load differ"),
        (Branching, "torch-export", "Branching cannot be exported by torch.export "),
        (Branching, "safetensors", "Branching is a module of your own, .*: take onnx or torch-export"),
    ],
)
def test_nothing_is_left_of_what_fails(model: type[nn.Linear], to: str, message: str, tmp_path: Path) -> None:
    classifier = of_rows(model(8, 3))
    with pytest.raises(LLPError, match=message) as caught:
        export_classifier(classifier, tmp_path / f"model{FORMATS[to].suffix}", to)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_folder_of_any_name_is_replaced(tmp_path: Path) -> None:
    for overwrite in (False, True):
        export_classifier(of_rows(), tmp_path / "before", "safetensors", overwrite=overwrite)
    assert load_exported(tmp_path / "before").class_names == ("r", "s", "t")


def test_only_an_export_is_replaced(tmp_path: Path) -> None:
    path, folder = tmp_path / "rows.pt2", tmp_path / "weights"
    for place, to in ((path, "torch-export"), (folder, "safetensors")):
        export_classifier(of_rows(nn.Linear(8, 3)) if to == "torch-export" else of_rows(), place, to)
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        with pytest.raises(LLPError, match=f"{place.name}: there is something here already"):
            export_classifier(of_rows(), place, to)
        assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    before = path.read_bytes()
    with pytest.raises(LLPError, match="not written"):
        export_classifier(of_rows(Restless(8, 3)), path, "torch-export", overwrite=True)
    assert path.read_bytes() == before
    export_classifier(of_rows(), path, "torch-export", overwrite=True)
    assert path.read_bytes() != before
    (folder / "more").write_text("of an older kind")
    export_classifier(of_rows(), folder, "safetensors", overwrite=True)
    assert not (folder / "more").exists() and load_exported(folder).class_names == ("r", "s", "t")

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis").write_text("the only copy")
    with pytest.raises(LLPError, match="theirs: is no export, and only one of those is replaced"):
        export_classifier(of_rows(), theirs, "safetensors", overwrite=True)
    assert {place.name for place in tmp_path.iterdir()} == {"rows.pt2", "weights", "theirs"}


@pytest.mark.parametrize(
    ("name", "to", "message"),
    [
        ("a.pt2", "onnx", "a.pt2: files of onnx end in .onnx"),
        ("a.safetensors", "safetensors", "goes to a folder, whose name needs no ending"),
        ("nowhere/a.onnx", "onnx", "nowhere/a.onnx: there is no such directory"),
        ("a.onnx", "onxx", "unknown format 'onxx': did you mean 'onnx'?"),
    ],
)
def test_places_that_cannot_be_written_to(name: str, to: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(LLPError, match=message.replace("?", r"\?")):
        export_classifier(of_rows(), tmp_path / name, to)
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
from torchllp.export import export_classifier, raw_classifier

class Killer(nn.Linear):
    def forward(self, x):
        if not torch.compiler.is_compiling():  # when it is verified, after it was written
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x.flatten(1))

classifier = raw_classifier(Killer(4, 2), ["a", "b"], (1, 2, 2), mean=(0.0,), std=(1.0,))
export_classifier(classifier, Path(sys.argv[1]), "torch-export", overwrite=True)
"""


def test_an_older_file_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"older")
    assert subprocess.run([sys.executable, "-c", KILLED, path], timeout=300).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"older"
    assert os.listdir(next(tmp_path.glob(".export-*"))) == ["model.pt2"]  # it had been written, and not yet moved


def test_a_fitted_estimator_of_a_frame(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": np.where(np.arange(60) % 9 == 0, np.nan, generator.normal(size=60)),
            "colour": pd.Categorical(generator.choice(["red", "blue"], 60)),
        }
    )
    classifier = LLPClassifier(epochs=2, random_state=0).fit(frame, np.arange(60) % 2)
    difference = classifier.export(tmp_path / "c.onnx")
    assert difference is not None and difference < 1e-5
    texts = frame[["colour"]].astype(object).to_numpy()
    found = run_onnx(tmp_path / "c.onnx", {"numbers": frame[["x"]].to_numpy(float), "categories": texts})
    np.testing.assert_allclose(found, classifier.predict_proba(frame), atol=1e-5)
    classifier.export(tmp_path / "c", "safetensors")
    np.testing.assert_allclose(load_exported(tmp_path / "c").predict_proba(frame), found, atol=1e-5)


def test_a_fitted_estimator_of_images(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((24, 8, 8, 3))  # channels last, from 0 to 1
    classifier = LLPClassifier("dllp", epochs=1, random_state=0).fit(images, np.arange(24) % 2)
    classifier.export(tmp_path / "c.pt2", "torch-export")
    levels = torch.from_numpy(np.rint(255 * images).astype(np.uint8)).permute(0, 3, 1, 2)
    found = torch.export.load(tmp_path / "c.pt2").module()(images=levels)
    np.testing.assert_allclose(found.detach().numpy(), classifier.predict_proba(images), atol=1e-5)


class OwnViews:
    def plain(self, rows: Tensor) -> Tensor:
        return 2 * rows


def test_views_of_the_users_own_are_not_exported(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    classifier = LLPClassifier(epochs=1).fit(X, np.arange(20) % 2)
    classifier.views_ = OwnViews()
    with pytest.raises(LLPError, match="views of your own"):
        classifier.export(tmp_path / "c.onnx")
    assert not list(tmp_path.iterdir())
