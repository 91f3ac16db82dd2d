"""SimCLR's loss as plain loops over pairs of embeddings: slow, obvious, independent of the library."""

import math

from torch import Tensor


def cosine(u: list[float], v: list[float]) -> float:
    return sum(a * b for a, b in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


def similarities(first: Tensor, second: Tensor) -> list[list[float]]:
    """Of all pairs, the first views before the second."""
    rows = first.tolist() + second.tolist()
    return [[cosine(u, v) for v in rows] for u in rows]


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> list[float]:
    """Eq. 1 of Chen et al. (2020) for i and its partner j, and for j and i."""
    similarity = similarities(first, second)
    losses = []
    for i, row in enumerate(similarity):
        j = (i + len(first)) % len(similarity)
        total = sum(math.exp(row[k] / temperature) for k in range(len(row)) if k != i)
        losses.append(-math.log(math.exp(row[j] / temperature) / total))
    return losses


def contrast_accuracy(first: Tensor, second: Tensor) -> float:
    similarity = similarities(first, second)
    hits = 0
    for i, row in enumerate(similarity):
        j = (i + len(first)) % len(similarity)
        hits += all(row[j] > row[k] for k in range(len(row)) if k not in (i, j))
    return hits / len(similarity)
