"""From the bags of a step to the BagBatch that a method sees."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.data.dataset import Instances
from torchllp.device import move
from torchllp.engine.distributed import ALONE, Processes
from torchllp.engine.stream import ahead, take
from torchllp.methods.method import Method
from torchllp.views.views import Views


@dataclass(frozen=True, eq=False)
class Share:
    """What of a step this process has: some of its bags, whole."""

    bags: np.ndarray
    """Rows of ``Bags``, ``[B]``."""
    members: Tensor
    """Its instances, ``[N]``, on the CPU."""
    index: np.ndarray
    """Each instance's place in ``bags``, ``[N]``."""
    step_rows: Tensor | None
    """Which of the step's instances these are; None: all."""
    step_size: int
    """Instances of the whole step; so are the next two."""
    num_bags: int
    """That are labelled."""
    num_labelled_instances: int
    """Instances of these."""
    is_idle: bool
    """Whether it does the work of another, because there are fewer bags than processes."""
    inputs: Tensor | None = None
    """The raw instances, where a stream has brought them."""


@dataclass(frozen=True)
class Step:
    """What a step needs: the batch, and what the method is not told."""

    batch: BagBatch
    labels: Tensor | None
    """The true labels where they exist, for the metrics."""
    is_idle: bool
    view: Callable[[Tensor], Tensor] | None
    """Makes the views of some instances, where the batch has their numbers alone."""


