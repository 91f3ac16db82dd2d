"""`torchrun -m torchllp train`, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from torchllp.cli import main
from torchllp.cli.progress import show_progress
from torchllp.run import Run

TRAINING = ["--model", "mlp", "--bag-size", "40", "--instances-per-step", "120", "--epochs", "10", "--threads", "1"]


def torchrun(num_processes: int, *arguments: str | Path, looks_every: float = 0.1) -> subprocess.Popen[str]:
    """``looks_every`` so many seconds torchrun looks after its processes, and ends all once one has gone."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    command.append(f"--monitor-interval={looks_every}")
    return subprocess.Popen(
        [*command, "-m", "torchllp", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def metrics(run: Path) -> list[dict[str, float]]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return [*map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())]


def test_a_killed_process_ends_the_others_and_any_number_goes_on(tmp_path: Path) -> None:
    assert main(["train", "--run", str(tmp_path / "alone"), *TRAINING]) == 0

    run = tmp_path / "together"
    # On a busy machine torchrun could be quicker to end the other process than that is to notice by itself.
    training = torchrun(2, "train", "--run-dir", run, *TRAINING, looks_every=5)
    while len(metrics(run)) < 2:
        assert training.poll() is None, training.communicate()[0]
        time.sleep(0.02)
    os.kill(workers_of(training)[-1], signal.SIGKILL)
    output, _ = training.communicate(timeout=120)
    assert training.returncode != 0
    assert "llp: another process of this training has gone" in output
    assert f"continue by: llp train --resume {run}" in output
    assert not (run / "summary.json").exists()

    resumed = torchrun(3, "train", "--resume", run)
    output, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, output
    assert output.count("Accuracy on the test instances of digits") == 1  # by one process
    for row, alone in zip(metrics(run), metrics(tmp_path / "alone"), strict=True):
        expected = {name: value for name, value in alone.items() if not name.endswith("seconds")}
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=2e-3)


def test_an_error_is_told_once(tmp_path: Path) -> None:
    process = torchrun(2, "train", "--run-dir", tmp_path / "run", "--dataset", "svhn", "--data-dir", tmp_path)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output.count("llp: ") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_at_work_is_told_once(tmp_path: Path) -> None:
    """The first process alone holds the run's lock; the others hear of it in time."""
    run = tmp_path / "run"
    assert main(["train", "--run", str(run), *TRAINING]) == 0
    (run / "summary.json").unlink()
    with Run.open(run).lock():
        process = torchrun(2, "train", "--resume", run)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output.count(f"llp: {run}: another process is at work in this run") == 1
    assert "gloo" not in output and "llp: another process of this training" not in output


def test_the_first_process_alone_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        screen = StringIO()
        with show_progress(Console(file=screen, force_terminal=True)):
            pass
        assert ("starting" in screen.getvalue()) == (rank == "0")
