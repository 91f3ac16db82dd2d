"""The run directory: create, open, lock, resume. Nothing else builds a path in it."""

import fcntl
import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Literal

import torch
from safetensors.torch import load_file, save
from torch import nn

from torchllp.bags import Bags, default_held_out
from torchllp.config import Config, read_toml
from torchllp.data import load_dataset
from torchllp.data.dataset import Dataset
from torchllp.engine.checkpoint import load_state, save_state, write_atomically
from torchllp.engine.precision import pick_device
from torchllp.engine.randomness import seed_of
from torchllp.engine.tensorboard import TensorBoardLog
from torchllp.engine.train import CHOSEN_BY, Observer, State, train
from torchllp.errors import LLPError
from torchllp.methods import create_method
from torchllp.methods.method import Method
from torchllp.models import create_model

FORMAT_VERSION = 1
Row = dict[str, float]
log = logging.getLogger("torchllp")


class Run:
    """A directory that holds everything of one training.

    ``config.toml`` (resolved), ``env.json``, ``bags.npz``, ``metrics.jsonl`` (a line an epoch), ``train.log``,
    ``checkpoints/last.pt`` (to resume from), and at the end ``model.safetensors`` with ``model.json``, and
    ``summary.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.env_file = path / "env.json"
        self.bags_file = path / "bags.npz"
        self.metrics_file = path / "metrics.jsonl"
        self.log_file = path / "train.log"
        self.checkpoint_file = path / "checkpoints" / "last.pt"
        self.model_file = path / "model.safetensors"
        self.description_file = path / "model.json"
        self.summary_file = path / "summary.json"
        self.curves_file = path / "curves.png"
        self.tensorboard_directory = path / "tensorboard"
        self.lock_file = path / ".lock"

    @classmethod
    def open(cls, path: Path) -> "Run":
        """The run at ``path``, which must be one."""
        run = cls(path)
        if not run.config_file.is_file():
            raise LLPError(f"{path}: not a run (there is no config.toml in it)")
        return run

    @classmethod
    def check_free(cls, path: Path, *, overwrite: bool = False) -> None:
        """Raise unless a run can be created at ``path``; only a run is ever overwritten."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not overwrite:
                raise LLPError(
                    f"{path}: there is something here already: take another directory, "
                    "continue it (--resume) or replace it (--overwrite)"
                )
            cls.open(path)

    @classmethod
    def create(cls, path: Path, config: Config, *, overwrite: bool = False) -> "Run":
        """A new run at ``path``; a directory that holds anything is refused, or emptied if it is a run."""
        cls.check_free(path, overwrite=overwrite)
        run = cls(path)
        if run.config_file.is_file():
            with run.lock():  # never a run at work
                shutil.rmtree(path)
        run.checkpoint_file.parent.mkdir(parents=True)
        write_atomically(run.config_file, config.to_toml().encode())
        return run

    @property
    def config(self) -> Config:
        return Config.layered(read_toml(self.config_file))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; refused while another one does."""
        with open(self.lock_file, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LLPError(f"{self.path}: another process is at work in this run") from None
            yield

    @property
    def is_finished(self) -> bool:
        return self.summary_file.is_file()

    @property
    def summary(self) -> dict[str, Any]:
        if not self.is_finished:
            raise LLPError(f"{self.path}: the run is not finished: continue it by llp train --resume {self.path}")
        return json.loads(self.summary_file.read_text())

    def metrics(self) -> list[Row]:
        """One row an epoch."""
        return [json.loads(line) for line in self.metrics_file.read_text().splitlines()]

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        write_atomically(path, (json.dumps({"format_version": FORMAT_VERSION} | content, indent=2) + "\n").encode())

    def job(self) -> "Job":
        """What this run trains, or trained, on: its own bags, once they have been written."""
        return Job.prepare(self.config, Bags.load(self.bags_file) if self.bags_file.is_file() else None)

    def load_model(self, weights: Literal["chosen", "last"] | None = None, *, raw: bool = False) -> nn.Module:
        """The trained model in evaluation mode: what ``model.safetensors`` holds, or other weights of the run.

        ``weights`` is the epoch, ``raw`` the weights as optimised in place of their moving average.
        """
        if not self.description_file.is_file():
            raise LLPError(f"{self.path}: the run has no model yet: continue it by llp train --resume {self.path}")
        description = json.loads(self.description_file.read_text())
        if description["format_version"] != FORMAT_VERSION:
            raise LLPError(f"{self.description_file}: format {description['format_version']} is not known here")
        made_of = description["model"]
        model = create_model(
            made_of["name"],
            num_classes=made_of["num_classes"],
            input_shape=tuple(made_of["input_shape"]),
            **made_of["options"],
        )
        if weights is None and not raw:
            model.load_state_dict(load_file(self.model_file))
        else:
            state = load_state(self.checkpoint_file)["state"]
            model.load_state_dict(_weights(state, weights or description["weights"]["epoch_is"], raw=raw))
        return model.eval()


def _weights(state: State, epoch: str, *, raw: bool) -> dict[str, torch.Tensor]:
    """One of the four sets of weights that a state holds."""
    if epoch == "chosen":
        if state["chosen"] is None:
            raise LLPError("no epoch was chosen in this run, because no bag was held out")
        return state["chosen"]["raw" if raw else "ema"]
    section, prefix = ("learner", "model.") if raw else ("ema", "module.")
    return {key.removeprefix(prefix): value for key, value in state[section].items() if key.startswith(prefix)}


@dataclass(frozen=True)
class Job:
    """All that a training needs, made from its config alone; making it checks the config and writes nothing."""

    config: Config
    data: Dataset
    bags: Bags
    train_bags: Bags
    held_out: Bags | None
    model: nn.Module
    method: Method

    @classmethod
    def prepare(cls, config: Config, bags: Bags | None = None) -> "Job":
        """``bags`` are those of an existing run; without them they are drawn."""
        pick_device(config.compute.device)
        data = load_dataset(config.data.dataset)
        if bags is None:
            if data.train.labels is None:
                raise LLPError(f"{data.name}: random bags are made from labels, and there are none")
            bags = Bags.random(
                data.train.labels.numpy(), config.data.bag_size, config.seed, class_names=data.class_names
            )
        share = config.data.held_out
        num_held_out = default_held_out(len(bags)) if share is None else round(share * len(bags))
        train_bags, held_out = bags.hold_out(num_held_out, config.seed)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed_of(config.seed))
            model = create_model(
                config.model.name,
                num_classes=len(data.class_names),
                input_shape=data.input_shape,
                **config.model.options,
            )
            method = create_method(config.method.name, **config.method.options)
        return cls(config, data, bags, train_bags, held_out, model, method)


def start(config: Config, path: Path, *, overwrite: bool = False, observer: Observer | None = None) -> Run:
    """Train by ``config`` into a new run at ``path``."""
    threads = config.compute.threads or torch.get_num_threads()
    config = Config.layered(config.model_dump(), {"compute": {"threads": threads}})
    job = Job.prepare(config)  # before anything is written
    if config.init_from is not None:
        _initialize(job.model, Run.open(Path(config.init_from)))
    run = Run.create(path, config, overwrite=overwrite)
    with run.lock():
        _execute(run, job, observer or Observer())
    return run


def resume(path: Path, *, observer: Observer | None = None) -> Run:
    """Continue the run at ``path`` from its last whole epoch, exactly; nothing is done if it is finished."""
    run = Run.open(path)
    with run.lock():
        if not run.is_finished:
            _execute(run, run.job(), observer or Observer())
    return run


def _initialize(model: nn.Module, source: Run) -> None:
    """Take the trained weights of another run; its head only where it has the same classes."""
    weights = source.load_model().state_dict()
    own = model.state_dict()
    fits = {name: name in own and own[name].shape == tensor.shape for name, tensor in weights.items()}
    wrong = [name for name in fits if not fits[name] and not name.startswith("head.")]
    if wrong or weights.keys() != own.keys():
        raise LLPError(f"{source.path}: its model ({source.config.model.name}) is not the one to be trained")
    model.load_state_dict({name: tensor for name, tensor in weights.items() if fits[name]}, strict=False)
    log.info("first weights from %s%s", source.path, "" if all(fits.values()) else ", without the head")


class _Recorder(Observer):
    """Writes each epoch to the run, then passes it on. The checkpoint is last: it says how much of the rest counts."""

    def __init__(self, run: Run, metrics: IO[bytes], first_epoch: int, observer: Observer) -> None:
        self.run, self.metrics, self.observer = run, metrics, observer
        self.tensorboard = TensorBoardLog(run.tensorboard_directory, first_epoch)
        self.on_start, self.on_step = observer.on_start, observer.on_step

    def on_epoch(self, row: Row, state: State) -> None:
        self.metrics.write((json.dumps(row) + "\n").encode())
        self.metrics.flush()
        os.fsync(self.metrics.fileno())
        self.tensorboard.write(row)
        save_state(
            self.run.checkpoint_file,
            {"format_version": FORMAT_VERSION, "state": state, "metrics_bytes": self.metrics.tell()},
        )
        log.info(epoch_line(row))
        self.observer.on_epoch(row, state)


def epoch_line(row: Row) -> str:
    """An epoch's metrics in one line of plain text."""
    shown = ("train/loss", "train/bag_kl", "train/trust", "held_out/bag_kl", "test/accuracy")
    parts = [f"{name} {row[name]:.4f}" for name in shown if name in row]
    return "  ".join([f"epoch {row['epoch']:4.0f}", *parts, f"{row['seconds']:.1f} s"])


