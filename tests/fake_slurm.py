"""A Slurm of this machine alone: sbatch, srun, sacct and scancel, as far as submitit asks them, on real processes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the commands start sooner without it
    import pytest


def install(path: Path, monkeypatch: "pytest.MonkeyPatch") -> None:
    """Put the four commands on the PATH."""
    commands, jobs = path / "bin", path / "slurm"
    commands.mkdir(parents=True)
    jobs.mkdir()
    for name in ("sbatch", "srun", "sacct", "scancel"):
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(jobs))


def sbatch(script: str) -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", Path(script).read_text(), re.MULTILINE))
    if options.get("partition") == "nope":
        sys.exit("sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed")
    number = os.getpid()  # submitit remembers what it has seen: never the same twice
    last = int(re.match(r"0-(\d+)", options.get("array", "0-0"))[1])
    for i in range(last + 1):
        job = f"{number}_{i}" if "array" in options else str(number)
        own = {"SLURM_JOB_ID": str(number), "SLURM_CPUS_ON_NODE": options.get("cpus-per-task", "1")}
        array = {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(i)} if "array" in options else {}
        file = jobs() / job
        process = subprocess.Popen(
            ["bash", "-c", 'bash "$0"; echo $? > "$1"', script, f"{file}.exit"],
            env=os.environ | own | array,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        file.write_text(str(process.pid))
    sys.stdout.write(f"Submitted batch job {number}\n")


def srun(*arguments: str) -> None:
    log = arguments[arguments.index("--output") + 1]
    names = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    for mark, name in names.items():
        log = log.replace(mark, os.environ.get(name, ""))
    command = arguments[arguments.index("--output") + 2 :]
    with open(log.replace("%t", "0"), "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.execvp(command[0], command)


def sacct(*_: str) -> None:
    sys.stdout.write("JobID|State|NodeList\n")
    for file in sorted(jobs().iterdir()):
        if not file.suffix:
            end = file.with_name(f"{file.name}.exit")
            state = "RUNNING" if not end.exists() else "COMPLETED" if end.read_text().strip() == "0" else "FAILED"
            sys.stdout.write(f"{file.name}|{state}|here\n")


def scancel(job: str) -> None:
    """As Slurm does: the signal goes to every process of the job."""
    file = jobs() / job
    file.with_name(f"{job}.exit").write_text("cancelled")
    os.killpg(int(file.read_text()), signal.SIGTERM)


def jobs() -> Path:
    return Path(os.environ["FAKE_SLURM"])


if __name__ == "__main__":
    {"sbatch": sbatch, "srun": srun, "sacct": sacct, "scancel": scancel}[sys.argv[1]](*sys.argv[2:])
