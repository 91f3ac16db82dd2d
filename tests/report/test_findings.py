"""What is predicted for a report, and what is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchllp import Run
from torchllp.config import Config
from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.job import start
from torchllp.report import findings
from torchllp.report.comparison import compare, differing_settings, names_of_runs
from torchllp.report.examples import column_values
from torchllp.report.tables import as_latex, as_markdown, table_figure, table_of

LINEAR = {"model": {"name": "linear"}, "method": {"name": "dllp"}, "recipe": {"epochs": 1}, "compute": {"threads": 1}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return start(Config.layered(LINEAR), tmp_path_factory.mktemp("findings") / "run")


def test_large_data_are_predicted_in_part(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_TESTED", 100), ("MOST_IN_TRAINING_BAGS", 100), ("MOST_IN_HELD_OUT_BAGS", 15)):
        monkeypatch.setattr(findings, name, most)
    found = findings.Findings(run)
    tested, bags = found.tested, found.in_training_bags
    assert tested is not None and len(tested.labels) == len(tested.log_p) == 100 and tested.num_there == 360
    assert bags is not None and len(bags.bags) == 6 and len(bags.rows) == 96 and bags.num_there == 80
    assert found.in_held_out_bags is None  # no bag of 16 is within 15
    assert [*found.proportions] == ["training bags"]
    again = findings.Findings(run).in_training_bags
    assert again is not None and (again.rows == bags.rows).all()


def test_shares_are_means_of_calibrated_probabilities(run: Run) -> None:
    found = findings.Findings(run)
    given, predicted = found.proportions["held-out bags"]
    held_out = found.held_out
    assert held_out is not None
    np.testing.assert_array_equal(given, held_out.proportions)
    for bag in range(len(held_out)):
        rows, _ = held_out.members_of(np.array([bag]))
        p = found.predictor.log_p(found.data.train.inputs[rows]).exp().numpy()
        np.testing.assert_allclose(predicted[bag], p.mean(0), atol=1e-6)
    assert found.predictor.calibration.temperature != 1


def test_encoded_rows_are_shown_as_they_were() -> None:
    columns = {"width": [1.0, 3.0, 8.0], "colour": ["red", "blue", None], "list": [[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]]}
    table = Table.of(columns)
    encoder = TableEncoder.fit(table, ["width", "colour", "list"])
    values = column_values(encoder, encoder.transform(table).numpy(), range(4))
    assert {name: [*map(float, values[name])] for name in ("width", "list[0]", "list[1]")} == {
        "width": [1, 3, 8],
        "list[0]": [1, 3, 4],
        "list[1]": [2, 5, 4],
    }
    assert values["colour"] == ["red", "blue", "(missing)"]


def test_runs_that_differ_in_more_than_the_seed_are_told_apart(run: Run, tmp_path: Path) -> None:
    layers: dict[str, dict[str, Any]] = {
        "seed": {"seed": 1},
        "other": {"method": {"name": "llp-dc", "options": {"threshold": 0.5}}},
        "longer": {"recipe": {"epochs": 2}},
        "larger": {"data": {"bag_size": 64}},
    }
    runs = [run, *(start(Config.layered(LINEAR, layer), tmp_path / name) for name, layer in layers.items())]
    groups = compare(runs)
    assert {(group.method, group.bag_size): [one.path.name for one in group.runs] for group in groups} == {
        ("dllp, epochs 1", "16"): ["run", "seed"],
        ("llp-dc (threshold=0.5)", "16"): ["other"],
        ("dllp, epochs 2", "16"): ["longer"],
        ("dllp", "64"): ["larger"],
    }
    assert differing_settings(groups) == ["epochs"]
    names = names_of_runs(runs)
    assert names[run] == "dllp, epochs 1, bags of 16, seed 0" and len({*names.values()}) == 5
    groups[0].summaries[0]["dataset"] = "50 % of | a_b"
    assert r"50 \% of | a\_b" in as_latex(groups) and "50 % of | a_b" in as_markdown(groups)
    drawn = {text.get_text() for text in table_figure(groups).axes[0].texts}
    assert {"50 % of | a_b: accuracy on test instances, %", "llp-dc (threshold=0.5)"} <= drawn


def test_the_same_training_twice_counts_once(run: Run, tmp_path: Path) -> None:
    layers = {"again": {}, "other": {"seed": 1}}
    runs = [run, *(start(Config.layered(LINEAR, layer), tmp_path / name) for name, layer in layers.items())]
    (group,) = compare(runs)
    expected = [run.summary["accuracy"]["last"], runs[2].summary["accuracy"]["last"]]
    assert group.runs == runs and group.values("last") == expected
    assert table_of([group])[1][0][-1] == "2"
    assert len({*names_of_runs(runs).values()}) == 3


def test_runs_that_began_from_runs_of_another_kind_are_told_apart(run: Run, tmp_path: Path) -> None:
    """Of another seed they are of one kind."""
    sources = {"again": {"seed": 1}, "longer": {"recipe": {"epochs": 2}}}
    for name, layer in sources.items():
        start(Config.layered(LINEAR, layer), tmp_path / name)
    places = [run.path, *(tmp_path / name for name in sources)]
    runs = [start(Config.layered(LINEAR, {"init_from": str(path)}), tmp_path / f"from-{path.name}") for path in places]
    groups = {group.method: [one.path.name for one in group.runs] for group in compare(runs)}
    assert [*groups.values()] == [["from-run", "from-again"], ["from-longer"]]
    assert [*groups] == [f"dllp, init_from {run.path}", f"dllp, init_from {tmp_path / 'longer'}"]


def test_without_weights_there_is_no_trust_to_tell(tmp_path: Path) -> None:
    words = {}
    for name, options in {"ahil": {}, "none": {"weigh_bags": False, "weigh_instances": False}}.items():
        layer = {"method": {"name": "ahil", "options": options}}
        found = findings.Findings(start(Config.layered(LINEAR, layer), tmp_path / name))
        assert found.in_training_bags is not None
        trust, words[name] = found.trust(found.in_training_bags)
        assert trust.std() > 0
    assert words["ahil"].startswith("the dual entropy weight") and words["none"].startswith("the largest predicted")
