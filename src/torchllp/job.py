"""A training as a job: everything made from a config, then trained into a run."""

import json
import logging
import os
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from torchllp.bags import Bags
from torchllp.calibration import Calibration
from torchllp.check import check_bags
from torchllp.config import Config, Recipe
from torchllp.data import BAG_MAKERS
from torchllp.data.dataset import Dataset
from torchllp.data.files import data_directory
from torchllp.data.image_cache import Progress
from torchllp.data.table_encoder import TableEncoder
from torchllp.engine.alarms import alarms, new_alarms
from torchllp.engine.checks import check_parts
from torchllp.engine.distributed import Processes, join, together
from torchllp.engine.environment import environment
from torchllp.engine.evaluate import HeldOut, predict
from torchllp.engine.frozen import freeze
from torchllp.engine.precision import pick_device
from torchllp.engine.process import seeded
from torchllp.engine.tensorboard import TensorBoardLog
from torchllp.engine.train import Observer, Outcome, Row, State, train
from torchllp.engine.views import views_of
from torchllp.errors import LLPError
from torchllp.files import write_atomically
from torchllp.functional.assignment import matching_offsets
from torchllp.methods import METHODS, create_method
from torchllp.methods.method import Method
from torchllp.metrics import calibration_error
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

    learns_classes: ClassVar[bool] = True
    config: Config
    data: Dataset
    bags: Bags
    train_bags: Bags
    held_out: Bags | None
    model: nn.Module
    """The whole classifier; with ``freeze`` all but its head stays as it is."""
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
        if config.freeze and config.init_from is None:
            raise LLPError("there is nothing to freeze: say by `init_from` which run has learnt the features")
        data, bags, train_bags, held_out = load_supervision(config, bags, progress)
        model, method = create(config, num_classes=len(data.class_names), input_shape=data.input_shape)
        if method.uses_labels and data.train.labels is None:
            raise LLPError(f"{config.method.name} needs the labels of the training instances, and there are none")
        method.check(train_bags)
        if config.init_from is not None and first_weights:
            initialize(model, Run.open(Path(config.init_from)), data)
        return cls(config, data, bags, train_bags, held_out, model, method)

    @classmethod
    def of(cls, run: Run, progress: Progress | None = None) -> "Job":
        """The job of a run that is to be continued."""
        begun = run.checkpoint_file.is_file()
        job = cls.prepare(run.config, bags_of(run), first_weights=not begun, progress=progress)
        if run.data_file.is_file():
            check_inputs(run, job.data, labels=job.method.uses_labels or run.config.own.learn_labels)
        if begun and run.config.freeze:
            run.load_frozen(job.model)
        return job

    def write_inputs(self, run: Run) -> None:
        """Write what is trained on, before training."""
        write_atomically(run.bags_file, self.bags.to_bytes())

    def log(self) -> None:
        """Say what is trained on, and what a user should know of it."""
        log.info("%s on %s: %r", self.config.method.name, self.data.name, self.bags)
        if self.config.own.learn_labels and self.data.train.labels is not None:
            has_label = self.data.train.labels.numpy() >= 0
            log.info("%d instances are learnt from by their label", (has_label & (self.train_bags.bag_of >= 0)).sum())
        log_data(self.data)
        if self.data.test is self.data.train and not self.method.uses_labels:
            log.info(
                "no other instances have labels: accuracy is that of the training instances, whose labels are not used"
            )
        for finding in check_bags(self.bags, self.data.train.inputs.numpy()):
            if finding.level != "fine":
                log.warning("%s: %s: %s", finding.subject, finding.value, finding.meaning)
        if self.config.init_from is not None:
            what = "all but the head, which alone is trained," if self.config.freeze else "first weights"
            log.info("%s from %s", what, self.config.init_from)
        if self.method.for_frozen_features and not self.config.freeze:
            name = self.config.method.name
            log.info("%s is meant for frozen features: see `llp pretrain`, --init-from and --freeze", name)
        if self.method.for_images and not self.data.is_images:
            log.warning("%s is made for images, and has failed on tables: try dllp or ahil", self.config.method.name)
        two_bags = int(2 * np.median(self.train_bags.sizes))
        if two_bags > self.config.recipe.instances_per_step and not self.method.uses_labels:
            log.warning(
                "most steps hold a single bag, from which networks learn slowly or not at all: "
                "instances_per_step of %d or more gives them several",
                two_bags,
            )
        if self.held_out is None:
            log.info("no bag is held out of %d, so no epoch is chosen: the last one counts", len(self.bags))
        else:
            criterion = self.config.recipe.choose_by
            log.info(
                "%d of %d bags are held out to choose the epoch, by %s", len(self.held_out), len(self.bags), criterion
            )

    def train(self, run: Run, observer: Observer, state: State | None) -> tuple[Outcome, nn.Module]:
        """Train, and return what came out with the whole classifier."""
        arguments: dict[str, Any] = {
            "held_out": self.held_out,
            "recipe": self.config.recipe,
            "compute": self.config.compute,
            "seed": self.config.seed,
            "observer": observer,
            "state": state,
        }
        if not self.config.freeze:
            outcome = train(self.model, self.method, self.data, self.train_bags, **arguments)
            return outcome, outcome.model
        frozen, features = freeze(self.model, self.data, self.config.compute)
        if state is None and Processes.current().is_first:
            run.save_frozen(frozen)
        with seeded("first weights", self.config.seed):
            head = frozen.new_head()
        outcome = train(head, self.method, features, self.train_bags, **arguments)
        return outcome, frozen.classifier(outcome.model.state_dict()).to(pick_device(self.config.compute.device))

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """What ``model.json`` says besides the model and the data."""
        calibration = self.calibrate(model)
        return {
            "calibration": calibration.to_json(),
            "match_totals": _match_totals(self, model, calibration),
            "bags": self.bags.content_hash,
        }

    def calibrate(self, model: nn.Module) -> Calibration:
        """What held-out bags say of the probabilities, and in the log what test labels say of that."""
        if self.held_out is None:
            return Calibration.none(self.bags.num_classes)
        views, test = views_of(self.data, self.config.recipe), self.data.test
        calibration = HeldOut(self.held_out, self.train_bags, self.data.train).calibrate(model, views)
        words = f"probabilities are calibrated on {len(self.held_out)} held-out bags: temperature "
        words += f"{calibration.temperature:.2f}"
        if test is not None and test.labels is not None and test.is_labelled:
            log_p = predict(model, views, test.inputs).cpu()
            before, after = (calibration_error(p, test.labels.cpu()).item() for p in (log_p, calibration(log_p)))
            words += f", calibration error on the {self.data.tests_on} {before:.4f} before and {after:.4f} after"
        log.info(words)
        return calibration

    def summarize(self, rows: list[Row], chosen: Row | None) -> dict[str, Any]:
        """The result: accuracy at the last epoch, at the chosen one and at the oracle's."""
        epochs = {"last": rows[-1]}
        if chosen is not None:
            epochs["chosen"] = chosen
        if "test/accuracy" in rows[-1]:
            epochs["oracle"] = max(rows, key=lambda row: row["test/accuracy"])
        accuracy = {name: row["test/accuracy"] for name, row in epochs.items() if "test/accuracy" in row}
        return {
            "tests_on": self.data.tests_on,
            "bag_size": self.bags.size_range,
            "num_bags": len(self.bags),
            "num_held_out": 0 if self.held_out is None else len(self.held_out),
            "bags": self.bags.content_hash,
            "epoch": {name: row["epoch"] for name, row in epochs.items()},
            "accuracy": accuracy,
            "oracle_gap": accuracy["oracle"] - accuracy["chosen"] if {"oracle", "chosen"} <= accuracy.keys() else None,
            "alarms": [*alarms(rows, self.bags.class_shares, self.config.recipe.epochs).values()],
            "metrics": epochs,
        }


