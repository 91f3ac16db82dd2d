"""The training loop."""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.config import Compute, Recipe
from torchllp.data.dataset import Dataset
from torchllp.data.sampler import plan_epoch
from torchllp.engine.batches import BatchMaker
from torchllp.engine.checks import check_epoch, check_fit, check_parts
from torchllp.engine.chunks import Chunked
from torchllp.engine.distributed import Processes, noticing_losses, wrap
from torchllp.engine.ema import EMA
from torchllp.engine.evaluate import HeldOut, evaluate, predict
from torchllp.engine.optimizer import create_optimizer, learning_rate, set_learning_rate
from torchllp.engine.precision import Precision, pick_device
from torchllp.engine.process import borrowed_process, seeded, set_seed
from torchllp.engine.running_means import RunningMeans
from torchllp.engine.stream import is_too_large
from torchllp.engine.sync_batch_norm import set_idle, sync_batch_norm
from torchllp.engine.views import views_of
from torchllp.methods.method import Method
from torchllp.metrics import CRITERIA
from torchllp.randomness import seed_of
from torchllp.views.views import Views

State = dict[str, Any]
Row = dict[str, float]


class Observer:
    """What the loop tells others. This one does nothing; a run directory or a progress bar overrides what it needs."""

    def on_images(self, done: int, num_images: int) -> None:
        """While images are decoded for their cache, before everything else."""

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        """Before the first epoch."""

    def on_step(self, epoch: int, step: int, num_steps: int) -> None:
        """After each step, which may still be running on the device."""

    def on_epoch(self, row: Row, state: State) -> None:
        """After each epoch: its metrics, and all that is needed to go on from here.

        The tensors of ``state`` are those being trained: save or copy them before returning.
        """


