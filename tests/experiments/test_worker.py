"""Workers that share a directory: each run is trained once, failures are kept, and what was stopped goes on."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchllp.engine.train import Observer
from torchllp.errors import LLPError
from torchllp.experiments.directory import State, SuiteDirectory
from torchllp.experiments.progress import SuiteProgress
from torchllp.experiments.scales import SCALES
from torchllp.experiments.suite import Cell
from torchllp.experiments.worker import work

QUICK = SCALES["quick"]


def cell(method: str = "dllp", seed: int = 0, **options: float) -> Cell:
    return QUICK.cell("digits", method, 64, seed, options=options, recipe={"epochs": 2}).over(
        {"model": {"name": "linear"}}
    )


class Stop(BaseException):
    pass


class StopAfterOneEpoch(Observer):
    def on_epoch(self, row: dict[str, float], state: object) -> None:
        raise Stop


def trained(cells: list[Cell], directory: SuiteDirectory, observer: Observer | None = None) -> list[str]:
    """The names of the runs that a worker has brought to their end, in this order."""
    names: list[str] = []

    def tell() -> None:
        ended = [cell.name for cell in cells if directory.standing(cell).state in (State.FINISHED, State.FAILED)]
        names.extend(name for name in ended if name not in before | {*names})

    before = {cell.name for cell in cells if directory.standing(cell).state in (State.FINISHED, State.FAILED)}
    work(cells, directory, observer=observer or Observer(), tell=tell)
    return names


def states(cells: list[Cell], directory: SuiteDirectory) -> list[State]:
    return [directory.standing(cell).state for cell in cells]


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    cells, directory = [cell(seed=0), cell(seed=1)], SuiteDirectory(tmp_path)
    assert states(cells, directory) == [State.WAITING] * 2
    assert trained(cells[:1], directory) == [cells[0].name]
    assert trained(cells, directory) == [cells[1].name]
    assert states(cells, directory) == [State.FINISHED] * 2
    assert trained(cells, directory) == []


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    cells, directory = [cell()], SuiteDirectory(tmp_path)
    with pytest.raises(Stop):
        trained(cells, directory, StopAfterOneEpoch())
    standing = directory.standing(cells[0])
    assert standing.state is State.STOPPED and standing.epochs_done == 1 and standing.seconds > 0
    trained(cells, directory)
    whole = SuiteDirectory(tmp_path / "whole")
    trained(cells, whole)
    stopped, expected = (d.run(cells[0].name) for d in (directory, whole))
    assert stopped.model_file.read_bytes() == expected.model_file.read_bytes()


def test_what_another_worker_is_at_is_left_to_it(tmp_path: Path) -> None:
    cells, directory = [cell(seed=0), cell(seed=1)], SuiteDirectory(tmp_path)
    with directory.claim(cells[0]) as is_ours:
        assert is_ours
        assert states(cells, directory) == [State.RUNNING, State.WAITING]
        assert trained(cells, directory) == [cells[1].name]
    assert trained(cells, directory) == [cells[0].name]


def test_a_failure_is_kept_until_it_is_to_be_tried_again(tmp_path: Path) -> None:
    """The others are trained all the same."""
    bad = cell(seed=0).over({"data": {"dataset": "svhn", "data_dir": str(tmp_path)}})
    cells, directory = [bad, cell(seed=1)], SuiteDirectory(tmp_path)
    assert trained(cells, directory) == [each.name for each in cells]
    assert states(cells, directory) == [State.FAILED, State.FINISHED]
    assert "train_32x32.mat" in directory.why_failed(bad)
    assert trained(cells, directory) == []
    directory.forget_failures(cells)
    assert states(cells, directory) == [State.WAITING, State.FINISHED]


def test_why_a_run_failed_is_the_first_line_of_its_error(tmp_path: Path) -> None:
    class Broken(Observer):
        def on_start(self, epochs_done: int, num_epochs: int) -> None:
            raise RuntimeError("CUDA error: an illegal access\nCompile with `TORCH_USE_CUDA_DSA`\n")

    directory = SuiteDirectory(tmp_path)
    trained([cell()], directory, Broken())
    assert directory.why_failed(cell()) == "RuntimeError: CUDA error: an illegal access"


def test_a_crash_is_written_down_with_its_traceback(tmp_path: Path) -> None:
    class Broken(Observer):
        def on_start(self, epochs_done: int, num_epochs: int) -> None:
            raise ZeroDivisionError("nothing to divide by")

    directory = SuiteDirectory(tmp_path)
    trained([cell()], directory, Broken())
    assert directory.why_failed(cell()) == "ZeroDivisionError: nothing to divide by"
    assert "Traceback" in directory.failure_file(cell()).read_text()


DEADLY = """
import os, signal, sys
from pathlib import Path
from torchllp.engine.train import Observer
from torchllp.experiments.directory import SuiteDirectory
from torchllp.experiments.scales import SCALES
from torchllp.experiments.worker import work

class Killer(Observer):
    def on_step(self, epoch, step, num_steps):
        if epoch == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

