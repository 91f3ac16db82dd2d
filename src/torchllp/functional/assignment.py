"""Labels and thresholds for instances whose class counts are known.

Both come from one transport problem: give each row of ``log_p [n, C]`` a class so that the classes have given counts
and the sum of the chosen log-probabilities is largest. Its dual variables are a price a class, and the likeliest class
after adding the prices is the solution.
"""

from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from torchllp.errors import LLPError
from torchllp.functional.counts import whole_bag_counts

FEW_ROWS = 500
"""As many rows are solved from nothing; more rows start from the prices of a quarter of them."""


def whole_counts(proportions: np.ndarray, size: int) -> np.ndarray:
    """Whole numbers that sum to ``size`` and are nearest to ``proportions [C]`` times it (largest remainder), ``[C]``.

    One bag of :func:`~.counts.whole_bag_counts`. Proportions that sum to 1 within a thousandth are rescaled.

    >>> whole_counts(np.array([0.5, 0.25, 0.25]), 5)
    array([3, 1, 1])
    """
    proportions = np.asarray(proportions, dtype=np.float64)
    if proportions.ndim != 1 or not (proportions >= 0).all() or abs(proportions.sum() - 1) > 1e-3:
        raise LLPError(f"proportions must be one number a class, 0 or above, that sum to 1, not {proportions.tolist()}")
    if size < 0:
        raise LLPError(f"the number of instances must be 0 or above, not {size}")
    shares = torch.from_numpy(proportions / proportions.sum())
    return whole_bag_counts(shares[None], torch.tensor([size]))[0].long().numpy()


