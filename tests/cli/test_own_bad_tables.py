"""Tables and flags that are wrong: one line, and nothing is left."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import here, llp
from own_tables import BAGS, OURS, ROWS, SHORT, Work, without, write
from torchllp import Run


def changed(column: str, row: int, value: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    values = list(table[column])
    values[row] = value
    return {**table, column: values}


BAD: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], list[str], str]] = {
    "stray text": (
        {**ROWS, "x": ["oops", *map(str, ROWS["x"][1:])]},
        BAGS,
        [],
        "{rows}, row 2, column 'x': 'oops' among numbers: correct it, or say --categorical-column",
    ),
    "infinite": (changed("x", 7, float("inf"), ROWS), BAGS, [], "{rows}, row 9, column 'x': the value is infinite"),
    "no bag column": (without(ROWS, "bag"), BAGS, [], "{rows}: no column 'bag' (it has id, x, z, colour, y)"),
    "no label column": (ROWS, BAGS, ["--label-column", "why"], "{rows}: no column 'why' (it has "),
    "no id column": (ROWS, BAGS, ["--id-column", "why"], "{rows}: no column 'why' (it has "),
    "no class column": (ROWS, BAGS, ["--class-column", "ugly"], "{bags}: no column 'ugly' (it has bag, good, bad)"),
    "no such class": (changed("y", 3, "ugly", ROWS), BAGS, OURS, "{rows}, row 5, column 'y': 'ugly' is none of the cl"),
    "no bag": (changed("bag", 3, None, ROWS), BAGS, [], "{rows}, row 5: no bag id (1 such rows in all)"),
    "a bag twice": (ROWS, changed("bag", 1, "000", BAGS), [], "{bags}, row 3, column 'bag': bag '000' is already in "),
    "a bag of nobody": (ROWS, changed("bag", 1, "x", BAGS), [], "{bags}, row 3: bag 'x' has no row in {rows}"),
    "negative": (ROWS, changed("bad", 1, -1, BAGS), [], "{bags}, row 3, column 'bad': -1 is negative"),
    "other counts": (ROWS, changed("bad", 1, 99, BAGS), [], "{bags}, row 3: the classes (good, bad) sum to "),
    "unlabelled": (ROWS, {name: values[1:] for name, values in BAGS.items()}, [], "1 bags with "),
    "no mass": (ROWS, {**BAGS, "ugly": [0] * 40}, [], "{bags}: class 'ugly' is 0 in every bag"),
    "wrong sizes": (ROWS, {**BAGS, "size": [1] * 40}, [], "{bags}, row 2, column 'size': bag '000' should have 1 rows"),
    "a model of images": (ROWS, BAGS, ["--model", "small-cnn"], "model 'small-cnn' reads images"),
    "a recipe of images": (ROWS, BAGS, ["--preset", "paper"], "the paper recipe is for images"),
    "learning labels": (ROWS, BAGS, ["--label-column", "y", "--feature-column", "y"], "'y' is a --feature-column and "),
    "too few features": (ROWS, BAGS, ["--features", "rows.npy"], "{folder}/rows.npy: has 3 rows, and {rows} 400"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_one_line_and_leave_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bags, flags, message = BAD[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.csv", rows)
    write(tmp_path / "bags.csv", bags)
    np.save(tmp_path / "rows.npy", np.zeros((3, 2)))
    before = sorted(tmp_path.rglob("*"))
    result = here("train", "--instances", "rows.csv", "--bags", "bags.csv", *SHORT, *flags)
    where = {"rows": tmp_path / "rows.csv", "bags": tmp_path / "bags.csv", "folder": tmp_path}
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"llp: {message.format(**where)}"), result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["train", "--bag-column", "x"],
            2,
            "--bag-column is about instances of your own: give them by --instances or ",
        ),
        (["check", "--label-column", "x"], 2, "--label-column is about instances of your own"),
        (["train", "--dataset", "digits", "--instances", "rows.csv"], 2, "--dataset is about data sets of ours"),
        (["train", "--instances", "rows.csv", "--bag-values", "percent"], 2, "percent"),
        (
            ["train", "--instances", "rows.csv", "--bags", "naturall"],
            1,
            "naturall: there is no such table of bags, and",
        ),
        (["train", "--instances", "rows.csv"], 2, "say by --bags the table of your bags, or how to make them from"),
        (
            ["train", "--instances", "rows.csv", "--bags", "random"],
            1,
            "rows.csv: nothing is known of the classes: give the table of the b",
        ),
        (["train", "--instances", "nope.csv", "--bags", "bags.csv"], 1, "nope.csv: there is no such file"),
        (["train", "--bags", "bags.csv"], 1, "bags.csv: a table of bags goes with instances of your own"),
        (
            ["train", "--instances", "rows.csv", "--bags", "natural", "--label-column", "y", "--bag-column", "b"],
            1,
            "'b'",
        ),
        (["predict", "RUN", "nope.csv"], 1, "nope.csv: there is no such file"),
        (
            ["predict", "RUN", "bags.csv", "-o", "p.csv"],
            1,
            "bags.csv: no columns 'x', 'z', 'colour' that the model was",
        ),
        (["predict", "RUN", "bad.csv", "-o", "p.csv"], 1, "bad.csv, row 3, column 'x': 'oops' is not a number"),
        (["predict", "RUN", "rows.csv", "-o", "p.txt"], 1, "p.txt: predictions are written to .csv or .parquet files"),
        (["predict", "RUN", "rows.csv", "-o", "nowhere/p.csv"], 1, "nowhere/p.csv: there is no such directory"),
        (["predict", "RUN", "rows.csv", "--by-bag"], 2, "--by-bag writes a second file beside the output"),
        (["predict", "RUN", "rows.csv", "--interval", "0.9"], 2, "--interval 0.9: it is a probability"),
        (["predict", "RUN", "rows.csv", "-o", "p.csv", "--by-bag", "--interval", "90"], 2, "--interval 90: it is"),
        (["predict", "RUN", "rows.csv", "-o", "p.csv", "--respect-counts", "x.csv"], 1, "x.csv: there is no such file"),
        (
            ["predict", "RUN", "rows.csv", "-o", "p.csv", "--respect-counts", "other.csv"],
            1,
            "other.csv: none of the classes good, bad has a column",
        ),
        (["evaluate", "RUN", "--instances", "bags.csv"], 1, "bags.csv: no columns 'x', 'z', 'colour' that the model"),
        (["evaluate", "RUN", "--instances", "rows.csv", "--label-column", "c"], 1, "rows.csv: no column 'c' (it has "),
        (
            ["evaluate", "RUN", "--instances", "rows.csv", "--label-column", "bag"],
            1,
            "is none of the classes good, bad",
        ),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.csv", ROWS)
    write(tmp_path / "bags.csv", BAGS)
    write(tmp_path / "other.csv", {"bag": BAGS["bag"], "up": BAGS["good"], "down": BAGS["bad"]})
    write(tmp_path / "bad.csv", {**ROWS, "x": ["1", "oops", *map(str, ROWS["x"][2:])]})
    before = sorted([*tmp_path.rglob("*"), *work.run.path.rglob("*")])
    result = here(*(work.run.path if argument == "RUN" else argument for argument in arguments))
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith("llp: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted([*tmp_path.rglob("*"), *work.run.path.rglob("*")]) == before


def test_the_advice_for_a_stray_text_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    codes = [str(i % 7) for i in range(399)]
    write(tmp_path / "rows.csv", {**ROWS, "code": ["A1", *codes]})
    write(tmp_path / "bags.csv", BAGS)
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", *OURS, *SHORT, "--run", "run"]
    assert "row 2, column 'code': 'A1' among numbers" in here("train", *flags).stderr
    assert here("train", *flags, "--categorical-column", "code").returncode == 0
    encoder = json.loads(Run.open(tmp_path / "run").data_file.read_text())["encoder"]
    assert encoder["categories"]["code"] == [*map(str, range(7)), "A1"]


def test_a_bad_table_in_a_process(work: Work, tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", changed("x", 7, float("inf"), ROWS))
    result = llp("train", "--instances", "rows.csv", "--bags", work.path / "bags.csv", *SHORT, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"llp: {tmp_path}/rows.csv, row 9, column 'x': the value is infinite\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_labels_and_ids_that_are_learnt_from_are_warned_of(work: Work) -> None:
    result = here("check", *work.flags)
    assert (
        f"! {work.path}/rows.csv: column 'y' is learnt from and looks like the label (--label-column)" in result.stdout
    )
    assert f"! {work.path}/rows.csv: column 'id' has another number in every row: is it an id?" in result.stdout
    assert "!" not in here("check", *work.flags, *OURS).stdout


def test_supervision_without_labels_is_refused_before_anything_is_trained(work: Work, tmp_path: Path) -> None:
    flags = ("--id-column", "id", "--id-column", "y", *SHORT, "--compare", "supervised")
    result = here("train", *work.flags, *flags, "--run", tmp_path / "run")
    assert result.returncode == 1
    assert result.stderr == "llp: supervised learns from labels: name their column by --label-column\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bag-size", "8"], "--bag-size has nothing to do: your bags have their own sizes"),
        (["--flip"], "--flip is for images"),
        (["--randaugment", "fixed"], "--randaugment is for images: rows of features have --noise and --corruption"),
        (["--concentration", "2"], "--concentration is for --bags dirichlet"),
        (["--data-dir", "x"], "--data-dir is about data sets of ours, and --instances and --images are yours"),
    ],
)
def test_flags_that_would_change_nothing_are_misuse(work: Work, flags: list[str], message: str) -> None:
    result = here("train", *work.flags, *flags)
    assert (result.returncode, result.stderr) == (2, f"llp: {message}\n")
