"""The exported module against plain loops, and against the library's own preparation."""

import math

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.export.classifier import ImageClassifier, RowClassifier


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(x - max(row)) for x in row]
    return [power / sum(powers) for power in powers]


def identity(width: int) -> nn.Module:
    """A model whose logits are its inputs."""
    linear = nn.Linear(width, width, bias=False)
    nn.init.eye_(linear.weight)
    return nn.Sequential(nn.Flatten(), linear)


def test_images_are_normalised_in_the_module() -> None:
    images = np.random.default_rng(0).integers(256, size=(3, 2, 1, 2), dtype=np.uint8)
    mean, std = (0.25, 0.75), (0.5, 0.125)
    whole = ImageClassifier(identity(4), ["a", "b", "c", "d"], (2, 1, 2), mean=mean, std=std)
    for image, found in zip(images, whole.predict_proba(images), strict=True):
        row = [(image[c, 0, x] / 255 - mean[c]) / std[c] for c in range(2) for x in range(2)]
        np.testing.assert_allclose(found, softmax(row), atol=1e-6)
    np.testing.assert_allclose(whole.predict_proba(images), whole.expected(images), atol=1e-6)


COLOURS = st.sampled_from(["red", "blue", " blue ", "", "ü\U0001f3a8", "N/A", "7"]) | st.none()
ROWS = st.lists(
    st.tuples(st.none() | st.floats(-1e3, 1e3), COLOURS, st.integers(-5, 5), st.booleans()), min_size=2, max_size=8
)


def arrow(rows: list[tuple]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    types = [pa.float64(), pa.string(), pa.int64(), pa.bool_()]
    return pa.table({name: pa.array(c, kind) for name, c, kind in zip("abcd", columns, types, strict=True)})


@settings(deadline=None, max_examples=50)
@given(fitted=ROWS, new=ROWS)
def test_rows_are_prepared_in_the_module(fitted: list[tuple], new: list[tuple]) -> None:
    """Numbers, missing ones too, and categories that were never seen, as loops over plain Python values."""
    fitted = [*fitted, (1.0, "red", 0, False)]  # no column without a value
    encoder = TableEncoder.fit(Table.of(arrow(fitted)), list("abcd"), categorical=["b"])
    whole = RowClassifier(identity(len(encoder.columns)), [str(c) for c in range(len(encoder.columns))], encoder)

    def text(value: str | None) -> str:
        value = (value or "").strip()
        return "" if value == "N/A" else value

    numbers: list[list[float]] = []
    for column in (0, 2, 3):
        known = [float(row[column]) for row in fitted if row[column] is not None]
        mean = math.fsum(known) / len(known)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in known) / len(known))
        std = std if std > 1e-6 * max(1.0, abs(mean)) else 1.0  # a constant
        numbers.append([0.0 if row[column] is None else (float(row[column]) - mean) / std for row in new])
    names = sorted({text(row[1]) for row in fitted})
    found = whole.predict_proba(arrow(new))
    for i, row in enumerate(new):
        one_hot = [float(text(row[1]) == name) for name in names]
        np.testing.assert_allclose(found[i], softmax([column[i] for column in numbers] + one_hot), atol=1e-4)
    np.testing.assert_allclose(found, whole.expected(arrow(new)), atol=1e-7)


def test_large_numbers_keep_their_digits() -> None:
    """Seconds of one day in 2024: float32 has no digit left for them."""
    day = {"when": np.datetime64("2024-05-01T12:00:00", "s") + np.arange(50)}
    encoder = TableEncoder.fit(Table.of(day), ["when"])
    whole = RowClassifier(nn.Linear(1, 2), ["a", "b"], encoder)
    assert whole.inputs(day)["numbers"].dtype == np.float64
    np.testing.assert_allclose(whole.predict_proba(day), whole.expected(day), atol=1e-7)
    assert len(np.unique(whole.predict_proba(day)[:, 0])) == 50


def test_lists_of_features_and_categories_alone() -> None:
    rows = {"features": np.arange(12.0).reshape(4, 3)}
    of_lists = RowClassifier(identity(3), list("abc"), TableEncoder.fit(Table.of(rows), ["features"]))
    assert {name: x.shape for name, x in of_lists.inputs(rows).items()} == {"numbers": (4, 3)}
    assert of_lists.describe(texts=True)["inputs"]["numbers"]["columns"] == {"features": 3}
    np.testing.assert_allclose(of_lists.predict_proba(rows), of_lists.expected(rows), atol=1e-7)

    rows = {"colour": ["red", "blue"]}
    of_texts = RowClassifier(nn.Identity(), list("ab"), TableEncoder.fit(Table.of(rows), ["colour"]))
    assert of_texts.tensors(of_texts.inputs({"colour": ["blue", "green", "red"]}))["codes"].tolist() == [[0], [-1], [1]]
    assert of_texts.describe(texts=False)["inputs"].keys() == {"codes"}


def test_made_up_rows_have_what_is_missing_and_unknown() -> None:
    rows = {"x": [1.0, 2.0], "colour": ["red", "blue"]}
    whole = RowClassifier(nn.Identity(), list("abc"), TableEncoder.fit(Table.of(rows), ["x", "colour"]))
    tensors = whole.tensors(whole.inputs(whole.made_up(20)))
    assert tensors["numbers"].isnan().any() and set(tensors["codes"].flatten().tolist()) == {-1, 0, 1}


def test_a_model_of_the_caller_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten()).to(memory_format=torch.channels_last)
    whole = ImageClassifier(model, ["a", "b"], (3, 1, 1), mean=(0, 0, 0), std=(1, 1, 1))
    assert model.training and not whole.model.training


def test_a_temperature_divides_the_logits() -> None:
    model = identity(3)
    images = torch.randint(256, (5, 1, 1, 3), dtype=torch.uint8)
    sharp = ImageClassifier(model, list("abc"), (1, 1, 3), mean=(0,), std=(1,), temperature=0.25)
    plain = ImageClassifier(model, list("abc"), (1, 1, 3), mean=(0,), std=(1,))
    expected = plain(images) ** 4
    torch.testing.assert_close(sharp(images), expected / expected.sum(1, keepdim=True))
    np.testing.assert_allclose(sharp.expected(images), sharp(images).detach(), atol=1e-6)
