"""Batches of bags to try methods on."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.batch import BagBatch
from torchllp.methods.method import Method


def random_bags(
    sizes: list[int], num_classes: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 2.0
) -> BagBatch:
    """Random logits as weak and strong view, instances of all bags shuffled, proportions from random labels."""
    generator = torch.Generator().manual_seed(seed)
    bag_index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    bag_index = bag_index[torch.randperm(len(bag_index), generator=generator)]
    labels = torch.randint(num_classes, bag_index.shape, generator=generator)
    counts = torch.zeros(len(sizes), num_classes, dtype=torch.float64)
    counts.index_put_((bag_index, labels), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    # drawn in float32, so that both precisions see the same numbers
    weak, strong = (scale * torch.randn(len(bag_index), num_classes, generator=generator) for _ in range(2))
    return BagBatch(
        weak=weak.to(dtype),
        strong=strong.to(dtype),
        bag_index=bag_index,
        proportions=(counts / counts.sum(1, keepdim=True)).to(dtype),
        bags=torch.arange(len(sizes)),
        labels=labels,
        generator=torch.Generator().manual_seed(seed),
    )


def bags_of(batch: BagBatch) -> Bags:
    """The bags of a batch as if they were all there are. (By lists: these can be had within a fake GPU's mode.)"""
    return Bags(
        bag_of=np.array(batch.bag_index.tolist()),
        bag_ids=np.arange(len(batch.proportions)),
        proportions=np.array(batch.proportions.tolist()),
        is_labelled=np.array(batch.is_labelled.tolist()),
        class_names=tuple(str(c) for c in range(batch.proportions.shape[1])),
    )


def started(method: Method, batch: BagBatch) -> Method:
    """The method, told of the bags as the engine does it before a first step."""
    method.start_epoch(bags_of(batch), epoch=0, seed=0)
    return method


def with_unlabelled(batch: BagBatch, unlabelled: Tensor) -> BagBatch:
    """The same batch, nothing known of some of its bags."""
    proportions = batch.proportions.masked_fill(unlabelled[:, None], 0.0)
    anew = dict.fromkeys(("num_bags", "num_labelled_instances", "mean_bag_size"))
    return replace(batch, proportions=proportions, is_labelled=~unlabelled, **anew)


def share_of(batch: BagBatch, rank: int, num_ranks: int) -> BagBatch:
    """One process's part of a step: every ``num_ranks``-th bag, with the totals that make the average exact."""
    bags = torch.arange(len(batch.proportions))[rank::num_ranks]
    place = torch.full((len(batch.proportions),), -1)
    place[bags] = torch.arange(len(bags))
    mine = place[batch.bag_index] >= 0
    assert batch.strong is not None and batch.labels is not None and batch.bags is not None
    return replace(
        batch,
        weak=batch.weak[mine],
        strong=batch.strong[mine],
        labels=batch.labels[mine],
        bag_index=place[batch.bag_index][mine],
        proportions=batch.proportions[bags],
        is_labelled=batch.is_labelled[bags],
        step_rows=mine.nonzero().flatten(),
        step_size=len(mine),
        bags=batch.bags[bags],
        num_bags=float(batch.num_bags) / num_ranks,
        num_instances=batch.num_instances / num_ranks,
        num_labelled_instances=float(batch.num_labelled_instances) / num_ranks,
    )
