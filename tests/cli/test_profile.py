"""`llp train --profile`."""

import json
import re
from pathlib import Path

import pytest

from torchllp.cli import main

TRAINING = ["--method", "dllp", "--model", "mlp", "--instances-per-step", "64", "--threads", "1", "--profile"]


def test_the_five_largest_costs_are_shown_and_the_trace_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "--run", str(run), "--epochs", "1", *TRAINING]) == 0
    shown = capsys.readouterr().out
    shares = [float(share) for share in re.findall(r"([\d.]+) % +[\d.]+ ms", shown)]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100.1
    assert "aten::" in shown and "Accuracy on the test instances" in shown
    names = {event.get("name") for event in json.loads((run / "profile.json").read_text())["traceEvents"]}
    assert {"aten::linear", "ProfilerStep#5"} <= names


@pytest.mark.parametrize("num_steps", [4, 9])
def test_a_training_too_short_to_profile_says_so(
    num_steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few_steps = ["--epochs", "1", "--steps-per-epoch", str(num_steps)]
    assert main(["train", "--run", str(tmp_path / "run"), *few_steps, *TRAINING]) == 0
    assert "no profile: it takes 15 steps" in capsys.readouterr().out
    assert not (tmp_path / "run" / "profile.json").exists()
