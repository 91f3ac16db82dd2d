import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchllp import Bags, LLPError
from torchllp.data.bag_table import bag_ids, read_bags
from torchllp.data.table import Table

IDS = ["a", "b", "a", "c", "a", "b"]  # bags of 3, 2 and 1 rows
PROPORTIONS = {"bag": ["c", "a", "b"], "good": [1.0, 0.25, 0.5], "bad": [0.0, 0.75, 0.5]}
COUNTS = {"bag": ["c", "a", "b"], "good": [1, 1, 2], "bad": [0, 2, 0]}


def read(
    table: Any, ids: Any = IDS, columns: tuple[str, ...] = ("bag",), rows: dict | None = None, **options: Any
) -> tuple[Bags, list[str]]:
    of_rows = Table.of(rows or {"bag": pa.array(ids, pa.string())}, "rows")
    return read_bags(Table.of(table, "bags", columns), bag_ids(of_rows, columns), columns, rows=of_rows, **options)


def test_proportions_are_found_out_and_noted() -> None:
    bags, notes = read(PROPORTIONS)
    assert bags.bag_ids.tolist() == ["a", "b", "c"] and bags.bag_of.tolist() == [0, 1, 0, 2, 0, 1]
    assert bags.proportions.tolist() == [[0.25, 0.75], [0.5, 0.5], [1, 0]]
    assert bags.class_names == ("good", "bad")
    assert notes == ["bags: the bags are given as proportions"]


def test_counts_are_found_out_and_noted() -> None:
    bags, notes = read(COUNTS)
    assert bags.counts.tolist() == [[1, 2], [2, 0], [1, 0]]
    assert notes == ["bags: the bags are given as counts"]


def test_what_is_said_is_not_found_out() -> None:
    assert read(COUNTS, values="counts")[1] == []
    with pytest.raises(
        LLPError, match=r"^bags, row 1: the classes \(good, bad\) sum to 3 instead of 1: correct it, or"
    ):
        read(COUNTS, values="proportions")


def test_bags_of_one_row_are_the_same_either_way() -> None:
    table = {"bag": ["a", "b"], "x": [1, 0], "y": [0, 1]}
    assert read(table, ["a", "b"], values="counts")[0].content_hash == read(table, ["a", "b"])[0].content_hash


@pytest.mark.parametrize("source", ["csv", "parquet", "pandas", "polars", "texts", "decimals", "parts"])
def test_the_same_bags_through_every_door(source: str, tmp_path: Path) -> None:
    table = pa.table(PROPORTIONS)
    doors: dict[str, Any] = {"pandas": pd.DataFrame(PROPORTIONS).set_index("bag"), "polars": pl.DataFrame(PROPORTIONS)}
    doors["texts"] = {name: [str(value) for value in values] for name, values in PROPORTIONS.items()}
    doors["decimals"] = table.cast(
        pa.schema([("bag", pa.string()), ("good", pa.decimal128(5, 2)), ("bad", pa.float32())])
    )
    doors["csv"], doors["parquet"], doors["parts"] = tmp_path / "x.csv", tmp_path / "x.parquet", tmp_path / "parts"
    doors["csv"].write_text("bag; good;bad\n c ;1;0\na;0,25;0,75\nb;0,5;0,5\n")
    pq.write_table(table, doors["parquet"])
    doors["parts"].mkdir()
    pq.write_table(pa.table({"bag": ["c"], "good": [1], "bad": [0]}), doors["parts"] / "0.parquet")  # whole numbers
    pq.write_table(table.slice(1), doors["parts"] / "1.parquet")
    assert read(doors[source])[0].content_hash == read(PROPORTIONS)[0].content_hash


def test_the_size_is_checked() -> None:
    sized = COUNTS | {"size": [1, 3, 2], "n": [1, 3, 9]}
    assert read(sized, class_columns=["good", "bad"])[0].content_hash == read(COUNTS)[0].content_hash
    with pytest.raises(LLPError, match=r"^bags, row 2, column 'n': bag 'b' should have 9 rows, and has 2 in rows$"):
        read(sized, class_columns=["good", "bad"], size_column="n")
    with pytest.raises(
        LLPError, match=r"^bags, row 0, column 'size': bag 'c' should have 0.5 rows, and has 1 in rows$"
    ):
        read(COUNTS | {"size": [0.5, 3, 2]})


def test_a_class_may_be_called_size() -> None:
    bags, _ = read({"bag": ["a", "b", "c"], "size": [1, 2, 0], "shape": [2, 0, 1]}, class_columns=["size", "shape"])
    assert bags.class_names == ("size", "shape") and bags.counts.tolist() == [[1, 2], [2, 0], [0, 1]]


def test_class_columns_that_are_named_are_the_only_ones() -> None:
    bags, _ = read(COUNTS | {"region": ["x", "y", "z"], "year": [2020, 2021, 2022]}, class_columns=["bad", "good"])
    assert bags.class_names == ("bad", "good") and bags.counts[0].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("numbers", "values", "shares"),
    [
        ([1.0, 0.25, 0.5], "proportions", [0.25, 0.5, 1]),
        ([1, 3, 0], "counts", [1, 0, 1]),
        ([1 + 1e-12, 0.25, 0.5], "proportions", [0.25, 0.5, 1]),  # a sum of rounded shares
    ],
)
def test_a_single_class_has_the_others_against_it(numbers: list[float], values: str, shares: list[float]) -> None:
    bags, notes = read({"bag": ["c", "a", "b"], "ill": numbers})
    assert bags.class_names == ("not ill", "ill")
    np.testing.assert_allclose(bags.proportions, [[1 - share, share] for share in shares])
    assert notes == [f"bags: the bags are given as {values}"]


def test_a_single_class_of_0_and_1_must_be_said_what_it_is() -> None:
    table = {"bag": ["a", "b", "c"], "ill": [1, 0, 1]}
    with pytest.raises(
        LLPError, match=r"^bags: 0 and 1 alone may be proportions or counts: say which by --bag-values$"
    ):
        read(table)
    assert read(table, values="counts")[0].counts.tolist() == [[2, 1], [2, 0], [0, 1]]
    assert read(table, values="proportions")[0].proportions[:, 1].tolist() == [1, 0, 1]


def test_ids_of_several_columns() -> None:
    rows = {"month": ["may", "may", "june"], "day": [1, 2, 1]}
    table = {"day": ["1", "2", "1"], "x": [1, 0, 0], "month": ["june", "may", "may"], "y": [0, 1, 1]}
    bags, _ = read(table, rows=rows, columns=("month", "day"))
    assert bags.bag_ids.tolist() == ["june / 1", "may / 1", "may / 2"]
    assert bags.proportions.tolist() == [[1, 0], [0, 1], [0, 1]]
    joined = Table.of({"month": ["may", "june / july"], "day": [1, 2]})
    with pytest.raises(LLPError, match=r"^table, row 1, column 'month': 'june / july' has ' / ', which joins the bag"):
        bag_ids(joined, ["month", "day"])
    missing = Table.of({"month": ["may", None], "day": [None, 2]})
    assert bag_ids(missing, ["month", "day"]).tolist() == [None, None]


def test_ids_are_compared_as_they_are_written(tmp_path: Path) -> None:
    """007 is not 7 in a CSV file, and the numbers of a Parquet file are the texts of a CSV file."""
    (tmp_path / "rows.csv").write_text("bag,x\n007,1\n7,2\n7,3\n")
    (tmp_path / "bags.csv").write_text("bag,u,v\n7,1,1\n007,0,1\n")
    rows, table = (Table.of(tmp_path / name, text=["bag"]) for name in ("rows.csv", "bags.csv"))
    bags, _ = read_bags(table, bag_ids(rows, ["bag"]), ["bag"], rows=rows)
    assert bags.bag_ids.tolist() == ["007", "7"] and bags.sizes.tolist() == [1, 2]
    for ids in ([7, 7, 8], [7.0, 7.0, 8.0], pa.array([7, 7, 8], pa.uint8()).dictionary_encode()):
        pq.write_table(pa.table({"bag": ids, "x": [1, 2, 3]}), tmp_path / "rows.parquet")
        (tmp_path / "bags.csv").write_text("bag,u,v\n8,0,1\n7,1,1\n")
        rows, table = (Table.of(tmp_path / name, text=["bag"]) for name in ("rows.parquet", "bags.csv"))
        bags, _ = read_bags(table, bag_ids(rows, ["bag"]), ["bag"], rows=rows)
        assert bags.counts.tolist() == [[1, 1], [0, 1]]