class BatchMaker:
    """Whole bags on the device, with the views that the method asks for and no others.

    Instances that live on another device than ``device`` are brought there step by step.
    """

    def __init__(
        self,
        train: Instances,
        bags: Bags,
        views: Views,
        method: Method,
        *,
        device: torch.device | None = None,
        processes: Processes = ALONE,
        chunk_size: int | None = None,
        stream: bool = False,
    ) -> None:
        self.train, self.bags, self.views, self.method = train, bags, views, method
        self.device = device or train.inputs.device
        self.processes, self.chunk_size, self.stream = processes, chunk_size, stream
        self.proportions = torch.tensor(bags.proportions, dtype=torch.float32, device=self.device)
        self.is_labelled = torch.tensor(bags.is_labelled, device=self.device)
        self.reported = self._optional(bags.reported)
        self.noise_scale = self._optional(None if bags.noise is None else bags.noise.scale)

    def _optional(self, array: np.ndarray | None) -> Tensor | None:
        return None if array is None else torch.tensor(array, dtype=torch.float32, device=self.device)

    def _move(self, array: np.ndarray) -> Tensor:
        return move(torch.from_numpy(array), self.device)

    def _take(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Rows, given on the CPU, of a tensor wherever it is, on the device."""
        return move(tensor.index_select(0, move(rows, tensor.device)), self.device)

    def shares(self, steps: Sequence[np.ndarray]) -> Iterator[Share]:
        """Of steps given by their bags; a stream reads the instances of the next one while one is trained on."""
        return ahead(self._read, steps) if self.stream else map(self.share, steps)

    def _read(self, bags: np.ndarray) -> Share:
        share = self.share(bags)
        if self._in_chunks(share):
            return share
        return replace(share, inputs=take(self.train.inputs, share.members, self.device))

    def _in_chunks(self, share: Share) -> bool:
        return self.chunk_size is not None and len(share.members) > self.chunk_size

    def share(self, bags: np.ndarray) -> Share:
        """What this process has of the step of these bags.

        Where there are fewer bags than processes, one without a bag does the same work on the smallest of them, so that
        nobody waits for it, and its loss is divided by infinity.
        """
        sizes = self.bags.sizes[bags]
        sizes_labelled = sizes[self.bags.is_labelled[bags]]
        members, index = self.bags.members_of(bags)
        step_rows, is_idle = None, False
        if self.processes.count > 1:
            mine = self.processes.share(sizes)
            is_idle = not len(mine)
            mine = np.array([sizes.argmin()]) if is_idle else mine
            step_rows = np.flatnonzero(np.isin(index, mine))
            members, index, bags = members[step_rows], np.searchsorted(mine, index[step_rows]), bags[mine]
        return Share(
            bags=bags,
            members=torch.from_numpy(members),
            index=index,
            step_rows=None if step_rows is None else torch.from_numpy(step_rows),
            step_size=int(sizes.sum()),
            num_bags=len(sizes_labelled),
            num_labelled_instances=int(sizes_labelled.sum()),
            is_idle=is_idle,
        )

    def make(self, share: Share, *, generator: torch.Generator, progress: float) -> Step:
        """The step, in which views of more instances than a chunk are made later."""
        has_strong = "strong" in self.method.views_at(progress)
        view = self._views_of(share, generator, has_strong=has_strong)
        in_chunks, num_mine = self._in_chunks(share), len(share.members)
        if in_chunks:
            numbers = torch.arange(num_mine, device=self.device)
            weak, strong = numbers, numbers + num_mine if has_strong else None
        else:
            weak, strong = view(None)
        bags = self._move(share.bags)
        labels = None if self.train.labels is None else self._take(self.train.labels, share.members)
        batch = BagBatch(
            weak=weak,
            strong=strong,
            bag_index=self._move(share.index),
            proportions=self.proportions.index_select(0, bags),
            is_labelled=self.is_labelled.index_select(0, bags),
            reported=None if self.reported is None else self.reported.index_select(0, bags),
            noise_kind=None if self.bags.noise is None else self.bags.noise.kind,
            noise_scale=None if self.noise_scale is None else self.noise_scale.index_select(0, bags),
            largest_bag=int(self.bags.sizes[share.bags].max()),
            bags=bags,
            labels=labels if self.method.uses_labels else None,
            progress=progress,
            generator=generator,
            step_rows=share.step_rows,
            step_size=share.step_size,
            num_bags=self._divisor(share, max(1, share.num_bags)),
            num_instances=self._divisor(share, share.step_size),
            num_labelled_instances=self._divisor(share, max(1, share.num_labelled_instances)),
            mean_bag_size=max(1, share.num_labelled_instances) / max(1, share.num_bags),
            reduce=self._sum_of_others if share.is_idle else self.processes.sum,
        )
        later = (lambda chunk: torch.cat([x for x in view(chunk) if x is not None])) if in_chunks else None
        return Step(batch, labels, share.is_idle, later)

    def _views_of(
        self, share: Share, generator: torch.Generator, *, has_strong: bool
    ) -> Callable[[Tensor | None], tuple[Tensor, Tensor | None]]:
        """Draws for the whole step; then the weak and the strong view of this process's instances, or of a chunk."""
        shape = self.train.inputs.shape
        weak = self.views.draw_weak(share.step_size, shape, generator)
        strong = None  # drawn after the weak view, so that every method sees the same weak views
        if has_strong:
            strong = self.views.draw_strong(share.step_size, shape, generator)

        def view(chunk: Tensor | None) -> tuple[Tensor, Tensor | None]:
            if share.inputs is not None:
                inputs = move(share.inputs, self.device)
            else:
                inputs = self._take(self.train.inputs, share.members if chunk is None else share.members[chunk])
            rows = share.step_rows
            if chunk is not None:
                rows = chunk if rows is None else rows[chunk]
            of_weak = weak if rows is None else weak.select(rows)
            of_strong = strong if strong is None or rows is None else strong.select(rows)
            return (
                self.views.weak(inputs, of_weak.to(self.device)),
                None if of_strong is None else self.views.strong(inputs, of_strong.prepare().to(self.device)),
            )

        return view

    def _divisor(self, share: Share, number: int) -> float:
        """What a sum is divided by, so that the processes' mean of it is the sum of all of them over ``number``."""
        return math.inf if share.is_idle else number / self.processes.count

    def _sum_of_others(self, x: Tensor) -> Tensor:
        return self.processes.sum(torch.zeros_like(x))
