"""`llp evaluate`."""

import json
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from torchllp.cli import Misuse
from torchllp.cli.console import aside, console, percent, show_table
from torchllp.cli.training import Flag
from torchllp.errors import LLPError

if TYPE_CHECKING:
    from torch import Tensor


def evaluate(
    run: Path,
    *,
    instances: Path | None = None,
    label_column: str | None = None,
    images: Path | None = None,
    features: Path | None = None,
    match_totals: Annotated[bool, Flag] = False,
    figure: Path | None = None,
    weights: Literal["chosen", "last"] | None = None,
    raw: Annotated[bool, Flag] = False,
    data_dir: Path | None = None,
    device: str = "auto",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Show how good a run's classifier is, on labelled instances and on its held-out bags.

    Parameters
    ----------
    run
        Directory of a finished run.
    instances
        Labelled instances: a table like the one trained on, or a folder with one sub-folder of images a class.
        Default: the test instances of the run, and its held-out bags.
    label_column
        Column with the classes. Default: that of the run.
    images
        Folder that the paths in a table of images start from. Default: that of the run, else that of the table.
    features
        File with the precomputed features of the instances, if their table has them not.
    match_totals
        Shift the classes' thresholds so that the totals of the run's held-out bags are met.
    figure
        File (.png, .svg or .pdf) for a picture of the confusion matrix. Default: confusion.png in the run.
    weights
        Epoch whose weights are used. Default: the chosen one, the last where none was chosen.
    raw
        Use the weights as optimised, not their moving average.
    data_dir
        Directory of the data sets' files, if not where the run had them.
    device
        auto (a GPU if there is one), cpu, cuda, cuda:1, mps.
    as_json
        Print the numbers as JSON.
    """
    from torchllp.cli.progress import show_progress
    from torchllp.engine.evaluate import HeldOut
    from torchllp.metrics import calibration_error
    from torchllp.predictor import Predictor
    from torchllp.report.confusion import save_confusion
    from torchllp.report.figure import check_figure
    from torchllp.run import Run
    from torchllp.supervision import bags_of, check_inputs, load_supervision

    if instances is None and (label_column or images or features):
        raise Misuse("--label-column, --images and --features are about other instances: give them by --instances")
    if figure is not None:
        check_figure(figure)
    opened = Run.open(run)
    numbers: dict[str, float] = {}
    with show_progress(aside) as observer:
        predictor = Predictor(
            opened,
            weights=weights,
            raw=raw,
            device=device,
            images=images,
            features=features,
            label_column=label_column,
            progress=observer.on_images,
        )
        if instances is not None:
            test, notes = predictor.read_labelled(instances)
            what = str(instances)
        else:
            config = opened.config_with(data_dir)
            data, _, trained_on, held_out = load_supervision(config, bags_of(opened), observer.on_images)
            check_inputs(opened, data)
            test, what, notes = data.test, f"the {data.tests_on} of {data.name}", list(data.notes)
            if test is None:
                what = f"the held-out bags of {data.name}"
            if held_out is not None:
                judged = HeldOut(held_out, trained_on, data.train).judge(predictor.model, predictor.views)
                numbers |= {f"held-out {name}": value.item() for name, value in judged.items()}
    names = predictor.class_names
    per_class: list[tuple[str, ...]] = []
    confusion = None
    if test is not None and test.labels is not None and test.is_labelled:
        uncalibrated = predictor.uncalibrated_log_p(test.inputs)
        log_p = predictor.calibration(uncalibrated)
        scores = log_p + predictor.offsets if match_totals else log_p
        measured, per_class, confusion = _measure(log_p, scores.argmax(1), test.labels.cpu(), names)
        numbers |= measured
        numbers["calibration error before"] = calibration_error(uncalibrated, test.labels.cpu()).item()
    if not numbers:
        raise LLPError(f"{run}: nothing to measure by: no test instance has a label, and no bag was held out")
    for note in notes:
        aside.print(note, soft_wrap=True)
    if as_json:
        print(json.dumps({name: None if isnan(value) else value for name, value in numbers.items()}, indent=2))
    else:
        console.print(f"{run}: {opened.config.method.name} on {what}", soft_wrap=True)
        show_table(["measure", "value"], [(name, f"{value:.4f}") for name, value in numbers.items()])
    if confusion is None:
        return
    path = figure or opened.confusion_file
    save_confusion(path, confusion, names, title=f"{opened.config.method.name} on {what}")
    if not as_json:
        show_table(["class", "instances", "predicted", "recall", "precision", "F1", "AUC"], per_class)
        console.print(f"confusion matrix: {path}", soft_wrap=True)


def _measure(
    log_p: "Tensor", predicted: "Tensor", labels: "Tensor", class_names: tuple[str, ...]
) -> "tuple[dict[str, float], list[tuple[str, ...]], Tensor]":
    """The measures by name, a row a class, and the confusion matrix."""
    from torchllp.metrics import auc, average_precision, calibration_error, confusion_matrix, f1_scores

    confusion = confusion_matrix(predicted, labels, len(class_names))
    f1, precisions, areas = f1_scores(confusion), average_precision(log_p, labels), auc(log_p, labels)
    num_true, num_predicted, hits = confusion.sum(1), confusion.sum(0), confusion.diagonal()
    there = num_true > 0  # means are over the classes that the instances have
    numbers = {
        "accuracy": (hits.sum() / confusion.sum()).item(),
        "macro F1": f1[there].mean().item(),
        "average precision": precisions[there].nanmean().item(),
        "AUC": areas[there].nanmean().item(),
        "calibration error": calibration_error(log_p, labels).item(),
    }
    rows: list[tuple[str, ...]] = []
    for c, name in enumerate(class_names):
        shares = [None] * 4
        if there[c]:
            precision = hits[c] / num_predicted[c] if num_predicted[c] else None
            shares = [
                None if x is None or x.isnan() else x.item()
                for x in (hits[c] / num_true[c], precision, f1[c], areas[c])
            ]
        rows.append((name, f"{num_true[c]:,}", f"{num_predicted[c]:,}", *map(percent, shares)))
    return numbers, rows, confusion
