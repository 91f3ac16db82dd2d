"""What the documentation says is run."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import llp

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def ids(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
        if page.name == "README.md":
            examples = (script.read_text() for script in (ROOT / "examples").glob("*.py"))  # which are run below
            assert any(block in example for example in examples)
            continue
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        assert runpy.run_path(str(script))


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_commands_are_understood(page: Path) -> None:
    """Every flag of every `llp` command that a page shows exists."""
    from torchllp.cli import app

    for line in re.findall(r"^    (llp [a-z].*)$", page.read_text(), re.MULTILINE):
        command, bound, _ = app.parse_args(shlex.split(line, comments=True)[1:], exit_on_error=False, print_error=False)
        assert callable(command) and bound is not None


@pytest.mark.parametrize(("name", "accuracy"), [("digits", 97.0), ("own_bags", 95.0), ("dataframe", 92.0)])
def test_examples_run(name: str, accuracy: float, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert result.returncode == 0, result.stderr
    shares = re.findall(r"([\d.]+)%", result.stdout)
    assert float(shares[-1]) >= accuracy


def test_the_story_of_your_own_data_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first story of the page, by copy and paste."""
    story = (ROOT / "docs" / "own-data.md").read_text().partition("## The table of the instances")[0]
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", story, re.DOTALL)
    (tmp_path / "story.py").write_text(block)
    runpy.run_path("story.py")
    shown = ""
    for line in re.findall(r"^    llp ([a-z].*)$", story, re.MULTILINE):
        threads = ["--threads", "1"] if line.startswith("train") else []
        result = llp(*shlex.split(line), *threads, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        shown += result.stdout
    accuracy = re.search(r"^ahil +3 to 16 +([\d.]+) % +([\d.]+) %", shown, re.MULTILINE)
    assert accuracy is not None and min(float(accuracy[1]), float(accuracy[2])) > 88
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 170
    assert len((tmp_path / "samples-classified-by-bag.csv").read_text().splitlines()) == 41


def run_with_data(name: str, folder: Path) -> str:
    if "TORCHLLP_DATA" not in os.environ:
        pytest.skip("TORCHLLP_DATA does not say where data is")
    script = ROOT / "examples" / f"{name}.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=folder, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_bank_campaign_runs(tmp_path: Path) -> None:
    shown = run_with_data("bank_campaign", tmp_path)
    found = re.search(r"later customers: ([\d.]+)\nto call .* reaches ([\d.]+)%", shown)
    assert found is not None and float(found[1]) > 0.7 and float(found[2]) > 30


def test_the_election_is_read_better_than_by_regression(tmp_path: Path) -> None:
    found = re.search(r"^mean error +([\d.]+)% +([\d.]+)%$", run_with_data("election", tmp_path), re.MULTILINE)
    assert found is not None and float(found[1]) < 10 < float(found[2])


def test_the_noise_of_advertising_is_seen_through(tmp_path: Path) -> None:
    shown = run_with_data("ads", tmp_path)
    _, at_their_word, as_they_are = re.findall(r"counts.* ([\d.]+) +([\d.]+)$", shown, re.MULTILINE)
    assert float(as_they_are[0]) < float(at_their_word[0]) and float(as_they_are[1]) > 0.75


@pytest.mark.parametrize("name", ["bank_campaign", "election", "ads"])
def test_stories_say_what_they_lack(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    command = [sys.executable, script, "--data-dir", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert result.returncode == 0 and result.stdout.startswith("skipped: there is no ")
    assert not list(tmp_path.iterdir())


def test_no_placeholder_was_left() -> None:
    for page in PAGES:
        assert not re.search(r"^[A-Z]+_[A-Z_]+$", page.read_text(), re.MULTILINE), page


def test_every_method_has_a_page() -> None:
    from torchllp import list_methods

    assert {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} == set(list_methods())


RESULTS = ROOT / "benchmarks" / "results"
OTHERS = ("overlap", "from_dllp", "few_bags", "few_bags_wide")
TABLES = [*sorted(RESULTS.rglob("table.md")), *(RESULTS / f"{name}.md" for name in OTHERS)]


@pytest.mark.parametrize("table", TABLES, ids=ids(TABLES))
def test_the_results_are_those_that_were_measured(table: Path) -> None:
    """Every line of a table of results stands on a page, beside the command of its suite."""
    pages = "".join((ROOT / page).read_text() for page in ("README.md", "docs/results.md"))
    lines = [line for line in table.read_text().splitlines() if line.startswith("|")]
    assert len(lines) > 2
    assert "\n".join(lines) in pages
    for command in re.findall(r"command: (`.*`)", table.read_text()):
        assert command in pages
