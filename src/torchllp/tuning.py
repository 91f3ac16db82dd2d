"""The study directory: many trials of one config, judged by the same held-out bags, by any number of processes."""

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from torchllp import job
from torchllp.config import Config, read_toml
from torchllp.data.image_cache import Progress
from torchllp.engine.train import Observer, Row, State
from torchllp.errors import LLPError, first_line
from torchllp.files import write_atomically
from torchllp.job import Job, resolve
from torchllp.methods import create_method
from torchllp.metrics import CRITERIA
from torchllp.randomness import seed_of
from torchllp.run import Run
from torchllp.search_space import SearchSpace

if TYPE_CHECKING:
    import optuna

FORMAT_VERSION = 1
STARTUP_TRIALS = 5
"""So many trials are finished before one is stopped early."""
BASE = "base"
"""Marks the trial of the settings that there were before."""


@dataclass(frozen=True)
class Trial:
    """One of the trainings of a study."""

    number: int
    state: Literal["complete", "pruned", "fail", "running", "waiting"]
    value: float | None
    """The criterion at the chosen epoch; for a trial that was stopped early, at its last one."""
    values: dict[str, Any]
    """What was drawn."""
    error: str | None
    run: Run


def prepare(space: SearchSpace, progress: Progress | None = None) -> Job:
    """The job that the trials vary; raises if it cannot be tuned."""
    prepared = Job.prepare(space.base, progress=progress)
    if prepared.held_out is None:
        raise LLPError(
            f"settings are chosen by held-out bags, and of these {len(prepared.bags)} none is held out: "
            "say which share of them by --held-out"
        )
    for name in space.methods:
        create_method(name).check(prepared.train_bags)
    return prepared


