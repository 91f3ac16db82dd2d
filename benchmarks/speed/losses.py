"""AHIL's losses and weights for all bags at once, against a loop over the bags and against one bare cross-entropy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import torch
from benchmarks.speed.measure import Goal, Row, how_much_quicker, overhead, turn_by_turn
from torch import Tensor
from torch.nn.functional import cross_entropy

from torchllp import BagBatch, create_method

SHAPES = ((64, 16), (16, 64), (4, 256))
CLASSES = (10, 100)
GOALS = {(64, 16): Goal("at least", 10.0), (4, 256): Goal("at least", 1.0)}
LOOP, CROSS_ENTROPY = "a loop over the bags", "one bare cross-entropy"


@dataclass(frozen=True)
class Problem:
    """Logits of both views of bags of one size, and what is known of the bags."""

    logits: Tensor
    """``[2 N, C]``: of the weak view, then of the strong one."""
    bag_index: Tensor
    proportions: Tensor
    labels: Tensor
    """A class for each row of logits; no method sees them."""

    @classmethod
    def random(cls, num_bags: int, size: int, num_classes: int) -> "Problem":
        generator = torch.Generator().manual_seed(0)
        num_logits = 2 * num_bags * size
        logits = 3 * torch.randn(num_logits, num_classes, generator=generator)
        labels = torch.randint(num_classes, (num_logits,), generator=generator)
        proportions = torch.zeros(num_bags, num_classes)
        bag_index = torch.arange(num_bags).repeat_interleave(size)
        proportions.index_put_((bag_index, labels[: len(bag_index)]), torch.tensor(1 / size), accumulate=True)
        return cls(logits.requires_grad_(), bag_index, proportions, labels)


def at_once(problem: Problem) -> Callable[[], Tensor]:
    """The loss by the method itself, on a batch as the training loop makes it; its model returns the logits."""
    method, logits, no_images = create_method("ahil"), problem.logits, torch.empty(len(problem.bag_index), 0)
    num_bags, is_labelled = len(problem.proportions), torch.ones(len(problem.proportions), dtype=torch.bool)

    def loss() -> Tensor:
        batch = BagBatch(
            weak=no_images,
            strong=no_images,
            bag_index=problem.bag_index,
            proportions=problem.proportions,
            is_labelled=is_labelled,
            num_bags=num_bags,
            num_labelled_instances=len(problem.bag_index),
        )
        return method(lambda views: logits, batch)["loss"]

    return loss


def bag_by_bag(
    logits: Tensor, bags: Sequence[slice], proportions: Tensor, *, instance_weight: float = 0.5, beta: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Bag-level and weighted instance-level loss (Eq. 2-10), one bag after the other, vectorised inside the bag."""
    weak, strong = logits.chunk(2)
    bag_losses, instance_losses = [], []
    for rows, shares in zip(bags, proportions, strict=True):
        log_p = weak[rows].log_softmax(1)
        size, logsumexp = len(log_p), log_p.logsumexp(0)
        bag_losses.append(-(shares * (logsumexp - log(size))).sum())
        with torch.no_grad():
            label = log_p.argmax(1)
            log_share = log_p - logsumexp
            column_entropy = -(log_share.exp() * log_share).sum(0)
            by_class = (-(column_entropy - (shares * size).log()).square() / beta).exp()  # 0 for an absent class
            trust = by_class[label] * (-(log_p.exp() * log_p).sum(1).square() / beta).exp()
        instance_losses.append((trust * cross_entropy(strong[rows], label, reduction="none")).sum())
    return torch.stack(bag_losses).mean(), instance_weight * torch.stack(instance_losses).sum() / len(weak)


def slices(num_bags: int, size: int) -> list[slice]:
    """Where the instances of each bag are, if they lie one bag after the other."""
    return [slice(start, start + size) for start in range(0, num_bags * size, size)]


def in_a_loop(problem: Problem) -> Callable[[], Tensor]:
    num_bags = len(problem.proportions)
    bags = slices(num_bags, len(problem.bag_index) // num_bags)

    def loss() -> Tensor:
        bag_loss, instance_loss = bag_by_bag(problem.logits, bags, problem.proportions)
        return bag_loss + instance_loss

    return loss


def backward(loss: Callable[[], Tensor], logits: Tensor) -> Callable[[], None]:
    """A call that makes the loss and its gradient by the logits."""

    def call() -> None:
        logits.grad = None
        loss().backward()

    return call


def measure(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    classes: Sequence[int] = CLASSES,
    repeats: int = 21,
    calls_a_turn: int = 10,
) -> list[Row]:
    torch.empty(30 * 2**20, dtype=torch.uint8)  # as a network takes: from now on the C library keeps what is smaller
    rows = []
    for num_bags, size in shapes:
        for num_classes in classes:
            problem = Problem.random(num_bags, size, num_classes)
            losses = {
                "ours": at_once(problem),
                LOOP: in_a_loop(problem),
                CROSS_ENTROPY: lambda problem=problem: cross_entropy(problem.logits, problem.labels),
            }
            calls = {name: backward(loss, problem.logits) for name, loss in losses.items()}
            times = turn_by_turn(calls, repeats, calls_a_turn=calls_a_turn)
            name = f"losses of {num_bags} x {size}, {num_classes} classes"
            rows.append(how_much_quicker(name, times, LOOP, goal=GOALS.get((num_bags, size)), limit=CROSS_ENTROPY))
            rows.append(overhead(name, times, CROSS_ENTROPY))
    return rows
