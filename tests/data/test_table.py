import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchllp import LLPError
from torchllp.data import table as table_module
from torchllp.data.table import Table, as_text
from torchllp.data.table_encoder import TableEncoder


def read(path: Path, content: str | bytes, text: tuple[str, ...] = ()) -> dict[str, list[str | None]]:
    """The columns of a CSV file of this content, as text."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = Table.of(path, text=text)
    return {name: table.texts(name).tolist() for name in table.column_names}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(delimiter: str, file: Path) -> None:
    lines = (["bag", "width"], ["a", "1.5"], ["b", "2.5"])
    content = "".join(delimiter.join(line) + "\n" for line in lines)
    assert read(file, content) == {"bag": ["a", "b"], "width": ["1.5", "2.5"]}
    assert pa.types.is_float64(Table.of(file).type_of("width"))


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("\ufeffa,b\n1,2\n", {"a": ["1"], "b": ["2"]}),  # a byte order mark, as Excel writes it
        ("a,b\r\n1,2\r\n", {"a": ["1"], "b": ["2"]}),
        ('a,b\n"x\ny",2\nz,3\n', {"a": ["x\ny", "z"], "b": ["2", "3"]}),
        ('"a;b;c",d\n1,2\n', {"a;b;c": ["1"], "d": ["2"]}),  # what is quoted delimits nothing
        ("a, b \n1, 2 \n", {"a": ["1"], "b": ["2"]}),
        ("\n\na;b\n1;2\n\n", {"a": ["1"], "b": ["2"]}),
        ("a,b\n1,x\n?,y\nNA,\n,nan\n3,#N/A\n", {"a": ["1", None, None, None, "3"], "b": ["x", "y", None, None, None]}),
        ("a,b\n1, ?\n2, 5\n", {"a": ["1", "2"], "b": [None, "5"]}),
        ("a;b\n1,5;-2,25e1\n,5;3\n", {"a": ["1.5", "0.5"], "b": ["-22.5", "3"]}),
        ('a,b\n"1,5",x\n', {"a": ["1,5"], "b": ["x"]}),  # no decimal comma where commas delimit
        ("a;b\nSmith, J;1\n", {"a": ["Smith, J"], "b": ["1"]}),
        ("ä,b\nß,日本\n", {"ä": ["ß"], "b": ["日本"]}),
    ],
)
def test_what_csv_files_look_like(content: str, columns: dict[str, list[str | None]], file: Path) -> None:
    assert read(file, content) == columns


def test_ids_are_taken_as_they_are_written(file: Path) -> None:
    content = " id ,x\n007, 1\n 7 ,2\nNA,3\n,4\n"
    assert read(file, content, text=("id",)) == {"id": ["007", "7", "NA", None], "x": ["1", "2", "3", "4"]}
    assert read(file, content)["id"] == ["7", "7", None, None]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,4\n5,6,7\n", "not a table that can be read (CSV parse error: Row #4: Expected 2 columns, got 3"),
        (b"a,b\n1,caf\xe9\n", "column 'b' has text that is not UTF-8"),
        (b"caf\xe9,b\n1,2\n", "the text is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "the text is not UTF-8"),
        ("", "not a table that can be read (Empty CSV file)"),
        ("a,b\n", "the table has no rows"),
        ("a,a\n1,2\n", "two columns are called 'a'"),
        ("a,,c\n1,2,3\n", "column 2 has no name in the header"),
        (",a\n0,2\n", "column 1 has no name in the header: an index of pandas is left out by to_csv(index=False)"),
    ],
)
def test_bad_csv_files_get_one_clear_sentence(content: str | bytes, message: str, file: Path) -> None:
    with pytest.raises(LLPError) as caught:
        read(file, content)
    assert str(caught.value).startswith(f"{file}: {message}") and "\n" not in str(caught.value)


def test_text_that_is_not_utf8_far_down_and_in_an_id(file: Path) -> None:
    rows = b"a,b\n" + b"x,1\n" * 100_000 + b"caf\xe9,2\n"
    with pytest.raises(LLPError, match=r"rows\.csv: column 'a' has text that is not UTF-8"):
        read(file, rows)
    with pytest.raises(LLPError, match=r"rows\.csv: .*invalid UTF8"):
        read(file, rows, text=("a",))


def test_parquet_files_in_parts_and_nested_folders(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    (folder / "2021").mkdir(parents=True)
    pq.write_table(pa.table({"bag": ["a", "b"], "petal.width": [1.0, 2.0]}), folder / "0.parquet", row_group_size=1)
    pq.write_table(pa.table({"petal.width": [3], "bag": ["c"]}), folder / "2021" / "0.pq")  # another order and type
    pq.write_table(pa.table({"bag": pa.array(["d"]).dictionary_encode(), "petal.width": [4.0]}), folder / "3.parquet")
    (folder / "_SUCCESS.csv").write_text("")
    (folder / ".hidden.parquet").write_bytes(b"")
    table = Table.of(folder)
    assert table.num_rows == 4
    assert table.texts("bag").tolist() == ["a", "b", "c", "d"]
    assert table.texts("petal.width").tolist() == ["1", "2", "3", "4"]
    for columns in (["bag", "petal.width"], ["petal.width", "bag"]):  # as asked for, whatever the order in the file
        assert all(block.schema.names == columns for block in table.blocks(columns))
    assert [table.place(row) for row in (0, 2, 3)] == [
        f"{folder}/0.parquet, row 0",
        f"{folder}/2021/0.pq, row 0",
        f"{folder}/3.parquet, row 0",
    ]


def test_rows_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("x\n10\n11\n")
    (tmp_path / "2.csv").write_text("x\n")  # no rows
    (tmp_path / "3.csv").write_text("x\n12\nbad\n")
    table = Table.of(tmp_path)
    assert table.place(0) == f"{tmp_path}/1.csv, row 2"  # the header is row 1
    assert table.place(3, "x") == f"{tmp_path}/3.csv, row 3, column 'x'"
    with pytest.raises(LLPError, match=r"3\.csv, row 3, column 'x': 'bad' among numbers"):
        TableEncoder.fit(table, ["x"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("a,b,c\n1,2,3\n", "{1}: has a column 'c' that {0} has not"),
        ("a\n1\n", "{0}: has a column 'b' that {1} has not"),
        ("a,b,b\n1,2,3\n", "{1}: two columns are called 'b'"),
    ],
)
def test_parts_that_do_not_fit_are_named(other: str, message: str, tmp_path: Path) -> None:
    files = tmp_path / "0.csv", tmp_path / "1.csv"
    files[0].write_text("a,b\n1,2\n")
    files[1].write_text(other)
    with pytest.raises(LLPError) as caught:
        Table.of(tmp_path)
    assert str(caught.value) == message.format(*files)


def parquet_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": list(range(1000))}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\n1,2\n" * 10, parquet_bytes()[:-50], parquet_bytes()[:-200] + b"\xff" * 192 + parquet_bytes()[-8:]],
    ids=["empty", "a CSV", "truncated", "broken footer"],
)
def test_what_is_no_parquet_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(content)
    with pytest.raises(LLPError, match=r"rows\.parquet: not a table that can be read \(.+\)$"):
        Table.of(tmp_path / "rows.parquet")


def test_a_parquet_file_that_is_broken_inside(tmp_path: Path) -> None:
    content = parquet_bytes()
    (tmp_path / "rows.parquet").write_bytes(content[:50] + b"\xff" * 1000 + content[1050:])
    with pytest.raises(LLPError, match=r"rows\.parquet: cannot be read"):
        Table.of(tmp_path / "rows.parquet").texts("a")


def test_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.savez(tmp_path / "x.npz", bag=["a", "b", "b"], emb=np.arange(6, dtype=">f8").reshape(3, 2), y=[1, 2, 3])
    assert Table.of(tmp_path / "x.npy").column_names == ["features"]
    table = Table.of(tmp_path / "x.npz")
    assert table.column_names == ["bag", "emb", "y"] and table.texts("bag").tolist() == ["a", "b", "b"]
    one = TableEncoder.fit(Table.of(tmp_path / "x.npy"), ["features"]).transform(Table.of(tmp_path / "x.npy"))
    assert one.equal(TableEncoder.fit(table, ["emb"]).transform(table))


SHAPE = ", column 'a': values have shape [rows] or, as numbers, [rows, features]"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"a": np.zeros((2, 2, 2))},
            ", column 'a': values have shape [rows] or, as numbers, [rows, features], not (2, ",
        ),
        (
            {"a": np.zeros((2, 0))},
            ", column 'a': values have shape [rows] or, as numbers, [rows, features], not (2, 0)",
        ),
        ({"a": np.array([["x"]])}, f"{SHAPE}, not (1, 1)"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, ": not a table that Arrow can take (Column 1 named b expected length 2"),
        ({"a": np.array([{}])}, ": not a file of plain arrays that can be read (Object arrays"),
    ],
)
def test_bad_archives(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # pyrefly: ignore
    with pytest.raises(LLPError) as caught:
        Table.of(tmp_path / "x.npz")
    assert str(caught.value).startswith(f"{tmp_path}/x.npz{message}")


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"\x93NUMPY\x01\x00"])
def test_what_is_no_numpy_file(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LLPError, match=rf"{name}: not a file of plain arrays that can be read"):
        Table.of(tmp_path / name)


def test_a_vector_is_no_matrix_of_features(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(LLPError) as caught:
        Table.of(tmp_path / "x.npy")
    message = "one row of features an instance has shape [rows, features], not (3,)"
    assert str(caught.value) == f"{tmp_path}/x.npy: {message}"


def test_paths_that_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("nope.csv", "there is no such file"),
        ("rows.xlsx", "tables are .csv, .tsv, .txt, .parquet, .npy or .npz files, or folders of them"),
        ("empty", "no CSV or Parquet file in this folder"),
    ):
        with pytest.raises(LLPError) as caught:
            Table.of(tmp_path / name)
        assert str(caught.value) == f"{tmp_path}/{name}: {message}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(file: Path) -> None:
    file.write_text("a\n1\n")
    file.chmod(0)
    with pytest.raises(LLPError, match=r"rows\.csv: .*Permission denied"):
        Table.of(file)


ROWS: dict[str, list[Any]] = {
    "bag": ["07", "8", "8", "07", "9"] * 20,
    "colour": ["red", "blue", None, "red", "green"] * 20,
    "count": [1, 2, 3, 4, 5] * 20,
    "width": [0.1, None, 2.5, -3.0, 1e6] * 20,
    "never": [None] * 100,
    "flag": [True, False, None, True, True] * 20,
    "day": [datetime.date(2020, 1, 1 + i % 28) for i in range(100)],
}
ARROW = pa.table({**ROWS, "never": pa.array(ROWS["never"], pa.float64())})


def csv_file(folder: Path, delimiter: str = ",") -> Path:
    pa.csv.write_csv(ARROW, folder / "rows.csv", pa.csv.WriteOptions(delimiter=delimiter))
    return folder / "rows.csv"


def parquet_file(folder: Path, **options: Any) -> Path:
    pq.write_table(ARROW, folder / "rows.parquet", **options)
    return folder / "rows.parquet"


def parquet_folder(folder: Path) -> Path:
    for part in range(4):
        (folder / f"p{part}").mkdir()
        pq.write_table(ARROW.slice(part * 25, 25), folder / f"p{part}" / "x.parquet")
    return folder


def archive(folder: Path) -> Path:
    nan = {"width": np.array(ROWS["width"], dtype=float), "never": np.full(100, np.nan)}
    nan["flag"] = np.array([np.nan if value is None else value for value in ROWS["flag"]], dtype=float)
    texts = {"bag": np.array(ROWS["bag"]), "colour": np.array([value or "" for value in ROWS["colour"]])}
    np.savez(folder / "rows.npz", **texts, **nan, count=ROWS["count"], day=np.array(ROWS["day"], "datetime64[D]"))
    return folder / "rows.npz"


DOORS: dict[str, Callable[[Path], Any]] = {
    "csv": csv_file,
    "semicolons": lambda folder: csv_file(folder, ";"),
    "parquet": parquet_file,
    "row groups": lambda folder: parquet_file(folder, row_group_size=7),
    "parquet folder": parquet_folder,
    "npz": archive,
    "pandas": lambda _: ARROW.to_pandas(),
    "pandas categories": lambda _: ARROW.to_pandas().astype({"colour": "category"}),
    "pandas objects": lambda _: pd.DataFrame(ROWS),
    "polars": lambda _: pl.from_arrow(ARROW),
    "polars categories": lambda _: pl.DataFrame(pl.from_arrow(ARROW)).cast({"colour": pl.Categorical}),
    "arrow": lambda _: ARROW,
    "dictionary": lambda _: ARROW.set_column(1, "colour", ARROW.column("colour").dictionary_encode()),
    "lists": lambda _: ROWS,
    "columns of pandas": lambda _: dict(pd.DataFrame(ROWS)),
}
FEATURES = ["colour", "count", "width", "never", "flag", "day"]


@pytest.mark.parametrize("door", DOORS)
def test_the_same_table_through_every_door(door: str, tmp_path: Path) -> None:
    expected = TableEncoder.fit(Table.of(ARROW), FEATURES)
    table = Table.of(DOORS[door](tmp_path), text={"bag"})
    encoder = TableEncoder.fit(table, FEATURES)
    assert table.texts("bag").tolist() == ROWS["bag"]
    assert encoder.numbers.keys() == {"count", "width", "flag", "day"} and len(encoder.warnings) == 1
    if door == "parquet folder":  # whose blocks are others, so sums are rounded otherwise
        assert encoder.transform(table).allclose(expected.transform(Table.of(ARROW)), atol=1e-6)
    else:
        assert encoder.to_json() == expected.to_json()
    assert expected.transform(table).equal(expected.transform(Table.of(ARROW)))
    assert expected.unseen(table) == {}


@pytest.mark.parametrize("door", ["csv", "row groups", "parquet folder", "pandas", "lists"])
def test_small_blocks_give_the_same_as_the_whole(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TableEncoder.fit(Table.of(ARROW), FEATURES)
    features = whole.transform(Table.of(ARROW))
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 3)
    table = Table.of(DOORS[door](tmp_path))
    assert max(block.num_rows for block in table.blocks(["bag"])) <= 3
    encoder = TableEncoder.fit(table, FEATURES)
    assert encoder.categories == whole.categories
    np.testing.assert_allclose(encoder.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(encoder.scale, whole.scale, rtol=1e-12)
    assert whole.transform(table).equal(features)


def test_blocks_do_not_depend_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 8)
    chunks = pa.concat_tables([ARROW.slice(0, 5), ARROW.slice(5)])
    for source in (csv_file(tmp_path), parquet_file(tmp_path, row_group_size=7), chunks):
        sizes = [block.num_rows for block in Table.of(source).blocks(["count", "bag"])]
        assert sizes == [8] * 12 + [4]


def test_an_empty_part_is_no_obstacle(tmp_path: Path) -> None:
    """Spark writes such parts."""
    rows = pa.table({"bag": ["a", "b"], "emb": [[1.0, 2.0], [3.0, 4.0]]})
    pq.write_table(rows.slice(0, 0), tmp_path / "0.parquet")
    pq.write_table(rows, tmp_path / "1.parquet")
    table = Table.of(tmp_path)
    assert table.texts("bag").tolist() == ["a", "b"] and table.place(1) == f"{tmp_path}/1.parquet, row 1"
    assert TableEncoder.fit(table, ["emb"]).transform(table).tolist() == [[-1, -1], [1, 1]]


def test_the_index_of_a_frame() -> None:
    """A nameless one is dropped; one with a name is a column, as that of a frame made by groupby."""
    frame = pd.DataFrame({"bag": ["a", "a", "b"], "y": ["u", "v", "u"]})
    shares = frame.groupby("bag")["y"].value_counts(normalize=True).unstack(fill_value=0)
    assert sorted(Table.of(shares).column_names) == ["bag", "u", "v"]
    assert Table.of(frame.iloc[[2, 0]]).column_names == ["bag", "y"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": [1, "x"]}, r"table, column 'a': not values of one kind"),
        (pd.DataFrame({"a": [1, "x"]}), "table: not a table that Arrow can take"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "table: .*Duplicate column names"),
        ({"a": [1, 2], "b": [1]}, "table: not a table that Arrow can take"),
        ({}, "table: the table has no rows"),
        (3, "table: not a table that Arrow can take"),
    ],
)
def test_bad_frames(source: Any, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        Table.of(source)


def test_columns_that_are_not_there() -> None:
    table = Table.of({f"c{i}": [1] for i in range(30)})
    with pytest.raises(LLPError, match=r"^table: no columns 'x', 'y' for this \(it has c0, .*, c19, \.\.\.\)$"):
        table.need(["c3", "x", "y"], " for this")
    with pytest.raises(LLPError, match=r"^table: no column 'x' \(it has a\)$"):
        Table.of({"a": [1]}).need(["x"])
    with pytest.raises(LLPError, match=r"^table: no column 'x' \(it has x y, as one: columns are parted by commas, "):
        Table.of({"x y": ["1 2"]}).need(["x"])


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([7.0, 2.5, None, float("nan")]), ["7", "2.5", None, None]),
        (pa.array([123456789012.0, 1e20, float("inf"), -0.0]), ["123456789012", "1e+20", "inf", "0"]),
        (pa.array([0.1, 7.0], pa.float32()), ["0.1", "7"]),
        (pa.array(np.array([1.5, 2], np.float16)), ["1.5", "2"]),
        (pa.array([7, None], pa.uint8()), ["7", None]),
        (pa.array([7.0, None]).dictionary_encode(), ["7", None]),
        (pa.array(["x", ""]), ["x", None]),
        (pa.array([datetime.date(2020, 1, 2)]), ["2020-01-02"]),
        (pa.nulls(2), [None, None]),
    ],
)
def test_values_as_text(values: pa.Array, texts: list[str | None]) -> None:
    assert as_text(values, "x").to_pylist() == texts


def test_lists_are_no_ids() -> None:
    with pytest.raises(LLPError, match=r"^table, column 'a': values of type list<.*> cannot be taken as names or ids$"):
        Table.of({"a": [[1], [2]]}).texts("a")


@given(st.lists(st.integers(-(2**53) + 1, 2**53 - 1), min_size=1))
def test_a_whole_number_is_the_same_text_in_every_type(values: list[int]) -> None:
    expected = [str(value) for value in values]
    assert as_text(pa.array(values), "x").to_pylist() == expected
    assert as_text(pa.array(values, pa.float64()), "x").to_pylist() == expected
