"""Features of instances in two dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from torchllp.errors import LLPError
from torchllp.report.figure import colours, plain, short

MOST_DOTS = 2000
"""Instances of a panel, unless told."""
PERPLEXITY = 30
MOST_NAMES = 20


@dataclass(frozen=True, eq=False)
class Map:
    """Instances on a plane: where they are, their classes, and how far apart the classes' features are."""

    places: np.ndarray
    """``[N, 2]``."""
    labels: np.ndarray
    """``[N]``."""
    silhouette: float | None
    """Of the features, from -1 to 1; None of a single class."""

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray) -> "Map":
        """By t-SNE of features ``[N, D]``, the same for the same features."""
        if len(features) < 5:
            raise LLPError(f"t-SNE needs at least 5 instances, not {len(features)}")
        features = features.reshape(len(features), -1)
        perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
        places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
        has_several = 1 < len(np.unique(labels)) < len(labels)
        return cls(places, labels, float(silhouette_score(features, labels)) if has_several else None)


def tsne_figure(panels: Sequence[tuple[str, Map]], class_names: Sequence[str]) -> Figure:
    """A dot an instance in the colour of its true class, a panel each by its name."""
    figure = Figure(figsize=(4.0 * len(panels), 4.2), layout="constrained", dpi=120)
    palette = np.array(colours(len(class_names)))
    every = figure.subplots(1, len(panels), squeeze=False).flat
    for axes, (name, found) in zip(every, panels, strict=True):
        measured = "" if found.silhouette is None else f"\nsilhouette {found.silhouette:.2f}"
        axes.set_title(plain(name) + measured)
        axes.scatter(*found.places.T, c=palette[found.labels], s=6, linewidths=0, rasterized=len(found.places) > 5_000)
        axes.set(xticks=[], yticks=[])
    if len(class_names) <= MOST_NAMES:
        dots = [
            every[0].plot([], [], "o", color=colour, label=plain(short(name)))[0]
            for colour, name in zip(palette, class_names, strict=True)
        ]
        figure.legend(handles=dots, loc="outside right upper", fontsize="small")
    return figure
