"""Trained classifiers as files that run elsewhere: ONNX, torch.export, safetensors."""

import os
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from torchllp.data.image_cache import Progress
from torchllp.data.readers import TableReader
from torchllp.data.table import Table
from torchllp.errors import LLPError
from torchllp.export.classifier import RawClassifier, raw_classifier
from torchllp.export.format import DESCRIPTION, Format, Runner
from torchllp.export.onnx import Onnx
from torchllp.export.torch_export import TorchExport
from torchllp.export.weights import Weights, load_exported
from torchllp.files import check_directory_of
from torchllp.predictor import Predictor
from torchllp.registry import unknown_name
from torchllp.run import Run
from torchllp.supervision import load_data

__all__ = ["FORMATS", "Exported", "FormatName", "export_classifier", "export_run", "load_exported", "raw_classifier"]

FormatName = Literal["onnx", "torch-export", "safetensors"]
FORMATS: dict[str, Format] = dict(zip(get_args(FormatName), (Onnx(), TorchExport(), Weights()), strict=True))
TOLERANCE = 1e-4
"""How far the probabilities of an exported file may be from ours."""
VERIFIED_BATCHES = (1, 2, 7)
NUM_VERIFIED = 20
"""Instances of each kind, real and made up, that a file is verified on."""


class Exported(NamedTuple):
    """What was exported."""

    path: Path
    about: dict[str, Any]
    """What it takes and gives."""
    difference: float | None
    """The largest one found of a probability; None if there is nothing to run the file by."""
    notes: list[str]
    """What a user should know of how it was verified."""


def export_run(
    run: Run,
    path: Path,
    to: str = "onnx",
    *,
    weights: Literal["chosen", "last"] | None = None,
    raw: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Export the classifier of a finished run, verified on instances of the run if they can still be read.

    ``weights`` and ``raw`` are those of :meth:`~torchllp.run.Run.load_model`; ``progress`` is told of images decoded.
    """
    check_export(path, to, overwrite=overwrite)
    known, own = run.description, run.config.own
    features = Path(own.features) if own.features else None
    predictor = Predictor(run, weights=weights, raw=raw, device="cpu", features=features, progress=progress)
    classifier = raw_classifier(
        predictor.model,
        predictor.class_names,
        predictor.shape,
        mean=known["data"]["mean"],
        std=known["data"]["std"],
        encoder=predictor.reader.encoder if isinstance(predictor.reader, TableReader) else None,
        temperature=predictor.calibration.temperature,
        made_of=known["model"],
    )
    _check_format(classifier, to)  # before much is read
    instances, notes = None, []
    try:
        instances = _some_instances(predictor)
    except (LLPError, OSError) as error:  # a model can be taken away from its data
        notes = [f"verified on made-up instances alone, since those of the run cannot be read ({error})"]
    exported = export_classifier(classifier, path, to, instances=instances, overwrite=overwrite)
    return exported._replace(notes=notes if exported.difference is not None else [])


def export_classifier(
    classifier: RawClassifier, path: Path, to: str = "onnx", *, instances: Any = None, overwrite: bool = False
) -> Exported:
    """Write a classifier to ``path``, once what was written has given the same probabilities as the library.

    They are compared on made-up instances, and on ``instances`` if there are any.
    """
    check_export(path, to, overwrite=overwrite)
    target, difference = FORMATS[to], None
    _check_format(classifier, to)
    with TemporaryDirectory(prefix=".export-", dir=path.parent) as place:
        written = Path(place) / path.name
        target.write(classifier, written)
        runner = target.runner(classifier, written)
        if runner is not None:
            tried = [classifier.made_up(NUM_VERIFIED), *([] if instances is None else [instances])]
            difference = float(np.max([_difference(runner, classifier, some) for some in tried]))
            if not difference <= TOLERANCE:  # NaN is not
                raise LLPError(
                    f"{path}: not written, because probabilities by {target.runs_by} differ from ours by "
                    f"{difference:.2g}, more than {TOLERANCE:g}"
                )
        if path.is_dir():
            os.rename(path, Path(place) / ".before")  # which goes with the rest of the place
        os.replace(written, path)
    return Exported(path, classifier.describe(texts=target.texts), difference, [])


def check_export(path: Path, to: str, *, overwrite: bool) -> None:
    """Raise unless a file of this format can be written to ``path``; only an export is ever overwritten."""
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    suffix = FORMATS[to].suffix
    if suffix and path.suffix != suffix:
        raise LLPError(f"{path}: files of {to} end in {suffix}")
    if not suffix and path.suffix == f".{to}":
        raise LLPError(f"{path}: {to} goes to a folder, whose name needs no ending")
    check_directory_of(path)
    if not path.exists():
        return
    if not overwrite:
        raise LLPError(
            f"{path}: there is something here already: take another name, or replace it (--overwrite, in Python "
            "overwrite=True)"
        )
    if not (path if suffix else path / DESCRIPTION).is_file():
        raise LLPError(f"{path}: is no export, and only one of those is replaced")


def _check_format(classifier: RawClassifier, to: str) -> None:
    problem = FORMATS[to].problem(classifier)
    if problem is not None:
        raise LLPError(problem)


def _difference(runner: Runner, classifier: RawClassifier, instances: Any) -> float:
    """The largest difference of a probability, by batches of several sizes."""
    inputs, expected = classifier.inputs(instances), classifier.expected(instances)
    start, found = 0, []
    for size in cycle(VERIFIED_BATCHES):
        if start >= len(expected):
            break
        found.append(runner({name: values[start : start + size] for name, values in inputs.items()}))
        start += size
    return float(np.abs(np.concatenate(found) - expected).max())


def _some_instances(predictor: Predictor) -> Any:
    """The first instances of the run's data."""
    run, own = predictor.run, predictor.own
    if not own.is_given:
        data = load_data(run.config.data.model_copy(update={"download": False}))
        return (data.test or data.train).inputs[:NUM_VERIFIED]
    source = Path(own.instances or own.images or "")
    if not isinstance(predictor.reader, TableReader):
        return predictor.read(source).inputs[:NUM_VERIFIED]
    _, features = predictor.reader.open(source)
    first = next(features.blocks(predictor.reader.encoder.column_names))
    return Table.of(pa.Table.from_batches([first.slice(0, NUM_VERIFIED)]), features.name)