cell = SCALES["quick"].cell("digits", "dllp", 64, 0, recipe={"epochs": 2}).over({"model": {"name": "linear"}})
work([cell], SuiteDirectory(Path(sys.argv[1])), observer=Killer(), tell=lambda: None)
"""


def be_killed(folder: Path, epoch: int) -> None:
    """A worker at the first cell, in this epoch, by a real SIGKILL."""
    process = subprocess.run([sys.executable, "-c", DEADLY, str(folder), str(epoch)])
    assert process.returncode == -signal.SIGKILL


def test_a_run_that_kills_whoever_trains_it_has_failed(tmp_path: Path) -> None:
    cells, directory = [cell(seed=0), cell(seed=1)], SuiteDirectory(tmp_path)
    for _ in range(2):
        be_killed(tmp_path, epoch=0)
    assert trained(cells, directory) == [each.name for each in cells]
    assert states(cells, directory) == [State.FAILED, State.FINISHED]
    assert directory.why_failed(cells[0]) == "whoever trains it is killed, for lack of memory perhaps"
    directory.forget_failures(cells)
    assert trained(cells, directory) == [cells[0].name]
    assert states(cells, directory) == [State.FINISHED] * 2


def test_a_run_that_gets_on_between_kills_has_not_failed(tmp_path: Path) -> None:
    cells, directory = [cell()], SuiteDirectory(tmp_path)
    be_killed(tmp_path, epoch=0)
    be_killed(tmp_path, epoch=1)
    assert trained(cells, directory) == [cells[0].name]
    assert states(cells, directory) == [State.FINISHED]


def test_stopping_a_run_again_and_again_is_no_failure(tmp_path: Path) -> None:
    class StopAtOnce(Observer):
        def on_step(self, epoch: int, step: int, num_steps: int) -> None:
            raise Stop

    cells, directory = [cell()], SuiteDirectory(tmp_path)
    for _ in range(3):
        with pytest.raises(Stop):
            trained(cells, directory, StopAtOnce())
    assert trained(cells, directory) == [cells[0].name]
    assert states(cells, directory) == [State.FINISHED]


def test_a_run_waits_for_the_features_that_it_starts_from(tmp_path: Path) -> None:
    features = QUICK.pretrained("digits", 0).over({"recipe": {"epochs": 1}})
    head = QUICK.cell("digits", "flmm", 64, 0, recipe={"epochs": 2}, after=features)
    directory = SuiteDirectory(tmp_path)
    assert trained([head, features], directory) == [features.name, head.name]
    assert directory.run(head.name).config.init_from == str(directory.run(features.name).path)


def test_a_run_without_its_features_has_failed(tmp_path: Path) -> None:
    features = QUICK.pretrained("digits", 0).over({"model": {"name": "linear"}, "recipe": {"epochs": 1}})
    head = QUICK.cell("digits", "flmm", 64, 0, recipe={"epochs": 2}, after=features)
    directory = SuiteDirectory(tmp_path)
    trained([features, head], directory)
    assert states([features, head], directory) == [State.FAILED] * 2
    assert directory.why_failed(head) == f"{features.name} failed, which it starts from"


def test_a_run_by_other_settings_is_not_taken_for_the_suites(tmp_path: Path) -> None:
    directory = SuiteDirectory(tmp_path)
    trained([cell()], directory)
    directory.check([cell().over({"compute": {"threads": 2}, "data": {"data_dir": "elsewhere"}})])
    with pytest.raises(LLPError, match=r"bag=64-seed=0: was trained by other settings"):
        directory.check([cell().over({"recipe": {"lr": 0.5}})])


def test_time_left_is_that_of_like_runs(tmp_path: Path) -> None:
    cells, directory = [cell(seed=0), cell(seed=1), cell("ahil")], SuiteDirectory(tmp_path)
    progress = SuiteProgress(cells, directory)
    assert progress.look().seconds_left() is None
    trained(cells[:1], directory)
    an_epoch = directory.standing(cells[0]).seconds / 2
    assert progress.look().seconds_left() == pytest.approx(4 * an_epoch)  # nobody knows ahil yet
    assert progress.look().seconds_left(num_workers=8) == pytest.approx(2 * an_epoch)  # no sooner than one of the two
    with pytest.raises(Stop):
        trained([cells[2]], directory, StopAfterOneEpoch())
    overview = progress.look()
    assert overview.seconds_left() == pytest.approx(2 * an_epoch + overview.standings[cells[2].name].seconds)
    states = [standing.state for standing in overview.standings.values()]
    assert sorted(states) == [State.FINISHED, State.STOPPED, State.WAITING]


def test_looking_neither_disturbs_nor_is_disturbed(tmp_path: Path) -> None:
    one, directory = cell(), SuiteDirectory(tmp_path)
    with directory.claim(one) as is_ours:
        assert is_ours
        assert states([one, one], directory) == [State.RUNNING] * 2
        with directory.claim(one) as is_theirs:
            assert not is_theirs
    assert states([one], directory) == [State.WAITING]


def test_a_line_that_was_torn_by_a_crash_is_no_epoch(tmp_path: Path) -> None:
    one, directory = cell(), SuiteDirectory(tmp_path)
    with pytest.raises(Stop):
        trained([one], directory, StopAfterOneEpoch())
    with open(directory.run(one.name).metrics_file, "a") as file:
        file.write('{"epoch": 2, "sec')
    assert directory.standing(one).epochs_done == 1
    assert trained([one], directory) == [one.name]
    assert directory.standing(one).epochs_done == 2


def test_two_runs_of_one_name_are_one_run(tmp_path: Path) -> None:
    directory, one = SuiteDirectory(tmp_path), cell()
    directory.check([one, one])
    for other in (one.over({"model": {"name": "small-cnn"}}), replace(one, after="features")):
        with pytest.raises(LLPError, match=f"two runs of the suite are called {one.name} and differ"):
            directory.check([one, other])
