import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from torchllp import LLPError
from torchllp.data.own import load_table, read_labels, read_own
from torchllp.data.readers import Columns, TableReader
from torchllp.data.table import Table

ROWS: dict[str, list[Any]] = {
    "bag": ["a", "a", "b", "b"],
    "id": [11, 12, 13, 14],
    "width": [1.0, 2.0, 3.0, 6.0],
    "colour": ["red", "blue", "red", "blue"],
    "y": ["good", "bad", "bad", None],
}
BAGS = {"bag": ["b", "a"], "good": [0.0, 0.5], "bad": [1.0, 0.5]}
NO_FEATURES = {"label_column": "y", "id_column": "id"}


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, dict])
def test_frames_become_a_data_set_and_bags(frame) -> None:
    data, bags = load_table(frame(ROWS), frame(BAGS), **NO_FEATURES)
    assert data.encoder is not None and data.encoder.column_names == ["width", "colour"]
    assert data.train.inputs.shape == (4, 3) and data.train.inputs.dtype == torch.float32
    assert data.class_names == bags.class_names == ("good", "bad")
    assert bags.bag_ids.tolist() == ["a", "b"] and bags.proportions.tolist() == [[0.5, 0.5], [0, 1]]
    assert data.train.labels is not None and data.train.labels.tolist() == [0, 1, 1, -1]
    assert data.test is data.train and data.tests_on == "training instances"
    assert data.notes == ("the bag table: the bags are given as proportions",)


def test_labels_are_no_features() -> None:
    """The features are the same with the labels, with others, and without."""
    without = {name: values for name, values in ROWS.items() if name != "y"}
    features = load_table(without, BAGS, id_column="id")[0].train.inputs
    for labels in (ROWS["y"], ["bad"] * 4):
        data, _ = load_table({**ROWS, "y": labels}, BAGS, **NO_FEATURES)
        assert data.train.inputs.equal(features)
    assert load_table(without, BAGS)[0].test is None


def test_the_columns_that_are_named_are_the_features() -> None:
    data, _ = load_table(ROWS, BAGS, feature_column=["colour", "id"], categorical_column="id")
    assert data.encoder is not None
    assert data.encoder.categories == {"colour": ["blue", "red"], "id": ["11", "12", "13", "14"]}
    assert data.encoder.numbers == {}


def test_features_of_another_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 0], [3, 0], [1, 0], [3, 0]], dtype=np.float32))
    data, _ = load_table(ROWS, BAGS, features=tmp_path / "x.npy")
    assert data.train.inputs.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0]]
    with pytest.raises(LLPError, match=r"^the features: has 3 rows, and the instances 4$"):
        load_table(ROWS, BAGS, features=np.zeros((3, 2)))


def test_a_test_table_is_read_like_the_training_rows() -> None:
    test = {"colour": ["green", "red"], "width": [3, 1], "y": ["bad", "good"], "more": [1, 2]}
    data, _ = load_table(ROWS, BAGS, test=test, **NO_FEATURES)
    assert data.test is not None and data.test.labels is not None
    assert data.test.labels.tolist() == [1, 0] and data.tests_on == "test instances"
    assert data.test.inputs[0].tolist() == [0, 0, 0]  # the mean of the training rows, and no colour of theirs
    assert data.test.inputs[1].equal(data.train.inputs[0])
    unlabelled_rows = {name: values for name, values in ROWS.items() if name != "y"}
    data, _ = load_table(unlabelled_rows, BAGS, test=test, **NO_FEATURES)
    assert data.train.labels is None and data.test is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "z"}, r"^the instances: no column 'z' \(it has bag, id, width, colour, y\)$"),
        ({"id_column": "z"}, r"^the instances: no column 'z' "),
        ({"bag_column": "lot"}, r"^the instances: no column 'lot' "),
        ({"feature_column": ["width", "z"]}, r"^the instances: no column 'z' "),
        ({"categorical_column": "z"}, r"^the instances: no column 'z' "),
        (
            {"feature_column": ["width", "y"], "label_column": "y"},
            r"^'y' is a --feature-column and the --label-column: labels are never learnt from$",
        ),
        ({"class_column": "z"}, r"^the bag table: no column 'z' \(it has bag, good, bad\)$"),
        ({"test": {"width": [1]}, **NO_FEATURES}, "^the instances: no column 'colour' that the model was trained on "),
        ({"test": {"width": [1], "colour": ["red"]}, **NO_FEATURES}, "^the instances: no column 'y' "),
        ({"test": ROWS}, "^the instances: name the column with the classes by --label-column$"),
        (
            {"test": {"width": [1, 2], "colour": ["red"] * 2, "y": ["good", "ugly"]}, **NO_FEATURES},
            "^the instances, row 1, column 'y': 'ugly' is none of the classes good, bad$",
        ),
    ],
)
def test_what_does_not_fit_gets_one_clear_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LLPError, match=message):
        load_table(ROWS, BAGS, **options)


