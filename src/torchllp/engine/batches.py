"""From the bags of a step to the BagBatch that a method sees."""

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.data.dataset import Instances
from torchllp.device import move
from torchllp.methods.method import Method
from torchllp.views.views import Views


class BatchMaker:
    """Whole bags from instances that live on the device, with the views that the method asks for and no others."""

    def __init__(self, train: Instances, bags: Bags, views: Views, method: Method) -> None:
        self.train, self.bags, self.views, self.method = train, bags, views, method
        self.device = train.inputs.device
        self.proportions = torch.tensor(bags.proportions, dtype=torch.float32, device=self.device)
        self.is_labelled = torch.tensor(bags.is_labelled, device=self.device)
        self.reported = self._optional(bags.reported)
        self.noise_scale = self._optional(None if bags.noise is None else bags.noise.scale)

    def _optional(self, array: np.ndarray | None) -> Tensor | None:
        return None if array is None else torch.tensor(array, dtype=torch.float32, device=self.device)

    def _move(self, array: np.ndarray) -> Tensor:
        return move(torch.from_numpy(array), self.device)

    def make(self, bags: np.ndarray, *, generator: torch.Generator, progress: float) -> tuple[BagBatch, Tensor | None]:
        """The batch of these bags, and the true labels where they exist, for the metrics and not for the method."""
        members, index = self.bags.members_of(bags)
        sizes = self.bags.sizes[bags]
        sizes_labelled = sizes[self.bags.is_labelled[bags]]
        rows, bag_rows = self._move(members), self._move(bags)
        inputs = self.train.inputs.index_select(0, rows)
        labels = None if self.train.labels is None else self.train.labels.index_select(0, rows)
        weak = self.views.draw_weak(len(members), inputs.shape, generator).to(self.device)
        strong = None  # drawn after the weak view, so that every method sees the same weak views
        if "strong" in self.method.views:
            strong = self.views.draw_strong(len(members), inputs.shape, generator).prepare().to(self.device)
        batch = BagBatch(
            weak=self.views.weak(inputs, weak),
            strong=None if strong is None else self.views.strong(inputs, strong),
            bag_index=self._move(index),
            proportions=self.proportions.index_select(0, bag_rows),
            is_labelled=self.is_labelled.index_select(0, bag_rows),
            reported=None if self.reported is None else self.reported.index_select(0, bag_rows),
            noise_kind=None if self.bags.noise is None else self.bags.noise.kind,
            noise_scale=None if self.noise_scale is None else self.noise_scale.index_select(0, bag_rows),
            largest_bag=int(sizes.max()),
            bags=bag_rows,
            labels=labels if self.method.uses_labels else None,
            progress=progress,
            generator=generator,
            num_bags=max(1, len(sizes_labelled)),
            num_labelled_instances=max(1, int(sizes_labelled.sum())),
        )
        return batch, labels
