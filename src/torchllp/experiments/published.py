"""Accuracies that the paper prints: Tables 1 and 2 of L2P-AHIL (Ma et al., CVPR 2025), in `published.csv`."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

SOURCE = "Tables 1 and 2 of L2P-AHIL (Ma et al., CVPR 2025)"


@dataclass(frozen=True)
class Published:
    accuracy: float | None
    """In percent; None where the table has a dash."""
    deviation: float | None
    note: str


@cache
def _all() -> dict[tuple[str, str, str, str], Published]:
    text = (files("torchllp.experiments") / "published.csv").read_text()
    return {
        (line["table"], line["dataset"], line["row"], line["bag_size"]): Published(
            float(line["accuracy"]) if line["accuracy"] else None,
            float(line["deviation"]) if line["deviation"] else None,
            line["note"],
        )
        for line in csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    }


def published(table: str | None, dataset: str, row: str, bag_size: int) -> Published | None:
    """What a table prints for a row; None where it has no such cell.

    >>> published("table1", "cifar10", "ahil", 16)
    Published(accuracy=94.96, deviation=0.13, note='')
    >>> published("table1", "svhn", "flmm", 16)
    Published(accuracy=None, deviation=None, note='not reported')
    """
    known = _all()
    for_all_sizes = known.get((table or "", dataset, row, ""))  # fully supervised
    return known.get((table or "", dataset, row, str(bag_size)), for_all_sizes)
