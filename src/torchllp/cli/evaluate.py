"""`llp evaluate`."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from torchllp.cli.console import console, percent, show_table


def evaluate(
    run: Path,
    *,
    weights: Literal["chosen", "last"] | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Show how good a run's classifier is, on the test instances of its data set and on its held-out bags.

    Parameters
    ----------
    run
        Directory of a finished run.
    weights
        Epoch whose weights are used. Default: the chosen one, the last where none was chosen.
    raw
        Use the weights as optimised, not their moving average.
    device
        auto (a GPU if there is one), cpu, cuda, cuda:1, mps.
    as_json
        Print the numbers as JSON.
    """
    from torchllp.engine.evaluate import held_out_errors, predict
    from torchllp.engine.precision import pick_device
    from torchllp.engine.train import image_views
    from torchllp.job import Job
    from torchllp.metrics import accuracy, calibration_error, confusion_matrix, f1_scores
    from torchllp.run import Run

    opened = Run.open(run)
    job = Job.of(opened)
    where = pick_device(device)
    model = opened.load_model(weights, raw=raw).to(where)
    data = job.data.to(where)
    views = image_views(data, job.config.recipe)
    numbers: dict[str, float] = {}
    if job.held_out is not None:
        errors = held_out_errors(model, views, data.train, job.held_out)
        numbers |= {f"held-out {name}": value.item() for name, value in errors.items()}
    per_class = []
    test = data.test
    if test is not None and test.labels is not None:
        log_p = predict(model, views, test.inputs)
        confusion = confusion_matrix(log_p.argmax(1), test.labels, len(data.class_names))
        f1 = f1_scores(confusion)
        numbers["accuracy"] = accuracy(log_p, test.labels).item()
        numbers["macro F1"] = f1.mean().item()
        numbers["calibration error"] = calibration_error(log_p, test.labels).item()
        recall = confusion.diagonal() / confusion.sum(1).clamp(min=1)
        for c, name in enumerate(data.class_names):
            per_class.append((name, str(confusion[c].sum().item()), percent(recall[c].item()), percent(f1[c].item())))
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    console.print(f"{run}: {job.config.method.name}, bag size {job.config.data.bag_size}", markup=False)
    show_table(["measure", "value"], [(name, f"{value:.4f}") for name, value in numbers.items()])
    if per_class:
        show_table(["class", "test instances", "recall", "F1"], per_class)