def create(config: Config, *, num_classes: int, input_shape: tuple[int, ...]) -> tuple[nn.Module, Method]:
    """The model of a config with its first weights, and the method."""
    with seeded("first weights", config.seed):
        model = create_model(
            config.model.name, num_classes=num_classes, input_shape=input_shape, **config.model.options
        )
    method = create_method(config.method.name, **config.method.options)
    check_parts(method, config.compute)
    return model, method


def start(
    config: Config,
    path: Path,
    *,
    overwrite: bool = False,
    observer: Observer | None = None,
    kind: type[Job] = Job,
) -> Run:
    """Train by ``config`` into a new run at ``path``; of several processes the first one alone writes to it."""
    _check_kind(config, kind)
    config, observer = resolve(config), observer or Observer()
    is_first = join().is_first
    job = together(lambda: kind.prepare(config, progress=observer.on_images))  # before anything is written
    with ExitStack() as held:

        def create_run() -> Run:
            run = Run.create(path, config, overwrite=overwrite)
            held.enter_context(run.lock())
            return run

        run = together(create_run if is_first else lambda: Run(path))
        if is_first:
            _execute(run, job, observer, None, 0)
        else:
            job.train(run, Observer(), None)
    return run


def _check_kind(config: Config, kind: type[Job]) -> None:
    """Raise unless the method of a config is one for this kind of job."""
    learns_classes = METHODS.load(config.method.name).learns_classes
    if learns_classes and not kind.learns_classes:
        raise LLPError(f"{config.method.name} learns from bags: it is for `llp train`")
    if kind.learns_classes and not learns_classes:
        raise LLPError(f"{config.method.name} learns features and no classes: it is for `llp pretrain`")


