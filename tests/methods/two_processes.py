"""The gradient of a step in one process and in two, with real processes (gloo)."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from methods.problems import random_bags, share_of, started
from processes import start_processes
from torchllp.batch import BagBatch
from torchllp.engine.sync_batch_norm import sync_batch_norm
from torchllp.engine.train import Learner
from torchllp.methods import create_method


def _learner(name: str, numbers: dict[str, Any], batch_norm: bool, batch: BagBatch) -> Learner:
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(8)] if batch_norm else []
    model = nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), nn.Linear(8, 4)).double()
    return Learner(model, started(create_method(name, **numbers), batch))


def _gradients(learner: nn.Module) -> dict[str, Tensor]:
    buffers = {f"buffer {name}": buffer for name, buffer in learner.named_buffers()}
    return {name: p.grad for name, p in learner.named_parameters() if p.grad is not None} | buffers


def _sum_over_processes(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


def _worker(rank: int, folder: str, name: str, numbers: dict[str, Any], sizes: list[int]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    batch = random_bags(sizes, 4)
    for batch_norm in (False, True):
        learner = _learner(name, numbers, batch_norm, batch)
        sync_batch_norm(learner)
        parallel = nn.parallel.DistributedDataParallel(learner)
        share = replace(share_of(batch, rank, 2), reduce=_sum_over_processes)
        parallel(share)["loss"].backward()
        if rank == 0:
            torch.save(_gradients(learner), Path(folder, f"{batch_norm}.pt"))
    dist.destroy_process_group()


def gradients_of_two_processes(
    name: str, numbers: dict[str, Any], sizes: list[int]
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Gradients (and buffers) of one process on all bags, and of two processes on half of the bags each.

    First for a net without batch norm, then for one whose batch norm is over both processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_worker, (folder, name, numbers, sizes), 2)
        batch = random_bags(sizes, 4)
        for batch_norm in (False, True):
            learner = _learner(name, numbers, batch_norm, batch)
            learner(batch)["loss"].backward()
            yield _gradients(learner), torch.load(Path(folder, f"{batch_norm}.pt"), weights_only=True)
