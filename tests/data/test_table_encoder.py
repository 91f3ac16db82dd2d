import datetime
import decimal
import json
import math
import string
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from torchllp import LLPError
from torchllp.data import table as table_module
from torchllp.data.table import Table
from torchllp.data.table_encoder import MOST_CATEGORIES, TableEncoder, _new_features


def fit(columns: Any, categorical: tuple[str, ...] = ()) -> tuple[TableEncoder, Table]:
    table = Table.of(columns)
    return TableEncoder.fit(table, table.column_names, categorical), table


def encode(columns: Any, categorical: tuple[str, ...] = ()) -> list[list[float]]:
    encoder, table = fit(columns, categorical)
    return encoder.transform(table).tolist()


def by_sklearn(train: pd.DataFrame, new: pd.DataFrame, numbers: list[str], texts: list[str]) -> np.ndarray:
    """The same features by another library."""
    fill = SimpleImputer(strategy="constant", fill_value="", missing_values=None)
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    # the mean is taken before the missing values are filled in: filled in first, they would narrow the deviation
    steps = [
        ("numbers", make_pipeline(StandardScaler(), SimpleImputer(strategy="constant", fill_value=0)), numbers),
        ("texts", make_pipeline(fill, one_hot), texts),
    ]
    return np.asarray(ColumnTransformer(steps).fit(train).transform(new))


def frame(seed: int, num_rows: int, colours: list[str]) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    width = generator.normal(1e3, 3, num_rows)
    width[::7] = np.nan
    colour = pd.Series(generator.choice(colours, num_rows), dtype=object)
    colour[::5] = None
    size = pd.Series(generator.choice(["S", "M"], num_rows), dtype=object)
    return pd.DataFrame(
        {"colour": colour, "width": width, "n": generator.integers(0, 9, num_rows), "one": 0.1, "size": size}
    )


def test_features_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    train, new = frame(0, 200, ["red", "blue"]), frame(1, 50, ["red", "green", "blue"])
    for block_rows in (65_536, 16):
        monkeypatch.setattr(table_module, "BLOCK_ROWS", block_rows)
        encoder, table = fit(train)
        for rows, some in ((train, table), (new, Table.of(new))):
            expected = by_sklearn(train, rows, ["width", "n", "one"], ["colour", "size"])
            np.testing.assert_allclose(encoder.transform(some).numpy(), expected, atol=1e-6)


numbers = st.lists(st.none() | st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=2, max_size=20)
texts = st.none() | st.text(string.ascii_letters, min_size=1, max_size=2).filter(lambda text: text.lower() != "na")


@settings(deadline=None, max_examples=50)
@given(numbers.filter(lambda x: set(x) != {None}), st.integers(1, 8), st.data())
def test_any_columns_as_by_scikit_learn_and_back_from_json(values: list[float | None], block: int, data) -> None:
    words = data.draw(st.lists(texts, min_size=len(values), max_size=len(values)).filter(any))
    train = pd.DataFrame({"x": pd.Series(values, dtype=float), "t": pd.Series(words, dtype=object)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "BLOCK_ROWS", block)
        encoder, table = fit({"x": pa.array(values, pa.float64()), "t": pa.array(words, pa.string())})
        features = encoder.transform(table)
    expected = by_sklearn(train, train, ["x"], ["t"])
    np.testing.assert_allclose(features.numpy(), expected, atol=1e-5)
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again.transform(table).equal(features)
    assert encoder.unseen(table) == {}


def test_an_encoder_comes_back_from_json_bit_for_bit() -> None:
    rows = frame(2, 100, ["red", "blue", "grün"])
    encoder, table = fit({**dict(rows), "emb": np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)})
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again.transform(table).equal(encoder.transform(table))
    assert (again.columns, again.is_number) == (encoder.columns, encoder.is_number)
    assert again.summary == encoder.summary == "features: 6 numbers and 2 columns of categories (6 features)"


def test_features_know_their_columns() -> None:
    encoder, table = fit({"t": ["u", "v", "w"], "x": [1, 2, 3], "emb": [[1, 2], [3, 4], [5, 6]], "s": ["a", "b", "a"]})
    assert encoder.column_names == ["x", "emb", "t", "s"]
    assert encoder.columns == (0, 1, 2, 3, 3, 3, 4, 4)
    assert encoder.is_number == (True,) * 3 + (False,) * 5
    assert encoder.transform(table).shape == (3, 8)


