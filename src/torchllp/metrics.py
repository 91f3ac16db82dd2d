"""How good predictions are: with labels, and without.

``log_p [N, C]`` are log-probabilities everywhere; labels are -1 where unknown.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchllp.functional import (
    bag_evidence,
    count_log_probability,
    entropy,
    log_mean_probability,
    proportion_kl,
    with_rest,
)

CRITERIA = {"bag_kl": -1, "bag_mae": -1, "count_score": 1}
"""What bags without labels judge by, see :func:`bag_errors` and :func:`count_score`: -1 where less is better."""


def accuracy(log_p: Tensor, labels: Tensor) -> Tensor:
    """Share of the labelled instances whose likeliest class is the true one.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]).log(), torch.tensor([0, 0, -1]))
    tensor(0.5000)
    """
    return (log_p.argmax(1) == labels).sum() / (labels >= 0).sum()


def confusion_matrix(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Number of instances of each true class (rows) by predicted class (columns).

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    known = labels >= 0
    cell = labels[known] * num_classes + predicted[known]
    return torch.bincount(cell, minlength=num_classes**2).view(num_classes, num_classes)


def class_scores(confusion: Tensor) -> dict[str, Tensor]:
    """Recall, precision and F1 of each class, ``[C]`` each.

    NaN where there is nothing to divide by: recall and F1 of a class that no instance has, precision of one that is
    never predicted.

    >>> class_scores(torch.tensor([[1, 1], [0, 2]]))["F1"]
    tensor([0.6667, 0.8000])
    """
    hits, num_true, num_predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    f1 = 2 * hits / (num_true + num_predicted)
    return {
        "recall": hits / num_true,
        "precision": hits / num_predicted,
        "F1": torch.where(num_true > 0, f1, torch.nan),
    }


def average_precision(log_p: Tensor, labels: Tensor) -> Tensor:
    """Precision of each class against all others, averaged over its instances from the likeliest down, ``[C]``.

    NaN for a class that none or all of the labelled instances have. A rare class shows here, not in the accuracy.

    >>> log_p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]]).log()
    >>> average_precision(log_p, torch.tensor([0, 0, 1]))
    tensor([0.8333, 0.5000])
    """
    precisions = []
    for hits, false_alarms in _threshold_counts(log_p, labels):
        precision = hits[1:] / (hits[1:] + false_alarms[1:])
        average = (hits.diff() * precision).sum() / hits[-1]
        precisions.append(torch.where(false_alarms[-1] > 0, average, torch.nan))
    return torch.stack(precisions)


def auc(log_p: Tensor, labels: Tensor) -> Tensor:
    """Area under the ROC curve of each class against all others, ``[C]``.

    That is how often an instance of the class has a higher probability of it than an instance of another; ties count
    half. NaN for a class that none or all of the labelled instances have.

    >>> auc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]]).log(), torch.tensor([0, 0, 1]))
    tensor([0.5000, 0.5000])
    """
    areas = []
    for hits, false_alarms in _threshold_counts(log_p, labels):
        area = (false_alarms.diff() * (hits[1:] + hits[:-1])).sum()
        areas.append(area / (2 * hits[-1] * false_alarms[-1]))  # 0 / 0 where one of them has no instance
    return torch.stack(areas)


def _threshold_counts(log_p: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each class the instances of it and of others above each threshold, from none to all, ``[T + 1]`` each.

    There is a threshold below each value of the class's log-probability, so instances that tie come together.
    """
    known = labels >= 0
    for c, score in enumerate(log_p[known].T):
        score, order = score.sort(descending=True)
        is_hit = (labels[known] == c)[order]
        is_last = torch.ones_like(is_hit)
        is_last[:-1] = score[1:] != score[:-1]
        hits, false_alarms = is_hit.cumsum(0)[is_last], (~is_hit).cumsum(0)[is_last]
        yield pad(hits, (1, 0)), pad(false_alarms, (1, 0))


def calibration_bins(log_p: Tensor, labels: Tensor, num_bins: int = 15) -> tuple[Tensor, Tensor, Tensor]:
    """Labelled instances by the largest probability of their prediction, in bins of equal width, ``[K]`` each.

    How many instances, their mean largest probability, and the share that is predicted right; the last two are NaN
    where there are none.
    """
    known = labels >= 0
    confidence, predicted = log_p[known].exp().max(1)
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    is_right = (predicted == labels[known]).to(confidence.dtype)
    counts = torch.bincount(bins, minlength=num_bins)  # whole numbers: float32 ends at 16 million
    sure, right = (confidence.new_zeros(num_bins).index_add(0, bins, x) for x in (confidence, is_right))
    return counts, sure / counts, right / counts


