"""What every format of exported files has, and the graph that two of them are made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from torchllp.errors import LLPError
from torchllp.export.classifier import Inputs, RawClassifier

Runner = Callable[[Inputs], np.ndarray]
"""Runs an exported file: from raw instances to probabilities."""
DESCRIPTION = "classifier.json"
"""The file that says what is beside it, or in it."""


class Format(ABC):
    """How a classifier is written, and how what was written is run."""

    suffix: str
    """How its files end; empty for a folder."""
    texts = False
    """Whether categories go in as texts; as codes otherwise."""
    runs_by: str
    """What runs its files."""

    def problem(self, classifier: RawClassifier) -> str | None:
        """Why this classifier cannot be written here; None if it can."""
        return None

    @abstractmethod
    def write(self, classifier: RawClassifier, path: Path) -> None:
        """Write it to a path where nothing is."""

    @abstractmethod
    def runner(self, classifier: RawClassifier, path: Path) -> Runner | None:
        """What runs the file that this classifier was written to; None if the package for it is not installed."""


def graph_of(classifier: RawClassifier) -> torch.export.ExportedProgram:
    """The classifier as a graph, for any number of instances."""
    example = classifier.tensors(classifier.inputs(classifier.made_up(3)))
    batch = torch.export.Dim("batch")
    try:
        program = torch.export.export(classifier, (), example, dynamic_shapes={name: {0: batch} for name in example})
    except Exception as error:  # of any kind, for a model of the user's own
        raise cannot_export(classifier, "torch.export", error) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # lines of files on this machine
    return program


def cannot_export(classifier: RawClassifier, by: str, error: Exception) -> LLPError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return LLPError(f"{type(classifier.model).__name__} cannot be exported by {by} ({reason})")
