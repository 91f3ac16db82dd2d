"""Bags as noisy labels: in a group of as many bags as classes, an instance's bag is a noisy form of its class."""

import numpy as np
from scipy.optimize import nnls


def draw_groups(has_class: np.ndarray, rng: np.random.Generator, *, redraws: int = 20) -> np.ndarray:
    """Disjoint random groups of ``C`` bags each, ``[B // C, C]``; ``has_class [B, C]`` says which classes a bag has.

    Groups are drawn one after the other. One that lacks a class which it could have, since bags not yet grouped have
    it, is drawn anew from these bags, its own among them, at most ``redraws`` times.

    >>> has_class = np.array([[True, False], [True, False], [False, True], [False, True], [True, True]])
    >>> groups = draw_groups(has_class, np.random.default_rng(0))
    >>> has_class[groups].any(1)
    array([[ True,  True],
           [ True,  True]])
    """
    num_bags, num_classes = has_class.shape
    order = rng.permutation(num_bags)
    num_having = has_class.sum(0)  # of the bags not yet grouped
    num_groups = num_bags // num_classes
    for start in range(0, num_groups * num_classes, num_classes):
        rest = order[start:]  # a view: bags change places in `order`
        first = drawn = np.arange(num_classes)
        for _ in range(redraws):
            if (has_class[rest[drawn]].any(0) == (num_having > 0)).all():
                break
            drawn = rng.choice(len(rest), num_classes, replace=False, shuffle=False)
        enter, leave = drawn[drawn >= num_classes], np.setdiff1d(first, drawn)
        rest[enter], rest[leave] = rest[leave], rest[enter]
        num_having -= has_class[rest[:num_classes]].sum(0)
    return order[: num_groups * num_classes].reshape(num_groups, num_classes)


def simplex_least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The ``x >= 0`` with sum 1 for which ``|matrix @ x - target|^2`` is smallest (one of them, if there are several).

    It is the direction of the non-negative ``y`` with the smallest ``|M y|^2 + (sum y - 1)^2``, where ``M`` is
    ``matrix`` less ``target`` in every column: for ``y = t x`` the best ``t`` leaves ``v / (1 + v)`` with
    ``v = |M x|^2 = |matrix @ x - target|^2``, which is smallest where ``v`` is.

    >>> simplex_least_squares(np.array([[0.9, 0.5], [0.1, 0.5]]), np.array([0.6, 0.4])).round(6)
    array([0.25, 0.75])
    """
    stacked = np.vstack([matrix - target[:, None], np.ones(matrix.shape[1])])
    solution, _ = nnls(stacked, np.append(np.zeros(len(target)), 1.0))
    return solution / solution.sum()


def noise_transition(gamma: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of ``T [C, C]``, the probability of noisy class ``i`` given class ``j``, and which ``j`` it is undefined for.

    ``gamma [C, C]`` has a row of proportions for each bag of a group, ``alpha [C]`` is the probability of each bag:
    ``T_ij = gamma_ij alpha_i / (gamma^T alpha)_j``. A class that no bag with ``alpha_i > 0`` has is one of which the
    group says nothing, so its column is ``alpha``. Zeros of ``T`` are ``-inf``.

    >>> log_t, undefined = noise_transition(np.array([[0.5, 0.5, 0], [0.25, 0.75, 0], [0, 1, 0]]), np.full(3, 1 / 3))
    >>> np.exp(log_t).round(3)
    array([[0.667, 0.222, 0.333],
           [0.333, 0.333, 0.333],
           [0.   , 0.444, 0.333]])
    >>> undefined
    array([False, False,  True])
    """
    with np.errstate(divide="ignore"):
        log_alpha = np.log(alpha)[:, None]
        log_joint = np.log(gamma) + log_alpha
    undefined = log_joint.max(0) == -np.inf
    log_joint[:, undefined] = log_alpha
    return log_joint - np.logaddexp.reduce(log_joint, axis=0), undefined
