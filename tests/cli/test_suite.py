"""`llp suite`: real trainings of small suites."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fake_slurm
from commands import Result, here
from processes import processes_of
from torchllp.experiments import SUITES
from torchllp.run import Run

MINE = """
from torchllp.experiments.suite import Suite

def cells(scale):
    for seed in (0, 1):
        for method in ("dllp", "ahil"):
            cell = scale.cell("digits", method, 64, seed, recipe={{"epochs": {epochs}}})
            yield cell.over({{"model": {{"name": "{model}"}}}})

SUITE = Suite("mine", "Two methods", cells)
"""
NAMES = [f"digits-{method}-epochs=2-bag=64-seed={seed}" for seed in (0, 1) for method in ("dllp", "ahil")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE.format(epochs=2, model="linear"))
    return tmp_path


def suite(folder: Path, *arguments: str, name: str = "mine.py") -> Result:
    return here("suite", name, "--scale", "quick", *arguments, cwd=folder)


def results(folder: Path, name: str = "mine") -> dict[str, tuple[str, str]]:
    """Run -> accuracy at the last and at the oracle's epoch."""
    rows = csv.DictReader((folder / "runs" / "quick" / name / "results.csv").open())
    return {row["run"]: (row["last"], row["oracle"]) for row in rows}


def test_a_suite_from_its_file_to_its_page(folder: Path) -> None:
    result = suite(folder)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^(\d) of 4  (\S+): last [\d.]+ %, oracle [\d.]+ %", result.stdout, re.MULTILINE) == [
        (str(number), name) for number, name in enumerate(NAMES, 1)
    ]
    assert "left" in result.stdout
    assert {*results(folder)} == {*NAMES}
    table = (folder / "runs/quick/mine/table.md").read_text()
    assert re.search(r"\| digits \| 64 \| ahil \| [\d.]+ ± [\d.]+ \| [\d.]+ ± [\d.]+ \| 22 \| \d+ \| 2 \|", table)
    assert "- command: `llp suite mine.py --scale quick`" in table
    page = (folder / "runs/quick/mine/report.html").read_text()
    assert "Two methods" in page and NAMES[0] in page

    before = {name: (folder / "runs/quick" / name / "summary.json").stat().st_mtime_ns for name in NAMES}
    again = suite(folder)
    assert again.returncode == 0 and "1 of 4" not in again.stdout
    assert before == {name: (folder / "runs/quick" / name / "summary.json").stat().st_mtime_ns for name in NAMES}