def calibration_error(log_p: Tensor, labels: Tensor, num_bins: int = 15) -> Tensor:
    """Expected calibration error: how far confidence is from accuracy, on average over :func:`calibration_bins`.

    >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 0, 1]))
    tensor(0.)
    """
    counts, confidence, right = calibration_bins(log_p, labels, num_bins)
    return ((right - confidence).abs() * counts).nansum() / counts.sum()


def normalized_entropy(log_p: Tensor) -> Tensor:
    """Entropy of each prediction on a scale of 0 (certain) to 1 (all classes alike), ``[N]``.

    >>> normalized_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25]]).log())
    tensor([1.])
    """
    return entropy(log_p) / math.log(log_p.shape[1])


def effective_number(amounts: Tensor) -> Tensor:
    """As how many equal parts these amounts are divided, by the exponential of the entropy of their shares.

    >>> effective_number(torch.tensor([5.0, 5.0, 0.0])), effective_number(torch.tensor([9.0, 1.0]))
    (tensor(2.), tensor(1.3841))
    """
    shares = amounts / amounts.sum()
    return (-shares.xlogy(shares).sum()).exp()


def bag_errors(
    log_p: Tensor, bag_index: Tensor, proportions: Tensor, observed: Tensor | None = None
) -> dict[str, Tensor]:
    """How far predicted proportions are from known ones, means over bags; no instance label is needed.

    ``bag_kl`` is the divergence that training minimises, ``bag_mae`` the mean absolute difference of a share. Classes
    that were not ``observed [B, C]`` are one class in the first, and left out of the second.

    >>> log_p, bag_index = torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log(), torch.tensor([0, 0])
    >>> errors = bag_errors(log_p, bag_index, proportions=torch.tensor([[0.5, 0.5]]))
    >>> {name: round(float(value), 4) for name, value in errors.items()}
    {'bag_kl': 0.0204, 'bag_mae': 0.1}
    """
    log_mean = log_mean_probability(log_p, bag_index, len(proportions))
    proportions = proportions.to(log_mean.dtype)
    observed = torch.ones_like(proportions, dtype=torch.bool) if observed is None else observed
    error = torch.where(observed, (log_mean.exp() - proportions).abs(), 0.0)
    return {
        "bag_kl": proportion_kl(*with_rest(proportions, log_mean, observed)).mean(),
        "bag_mae": error.sum() / observed.sum(),
    }


def prior_log_probability(prior: Tensor, bag_index: Tensor, counts: Tensor, **noise: Any) -> Tensor:
    """Log-probability of the counts of bags, ``[B, C]``, if every instance had the prediction ``prior [C]``."""
    predicted = prior.double().log().expand(len(bag_index), -1)
    return count_log_probability(predicted, bag_index, counts, **noise)


def count_score(
    log_p: Tensor,
    bag_index: Tensor,
    counts: Tensor,
    prior: Tensor,
    *,
    noise: str | None = None,
    scale: Tensor | None = None,
    by_prior: Tensor | None = None,
) -> Tensor:
    """How much more probable the known counts of bags are by the predictions than by ``prior [C]``, a scalar.

    In nats an instance: 0 is no better than to predict the prior for every instance, and bags of any size compare. Two
    classes have one count, and this is the log-likelihood ratio of it; of more classes each is taken against all
    others, and what they say twice is left out (:func:`~torchllp.functional.bag_evidence`). ``counts [B, C]``,
    ``noise`` and ``scale`` are as in :func:`~torchllp.functional.count_log_probability`; ``by_prior [B, C]`` is that of
    the prior, where at hand.

    >>> log_p, bag_index = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor([0, 0])
    >>> count_score(log_p, bag_index, torch.tensor([[1, 1]]), prior=torch.tensor([0.5, 0.5]))
    tensor(0.1960, dtype=torch.float64)
    """
    by_predictions = count_log_probability(log_p, bag_index, counts, noise=noise, scale=scale)
    if by_prior is None:
        by_prior = prior_log_probability(prior, bag_index, counts, noise=noise, scale=scale)
    return bag_evidence(by_predictions - by_prior, counts).sum() / len(log_p)
