from pathlib import Path

import pytest
from matplotlib.figure import Figure

from torchllp.report import curves


def test_a_method_of_stages_has_the_curves_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what its first epochs do not have."""
    drawn: list[Figure] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, path: drawn.append(figure))
    first = [{"epoch": epoch, "train/loss": 5.0, "held_out/bag_kl": 0.1} for epoch in (1, 2)]
    then = [row | {"epoch": row["epoch"] + 2, "train/bag_kl": 0.05, "train/entropy": 0.9} for row in first]
    curves.save_curves(tmp_path / "curves.png", {"run": first + then}, title="two stages", tests_on="rows", chosen=None)
    lines = {line.get_label(): list(line.get_xdata()) for axes in drawn[0].axes for line in axes.get_lines()}
    assert lines == {"training bags": [3, 4], "held-out bags": [1, 2, 3, 4], "normalised entropy": [3, 4]}
