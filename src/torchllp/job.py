"""A training as a job: everything made from a config, then trained into a run."""

import json
import logging
import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from torchllp.bags import Bags
from torchllp.check import check_bags
from torchllp.config import Config
from torchllp.data import BAG_MAKERS
from torchllp.data.dataset import Dataset
from torchllp.data.files import data_directory
from torchllp.data.image_cache import Progress
from torchllp.data.table_encoder import TableEncoder
from torchllp.engine.evaluate import predict
from torchllp.engine.precision import pick_device
from torchllp.engine.tensorboard import TensorBoardLog
from torchllp.engine.train import Observer, Outcome, Row, State, train
from torchllp.errors import LLPError
from torchllp.files import write_atomically
from torchllp.functional.assignment import matching_offsets
from torchllp.methods import create_method
from torchllp.methods.method import Method
from torchllp.models import create_model
from torchllp.randomness import seed_of
from torchllp.run import Run, read_json
from torchllp.supervision import bags_of, check_inputs, load_supervision

log = logging.getLogger("torchllp")
MATCHED_INSTANCES = 20_000
"""Thresholds are set on as many instances at most."""
epoch_log = logging.getLogger("torchllp.epochs")  # apart, for those who show progress in another way


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
    def prepare(
        cls,
        config: Config,
        bags: Bags | None = None,
        *,
        first_weights: bool = True,
        progress: Progress | None = None,
    ) -> "Job":
        """``bags`` are those of an existing run; without them they are made. ``progress`` is told of images decoded.

        ``first_weights`` False ignores ``init_from``: a checkpoint will replace the weights, and that run may be gone.
        """
        pick_device(config.compute.device)
        data, bags, train_bags, held_out = load_supervision(config, bags, progress)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed_of("first weights", config.seed))
            model = create_model(
                config.model.name,
                num_classes=len(data.class_names),
                input_shape=data.input_shape,
                **config.model.options,
            )
            method = create_method(config.method.name, **config.method.options)
        if method.uses_labels and data.train.labels is None:
            raise LLPError(f"{config.method.name} needs the labels of the training instances, and there are none")
        if config.init_from is not None and first_weights:
            _initialize(model, Run.open(Path(config.init_from)), data)
        return cls(config, data, bags, train_bags, held_out, model, method)

    @classmethod
    def of(cls, run: Run, progress: Progress | None = None) -> "Job":
        """The job of a run that is to be continued."""
        begun = run.checkpoint_file.is_file()
        job = cls.prepare(run.config, bags_of(run), first_weights=not begun, progress=progress)
        if run.data_file.is_file():
            check_inputs(run, job.data, labels=job.method.uses_labels)
        return job


def start(config: Config, path: Path, *, overwrite: bool = False, observer: Observer | None = None) -> Run:
    """Train by ``config`` into a new run at ``path``."""
    config, observer = _resolve(config), observer or Observer()
    job = Job.prepare(config, progress=observer.on_images)  # before anything is written
    run = Run.create(path, config, overwrite=overwrite)
    with run.lock():
        _execute(run, job, observer)
    return run


def _resolve(config: Config) -> Config:
    """The same config, whatever the working directory, the environment and the default number of threads."""
    data = config.data
    paths: dict[str, str] = {}
    if data.bags_from is not None:
        paths["bags_from"] = os.path.abspath(data.bags_from)
    if config.own.is_given and data.bags not in BAG_MAKERS:
        paths["bags"] = os.path.abspath(data.bags)
    own = {name: getattr(config.own, name) for name in ("instances", "features", "images", "test")}
    own = {name: os.path.abspath(path) for name, path in own.items() if path is not None}
    named = not config.own.is_given
    if named and (data.data_dir is not None or data.dataset != "digits"):  # which are in no directory
        paths["data_dir"] = os.path.abspath(data_directory(data.data_dir))
    init_from = config.init_from and os.path.abspath(config.init_from)
    threads = config.compute.threads or torch.get_num_threads()
    layer = {"data": paths, "own": own, "compute": {"threads": threads}, "init_from": init_from}
    return Config.layered(config.model_dump(), layer)


def resume(path: Path, *, observer: Observer | None = None) -> Run:
    """Continue the run at ``path`` from its last whole epoch, exactly; nothing is done if it is finished."""
    run = Run.open(path)
    with run.lock():
        if not run.is_finished:
            observer = observer or Observer()
            _execute(run, Job.of(run, observer.on_images), observer)
    return run


def _initialize(model: nn.Module, source: Run, data: Dataset) -> None:
    """Take the trained weights of another run; its head only where it has the same classes."""
    before = read_json(source.data_file)["encoder"]
    columns = None if before is None else TableEncoder.from_json(before).column_names
    if columns != (None if data.encoder is None else data.encoder.column_names):
        raise LLPError(f"{source.path}: was trained on other columns than those of {data.name}")
    weights = source.load_model().state_dict()
    if tuple(source.description["data"]["class_names"]) != data.class_names:
        weights |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        name = source.config.model.name
        raise LLPError(f"{source.path}: its model ({name}) is not the one to be trained") from error