def resolve(config: Config) -> Config:
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


def resume(path: Path, *, observer: Observer | None = None, kind: type[Job] = Job) -> Run:
    """Continue the run at ``path`` from its last whole epoch, exactly; nothing is done if it is finished."""
    processes, observer = join(), observer or Observer()

    def open_run() -> Run:
        run = Run.open(path)
        _check_kind(run.config, kind)
        return run

    with ExitStack() as held:

        def lock_run() -> bool:
            if processes.is_first:
                held.enter_context(run.lock())
            return run.is_finished

        run = together(open_run)
        if together(lock_run):
            return run
        job, (state, metrics_bytes) = together(lambda: (kind.of(run, observer.on_images), run.load_checkpoint()))
        if processes.is_first:
            _execute(run, job, observer, state, metrics_bytes)
        else:
            job.train(run, Observer(), state)
    return run


def initialize(model: nn.Module, source: Run, data: Dataset) -> None:
    """Take the trained weights of another run; its head only where it has the same classes."""
    before = read_json(source.data_file)["encoder"]
    encoder = None if before is None else TableEncoder.from_json(before)
    if _columns_of(encoder) != _columns_of(data.encoder):
        raise LLPError(f"{source.path}: was trained on other columns than those of {data.name}, or in another order")
    if encoder is not None and data.encoder is not None:
        for column, values in encoder.categories.items():
            if values != data.encoder.categories[column]:
                raise LLPError(
                    f"{source.path}: was trained on other categories of column {column!r} than those of {data.name}"
                )
    weights = source.load_model().state_dict()
    if tuple(source.description["data"]["class_names"]) != data.class_names:
        weights |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        shape = tuple(source.description["model"]["input_shape"])
        if shape != data.input_shape:
            what = f"was trained on instances of shape {shape}, and those of {data.name} are {data.input_shape}"
        else:
            what = f"its model ({source.config.model.name}) is not the one to be trained"
        raise LLPError(f"{source.path}: {what}") from error


def _columns_of(encoder: TableEncoder | None) -> tuple[list[str], list[str]] | None:
    return None if encoder is None else ([*encoder.column_names], [*encoder.categories])


class _Recorder(Observer):
    """Writes each epoch to the run, then passes it on. The checkpoint is last: it says how much of the rest counts."""

    def __init__(
        self,
        run: Run,
        metrics: IO[bytes],
        rows: list[Row],
        observer: Observer,
        recipe: Recipe,
        class_shares: np.ndarray | None,
    ) -> None:
        """``rows`` are the epochs before; without ``class_shares`` nobody looks out for what goes wrong."""
        self.run, self.metrics, self.rows, self.observer = run, metrics, rows, observer
        self.recipe, self.class_shares = recipe, class_shares
        self.tensorboard = TensorBoardLog(run.tensorboard_directory, len(rows) + 1)
        self.on_start, self.on_step = observer.on_start, observer.on_step

    def on_epoch(self, row: Row, state: State) -> None:
        self.metrics.write((json.dumps(row, allow_nan=False) + "\n").encode())
        self.metrics.flush()
        os.fsync(self.metrics.fileno())
        self.tensorboard.write(row)
        self.run.save_checkpoint(state, self.metrics.tell())
        epoch_log.info(epoch_line(row, self.recipe.choose_by))
        self.rows.append(row)
        if self.class_shares is not None:
            for alarm in new_alarms(self.rows, self.class_shares, self.recipe.epochs):
                log.warning(alarm)
        self.observer.on_epoch(row, state)


