"""What the tests of the command share."""

import pytest

from commands import llp
from own_tables import BAGS, OURS, RECIPE, ROWS, Work, write


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A folder with tables, and a run that was trained on them."""
    path = tmp_path_factory.mktemp("work")
    write(path / "rows.csv", ROWS)
    write(path / "bags.csv", BAGS)
    flags = ["--instances", "rows.csv", "--bags", "bags.csv", *OURS, "--epochs", "4", *RECIPE]
    result = llp("train", *flags, "--run", "run", cwd=path)
    assert result.returncode == 0, result.stderr
    return Work(path, result)
