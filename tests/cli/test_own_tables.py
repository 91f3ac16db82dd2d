"""The user's own tables, from files to predictions. What takes long runs once, in a process of its own."""

import csv
import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from commands import llp
from torchllp import LLPError, Run
from torchllp.cli import main
from torchllp.report.predictions import as_csv, instance_columns
from torchllp.supervision import bags_of, load_supervision

RECIPE = ["--threads", "1", "--optimizer", "sgd", "--lr", "0.1", "--instances-per-step", "128"]  # quick on few rows
SHORT = ["--epochs", "3", *RECIPE]
OURS = ["--id-column", "id", "--label-column", "y"]
CLASSES = ("good", "bad")

KILLED = """
import os, signal, sys
from pathlib import Path
from torchllp.config import Config, read_toml
from torchllp.engine.train import Observer
from torchllp.job import start

class Kill(Observer):
    def on_step(self, epoch, step, num_steps):
        if epoch == 1 and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)

start(Config.layered(read_toml(Path(sys.argv[1]))), Path(sys.argv[2]), observer=Kill())
"""


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def here(*arguments: str | Path) -> Result:
    """The same command in this process: it starts sooner."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main([str(argument) for argument in arguments])
    return Result(code, output.getvalue(), errors.getvalue())


def make_rows(seed: int, num_rows: int = 400, num_bags: int = 40) -> dict[str, np.ndarray]:
    """Two classes that are easily told apart, in bags of very different shares."""
    generator = np.random.default_rng(seed)
    bag = generator.integers(0, num_bags, num_rows)
    is_good = generator.random(num_rows) < generator.random(num_bags)[bag]
    return {
        "bag": np.array([f"{b:03}" for b in bag]),
        "id": np.arange(1000, 1000 + num_rows),
        "x": np.where(is_good, 1.5, -1.5) + generator.normal(size=num_rows),
        "z": generator.normal(size=num_rows),
        "colour": np.where(generator.random(num_rows) < 0.2, "grey", np.where(is_good, "red", "blue")),
        "y": np.where(is_good, *CLASSES),
    }


def make_bags(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    bags = np.unique(rows["bag"])
    return {"bag": bags, **{name: [int((rows["y"][rows["bag"] == b] == name).sum()) for b in bags] for name in CLASSES}}


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    table = pa.table(dict(columns))
    pa.csv.write_csv(table, path) if path.suffix == ".csv" else pq.write_table(table, path)
    return path


def without(columns: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values for name, values in columns.items() if name not in names}


ROWS = make_rows(0)
BAGS = make_bags(ROWS)


@dataclass(frozen=True)
class Work:
    path: Path
    result: subprocess.CompletedProcess[str]

    @property
    def run(self) -> Run:
        return Run.open(self.path / "run")

    @property
    def flags(self) -> list[str]:
        return ["--instances", str(self.path / "rows.csv"), "--bags", str(self.path / "bags.csv")]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A folder with tables, and a run that was trained on them."""
    path = tmp_path_factory.mktemp("work")
    write(path / "rows.csv", ROWS)
    write(path / "bags.csv", BAGS)
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", *OURS, "--epochs", "4", *RECIPE]
    result = llp("train", *flags, "--run", "run", cwd=path)
    assert result.returncode == 0, result.stderr
    return Work(path, result)


def predictions(run: Path, rows: Path, output: Path, *flags: str | Path) -> tuple[list[dict[str, str]], Result]:
    result = here("predict", run, rows, "-o", output, *flags)
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(output.read_text()))), result


def test_training_from_csv_files_says_what_it_understood(work: Work) -> None:
    lines = work.result.stdout.splitlines()
    assert f"{work.path}/bags.csv: the bags are given as counts" in lines
    assert "features: 2 numbers and 1 categories (3 features)" in lines
    assert work.result.stderr == ""
    encoder = json.loads(work.run.data_file.read_text())
    assert encoder["format_version"] == 1
    assert encoder["encoder"]["numbers"] == {"x": 1, "z": 1}
    assert encoder["encoder"]["categories"] == {"colour": ["blue", "grey", "red"]}
    assert work.run.description["data"]["class_names"] == list(CLASSES)
    assert work.run.config.own.instances == f"{work.path}/rows.csv"
    assert work.run.summary["num_bags"] == 40 and work.run.summary["num_held_out"] == 4
    assert work.run.summary["accuracy"]["last"] > 0.9
    assert work.run.summary["tests_on"] == "training instances"


