"""`llp tune`."""

import logging
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchllp.cli import Misuse
from torchllp.cli.console import console, percent, saying_how_to_go_on, show_table
from torchllp.cli.flags import check_flags
from torchllp.cli.places import sbatch_options
from torchllp.cli.training import Flag, Repeated, check_resume_alone, config_of, default_name, flags_of, section
from torchllp.config import Compute, Config, DataConfig, OwnConfig, Recipe
from torchllp.errors import LLPError
from torchllp.launch import Place, check_place, launch
from torchllp.launched import is_launched

if TYPE_CHECKING:
    from torchllp.search_space import SearchSpace
    from torchllp.tuning import Study, Trial

SHOWN = 10
"""Rows of the table."""
NOT_OF_THE_STUDY = ("trials", "prune", "on", "jobs", "slurm", "batch")
"""What may be said beside --resume."""


def tune(
    *,
    search: Annotated[list[str] | None, Repeated] = None,
    trials: Annotated[int, Parameter(validator=Number(gte=1))] = 20,
    study: Path | None = None,
    resume: Path | None = None,
    prune: bool = True,
    on: Place | None = None,
    jobs: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    slurm: Annotated[list[str] | None, Repeated] = None,
    batch: Annotated[str | None, Parameter(show=False)] = None,
    method: str | None = None,
    set: Annotated[list[str] | None, Repeated] = None,
    model: str | None = None,
    model_set: Annotated[list[str] | None, Repeated] = None,
    seed: int | None = None,
    init_from: Path | None = None,
    freeze: Annotated[bool, Flag] = False,
    preset: str | None = None,
    config: Path | None = None,
    data: Annotated[DataConfig | None, section("Data set and bags")] = None,
    own: Annotated[OwnConfig | None, section("Your own data")] = None,
    recipe: Annotated[Recipe | None, section("Recipe (tables: AdamW, 50 epochs, steps of 256)")] = None,
    compute: Annotated[Compute | None, section("Compute")] = None,
) -> None:
    """Search the settings that held-out bags like best, without labels, by Optuna.

    The flags of `llp train` say what is trained; --search says what is varied. Trials are judged by --choose-by at
    their chosen epoch, all of them on the same held-out bags. The same command again goes on with the study, and
    any number of processes or machines may do so at the same time.

    Parameters
    ----------
    search
        NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C; can be repeated. Names: method, lr and all of the recipe's
        settings, numbers of the method such as beta_bag, and rot.eps for a number of one method alone. Default: lr
        and the method's main numbers.
    trials
        How many trials this process makes, or with --on all jobs together.
    study
        Directory of the study. Default: named by data set, bags and seed in runs.
    resume
        Go on with this study, by its own settings.
    prune
        Stop a trial early that is worse than the median of those before it, at the same epoch.
    on
        Make the trials in several processes of this machine, each with its share of the cores, or jobs of a Slurm
        cluster.
    jobs
        How many processes or jobs.
    slurm
        OPTION=VALUE of sbatch for each job, such as time=120 (minutes, needed), partition=gpu, gpus=1,
        cpus-per-task=4 or mem=16G; can be repeated.
    batch
        The trials that are made together with other processes.
    method
        Method (see `llp methods`). [default: ahil]
    set
        NUMBER=VALUE of the method, such as beta_bag=5; can be repeated.
    model
        Model (see `llp models`). [default: small-cnn for images, mlp for tables]
    model_set
        OPTION=VALUE of the model, such as stem=imagenet; can be repeated.
    seed
        Decides bags, first weights, order and views of every trial, and what is tried. [default: 0]
    init_from
        Run, of `llp train` or `llp pretrain`, whose weights are the first ones; its model is the default.
    freeze
        Train a new head alone, on the features of --init-from, which are computed once a trial.
    preset
        Recipe: quick, paper or reference (the paper's published code). [default: quick]
    config
        TOML file like a run's config.toml.
    """
    given = {name: value for name, value in locals().items() if name not in NOT_OF_THE_STUDY}
    if is_launched():
        raise Misuse("torchrun's processes train one model: for many trials at once say --on local or --on slurm")
    sbatch = sbatch_options(slurm, on)
    if (on is None) != (jobs is None):
        raise Misuse("--on and --jobs belong together, such as --on local --jobs 4")
    from torchllp.tuning import Study, import_optuna

    import_optuna()  # before the data are read
    if on is not None:
        check_place(on)
    if resume is not None:
        check_resume_alone(given)
        opened = Study.open(resume)
        _prepare(opened.space)
    else:
        flags = flags_of(
            method=method,
            set=set,
            model=model,
            model_set=model_set,
            seed=seed,
            init_from=init_from,
            data=data,
            own=own,
            recipe=recipe,
            compute=compute,
        )
        flags |= {"freeze": True} if freeze else {}
        base = config_of(flags, config, preset)
        space = _space(search, base)
        _prepare(space)
        opened = Study.start(study or Path("runs", default_name(base, "study")), space)
    console.print(f"study: {opened.path}", soft_wrap=True)
    with saying_how_to_go_on(f"go on by: {opened.how_to_resume}"):
        if on is None or jobs is None:
            _run_trials(opened, trials, prune=prune, batch=batch)
        else:
            _launch_trials(opened, trials, prune=prune, on=on, num_jobs=jobs, sbatch=sbatch)
    if batch is None:
        _show_results(opened)


