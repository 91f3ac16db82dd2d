"""The distribution of the number of instances of a class, by enumeration and by the recursion over instances."""

import math
from itertools import product


def enumerated(probabilities: list[float]) -> list[float]:
    """``Pr[count = k]`` for k = 0, 1, ..., by all assignments."""
    pmf = [0.0] * (len(probabilities) + 1)
    for members in product([0, 1], repeat=len(probabilities)):
        pmf[sum(members)] += math.prod(p if x else 1 - p for p, x in zip(probabilities, members, strict=True))
    return pmf


def largest_remainder(shares: list[float], size: int) -> list[int]:
    """Whole counts of a bag: shares times its size, rounded down, and one more where most was cut off."""
    exact = [round(share * size, 4) for share in shares]
    counts = [math.floor(x) for x in exact]
    while sum(counts) < size:
        cut_off = [x - k for x, k in zip(exact, counts, strict=True)]
        counts[cut_off.index(max(cut_off))] += 1
    return counts


def recursion(log_odds: list[float]) -> list[float]:
    """``log Pr[count = k]``, adding an instance at a time, in the log domain."""
    log_pmf = [0.0]
    for a in log_odds:
        log_p, log_rest = -_softplus(-a), -_softplus(a)
        larger = [-math.inf] * (len(log_pmf) + 1)
        for k, value in enumerate(log_pmf):
            larger[k] = _log_add(larger[k], value + log_rest)
            larger[k + 1] = _log_add(larger[k + 1], value + log_p)
        log_pmf = larger
    return log_pmf


def _softplus(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def _log_add(a: float, b: float) -> float:
    if -math.inf in (a, b):
        return max(a, b)
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def log_report(z: float, k: int, noise: str | None, scale: float) -> float:
    """``log Pr[z | k]``: of a normal number (a density), of a two-sided geometric one, or whether it rounds so."""
    if noise is None:
        return 0.0 if z == k else -math.inf
    if noise == "gaussian":
        return -((z - k) ** 2) / (2 * scale**2) - math.log(scale * math.sqrt(2 * math.pi))
    if noise == "laplace":
        return math.log((1 - math.exp(-scale)) / (1 + math.exp(-scale))) - scale * abs(z - k)
    assert noise == "rounding"
    return 0.0 if z - scale / 2 <= k <= z + scale / 2 else -math.inf


def enumerated_report(log_odds: list[float], z: float, noise: str | None, scale: float) -> float:
    """``log sum_k Pr[count = k] Pr[z | k]``, by all assignments."""
    total = -math.inf
    for members in product([0, 1], repeat=len(log_odds)):
        log_p = sum(-_softplus(-a) if x else -_softplus(a) for a, x in zip(log_odds, members, strict=True))
        total = _log_add(total, log_p + log_report(z, sum(members), noise, scale))
    return total


def recursed_report(log_pmf: list[float], z: float, noise: str | None, scale: float) -> float:
    """The same for large bags, by what :func:`recursion` gives."""
    total = -math.inf
    for k, log_p in enumerate(log_pmf):
        total = _log_add(total, log_p + log_report(z, k, noise, scale))
    return total