def test_training_from_a_folder_of_parquet_files(work: Work, tmp_path: Path) -> None:
    """By a process of its own, as the other: then even the weights are the same."""
    rows = pa.table(ROWS)
    (tmp_path / "rows").mkdir()
    pq.write_table(rows, tmp_path / "rows" / "0.parquet", row_group_size=100)
    write(tmp_path / "bags.parquet", BAGS)
    flags = ["--instances", "rows", "--bags", "bags.parquet", *OURS, "--epochs", "4", *RECIPE, "--run", "run"]
    result = llp("train", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    run = Run.open(tmp_path / "run")
    assert run.data_file.read_bytes() == work.run.data_file.read_bytes()
    assert run.model_file.read_bytes() == work.run.model_file.read_bytes()


def test_a_killed_run_resumes_exactly(work: Work, tmp_path: Path) -> None:
    path = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, str(work.run.config_file), str(path)]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    result = llp("train", "--resume", path)
    assert result.returncode == 0, result.stderr
    assert "continuing after epoch 1" in result.stdout
    assert Run.open(path).model_file.read_bytes() == work.run.model_file.read_bytes()
    assert Run.open(path).summary["accuracy"] == work.run.summary["accuracy"]


def test_a_run_whose_rows_have_changed_is_not_resumed(work: Work, tmp_path: Path) -> None:
    """It is killed, the rows change, and it is told to go on."""
    rows = write(tmp_path / "rows.csv", ROWS)
    config = work.run.config_file.read_text().replace(f"{work.path}/rows.csv", str(rows))
    (tmp_path / "config.toml").write_text(config)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "config.toml"), str(tmp_path / "run")]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    before = sorted(tmp_path.rglob("*"))
    shifted = {**ROWS, "x": ROWS["x"] + 1}  # the same when standardised, and then predicted wrongly
    reversed_rows = {name: values[::-1] for name, values in ROWS.items()}  # the same means
    for changed in (shifted, reversed_rows):
        write(rows, changed)
        result = here("train", "--resume", tmp_path / "run")
        assert result.returncode == 1
        assert result.stderr == f"llp: {tmp_path}/run: the instances of rows are not those that the run began with\n"
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".lock"] == [
        path for path in before if path.name != ".lock"
    ]


def test_labels_change_nothing_but_the_metrics(work: Work, tmp_path: Path) -> None:
    """The same weights bit for bit with the labels, with wrong ones, and without."""
    wrong = write(tmp_path / "wrong.csv", {**ROWS, "y": ROWS["y"][::-1]})
    unlabelled = write(tmp_path / "unlabelled.csv", without(ROWS, "y"))
    right, ids = work.path / "rows.csv", ["--id-column", "id"]
    models = []
    for i, (rows, flags) in enumerate(
        [(right, OURS), (wrong, OURS), (unlabelled, ids), (right, [*ids, "--id-column", "y"])]
    ):
        path = tmp_path / f"run{i}"
        result = here("train", "--instances", rows, "--bags", work.path / "bags.csv", *flags, *SHORT, "--run", path)
        assert result.returncode == 0, result.stderr
        models.append(Run.open(path).model_file.read_bytes())
        assert ("test/accuracy" in Run.open(path).metrics()[0]) == ("--label-column" in flags)
    assert len(set(models)) == 1


