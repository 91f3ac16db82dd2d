"""Several processes that train one model together: each has whole bags of every step.

Started by ``torchrun --nproc-per-node=N -m torchllp train ...``. All processes draw the same plan of steps and the same
random numbers, so what a step is does not depend on how many there are. The first one writes and speaks.
"""

import atexit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchllp.errors import LLPError, ProcessLost
from torchllp.launched import is_launched, local_rank

T = TypeVar("T")
PATIENCE = timedelta(hours=2)
"""How long a process waits for another, which may be writing or decoding images; one that died is noticed at once."""


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this one is."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> "Processes":
        """As the process group says; one process where there is none."""
        return cls(dist.get_rank(), dist.get_world_size()) if _has_group() else cls()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, sizes: np.ndarray) -> np.ndarray:
        """Which bags of a step, given by their sizes, are this process's: places in ``sizes``, in their order.

        Each bag, the largest first, goes to the process with the fewest instances so far. Where bags are fewer than
        processes, some get none.

        >>> [Processes(rank, 2).share(np.array([2, 9, 3, 2])).tolist() for rank in (0, 1)]
        [[1], [0, 2, 3]]
        """
        if self.count == 1:
            return np.arange(len(sizes))
        loads = np.zeros(self.count, dtype=np.int64)
        mine = []
        for bag in np.argsort(-sizes, kind="stable"):
            rank = int(loads.argmin())
            loads[rank] += sizes[bag]
            if rank == self.rank:
                mine.append(bag)
        return np.array(sorted(mine), dtype=np.int64)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of the processes' tensors, on each of them."""
        if self.count == 1:
            return x
        total = x.clone()
        dist.all_reduce(total)
        return total

    def minimum(self, x: Tensor) -> Tensor:
        """The elementwise minimum of the processes' tensors, on each of them."""
        if self.count == 1:
            return x
        least = x.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        return least

    def agree_on(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes what the first one has."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def gather(self, rows: Tensor, nums_rows: list[int]) -> Tensor:
        """The rows of all processes, as many of each as ``nums_rows`` says, one after the other."""
        padded = rows.new_zeros((max(nums_rows), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in nums_rows]
        dist.all_gather(parts, padded)
        return torch.cat([part[:number] for part, number in zip(parts, nums_rows, strict=True)])


ALONE = Processes()


def wrap(learner: nn.Module, device: torch.device) -> nn.Module:
    """The learner, its gradients averaged over all processes where there are several."""
    if not _has_group():
        return learner
    if device.type not in ("cpu", "cuda"):
        raise LLPError(f"several processes train on CPUs or NVIDIA GPUs, not on {device.type!r}: say --device cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ids = [device] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(learner, device_ids=ids)


def join() -> Processes:
    """Meet the processes that torchrun has started beside this one, once; without torchrun there is only this one."""
    if is_launched() and not _has_group():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Processes.current()


def together(make: Callable[[], T]) -> T:
    """What ``make`` returns, or the first error of any process on all of them: so the first one can tell it.

    The first process of each machine goes first, so that the others find the files that it has downloaded or cached.
    """
    if not _has_group():
        return make()
    result: list[T] = []
    error = None
    for turn in (True, False):
        if turn == (local_rank() == 0):
            try:
                result.append(make())
            except (LLPError, OSError) as problem:
                error = problem
        errors: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(errors, None if error is None else str(error))
        for rank, words in enumerate(errors):
            if words is not None:
                raise (
                    error
                    if error is not None and rank == dist.get_rank() == 0
                    else LLPError(f"process {rank}: {words}")
                )
    return result[0]


@contextmanager
def noticing_losses() -> Iterator[None]:
    """Say in one sentence that another process has gone, which shows as an error of whatever waited for it."""
    try:
        yield
    except RuntimeError as error:
        if not (_has_group() and (isinstance(error, dist.DistError) or "gloo" in str(error))):
            raise
        raise ProcessLost("another process of this training has gone") from error


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()
