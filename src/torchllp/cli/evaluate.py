"""`llp evaluate`."""

import json
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
        Print the numbers as JSON, with those of each class and the confusion matrix (a row a true class).
    """
    from torchllp.cli.progress import show_progress
    from torchllp.engine.evaluate import HeldOut
    from torchllp.metrics import calibration_error, confusion_matrix
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
    confusion, of_classes = None, []
    if test is not None and test.labels is not None and test.is_labelled:
        uncalibrated = predictor.uncalibrated_log_p(test.inputs)
        log_p = predictor.calibration(uncalibrated)
        scores = log_p + predictor.offsets if match_totals else log_p
        confusion = confusion_matrix(scores.argmax(1), test.labels.cpu(), len(names))
        measured, of_classes = _measure(log_p, test.labels.cpu(), confusion)
        numbers |= measured
        numbers["calibration error before"] = calibration_error(uncalibrated, test.labels.cpu()).item()
    if not numbers:
        raise LLPError(f"{run}: nothing to measure by: no test instance has a label, and no bag was held out")
    for note in notes:
        aside.print(note, soft_wrap=True)
    if as_json:
        found: dict[str, Any] = _without_nan(numbers)
        if confusion is not None:
            found["classes"] = {name: _without_nan(row) for name, row in zip(names, of_classes, strict=True)}
            found["confusion"] = confusion.tolist()
        print(json.dumps(found, indent=2))
    else:
        console.print(f"{run}: {opened.config.method.name} on {what}", soft_wrap=True)
        show_table(["measure", "value"], [(name, f"{value:.4f}") for name, value in numbers.items()])
    if confusion is None:
        return
    path = figure or opened.confusion_file
    save_confusion(path, confusion, names, title=f"{opened.config.method.name} on {what}")
    if not as_json:
        show_table(
            ["class", *of_classes[0]], [(name, *_shown(row)) for name, row in zip(names, of_classes, strict=True)]
        )
        console.print(f"confusion matrix: {path}", soft_wrap=True)


def _measure(log_p: "Tensor", labels: "Tensor", confusion: "Tensor") -> tuple[dict[str, float], list[dict[str, float]]]:
    """The measures by name, and those of each class, which are NaN where there is nothing to measure."""
    from torchllp.metrics import auc, average_precision, calibration_error, class_scores

    scores = class_scores(confusion) | {"AUC": auc(log_p, labels)}
    there = confusion.sum(1) > 0  # means are over the classes that the instances have
    numbers = {
        "accuracy": (confusion.diagonal().sum() / confusion.sum()).item(),
        "macro F1": scores["F1"][there].mean().item(),
        "average precision": average_precision(log_p, labels)[there].nanmean().item(),
        "AUC": scores["AUC"][there].nanmean().item(),
        "calibration error": calibration_error(log_p, labels).item(),
    }
    columns = {"instances": confusion.sum(1), "predicted": confusion.sum(0)} | scores
    of_classes = zip(*(column.tolist() for column in columns.values()), strict=True)
    return numbers, [dict(zip(columns, row, strict=True)) for row in of_classes]


def _shown(row: Mapping[str, float]) -> list[str]:
    """Numbers of instances, then shares."""
    return [f"{x:,}" if isinstance(x, int) else percent(x) for x in _without_nan(row).values()]


def _without_nan(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if isnan(value) else value for name, value in numbers.items()}