def _execute(run: Run, job: Job, observer: Observer) -> None:
    config = job.config
    assert config.compute.threads is not None
    torch.set_num_threads(config.compute.threads)
    handler = logging.FileHandler(run.log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        state, metrics_bytes = None, 0
        if run.checkpoint_file.is_file():
            saved = load_state(run.checkpoint_file)
            state, metrics_bytes = saved["state"], saved["metrics_bytes"]
            log.info("continuing after epoch %d", state["epochs_done"])
        else:
            write_atomically(run.bags_file, job.bags.to_bytes())
            run.write_json(run.env_file, environment(config))
        _log_job(job)
        with open(run.metrics_file, "ab") as metrics:
            metrics.truncate(metrics_bytes)  # rows of an epoch whose checkpoint was never finished
            metrics.seek(0, os.SEEK_END)
            recorder = _Recorder(run, metrics, (state["epochs_done"] if state else 0) + 1, observer)
            outcome = train(
                job.model,
                job.method,
                job.data,
                job.train_bags,
                held_out=job.held_out,
                recipe=config.recipe,
                compute=config.compute,
                seed=config.seed,
                observer=recorder,
                state=state,
            )
            recorder.tensorboard.close()
        _finish(run, job, outcome.model, outcome.state)
    finally:
        log.removeHandler(handler)
        handler.close()


def _log_job(job: Job) -> None:
    log.info("%s: %r", job.data.name, job.bags)
    if job.held_out is None:
        log.info("no bag is held out of %d, so no epoch is chosen: the last one counts", len(job.bags))
    else:
        log.info("%d of %d bags are held out to choose the epoch by", len(job.held_out), len(job.bags))


def _finish(run: Run, job: Job, model: nn.Module, state: State) -> None:
    """Write the trained model and the summary, the summary last: it marks the run as finished."""
    config = job.config
    tensors = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
    write_atomically(run.model_file, save(tensors))
    chosen = state["chosen"]
    run.write_json(
        run.description_file,
        {
            "torchllp": version("torchllp"),
            "model": {
                "name": config.model.name,
                "options": config.model.options,
                "num_classes": len(job.data.class_names),
                "input_shape": list(job.data.input_shape),
            },
            "data": {
                "dataset": job.data.name,
                "class_names": list(job.data.class_names),
                "input": "uint8",
                "mean": list(job.data.mean),
                "std": list(job.data.std),
            },
            "weights": {
                "kind": "moving average",
                "epoch_is": "chosen" if chosen else "last",
                "epoch": chosen["epoch"] if chosen else state["epochs_done"],
            },
            "method": config.method.model_dump(),
            "bags": job.bags.content_hash,
        },
    )
    run.write_json(run.summary_file, summarize(run.metrics(), job))
    log.info("finished: %s", run.path)


def summarize(rows: list[Row], job: Job) -> dict[str, Any]:
    """The result of a run: accuracy at the last epoch, at the chosen one and at the oracle's."""
    epochs = {"last": rows[-1]}
    if CHOSEN_BY in rows[-1]:
        epochs["chosen"] = min(rows, key=lambda row: row[CHOSEN_BY])
    if "test/accuracy" in rows[-1]:
        epochs["oracle"] = max(rows, key=lambda row: row["test/accuracy"])
    return {
        "dataset": job.data.name,
        "method": job.config.method.model_dump(),
        "model": job.config.model.model_dump(),
        "bag_size": job.config.data.bag_size,
        "seed": job.config.seed,
        "num_bags": len(job.bags),
        "num_held_out": 0 if job.held_out is None else len(job.held_out),
        "bags": job.bags.content_hash,
        "steps": rows[-1]["steps"],
        "seconds": sum(row["seconds"] for row in rows),
        "epoch": {name: row["epoch"] for name, row in epochs.items()},
        "accuracy": {name: row["test/accuracy"] for name, row in epochs.items() if "test/accuracy" in row},
        "metrics": epochs,
    }


def environment(config: Config) -> dict[str, Any]:
    """Where and how this process runs."""
    device = pick_device(config.compute.device)
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torchllp": version("torchllp"),
        "torch": torch.__version__,
        "threads": config.compute.threads,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }
