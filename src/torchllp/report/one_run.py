"""All that there is to say of one run, as sections of a page."""

import shlex
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from torch import Tensor

from torchllp.check import check_bags
from torchllp.data.image_cache import Progress
from torchllp.metrics import class_scores
from torchllp.report.comparison import learns_classes, named
from torchllp.report.confusion import confusion_figure
from torchllp.report.curves import curves_figure, run_panels
from torchllp.report.examples import Example, column_values, most_and_least_trusted, picture_uri, telling_columns
from torchllp.report.findings import Findings, InBags, Tested
from torchllp.report.page import Block, Drawings, Facts, Gallery, Picture, Section, Table, Text
from torchllp.report.proportions import largest_share, proportions_figure
from torchllp.report.reliability import reliability_figure
from torchllp.run import Run, read_json

EPOCHS_IN_WORDS = {
    "last": "last",
    "chosen": "chosen: the best by held-out bags",
    "oracle": "oracle: the best test epoch, which nobody has in practice",
}
MOST_CLASSES_DRAWN = 200


def title_of(run: Run) -> str:
    """What was done, in a line."""
    summary = run.summary
    bags = f" in bags of {summary['bag_size']}" if "bag_size" in summary else ""
    return f"{named(summary['method'])} on {summary['dataset']}{bags}"


def run_sections(
    run: Run, *, data_dir: Path | None = None, device: str = "auto", progress: Progress | None = None
) -> list[Section]:
    """The report of a run; one that was pre-trained has a short one.

    ``data_dir`` is where the files of a named data set are now; ``progress`` is told of images decoded.
    """
    if not learns_classes(run):
        return [_pretraining(run), _curves(run), _origin(run)]
    findings = Findings(run, data_dir=data_dir, device=device, progress=progress)
    sections = [_summary(findings), _curves(run)]
    if findings.tested is not None and findings.confusion is not None:
        sections += [_confusion(findings, findings.tested, findings.confusion), _reliability(findings)]
    sections.append(_proportions(findings))
    if findings.in_training_bags is not None:
        sections.append(_examples(findings, findings.in_training_bags))
    return [*sections, _origin(run)]


def _summary(findings: Findings) -> Section:
    run, data = findings.run, findings.data
    summary, weights = run.summary, run.description["weights"]
    shape = " x ".join(map(str, data.input_shape))
    facts = [
        ("data set", f"{data.name}: {len(data.train):,} training instances, {len(findings.class_names)} classes"),
        ("instances", f"images, {shape}" if data.is_images else f"rows of {shape} features"),
        *_made_of(run),
        ("bags", f"{summary['num_bags']:,} of {summary['bag_size']} instances, {summary['num_held_out']:,} held out"),
        *_cost(summary),
        ("classifier", f"{weights['kind']} of the weights at epoch {weights['epoch']:.0f} ({weights['epoch_is']})"),
    ]
    blocks: list[Block] = [Facts(facts), _epochs(summary)]
    if summary["oracle_gap"] is not None:
        gap = 100 * summary["oracle_gap"]
        blocks.append(Text(f"Oracle gap: to choose by held-out bags cost {gap:.2f} points of accuracy."))
    if not summary["accuracy"]:
        blocks.append(Text("No test instance has a label, so that accuracy is not known."))
    if not summary["num_held_out"]:
        blocks.append(Text("No bag was held out, so that no epoch was chosen: the last one counts."))
    blocks += [Text(alarm, is_warning=True) for alarm in [*summary["alarms"], *data.warnings]]
    blocks += [
        Text(f"{found.subject}: {found.value}: {found.meaning}", is_warning=True)
        for found in check_bags(findings.bags)
        if found.level == "warning"
    ]
    return Section("Summary", blocks)


def _made_of(run: Run) -> list[tuple[str, str]]:
    config = run.config
    facts = [("method", named(config.method.model_dump())), ("model", named(config.model.model_dump()))]
    if config.init_from is not None:
        what = "all but the head, which alone was trained" if config.freeze else "first weights"
        facts.append(("from another run", f"{what}: {config.init_from}"))
    return facts


def _cost(summary: dict[str, Any]) -> list[tuple[str, str]]:
    return [("seed", f"{summary['seed']}"), ("training", f"{summary['steps']:,} steps, {summary['seconds']:.1f} s")]


def _epochs(summary: dict[str, Any]) -> Table:
    """A line for each of the epochs that matter, with what is known of it."""
    columns = {
        "accuracy": ("test/accuracy", lambda value: f"{100 * value:.2f} %"),
        "bag KL": ("held_out/bag_kl", lambda value: f"{value:.4f}"),
        "share error": ("held_out/bag_mae", lambda value: f"{100 * value:.2f} %"),
        "count score": ("held_out/count_score", lambda value: f"{value:.4f}"),
    }
    there = {head: (metric, shown) for head, (metric, shown) in columns.items() if metric in summary["metrics"]["last"]}
    rows = [
        [EPOCHS_IN_WORDS[name], f"{row['epoch']:.0f}", *(shown(row[metric]) for metric, shown in there.values())]
        for name, row in summary["metrics"].items()
    ]
    words = [f"Accuracy is that of the {summary['tests_on']}."] * ("accuracy" in there)
    if "bag KL" in there:
        words.append(
            "Of held-out bags are bag KL, share error (of a class on average) and count score (how much more probable "
            "their counts are than by the class shares alone; more is better)."
        )
    return Table(["epoch", "number", *there], rows, " ".join(words))


