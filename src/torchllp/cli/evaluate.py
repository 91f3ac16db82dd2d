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
    data_dir: Path | None = None,
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
    data_dir
        Directory of the data sets' files, if not where the run had them.
    device
        auto (a GPU if there is one), cpu, cuda, cuda:1, mps.
    as_json
        Print the numbers as JSON.
    """
    from torchllp.engine.evaluate import held_out_errors, predict
    from torchllp.engine.precision import pick_device
    from torchllp.engine.train import image_views
    from torchllp.job import bags_of, load_supervision
    from torchllp.metrics import accuracy, calibration_error, confusion_matrix, f1_scores
    from torchllp.run import Run

    opened = Run.open(run)
    config = opened.config_with(data_dir)
    data, bags, _, held_out = load_supervision(config, bags_of(opened))
    where = pick_device(device)
    model = opened.load_model(weights, raw=raw).to(where)
    data = data.to(where)
    views = image_views(data, config.recipe)
    numbers: dict[str, float] = {}
    if held_out is not None:
        errors = held_out_errors(model, views, data.train, held_out)
        numbers |= {f"held-out {name}": value.item() for name, value in errors.items()}
    per_class = []
    test = data.test
    if test is not None and test.labels is not None and test.is_labelled:
        log_p = predict(model, views, test.inputs)
        confusion = confusion_matrix(log_p.argmax(1), test.labels, len(data.class_names))
        f1 = f1_scores(confusion)
        numbers["accuracy"] = accuracy(log_p, test.labels).item()
        there = confusion.sum(1) > 0
        numbers["macro F1"] = f1[there].mean().item()  # over the classes that test instances have
        numbers["calibration error"] = calibration_error(log_p, test.labels).item()
        recall = confusion.diagonal() / confusion.sum(1).clamp(min=1)
        for c, name in enumerate(data.class_names):
            values = (recall[c].item(), f1[c].item()) if there[c] else (None, None)
            per_class.append((name, str(confusion[c].sum().item()), *map(percent, values)))
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    console.print(f"{run}: {config.method.name}, bags of {bags.size_range}", markup=False)
    show_table(["measure", "value"], [(name, f"{value:.4f}") for name, value in numbers.items()])
    if per_class:
        show_table(["class", "test instances", "recall", "F1"], per_class)
