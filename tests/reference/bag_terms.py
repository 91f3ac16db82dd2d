"""The paper's formulas as plain loops over bags, classes and instances: slow, obvious, independent of the library.

``P`` are probabilities, ``bags[i]`` the rows of bag ``i``, ``p[i]`` its proportions; double precision throughout.
"""

import itertools
import math

import torch
from torch import Tensor

from reference.counts import largest_remainder, log_report


def rows_of_bags(bag_index: Tensor, num_bags: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(num_bags)]
    for j, i in enumerate(bag_index.tolist()):
        rows[i].append(j)
    return rows


def softmax(logits: Tensor) -> Tensor:
    exponentials = (logits - logits.max(1, keepdim=True).values.detach()).exp()
    return exponentials / exponentials.sum(1, keepdim=True)


def bag_loss(
    P: Tensor,
    bags: list[list[int]],
    p: Tensor,
    is_labelled: list[bool],
    weighting: str = "equal",
    term: str = "mean",
    order: int = 2,
) -> Tensor:
    """Eq. 2-3; or minus the log-probability of the counts of all classes, each against the others; or in between."""
    total, weights = torch.zeros((), dtype=P.dtype), 0.0
    labelled = [rows for i, rows in enumerate(bags) if is_labelled[i]]
    mean_size = sum(map(len, labelled)) / max(len(labelled), 1)
    for i, rows in enumerate(bags):
        if not is_labelled[i]:
            continue
        loss = torch.zeros((), dtype=P.dtype)
        if term == "mean":
            mean = sum(P[j] for j in rows) / len(rows)
            for c in range(P.shape[1]):
                if p[i, c] > 0:
                    loss = loss - p[i, c] * mean[c].log()
        elif term == "gaussian":
            for c in range(P.shape[1]):
                mean, variance = P[rows, c].sum(), (P[rows, c] * (1 - P[rows, c])).sum() + 0.25
                loss = loss + (p[i, c] * len(rows) - mean) ** 2 / (2 * variance) + variance.log() / 2
        elif term == "moments":
            counts = [round(share * len(rows)) for share in p[i].tolist()]
            loss = sum((common_class_loss(P[rows], counts, r) for r in range(1, order + 1)), loss)
        else:
            pmf = count_probabilities(P[rows])
            for c, count in enumerate(largest_remainder(p[i].tolist(), len(rows))):
                loss = loss - pmf[c, count].log()
        if term in ("gaussian", "count"):
            loss = loss / mean_size
        weight = len(rows) if weighting == "size" else 1
        total, weights = total + weight * loss, weights + weight
    return total / weights


def common_class_loss(P: Tensor, counts: list[int], r: int) -> Tensor:
    """Cross-entropy of which class ``r`` different instances of a bag have in common, if any, over all sets of them."""
    loss, size = torch.zeros((), dtype=P.dtype), len(P)
    if size < r:
        return loss
    if size <= 12:
        sets = list(itertools.combinations(range(size), r))
        common = [sum(math.prod(P[j, c] for j in members) for members in sets) for c in range(len(counts))]
    else:  # 256 instances have too many pairs to go through
        assert r <= 2
        common = list(P.sum(0) if r == 1 else (P.sum(0) ** 2 - (P**2).sum(0)) / 2)
    number = math.comb(size, r)
    for c, m in enumerate(counts):
        if m >= r:
            loss = loss - math.comb(m, r) / number * (common[c] / number).log()
    none = number - sum(math.comb(m, r) for m in counts)
    return loss - none / number * (1 - sum(common) / number).log() if none else loss


def count_probabilities(P: Tensor) -> Tensor:
    """``Pr[k of the instances are of class c]`` for all classes and k, ``[C, M + 1]``, an instance at a time."""
    pmf = torch.ones(P.shape[1], 1, dtype=P.dtype)
    none, other = torch.zeros_like(pmf), 1 - torch.eye(P.shape[1], dtype=P.dtype)
    for row in P:
        others = other @ row  # 1 - row would lose the digits of a class that is nearly certain
        pmf = torch.cat([pmf, none], 1) * others[:, None] + torch.cat([none, pmf], 1) * row[:, None]
    return pmf


def uncertain_bag_loss(
    P: Tensor, bags: list[list[int]], reported: Tensor, noise: str | None, scale: list[float], term: str
) -> Tensor:
    """The mean over bags of either loss, of counts that were reported with noise; NaN was not observed.

    The shares of a bag are its counts as they were reported, which here are from 0 to its size and sum to it at most.
    """
    total = torch.zeros((), dtype=P.dtype)
    for i, rows in enumerate(bags):
        M, observed = len(rows), [c for c in range(P.shape[1]) if not math.isnan(reported[i, c])]
        loss = torch.zeros((), dtype=P.dtype)
        is_exact = noise is None or scale[i] in (0.0, math.inf)
        if term == "count":
            pmf, mean_size = count_probabilities(P[rows]), sum(map(len, bags)) / len(bags)
            for c in observed:
                z, kind = reported[i, c].item(), None if is_exact else noise
                probability = sum(pmf[c, k] * math.exp(log_report(z, k, kind, scale[i])) for k in range(M + 1))
                loss = loss - probability.log() / mean_size
        else:
            mean = sum(P[j] for j in rows) / M
            shares = {c: reported[i, c].item() / M for c in observed}
            for c, share in shares.items():
                loss = loss - share * mean[c].log()
            if len(observed) < P.shape[1]:
                rest = sum(mean[c] for c in range(P.shape[1]) if c not in observed)
                loss = loss - (1 - sum(shares.values())) * rest.log()
            if not is_exact:
                if noise == "gaussian":
                    variance = scale[i] ** 2
                elif noise == "rounding":
                    variance = scale[i] ** 2 / 12
                else:
                    variance = 2 * math.exp(-scale[i]) / (1 - math.exp(-scale[i])) ** 2
                v = 0.0
                for share in shares.values():
                    p = min(max(share, 0.5 / M), 1 - 0.5 / M)
                    v += p * (1 - p) / M
                loss = loss * v / (v + len(shares) * variance / M**2)
        total = total + loss
    return total / len(bags)


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