def _pretraining(run: Run) -> Section:
    summary = run.summary
    last = summary["metrics"]["last"]
    facts = [
        ("data set", f"{summary['dataset']}: {summary['num_instances']:,} instances, without bags and labels"),
        *_made_of(run),
        *_cost(summary),
        ("loss", f"{last['train/loss']:.3f} at the last epoch, {last['epoch']:.0f}"),
    ]
    words = "Features were learnt here, and no classes: a run that starts from them has accuracy to be told of."
    return Section("Summary", [Facts(facts), Text(words)])


def _curves(run: Run) -> Section:
    summary = run.summary
    tests_on = summary.get("tests_on", "")
    panels = run_panels(run.metrics(), tests_on=tests_on, epochs=summary["metrics"])
    return Section("Training", [Drawings([("A curve over the epochs", curves_figure([panel])) for panel in panels])])


def _confusion(findings: Findings, tested: Tested, confusion: Tensor) -> Section:
    names = findings.class_names
    numbers = [[f"{number:,}" for number in confusion.sum(axis).tolist()] for axis in (1, 0)]
    scores = class_scores(confusion)
    shares = [["-" if isnan(x) else f"{100 * x:.1f} %" for x in score.tolist()] for score in scores.values()]
    rows = [list(row) for row in zip(names, *numbers, *shares, strict=True)]
    blocks: list[Block] = [Text(_how_many(findings, tested))]
    if len(names) <= MOST_CLASSES_DRAWN:
        blocks.append(Drawings([("Confusion matrix", confusion_figure(confusion, names))]))
    else:
        blocks.append(Text(f"The matrix of {len(names):,} classes is too large to be drawn."))
    return Section("Mistakes", [*blocks, Table(["class", "instances", "predicted", *scores], rows)])


def _how_many(findings: Findings, tested: Tested) -> str:
    right = (tested.log_p.argmax(1) == tested.labels).double().mean()
    number, what = len(tested.labels), findings.data.tests_on
    whole = f"the {number:,} {what}" if number == tested.num_there else f"{number:,} of {tested.num_there:,} {what}"
    return f"{right:.2%} of {whole} that have a label are predicted right."


def _reliability(findings: Findings) -> Section:
    words = "Where predictions are as often right as they are sure, the dots are on the diagonal. "
    if findings.held_out is None:
        words += "No bag was held out to calibrate on."
    else:
        temperature = findings.predictor.calibration.temperature
        words += f"Held-out bags alone, without a label, gave the temperature {temperature:.2f}."
    figures = [(name, reliability_figure({name: found})) for name, found in findings.reliability.items()]
    return Section("Reliability", [Text(words), Drawings(figures)])


def _proportions(findings: Findings) -> Section:
    panels = findings.proportions
    if not panels:
        return Section("Proportions of the bags", [Text("Every bag is too large to be predicted for this page.")])
    words = "A dot is the share of a class in a bag, by calibrated probabilities. "
    if findings.held_out is None:
        words += "No bag was held out."
    reach, names = largest_share(panels), findings.class_names
    figures = [
        (f"Predicted against given shares of {name}", proportions_figure({name: pair}, names, reach=reach))
        for name, pair in panels.items()
    ]
    return Section("Proportions of the bags", [Text(words), Drawings(figures)])


def _examples(findings: Findings, predicted: InBags) -> Section:
    most, least, trust = most_and_least_trusted(findings, predicted)
    taken, there = len(predicted.bags), predicted.num_there
    number = "the" if taken == there else f"{taken:,} of {there:,}"
    words = (
        f"Training instances of {number} training bags, unaltered, with the class that the classifier predicts. "
        f"Trust is {trust}."
    )
    blocks: list[Block] = [Text(words)]
    for caption, examples in (("The most trusted", most), ("The least trusted", least)):
        if findings.data.is_images:
            pictures = [_picture(findings, example) for example in examples]
            blocks.append(Gallery(f"{caption}:", pictures))
        else:
            blocks.append(_rows(findings, predicted, examples, caption))
    return Section("Examples", blocks)


def _picture(findings: Findings, example: Example) -> Picture:
    lines = [example.label, f"trust {example.trust:.3f}"]
    if example.true is not None:
        lines.append(f"true: {example.true}")
    is_wrong = None if example.true is None else example.true != example.label
    return Picture(picture_uri(findings.data.train.inputs[example.row]), lines, is_wrong)


def _rows(findings: Findings, predicted: InBags, examples: Sequence[Example], caption: str) -> Table:
    data = findings.data
    inputs = data.train.inputs[[example.row for example in examples]].numpy()
    values = column_values(data.encoder, inputs, telling_columns(data, predicted))
    has_labels = any(example.true is not None for example in examples)
    head = ["row", "bag", "predicted", "trust", *["true"] * has_labels, *values]
    rows = []
    for example, *cells in zip(examples, *values.values(), strict=True):
        about = [f"{example.row}", example.bag, example.label, f"{example.trust:.3f}"]
        rows.append([*about, *[example.true or "-"] * has_labels, *cells])
    return Table(head, rows, f"{caption}, with the columns that differ most between the classes")


def _origin(run: Run) -> Section:
    about = read_json(run.env_file)
    facts = [("run", str(run.path)), ("command", shlex.join(about["command"])), ("started", about["started"])]
    facts += [(name, str(about[name])) for name in ("torchllp", "torch", "python", "platform", "device", "threads")]
    return Section("How it was made", [Facts([*facts, ("cores", str(about["cores"]))])])