def test_missing_and_unseen_values() -> None:
    encoder, _ = fit({"x": [1.0, 3.0, None], "t": ["u", "v", None], "s": ["a", "b", "a"]})
    new = Table.of({"x": pa.nulls(3), "t": [None, "z", "u"], "s": ["a", None, "z"]})
    assert encoder.transform(new).tolist() == [
        [0, 1, 0, 0, 1, 0],  # missing texts were there in training: a category of their own
        [0, 0, 0, 0, 0, 0],  # a text that was not; and no text, where there was always one
        [0, 0, 1, 0, 0, 0],
    ]
    assert encoder.unseen(new) == {"t": 1, "s": 2}


def test_a_column_without_values_in_some_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """StandardScaler.partial_fit forgets the mean, or the deviation, of such a column."""
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 2)
    nothing = [None, None]
    for values in ([*nothing, 10.0, 30.0], [10.0, 30.0, *nothing], [10.0, None, *nothing, 30.0, None]):
        encoder, _ = fit({"x": values})
        assert (encoder.mean.tolist(), encoder.scale.tolist()) == ([20], [10])


def test_features_larger_than_memory_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_rows, num_numbers = 40_000, 50
    generator = np.random.default_rng(0)
    for part in range(4):
        columns = {f"x{i}": generator.normal(size=num_rows // 4).astype(np.float32) for i in range(num_numbers)}
        columns |= {
            "nothing": np.full(num_rows // 4, np.nan),
            "colour": generator.choice(["red", "blue"], num_rows // 4),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=1000)
    for module in ("table", "table_encoder"):
        monkeypatch.setattr(f"torchllp.data.{module}.BLOCK_ROWS", 1000)

    def encoded() -> tuple[TableEncoder, torch.Tensor, torch.Tensor, int]:
        table = Table.of(tmp_path)
        tracemalloc.start()
        encoder, fitted = TableEncoder.fit_transform(table, table.column_names)
        transformed = encoder.transform(table)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return encoder, fitted, transformed, peak

    in_memory = encoded()
    monkeypatch.setattr("torchllp.data.table_encoder.free_memory", lambda device: 2e6)
    on_disk = encoded()
    assert on_disk[0].to_json() == in_memory[0].to_json() and "nothing" not in on_disk[0].numbers
    assert on_disk[1].equal(in_memory[1]) and on_disk[2].equal(in_memory[2])
    size = 4 * num_rows * (num_numbers + 2)
    assert in_memory[3] > 2 * size and on_disk[3] < size / 3


def test_features_larger_than_memory_and_disk() -> None:
    """There is no machine with an exabyte of either."""
    with pytest.raises(LLPError, match=r"the features take 4000000000\.0 GB.* by the environment variable TMPDIR"):
        _new_features(10**15, 1000)


def test_constant_columns_are_zero() -> None:
    features = encode({"x": [0.1] * 1000, "y": [10**9] * 1000})
    np.testing.assert_allclose(features, np.zeros((1000, 2)), atol=1e-9)


@pytest.mark.parametrize(
    "values",
    [
        pa.nulls(2),
        pa.array([None, None], pa.float64()),
        np.array([np.nan, np.nan]),
        pa.array([None, None], pa.string()),
        ["?", ""],
    ],
)
def test_columns_without_any_value_are_left_out_with_a_warning(values: Any) -> None:
    encoder, table = fit({"x": [1, 3], "none": values, "y": [3, 1]})
    assert encoder.transform(table).tolist() == [[-1, 1], [1, -1]]
    assert encoder.warnings == ("table: column 'none' has no value in any row, and is left out",)
    with pytest.raises(LLPError, match=r"^table: no column is left to learn from$"):
        fit({"none": values})


def test_many_categories() -> None:
    names = ["often"] * 50 + [f"id {i:03}" for i in range(150)]
    encoder, table = fit({"t": names})
    assert encoder.warnings == (
        "table: column 't' has 151 different texts, of which the 100 most frequent are told apart: if it is an id, "
        "say so by --id-column",
    )
    assert len(encoder.categories["t"]) == MOST_CATEGORIES and "often" in encoder.categories["t"]
    assert encoder.transform(table).sum(1).tolist() == [1.0] * 149 + [0.0] * 51
    assert encoder.unseen(table) == {"t": 51}


@pytest.mark.parametrize(
    "values",
    [
        [False, True, None],
        [datetime.date(2020, 1, 1), datetime.date(2020, 1, 3), None],
        [datetime.datetime(2020, 1, 1, 1), datetime.datetime(2020, 1, 1, 2), None],
        pa.array([0, 2 * 3600], pa.timestamp("s", "Europe/Berlin")).take(pa.array([0, 1, None])),
        [decimal.Decimal("0.10"), decimal.Decimal("0.30"), None],
        pa.array([1, 3, None], pa.uint8()),
        pa.array([1, 3, None]).dictionary_encode(),
        np.array([1, 3, np.nan], np.float16),
    ],
    ids=["booleans", "dates", "times", "zones", "decimals", "bytes", "dictionary", "half"],
)
def test_what_counts_as_a_number(values: Any) -> None:
    assert encode({"x": values}) == [[-1], [1], [0]]


@pytest.mark.parametrize(
    "values",
    [
        np.array([[1, 2], [3, 6]]),
        np.array([[False, False], [True, True]]),
        [[1, 2], [3, 6]],
        pa.array([[1, 2], [3, 6]], pa.large_list(pa.float32())),
        pa.array([[9, 9], [1, 2], [3, 6]], pa.list_(pa.int8(), 2)).slice(1),
    ],
)
def test_lists_are_precomputed_features(values: Any) -> None:
    assert encode({"emb": values}) == [[-1, -1], [1, 1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": ["1", "2", "three", "4"]}, "table, row 2, column 'x': 'three' among numbers: correct it, or say "),
        ({"x": [1.0, math.inf]}, "table, row 1, column 'x': the value is infinite"),
        ({"y": [1.0, 2], "emb": [[1.0, 2], [-math.inf, 3]]}, "table, row 1, column 'emb': the value is infinite"),
        ({"emb": [[1.0, 2], [math.nan, 3]]}, "table, row 1, column 'emb': a value is missing (NaN) in precomputed"),
        ({"emb": [[1, 2], [None, 3]]}, "table, row 1, column 'emb': a value is missing (NaN) in precomputed features"),
        ({"emb": [[1, 2], [3]]}, "table, row 1, column 'emb': a list of 1 where 2 are expected"),
        ({"emb": [[1, 2], None, [3]]}, "table, row 1, column 'emb': a list of 0 where 2 are expected"),
        ({"emb": [None, [1, 2]]}, "table, row 0, column 'emb': no value, and precomputed features have one list a row"),
        ({"emb": [[], []]}, "table, row 0, column 'emb': no value, and precomputed features have one list a row"),
        ({"emb": [["a"], ["b"]]}, "table: column 'emb' is of type list<item: string>, not lists of numbers"),
        ({"x": [{"a": 1}, {"a": 2}]}, "table: column 'x' is of type struct<a: int64>, and features are numbers, texts"),
        ({"x": [datetime.time(1), datetime.time(2)]}, "table: column 'x' is of type time64[us], and features are"),
    ],
)
def test_columns_that_are_no_features_get_one_clear_sentence(columns: Any, message: str) -> None:
    with pytest.raises(LLPError) as caught:
        fit(columns)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_stray_text_among_numbers_in_a_file(delimiter: str, tmp_path: Path) -> None:
    rows = ["bag;x", "a;1,5", "a;2,5", "a;oops", "b;3"]
    content = "\n".join(rows).replace(",", "." if delimiter == "," else ",").replace(";", delimiter)
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(LLPError) as caught:
        TableEncoder.fit(Table.of(tmp_path / "rows.csv"), ["x"])
    advice = "correct it, or say --categorical-column x if all of them are categories"
    assert str(caught.value) == f"{tmp_path}/rows.csv, row 4, column 'x': 'oops' among numbers: {advice}"
    table = Table.of(tmp_path / "rows.csv", text={"x"})
    encoder = TableEncoder.fit(table, ["x"], categorical=["x"])
    assert len(encoder.categories["x"]) == 4 and encoder.transform(table).sum(1).tolist() == [1] * 4


def test_categories_with_commas_are_known_again(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("bag;size;x\na;1,5;1,5\na;large;2\nb;huge;3\nb;1,5;4\n")
    encoder = TableEncoder.fit(Table.of(tmp_path / "rows.csv"), ["size", "x"])
    assert encoder.categories == {"size": ["1,5", "huge", "large"]} and list(encoder.numbers) == ["x"]
    again = Table.of(tmp_path / "rows.csv", text={"size"})  # as new tables are read
    assert encoder.transform(again)[:, 1:].sum(1).tolist() == [1] * 4


def test_codes_of_a_folder_are_texts_in_every_file(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("x,code\n1,A1\n2,B2\n3,C3\n4,007\n")
    (tmp_path / "2.csv").write_text("x,code\n4,007\n5,12\n")
    encoder = TableEncoder.fit(Table.of(tmp_path), ["x", "code"])
    assert encoder.categories == {"code": ["007", "12", "A1", "B2", "C3"]} and list(encoder.numbers) == ["x"]
    (tmp_path / "1.csv").write_text("x,code\n1,A1\n2,2\n3,3\n")
    with pytest.raises(LLPError, match="'A1' among numbers"):
        TableEncoder.fit(Table.of(tmp_path), ["x", "code"])


def test_large_numbers_below_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 2)
    table = Table.of({"x": [None, 1.7e9, 1.7e9 + 1, 1.7e9 + 2], "y": [None, None, None, 1.7e9], "z": [1, 2, 3, 4]})
    encoder, features = TableEncoder.fit_transform(table, ["x", "y", "z"])
    np.testing.assert_allclose(features, encoder.transform(table), atol=1e-6)
    assert features[1:, 0].unique().tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5], abs=1e-6)


def test_few_numbers_among_texts_are_texts() -> None:
    encoder, _ = fit({"x": ["1", "b", "2", "c"]})
    assert encoder.categories == {"x": ["1", "2", "b", "c"]}


def test_the_rows_of_a_bad_value_in_a_later_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 2)
    for values, message in (
        ([1.0, 2, 3, 4, math.inf], "row 4, column 'x': the value is infinite"),
        (["1", "2", "3", "4", "oops"], "row 4, column 'x': 'oops' among numbers"),
        ([[1], [2], [3], [4, 5]], "row 3, column 'x': a list of 2 where 1 are expected"),
        ([[1.0], [2], [3], [4], [math.nan]], "row 4, column 'x': a value is missing"),
    ):
        with pytest.raises(LLPError, match=message):
            fit({"x": values})
    encoder, _ = fit({"x": [1, 2, 3]})
    with pytest.raises(LLPError, match=r"^table, row 3, column 'x': 'four' is not a number$"):
        encoder.transform(Table.of({"x": ["1", "2", "3", "four"]}))


def test_the_same_numbers_in_other_types_at_prediction() -> None:
    encoder, table = fit({"x": [1, 2, 4], "code": [10, 20, 10]}, categorical=("code",))
    expected = encoder.transform(table)
    for x, code in (
        ([1.0, 2.0, 4.0], [10.0, 20.0, 10.0]),
        (["1", "2.0", " 4 "], ["10", "20 ", "10"]),
        (pa.array([1, 2, 4], pa.int8()), pa.array(["10", "20", "10"]).dictionary_encode()),
        ([decimal.Decimal("1"), decimal.Decimal("2"), decimal.Decimal("4")], pa.array([10, 20, 10], pa.uint8())),
    ):
        new = Table.of({"code": code, "x": x})
        assert encoder.transform(new).equal(expected)
        assert encoder.unseen(new) == {}


@pytest.mark.parametrize("written", ["NA", "?", "", " ", "null"])
def test_a_missing_text_is_missing_however_the_column_is_read(written: str, tmp_path: Path) -> None:
    """Columns are read as written at prediction, and not in training."""
    (tmp_path / "rows.csv").write_text(f"x,t\n1,u\n2,v\n3,{written}\n")
    trained, as_written = (Table.of(tmp_path / "rows.csv", text=text) for text in ((), ("t",)))
    encoder = TableEncoder.fit(trained, ["x", "t"])
    assert encoder.categories == {"t": ["", "u", "v"]}
    assert encoder.transform(as_written).equal(encoder.transform(trained))
    assert encoder.unseen(as_written) == {}


def test_a_table_without_the_columns_of_the_model() -> None:
    encoder, _ = fit({"x": [1, 2], "t": ["a", "b"]})
    with pytest.raises(LLPError, match=r"^table: no column 't' that the model was trained on \(it has x, extra\)$"):
        encoder.transform(Table.of({"x": [1], "extra": [2]}))


@pytest.mark.parametrize("start", [10**15, 10**18, 10**21, 1e30])
def test_numbers_that_hardly_differ_for_their_size_stay_small(start: float) -> None:
    """Their mean is rounded by more than they differ, and would be all that is left of them."""
    table = Table.of({"order": [float(start + 7 * i) for i in range(300)], "x": [float(i % 7) for i in range(300)]})
    encoder, features = TableEncoder.fit_transform(table, table.column_names)
    assert features[:, 0].abs().max() < 20 and features[:, 1].std().item() == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(encoder.transform(table), features, atol=1e-5, rtol=0)
