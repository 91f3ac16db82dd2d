from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchllp import LLPError
from torchllp.report import confusion as report
from torchllp.report.figure import LONGEST_NAME


def drawn(monkeypatch: pytest.MonkeyPatch, counts: np.ndarray | torch.Tensor, names: list[str]) -> Axes:
    figures: list[Figure] = []
    monkeypatch.setattr(report, "save_figure", lambda figure, path: figures.append(figure))
    report.save_confusion(Path("unused.png"), counts, names, title="Test instances")
    figures[0].draw_without_rendering()
    return figures[0].axes[0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_classes", [1, 2, 10, 20, 21, 100])
def test_any_number_of_classes_and_long_names_make_a_picture(tmp_path: Path, num_classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 10_000, (num_classes, num_classes))
    names = [f"a class with a name that is far too long for its place {c}" for c in range(num_classes)]
    report.save_confusion(tmp_path / "confusion.png", counts, names, title="Test instances")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_rows_are_true_classes_and_colour_is_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = drawn(monkeypatch, torch.tensor([[3, 1], [0, 1200]]), ["good", "bad"])
    assert np.asarray(axes.images[0].get_array()).tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0, 0): "3",
        (1, 0): "1",
        (0, 1): "0",
        (1, 1): "1,200",
    }
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true class", "predicted class")
    assert axes.get_title() == "Test instances"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["good", "bad"]


def test_a_class_without_instances_has_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    image = drawn(monkeypatch, np.array([[3, 1], [0, 0]]), ["good", "bad"]).images[0]
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[False, False], [True, True]]


def test_many_classes_have_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not drawn(monkeypatch, np.eye(21, dtype=int), [str(c) for c in range(21)]).texts


def test_long_names_keep_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = drawn(monkeypatch, np.eye(2, dtype=int), [f"class {'x' * 40} {c}" for c in "ab"])
    first, second = [label.get_text() for label in axes.get_xticklabels()]
    assert first != second
    assert len(first) == LONGEST_NAME


@pytest.mark.parametrize("longest", range(1, LONGEST_NAME, 3))
def test_the_names_of_both_axes_are_inside_the_picture(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = drawn(monkeypatch, np.eye(10, dtype=int) * 1000, ["x" * longest, *"abcdefghi"])
    picture = axes.get_figure().bbox
    for label in (axes.yaxis.label, axes.xaxis.label, axes.title):
        box = label.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= picture.x1 and 0 <= box.y0 < box.y1 <= picture.y1


def test_names_and_counts_must_agree(tmp_path: Path) -> None:
    with pytest.raises(LLPError, match=r"^3 classes need counts of shape \(3, 3\), not \(2, 2\)$"):
        report.save_confusion(tmp_path / "confusion.png", np.eye(2), ["a", "b", "c"], title="")
