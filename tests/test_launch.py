"""Jobs on this machine and on a Slurm cluster: what they are given, how they end, and that none is left."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import fake_slurm
from processes import processes_of, wait_until_none_is_left
from torchllp import launch
from torchllp.errors import LLPError

LAUNCH = """
import sys
from pathlib import Path
from torchllp.launch import launch

launch([["train", "--config", sys.argv[1]]] * 2, "local", Path(sys.argv[2]), tell=lambda line: print(line, flush=True))
"""
WORK = """
import sys
from pathlib import Path
from torchllp import launch

launch.PATIENCE = 1
sys.exit(launch.work(sys.argv[2:], {}, Path(sys.argv[1])) % 256)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
POLITE = "import time; print('ready', flush=True); time.sleep(600)"
SHOW = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "jobs with a space"
    path.mkdir()
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A config that never comes: `llp train` waits for it."""
    path = tmp_path / "endless.toml"
    os.mkfifo(path)
    return path


@pytest.fixture(params=["local", "slurm"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Each of the two, and what must be said of it."""
    if request.param == "slurm":
        fake_slurm.install(tmp_path / "fake", monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return {"on": request.param, "sbatch": {"time": "5"}}


def test_each_command_is_run(place: dict, folder: Path) -> None:
    told: list[str] = []
    looks: list[int] = []
    commands = [["--version"], ["methods"], ["models"]]
    launch.launch(commands, folder=folder, tell=told.append, meanwhile=lambda: looks.append(1), **place)
    assert told[0].startswith("jobs on ") and told[0].endswith(f": 3; their logs: {folder}")
    assert sorted(told[1:]) == [f"job {number} of 3 has ended" for number in (1, 2, 3)]
    assert looks
    logs = [path.read_text() for path in folder.glob("*_log.out")]
    assert len(logs) == 3
    assert all(sum(word in log for log in logs) == 1 for word in (version("torchllp"), "llp-vat", "small-cnn"))
    wait_until_none_is_left(folder)


def test_a_failure_is_told_when_all_have_ended(place: dict, folder: Path) -> None:
    told: list[str] = []
    with pytest.raises(LLPError, match="1 of 2 jobs failed; what it said: ") as error:
        launch.launch([["methods", "nope"], ["--version"]], folder=folder, tell=told.append, **place)
    assert sorted(told[1:]) == ["job 1 of 2 failed with exit code 1", "job 2 of 2 has ended"]
    log = Path(str(error.value).partition("what it said: ")[2])
    assert "llp: unknown method 'nope'" in log.read_text()


def test_what_is_stopped_ends_all_jobs(place: dict, folder: Path, endless: Path) -> None:
    def stop_when_all_run() -> None:
        if len(processes_of(endless)) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.launch(
            [["train", "--config", str(endless)]] * 2,
            folder=folder,
            tell=lambda _: None,
            meanwhile=stop_when_all_run,
            **place,
        )
    if place["on"] == "local":
        assert not processes_of(endless) and not processes_of(folder)  # when the command returns, they have gone
    wait_until_none_is_left(endless)
    wait_until_none_is_left(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(number: signal.Signals, folder: Path, endless: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(endless), str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    deadline = time.monotonic() + 60
    while len(processes_of(endless)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(processes_of(endless)) == 3  # the launcher and its jobs
    if number == signal.SIGINT:
        os.killpg(launcher.pid, number)  # as a terminal does
    else:
        launcher.kill()
    _, errors = launcher.communicate(timeout=60)
    if number == signal.SIGINT:
        assert not processes_of(folder)
        assert errors.count("KeyboardInterrupt") == 1  # of the launcher, and nothing of submitit's processes
    wait_until_none_is_left(folder)
    wait_until_none_is_left(endless)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, ZeroDivisionError)])
def test_a_signal_waits_until_the_jobs_are_known(number: signal.Signals, error: type[BaseException]) -> None:
    def raise_error(*_: object) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGTERM, raise_error)
    known = False
    try:
        with pytest.raises(error), launch._undisturbed():
            os.kill(os.getpid(), number)
            time.sleep(0.1)
            known = True
        assert known
        assert signal.getsignal(signal.SIGTERM) is raise_error
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("program", "code"), [(POLITE, -signal.SIGTERM), (STUBBORN, -signal.SIGKILL)])
@pytest.mark.parametrize("way", ["signal", "lock"])
def test_work_ends_its_command(program: str, code: int, way: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with launch._holding(lock):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORK, str(lock), sys.executable, "-c", program, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        if way == "signal":
            worker.terminate()
            assert worker.wait(60) == code % 256
    assert worker.wait(60) == code % 256
    assert processes_of(tmp_path) == []


def test_each_local_job_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    for num_jobs in (1, 2, 3, 100):
        shares = launch.shares_of_this_machine(num_jobs)
        assert {share["OMP_NUM_THREADS"] for share in shares} == {str(max(1, cores // num_jobs))}
        assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == [("4", "7")[i % 2] for i in range(num_jobs)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert {share["CUDA_VISIBLE_DEVICES"] for share in launch.shares_of_this_machine(2)} == {""}


def test_work_hands_its_share_on() -> None:
    environment = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1"}
    script = f"from torchllp.launch import work; work({[sys.executable, '-c', SHOW]}, {environment}, None)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "3 1\n"


def test_a_job_of_slurm_uses_the_cores_it_was_given() -> None:
    script = f"from torchllp.launch import work_on_slurm; work_on_slurm({[sys.executable, '-c', SHOW]}, {{}})"
    environment = os.environ | {"SLURM_CPUS_ON_NODE": "6", "CUDA_VISIBLE_DEVICES": "2"}
    assert subprocess.check_output([sys.executable, "-c", script], text=True, env=environment) == "6 2\n"


def test_sbatch_gets_its_options(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurm.install(tmp_path / "fake", monkeypatch)
    options = {
        "time": "90",
        "partition": "gpu",
        "cpus_per_task": "4",
        "mem": "16G",
        "account": "007",
        "exclusive": True,
    }
    launch.launch([["--version"]] * 2, "slurm", folder, sbatch=options, tell=lambda _: None)
    (script,) = folder.glob("*_submission.sh")
    lines = script.read_text().splitlines()
    wanted = ["time=90", "partition=gpu", "cpus-per-task=4", "account=007", "exclusive", "array=0-1%2"]
    for option in wanted:
        assert lines.count(f"#SBATCH --{option}") == 1
    assert sum(line.startswith("#SBATCH --time") for line in lines) == 1


def test_a_job_of_slurm_that_is_out_of_time(
    folder: Path, endless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm.install(tmp_path / "fake", monkeypatch)

    def end_the_time() -> None:
        """The signal that Slurm sends shortly before, to submitit's process and not to what it has started."""
        if processes_of(endless):
            for pid in processes_of(folder):
                if b"submitit.core._submit" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGUSR2)

    told: list[str] = []
    command = ["train", "--config", str(endless)]
    with pytest.raises(LLPError, match="1 of 1 jobs failed"):
        launch.launch([command], "slurm", folder, sbatch={"time": "5"}, tell=told.append, meanwhile=end_the_time)
    assert told[-1] == "job 1 of 1 was ended before its time"
    assert processes_of(endless) == []


def test_what_sbatch_refuses(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurm.install(tmp_path / "fake", monkeypatch)
    options = {"time": "5", "partition": "nope"}
    with pytest.raises(LLPError, match=r"^Slurm does not take the jobs: sbatch: error: Batch job submission failed$"):
        launch.launch([["--version"]], "slurm", folder, sbatch=options, tell=lambda _: None)
    assert not folder.exists()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    launch.check_place("local")
    with pytest.raises(LLPError, match="no machine of a Slurm cluster: there is no command 'sbatch'"):
        launch.check_place("slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)  # which makes `import submitit` fail
    with pytest.raises(LLPError, match=r"pip install 'torchllp\[slurm\]'"):
        launch.check_place("local")
