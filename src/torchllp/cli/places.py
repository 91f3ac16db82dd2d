"""Where commands that launch others do so."""

from typing import Literal

from torchllp.cli import Misuse
from torchllp.launch import Place


def sbatch_options(pairs: list[str] | None, on: Place | None) -> dict[str, str | Literal[True]]:
    """What was said by --slurm."""
    options: dict[str, str | Literal[True]] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name or name.startswith("-"):
            raise Misuse(f"--slurm takes OPTION=VALUE, without dashes in front, not {pair!r}")
        options[name.replace("-", "_")] = value if equals else True
    if options and on != "slurm":
        raise Misuse("--slurm is for --on slurm")
    minutes = options.get("time")
    if on == "slurm" and not (isinstance(minutes, str) and minutes.isdecimal() and int(minutes) > 0):
        raise Misuse("--on slurm needs the time limit of a job in minutes, such as --slurm time=120")
    return options