class Learner(nn.Module):
    """Model and method together: what is optimised and saved; only the model is exported."""

    def __init__(self, model: nn.Module, method: Method, chunk_size: int | None = None) -> None:
        super().__init__()
        self.chunk_size = chunk_size
        self.model = model
        self.method = method

    def forward(self, batch: BagBatch, view: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """What the method makes of the batch; ``view`` is there where the batch names its instances by number."""
        if view is None:
            return self.method(self.model, batch)
        assert self.chunk_size is not None
        model = Chunked(self.model, view, num_instances=len(batch.bag_index), chunk_size=self.chunk_size)
        return self.method(model, batch)


@dataclass(frozen=True)
class Outcome:
    """A finished training."""

    model: nn.Module
    """The averaged model at the chosen epoch, or at the last one where nothing was held out."""
    metrics: list[Row]
    """One row an epoch of this call (a resumed training has the rows since it was resumed)."""
    state: State
    """All that is needed to train on from here."""
    views: Views

    @property
    def chosen(self) -> Row | None:
        """The metrics of the chosen epoch; None where nothing was held out."""
        return self.state["chosen"] and self.state["chosen"]["row"]

    def predict(self, inputs: Tensor) -> Tensor:
        """Log-probabilities of raw instances like those trained on, ``[N, C]``."""
        return predict(self.model, self.views, inputs)


def is_better(row: Mapping[str, float], other: Mapping[str, float], criterion: str) -> bool:
    """Whether held-out bags prefer the epoch of ``row`` to another: by the larger score, or by the smaller error."""
    one, two = row[f"held_out/{criterion}"], other[f"held_out/{criterion}"]
    return CRITERIA[criterion] * (one - two) > 0


def train(
    model: nn.Module,
    method: Method,
    data: Dataset,
    bags: Bags,
    *,
    held_out: Bags | None = None,
    recipe: Recipe | None = None,
    compute: Compute | None = None,
    seed: int = 0,
    views: Views | None = None,
    observer: Observer | None = None,
    state: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train ``model`` by ``method`` on ``bags`` over the training instances of ``data``.

    ``held_out`` bags are never trained on; they choose the epoch. ``views`` are those of the data unless given.
    ``state`` is what an observer was last given: with it, and the same other arguments, training continues as if it had
    never stopped.

    In a process group of torch.distributed every process calls this with the same arguments, does a share of the work,
    and has the same outcome.
    """
    recipe, compute, observer = recipe or Recipe(), compute or Compute(), observer or Observer()
    device = pick_device(compute.device)
    stream = is_too_large(data.train.inputs, device) if compute.stream is None else compute.stream
    data = data if stream else data.to(device)
    views = views or views_of(data, recipe, contrastive=method.contrastive, device=device)
    model.to(device)
    check_fit(model, method, data, views, bags, held_out)
    check_parts(method, compute)
    with seeded("first weights of the method", seed):
        method.fit_to(model, views.plain(data.train.inputs[:1].to(device)))
    processes = Processes.current()
    batches = BatchMaker(
        data.train,
        bags,
        views,
        method,
        device=device,
        processes=processes,
        chunk_size=compute.chunk_size,
        stream=stream,
    )
    judge = None if held_out is None else HeldOut(held_out, bags, data.train)

    if compute.channels_last and len(data.input_shape) == 3:
        model.to(memory_format=torch.channels_last)
    learner = Learner(model, method.to(device), compute.chunk_size)
    ema = EMA(model, recipe.ema_decay)
    if compute.sync_batch_norm and processes.count > 1:
        sync_batch_norm(learner)
    if compute.compile:
        model.compile()  # after the copy: the averaged model, which only evaluates, stays as it is
    optimizer = create_optimizer(learner, recipe)
    precision = Precision(compute.precision, device)

    stateful = {"learner": learner, "ema": ema, "optimizer": optimizer, "scaler": precision.scaler}
    epochs_done, num_steps = 0, 0
    chosen: dict[str, Any] | None = None
    if state is not None:
        epochs_done, num_steps, chosen = state["epochs_done"], state["num_steps"], state["chosen"]
        for name, part in stateful.items():
            part.load_state_dict(state[name])
    parallel = wrap(learner, device)

    rows: list[Row] = []
    observer.on_start(epochs_done, recipe.epochs)
    with borrowed_process(device, compute.threads), noticing_losses():
        for epoch in range(epochs_done, recipe.epochs):
            started, cpu_started = time.perf_counter(), time.process_time()
            method.start_epoch(bags, epoch, seed)
            steps = plan_epoch(
                bags, recipe.instances_per_step, seed=seed, epoch=epoch, steps_per_epoch=recipe.steps_per_epoch
            )
            means = RunningMeans(device, processes)
            learner.train()
            for step, share in enumerate(batches.shares(steps)):
                progress = (epoch + step / len(steps)) / recipe.epochs
                generator = torch.Generator().manual_seed(seed_of("views and method", seed, epoch, step))
                set_seed(seed_of("dropout", seed, epoch, step, processes.rank), device)
                this = batches.make(share, generator=generator, progress=progress)

                set_learning_rate(optimizer, learning_rate(recipe, progress))
                if compute.sync_batch_norm:
                    set_idle(learner, this.is_idle)
                with precision.autocast():
                    parts = parallel(this.batch, this.view)
                precision.scaler.scale(parts["loss"]).backward()
                precision.scaler.step(optimizer)
                precision.scaler.update()
                optimizer.zero_grad(set_to_none=True)
                ema.update()

                means.add_step(parts, this.batch.step_size, this.labels, is_idle=this.is_idle)
                observer.on_step(epoch, step, len(steps))
            num_steps += len(steps)
            means.check_finite(epoch)

            row: Row = {"epoch": epoch + 1, "steps": num_steps, "lr": learning_rate(recipe, progress)}
            row |= {f"train/{name}": value for name, value in means.read().items()}
            for suffix, network in (("", ema.module), ("_raw", model)):
                processes.agree_on(network.buffers())  # batch norm has seen other bags on each of them
                measured = evaluate(network, views, judge, data.test, processes)
                row |= {name + suffix: value for name, value in measured.items()}
            row["seconds"] = time.perf_counter() - started
            row["cpu_seconds"] = time.process_time() - cpu_started
            check_epoch(model, row)
            rows.append(row)

            can_choose = judge is not None and method.has_begun((epoch + 1) / recipe.epochs)
            if can_choose and (chosen is None or is_better(row, chosen["row"], recipe.choose_by)):
                chosen = deepcopy({"row": row, "ema": ema.module.state_dict(), "raw": model.state_dict()})
            state = {"epochs_done": epoch + 1, "num_steps": num_steps, "chosen": chosen}
            state |= {name: part.state_dict() for name, part in stateful.items()}
            observer.on_epoch(row, state)

    assert state is not None  # there is at least one epoch
    best = deepcopy(ema.module).eval()
    if chosen is not None:
        best.load_state_dict(chosen["ema"])
    return Outcome(best, rows, dict(state), views)
