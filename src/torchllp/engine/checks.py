"""What must fit together before training starts, and what must still hold after an epoch."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from torchllp.bags import Bags
from torchllp.config import Compute
from torchllp.data.dataset import Dataset
from torchllp.engine.distributed import Processes
from torchllp.engine.evaluate import predict
from torchllp.errors import LLPError
from torchllp.launched import is_launched
from torchllp.methods import METHODS
from torchllp.methods.method import Method
from torchllp.views.views import Views


def check_fit(model: nn.Module, method: Method, data: Dataset, views: Views, bags: Bags, held_out: Bags | None) -> None:
    """Raise unless model, method, data and bags are about the same instances and classes."""
    num_classes = len(data.class_names) if method.learns_classes else bags.num_classes
    for some in (bags, held_out):
        if some is None:
            continue
        if len(some.bag_of) != len(data.train):
            raise LLPError(f"the bags are over {len(some.bag_of)} instances and {data.name} has {len(data.train)}")
        if some.num_classes != num_classes:
            raise LLPError(f"the bags have {some.num_classes} classes and {data.name} has {num_classes}")
    if held_out is not None:
        if len(np.intersect1d(bags.members, held_out.members)):
            raise LLPError("some instances of held-out bags are in the bags to be trained on")
        if not held_out.is_labelled.all():
            raise LLPError("some of the held-out bags have no known proportions, so nothing can be chosen by them")
    for part in (data.train, data.test):
        if part is not None and part.labels is not None:
            if len(part.labels) != len(part):
                raise LLPError(f"{data.name} has {len(part)} instances and {len(part.labels)} labels")
            if len(part) and not -1 <= int(part.labels.min()) <= int(part.labels.max()) < num_classes:
                raise LLPError(f"the labels of {data.name} must be from 0 to {num_classes - 1}, or -1 where unknown")
    if method.uses_labels and data.train.labels is None:
        raise LLPError(f"{type(method).__name__} needs the labels of the training instances, and there are none")
    method.check(bags)
    shape = tuple(predict(model, views, data.train.inputs[:1]).shape)
    if shape != (1, num_classes):
        raise LLPError(f"the model's output for one instance has shape {shape} and should have (1, {num_classes})")


def check_parts(method: Method, compute: Compute) -> None:
    """Raise if a step is to be cut up, into chunks or over processes, by a method that needs it whole."""
    if method.needs_whole_step and (is_launched() or Processes.current().count > 1):
        raise LLPError(f"{type(method).__name__} compares all instances of a step: train it as one process")
    if compute.chunk_size is None:
        return
    if not method.in_chunks:
        able = " and ".join(name for name in METHODS.names() if METHODS.load(name).in_chunks)
        raise LLPError(f"{type(method).__name__} needs all views of a step together: chunk_size is for {able}")
    if compute.sync_batch_norm:  # it would wait in each chunk for the others, which may have fewer
        raise LLPError("batch norm is over a chunk or over all processes: leave out chunk_size or sync_batch_norm")


def check_epoch(model: nn.Module, row: Mapping[str, float]) -> None:
    """Raise if an epoch has left weights, or metrics, that are not finite; waits for the device."""
    weights = torch.stack([p.detach().isfinite().all() for p in model.parameters()]).all().item()
    wrong = ["the weights"] * (not weights) + [name for name, value in row.items() if not math.isfinite(value)]
    if wrong:
        raise LLPError(f"not finite after epoch {row['epoch']:.0f}: {wrong[0]}; try a smaller learning rate or float32")