def assign_labels(log_p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The likeliest labels ``[n]`` among all that have exactly the class counts ``counts [C]``.

    ``log_p [n, C]`` are log-probabilities of independent rows; the counts are whole numbers that sum to ``n``. A class
    that a row rules out (``-inf``) is given to it only if the counts leave no other way.

    >>> log_p = np.log([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> assign_labels(log_p, np.array([1, 2]))
    array([0, 1, 1])
    """
    log_p, counts = _checked(log_p, counts)
    if (counts != counts.round()).any():
        raise LLPError(f"counts must be whole numbers, not {counts.tolist()}")
    if len(log_p) == 0:
        return np.zeros(0, dtype=np.int64)
    present = np.flatnonzero(counts)
    labels, _ = _transport(log_p[:, present], counts[present].astype(np.int64))
    return present[labels]


def assign_bags(log_p: np.ndarray, bag_index: np.ndarray, proportions: np.ndarray) -> np.ndarray:
    """The likeliest labels ``[N]`` that agree with the proportions of each bag, made whole by :func:`whole_counts`.

    ``log_p [N, C]`` are log-probabilities, ``bag_index [N]`` says which bag each instance is in, ``proportions [B, C]``
    what is known of the bags; in one of which nothing is (zeros) it is the likeliest class.

    >>> log_p = np.log([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    >>> assign_bags(log_p, np.array([0, 0, 0, 1]), np.array([[1 / 3, 2 / 3], [0, 0]]))
    array([0, 1, 1, 1])
    """
    labels = log_p.argmax(1)
    order = np.argsort(bag_index, kind="stable")
    ends = np.cumsum(np.bincount(bag_index, minlength=len(proportions)))
    for rows, shares in zip(np.split(order, ends[:-1]), proportions, strict=True):
        if shares.any():
            counts = whole_counts(shares, len(rows))
            if len(rows) > FEW_ROWS:
                labels[rows] = assign_labels(log_p[rows], counts)
            else:  # for few rows a column an instance is quicker
                seats = np.repeat(np.arange(len(counts)), counts)
                labels[rows] = seats[linear_sum_assignment(log_p[rows][:, seats], maximize=True)[1]]
    return labels


def matching_offsets(log_p: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Offsets ``[C]`` that make ``(log_p + offsets).argmax(1)`` predict each class as often as ``totals [C]`` says.

    ``totals`` sum to the ``n`` rows of ``log_p [n, C]`` and are rounded by :func:`whole_counts`. They are met exactly
    unless rows tie or rule a class out (``-inf``). The offsets of the classes with a total above 0 have mean 0; a class
    with a total of 0 gets a finite offset with which no row of ``log_p`` predicts it.

    >>> log_p = np.log([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    >>> offsets = matching_offsets(log_p, np.array([3, 1]))
    >>> offsets.round(3), (log_p + offsets).argmax(1)
    (array([-0.313,  0.313]), array([0, 0, 0, 1]))
    """
    log_p, totals = _checked(log_p, totals)
    if len(log_p) == 0:
        return np.zeros(len(totals))
    counts = whole_counts(totals / totals.sum(), len(log_p))
    present = np.flatnonzero(counts)
    labels, _ = _transport(log_p[:, present], counts[present])
    offsets = np.zeros(len(totals))
    offsets[present] = _inner_prices(log_p[:, present], labels)
    gap = (log_p[:, present] + offsets[present]).max(1, keepdims=True) - log_p
    absent = counts == 0
    offsets[absent] = gap[:, absent].min(0) - 1
    return offsets


def _checked(log_p: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64, ``-inf`` as a finite cost that outweighs all others."""
    log_p, counts = np.asarray(log_p, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if log_p.ndim != 2 or counts.shape != log_p.shape[1:]:
        raise LLPError(f"log_p needs a row an instance and a column a count, not {log_p.shape} for {counts.shape}")
    if not (counts >= 0).all() or abs(counts.sum() - len(log_p)) >= 0.5:
        raise LLPError(f"counts must be 0 or above and sum to the {len(log_p)} rows, not {counts.tolist()}")
    for row, c in np.argwhere(~(log_p < np.inf))[:1]:  # NaN is not below infinity either
        raise LLPError(f"log_p has the value {log_p[row, c]} in row {row}, class {c}")
    possible = log_p[log_p > -np.inf]
    if possible.size < log_p.size:
        # To take back one forbidden label, at most C rows change theirs, at no more than the range each.
        low, high = (possible.min(), possible.max()) if possible.size else (0.0, 0.0)
        log_p = log_p.clip(min=low - (len(counts) + 1) * (high - low + 1))
    return log_p, counts


def _transport(log_p: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best labels ``[n]`` with these counts, and prices ``[C]`` with which they are the likeliest of each row.

    The likeliest labels at any prices are the best ones for the counts they happen to have. From there rows move along
    the cheapest path of classes from one that has too many to one that has too few, until none has (successive shortest
    paths); the labels are the best for their counts all the way. Good prices to start from make few moves.
    """
    num_rows, num_classes = log_p.shape
    prices = np.zeros(num_classes)
    if num_rows > FEW_ROWS:
        some = np.random.default_rng(0).choice(num_rows, num_rows // 4, replace=False)
        _, prices = _transport(log_p[some], whole_counts(counts / num_rows, len(some)))
    labels = (log_p + prices).argmax(1)
    surplus = np.bincount(labels, minlength=num_classes) - counts
    cost = np.stack([_cost_to_leave(log_p, labels, c) for c in range(num_classes)])
    while surplus.any():
        reduced = (cost + prices[:, None] - prices).clip(min=0)  # below 0 by rounding only
        distance, previous = _shortest_paths(reduced, surplus > 0)
        last = int(np.where(surplus < 0, distance, np.inf).argmin())
        path = [last]
        while previous[path[0]] >= 0:
            path.insert(0, int(previous[path[0]]))
        steps = [(_cheapest_rows(log_p, labels, a, b, cost[a, b]), b) for a, b in pairwise(path)]
        # Rows that tie go together: the path stays the cheapest while there is one of them left on each step.
        number = min(surplus[path[0]], -surplus[last], *(len(rows) for rows, _ in steps))
        for rows, b in steps:
            labels[rows[:number]] = b
        surplus[path[0]] -= number
        surplus[last] += number
        prices += np.minimum(distance, distance[last])
        for c in path:
            cost[c] = _cost_to_leave(log_p, labels, c)
    return labels, prices


def _cost_to_leave(log_p: np.ndarray, labels: np.ndarray, c: int) -> np.ndarray:
    """What the cheapest row of class ``c`` loses by going to each class, ``[C]``; infinite if ``c`` has no row."""
    rows = log_p[labels == c]
    return (rows[:, c, None] - rows).min(0, initial=np.inf)


def _cheapest_rows(log_p: np.ndarray, labels: np.ndarray, a: int, b: int, cost: float) -> np.ndarray:
    rows = np.flatnonzero(labels == a)
    return rows[log_p[rows, a] - log_p[rows, b] == cost]


def _shortest_paths(length: np.ndarray, is_source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance of each class from the nearest source, and the class before it on the way (-1 for a source)."""
    distance = np.where(is_source, 0.0, np.inf)
    previous = np.full(len(length), -1)
    while True:
        through = distance[:, None] + length
        shorter = through.min(0) < distance
        if not shorter.any():
            return distance, previous
        distance = np.minimum(distance, through.min(0))
        previous[shorter] = through.argmin(0)[shorter]


def _inner_prices(log_p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Prices inside the region where ``labels`` are the likeliest of each row, mean 0; every class has a row.

    The region is ``prices[b] - prices[a] <= cost[a, b]``. The shortest distances from any one class are a corner of it,
    and the mean of these corners is inside wherever the region has an inside; for two classes it is the midpoint.
    """
    num_classes = log_p.shape[1]
    distance = np.stack([_cost_to_leave(log_p, labels, c) for c in range(num_classes)])
    for c in range(num_classes):
        distance = np.minimum(distance, distance[:, c, None] + distance[c])
    prices = distance.mean(0)
    return prices - prices.mean()
