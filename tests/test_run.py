"""The run directory: what is in it, and what happens when it is not left in peace."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from commands import SHORT, here, llp
from torchllp import Bags, Config, LLPError, Run, create_model, job, load_dataset
from torchllp.engine.checkpoint import load_state, save_state
from torchllp.files import write_atomically

CONFIG = Config.layered({"recipe": {"epochs": 4, "instances_per_step": 256}, "compute": {"threads": 1}})

KILLED_IN_AN_EPOCH = """
import os, signal, sys
from pathlib import Path
from torchllp.config import Config, read_toml
from torchllp.engine.train import Observer
from torchllp.job import start

class Kill(Observer):
    def on_step(self, epoch, step, num_steps):
        if epoch == int(sys.argv[3]) and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

start(Config.layered(read_toml(Path(sys.argv[1]))), Path(sys.argv[2]), observer=Kill())
"""

KILLED_IN_A_CHECKPOINT = """
import os, signal, sys
from pathlib import Path
from torchllp.config import Config, read_toml
from torchllp.job import start

replace, count = os.replace, 0

def half_written(source, target):
    global count
    if Path(target).name == "last.pt":
        count += 1
        if count == 3:
            os.truncate(source, os.path.getsize(source) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = half_written
start(Config.layered(read_toml(Path(sys.argv[1]))), Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing disturbed, by its own process, like those it is compared with."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    result = llp("train", "--run", path, *SHORT)
    assert result.returncode == 0, result.stderr
    return Run.open(path)


def without_times(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if not key.endswith("seconds")} for row in rows]


def equal(one: object, other: object) -> bool:
    """Equality of nested states, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, type(one)) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize("script", [KILLED_IN_AN_EPOCH, KILLED_IN_A_CHECKPOINT], ids=["epoch", "checkpoint"])
def test_a_killed_run_resumes_exactly(script: str, finished: Run, tmp_path: Path) -> None:
    path = tmp_path / "killed"
    command = [sys.executable, "-c", script, str(finished.config_file), str(path), "2"]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    killed = Run.open(path)
    assert not killed.is_finished
    assert load_state(killed.checkpoint_file)["state"]["epochs_done"] == 2
    left_over = path / "checkpoints" / ".last.pt.partial"
    assert left_over.exists() == (script is KILLED_IN_A_CHECKPOINT)
    assert len(killed.metrics()) == (3 if left_over.exists() else 2)

    result = llp("train", "--resume", path)
    assert result.returncode == 0, result.stderr
    assert "continuing after epoch 2" in result.stdout
    assert killed.model_file.read_bytes() == finished.model_file.read_bytes()
    assert without_times(killed.metrics()) == without_times(finished.metrics())
    assert killed.summary["epoch"] == finished.summary["epoch"]
    assert killed.summary["accuracy"] == finished.summary["accuracy"]
    states = [load_state(run.checkpoint_file)["state"] for run in (killed, finished)]
    for state in states:
        del state["chosen"]["row"]["seconds"], state["chosen"]["row"]["cpu_seconds"]
    assert equal(*states)
    (resumed,) = json.loads(killed.env_file.read_text())["resumed"]
    assert resumed["epochs_done"] == 2 and "--resume" in resumed["command"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    path = tmp_path / "stopped"
    command = [sys.executable, "-m", "torchllp", "train", "--run", str(path), "--epochs", "2000", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (path / "checkpoints" / "last.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"continue by: llp train --resume {path}" in output
    assert errors == f"llp: {'stopped' if number == signal.SIGINT else 'terminated'}\n"
    run = Run.open(path)
    assert load_state(run.checkpoint_file)["state"]["epochs_done"] >= 1
    with run.lock():  # nothing holds it any more
        assert not run.is_finished


def test_what_is_in_a_run(finished: Run) -> None:
    names = {path.name for path in finished.path.iterdir()}
    assert names >= {
        "config.toml",
        "env.json",
        "bags.npz",
        "metrics.jsonl",
        "summary.json",
        "train.log",
        "checkpoints",
        "model.safetensors",
        "model.json",
        "curves.png",
        "tensorboard",
    }
    assert finished.config.compute.threads == 1
    assert finished.config.method.name == "ahil"
    assert len(finished.metrics()) == 4
    assert Bags.load(finished.bags_file).content_hash == finished.summary["bags"]
    assert "9 of 89 bags are held out" in finished.log_file.read_text()
    for file in (finished.env_file, finished.description_file, finished.summary_file):
        assert json.loads(file.read_text())["format_version"] == 1
    assert json.loads(finished.description_file.read_text())["data"]["class_names"] == list("0123456789")
    assert any(path.name.startswith("events") for path in finished.tensorboard_directory.iterdir())
    rows = finished.metrics()
    accuracy = finished.summary["accuracy"]
    assert accuracy["last"] == rows[-1]["test/accuracy"]
    assert accuracy["oracle"] == max(row["test/accuracy"] for row in rows)
    assert accuracy["chosen"] == min(rows, key=lambda row: row["held_out/bag_kl"])["test/accuracy"]


def test_the_four_sets_of_weights(finished: Run) -> None:
    state = load_state(finished.checkpoint_file)["state"]
    assert equal(finished.load_model().state_dict(), load_file(finished.model_file))
    assert equal(dict(finished.load_model().state_dict()), dict(state["chosen"]["ema"]))
    assert equal(dict(finished.load_model(raw=True).state_dict()), dict(state["chosen"]["raw"]))
    last = {f"model.{key}": value for key, value in finished.load_model("last", raw=True).state_dict().items()}
    assert equal(last, dict(state["learner"]))
    averaged = finished.load_model("last").state_dict()
    assert all(torch.equal(averaged[key], state["ema"][f"module.{key}"]) for key in averaged)


def test_a_finished_run_is_left_as_it_is(finished: Run) -> None:
    before = finished.metrics_file.stat().st_mtime_ns
    assert job.resume(finished.path).summary == finished.summary
    assert finished.metrics_file.stat().st_mtime_ns == before


def test_a_second_process_is_refused(finished: Run) -> None:
    with finished.lock():
        for flags in (["--resume", finished.path], ["--run", finished.path, "--overwrite"]):
            result = here("train", *flags)
            assert result.returncode == 1
            assert result.stderr.strip() == f"llp: {finished.path}: another process is at work in this run"
    assert finished.is_finished


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LLPError, match="there is something here already"):
        Run.create(tmp_path, CONFIG)
    with pytest.raises(LLPError, match="not a run"):
        Run.create(tmp_path, CONFIG, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_overwriting_replaces_the_whole_run(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.summary_file.write_text("{}")
    other = Run.create(tmp_path / "run", CONFIG, overwrite=True)
    assert not other.is_finished and other.config == CONFIG


def test_nothing_is_written_for_a_config_that_cannot_run(tmp_path: Path) -> None:
    for change in (
        {"method": {"name": "nope"}},
        {"model": {"name": "small-cnn", "options": {"stem": "small"}}},
        {"data": {"dataset": "nope"}},
        {"data": {"bag_size": 10_000}},
        {"data": {"held_out": 0.999}},
        {"compute": {"device": "cuda:77"}},
    ):
        with pytest.raises(LLPError):
            job.start(Config.layered(CONFIG.model_dump(), change), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_run_killed_right_after_its_config(tmp_path: Path) -> None:
    config = Config.layered(CONFIG.model_dump(), {"recipe": {"epochs": 1}})
    Run.create(tmp_path / "run", config)
    assert job.resume(tmp_path / "run").is_finished


def test_paths_are_written_down_whole(tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.path.parent)
    paths = {"init_from": finished.path.name, "data": {"bags_from": finished.path.name, "data_dir": "data"}}
    run = job.start(Config.layered(CONFIG.model_dump(), {"recipe": {"epochs": 1}}, paths), tmp_path / "run")
    assert run.config.init_from == run.config.data.bags_from == str(finished.path)
    assert run.config.data.data_dir == str(finished.path.parent / "data")


def test_few_bags_hold_nothing_out_and_the_log_says_so(tmp_path: Path) -> None:
    config = Config.layered(CONFIG.model_dump(), {"data": {"bag_size": 100}, "recipe": {"epochs": 1}})
    run = job.start(config, tmp_path / "run")
    assert "no bag is held out of 14" in run.log_file.read_text()
    assert set(run.summary["accuracy"]) == {"last", "oracle"}
    with pytest.raises(LLPError, match="no epoch was chosen in this run"):
        run.load_model("chosen")


def test_a_run_that_diverges_has_no_model(tmp_path: Path) -> None:
    config = Config.layered(CONFIG.model_dump(), {"recipe": {"lr": 1e30}})
    with pytest.raises(LLPError, match="the loss was not finite"):
        job.start(config, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.metrics() == []
    with pytest.raises(LLPError, match="has no model yet"):
        run.load_model()
    with pytest.raises(LLPError, match="is not finished"):
        _ = run.summary


def test_states_load_without_running_code(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_state(path, {"x": torch.ones(2), "n": None})
    assert equal(load_state(path), {"x": torch.ones(2), "n": None})
    torch.save({"code": Path}, path)
    with pytest.raises(LLPError, match="not a checkpoint that can be read"):
        load_state(path)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_first_weights_from_another_run(finished: Run, tmp_path: Path) -> None:
    """Also when the run is killed before its first checkpoint."""
    change = {"init_from": str(finished.path), "recipe": {"epochs": 1, "lr": 1e-12, "ema_decay": 0.0}}
    config = Config.layered(CONFIG.model_dump(), change)
    run = job.start(config, tmp_path / "run")
    before, after = finished.load_model().state_dict(), run.load_model().state_dict()
    torch.testing.assert_close(after["head.weight"], before["head.weight"])
    assert f"first weights from {finished.path}" in run.log_file.read_text()

    command = [sys.executable, "-c", KILLED_IN_AN_EPOCH, str(run.config_file), str(tmp_path / "killed"), "0"]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    resumed = job.resume(tmp_path / "killed")
    assert resumed.model_file.read_bytes() == run.model_file.read_bytes()

    model = create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8))
    head = model.head.weight.clone()  # pyrefly: ignore
    others = replace(load_dataset("digits"), class_names=tuple("abcdefghij"))
    job.initialize(model, finished, others)
    assert torch.equal(model.head.weight, head)  # of other classes, though as many
    assert torch.equal(model.body[0].weight, finished.load_model().body[0].weight)

    with pytest.raises(LLPError, match=r"its model \(small-cnn\) is not the one to be trained"):
        job.start(Config.layered(config.model_dump(), {"model": {"name": "mlp"}}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_bags_of_another_run(finished: Run, tmp_path: Path) -> None:
    ragged = {"data": {"bags": "dirichlet", "bag_size": 8, "largest_bag": 40}, "recipe": {"epochs": 1}}
    first = job.start(Config.layered(CONFIG.model_dump(), ragged, {"seed": 5}), tmp_path / "first")
    assert first.summary["bag_size"] == "8 to 40"
    change = {"data": {"bags_from": str(first.path)}, "recipe": {"epochs": 1}}
    other = job.start(Config.layered(CONFIG.model_dump(), change), tmp_path / "other")
    assert other.summary["bags"] == first.summary["bags"] != finished.summary["bags"]
    with pytest.raises(LLPError, match="nope: not a run"):
        job.start(Config.layered(CONFIG.model_dump(), {"data": {"bags_from": "nope"}}), tmp_path / "third")


def test_broken_files_are_named(finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    run.model_file.write_bytes(run.model_file.read_bytes()[:100])
    with pytest.raises(LLPError, match=r"model\.safetensors: cannot be read"):
        run.load_model()
    run.description_file.write_text("{")
    with pytest.raises(LLPError, match=r"model\.json: cannot be read"):
        run.load_model()
    run.summary_file.write_text('{"format_version": 99}')
    with pytest.raises(LLPError, match=r"summary\.json: its format is 99, and 1 is known here"):
        _ = run.summary
    run.summary_file.unlink()
    save_state(run.checkpoint_file, {"format_version": 99})
    with pytest.raises(LLPError, match=r"last\.pt: its format is 99"):
        job.resume(run.path)


def test_a_run_that_was_cut_off_while_it_was_replaced_can_be_replaced(finished: Run, tmp_path: Path) -> None:
    """Its config is the last to go, and hidden files alone are nothing."""
    path = tmp_path / "run"
    shutil.copytree(finished.path, path)

    class CutOff(BaseException):
        pass

    def stop(path: Path) -> None:
        raise CutOff

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        with pytest.raises(CutOff):
            Run.create(path, finished.config, overwrite=True)
    again = Run.create(path, finished.config, overwrite=True)
    assert {entry.name for entry in path.iterdir()} == {"config.toml"}
    again.config_file.rename(path / ".config.toml.partial")
    assert Run.create(path, finished.config).config == finished.config


def test_a_setting_that_is_wrong_is_told_with_its_file(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(finished.config_file.read_text() + "new_thing = 1\n")
    with pytest.raises(LLPError, match=r"config\.toml: there is no setting '.*new_thing'"):
        _ = Run(tmp_path).config
    result = llp("train", "--config", tmp_path / "config.toml")
    assert result.returncode == 1 and str(tmp_path / "config.toml") in result.stderr