def test_predictions_of_new_rows(work: Work, tmp_path: Path) -> None:
    """To standard output, by a process; to CSV and Parquet, the same."""
    new = without(make_rows(1, 60), "y")
    rows = write(tmp_path / "new.csv", new)
    shown = llp("predict", work.run.path, rows)
    assert shown.returncode == 0 and shown.stderr == ""
    found, result = predictions(work.run.path, rows, tmp_path / "p.csv")
    assert result.stdout == ""
    assert found == list(csv.DictReader(io.StringIO(shown.stdout)))
    assert list(found[0]) == ["row", "id", "bag", "class", "p(good)", "p(bad)"]
    assert [row["id"] for row in found] == [str(value) for value in new["id"]]
    assert [row["bag"] for row in found] == new["bag"].tolist()
    truth = make_rows(1, 60)["y"]
    assert np.mean([row["class"] == label for row, label in zip(found, truth, strict=True)]) > 0.85
    probabilities = np.array([[float(row[f"p({name})"]) for name in CLASSES] for row in found])
    assert [row["class"] for row in found] == np.array(CLASSES)[probabilities.argmax(1)].tolist()

    assert here("predict", work.run.path, rows, "-o", tmp_path / "p.parquet").returncode == 0
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert table["class"] == [row["class"] for row in found] and table["bag"] == new["bag"].tolist()
    np.testing.assert_allclose(table["p(good)"], probabilities[:, 0], rtol=1e-5)


def test_the_rows_trained_on_are_classified_where_none_are_named(work: Work, tmp_path: Path) -> None:
    named, _ = predictions(work.run.path, work.path / "rows.csv", tmp_path / "named.csv")
    assert here("predict", work.run.path, "-o", tmp_path / "not.csv").returncode == 0
    assert (tmp_path / "not.csv").read_text() == (tmp_path / "named.csv").read_text()
    right = np.mean([row["class"] == label for row, label in zip(named, ROWS["y"], strict=True)])
    assert right == pytest.approx(work.run.summary["accuracy"]["chosen"])


def test_proportions_of_bags(work: Work, tmp_path: Path) -> None:
    found, _ = predictions(work.run.path, work.path / "rows.csv", tmp_path / "p.csv", "--by-bag")
    bags = list(csv.DictReader((tmp_path / "p-by-bag.csv").open()))
    assert [row["bag"] for row in bags] == BAGS["bag"].tolist()
    for row in bags:
        mine = [float(one["p(good)"]) for one in found if one["bag"] == row["bag"]]
        assert int(row["size"]) == len(mine)
        assert float(row["p(good)"]) == pytest.approx(np.mean(mine), abs=1e-5)


def test_counts_are_met_in_every_bag_that_is_known(work: Work, tmp_path: Path) -> None:
    few = {name: values[:20] for name, values in BAGS.items()}
    some = write(tmp_path / "some.csv", few)
    plain, _ = predictions(work.run.path, work.path / "rows.csv", tmp_path / "plain.csv")
    met, result = predictions(work.run.path, work.path / "rows.csv", tmp_path / "met.csv", "--respect-counts", some)
    num_others = sum(row["bag"] not in few["bag"] for row in plain)
    assert f"20 bags with {num_others} rows of {work.path}/rows.csv are not in {some}: they are kept" in result.stderr
    for i, bag in enumerate(few["bag"]):
        classes = [row["class"] for row in met if row["bag"] == bag]
        assert {name: classes.count(name) for name in CLASSES} == {name: few[name][i] for name in CLASSES}
    changed = [one["bag"] for one, other in zip(plain, met, strict=True) if one != other]
    assert changed and set(changed) <= set(few["bag"])


def test_counts_of_bags_that_lack_a_class(work: Work, tmp_path: Path) -> None:
    """Nothing can be learnt of it from these bags, but nothing is to be learnt."""
    one = write(tmp_path / "one.csv", {"bag": ["000"], "bad": [0], "good": [int((ROWS["bag"] == "000").sum())]})
    met, _ = predictions(work.run.path, work.path / "rows.csv", tmp_path / "p.csv", "--respect-counts", one)
    assert {row["class"] for row in met if row["bag"] == "000"} == {"good"}


def test_totals_of_held_out_bags_are_matched(work: Work, tmp_path: Path) -> None:
    _, _, _, held_out = load_supervision(work.run.config, bags_of(work.run))
    assert held_out is not None
    matched, _ = predictions(work.run.path, work.path / "rows.csv", tmp_path / "p.csv", "--match-totals")
    classes = [matched[i]["class"] for i in held_out.members]
    assert [classes.count(name) for name in CLASSES] == held_out.counts.sum(0).round().astype(int).tolist()
    assert work.run.description["match_totals"]["of"] == "held-out bags"


