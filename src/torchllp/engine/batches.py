"""From the bags of a step to the BagBatch that a method sees."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.data.dataset import Instances
from torchllp.device import move
from torchllp.engine.distributed import ALONE, Processes
from torchllp.methods.method import Method
from torchllp.views.views import Views


@dataclass(frozen=True)
class Step:
    """What a step needs: the batch, and what the method is not told."""

    batch: BagBatch
    labels: Tensor | None
    """The true labels where they exist, for the metrics."""
    view: Callable[[Tensor], Tensor] | None = None
    """Makes the views of some instances, where the batch has their numbers alone."""

    @property
    def is_idle(self) -> bool:
        """Whether another process would do the same without this one."""
        return math.isinf(self.batch.num_instances)


class BatchMaker:
    """Whole bags from instances that live on the device, with the views that the method asks for and no others."""

    def __init__(
        self,
        train: Instances,
        bags: Bags,
        views: Views,
        method: Method,
        processes: Processes = ALONE,
        chunk_size: int | None = None,
    ) -> None:
        self.chunk_size = chunk_size
        self.train, self.bags, self.views, self.method, self.processes = train, bags, views, method, processes
        self.device = train.inputs.device
        self.proportions = torch.tensor(bags.proportions, dtype=torch.float32, device=self.device)
        self.is_labelled = torch.tensor(bags.is_labelled, device=self.device)
        self.reported = self._optional(bags.reported)
        self.noise_scale = self._optional(None if bags.noise is None else bags.noise.scale)

    def _optional(self, array: np.ndarray | None) -> Tensor | None:
        return None if array is None else torch.tensor(array, dtype=torch.float32, device=self.device)

    def _move(self, array: np.ndarray) -> Tensor:
        return move(torch.from_numpy(array), self.device)

    def make(self, bags: np.ndarray, *, generator: torch.Generator, progress: float) -> Step:
        """The step of these bags; one of more instances than a chunk has views that are made later.

        Of several processes each gets its share of the bags. Where there are fewer bags than processes, one without a
        bag does the same work on the smallest of them, so that nobody waits for it, and its loss is divided by
        infinity.
        """
        sizes, num_processes = self.bags.sizes[bags], self.processes.count
        sizes_labelled = sizes[self.bags.is_labelled[bags]]
        num_bags, num_instances, num_labelled = len(sizes_labelled), int(sizes.sum()), int(sizes_labelled.sum())
        mine, reduce = self.processes.share(sizes), self.processes.sum
        is_idle = not len(mine)
        if is_idle:
            mine, reduce = np.array([sizes.argmin()]), self._sum_of_others
        members, index = self.bags.members_of(bags)
        select = None
        if num_processes > 1:
            select = np.flatnonzero(np.isin(index, mine))
            members, index, bags = members[select], np.searchsorted(mine, index[select]), bags[mine]
        rows, bag_rows = self._move(members), self._move(bags)
        labels = None if self.train.labels is None else self.train.labels.index_select(0, rows)
        step_rows = None if select is None else torch.from_numpy(select)

        shape = self.train.inputs.shape
        weak = self.views.draw_weak(num_instances, shape, generator)
        strong = None  # drawn after the weak view, so that every method sees the same weak views
        if "strong" in self.method.views:
            strong = self.views.draw_strong(num_instances, shape, generator)
        if step_rows is not None:
            weak, strong = weak.select(step_rows), None if strong is None else strong.select(step_rows)

        def look(chunk: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
            inputs = self.train.inputs.index_select(0, rows if chunk is None else rows[move(chunk, self.device)])
            of_weak = weak if chunk is None else weak.select(chunk)
            of_strong = strong if chunk is None or strong is None else strong.select(chunk)
            return (
                self.views.weak(inputs, of_weak.to(self.device)),
                None if of_strong is None else self.views.strong(inputs, of_strong.prepare().to(self.device)),
            )

        in_chunks = self.chunk_size is not None and len(members) > self.chunk_size
        if in_chunks:
            numbers = torch.arange(len(members), device=self.device)
            first, second = numbers, None if strong is None else numbers + len(members)
        else:
            first, second = look()
        batch = BagBatch(
            weak=first,
            strong=second,
            bag_index=self._move(index),
            proportions=self.proportions.index_select(0, bag_rows),
            is_labelled=self.is_labelled.index_select(0, bag_rows),
            reported=None if self.reported is None else self.reported.index_select(0, bag_rows),
            noise_kind=None if self.bags.noise is None else self.bags.noise.kind,
            noise_scale=None if self.noise_scale is None else self.noise_scale.index_select(0, bag_rows),
            largest_bag=int(sizes[mine].max()),
            bags=bag_rows,
            labels=labels if self.method.uses_labels else None,
            progress=progress,
            generator=generator,
            step_rows=step_rows,
            step_size=num_instances,
            num_bags=math.inf if is_idle else max(1, num_bags) / num_processes,
            num_instances=math.inf if is_idle else num_instances / num_processes,
            num_labelled_instances=math.inf if is_idle else max(1, num_labelled) / num_processes,
            reduce=reduce,
        )
        view = (lambda chunk: torch.cat([x for x in look(chunk) if x is not None])) if in_chunks else None
        return Step(batch, labels, view)

    def _sum_of_others(self, x: Tensor) -> Tensor:
        return self.processes.sum(torch.zeros_like(x))