def test_rows_of_bags_that_are_not_in_the_table() -> None:
    ids = [*IDS, "y", "z", "z"]
    what = "2 bags with 3 rows of rows are not in bags"
    kept, notes = read(COUNTS, ids, unlabelled="keep")
    assert notes[1] == f"{what}: they are kept without proportions"
    assert kept.bag_ids.tolist() == ["a", "b", "c", "y", "z"] and kept.is_labelled.tolist() == [True] * 3 + [False] * 2
    dropped, notes = read(COUNTS, ids, unlabelled="drop")
    assert notes[1] == f"{what}: they are dropped"
    assert dropped.bag_of.tolist() == [0, 1, 0, 2, 0, 1, -1, -1, -1]
    with pytest.raises(LLPError, match=rf"^{what} \(first: 'y'\): say --unlabelled keep or --unlabelled drop$"):
        read(COUNTS, ids)


@pytest.mark.parametrize("unlabelled", ["keep", "drop"])
def test_rows_without_an_id_are_in_no_bag(unlabelled: str) -> None:
    ids = ["a", None, "b", "a", "c", "a", "b", None]
    bags, notes = read(COUNTS, ids, unlabelled=unlabelled)
    assert bags.bag_of.tolist() == [0, -1, 1, 0, 2, 0, 1, -1]
    assert notes[1] == "rows: 2 rows have no bag id: they are in no bag"
    with pytest.raises(LLPError, match=r"^rows, row 1: no bag id \(2 such rows in all\): correct it, or say --unlabel"):
        read(COUNTS, ids)


def test_normalize_rescales() -> None:
    percent = {"bag": ["a", "b", "c"], "x": [25, 33.3, 100], "y": [75, 66.6, 0]}
    with pytest.raises(LLPError, match=r"^bags, row 0: the classes sum to 100, so these are no proportions, and not "):
        read(percent)
    bags, _ = read(percent, values="proportions", normalize=True)
    np.testing.assert_allclose(bags.proportions, [[0.25, 0.75], [1 / 3, 2 / 3], [1, 0]], atol=1e-3)
    whole, notes = read({"bag": ["a", "b", "c"], "x": [25, 50, 100], "y": [75, 50, 0]}, normalize=True)
    assert whole.proportions.tolist() == [[0.25, 0.75], [0.5, 0.5], [1, 0]]
    assert notes == ["bags: the bags are given as counts"]


def changed(column: str, row: int, value: Any, table: dict[str, list[Any]] = PROPORTIONS) -> dict[str, Any]:
    return {**table, column: [value if i == row else old for i, old in enumerate(table[column])]}