def test_evaluation_agrees_with_scikit_learn(work: Work, tmp_path: Path) -> None:
    new = make_rows(2, 150)
    rows = write(tmp_path / "new.parquet", {**without(new, "y"), "truth": new["y"]})
    figure = tmp_path / "c.png"
    result = here(
        "evaluate", work.run.path, "--instances", rows, "--label-column", "truth", "--json", "--figure", figure
    )
    assert result.returncode == 0, result.stderr
    found, _ = predictions(work.run.path, rows, tmp_path / "p.csv")
    classes, is_good = [row["class"] for row in found], new["y"] == "good"
    scores = np.array([float(row["p(good)"]) for row in found])
    numbers = json.loads(result.stdout)
    assert numbers["accuracy"] == pytest.approx(accuracy_score(new["y"], classes))
    assert numbers["macro F1"] == pytest.approx(f1_score(new["y"], classes, average="macro"))
    assert numbers["AUC"] == pytest.approx(roc_auc_score(is_good, scores), abs=1e-4)
    precisions = [average_precision_score(is_good, scores), average_precision_score(~is_good, 1 - scores)]
    assert numbers["average precision"] == pytest.approx(np.mean(precisions), abs=1e-4)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_what_a_new_table_has_too_much_is_noted(work: Work, tmp_path: Path) -> None:
    new = make_rows(3, 20)
    new["colour"][:3] = "pink"
    rows = write(tmp_path / "new.csv", {**new, "more": new["x"], "still more": new["x"]})
    _, result = predictions(work.run.path, rows, tmp_path / "p.csv")
    assert result.stderr.splitlines() == [
        f"{rows}: columns that the model does not know are ignored: 'more', 'still more'",
        f"{rows}: column 'colour': 3 rows have a category that the model does not know",
    ]


def test_an_id_column_may_be_called_row() -> None:
    ids = {"row": np.array(["7", "8"]), "lot": np.array(["a", None])}
    columns = instance_columns(ids, np.array([[0.25, 0.75], [1, 0]]), np.array([1, 0]), CLASSES)
    assert as_csv(columns) == "row,lot,class,p(good),p(bad)\n7,a,bad,0.25,0.75\n8,,good,1,0\n"
    with pytest.raises(LLPError, match="the id column 'class' is called like a column of the predictions"):
        instance_columns({"class": ids["row"]}, np.zeros((2, 2)), np.zeros(2, int), CLASSES)


def test_precomputed_features(work: Work, tmp_path: Path) -> None:
    features = np.stack([ROWS["x"], ROWS["z"], ROWS["x"] * 2], axis=1).astype(np.float32)
    np.save(tmp_path / "emb.npy", features)
    flags = ["--features", tmp_path / "emb.npy", "--model", "linear", "--run", tmp_path / "run"]
    result = here("train", *work.flags, *OURS, *flags, "--epochs", "10", *RECIPE)
    assert result.returncode == 0, result.stderr
    run = Run.open(tmp_path / "run")
    assert run.config.model.name == "linear" and run.summary["accuracy"]["chosen"] > 0.85
    assert {tuple(tensor.shape) for tensor in load_file(run.model_file).values()} >= {(2, 3), (2,)}
    with_keys = write(tmp_path / "keys.csv", {name: ROWS[name] for name in ("bag", "id")})
    found, _ = predictions(run.path, with_keys, tmp_path / "p.csv", "--features", tmp_path / "emb.npy")
    bare, _ = predictions(run.path, tmp_path / "emb.npy", tmp_path / "q.csv")
    assert [row["class"] for row in found] == [row["class"] for row in bare]
    assert list(bare[0]) == ["row", "class", "p(good)", "p(bad)"]
    refused = here("predict", run.path, with_keys)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"llp: {with_keys}: no column 'features' that the model was trained on")


