import csv
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import mean, stdev

import pytest

from commands import here
from torchllp import Run

KINDS = {
    "curves": ["epoch", "KL divergence", "Accuracy on single test instances", "chosen epoch: "],
    "confusion": ["predicted class", "true class"],
    "reliability": ["confidence (largest probability)", "right predictions", "Calibrated on held-out bags"],
    "proportions": ["given share", "predicted share", "80 training bags", "9 held-out bags"],
    "tsne": ["ahil", "silhouette "],
    "table": ["digits: accuracy on test instances, %", "oracle epoch", "ahil"],
}


def texts_of(path: Path) -> list[str]:
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_figure_whose_text_is_text(digit_runs: Path, kind: str, tmp_path: Path) -> None:
    few = ["--num-instances", "60"] if kind == "tsne" else []
    result = here("plot", kind, digit_runs / "ahil", "-o", tmp_path / "figure.svg", *few)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{kind}: {tmp_path / 'figure.svg'}\n", "")
    texts = texts_of(tmp_path / "figure.svg")
    for words in KINDS[kind]:
        assert any(words in text for text in texts), (words, texts)
    assert not any(str(digit_runs) in text for text in texts)


def test_bags_that_are_all_too_large(digit_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_IN_TRAINING_BAGS", "MOST_IN_HELD_OUT_BAGS"):
        monkeypatch.setattr(f"torchllp.report.findings.{name}", 5)
    result = here("plot", "proportions", digit_runs / "ahil", "-o", tmp_path / "figure.svg")
    assert result.returncode == 1 and "every bag is too large" in result.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("suffix", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_other_files(digit_runs: Path, suffix: str, magic: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"figure.{suffix}"
    assert here("plot", "curves", digit_runs / "ahil", "-o", file).returncode == 0
    assert file.read_bytes().startswith(magic)


def test_evaluate_draws_the_same_files(digit_runs: Path, tmp_path: Path) -> None:
    result = here("evaluate", digit_runs / "ahil", "--figure", tmp_path / "confusion.svg")
    assert result.returncode == 0, result.stderr
    assert "predicted class" in texts_of(tmp_path / "confusion.svg")


def test_several_runs_are_overlaid(digit_runs: Path, tmp_path: Path) -> None:
    assert here("plot", "curves", digit_runs, "-o", tmp_path / "curves.svg").returncode == 0
    texts = texts_of(tmp_path / "curves.svg")
    assert [texts.count(name) for name in ("ahil", "dllp")] == [2, 2]  # in both panels, two seeds by one name
    assert "Held-out bags: error of the proportions" in texts


def test_a_panel_a_run(digit_runs: Path, tmp_path: Path) -> None:
    flags = ["--num-instances", "40", "-o", tmp_path / "tsne.svg"]
    assert here("plot", "tsne", digit_runs / "ahil", digit_runs / "ahil-1", *flags).returncode == 0
    assert {"ahil, seed 0", "ahil, seed 1"} <= {*texts_of(tmp_path / "tsne.svg")}


def test_a_table_as_text(digit_runs: Path, tmp_path: Path) -> None:
    files = {suffix: tmp_path / f"table.{suffix}" for suffix in ("csv", "md", "tex")}
    for file in files.values():
        assert here("plot", "table", digit_runs, "-o", file).returncode == 0
    rows = {row["method"]: row for row in csv.DictReader(files["csv"].open())}
    values = [Run.open(digit_runs / name).summary["accuracy"]["chosen"] for name in ("ahil", "ahil-1")]
    assert float(rows["ahil"]["chosen_mean"]) == pytest.approx(mean(values))
    assert float(rows["ahil"]["chosen_deviation"]) == pytest.approx(stdev(values))
    assert rows["dllp"]["chosen_deviation"] == "" and rows["ahil"]["chosen_n"] == rows["ahil"]["num_seeds"] == "2"
    percent = [100 * value for value in values]
    assert f"| {mean(percent):.2f} ± {stdev(percent):.2f} |" in files["md"].read_text()
    assert rf"& {mean(percent):.2f} $\pm$ {stdev(percent):.2f} &" in files["tex"].read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["curvs", "{runs}/ahil", "-o", "a.svg"], 2, "Did you mean"),
        (["curves", "{runs}/ahil", "-o", "a.gif"], 1, "a.gif: pictures are written to .png, .svg or .pdf files"),
        (["curves", "{runs}/ahil", "-o", "a.csv"], 1, "a.csv: pictures are written to"),
        (["curves", "{runs}/ahil", "-o", "no/a.svg"], 1, "no/a.svg: there is no such directory"),
        (["curves", "{runs}/ahil"], 2, "--output"),
        (["curves", "-o", "a.svg"], 2, "RUNS"),
        (["table", "nope", "-o", "a.md"], 1, "nope: neither a run nor a directory with finished runs"),
        (["confusion", "{runs}", "-o", "a.svg"], 2, "a figure of confusion is of one run, and these are 3"),
        (["table", "{runs}", "-o", "a.md", "--num-instances", "9"], 2, "--num-instances is for tsne"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(
    digit_runs: Path, arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    result = here("plot", *(argument.format(runs=digit_runs) for argument in arguments), cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_runs_without_labels(tmp_path: Path) -> None:
    """Few bags, none held out, no labels: there is a table, and there are no curves to compare."""
    rows = [f"{number % 4},{number % 7},{number % 3}" for number in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["bag,x,y", *rows]))
    (tmp_path / "bags.csv").write_text("bag,a,b\n" + "".join(f"{bag},{bag + 3},{7 - bag}\n" for bag in range(4)))
    for seed in ("0", "1"):
        said = ["--instances", "rows.csv", "--bags", "bags.csv", "--epochs", "1", "--seed", seed, "--run", f"run{seed}"]
        result = here("train", *said, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    result = here("plot", "table", "run0", "run1", "-o", "table.svg", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "ahil" in texts_of(tmp_path / "table.svg")
    result = here("plot", "curves", "run0", "run1", "-o", "curves.svg", cwd=tmp_path)
    assert result.returncode == 1
    assert "neither held-out bags nor labels" in result.stderr and len(result.stderr.splitlines()) == 1
