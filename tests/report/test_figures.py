"""What the figures of a report show, whatever the names are."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from torchllp import LLPError
from torchllp.metrics import calibration_error
from torchllp.report.confusion import confusion_figure
from torchllp.report.curves import curves_figure, overlay_panels, run_panels
from torchllp.report.figure import as_svg, check_figure, colours, save_figure
from torchllp.report.proportions import proportions_figure
from torchllp.report.reliability import Reliability, reliability_figure
from torchllp.report.tsne import Map, tsne_figure

NAMES = ["a$b$", "<script>alert(1)</script>", "\\$x & y$", "two\nlines\x01"]
SHARES = np.full((3, 4), 0.25)
ROWS = [{"epoch": epoch, "test/accuracy": 0.5, "held_out/bag_kl": 0.1, "train/loss": 1.0} for epoch in (1, 2)]
MAP = Map(np.zeros((4, 2)), np.arange(4), None)
FIGURES: dict[str, Callable[[], Figure]] = {
    "confusion": lambda: confusion_figure(np.eye(4, dtype=int), NAMES),
    "proportions": lambda: proportions_figure({"bags": (SHARES, SHARES)}, NAMES),
    "tsne": lambda: tsne_figure([(name, MAP) for name in NAMES], NAMES),
    "curves": lambda: curves_figure(overlay_panels([(name, ROWS) for name in NAMES], tests_on="rows")),
    "legend": lambda: curves_figure(
        overlay_panels([(f"{name} ", ROWS) for name in NAMES * 2 + ["x"]], tests_on="rows")
    ),
}


def texts_of(figure: Figure, path: Path) -> set[str]:
    save_figure(figure, path / "figure.svg")
    root = ET.parse(path / "figure.svg").getroot()
    return {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", FIGURES)
def test_names_are_shown_as_they_are(kind: str, tmp_path: Path) -> None:
    assert {*NAMES[:3], "two lines"} <= texts_of(FIGURES[kind](), tmp_path)
    assert "<script" not in as_svg(FIGURES[kind]())


def test_a_figure_in_a_page_is_an_element_and_always_the_same() -> None:
    svg = as_svg(FIGURES["confusion"]())
    assert svg.startswith("<svg") and "<metadata" not in svg and '<g id="' not in svg
    assert svg == as_svg(FIGURES["confusion"]())


@pytest.mark.parametrize("suffix", ["gif", "svgz", ""])
def test_other_files_are_no_pictures(suffix: str) -> None:
    with pytest.raises(LLPError, match=r"pictures are written to \.png, \.svg or \.pdf files$"):
        check_figure(Path(f"a.{suffix}"))


def test_colours_differ() -> None:
    for number in (1, 2, 10, 11, 20, 21, 100):
        assert len({*colours(number)}) == number


def test_reliability_is_that_of_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(300, 4, generator=generator)).log_softmax(1)
    labels = torch.randint(-1, 4, (300,), generator=generator)
    found = Reliability.of(log_p, labels)
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(15)]
    for row, label in zip(log_p.exp().tolist(), labels.tolist(), strict=True):
        if label >= 0:
            sure = max(row)
            bins[min(int(sure * 15), 14)].append((sure, row.index(sure) == label))
    assert found.counts.tolist() == [len(one) for one in bins] and 0 in found.counts
    for k, one in enumerate(bins):
        if one:
            assert found.confidence[k] == pytest.approx(sum(sure for sure, _ in one) / len(one), abs=1e-5)
            assert found.accuracy[k] == pytest.approx(sum(right for _, right in one) / len(one))
        else:
            assert np.isnan(found.confidence[k]) and np.isnan(found.accuracy[k])
    assert found.error == pytest.approx(calibration_error(log_p, labels).item())
    upper, lower = reliability_figure({"before": found}).axes
    heights = [bar.get_height() for bar in upper.patches]
    assert heights == pytest.approx(found.accuracy[found.counts > 0].tolist())
    assert [bar.get_height() for bar in lower.patches] == found.counts.tolist()


def test_dots_are_given_against_predicted_shares(tmp_path: Path) -> None:
    given = np.array([[0.25, 0.75], [np.nan, 0.5]])
    predicted = np.array([[0.5, 0.5], [0.9, 0.1]])
    figure = proportions_figure({"held-out bags": (given, predicted)}, ["good", "bad"])
    dots = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert sorted(map(tuple, dots.tolist())) == [(0.25, 0.5), (0.5, 0.1), (0.75, 0.5)]
    assert {"2 held-out bags", "mean error of a share 30.0%", "good", "bad"} <= texts_of(figure, tmp_path)


def test_many_dots_are_pixels_and_many_classes_have_no_names(tmp_path: Path) -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(100), 500)
    figure = proportions_figure({"training bags": (shares, shares)}, [f"class {c}" for c in range(100)])
    assert not any("class" in text for text in texts_of(figure, tmp_path))
    assert (tmp_path / "figure.svg").stat().st_size < 300_000


def test_only_curves_that_exist_are_drawn() -> None:
    rows = [{"epoch": 1, "train/loss": 2.0}, {"epoch": 2, "train/loss": 1.0, "train/instance_loss": 0.5}]
    (axes,) = curves_figure(run_panels(rows)).axes
    assert {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()} == {
        "loss": [1, 2],
        "instance loss": [2],
    }


def test_the_oracle_is_marked_apart_from_the_chosen_epoch() -> None:
    epochs = {"oracle": ROWS[0], "chosen": ROWS[1], "last": ROWS[1]}
    axes = curves_figure(run_panels(ROWS, tests_on="rows", epochs=epochs)).axes[-1]
    _, chosen, oracle = axes.get_lines()
    assert chosen.get_label() == "chosen epoch: 50.0%" and list(chosen.get_xdata()) == [2]
    assert oracle.get_label() == "oracle epoch, the best by test labels: 50.0%" and list(oracle.get_xdata()) == [1]
    assert chosen.get_markerfacecolor() == "black" and oracle.get_markerfacecolor() == "none"


def test_classes_that_lie_apart_have_a_large_silhouette() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 2
    features = generator.normal(size=(40, 5)) + 20 * labels[:, None]
    apart, mixed = Map.of(features, labels), Map.of(features, np.arange(40) // 20)
    assert apart.places.shape == (40, 2) and (apart.places == mixed.places).all()
    assert apart.silhouette is not None and mixed.silhouette is not None
    assert apart.silhouette > 0.8 > 0.2 > mixed.silhouette
    with pytest.raises(LLPError, match="at least 5 instances, not 4"):
        Map.of(features[:4], labels[:4])


@pytest.mark.parametrize("name", ["a", "a class with a name that is far too long for its place"])
def test_long_names_of_classes_leave_the_panels_their_room(name: str) -> None:
    shares = np.full((4, 2), 0.5)
    figure = proportions_figure({"training bags": (shares, shares)}, [name, "b"])
    figure.draw_without_rendering()
    assert figure.axes[0].get_window_extent().width / figure.dpi > 2.5
