"""Predictions and evaluation of the user's own tables."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    recall_score,
    roc_auc_score,
)

from commands import here, llp
from own_tables import (
    BAGS,
    CLASSES,
    OURS,
    ROWS,
    SHORT,
    Work,
    make_rows,
    predictions,
    without,
    write,
)
from torchllp import LLPError, Run
from torchllp.report.predictions import as_csv, instance_columns
from torchllp.supervision import bags_of, load_supervision


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


def test_the_second_file_replaces_nothing_that_is_read(work: Work, tmp_path: Path) -> None:
    known = tmp_path / "p-by-bag.csv"
    known.write_bytes((work.path / "bags.csv").read_bytes())
    flags = ["-o", tmp_path / "p.csv", "--by-bag", "--respect-counts", known]
    result = here("predict", work.run.path, work.path / "rows.csv", *flags)
    assert result.returncode == 1 and f"{known}: is read from" in result.stderr
    assert known.read_bytes() == (work.path / "bags.csv").read_bytes() and not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("flags", [["--normalize"], ["--bag-values", "counts"], ["--data-dir", "nowhere"]])
def test_flags_that_would_do_nothing_are_refused(work: Work, flags: list[str]) -> None:
    result = here("predict", work.run.path, work.path / "rows.csv", *flags)
    assert result.returncode == 2 and flags[0] in result.stderr and len(result.stderr.splitlines()) == 1


def test_intervals_of_bags(work: Work, tmp_path: Path) -> None:
    predictions(work.run.path, work.path / "rows.csv", tmp_path / "p.csv", "--by-bag", "--interval", "0.9")
    bags = list(csv.DictReader((tmp_path / "p-by-bag.csv").open()))
    assert list(bags[0])[2:] == ["p(good)", "p(bad)", "low(good)", "low(bad)", "high(good)", "high(bad)"]
    for row in bags:
        assert 0 <= float(row["low(good)"]) <= float(row["high(good)"]) <= 1
        assert float(row["low(bad)"]) == pytest.approx(1 - float(row["high(good)"]), abs=0.02)


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
    assert numbers["confusion"] == confusion_matrix(new["y"], classes, labels=CLASSES).tolist()
    recalls = recall_score(new["y"], classes, labels=CLASSES, average=None)
    assert [numbers["classes"][name]["recall"] for name in CLASSES] == pytest.approx(recalls.tolist())
    assert [numbers["classes"][name]["instances"] for name in CLASSES] == [(new["y"] == name).sum() for name in CLASSES]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_what_a_new_table_has_too_much_is_noted(work: Work, tmp_path: Path) -> None:
    new = make_rows(3, 20)
    new["colour"][:3] = "pink"
    rows = write(tmp_path / "new.csv", {**new, "more": new["x"], "still more": new["x"]})
    _, result = predictions(work.run.path, rows, tmp_path / "p.csv")
    assert result.stderr.splitlines() == [
        f"{rows}: columns that the model does not know are ignored: 'more', 'still more'",
        f"{rows}: column 'colour': 3 rows have a category that the model does not know",
        f"predictions of 20 instances: {tmp_path / 'p.csv'}",
    ]


def test_an_id_column_may_be_called_row() -> None:
    ids = {"row": np.array(["7", "8"]), "lot": np.array(["a", None])}
    columns = instance_columns(ids, np.array([[0.25, 0.75], [1, 0]]), np.array([1, 0]), CLASSES)
    assert as_csv(columns) == "row,lot,class,p(good),p(bad)\n7,a,bad,0.25,0.75\n8,,good,1,0\n"
    with pytest.raises(LLPError, match="the id column 'class' is called like a column of the predictions"):
        instance_columns({"class": ids["row"]}, np.zeros((2, 2)), np.zeros(2, int), CLASSES)


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


@pytest.mark.parametrize("name", CLASSES)
def test_one_class_is_enough_to_respect_counts(name: str, work: Work, tmp_path: Path) -> None:
    """Of two classes either may be said alone; other columns, and bags that have no rows here, do no harm."""
    lone = {"bag": [*BAGS["bag"], "999"], "region": ["north"] * 41, name: [*BAGS[name], 5]}
    table = write(tmp_path / "one.csv", lone)
    flags = ("--respect-counts", table, "--bag-values", "counts")
    met, result = predictions(work.run.path, work.path / "rows.csv", tmp_path / "p.csv", *flags)
    assert f"{table}: 1 bags have no row in {work.path}/rows.csv, and are left out" in result.stderr
    for bag, number in zip(BAGS["bag"], BAGS[name], strict=True):
        assert sum(row["class"] == name for row in met if row["bag"] == bag) == number


def test_predictions_are_never_written_over_what_is_read(work: Work) -> None:
    for name in ("rows.csv", "bags.csv"):
        before = (work.path / name).read_bytes()
        result = here("predict", work.run.path, work.path / "rows.csv", "-o", work.path / name)
        assert result.returncode == 1 and "is read from, so predictions cannot be written to it" in result.stderr
        assert (work.path / name).read_bytes() == before


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


def test_without_held_out_bags_the_totals_of_the_training_bags_are_met(work: Work, tmp_path: Path) -> None:
    assert here("train", *work.flags, *OURS, *SHORT, "--held-out", "0", "--run", tmp_path / "run").returncode == 0
    assert Run.open(tmp_path / "run").description["match_totals"]["of"] == "training bags"
    found, _ = predictions(tmp_path / "run", work.path / "rows.csv", tmp_path / "p.csv", "--match-totals")
    assert [sum(row["class"] == name for row in found) for name in CLASSES] == [sum(BAGS[name]) for name in CLASSES]


def test_nothing_to_measure_by_is_said(work: Work, tmp_path: Path) -> None:
    flags = ("--id-column", "id", "--id-column", "y", "--held-out", "0", *SHORT)
    assert here("train", *work.flags, *flags, "--run", tmp_path / "run").returncode == 0
    result = here("evaluate", tmp_path / "run")
    assert result.returncode == 1 and "nothing to measure by" in result.stderr
    unlabelled = write(tmp_path / "rows.csv", {**ROWS, "y": [None] * 400})
    result = here("evaluate", work.run.path, "--instances", unlabelled)
    assert result.returncode == 1 and "no instance has a label, so there is nothing to compare with" in result.stderr