class _Recorder(Observer):
    """Writes each epoch to the run, then passes it on. The checkpoint is last: it says how much of the rest counts."""

    def __init__(self, run: Run, metrics: IO[bytes], first_epoch: int, observer: Observer) -> None:
        self.run, self.metrics, self.observer = run, metrics, observer
        self.tensorboard = TensorBoardLog(run.tensorboard_directory, first_epoch)
        self.on_start, self.on_step = observer.on_start, observer.on_step

    def on_epoch(self, row: Row, state: State) -> None:
        self.metrics.write((json.dumps(row, allow_nan=False) + "\n").encode())
        self.metrics.flush()
        os.fsync(self.metrics.fileno())
        self.tensorboard.write(row)
        self.run.save_checkpoint(state, self.metrics.tell())
        epoch_log.info(epoch_line(row))
        self.observer.on_epoch(row, state)


def epoch_line(row: Row) -> str:
    """An epoch's metrics in one line of plain text."""
    shown = ("train/loss", "train/bag_kl", "train/trust", "held_out/bag_kl", "test/accuracy")
    parts = [f"{name} {row[name]:.4f}" for name in shown if name in row]
    return "  ".join([f"epoch {row['epoch']:4.0f}", *parts, f"{row['seconds']:.1f} s"])


def _execute(run: Run, job: Job, observer: Observer) -> None:
    config = job.config
    handler = logging.FileHandler(run.log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        state, metrics_bytes = run.load_checkpoint()
        if state is None:
            write_atomically(run.bags_file, job.bags.to_bytes())
            run.write_json(run.data_file, job.data.description)
            run.write_json(run.env_file, environment(config))
        else:
            log.info("continuing after epoch %d", state["epochs_done"])
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
        _finish(run, job, outcome)
    finally:
        log.removeHandler(handler)
        handler.close()


def _log_job(job: Job) -> None:
    log.info("%s on %s: %r", job.config.method.name, job.data.name, job.bags)
    for note in job.data.notes:
        log.info(note)
    if job.data.encoder is not None:
        log.info(job.data.encoder.summary)
    if job.data.test is job.data.train and not job.method.uses_labels:
        log.info(
            "no other instances have labels: accuracy is that of the training instances, whose labels are not used"
        )
    for finding in check_bags(job.bags, job.data.train.inputs.numpy()):
        if finding.level != "fine":
            log.warning("%s: %s: %s", finding.subject, finding.value, finding.meaning)
    for warning in job.data.warnings:
        log.warning(warning)
    if job.config.init_from is not None:
        log.info("first weights from %s", job.config.init_from)
    if job.held_out is None:
        log.info("no bag is held out of %d, so no epoch is chosen: the last one counts", len(job.bags))
    else:
        log.info("%d of %d bags are held out to choose the epoch by", len(job.held_out), len(job.bags))


def _finish(run: Run, job: Job, outcome: Outcome) -> None:
    """Write the trained model and the summary, the summary last: it marks the run as finished."""
    config, state = job.config, outcome.state
    tensors = {name: tensor.contiguous().cpu() for name, tensor in outcome.model.state_dict().items()}
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
                "warnings": list(job.data.warnings),
                "class_names": list(job.data.class_names),
                "input": "uint8" if job.data.is_images else "float32",
                "mean": list(job.data.mean),
                "std": list(job.data.std),
            },
            "match_totals": _match_totals(job, outcome),
            "weights": {
                "kind": "moving average",
                "epoch_is": "chosen" if chosen else "last",
                "epoch": chosen["row"]["epoch"] if chosen else state["epochs_done"],
            },
            "method": config.method.model_dump(),
            "bags": job.bags.content_hash,
        },
    )
    run.write_json(run.summary_file, summarize(run.metrics(), chosen and chosen["row"], job))
    log.info("finished: %s", run.path)


def _match_totals(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Offsets of the classes' log-probabilities with which the totals of bags are met, of held-out ones if possible."""
    bags, of = (job.train_bags, "training bags") if job.held_out is None else (job.held_out, "held-out bags")
    expected = bags.class_shares * min(bags.sizes.sum(), MATCHED_INSTANCES)
    if (expected[job.bags.class_shares > 0] < 1).any():
        bags, of = job.bags, "all bags"  # too few are held out for a rare class to be among them
    bags = bags.select(np.flatnonzero(bags.is_labelled))
    generator = np.random.default_rng(seed_of("match totals", job.config.seed))
    rows = generator.permutation(bags.members)[:MATCHED_INSTANCES]
    log_p = predict(outcome.model, outcome.views, job.data.train.inputs, torch.from_numpy(rows)).cpu().numpy()
    offsets = matching_offsets(log_p, bags.class_shares * len(rows))
    return {"of": of, "offsets": offsets.tolist()}


def summarize(rows: list[Row], chosen: Row | None, job: Job) -> dict[str, Any]:
    """The result of a run: accuracy at the last epoch, at the chosen one and at the oracle's."""
    epochs = {"last": rows[-1]}
    if chosen is not None:
        epochs["chosen"] = chosen
    if "test/accuracy" in rows[-1]:
        epochs["oracle"] = max(rows, key=lambda row: row["test/accuracy"])
    return {
        "dataset": job.data.name,
        "tests_on": job.data.tests_on,
        "method": job.config.method.model_dump(),
        "model": job.config.model.model_dump(),
        "bag_size": job.bags.size_range,
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
