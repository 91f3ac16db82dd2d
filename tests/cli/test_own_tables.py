"""Training on the user's own tables. What takes long runs once, in a process of its own."""

import json
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from commands import here, llp
from own_tables import BAGS, CLASSES, OURS, RECIPE, ROWS, SHORT, Work, predictions, without, write
from torchllp import Bags, Run
from torchllp.engine.stream import take

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


def test_training_from_csv_files_says_what_it_understood(work: Work) -> None:
    lines = work.result.stdout.splitlines()
    assert f"{work.path}/bags.csv: the bags are given as counts" in lines
    assert "features: 2 numbers and 1 column of categories (3 features)" in lines
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


def test_a_folder_of_parquet_files_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table(ROWS), tmp_path / "rows" / "0.parquet", row_group_size=100)
    write(tmp_path / "bags.parquet", BAGS)
    flags = ["--instances", "rows", "--bags", "bags.parquet", *OURS, *SHORT]
    assert here("train", *flags, "--run", "in-memory", cwd=tmp_path).returncode == 0
    streamed: list[torch.Tensor] = []

    def observed(inputs: torch.Tensor, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        streamed.append(inputs)
        return take(inputs, rows, device)

    for module in ("data.table_encoder", "engine.stream"):
        monkeypatch.setattr(f"torchllp.{module}.free_memory", lambda device: 0)
    monkeypatch.setattr("torchllp.engine.batches.take", observed)
    assert here("train", *flags, "--run", "streamed", cwd=tmp_path).returncode == 0
    assert streamed
    one, two = (Run.open(tmp_path / name).model_file.read_bytes() for name in ("in-memory", "streamed"))
    assert one == two


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
    assert "features: 2 numbers and 1 column of categories (3 features)" in result.stdout
    alike = without(ROWS, "x", "z")
    rows = write(work.path / "alike.csv", alike)
    shown = here("check", "--instances", rows, "--bags", work.path / "bags.csv", *OURS).stdout
    assert "identical instances" in shown and "! " in shown


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


def test_first_weights_of_other_columns_are_refused(work: Work, tmp_path: Path) -> None:
    renamed = {("width" if name == "x" else name): values for name, values in ROWS.items()}
    rows = write(tmp_path / "rows.csv", renamed)
    flags = ("--instances", rows, "--bags", work.path / "bags.csv", *OURS, *SHORT, "--init-from", work.run.path)
    result = here("train", *flags, "--run", tmp_path / "run")
    assert result.returncode == 1 and "was trained on other columns than those of rows" in result.stderr


def test_what_was_said_in_a_file_can_be_added_to_by_flags(work: Work, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[own]\ninstances = "{work.path}/rows.csv"\n[data]\nbags = "{work.path}/bags.csv"\n')
    result = here("train", "--config", config, *OURS, "--unlabelled", "drop", *SHORT, "--run", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert here("train", "--config", config, "--dataset", "digits", "--run", tmp_path / "x").returncode == 2


def test_a_few_labels_are_learnt_from(work: Work, tmp_path: Path) -> None:
    """They are not tested on: what is learnt by heart is no test."""
    some = {**ROWS, "y": [label if row % 10 == 0 else None for row, label in enumerate(ROWS["y"])]}
    write(tmp_path / "rows.csv", some)
    write(tmp_path / "bags.csv", BAGS)
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", *OURS, "--epochs", "2", *RECIPE]
    result = here("train", *flags, "--learn-labels", "--run", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    run = Run.open(tmp_path / "run")
    assert run.summary["accuracy"] == {} and run.summary["num_held_out"] == 4
    said = re.search(r"(\d+) instances are learnt from by their label", result.stdout)
    _, held_out = Bags.load(run.bags_file).hold_out(4, seed=0)
    assert held_out is not None and said is not None
    assert int(said[1]) == (held_out.bag_of[::10] < 0).sum() < 40  # of forty, some are in bags that are held out
    wrong = here("train", "--instances", "rows.csv", "--bags", "bags.csv", "--learn-labels", cwd=tmp_path)
    assert wrong.returncode == 2 and "--learn-labels learns from a column with classes" in wrong.stderr


def test_a_method_for_images_says_so_of_a_table(work: Work, tmp_path: Path) -> None:
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", *OURS, "--epochs", "2", *RECIPE]
    result = here("train", *flags, "--method", "contrast", "--run", tmp_path / "run", cwd=work.path)
    assert result.returncode == 0, result.stderr
    assert "contrast is made for images, and has failed on tables: try dllp or ahil" in result.stdout


def test_classes_may_have_brackets_in_their_names(tmp_path: Path) -> None:
    """Which are no markup of the table that is shown."""
    names = {"good": "[/u] good", "bad": "[b]bad"}
    rows = {**ROWS, "y": np.array([names[str(name)] for name in ROWS["y"]])}
    bags = {names.get(column, column): values for column, values in BAGS.items()}
    tables = ["--instances", write(tmp_path / "rows.csv", rows), "--bags", write(tmp_path / "bags.csv", bags)]
    flags = [*tables, "--bag-column", "bag", *OURS]
    checked = here("check", *flags)
    assert checked.returncode == 0, checked.stderr
    trained = here("train", *flags, "--run", tmp_path / "[run]", *SHORT)
    assert trained.returncode == 0 and f"{tmp_path}/[run]" in trained.stdout
    evaluated = here("evaluate", tmp_path / "[run]")
    assert evaluated.returncode == 0, evaluated.stderr
    assert all(name in evaluated.stdout for name in names.values())
