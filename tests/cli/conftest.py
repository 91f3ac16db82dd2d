"""What the tests of the command share."""

import shutil
from pathlib import Path

import pytest

from commands import here, llp
from own_tables import BAGS, OURS, RECIPE, ROWS, Work, write


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A folder with tables, and a run that was trained on them."""
    path = tmp_path_factory.mktemp("work")
    write(path / "rows.csv", ROWS)
    write(path / "bags.csv", BAGS)
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", *OURS, "--epochs", "4", *RECIPE]
    result = llp("train", *flags, "--run", "run", cwd=path)
    assert result.returncode == 0, result.stderr
    return Work(path, result)


@pytest.fixture(scope="session")
def digit_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs on the digits, two methods and one of them with two seeds, and one that is not done."""
    path = tmp_path_factory.mktemp("digits")
    short = ["--epochs", "3", "--instances-per-step", "256", "--threads", "1"]
    result = here("train", "--run", "runs/ahil", "--compare", "dllp", *short, cwd=path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("report: runs/ahil/report.html\nreport: runs/ahil-dllp/report.html\n")
    assert here("train", "--run", "runs/ahil-1", "--seed", "1", *short, cwd=path).returncode == 0
    (path / "runs" / "begun").mkdir()
    shutil.copy(path / "runs" / "ahil" / "config.toml", path / "runs" / "begun")
    return path / "runs"