HINT = "name the columns of the classes by --class-column, if this is none of them"


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (changed("bag", 2, "c"), {}, "bags, row 2, column 'bag': bag 'c' is already in bags, row 0"),
        (changed("bag", 1, None), {}, "bags, row 1, column 'bag': no bag id"),
        (changed("bag", 1, "z"), {}, "bags, row 1: bag 'z' has no row in rows, whose bags are such as 'a'"),
        (changed("bad", 1, -0.5), {}, "bags, row 1, column 'bad': -0.5 is negative"),
        (PROPORTIONS | {"size": [1, None, 2]}, {}, "bags, row 1, column 'size': no value"),
        (
            changed("bad", 1, math.nan) | {"good": [1.0, 1.25, 0.5]},
            {"values": "proportions"},
            "bags, row 1: the observed classes sum to 1.25, more than 1",
        ),
        (changed("good", 0, math.inf), {}, "bags, row 0, column 'good': inf is infinite"),
        (changed("good", 0, -math.inf), {}, "bags, row 0, column 'good': -inf is negative"),
        (PROPORTIONS | {"bad": ["0", "x", "0.5"]}, {}, f"bags, row 1, column 'bad': 'x' is not a number: {HINT}"),
        (PROPORTIONS | {"region": ["u", "v", "w"]}, {}, f"bags, row 0, column 'region': 'u' is not a number: {HINT}"),
        (
            changed("bad", 1, 0.5),
            {"values": "proportions"},
            "bags, row 1: the classes (good, bad) sum to 0.75 instead of 1: correct it, or say --normalize to rescale",
        ),
        (
            changed("bad", 1, 0.5),
            {},
            "bags, row 1: the classes sum to 0.75, so these are no proportions, and not all numbers are whole, so they "
            "are no counts: say --bag-values proportions --normalize to rescale percentages or rounded ones",
        ),
        (
            changed("bad", 1, 3, COUNTS),
            {},
            "bags, row 1: the classes (good, bad) sum to 4 instead of the bag's 3 rows: correct it, or say --normalize "
            "to rescale",
        ),
        (changed("good", 0, 0), {"values": "proportions"}, "bags, row 0: the classes sum to 0"),
        ({"bag": ["a"]}, {}, "bags: no column of a class beside bag"),
        ({"bag": ["a"], "size": [3]}, {}, "bags: no column of a class beside bag, size"),
        ({"lot": ["a"], "x": [1.0]}, {}, "bags: no column 'bag' (it has lot, x)"),
        (PROPORTIONS, {"class_columns": ["good", "ugly"]}, "bags: no column 'ugly' (it has bag, good, bad)"),
        (PROPORTIONS, {"size_column": "n"}, "bags: no column 'n' (it has bag, good, bad)"),
        (
            {"bag": ["a", "b", "c"], "ill": [1, 3, 0]},
            {},
            "bags, row 1, column 'ill': 3 is more than the bag's 2 rows",
        ),
        (
            {"bag": ["a", "b", "c"], "ill": [0.5, 1.5, 0]},
            {"values": "proportions"},
            "bags, row 1, column 'ill': 1.5 is more than 1",
        ),
        (
            {"bag": ["a", "b", "c"], "x": [[1], [2], [3]], "y": [1, 2, 3]},
            {},
            "bags, column 'x': values of type list<item: int64> cannot be taken as names or ids",
        ),
    ],
)
def test_bad_tables_get_one_clear_sentence(table: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(LLPError) as caught:
        read(table, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_missing_number_is_a_class_that_was_not_observed(missing: float | None) -> None:
    bags, notes = read(changed("bad", 1, missing))
    assert notes == ["bags: the bags are given as proportions", "bags: in 1 bags not all classes were observed"]
    np.testing.assert_array_equal(bags.observed, [[True, False], [True, True], [True, True]])
    np.testing.assert_allclose(bags.proportions, [[0.25, 0.75], [0.5, 0.5], [1, 0]])
    nothing_of_a = {"bag": ["c", "a", "b"], "good": [1, missing, 2], "bad": [0, missing, 0]}
    said = "1 bags with 3 rows of rows are not in bags, or none of their classes was observed"
    with pytest.raises(LLPError, match=rf"{said} \(first: 'a'\): say --unlabelled keep or --unlabelled drop"):
        read(nothing_of_a)
    bags, notes = read(nothing_of_a, unlabelled="keep")
    assert notes == ["bags: the bags are given as counts", f"{said}: they are kept without proportions"]
    assert bags.is_labelled.tolist() == [False, True, True]
    single, _ = read({"bag": ["c", "a", "b"], "ill": [0, missing, 2]}, unlabelled="keep")
    assert single.is_labelled.tolist() == [False, True, True] and single.counts[1].tolist() == [0, 2]


def test_the_file_and_the_row_of_a_bad_value(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("bag,x,y\na,1,2\n")
    (tmp_path / "2.csv").write_text("bag,x,y\nc,1,0\nb,2,oops\n")
    with pytest.raises(LLPError) as caught:
        read(tmp_path)
    assert str(caught.value) == f"{tmp_path}/2.csv, row 3, column 'y': 'oops' is not a number: {HINT}"
    (tmp_path / "2.csv").write_text("bag,x,y\nc,1,0\na,2,0\n")
    with pytest.raises(LLPError) as caught:
        read(tmp_path)
    assert str(caught.value) == f"{tmp_path}/2.csv, row 3, column 'bag': bag 'a' is already in {tmp_path}/1.csv, row 2"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2)), min_size=1, max_size=40), st.randoms())
def test_counts_and_proportions_of_labels_give_the_bags_of_the_labels(rows: list[tuple[str, int]], random) -> None:
    ids, labels = [bag for bag, _ in rows], np.array([label for _, label in rows])
    known, bag_of = np.unique(ids, return_inverse=True)
    truth = Bags.from_labels(bag_of, labels, class_names=["x", "y", "z"], bag_ids=known)
    order = random.sample(range(len(known)), len(known))
    for values, numbers in (("counts", truth.counts), ("proportions", truth.proportions)):
        table = {"bag": known[order], **{name: numbers[order, c] for c, name in enumerate("xyz")}}
        bags, _ = read(table, ids, values=values)
        assert bags.bag_ids.tolist() == known.tolist() and bags.bag_of.tolist() == bag_of.tolist()
        np.testing.assert_allclose(bags.proportions, truth.proportions, rtol=1e-12)
