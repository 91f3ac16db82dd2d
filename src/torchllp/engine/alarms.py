"""Trainings that have gone wrong, recognised from their metrics while there is time to stop them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from torchllp.metrics import effective_number

SMOOTH = 0.95
"""Share of the entropy that predictions have if every instance is given the class shares."""
COLLAPSED = 0.5
"""Share of the classes beyond the first that are predicted."""
NO_TRUST = 0.01
Row = Mapping[str, float]


def patience(num_epochs: int) -> int:
    """For how many epochs something must go wrong before it is said: a third of all, at least 5.

    >>> patience(10), patience(150)
    (5, 50)
    """
    return max(5, num_epochs // 3)


def alarms(rows: Sequence[Row], class_shares: np.ndarray, num_epochs: int) -> dict[str, str]:
    """What has gone wrong in each of the last epochs of ``rows``, by its name, with what to try.

    >>> alarms([{"train/entropy": 0.99}] * 5, np.array([0.5, 0.5]), num_epochs=15).keys()
    dict_keys(['smooth'])
    """
    needed, num_classes = patience(num_epochs), len(class_shares)
    if len(rows) < needed:
        return {}
    known = effective_number(torch.from_numpy(class_shares)).item()
    *before, last = (_wrongs(row, known, num_classes) for row in rows[-needed:])
    return {
        name: f"for {needed} epochs {sentence}"
        for name, sentence in last.items()
        if all(name in wrongs for wrongs in before)
    }


def new_alarms(rows: Sequence[Row], class_shares: np.ndarray, num_epochs: int) -> list[str]:
    """The alarms that the last epoch has set off, so that each is given once.

    >>> rows, shares = [{"train/entropy": 0.99}] * 6, np.array([0.5, 0.5])
    >>> [len(new_alarms(rows[:epochs], shares, num_epochs=15)) for epochs in (4, 5, 6)]
    [0, 1, 0]
    """
    before = alarms(rows[:-1], class_shares, num_epochs)
    return [alarm for name, alarm in alarms(rows, class_shares, num_epochs).items() if name not in before]


def _wrongs(row: Row, known: float, num_classes: int) -> dict[str, str]:
    """What is wrong in an epoch, in words; ``known`` is the effective number of classes in the bags."""
    wrongs = {}
    entropy, largest = row.get("train/entropy", 0.0), math.log(known) / math.log(num_classes)
    if entropy > SMOOTH * largest:
        wrongs["smooth"] = (
            f"predictions have been over-smoothed, all instances nearly alike (entropy {entropy:.2f}, and that of the "
            f"class shares is {largest:.2f}): try a larger learning rate, AdamW in place of SGD, more epochs, smaller "
            "bags, or for images features that are learnt first, by the method contrast or by `llp pretrain`"
        )
    predicted = row.get("train/predicted_classes", known)
    if predicted - 1 < COLLAPSED * (known - 1):
        wrongs["collapsed"] = (
            f"predictions have been collapsed onto {predicted:.1f} classes in effect, where the bags have {known:.1f}: "
            "try a smaller learning rate, a smaller instance_weight, or the method dllp"
        )
    trust = row.get("train/trust", 1.0)
    if trust < NO_TRUST:
        wrongs["trust"] = (
            f"hardly any pseudo-label has been trusted (mean trust {trust:.4f}), so that only proportions teach: try "
            "beta=auto or larger betas, or save time by the method dllp"
        )
    return wrongs
