"""The paper's formulas as plain loops over bags, classes and instances: slow, obvious, independent of the library.

``P`` are probabilities, ``bags[i]`` the rows of bag ``i``, ``p[i]`` its proportions; double precision throughout.
"""

import math

import torch
from torch import Tensor


def rows_of_bags(bag_index: Tensor, num_bags: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(num_bags)]
    for j, i in enumerate(bag_index.tolist()):
        rows[i].append(j)
    return rows


def softmax(logits: Tensor) -> Tensor:
    exponentials = (logits - logits.max(1, keepdim=True).values.detach()).exp()
    return exponentials / exponentials.sum(1, keepdim=True)


def bag_loss(P: Tensor, bags: list[list[int]], p: Tensor, is_labelled: list[bool], weighting: str = "equal") -> Tensor:
    """Eq. 2-3."""
    total, weights = torch.zeros((), dtype=P.dtype), 0.0
    for i, rows in enumerate(bags):
        if not is_labelled[i]:
            continue
        mean = sum(P[j] for j in rows) / len(rows)
        cross_entropy = torch.zeros((), dtype=P.dtype)
        for c in range(P.shape[1]):
            if p[i, c] > 0:
                cross_entropy = cross_entropy - p[i, c] * mean[c].log()
        weight = len(rows) if weighting == "size" else 1
        total, weights = total + weight * cross_entropy, weights + weight
    return total / weights


def dual_entropy_weights(
    P: Tensor,
    labels: list[int],
    bags: list[list[int]],
    p: Tensor,
    is_labelled: list[bool],
    *,
    beta_bag: float | None,
    beta_instance: float | None,
    auto: float | None = None,
) -> Tensor:
    """Eq. 6-10, for each instance; with ``auto`` entropies count by their share of the largest, log M and log C."""
    weights = torch.ones(len(P), dtype=P.dtype)
    for i, rows in enumerate(bags):
        for c in sorted({labels[j] for j in rows}):
            bag_weight = 1.0
            if beta_bag is not None and is_labelled[i]:
                m = p[i, c].item() * len(rows)
                if m == 0:
                    bag_weight = 0.0
                else:
                    column = P[rows, c] / P[rows, c].sum()
                    entropy = -sum(x * math.log(x) for x in column.tolist() if x > 0)
                    gap, beta = entropy - math.log(m), beta_bag
                    if auto is not None:
                        gap, beta = gap / math.log(len(rows)) if len(rows) > 1 else 0.0, auto
                    bag_weight = math.exp(-(gap**2) / beta)
            for j in rows:
                if labels[j] == c:
                    weights[j] *= bag_weight
        if beta_instance is not None:
            for j in rows:
                entropy = -sum(x * math.log(x) for x in P[j].tolist() if x > 0)
                share, beta = (entropy, beta_instance) if auto is None else (entropy / math.log(P.shape[1]), auto)
                weights[j] *= math.exp(-(share**2) / beta)
    return weights


class ConfidenceStatistics:
    """SoftMatch's running mean and variance of the largest probability, and mean prediction, as plain numbers."""

    def __init__(self, num_classes: int, decay: float) -> None:
        self.decay = decay
        self.mean, self.variance = 1 / num_classes, 1.0
        self.class_mean = [1 / num_classes] * num_classes

    def _move(self, running: float, of_step: float) -> float:
        return self.decay * running + (1 - self.decay) * of_step

    def weights(self, P: Tensor, n_sigma: float, align: bool) -> Tensor:
        """Take a step in, then weigh each of its instances."""
        rows = P.tolist()
        n = len(rows)
        if align:
            for c in range(len(self.class_mean)):
                self.class_mean[c] = self._move(self.class_mean[c], sum(row[c] for row in rows) / n)
            rows = [[x / m for x, m in zip(row, self.class_mean, strict=True)] for row in rows]
            rows = [[x / sum(row) for x in row] for row in rows]
        largest = [max(row) for row in rows]
        mean = sum(largest) / n
        self.mean = self._move(self.mean, mean)
        if n > 1:
            self.variance = self._move(self.variance, sum((x - mean) ** 2 for x in largest) / (n - 1))
        below = [min(x - self.mean, 0.0) for x in largest]
        weights = [math.exp(-(x**2) / (2 * self.variance / n_sigma**2)) for x in below]
        return torch.tensor(weights, dtype=P.dtype)


def transport_plans(
    P: Tensor, bags: list[list[int]], p: Tensor, is_labelled: list[bool], eps: float, rounds: int
) -> Tensor:
    """Sinkhorn's scaling of ``exp(-cost / eps) = P^(1 / eps)``, bag by bag; rows of unlabelled bags are zero."""
    plan = torch.zeros_like(P)
    for i, rows in enumerate(bags):
        if is_labelled[i]:
            K, m = P[rows] ** (1 / eps), p[i] * len(rows)
            u = torch.ones(len(rows), dtype=P.dtype)
            for _ in range(rounds):
                v = m / (K.T @ u)
                u = 1 / (K @ v)
            plan[rows] = u[:, None] * K * v
    return plan