def test_a_killed_suite_goes_on(tmp_path: Path) -> None:
    """kill -9 in the middle of a run: the finished ones stay, the other one goes on from its last whole epoch."""
    (tmp_path / "mine.py").write_text(MINE.format(epochs=6, model="small-cnn"))
    command = [sys.executable, "-m", "torchllp", "suite", "mine.py", "--scale", "quick"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    second = Run(tmp_path / "runs/quick/digits-ahil-epochs=6-bag=64-seed=0")
    while not (second.metrics_file.is_file() and len(second.metrics()) >= 2):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not second.is_finished
    result = suite(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "continuing after epoch" in second.log_file.read_text()
    killed = results(tmp_path)
    whole = suite(tmp_path, "--runs", "runs/whole")
    assert whole.returncode == 0, whole.stderr
    rows = csv.DictReader((tmp_path / "runs/whole/mine/results.csv").open())
    assert {row["run"]: (row["last"], row["oracle"]) for row in rows} == killed


@pytest.mark.parametrize(("place", "said"), [("local", []), ("slurm", ["--on", "slurm", "--slurm", "time=10"])])
def test_several_jobs_train_what_one_does(
    place: str, said: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "slurm":
        fake_slurm.install(folder / "fake", monkeypatch)
    together = suite(folder, "--jobs", "2", *said)
    assert together.returncode == 0, together.stderr
    assert {*re.findall(r"^\d of 4  (\S+): last", together.stdout, re.MULTILINE)} == {*NAMES}
    found = results(folder)
    alone = suite(folder, "--runs", "alone")
    assert alone.returncode == 0
    rows = csv.DictReader((folder / "alone/mine/results.csv").open())
    assert {row["run"]: (row["last"], row["oracle"]) for row in rows} == found


def test_a_run_that_fails_is_told_and_tried_again_on_demand(folder: Path) -> None:
    text = MINE.format(epochs=2, model="linear").replace('"ahil")', '"llpfc")')  # which needs more bags than 22 // 10
    (folder / "mine.py").write_text(text.replace('"llpfc", 64', '"llpfc", 256').replace("method, 64", "method, 256"))
    failed = suite(folder)
    assert failed.returncode == 1
    assert failed.stderr.startswith("llp: 2 of 4 runs failed (try again by --retry); digits-llpfc-epochs=2-bag=256")
    assert len(failed.stderr.splitlines()) == 1
    assert len(results(folder)) == 2  # the others have their table
    again = suite(folder)
    assert again.returncode == 1 and "failed:" not in again.stdout
    retried = suite(folder, "--retry")
    assert retried.returncode == 1 and retried.stdout.count("failed:") == 2


def test_part_of_a_suite(folder: Path) -> None:
    assert suite(folder).returncode == 0
    result = suite(folder, "--only", "ahil", "--only", "seed=1")
    assert result.returncode == 0 and {*results(folder, "mine-ahil-seed=1")} == {NAMES[3]}
    assert {*results(folder)} == {*NAMES}  # the whole has its results still
    nothing = suite(folder, "--only", "cifar")
    assert nothing.returncode == 2 and "no run of the suite has cifar in its name" in nothing.stderr


def test_the_page_and_figures_of_a_suite_again(folder: Path) -> None:
    """`llp report` and `llp plot` of the directory of its results."""
    assert suite(folder, "--only", "seed=0").returncode == 0
    page = folder / "runs/quick/mine-seed=0/report.html"
    before = page.read_text()
    page.unlink()
    assert here("report", "runs/quick/mine-seed=0", cwd=folder).returncode == 0
    assert page.read_text() == before.replace("llp suite mine.py", f"llp suite {folder / 'mine.py'}")
    assert here("plot", "table", "runs/quick/mine-seed=0", "-o", "table.csv", cwd=folder).returncode == 0
    assert [line.split(",")[2] for line in (folder / "table.csv").read_text().splitlines()[1:]].count("ahil") > 0
    by_name = here("report", "paper-table2", cwd=folder)
    assert by_name.returncode == 2 and "runs/quick/paper-table2" in by_name.stderr


@pytest.mark.parametrize("num_killed", [1, 2])
def test_workers_that_are_killed(num_killed: int, tmp_path: Path) -> None:
    """Another one goes on with what one has left; if there is none, what is left is named."""
    (tmp_path / "mine.py").write_text(MINE.format(epochs=20, model="small-cnn").replace("method, 64", "method, 16"))
    command = [sys.executable, "-m", "torchllp", "suite", "mine.py", "--scale", "quick", "--jobs", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, text=True, **pipes)
    names = [f"digits-{method}-epochs=20-bag=16-seed=0" for method in ("dllp", "ahil")]
    while not all(Run(tmp_path / "runs/quick" / name).metrics_file.is_file() for name in names):
        assert process.poll() is None
        time.sleep(0.02)
    started = processes_of(tmp_path / "runs")
    workers = [pid for pid in started if b"--worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    for worker in workers[:num_killed]:
        os.kill(worker, signal.SIGKILL)
    told, said = process.communicate()
    if num_killed == 1:
        assert process.returncode == 0 and "1 of 2 jobs failed" in told and "all runs are finished" in told
        assert len(results(tmp_path)) == 4
    else:
        assert process.returncode == 1 and said.startswith("llp: 2 of 2 jobs failed")
        assert f"begun and not finished: {', '.join(names)}" in said


def test_names_with_brackets(folder: Path) -> None:
    text = (folder / "mine.py").read_text().replace("recipe=", 'row=f"[/b] {method}", recipe=')
    (folder / "mine.py").write_text(text)
    result = suite(folder, "--runs", "runs/[q]")
    assert result.returncode == 0, result.stderr
    assert "[/b] ahil" in result.stdout and "runs/[q]/mine" in result.stdout


def test_held_out_bags_choose_an_epoch_in_runs_of_their_own(folder: Path) -> None:
    result = suite(folder, "--held-out", "0.2", "--only", "dllp")
    assert result.returncode == 0, result.stderr
    rows = [*csv.DictReader((folder / "runs/quick-held-out-0.2/mine-dllp/results.csv").open())]
    assert all(row["chosen"] for row in rows)
    assert "chosen epoch" in result.stdout


def test_runs_by_other_settings_are_not_mixed(folder: Path) -> None:
    assert suite(folder, "--only", "dllp").returncode == 0
    result = suite(folder, "--held-out", "0.2", "--runs", "runs/quick")
    assert result.returncode == 1 and "was trained by other settings" in result.stderr


def test_a_dry_run_shows_the_plan_and_writes_nothing(folder: Path) -> None:
    result = suite(folder, "--dry-run")
    assert result.returncode == 0, result.stderr
    heads = "data row model bag sizes runs steps memory time a run time of all"
    assert heads in " ".join(result.stdout.split())
    line = next(line for line in result.stdout.splitlines() if "ahil" in line)
    assert line.split()[:6] == ["digits", "ahil", "linear", "64", "2", "22"]  # two epochs of 11 steps
    assert not (folder / "runs").exists()


def test_smoke_of_a_table_at_full_scale(tmp_path: Path) -> None:
    """The paper's own networks, on files in the original formats; the rest by `llp suite NAME --smoke`."""
    result = here("suite", "paper-table2", "--smoke", "--only", "cifar10-ahil-bag", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1 of 1  cifar10-ahil-bag=16-seed=0: works" in result.stdout
    assert "all 1 kinds of the suite's 15 runs work" in result.stdout
    assert [*tmp_path.iterdir()] == []


def test_smoke_says_what_does_not_work(folder: Path) -> None:
    text = (folder / "mine.py").read_text().replace('"ahil")', '"flmm")').replace("linear", "no-such-model")
    (folder / "mine.py").write_text(text)
    result = suite(folder, "--smoke")
    assert result.returncode == 1
    assert "unknown model 'no-such-model'" in result.stdout and "2 of 2 kinds" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["paper-table3"], 1, "unknown suite 'paper-table3': did you mean 'paper-table"),
        (["none.py"], 1, "none.py: there is no such file"),
        (["empty.py"], 1, "empty.py: there is no SUITE in it"),
        (["mine.py", "--scale", "large"], 2, "large"),
        (["mine.py", "--jobs", "0"], 2, "jobs"),
        (["mine.py", "--held-out", "1"], 2, "held-out"),
        (["mine.py", "--slurm", "gpus=1"], 2, "--slurm is for --on slurm"),
        (["mine.py", "--smoke", "--dry-run"], 2, "say one of them"),
        (["paper-table1", "--scale", "cpu", "--data-dir", "nowhere"], 1, "nowhere"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(arguments: list[str], code: int, words: str, folder: Path) -> None:
    (folder / "empty.py").write_text("")
    result = here("suite", *arguments, cwd=folder)
    assert result.returncode == code and words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (folder / "runs").exists()


CELLS = "from torchllp.experiments.suite import Cell, Suite\n{}\nSUITE = Suite({!r}, 'Mine', {})\n"
ONE = "scale.cell('digits', 'dllp', 64, 0)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SUITE = (", "mine.py: cannot be run: SyntaxError"),
        ("import nothing_of_the_kind", "mine.py: cannot be run: ModuleNotFoundError"),
        (CELLS.format("", "mine", "lambda scale: []"), "suite mine: there is no run in it"),
        (CELLS.format("", "mine", "[]"), "mine.py: its cells cannot be made: TypeError"),
        (CELLS.format("", "../mine", f"lambda scale: [{ONE}]"), "'../mine' is no name for a suite"),
        (CELLS.format("", "digits-dllp-bag=64-seed=0", f"lambda scale: [{ONE}]"), "give one another name"),
        (
            CELLS.format("", "mine", f"lambda scale: [Cell('a/b', 'dllp', {ONE}.config)]"),
            "'a/b' is no name for a run",
        ),
        (
            CELLS.format("", "mine", f"lambda scale: [Cell('a', 'dllp', {ONE}.config, after='b')]"),
            "a: starts from b, and no run before it is called so",
        ),
        (
            CELLS.format(
                "", "mine", "lambda scale: [scale.cell('digits', 'dllp', 64, 0, recipe={'lr': x}) for x in (1, 2)]"
            ),
            "would be the same seed of one row of the table",
        ),
        (
            CELLS.format("", "mine", f"lambda scale: [{ONE}.over({{'own': {{'instances': 'rows.csv'}}}})]"),
            "suites are of named data sets",
        ),
    ],
)
def test_files_that_have_no_suite_to_train(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    result = suite(tmp_path)
    assert result.returncode == 1 and words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name != "__pycache__"] == []


def test_a_figure_that_cannot_be_drawn_costs_no_table(folder: Path) -> None:
    text = (folder / "mine.py").read_text().replace("cells)", "cells, lambda results: 1 / 0)")
    (folder / "mine.py").write_text(text)
    result = suite(folder, "--only", "dllp-epochs=2-bag=64-seed=0")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert "suite mine: its figure cannot be drawn: ZeroDivisionError: division by zero" in result.stderr
    assert (folder / "runs/quick/mine-dllp-epochs=2-bag=64-seed=0/table.md").is_file()


def test_suites_are_listed(tmp_path: Path) -> None:
    result = here("suite", cwd=tmp_path)
    assert result.returncode == 0 and all(name in result.stdout for name in SUITES.names())


def test_names_are_listed_without_torch() -> None:
    code = "import sys, torchllp.experiments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
