"""What comes out of a suite: a row a run, means beside the published figures, figures that can be drawn."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from torchllp.engine.train import Observer
from torchllp.experiments.directory import SuiteDirectory
from torchllp.experiments.figures import accuracy_figure, curves_figure, grid_figure, tsne_figure
from torchllp.experiments.generated import write_generated
from torchllp.experiments.paper_weights import METRICS
from torchllp.experiments.results import Results
from torchllp.experiments.scales import SCALES
from torchllp.experiments.suite import Cell, Suite
from torchllp.experiments.worker import train
from torchllp.report.figure import save_figure

BETAS = (0.5, 5.0)


def cells() -> list[Cell]:
    """A grid of both betas, and on two bag sizes a method that has no pseudo-labels, by a linear model."""
    scale, short = SCALES["quick"], {"epochs": 2}
    made = [scale.pretrained("digits", 0).over({"recipe": {"epochs": 1}})]
    for seed in (0, 1):
        for bag_size in (16, 64):
            made.append(scale.cell("digits", "dllp", bag_size, seed, recipe=short))
            for one in BETAS if bag_size == 64 else ():
                for two in BETAS:
                    options = {"beta_bag": one, "beta_instance": two}
                    made.append(
                        scale.cell("digits", "ahil", bag_size, seed, row=f"{one} {two}", options=options, recipe=short)
                    )
    linear = {"model": {"name": "linear"}}
    return [made[0], *(cell.over(linear) for cell in made[1:])]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = SuiteDirectory(tmp_path_factory.mktemp("suite"))
    suite = Suite("mine", "Mine", lambda scale: [], table="table1")
    for cell in cells():
        train(cell, directory, Observer())
    unfinished = SCALES["quick"].cell("digits", "rot", 16, 0)
    return Results.of(suite, "quick", [*cells(), unfinished], directory)


def test_a_row_is_a_run(results: Results) -> None:
    folder = results.directory.results("mine")
    results.write(folder)
    rows = [*csv.DictReader((folder / "results.csv").open())]
    assert len(rows) == 12  # features for others are no result
    for row in rows:
        summary = json.loads((results.directory.path / row["run"] / "summary.json").read_text())
        assert float(row["last"]) == summary["accuracy"]["last"]
        assert float(row["oracle"]) == summary["accuracy"]["oracle"]
        assert row["chosen"] == ""  # nothing was held out
        assert int(row["steps"]) == summary["steps"] and float(row["cpu_seconds"]) >= 0
        assert summary["method"]["options"] == json.loads(row["options"])
    epochs = pq.read_table(folder / "epochs.parquet").to_pylist()
    assert len(epochs) == 2 * 12 + 1
    last = {row["run"]: row["test/accuracy"] for row in epochs if row["epoch"] == 2}
    assert last == {row["run"]: float(row["last"]) for row in rows}


def test_the_table_has_mean_deviation_and_number_of_seeds(results: Results) -> None:
    heads, lines = results.table()
    assert heads == ["data", "bag size", "row", "last epoch", "oracle epoch", "steps", "CPU seconds", "n"]
    assert len(lines) == 6
    values = [100 * row["last"] for row in results.rows if (row["row"], row["bag_size"]) == ("dllp", 64)]
    (line,) = [line for line in lines if line[1:3] == ["64", "dllp"]]
    assert line[3] == f"{mean(values):.2f} ± {stdev(values):.2f}" and line[-1] == "2"
    assert "| digits | 64 | dllp |" in results.markdown()


def test_how_it_was_made_is_said(results: Results) -> None:
    said = replace(results, command="llp suite mine.py", num_missing=0).markdown()
    about = json.loads(results.run(results.cells[0]).env_file.read_text())
    assert "- command: `llp suite mine.py`\n- seeds: 0, 1\n" in said
    assert f"- torch: {about['torch']}\n" in said and f"- platform: {about['platform']}\n" in said


def test_published_figures_stand_beside_with_the_difference(results: Results) -> None:
    """As if the digits were a data set of the paper."""
    as_cifar = [
        Cell(cell.name, cell.row, cell.config.model_copy(update={"data": cell.config.data.model_copy(update=CIFAR)}))
        for cell in results.cells
    ]
    heads, lines = Results(results.suite, "full", as_cifar, results.directory).table()
    (line,) = [line for line in lines if line[1:3] == ["16", "dllp"]]
    told = dict(zip(heads, line, strict=True))
    last = mean(100 * row["last"] for row in results.rows if (row["row"], row["bag_size"]) == ("dllp", 16))
    assert told["published"] == "91.59 ± 1.52"
    assert float(told["last - published"]) == pytest.approx(last - 91.59, abs=0.01)
    others = [dict(zip(heads, line, strict=True)) for line in lines if line[2] != "dllp"]
    assert {(line["published"], line["last - published"]) for line in others} == {("-", "-")}


def test_the_figure_has_what_is_published_and_the_supervised_row(results: Results) -> None:
    """As if the digits were a data set of the paper, and the first method of the table were trained on all labels."""
    as_cifar = [
        Cell(
            cell.name,
            "supervised" if cell.row == "0.5 0.5" else cell.row,
            cell.config.model_copy(update={"data": cell.config.data.model_copy(update=CIFAR)}),
        )
        for cell in results.cells
    ]
    shown = Results(results.suite, "full", as_cifar, results.directory)
    (axes,) = [axes for axes in accuracy_figure(shown).axes if axes.get_title() == "cifar10"]
    of_style = {style: [line for line in axes.lines if line.get_linestyle() == style] for style in (":", "--")}
    (group,) = [group for group in shown.groups if group.row == "supervised"]
    assert of_style[":"][0].get_ydata()[0] == pytest.approx(100 * mean(group.values("last")))
    assert of_style["--"][0].get_ydata().tolist() == [91.59, 79.76]


CIFAR = {"dataset": "cifar10"}


def test_runs_that_are_missing_are_counted(results: Results) -> None:
    assert results.num_missing == 1
    assert ("not finished", f"1 of {len(results.cells) + 1} runs") in results.facts()


def test_files_that_are_not_the_published_ones_are_told(tmp_path: Path) -> None:
    write_generated("svhn", tmp_path / "files")
    layer = {"data": {"data_dir": str(tmp_path / "files")}, "model": {"name": "linear"}}
    cell = SCALES["quick"].cell("svhn", "dllp", 8, 0, recipe={"epochs": 1}).over(layer)
    directory = SuiteDirectory(tmp_path / "runs")
    train(cell, directory, Observer())
    results = Results.of(Suite("mine", "Mine", lambda scale: []), "quick", [cell], directory)
    (told,) = [fact for name, fact in results.facts() if name == "svhn"]
    assert re.fullmatch(r"not the published files, \d+ training images", told)


def test_curves_of_runs_that_are_not_alike(results: Results, tmp_path: Path) -> None:
    """One is longer, and one has the metric in its later epochs alone."""
    longer = results.cells[1].over({"recipe": {"epochs": 3}})
    staged = SCALES["quick"].cell("digits", "contrast", 64, 1, recipe={"epochs": 4})
    directory = SuiteDirectory(tmp_path)
    for cell in (longer, staged):
        train(cell, directory, Observer())
    both = Results(results.suite, "quick", [longer, staged], directory)
    figure = curves_figure(both, {"train/entropy": "entropy"}, line=lambda cell: "$ all {")
    (line,) = figure.axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [1, 2, 3, 4]
    entropy = {
        cell.name: {row["epoch"]: row.get("train/entropy") for row in both.run(cell).metrics()} for cell in both.cells
    }
    assert [entropy[staged.name][epoch] is None for epoch in (1, 2, 3, 4)] == [True, True, False, False]
    expected = [entropy[longer.name][1], entropy[longer.name][2]]
    expected += [mean([entropy[longer.name][3], entropy[staged.name][3]]), entropy[staged.name][4]]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), expected)
    save_figure(figure, tmp_path / "curves.svg")


def test_figures(results: Results, tmp_path: Path) -> None:
    of_ahil = [cell for cell in results.cells if cell.config.method.name == "ahil"]
    ahil = Results(results.suite, "quick", of_ahil, results.directory)
    accuracy, curves, grid = accuracy_figure(results), curves_figure(ahil, METRICS), grid_figure(ahil)
    lines = {line.get_label(): line for line in curves.axes[0].get_lines()}
    expected = [[row["train/trust"] for row in ahil.run(c).metrics()] for c in ahil.cells if c.bag_size == 64]
    np.testing.assert_allclose(lines["bags of 64"].get_ydata(), np.mean(expected, axis=0))
    shown = {text.get_position(): float(text.get_text()) for text in grid.axes[0].texts}
    values = [100 * row["last"] for row in ahil.rows if (row["row"], row["bag_size"]) == ("0.5 5.0", 64)]
    assert shown[1, 0] == pytest.approx(mean(values), abs=0.05)  # beta of the instances is along x
    dllp = next(bars for bars in accuracy.axes[0].containers if bars.get_label() == "dllp").lines[0]
    means = [
        mean(100 * row["last"] for row in results.rows if (row["row"], row["bag_size"]) == ("dllp", size))
        for size in (16, 64)
    ]
    np.testing.assert_allclose(np.asarray(dllp.get_ydata(), float), means)
    part = Results(results.suite, "quick", [c for c in of_ahil if c.row.startswith("0.5")], results.directory)
    assert len(grid_figure(part).axes[0].texts) == 2  # of a grid that is not finished
    few = Results(results.suite, "quick", results.cells[1:3], results.directory)
    for number, figure in enumerate((accuracy, curves, grid, tsne_figure(few))):
        save_figure(figure, tmp_path / f"{number}.svg")
        ElementTree.parse(tmp_path / f"{number}.svg")
