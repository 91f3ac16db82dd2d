"""What the documentation says is run."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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
            assert block in (ROOT / "examples" / "digits.py").read_text()  # which is run below
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


@pytest.mark.parametrize(("name", "accuracy"), [("digits", 97.0), ("own_bags", 95.0)], ids=["digits.py", "own_bags.py"])
def test_examples_run(name: str, accuracy: float, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert result.returncode == 0, result.stderr
    shares = re.findall(r"([\d.]+)%", result.stdout)
    assert float(shares[-1]) >= accuracy


def test_no_placeholder_was_left() -> None:
    for page in PAGES:
        assert not re.search(r"^[A-Z]+_[A-Z_]+$", page.read_text(), re.MULTILINE), page


def test_every_method_has_a_page() -> None:
    from torchllp import list_methods

    assert {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} == set(list_methods())