def _space(pairs: list[str] | None, base: Config) -> "SearchSpace":
    """What was said by --search."""
    from torchllp.search_space import SETTINGS, SearchSpace

    if not pairs:
        return SearchSpace.default(base)
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        owner, dot, option = name.rpartition(".")
        name = owner + dot + option.replace("-", "_")
        if not name or not equals:
            raise Misuse(f"--search takes NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C, not {pair!r}")
        if name in texts:
            raise Misuse(f"--search {name} is there twice")
        texts[name] = text
    check_flags(base, base.model_dump(), {"recipe": {name: None for name in texts if name in SETTINGS}})
    return SearchSpace(texts, base)


def _prepare(space: "SearchSpace") -> None:
    """Find what is wrong before the first trial, and say what is trained on, once for all trials."""
    from torchllp.cli.progress import show_progress
    from torchllp.tuning import prepare

    logging.getLogger("torchllp").setLevel(logging.INFO)
    with show_progress() as observer:
        prepare(space, observer.on_images).log()


def _run_trials(study: "Study", num_trials: int, *, prune: bool, batch: str | None) -> None:
    """Trials of this process, a line each; with a batch, as many of its trials as others have left."""
    from torchllp.cli.progress import show_progress

    started = time.perf_counter()
    for done in range(1, num_trials + 1):
        if batch is not None and not study.claim(batch, num_trials):
            return
        with show_progress(quiet=True) as observer:
            trial = study.run_trial(observer, prune=prune)
        _show_trial(trial, study, done, num_trials if batch is None else done, started)


def _launch_trials(
    study: "Study",
    num_trials: int,
    *,
    prune: bool,
    on: Place,
    num_jobs: int,
    sbatch: dict[str, str | Literal[True]],
) -> None:
    """Trials of many processes, a line each; what there is of them is shown also if a process failed."""
    logs = study.new_batch()
    command = ["tune", "--resume", str(study.path.absolute()), "--trials", str(num_trials), "--batch", logs.name]
    command += [] if prune else ["--no-prune"]
    before = {trial.number for trial in study.trials() if trial.state not in ("running", "waiting")}
    shown: set[int] = set()
    started = time.perf_counter()

    def show_new_trials() -> None:
        for trial in sorted(study.trials(), key=lambda trial: trial.number):
            if trial.state not in ("running", "waiting") and trial.number not in before | shown:
                shown.add(trial.number)
                _show_trial(trial, study, len(shown), num_trials, started)

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True)

    try:
        commands = [command] * min(num_jobs, num_trials)
        launch(commands, on, logs, sbatch=sbatch, tell=tell, meanwhile=show_new_trials)
    except LLPError:
        if any(trial.state == "complete" for trial in study.trials()):
            _show_results(study)
        raise


def _show_trial(trial: "Trial", study: "Study", done: int, num_trials: int, started: float) -> None:
    """Its line, and how long the others may take."""
    each = (time.perf_counter() - started) / done
    left = f", {each * (num_trials - done):.0f} s left" if done < num_trials else ""
    console.print(f"{_line(trial, study)}{left}", soft_wrap=True)


def _line(trial: "Trial", study: "Study") -> str:
    """What came of a trial, and the best so far."""
    drawn = ", ".join(f"{name} {_short(value)}" for name, value in trial.values.items())
    result = {
        "complete": f"{study.criterion} {_short(trial.value)}",
        "pruned": f"{study.criterion} {_short(trial.value)} when it was stopped early",
        "fail": f"failed ({trial.error})",
    }[trial.state]
    best = study.trials()[0]
    so_far = f"; best {_short(best.value)} (trial {best.number})" if best.state == "complete" else ""
    return f"trial {trial.number}: {result}, {drawn}{so_far}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_results(study: "Study") -> None:
    """The best trials, and how to go on with them."""
    trials = study.trials()
    whole = [trial for trial in trials if trial.state == "complete"]
    if not whole:
        raise LLPError(f"{study.path}: no trial has a result")
    names = list(dict.fromkeys(name for trial in whole for name in trial.values))
    tested = {t.number: t.run.summary["accuracy"].get("chosen") for t in whole[:SHOWN] if t.run.is_finished}
    has_labels = any(accuracy is not None for accuracy in tested.values())
    rows = [
        (
            str(trial.number),
            _short(trial.value),
            *(_short(trial.values.get(name, "-")) for name in names),
            *([percent(tested.get(trial.number))] if has_labels else []),
        )
        for trial in whole[:SHOWN]
    ]
    counts = {state: sum(trial.state == state for trial in trials) for state in ("pruned", "fail", "running")}
    words = {"pruned": "stopped early", "fail": "failed", "running": "still running elsewhere"}
    others = "".join(f", {number} {words[state]}" for state, number in counts.items() if number)
    columns = ["trial", f"held-out {study.criterion}", *names, *(["test accuracy (not used)"] if has_labels else [])]
    show_table(columns, rows, title=f"The best of {len(whole)} trials by held-out bags{others}")
    best = whole[0]
    console.print(
        "held-out bags that picked the best of many flatter it: new bags, or test labels, will say less", style="dim"
    )
    console.print(f"the classifier of the best trial: {best.run.path}", soft_wrap=True)
    command = f"llp train --config {shlex.quote(str(study.best_file))}"
    console.print(f"train by its settings again: {command}", soft_wrap=True)