class Study:
    """A directory that holds everything of one search.

    ``study.toml`` (the config that is varied, and the search space), ``journal.log`` (Optuna's, of all processes),
    ``trials/0007`` (a run each), ``best.toml`` (the config of the best trial so far, for `llp train --config`) and
    ``jobs`` (the logs of `llp tune --on`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.toml"
        self.journal_file = path / "journal.log"
        self.best_file = path / "best.toml"
        self.trials_directory = path / "trials"
        self.jobs_directory = path / "jobs"
        self.lock_file = path / ".lock"

    @classmethod
    def open(cls, path: Path) -> "Study":
        """The study at ``path``, which must be one."""
        study = cls(path)
        if not study.study_file.is_file():
            raise LLPError(f"{path}: not a study (there is no study.toml in it)")
        study._load()
        return study

    @classmethod
    def start(cls, path: Path, space: SearchSpace) -> "Study":
        """A new study at ``path``, or the one that is there already if it searches the same."""
        study = cls(path)
        import_optuna()  # before anything is written
        taken = path.exists() and not (path.is_dir() and all(entry.name.startswith(".") for entry in path.iterdir()))
        if taken and not study.study_file.is_file():
            raise LLPError(f"{path}: there is something here already that is no study: take another directory")
        # Other machines have their own default number of threads: that stays open.
        base = resolve(space.base).model_copy(update={"compute": space.base.compute})
        content = {
            "format_version": FORMAT_VERSION,
            "search": space.texts,
            "config": base.model_dump(exclude_none=True),
        }
        text = tomli_w.dumps(content)
        path.mkdir(parents=True, exist_ok=True)
        with study._lock():
            if not study.study_file.is_file():
                write_atomically(study.study_file, text.encode())
            elif study.study_file.read_text() != text:
                raise LLPError(
                    f"{path}: a study of other settings is here: continue it (--resume), or take another directory"
                )
        study._load()
        return study

    def _load(self) -> None:
        content = read_toml(self.study_file)
        if content.get("format_version") != FORMAT_VERSION:
            raise LLPError(
                f"{self.study_file}: its format is {content.get('format_version')}, and {FORMAT_VERSION} is known here"
            )
        self.space = SearchSpace(content["search"], Config.layered(content["config"]))
        self.trials_directory.mkdir(exist_ok=True)
        with self._lock():
            self._optuna = self._open_journal()

    def _open_journal(self) -> "optuna.Study":
        optuna = import_optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        file = str(self.journal_file)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file))),
            study_name="llp tune",
            direction="maximize" if CRITERIA[self.criterion] > 0 else "minimize",
            load_if_exists=True,
        )
        if not any(map(_tries_base, study.get_trials(deepcopy=False))):
            # So the best is never worse than what there was before.
            study.enqueue_trial(self.space.base_values(), user_attrs={BASE: True})
        return study

    @property
    def criterion(self) -> str:
        return self.space.base.recipe.choose_by

    @property
    def how_to_resume(self) -> str:
        """The command that goes on with this study."""
        return f"llp tune --resume {shlex.quote(str(self.path))}"

    def trials(self) -> list[Trial]:
        """All trials of all processes, the best first, and those without a result last."""
        trials = [self._trial(trial) for trial in self._optuna.get_trials(deepcopy=False)]
        sign = CRITERIA[self.criterion]

        def rank(trial: Trial) -> tuple[bool, float]:
            if trial.state != "complete" or trial.value is None:
                return True, trial.number
            return False, -sign * trial.value

        return sorted(trials, key=rank)

    def new_batch(self) -> Path:
        """A new directory, for the logs of processes that make some trials together; its name is the batch's."""
        path = self.jobs_directory / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        path.mkdir(parents=True)
        return path

    def claim(self, batch: str, num_trials: int) -> bool:
        """Whether one of the trials of a batch is left, which is then this process's to make."""
        with self._lock():
            claimed = self._optuna.user_attrs.get(batch, 0)
            if claimed < num_trials:
                self._optuna.set_user_attr(batch, claimed + 1)
        return claimed < num_trials

    def run_trial(self, observer: Observer | None = None, *, prune: bool = True) -> Trial:
        """Draw the next settings and train by them. A trial that cannot be trained has failed, and others go on."""
        optuna = import_optuna()
        from optuna.trial import TrialState

        trial, config, lock = self._take()
        value, state = None, TrialState.FAIL
        try:
            reporter = _Reporter(trial, self.criterion, observer or Observer(), config.recipe.epochs, prune)
            run = job.start(config, self._run(trial.number).path, observer=reporter)
            value, state = run.summary["metrics"]["chosen"][f"held_out/{self.criterion}"], TrialState.COMPLETE
        except optuna.TrialPruned:
            state = TrialState.PRUNED
        except Exception as error:  # such as a learning rate that no weights survive, or too wide a network
            trial.set_user_attr("error", first_line(error))
        finally:
            with self._lock():
                told = self._optuna.tell(trial, value, state=state)
                lock.close()
                self._trial_lock(trial.number).unlink(missing_ok=True)
                if state == TrialState.COMPLETE:
                    best = self.space.config(self._optuna.best_trial.params)
                    write_atomically(self.best_file, best.to_toml().encode())
        return self._trial(told)

    def _take(self) -> "tuple[optuna.Trial, Config, Any]":
        """A trial of this process alone, its config, and the open file that says it is being worked on."""
        optuna = import_optuna()
        with self._lock():
            self._fail_abandoned()
            trial = self._optuna.ask()
            lock = open(self._trial_lock(trial.number), "w")  # noqa: SIM115  (held until the trial is told)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # What is drawn follows from the seed, the number of the trial and the trials before it.
            seed = seed_of("trial", self.space.base.seed, trial.number) % 2**32
            self._optuna.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=False)
            config = self.space.draw(trial)
            self._optuna.pruner = optuna.pruners.MedianPruner(STARTUP_TRIALS, n_warmup_steps=config.recipe.epochs // 4)
        return trial, config, lock

    def _fail_abandoned(self) -> None:
        """Mark trials as failed whose process is gone: nobody holds their lock, which the system gives back."""
        from optuna.trial import TrialState

        for trial in self._optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            path = self._trial_lock(trial.number)
            if path.exists():
                with open(path) as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                path.unlink()
            self._optuna.tell(trial.number, state=TrialState.FAIL)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One process at a time; for as long as it takes to draw or to tell."""
        with open(self.lock_file, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _trial_lock(self, number: int) -> Path:
        return self.trials_directory / f".{number:04d}.lock"

    def _run(self, number: int) -> Run:
        return Run(self.trials_directory / f"{number:04d}")

    def _trial(self, trial: "optuna.trial.FrozenTrial") -> Trial:
        state: Any = trial.state.name.lower()
        error = trial.user_attrs.get("error")
        return Trial(trial.number, state, trial.value, dict(trial.params), error, self._run(trial.number))


def _tries_base(trial: "optuna.trial.FrozenTrial") -> bool:
    """Whether the settings that there were before are tried by it, or were, or are to be; not if it was stopped."""
    was_stopped = trial.state.name == "FAIL" and "error" not in trial.user_attrs
    return BASE in trial.user_attrs and not was_stopped


class _Reporter(Observer):
    """Tells Optuna of each epoch, and stops a trial that is worse than half of those before it at the same epoch."""

    def __init__(self, trial: "optuna.Trial", criterion: str, observer: Observer, num_epochs: int, prune: bool) -> None:
        self.trial, self.metric, self.observer = trial, f"held_out/{criterion}", observer
        self.num_epochs, self.prune = num_epochs, prune
        self.on_images, self.on_start, self.on_step = observer.on_images, observer.on_start, observer.on_step

    def on_epoch(self, row: Row, state: State) -> None:
        self.observer.on_epoch(row, state)
        if state["chosen"] is None:  # a method that does not learn classes yet says nothing of itself
            return
        self.trial.report(row[self.metric], int(row["epoch"]))
        if self.prune and row["epoch"] < self.num_epochs and self.trial.should_prune():
            raise import_optuna().TrialPruned


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise LLPError("tuning needs Optuna: pip install 'torchllp[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