def test_a_class_without_any_mass_teaches_nothing() -> None:
    with pytest.raises(LLPError) as caught:
        load_table(ROWS, {**BAGS, "ugly": [0, 0]})
    assert str(caught.value) == (
        "the bag table: class 'ugly' is 0 in every bag, so nothing can be learnt of it: leave its column out"
    )


def test_labels_that_are_none_of_the_classes() -> None:
    with pytest.raises(LLPError, match=r"^the instances, row 2, column 'y': 'ugly' is none of the classes good, bad$"):
        load_table({**ROWS, "y": ["good", "bad", "ugly", "bad"]}, BAGS, **NO_FEATURES)


def test_nothing_is_known_of_the_classes() -> None:
    with pytest.raises(LLPError, match=r"^the instances: nothing is known of the classes: give the table of the bags "):
        read_own(Columns(), instances=ROWS)


def test_classes_of_a_label_column() -> None:
    assert read_labels(Table.of({"y": [10, 9, None, 10]}), "y", None)[0] == ("9", "10")
    assert read_labels(Table.of({"y": ["10.0", "2.0", "2.5"]}), "y", None)[0] == ("2.0", "2.5", "10.0")
    names, labels = read_labels(Table.of({"y": [1.0, 0.0, math.nan]}), "y", None)
    assert names == ("0", "1") and labels.tolist() == [1, 0, -1]
    assert read_labels(Table.of({"y": ["b", "2", "a", "10"]}), "y", None)[0] == ("2", "10", "a", "b")


def test_ids_without_a_bag_table() -> None:
    own = read_own(Columns(label="y", id=("id",)), instances=ROWS)
    assert own.bags is None and own.bag_ids is not None and own.bag_ids.tolist() == ["a", "a", "b", "b"]
    without = {name: values for name, values in ROWS.items() if name != "bag"}
    assert read_own(Columns(label="y"), instances=without).bag_ids is None
    with pytest.raises(LLPError, match=r"^the instances: no column 'lot' "):
        read_own(Columns(bag=("lot",), label="y"), instances=ROWS)


def test_a_reader_reads_new_rows_as_those_trained_on(tmp_path: Path) -> None:
    """Though categories that look like numbers, or like missing values, are typed otherwise in a small file."""
    (tmp_path / "rows.csv").write_text("bag,code,t\na,01,u\na,02,NA\nb,01,v\nb,x,7\nb,y,u\nb,z,u\n")
    columns = Columns()
    data = read_own(columns, instances=tmp_path / "rows.csv", bags={"bag": ["a", "b"], "p": [1, 1], "q": [1, 3]}).data
    assert data.encoder is not None
    reader = TableReader(data.encoder, columns)
    for row, line in enumerate(["01,u", "02,NA", "01,v", "x,7", "y,u", "z,u"]):
        (tmp_path / "new.csv").write_text(f"code,t\n{line}\n")
        assert reader.read(tmp_path / "new.csv")[1][0].equal(data.train.inputs[row])
