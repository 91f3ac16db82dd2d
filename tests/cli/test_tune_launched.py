"""`llp tune --on`: many processes make the trials of one study, on this machine or on a Slurm cluster."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fake_slurm
from commands import here, llp
from processes import processes_of, wait_until_none_is_left
from torchllp.tuning import Study

TINY = ["--model", "linear", "--search", "lr=0.01:1:log"]


@contextmanager
def meanwhile(is_time: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread as soon as it is time for it."""

    def watch() -> None:
        while not is_time():
            if over.wait(0.05):
                return
        act()

    over, thread = threading.Event(), threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("place", "num_jobs", "said"),
    [("local", 2, []), ("slurm", 1, ["--slurm", "time=10", "--slurm", "cpus-per-task=1"])],
)
def test_jobs_make_the_trials_together(
    place: str, num_jobs: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "slurm":
        fake_slurm.install(tmp_path / "fake", monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of no importance to the jobs
    monkeypatch.chdir(tmp_path)
    command = ["tune", *TINY, "--epochs", "1", "--trials", "3", "--study", "study"]
    result = here(*command, "--on", place, "--jobs", str(num_jobs), *said)
    assert result.returncode == 0, result.stderr
    study = Study.open(tmp_path / "study")
    trials = study.trials()
    assert sorted(trial.number for trial in trials) == [0, 1, 2]  # all together, not each
    assert {trial.state for trial in trials} == {"complete"}
    threads = max(1, len(os.sched_getaffinity(0)) // 2) if place == "local" else 1
    assert {trial.run.config.compute.threads for trial in trials} == {threads}
    assert sorted(re.findall(r"^trial (\d): bag_kl", result.stdout, re.MULTILINE)) == ["0", "1", "2"]
    assert len(re.findall(rf"^job \d of {num_jobs} has ended$", result.stdout, re.MULTILINE)) == num_jobs
    assert result.stdout.count("The best of 3 trials by held-out bags") == 1
    (logs,) = study.jobs_directory.iterdir()
    made = [re.findall(r"^trial (\d): bag_kl", log.read_text(), re.MULTILINE) for log in logs.glob("*_log.out")]
    assert len(made) == num_jobs and sorted(number for each in made for number in each) == ["0", "1", "2"]
    wait_until_none_is_left(tmp_path)


def test_ctrl_c_ends_all_jobs(tmp_path: Path) -> None:
    path = tmp_path / "study"
    command = ["tune", *TINY, "--epochs", "100000", "--study", path, "--on", "local", "--jobs", "1"]
    trained = path / "trials" / "0000" / "checkpoints" / "last.pt"
    with meanwhile(trained.exists, lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = here(*command)
    assert processes_of(path) == []  # when the command returns, they have gone
    assert result.returncode == 130 and result.stderr == "llp: stopped\n"
    assert f"stopped; go on by: llp tune --resume {path}" in result.stdout
    assert [trial.state for trial in Study.open(path).trials()] == ["fail", "waiting"]  # which is to be tried again
    assert [file.name for file in (path / "trials").iterdir() if file.name.startswith(".")] == []  # told by itself


def test_a_killed_job_is_told_after_the_table(tmp_path: Path) -> None:
    path = tmp_path / "study"
    assert here("tune", *TINY, "--epochs", "1", "--trials", "1", "--study", path).returncode == 0

    def workers() -> list[int]:
        return [pid for pid in processes_of(path) if b"--batch" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    with meanwhile(workers, lambda: [os.kill(pid, signal.SIGKILL) for pid in workers()]):
        result = here("tune", "--resume", path, "--trials", "1", "--on", "local", "--jobs", "1")
    assert result.returncode == 1
    assert result.stdout.index("job 1 of 1 failed with exit code -9") < result.stdout.index("The best of 1 trials")
    assert re.fullmatch(rf"llp: 1 of 1 jobs failed; what it said: {path}/jobs/.*_log.out\n", result.stderr)
    assert processes_of(path) == []


def test_a_batch_is_claimed_once(tmp_path: Path) -> None:
    assert here("tune", *TINY, "--epochs", "1", "--trials", "1", "--study", tmp_path / "study").returncode == 0
    several = [Study.open(tmp_path / "study") for _ in range(3)]
    assert [several[i % 3].claim("one", 5) for i in range(9)] == [True] * 5 + [False] * 4
    assert [several[i % 3].claim("two", 2) for i in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--on", "local"], 2, "--on and --jobs belong together"),
        (["--jobs", "2"], 2, "--on and --jobs belong together"),
        (["--on", "local", "--jobs", "0"], 2, "--jobs"),
        (["--on", "cloud", "--jobs", "2"], 2, "--on"),
        (["--on", "local", "--jobs", "2", "--slurm", "time=5"], 2, "--slurm is for --on slurm"),
        (["--on", "slurm", "--jobs", "2"], 2, "--on slurm needs the time limit of a job in minutes"),
        (["--on", "slurm", "--jobs", "2", "--slurm", "time=2:00"], 2, "such as --slurm time=120"),
        (
            ["--on", "slurm", "--jobs", "2", "--slurm=--time=5"],
            2,
            "--slurm takes OPTION=VALUE, without dashes",
        ),
        (["--on", "slurm", "--jobs", "2", "--slurm", "time=5"], 1, "there is no command 'sbatch'"),
        (["--on", "local", "--jobs", "2", "--held-out", "0"], 1, "none is held out"),
        (["--on", "local", "--jobs", "2", "--resume", "nope"], 1, "nope: not a study"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # also where there is a Slurm
    result = here("tune", *arguments)
    assert result.returncode == code and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []


def test_help_names_the_flags() -> None:
    shown = llp("tune", "-h").stdout
    assert all(flag in shown for flag in ("--on", "--jobs", "--slurm")) and "--batch" not in shown
