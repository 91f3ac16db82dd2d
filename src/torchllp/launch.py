"""Commands of `llp` as processes of this machine or as jobs on a Slurm cluster, by the same code."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from torchllp.errors import LLPError

Place = Literal["local", "slurm"]

POLL = 0.5
"""Seconds between two looks at what is running."""
PATIENCE = 30
"""Seconds that a command has to end by itself when it is told to, as it has on Slurm by default."""
FOR_EVER = 60 * 24 * 3650
"""Minutes; submitit ends a local job after two unless it is told otherwise."""


def check_place(on: Place) -> None:
    """Raise unless jobs can be started there."""
    _import_submitit()
    if on == "slurm":
        for command in ("sbatch", "srun"):
            if shutil.which(command) is None:
                raise LLPError(f"this is no machine of a Slurm cluster: there is no command {command!r}")


def launch(
    commands: Sequence[Sequence[str]],
    on: Place,
    folder: Path,
    *,
    sbatch: Mapping[str, str | Literal[True]] | None = None,
    tell: Callable[[str], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run all commands at once, each as a job, and wait for them; end them if this is stopped.

    Args:
        commands: arguments of `llp`, a list each.
        on: ``local`` gives each job its share of the cores, and its GPU where there are several; ``slurm`` what was
            asked for.
        folder: an empty directory for logs and the files of submitit; for Slurm one that all machines see.
        sbatch: options of Slurm's sbatch, without dashes in front; ``time`` is in minutes, and must be there.
        tell: is called with a line when something has happened.
        meanwhile: is called again and again while they run.

    Raises:
        LLPError: if one of them failed, after all have ended.
    """
    check_place(on)
    jobs: list[Any] = []
    with _holding(folder / ".launcher") as lock:
        try:
            with _undisturbed():
                jobs = _submit(commands, on, folder, sbatch or {}, lock)
            tell(f"jobs on {'Slurm' if on == 'slurm' else 'this machine'}: {len(jobs)}; their logs: {folder}")
            failed = _wait(jobs, tell, meanwhile)
        except BaseException:
            _stop(jobs, on)
            raise
    if failed:
        each = "it" if len(failed) == 1 else "each"
        raise LLPError(f"{len(failed)} of {len(jobs)} jobs failed; what {each} said: {', '.join(map(str, failed))}")


def work(command: Sequence[str], environment: Mapping[str, str], lock: Path | None) -> int:
    """Run a command as a process until it ends, until SIGTERM, or until nobody holds the lock; its exit code."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))  # submitit's own handler does nothing
    process = subprocess.Popen(command, env=os.environ | environment)
    try:
        while process.poll() is None and not received and (lock is None or _is_held(lock)):
            time.sleep(POLL)
    finally:  # also when submitit raises, shortly before the time limit of Slurm
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode


def work_on_slurm(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The same in a job of Slurm, which says how many cores it has and outlives who submitted it."""
    threads = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    return work(command, {**environment, "OMP_NUM_THREADS": threads}, lock=None)


def _submit(
    commands: Sequence[Sequence[str]], on: Place, folder: Path, sbatch: Mapping[str, Any], lock: Path
) -> list[Any]:
    """Start the jobs."""
    submitit = _import_submitit()
    executor = submitit.AutoExecutor(folder=folder, cluster=on)
    processes = [[sys.executable, "-m", "torchllp", *command] for command in commands]
    plain = {"PYTHONUNBUFFERED": "1"}  # a log that can be followed
    if on == "slurm":
        # Past submitit's own names, so that all options of sbatch are known; it looks at the time limit itself.
        options = {name: value for name, value in sbatch.items() if name != "time"}
        executor.update_parameters(
            name="llp", timeout_min=int(sbatch["time"]), stderr_to_stdout=True, slurm_additional_parameters=options
        )
        function, arguments = work_on_slurm, (processes, [plain] * len(commands))
    else:
        executor.update_parameters(timeout_min=FOR_EVER, stderr_to_stdout=True)
        shares = [plain | share for share in shares_of_this_machine(len(commands))]
        function, arguments = work, (processes, shares, [lock] * len(commands))
    try:
        return executor.map_array(function, *arguments)
    except submitit.core.utils.FailedJobError as error:  # of sbatch
        shutil.rmtree(folder)
        said = str(error).strip().splitlines() or ["it did not say why"]
        raise LLPError(f"Slurm does not take the jobs: {said[-1]}") from None


def shares_of_this_machine(num_jobs: int) -> list[dict[str, str]]:
    """What of this machine each of some jobs may use, as environment variables: cores // jobs, and one GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = _gpus()
    return [
        {
            "OMP_NUM_THREADS": str(max(1, cores // num_jobs)),
            "CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)] if gpus else "",  # submitit says none to its local jobs
        }
        for i in range(num_jobs)
    ]


def _gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _wait(jobs: Sequence[Any], tell: Callable[[str], None], meanwhile: Callable[[], None]) -> list[Path]:
    """Wait until all have ended; the logs of those that failed."""
    UncompletedJobError = _import_submitit().core.utils.UncompletedJobError
    running, failed = dict(enumerate(jobs, 1)), []
    while running:
        ended = [number for number, job in running.items() if job.done()]
        meanwhile()
        for number in ended:
            job = running.pop(number)
            try:
                code = job.result()
                how = "has ended" if code == 0 else f"failed with exit code {code}"
            except UncompletedJobError:  # killed, out of time or cancelled
                code, how = None, "was ended before its time"
            if code != 0:
                failed.append(job.paths.stdout)
            tell(f"job {number} of {len(jobs)} {how}")
        if running:
            time.sleep(POLL)
    return failed


def _stop(jobs: Sequence[Any], on: Place) -> None:
    """End those that run, and on this machine wait until they have ended."""
    running = [job for job in jobs if not job.done()]
    for job in running:
        if on == "slurm":
            job.cancel(check=False)
        else:
            os.kill(int(job.job_id), signal.SIGTERM)  # submitit's cancel() would leave a command that is slow to end
    while on == "local" and not all(job.done() for job in running):
        time.sleep(POLL)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off until it is known what was started, and keep Ctrl-C from what is started for good.

    In a terminal it goes to all processes, and submitit's would die of it before the commands that they look after.
    A signal that is blocked stays so in new processes; this one gets it afterwards, and ends them.
    """
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received[:1]:
            signal.raise_signal(number)


@contextmanager
def _holding(path: Path) -> Iterator[Path]:
    """Hold a lock, which the system gives back however this process ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def _is_held(lock: Path) -> bool:
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise LLPError("--on needs submitit: pip install 'torchllp[slurm]'") from None
    return submitit