@pytest.mark.parametrize(("bags", "column"), [("natural", "bag"), ("by-feature", "z")])
def test_bags_made_from_the_labels_of_a_table(work: Work, tmp_path: Path, bags: str, column: str) -> None:
    sizes = [] if bags == "natural" else ["--bag-size", "8"]
    flags = ["--bags", bags, "--bag-column", column, *sizes, "--run", tmp_path / "run"]
    result = here("train", "--instances", work.path / "rows.csv", *OURS, *flags, *SHORT)
    assert result.returncode == 0, result.stderr
    found = Run.open(tmp_path / "run")
    made = np.load(found.bags_file)
    if bags == "natural":
        assert made["bag_ids"].tolist() == BAGS["bag"].tolist()
        shares = np.array(BAGS["good"]) / (np.array(BAGS["good"]) + BAGS["bad"])
        np.testing.assert_allclose(made["proportions"][:, list(made["class_names"]).index("good")], shares)
    else:
        ranges = [(ROWS["z"][made["bag_of"] == b].min(), ROWS["z"][made["bag_of"] == b].max()) for b in range(50)]
        assert all(high <= low for (_, high), (low, _) in pairwise(ranges))


def test_check_reads_tables_too(work: Work) -> None:
    result = here("check", *work.flags, *OURS)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("rows: Bags(40 bags of ") and "of which 4 are held out" in result.stdout
    assert f"{work.path}/bags.csv: the bags are given as counts" in result.stdout
    alike = without(ROWS, "x", "z")
    rows = write(work.path / "alike.csv", alike)
    shown = here("check", "--instances", rows, "--bags", work.path / "bags.csv", *OURS).stdout
    assert "identical instances" in shown and "! " in shown


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


def test_a_column_called_folder_is_a_column_like_others(work: Work, tmp_path: Path) -> None:
    """A folder of images is taken as a table with such a column; a table is not taken as a folder."""
    rows = write(tmp_path / "rows.csv", {**without(ROWS, "y"), "folder": ["here"] * 400, "file": ["this"] * 400})
    found, _ = predictions(work.run.path, rows, tmp_path / "p.csv", "--by-bag")
    assert list(found[0]) == ["row", "id", "bag", "class", "p(good)", "p(bad)"]
    assert (tmp_path / "p-by-bag.csv").read_text().startswith("bag,size,p(good),p(bad)\n000,")


def test_whole_numbers_stay_numbers_in_parquet(work: Work, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.parquet", ROWS)
    assert here("predict", work.run.path, rows, "-o", tmp_path / "p.parquet").returncode == 0
    assert pq.read_table(tmp_path / "p.parquet")["id"].to_pylist() == ROWS["id"].tolist()


def test_one_class_is_enough_to_respect_counts(work: Work, tmp_path: Path) -> None:
    """Of two classes one may be said alone; other columns, and bags that have no rows here, do no harm."""
    lone = {"bag": [*BAGS["bag"], "999"], "region": ["north"] * 41, "bad": [*BAGS["bad"], 5]}
    table = write(tmp_path / "bad.csv", lone)
    flags = ("--respect-counts", table, "--bag-values", "counts")
    met, result = predictions(work.run.path, work.path / "rows.csv", tmp_path / "p.csv", *flags)
    assert f"{table}: 1 bags have no row in {work.path}/rows.csv, and are left out" in result.stderr
    for bag, number in zip(BAGS["bag"], BAGS["bad"], strict=True):
        assert sum(row["class"] == "bad" for row in met if row["bag"] == bag) == number


def test_predictions_are_never_written_over_what_is_read(work: Work) -> None:
    for name in ("rows.csv", "bags.csv"):
        before = (work.path / name).read_bytes()
        result = here("predict", work.run.path, work.path / "rows.csv", "-o", work.path / name)
        assert result.returncode == 1 and "is read from, so predictions cannot be written to it" in result.stderr
        assert (work.path / name).read_bytes() == before


def test_bags_of_a_run_are_taken_for_the_same_rows_only(work: Work, tmp_path: Path) -> None:
    """Other features of the same rows are fine; the rows in another order are not."""
    flags = ("--bags-from", work.run.path, *OURS, *SHORT)
    fewer = write(tmp_path / "fewer.csv", without(ROWS, "z"))
    result = here("train", "--instances", fewer, *flags, "--run", tmp_path / "fewer")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "fewer").summary["bags"] == work.run.summary["bags"]
    turned = write(tmp_path / "turned.csv", {name: values[::-1] for name, values in ROWS.items()})
    result = here("train", "--instances", turned, *flags, "--run", tmp_path / "turned")
    assert result.returncode == 1 and "its bags are over other instances than those of turned" in result.stderr
    assert not (tmp_path / "turned").exists()


