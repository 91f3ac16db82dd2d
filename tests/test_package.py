"""The package as users get it: what it imports, what it declares, and the wheel in an environment of its own."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import torchllp

ROOT = Path(__file__).parents[1]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, torchllp; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'sklearn', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_public_name_is_there() -> None:
    for name in torchllp.__all__:
        assert getattr(torchllp, name) is not None
        assert name in dir(torchllp)
    assert re.fullmatch(r"\d+\.\d+\.\d+", torchllp.__version__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = torchllp.nope


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [items for extra, items in project["optional-dependencies"].items() if extra != "dev"]
    declared = {re.split("[<>=]", item)[0] for item in sum(extras, project["dependencies"])}
    distributions = packages_distributions()
    used: dict[str, Path] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0]: path for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used[node.module.split(".")[0]] = path
    for module, path in used.items():
        if module not in sys.stdlib_module_names | {"torchllp"}:
            names = {name.lower().replace("_", "-") for name in distributions[module]}
            assert declared & names, f"{path} imports {module}, which is not declared"


def test_the_wheel_trains_away_from_the_source(tmp_path: Path) -> None:
    def run(*command: str | Path) -> str:
        result = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert result.returncode == 0, result.stderr
        return result.stdout

    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("torchllp-*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", wheel)
    # What it depends on is 5 GB: borrowed from the environment of the tests, where torchllp itself is only a link.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))

    where = run(python, "-c", "import torchllp; print(torchllp.__file__)").strip()
    assert Path(where).is_relative_to(tmp_path / "env")
    llp = tmp_path / "env" / "bin" / "llp"
    output = run(llp, "train", "--epochs", "1", "--run", "first")
    assert "Accuracy on the test instances of digits" in output
    assert (tmp_path / "first" / "model.safetensors").exists()
    assert run(llp, "predict", "first").count("\n") == 361
