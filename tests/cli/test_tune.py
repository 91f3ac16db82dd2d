"""`llp tune`: a study directory, and what happens when several processes work on it and some of them die."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import here, llp
from own_tables import Work
from torchllp import Config, LLPError, Run
from torchllp.config import read_toml
from torchllp.engine.checkpoint import load_state
from torchllp.engine.train import Observer
from torchllp.search_space import SearchSpace
from torchllp.tuning import Study

TABLES = ["--id-column", "id", "--label-column", "y", "--threads", "1", "--optimizer", "sgd", "--held-out", "0.2"]
SEARCH = ["--search", "lr=0.0001:1:log", "--search", "method=dllp,ahil", "--search", "beta_bag=0.1:20:log"]

KILLED_IN_A_TRIAL = """
import os, signal, sys
from pathlib import Path
from torchllp.engine.train import Observer
from torchllp.tuning import Study

class Kill(Observer):
    def on_step(self, epoch, step, num_steps):
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

Study.open(Path(sys.argv[1])).run_trial(Kill())
"""


def flags(work: Work, *others: str | Path, epochs: int = 3) -> list[str | Path]:
    tables = ["--instances", work.path / "rows.csv", "--bags", work.path / "bags.csv", *TABLES]
    return [*tables, "--epochs", str(epochs), *others]


def start(
    work: Work, path: Path, space: dict[str, str], *, method: str = "ahil", model: str = "linear", **recipe: Any
) -> Study:
    """A study, without the command."""
    own = {"instances": str(work.path / "rows.csv"), "id_column": ["id"], "label_column": "y"}
    data = {"bags": str(work.path / "bags.csv"), "held_out": 0.2}
    recipe = {"optimizer": "sgd", "lr": 0.1, "instances_per_step": 128} | recipe
    layer = {"own": own, "data": data, "recipe": recipe, "model": {"name": model}, "compute": {"threads": 1}}
    layer["method"] = {"name": method}
    return Study.start(path, SearchSpace(space, Config.layered(layer)))


def drawn(study: Study) -> list[dict[str, Any]]:
    return [trial.values for trial in sorted(study.trials(), key=lambda trial: trial.number)]


@pytest.fixture(scope="module")
def tuned(work: Work, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, str]:
    """A study of five trials, in two parts, and what the second part said."""
    path = tmp_path_factory.mktemp("tuned") / "study"
    command = ["tune", *flags(work, *SEARCH), "--study", path]
    assert here(*command, "--trials", "2").returncode == 0
    result = here(*command, "--trials", "3")  # the same command again goes on
    assert result.returncode == 0, result.stderr
    return Study.open(path), result.stdout


def test_each_trial_is_a_run_judged_by_its_chosen_epoch(tuned: tuple[Study, str]) -> None:
    study, _ = tuned
    trials = study.trials()
    assert sorted(trial.number for trial in trials) == [0, 1, 2, 3, 4]
    assert {trial.state for trial in trials} == {"complete"}
    bags = set()
    for trial in trials:
        rows, summary, config = trial.run.metrics(), trial.run.summary, trial.run.config
        assert trial.value == min(row["held_out/bag_kl"] for row in rows)
        assert trial.value == summary["metrics"]["chosen"]["held_out/bag_kl"]
        assert config.recipe.lr == trial.values["lr"] and config.method.name == trial.values["method"]
        assert config.method.options == {k: v for k, v in trial.values.items() if k == "beta_bag"}
        assert ("beta_bag" in trial.values) == (config.method.name == "ahil")
        bags.add((summary["bags"], summary["num_held_out"], config.seed))
    assert len(bags) == 1  # the same are held out in every trial
    values = [trial.value for trial in trials]
    assert values == sorted(values)


def test_the_first_trial_is_the_config_as_it_is(tuned: tuple[Study, str]) -> None:
    study, _ = tuned
    assert drawn(study)[0] == {"lr": study.space.base.recipe.lr, "method": "ahil", "beta_bag": 1.0}


def test_what_is_said(tuned: tuple[Study, str]) -> None:
    study, said = tuned
    best = study.trials()[0]
    lines = re.findall(
        r"^trial (\d): bag_kl [\d.e-]+, .*best ([\d.e-]+) \(trial \d\)(, \d+ s left)?$", said, re.MULTILINE
    )
    assert [line[0] for line in lines] == ["2", "3", "4"] and [bool(line[2]) for line in lines] == [True, True, False]
    assert lines[-1][1] == f"{best.value:.4g}"
    assert "bags are held out to choose the epoch" in said  # once, not in every trial
    assert said.count("bags are held out") == 1
    table = said[said.index("The best of 5 trials") :]
    assert "test accuracy (not used)" in table and "flatter" in table
    first = re.search(r"^ +(\d) +([\d.e-]+) .* ([\d.]+) %$", table, re.MULTILINE)
    assert first is not None and int(first[1]) == best.number
    assert float(first[3]) == round(100 * best.run.summary["accuracy"]["chosen"], 2)
    assert f"llp train --config {study.best_file}" in table


def test_the_best_settings_train_the_same_again(tuned: tuple[Study, str], tmp_path: Path) -> None:
    study, _ = tuned
    best = study.trials()[0]
    assert here("train", "--config", study.best_file, "--run", tmp_path / "again").returncode == 0
    again = Run.open(tmp_path / "again")
    assert again.summary["metrics"]["chosen"]["held_out/bag_kl"] == best.value
    assert again.model_file.read_bytes() == best.run.model_file.read_bytes()


def test_draws_follow_from_the_seed_and_not_from_the_process(
    tuned: tuple[Study, str], work: Work, tmp_path: Path
) -> None:
    study, _ = tuned
    command = ["tune", *flags(work, *SEARCH), "--study"]
    assert here(*command, tmp_path / "whole", "--trials", "5").returncode == 0
    assert drawn(Study.open(tmp_path / "whole")) == drawn(study)
    assert here(*command, tmp_path / "other", "--trials", "2", "--seed", "1").returncode == 0
    assert drawn(Study.open(tmp_path / "other"))[1] != drawn(study)[1]
    assert len({json.dumps(values) for values in drawn(study)}) == 5


def test_resume_goes_on_by_the_studys_own_settings(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work.path)
    relative = ["--instances", "rows.csv", "--bags", "bags.csv", *TABLES, "--epochs", "2", "--choose-by", "count_score"]
    path = tmp_path / "study"
    assert here("tune", *relative, "--study", path, "--trials", "2").returncode == 0
    monkeypatch.chdir(tmp_path)  # where the tables are not
    result = here("tune", "--resume", path, "--trials", "2", "--no-prune")
    assert result.returncode == 0, result.stderr
    study = Study.open(path)
    values = [trial.value for trial in study.trials()]
    assert len(values) == 4 and values == sorted(values, reverse=True)  # of a score more is better
    assert read_toml(study.best_file)["recipe"]["lr"] == study.trials()[0].values["lr"]
    assert set(study.space.texts) == {"lr", "beta_bag", "beta_instance", "instance_weight"}  # nothing was said


def test_two_processes_share_a_study(work: Work, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torchllp",
        "tune",
        *map(str, flags(work, *SEARCH, "--no-prune")),
        "--study",
        "study",
    ]
    both = [
        subprocess.Popen(
            [*command, "--trials", "3"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = []
    for process in both:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        said.append(set(re.findall(r"^trial (\d):", output, re.MULTILINE)))
    assert len(said[0]) == len(said[1]) == 3 and not said[0] & said[1]
    study = Study.open(tmp_path / "study")
    trials = study.trials()
    assert sorted(trial.number for trial in trials) == [0, 1, 2, 3, 4, 5]
    assert {trial.state for trial in trials} == {"complete"}
    assert Config.layered(read_toml(study.best_file)).recipe.lr == trials[0].values["lr"]
    assert [path.name for path in study.trials_directory.iterdir() if path.name.startswith(".")] == []


def test_a_killed_process_leaves_a_study_that_others_go_on_with(work: Work, tmp_path: Path) -> None:
    path = tmp_path / "study"
    assert here("tune", *flags(work, *SEARCH), "--study", path, "--trials", "1").returncode == 0
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_A_TRIAL, str(path)], timeout=300)
    assert killed.returncode == -signal.SIGKILL
    study = Study.open(path)
    assert [trial.state for trial in study.trials()] == ["complete", "running"]
    result = here("tune", "--resume", path, "--trials", "1")
    assert result.returncode == 0, result.stderr
    assert "The best of 2 trials by held-out bags, 1 failed" in result.stdout
    states = {trial.number: trial.state for trial in Study.open(path).trials()}
    assert states == {0: "complete", 1: "fail", 2: "complete"}
    left = Run.open(study.trials_directory / "0001")
    assert load_state(left.checkpoint_file)["state"]["epochs_done"] == 1  # kept, for who wants to look, or to resume it


def test_a_trial_at_work_is_left_alone(work: Work, tmp_path: Path) -> None:
    path = tmp_path / "study"
    study = start(work, path, {"lr": "0.01:1"}, epochs=2)

    class Meanwhile(Observer):
        def on_start(self, epochs_done: int, num_epochs: int) -> None:
            assert Study.open(path).run_trial().number == 1

    assert study.run_trial(Meanwhile()).number == 0
    assert [trial.state for trial in study.trials()] == ["complete", "complete"]


def test_ctrl_c_stops_and_says_how_to_go_on(work: Work, tmp_path: Path) -> None:
    path = tmp_path / "study"
    command = ["tune", *flags(work, "--study", path, epochs=100_000)]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchllp", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (path / "trials" / "0000" / "checkpoints" / "last.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "llp: stopped\n"
    assert f"stopped; go on by: llp tune --resume {path}" in output
    assert [trial.state for trial in Study.open(path).trials()] == ["fail", "waiting"]  # it is to be tried again
    assert not (path / "best.toml").exists()


def test_the_settings_before_are_tried_however_often_they_are_stopped(work: Work, tmp_path: Path) -> None:
    class Stop(Observer):
        def on_step(self, epoch: int, step: int, num_steps: int) -> None:
            raise KeyboardInterrupt

    study = start(work, tmp_path / "study", {"lr": "0.01:1"}, epochs=2)
    for number in range(2):
        with pytest.raises(KeyboardInterrupt):
            study.run_trial(Stop())
        study = Study.open(study.path)
        assert [trial.state for trial in study.trials()].count("fail") == number + 1
    tried = study.run_trial()
    assert tried.state == "complete" and tried.values == {"lr": 0.1}
    assert Study.open(study.path).run_trial().values != {"lr": 0.1}  # once is enough


def test_a_method_of_stages_is_judged_from_when_it_learns_classes(work: Work, tmp_path: Path) -> None:
    study = start(work, tmp_path / "study", {"lr": "0.01:0.1"}, method="contrast", model="mlp", epochs=6)
    assert study.run_trial().state == "complete"
    assert [*study._optuna.trials[0].intermediate_values] == [4, 5, 6]


def test_a_bad_trial_is_stopped_early(work: Work, tmp_path: Path) -> None:
    study = start(work, tmp_path / "study", {"lr": "1e-9:1:log"}, epochs=8)
    for lr in (0.1, 0.11, 0.12, 0.13, 1e-9, 1e-9):  # after the base's own
        study._optuna.enqueue_trial({"lr": lr})
    good = [study.run_trial() for _ in range(5)]
    assert {trial.state for trial in good} == {"complete"}
    bad = study.run_trial()
    assert bad.state == "pruned" and not bad.run.is_finished
    assert bad.value == bad.run.metrics()[-1]["held_out/bag_kl"] and len(bad.run.metrics()) == 2  # a quarter of 8
    assert study.run_trial(prune=False).state == "complete"
    assert study.trials()[-1].number == bad.number  # never among the best
    result = here("tune", "--resume", study.path, "--trials", "1", "--no-prune")
    assert "The best of 7 trials by held-out bags, 1 stopped early" in result.stdout


def test_a_trial_that_cannot_be_trained_has_failed(work: Work, tmp_path: Path) -> None:
    study = start(work, tmp_path / "study", {"lr": "0.1:1e30"}, epochs=3)
    study._optuna.enqueue_trial({"lr": 1e30})
    assert study.run_trial().state == "complete"
    failed = study.run_trial()
    assert failed.state == "fail" and failed.error is not None and "not finite" in failed.error
    assert study.trials()[0].number == 0


def test_a_trial_that_crashes_has_failed(work: Work, tmp_path: Path) -> None:
    class Broken(Observer):
        def on_step(self, epoch: int, step: int, num_steps: int) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB")

    study = start(work, tmp_path / "study", {"lr": "0.01:1"}, epochs=2)
    failed = study.run_trial(Broken())
    assert failed.state == "fail" and failed.error == "OutOfMemoryError: CUDA out of memory."
    assert study.run_trial().state == "complete"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--search", "lr"], 2, "--search takes NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C, not 'lr'"),
        (["--search", "lr=1:2", "--search", "lr=2:3"], 2, "--search lr is there twice"),
        (["--search", "lr=2:1"], 1, "lr=2:1: a range is LOW:HIGH"),
        (["--search", "beta-bga=1:2"], 1, "did you mean 'beta_bag'?"),
        (["--search", "noise=0:1"], 2, "--noise is for tables of your own"),
        (["--trials", "0"], 2, "--trials"),
        (["--held-out", "0"], 1, "settings are chosen by held-out bags, and of these 89 none is held out"),
        (["--bag-size", "100"], 1, "and of these 14 none is held out"),
        (["--resume", "nope"], 1, "nope: not a study"),
        (["--resume", "nope", "--epochs", "3"], 2, "leave the other options out"),
        (["--method", "simclr"], 1, "simclr learns features and no classes"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = here("tune", *arguments)
    assert result.returncode == code and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []


def test_several_processes_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would draw a trial of its own, and all would train one model."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = here("tune")
    assert result.returncode == 2 and "say --on local or --on slurm" in result.stderr


def test_a_directory_that_is_taken(work: Work, tuned: tuple[Study, str], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(LLPError, match="something here already that is no study"):
        start(work, tmp_path, {"lr": "0.1:1"})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    study, _ = tuned
    result = here("tune", *flags(work, *SEARCH, epochs=4), "--study", study.path, "--trials", "1")
    assert result.returncode == 1 and "a study of other settings is here" in result.stderr
    assert len(study.trials()) == 5


def test_optuna_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)  # which makes `import optuna` fail
    result = here("tune")
    assert result.returncode == 1 and result.stderr == "llp: tuning needs Optuna: pip install 'torchllp[sweep]'\n"
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_flags() -> None:
    result = llp("tune", "-h")
    assert result.returncode == 0
    for flag in ("--search", "--trials", "--study", "--resume", "--no-prune", "--choose-by"):
        assert flag in result.stdout