def test_evaluation_notices_that_the_rows_have_changed(work: Work, tmp_path: Path) -> None:
    """By the means of the new rows the numbers would look as if nothing had happened."""
    copy = tmp_path / "run"
    shutil.copytree(work.run.path, copy)
    scaled = write(tmp_path / "rows.csv", {**ROWS, "x": 100 * ROWS["x"]})
    config = copy / "config.toml"
    config.write_text(config.read_text().replace(f"{work.path}/rows.csv", str(scaled)))
    result = here("evaluate", copy)
    assert result.returncode == 1
    assert result.stderr == f"llp: {copy}: the instances of rows are not those that the run began with\n"


def test_first_weights_of_other_columns_are_refused(work: Work, tmp_path: Path) -> None:
    renamed = {("width" if name == "x" else name): values for name, values in ROWS.items()}
    rows = write(tmp_path / "rows.csv", renamed)
    flags = ("--instances", rows, "--bags", work.path / "bags.csv", *OURS, *SHORT, "--init-from", work.run.path)
    result = here("train", *flags, "--run", tmp_path / "run")
    assert result.returncode == 1 and "was trained on other columns than those of rows" in result.stderr


def test_labels_and_ids_that_are_learnt_from_are_warned_of(work: Work) -> None:
    result = here("check", *work.flags)
    assert (
        f"! {work.path}/rows.csv: column 'y' is learnt from and looks like the label (--label-column)" in result.stdout
    )
    assert f"! {work.path}/rows.csv: column 'id' has another number in every row: is it an id?" in result.stdout
    assert "!" not in here("check", *work.flags, *OURS).stdout


def test_a_class_too_rare_to_be_held_out_is_matched_by_all_bags(tmp_path: Path) -> None:
    rows = make_rows(5)
    rows["y"] = rows["y"].astype("<U8")
    rows["y"][:2] = "rare"
    names = ("good", "bad", "rare")
    bags = np.unique(rows["bag"])
    counts = {name: [int((rows["y"][rows["bag"] == bag] == name).sum()) for bag in bags] for name in names}
    flags = [
        "--instances",
        write(tmp_path / "rows.csv", rows),
        "--bags",
        write(tmp_path / "b.csv", {"bag": bags, **counts}),
    ]
    result = here("train", *flags, *OURS, *SHORT, "--run", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "run").description["match_totals"]["of"] == "all bags"
    found, _ = predictions(tmp_path / "run", tmp_path / "rows.csv", tmp_path / "p.csv", "--match-totals")
    assert sum(row["class"] == "rare" for row in found) == 2


def test_what_was_said_in_a_file_can_be_added_to_by_flags(work: Work, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[own]\ninstances = "{work.path}/rows.csv"\n[data]\nbags = "{work.path}/bags.csv"\n')
    result = here("train", "--config", config, *OURS, "--unlabelled", "drop", *SHORT, "--run", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert here("train", "--config", config, "--dataset", "digits", "--run", tmp_path / "x").returncode == 2


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
        (["--randaugment", "fixed"], "--randaugment is for images: a table has --noise and --corruption"),
        (["--concentration", "2"], "--concentration is for --bags dirichlet"),
        (["--data-dir", "x"], "--data-dir is about data sets of ours, and --instances and --images are yours"),
    ],
)
def test_flags_that_would_change_nothing_are_misuse(work: Work, flags: list[str], message: str) -> None:
    result = here("train", *work.flags, *flags)
    assert (result.returncode, result.stderr) == (2, f"llp: {message}\n")


def test_nothing_to_measure_by_is_said(work: Work, tmp_path: Path) -> None:
    flags = ("--id-column", "id", "--id-column", "y", "--held-out", "0", *SHORT)
    assert here("train", *work.flags, *flags, "--run", tmp_path / "run").returncode == 0
    result = here("evaluate", tmp_path / "run")
    assert result.returncode == 1 and "nothing to measure by" in result.stderr
    unlabelled = write(tmp_path / "rows.csv", {**ROWS, "y": [None] * 400})
    result = here("evaluate", work.run.path, "--instances", unlabelled)
    assert result.returncode == 1 and "no instance has a label, so there is nothing to compare with" in result.stderr
