import base64
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from PIL import Image

from commands import here
from own_tables import BAGS, CLASSES, RECIPE, ROWS, without, write
from pages import Page
from reference.bag_terms import dual_entropy_weights, rows_of_bags, softmax
from reference.methods import likeliest
from torchllp import Run, load_dataset
from torchllp.bags import Bags
from torchllp.experiments.generated import write_generated
from torchllp.predictor import Predictor
from torchllp.supervision import load_supervision

EVERYTHING = [
    "Summary",
    "Training",
    "Mistakes",
    "Reliability",
    "Proportions of the bags",
    "Examples",
    "How it was made",
]
NASTY = "<b>&$x$"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rows of our own, one class of which has a name that HTML, SVG and matplotlib would understand."""
    path = tmp_path_factory.mktemp("nasty")
    names = {CLASSES[0]: NASTY, CLASSES[1]: "bad"}
    write(path / "rows.csv", ROWS | {"y": np.array([names[y] for y in ROWS["y"]])})
    write(path / "bags.csv", {names.get(column, column): values for column, values in BAGS.items()})
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", "--id-column", "id", "--label-column", "y"]
    result = here("train", *flags, "--epochs", "2", *RECIPE, "--run", "run", cwd=path)
    assert result.returncode == 0, result.stderr
    return path


def test_a_page_has_every_section_and_needs_no_network(digit_runs: Path) -> None:
    page = Page(digit_runs / "ahil" / "report.html")
    assert page.titles == EVERYTHING
    assert page.references and all(
        reference.startswith(("data:image/png;base64,", "#")) for reference in page.references
    )
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert not re.search(r"@import|url\((?!#)", page.source)
    assert page.source.count("<svg") == 9  # 4 curves, the matrix, reliability and proportions twice each
    assert len(page.source) < 1_000_000


def test_the_numbers_of_a_page_are_those_of_the_summary(digit_runs: Path) -> None:
    page, summary = Page(digit_runs / "ahil" / "report.html"), Run.open(digit_runs / "ahil").summary
    (epochs,) = page.tables["Summary"]
    for row, name in zip(epochs[1:], ("last", "chosen", "oracle"), strict=True):
        metrics = summary["metrics"][name]
        assert row[0].startswith(name)
        assert row[1:] == [
            str(summary["epoch"][name]),
            f"{100 * summary['accuracy'][name]:.2f} %",
            f"{metrics['held_out/bag_kl']:.4f}",
            f"{100 * metrics['held_out/bag_mae']:.2f} %",
            f"{metrics['held_out/count_score']:.4f}",
        ]
    assert "which nobody has in practice" in epochs[3][0]
    shown = page.text["Summary"]
    assert f"cost {100 * summary['oracle_gap']:.2f} points" in shown
    assert "89 of 16 instances, 9 held out" in shown and f"{summary['steps']:,} steps" in shown
    assert f"{100 * summary['accuracy']['chosen']:.2f}% of the 360 test instances" in page.text["Mistakes"]
    about = json.loads((digit_runs / "ahil" / "env.json").read_text())
    assert about["torch"] in page.text["How it was made"] and about["platform"] in page.text["How it was made"]


def test_recall_and_precision_are_those_of_the_predictions(digit_runs: Path) -> None:
    (table,) = Page(digit_runs / "ahil" / "report.html").tables["Mistakes"]
    test = load_dataset("digits").test
    assert test is not None and test.labels is not None
    predicted = Predictor(Run.open(digit_runs / "ahil")).log_p(test.inputs).argmax(1).tolist()
    pairs = list(zip(test.labels.tolist(), predicted, strict=True))
    for c, row in enumerate(table[1:]):
        true, called = [p for y, p in pairs if y == c], [y for y, p in pairs if p == c]
        assert row[:4] == [str(c), str(len(true)), str(len(called)), f"{100 * true.count(c) / len(true):.1f} %"]
        assert row[4] == (f"{100 * called.count(c) / len(called):.1f} %" if called else "-")


def test_examples_are_the_most_and_the_least_trusted(digit_runs: Path) -> None:
    """By the formulas of the paper as plain loops, and by the pixels."""
    run = Run.open(digit_runs / "ahil")
    data, _, bags, _ = load_supervision(run.config, Bags.load(run.bags_file))
    members, index = bags.members_of(np.arange(len(bags)))
    log_p = Predictor(run).uncalibrated_log_p(data.train.inputs[members])
    P, in_bag = softmax(log_p.double()), rows_of_bags(torch.from_numpy(index), len(bags))
    labels, p = likeliest(P), torch.tensor(bags.proportions)
    weights = dual_entropy_weights(P, labels, in_bag, p, [True] * len(bags), beta_bag=1.0, beta_instance=1.0)
    pictures = Page(run.path / "report.html").pictures["Examples"]
    assert len(pictures) == 24
    trusts = sorted(weights.tolist())
    shown = [float(lines[1].removeprefix("trust ")) for _, lines in pictures]
    assert shown[:12] == pytest.approx(trusts[::-1][:12], abs=6e-4)
    assert shown[12:] == pytest.approx(trusts[:12], abs=6e-4)
    assert data.train.labels is not None
    found = {data.train.inputs[row, 0].numpy().tobytes(): place for place, row in enumerate(members)}
    for uri, (label, trust, true) in pictures:
        with Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))) as picture:
            place = found[np.asarray(picture).tobytes()]
        assert label == str(labels[place]) and true == f"true: {data.train.labels[members[place]]}"
        assert float(trust.removeprefix("trust ")) == pytest.approx(weights[place].item(), abs=6e-4)


def test_a_method_without_trust_says_what_is_shown_instead(digit_runs: Path) -> None:
    page = Page(digit_runs / "ahil-dllp" / "report.html")
    assert "Trust is the largest predicted probability" in page.text["Examples"]
    assert "Trust is the dual entropy weight" in Page(digit_runs / "ahil" / "report.html").text["Examples"]
    assert "mean trust in pseudo-labels" not in page.text["Training"]


def test_names_from_data_are_text_everywhere(nasty: Path) -> None:
    page = Page(nasty / "run" / "report.html")
    assert page.titles == EVERYTHING
    assert "b" not in page.tags and NASTY not in page.source
    assert page.tables["Mistakes"][0][1][0] in (NASTY, "bad")
    for title in ("Mistakes", "Proportions of the bags"):
        assert NASTY in page.text[title]  # of the SVG: neither markup nor mathematics
    head, *rows = page.tables["Examples"][0]
    assert head == ["row", "bag", "predicted", "trust", "true", "x", "z", "colour"]
    for row in rows:
        number = int(row[0])
        values = [ROWS["bag"][number], f"{ROWS['x'][number]:.4g}", f"{ROWS['z'][number]:.4g}", ROWS["colour"][number]]
        assert [row[1], *map(float, row[5:7])] == pytest.approx([values[0], *map(float, values[1:3])], abs=1e-3)
        assert row[7] == values[3] and row[4] == (NASTY if ROWS["y"][number] == CLASSES[0] else "bad")


def test_without_labels_and_held_out_bags(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", without(ROWS, "y"))
    write(tmp_path / "bags.csv", BAGS)
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", "--id-column", "id", "--held-out", "0"]
    result = here("train", *flags, "--epochs", "2", *RECIPE, "--run", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    page = Page(tmp_path / "run" / "report.html")
    assert page.titles == [title for title in EVERYTHING if title not in ("Mistakes", "Reliability")]
    assert "No test instance has a label" in page.text["Summary"] and "No bag was held out" in page.text["Summary"]
    assert [row[0] for row in page.tables["Summary"][0]] == ["epoch", "last"]
    assert "true" not in page.tables["Examples"][0][0]
    assert here("report", "run", "-o", "again.html", cwd=tmp_path).stdout == "report: again.html\n"
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    (tmp_path / "rows.csv").unlink()
    gone = here("report", "run", cwd=tmp_path)
    assert gone.returncode == 1 and gone.stderr == f"llp: {tmp_path / 'rows.csv'}: there is no such file\n"


def test_several_runs_are_compared(digit_runs: Path, tmp_path: Path) -> None:
    result = here("report", digit_runs)
    assert result.returncode == 0 and result.stdout == f"report: {digit_runs / 'report.html'}\n"
    page = Page(digit_runs / "report.html")
    assert page.titles == ["digits", "Each run"]
    head, ahil, dllp = page.tables["digits"][0]
    assert head == ["method", "bag size", "last epoch", "chosen epoch", "oracle epoch", "n"]
    summaries = [Run.open(digit_runs / name).summary["accuracy"] for name in ("ahil", "ahil-1")]
    values = [[100 * accuracy[epoch] for accuracy in summaries] for epoch in ("last", "chosen", "oracle")]
    assert ahil == ["ahil", "16", *(f"{mean(both):.2f} ± {stdev(both):.2f}" for both in values), "2"]
    assert dllp[0] == "dllp" and dllp[-1] == "1" and "±" not in "".join(dllp)
    assert {row[0] for row in page.tables["Each run"][0][1:]} == {
        str(digit_runs / n) for n in ("ahil", "ahil-1", "ahil-dllp")
    }
    assert page.source.count("<svg") == 2 and "which nobody has in practice" in page.text["digits"]
    legend = re.findall(r'<li><span style="background: (#\w{6})"></span>(\w+)</li>', page.source)
    assert [name for _, name in legend] == ["ahil", "dllp"]
    assert all(f"stroke: {colour}" in page.source for colour, _ in legend)
    two = here("report", digit_runs / "ahil", digit_runs / "ahil-dllp", cwd=tmp_path)
    assert two.stdout == "report: report.html\n" and Page(tmp_path / "report.html").titles == ["digits", "Each run"]


def test_a_table_and_images_side_by_side(digit_runs: Path, nasty: Path, tmp_path: Path) -> None:
    result = here("report", digit_runs / "ahil", nasty / "run", "-o", tmp_path / "both.html")
    assert result.returncode == 0, result.stderr
    assert Page(tmp_path / "both.html").titles == ["digits", "rows", "Each run"]


def test_a_pre_trained_run_has_a_short_page(tmp_path: Path) -> None:
    flags = ["--epochs", "1", "--steps-per-epoch", "2", "--model", "small-cnn", "--threads", "1", "--run", "run"]
    assert here("pretrain", *flags, cwd=tmp_path).returncode == 0
    assert here("report", "run", cwd=tmp_path).stdout == "report: run/report.html\n"
    page = Page(tmp_path / "run" / "report.html")
    assert page.titles == ["Summary", "Training", "How it was made"]
    assert "no classes" in page.text["Summary"] and page.source.count("<svg") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 1, "nope: neither a run nor a directory with finished runs"),
        (["{runs}/ahil", "-o", "page.pdf"], 1, "page.pdf: pages are written to .html files"),
        (["{runs}/ahil", "-o", "no/page.html"], 1, "no/page.html: there is no such directory"),
        (["{runs}/begun"], 1, "begun: the run is not finished: continue it by llp train --resume"),
        ([], 2, "RUNS"),
    ],
)
def test_misuse_is_one_line(digit_runs: Path, arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = here("report", *(argument.format(runs=digit_runs) for argument in arguments), cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_page_that_fails_is_said_and_leaves_the_run_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr("torchllp.report.write.write_report", fail)
    flags = ["--epochs", "1", "--bag-size", "64", "--threads", "1", "--run", "run"]
    result = here("train", *flags, cwd=tmp_path)
    assert result.returncode == 0 and Run.open(tmp_path / "run").is_finished
    assert result.stdout.splitlines()[-1] == (
        "the run is finished, but its report was not written: RuntimeError: no ink (try again by llp report run)"
    )
    monkeypatch.undo()
    again = here("train", "--resume", "run", cwd=tmp_path)
    assert again.returncode == 0 and again.stdout.endswith("report: run/report.html\n")


WIDE_SUITE = """
from torchllp.experiments.paper_weights import draw
from torchllp.experiments.suite import Suite