def epoch_line(row: Row, choose_by: str) -> str:
    """An epoch's metrics in one line of plain text, among them that by which held-out bags choose."""
    shown = (
        "train/loss",
        "train/bag_kl",
        "train/trust",
        "train/contrast_accuracy",
        f"held_out/{choose_by}",
        "test/accuracy",
    )
    parts = [f"{name} {row[name]:.4f}" for name in shown if name in row]
    return "  ".join([f"epoch {row['epoch']:4.0f}", *parts, f"{row['seconds']:.1f} s"])


def _execute(run: Run, job: Job, observer: Observer, state: State | None, metrics_bytes: int) -> None:
    """Train, from ``state`` on if there is one, of which so many bytes of the metrics are."""
    handler = logging.FileHandler(run.log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        if state is None:
            job.write_inputs(run)
            run.write_json(run.data_file, job.data.description)
            run.write_json(run.env_file, environment(job.config.compute))
        else:
            log.info("continuing after epoch %d", state["epochs_done"])
            begun = read_json(run.env_file)
            here = {"epochs_done": state["epochs_done"]} | environment(job.config.compute)
            run.write_json(run.env_file, begun | {"resumed": [*begun.get("resumed", []), here]})
        job.log()
        with open(run.metrics_file, "ab") as metrics:
            metrics.truncate(metrics_bytes)  # rows of an epoch whose checkpoint was never finished
            metrics.seek(0, os.SEEK_END)
            shares = job.bags.class_shares if job.learns_classes else None
            recorder = _Recorder(run, metrics, run.metrics(), observer, job.config.recipe, shares)
            with closing(recorder.tensorboard):
                outcome, model = job.train(run, recorder, state)
        _finish(run, job, outcome, model)
    finally:
        log.removeHandler(handler)
        handler.close()


def log_data(data: Dataset) -> None:
    for note in data.notes:
        log.info(note)
    if data.encoder is not None:
        log.info(data.encoder.summary)
    for warning in data.warnings:
        log.warning(warning)


def _finish(run: Run, job: Job, outcome: Outcome, model: nn.Module) -> None:
    """Write the trained model and the summary, the summary last: it marks the run as finished."""
    config, data, state = job.config, job.data, outcome.state
    tensors = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
    write_atomically(run.model_file, save(tensors))
    chosen = outcome.chosen
    description = {
        "torchllp": version("torchllp"),
        "model": {
            "name": config.model.name,
            "options": config.model.options,
            "num_classes": max(2, len(data.class_names)),
            "input_shape": list(data.input_shape),
        },
        "data": {
            "dataset": data.name,
            "warnings": list(data.warnings),
            "class_names": list(data.class_names),
            "input": "uint8" if data.is_images else "float32",
            "mean": list(data.mean),
            "std": list(data.std),
        },
        "weights": {
            "kind": "moving average",
            "epoch_is": "chosen" if chosen else "last",
            "epoch": chosen["epoch"] if chosen else state["epochs_done"],
        },
        "method": config.method.model_dump(),
    }
    run.write_json(run.description_file, description | job.describe(model))
    rows = run.metrics()
    summary = {
        "dataset": data.name,
        "method": config.method.model_dump(),
        "model": config.model.model_dump(),
        "seed": config.seed,
        "steps": rows[-1]["steps"],
        "seconds": sum(row["seconds"] for row in rows),
        "cpu_seconds": sum(row["cpu_seconds"] for row in rows),
    }
    run.write_json(run.summary_file, summary | job.summarize(rows, chosen))
    log.info("finished: %s", run.path)


def _match_totals(job: Job, model: nn.Module, calibration: Calibration) -> dict[str, Any]:
    """Offsets of the classes' log-probabilities with which the totals of bags are met, of held-out ones if possible."""
    bags, of = (job.train_bags, "training bags") if job.held_out is None else (job.held_out, "held-out bags")
    expected = bags.class_shares * min(bags.sizes.sum(), MATCHED_INSTANCES)
    if (expected[job.bags.class_shares > 0] < 1).any():
        bags, of = job.bags, "all bags"  # too few are held out for a rare class to be among them
    bags = bags.select(np.flatnonzero(bags.is_labelled))
    generator = np.random.default_rng(seed_of("match totals", job.config.seed))
    rows = generator.permutation(bags.members)[:MATCHED_INSTANCES]
    views = views_of(job.data, job.config.recipe)
    log_p = calibration(predict(model, views, job.data.train.inputs, torch.from_numpy(rows)).cpu())
    offsets = matching_offsets(log_p.numpy(), bags.class_shares * len(rows))
    return {"of": of, "offsets": offsets.tolist()}