def cells(scale):
    yield scale.cell("digits", "ahil", 64, 0, recipe={"epochs": 1}).over({"model": {"name": "linear"}})

SUITE = Suite("mine", "A figure of two panels", cells, draw)
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to look at pages with")
def test_a_phone_has_nothing_to_scroll_sideways(digit_runs: Path, nasty: Path, tmp_path: Path) -> None:
    assert here("report", digit_runs / "ahil", nasty / "run", "-o", tmp_path / "both.html").returncode == 0
    shutil.copy(digit_runs / "ahil" / "report.html", tmp_path / "images.html")
    shutil.copy(nasty / "run" / "report.html", tmp_path / "table.html")
    (tmp_path / "mine.py").write_text(WIDE_SUITE)
    assert here("suite", "mine.py", "--scale", "quick", cwd=tmp_path).returncode == 0
    shutil.copy(tmp_path / "runs" / "quick" / "mine" / "report.html", tmp_path / "suite.html")
    names = ["images", "table", "both", "suite"]
    frames = "".join(f'<iframe id="{name}" src="{name}.html" width="390" height="800"></iframe>' for name in names)
    script = "onload = () => { for (const f of document.querySelectorAll('iframe')) document.body.append("
    script += "` ${f.id}=${f.contentDocument.documentElement.scrollWidth};`) }"
    (tmp_path / "phone.html").write_text(f"<style>iframe {{ border: 0 }}</style>{frames}<script>{script}</script>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    command = [CHROMIUM, *flags, "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path / 'phone.html'}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    widths = {name: int(width) for name, width in re.findall(r" (\w+)=(\d+);", shown)}
    assert widths.keys() == {*names}
    assert max(widths.values()) <= 390, widths


def test_files_of_a_data_set_that_were_moved(tmp_path: Path) -> None:
    write_generated("fashion-mnist", tmp_path / "before")
    named = ["--dataset", "fashion-mnist", "--data-dir", "before", "--bag-size", "8"]
    assert here("train", *named, "--model", "linear", "--epochs", "1", "--run", "run", cwd=tmp_path).returncode == 0
    (tmp_path / "before").rename(tmp_path / "after")
    assert here("report", "run", cwd=tmp_path).returncode == 1
    for command in (["report", "run", "-o", "page.html"], ["plot", "confusion", "run", "-o", "confusion.svg"]):
        result = here(*command, "--data-dir", "after", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / command[-1]).is_file()
