"""The benchmark of speed: what it compares is the same thing, and every part of it runs. No time is judged here."""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.speed import growth, labels, losses, memory, reference, results, runs, steps, streams, views
from benchmarks.speed.__main__ import PARTS, letters
from benchmarks.speed.measure import Goal, Row, how_much_quicker, overhead, turn_by_turn
from benchmarks.speed.pillow_views import OPERATIONS as PILLOW_OPERATIONS
from benchmarks.speed.pillow_views import PillowViews

from torchllp.views.image import ImageViews
from torchllp.views.parameters import NUMBER, OPERATIONS

ROOT = Path(__file__).parents[1]
TINY = steps.Problem("small-cnn", 2, 4, (1, 28, 28))


class Clock:
    """Stands still but for what is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds

        return call


def check(rows: Sequence[Row]) -> None:
    for row in rows:
        assert row.name and row.against
        assert all(math.isfinite(ratio) and ratio > 0 for ratio in row.ratios)
        assert row.limit is None or row.limit > 0
        assert json.loads(json.dumps(row.to_json()))["ratio"]["n"] == len(row.ratios)


def test_turns_are_timed_one_by_one() -> None:
    clock = Clock()
    calls = {"ours": clock.takes(2), "theirs": clock.takes(8), "bare": clock.takes(1)}
    times = turn_by_turn(calls, 3, calls_a_turn=5, clock=clock)
    assert times == {"ours": [2.0] * 3, "theirs": [8.0] * 3, "bare": [1.0] * 3}
    assert clock.now == 4 * 5 * (2 + 8 + 1)  # one round warms up
    quicker = how_much_quicker("x", times, "theirs", goal=Goal("at least", 4.0), limit="bare").to_json()
    assert (quicker["ratio"]["median"], quicker["limit"], quicker["met"]) == (4.0, 8.0, True)
    slower = overhead("x", times, "bare", goal=Goal("at most", 1.5)).to_json()
    assert (slower["ratio"]["median"], slower["limit"], slower["met"]) == (2.0, 1.0, False)


def test_steps_of_a_training_take_turns_with_others() -> None:
    clock = Clock()
    turns = steps.Turns({"other": clock.takes(100)}, 3, clock)
    for step in range(num_steps := steps.WARM_UP + 2 * 3):
        clock.now += 1
        turns.on_step(0, step, num_steps)
    assert turns.times == {"ours": [3.0, 3.0], "other": [100.0, 100.0]}


@pytest.mark.parametrize(("num_bags", "size", "num_classes"), [(5, 3, 4), (64, 16, 10), (4, 256, 100)])
def test_the_loop_over_bags_has_the_loss_and_the_gradient_of_the_method(
    num_bags: int, size: int, num_classes: int
) -> None:
    problem = losses.Problem.random(num_bags, size, num_classes)
    found = []
    for make in (losses.at_once, losses.in_a_loop):
        loss = make(problem)()
        found.append((loss, *torch.autograd.grad(loss, problem.logits)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-7)
    assert found[0][1].abs().max() > 0


def test_bags_that_are_measured_have_several_classes_and_lack_others() -> None:
    proportions = losses.Problem.random(64, 16, 100).proportions
    assert torch.allclose(proportions.sum(1), torch.ones(64))
    assert ((proportions > 0).sum(1) > 8).all() and ((proportions > 0).sum(1) <= 16).all()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("shape", views.SHAPES.values(), ids=views.SHAPES)
def test_both_kinds_of_views_do_the_same(operation, shape: tuple[int, int, int]) -> None:
    theirs = PILLOW_OPERATIONS[operation.name]
    assert (theirs.start, theirs.end) == (operation.start, operation.end)
    images = torch.randint(256, (20, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    ours = ImageViews(mean=(0.0,) * shape[0], std=(1.0,) * shape[0])
    drawn = ours.draw_strong(len(images), shape, torch.Generator().manual_seed(0))
    magnitude = 0.3 * operation.start + 0.7 * operation.end
    only_this = replace(
        drawn,
        weak=drawn.weak.map(torch.zeros_like),
        operation=torch.full_like(drawn.operation, NUMBER[operation.name]),
        magnitude=torch.full_like(drawn.magnitude, magnitude),
        applied=torch.tensor([[True, False]]).expand_as(drawn.applied),
        cut_side=torch.zeros_like(drawn.cut_side),
    )
    finish = PillowViews(mean=ours.mean, std=ours.std, side=shape[1]).finish
    expected = torch.stack([finish(theirs.apply(views.pillow_image(image), magnitude)) for image in images])
    difference = 255 * (ours.strong(images, only_this.prepare()) - expected).abs()
    assert (difference < 1.01).double().mean() > 0.999


def test_no_operation_is_on_one_side_only() -> None:
    assert set(PILLOW_OPERATIONS) == {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize("shape", views.SHAPES.values(), ids=views.SHAPES)
def test_pillow_viewscut_out_up_to_half_of_a_side(shape: tuple[int, int, int]) -> None:
    side = shape[1]
    pillow_views = PillowViews(mean=(0.5,) * shape[0], std=(0.25,) * shape[0], side=side)
    black = views.pillow_image(torch.zeros(shape, dtype=torch.uint8))
    areas = {int((np.array(pillow_views.cut_out(black).convert("L")) == 128).sum()) for _ in range(300)}
    assert min(areas) == 0 and max(areas) <= (side // 2) ** 2 and len(areas) > 50
    assert pillow_views.strong(black).shape == pillow_views.weak(black).shape == shape


def test_losses_and_views_are_measured() -> None:
    rows = losses.measure([(4, 4)], [3], repeats=2, calls_a_turn=1)
    assert [row.against for row in rows] == [losses.LOOP, losses.CROSS_ENTROPY]
    check(rows)
    rows = views.measure(num_images=4, repeats=2)
    assert len(rows) == 2
    check(rows)


def test_steps_are_measured() -> None:
    goal = Goal("at most", 1.1)
    (row,) = steps.measure({TINY: goal}, repeats=3)
    assert len(row.ratios) == 3 and row.goal == goal
    check([row])


def test_streams_are_measured() -> None:
    rows = streams.measure({TINY: 2, streams.TableProblem(2, 8, num_rows=64): 2}, repeats=2)
    assert [len(row.ratios) for row in rows] == [2, 2]
    check(rows)


def test_labels_are_measured() -> None:
    (row,) = labels.measure(TINY, repeats=2)
    assert len(row.ratios) == 2 and row.goal is not None
    check([row])


def test_memory_that_is_kept_is_measured() -> None:
    (row,) = memory.measure((TINY,), repeats=2, num_steps=1)
    assert len(row.ratios) == 2 and row.against == memory.GIVING_BACK
    check([row])


def test_the_way_of_the_reference_is_measured() -> None:
    (row,) = reference.measure({TINY: None}, repeats=1, steps_a_turn=2, compiled=(False,))
    assert row.against == reference.REFERENCE
    check([row])
    before = reference.cpu_seconds_of_all()
    way = reference.ReferenceWay(TINY, 2)
    first = [weight.clone() for weight in way.model.parameters()]
    way()
    assert reference.cpu_seconds_of_all() > before
    assert len(way.log) == 2 and all(math.isfinite(value) for line in way.log for value in line.values())
    moved = [(new - old).abs().max() > 0 for new, old in zip(way.model.parameters(), first, strict=True)]
    assert all(moved)


def test_growth_is_measured() -> None:
    rows = growth.measure({"bags": ((2, 4, 8), lambda number: (number, 4, 3))}, repeats=2, calls_a_turn=1)
    assert [row.curve and row.curve["unit"] for row in rows] == ["seconds", "bytes"]
    check(rows)


def test_growth_is_compared_with_the_size() -> None:
    rounds = [[float(size**2) for size in (1, 2, 4, 8)]] * 3
    row = growth.growth_row("seconds", "squares", (1, 2, 4, 8), rounds)
    assert row.curve is not None
    assert list(row.ratios) == [8.0] * 3 and math.isclose(row.curve["slope_of_upper_half"], 2.0)
    assert row.to_json()["met"] is False


def test_peak_memory_is_what_is_there_at_once() -> None:
    def call() -> None:
        first = torch.empty(1000)
        second = torch.empty(2000)
        del first
        third = torch.empty(500)
        del second, third

    assert growth.peak_bytes(call) == 4 * 3000


def test_the_start_of_a_run_is_seen_from_outside(tmp_path: Path) -> None:
    before = runs.cpu_seconds_of_children()
    runs.start_up(tmp_path / "run")()
    assert runs.cpu_seconds_of_children() > before
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 1


def test_what_an_epoch_costs_besides_its_steps(tmp_path: Path) -> None:
    rows = runs.epoch_rows(tmp_path, repeats=1, num_images=128)
    assert len(rows) == 4 and all(row.against == runs.EPOCH for row in rows)
    assert all(ratio < 1 for row in rows for ratio in row.ratios)
    check(rows)


def test_parts_that_are_not_measured_keep_their_rows(tmp_path: Path) -> None:
    met = Row("first", "a loop", [10.0, 12.0, 11.0], 20.0, Goal("at least", 10.0), {"ours": 0.002, "a loop": 0.022})
    missed = Row("step", "bare", [1.05], 1.0, Goal("at most", 1.03), {"ours": 2.1, "bare": 2.0})
    grown = [growth.growth_row(unit, "bags", (1, 2, 4), [[1.0, 2.0, 4.0]]) for unit in ("seconds", "bytes")]
    results.save(tmp_path, "c", "Steps", [missed])
    results.save(tmp_path, "a", "Losses", [missed])
    results.save(tmp_path, "e", "Growth", grown)
    text = results.save(tmp_path, "a", "Losses", [met])
    assert text == (tmp_path / "speed.md").read_text()
    lines = text.splitlines()
    assert lines[2] == "| a | first | a loop | at least 10: met | 11 | 10 to 12 | 3 | 20 | 2 ms |"
    assert lines[3] == "| c | step | bare | at most 1.03: missed | 1.05 | 1.05 to 1.05 | 1 | 1 | 2.1 s |"
    assert lines[4].startswith("| e | seconds, 1 to 4 bags |") and lines[7].startswith("a, c, e: ")
    assert list(json.loads((tmp_path / "speed.json").read_text())) == ["a", "c", "e"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["growth.png", "speed.json", "speed.md", "speed.png"]


def test_parts_are_named_by_letters() -> None:
    assert letters("a,c") == ["a", "c"] and set(PARTS) == set("abcdefghi")
    with pytest.raises(argparse.ArgumentTypeError, match="there is no part 'z': take some of a,b,c,d,e,f"):
        letters("a,z")


def test_the_table_in_the_documentation_is_the_one_that_was_measured() -> None:
    measured = ROOT / "benchmarks" / "results" / "speed.md"
    if not measured.is_file():
        pytest.skip("nothing has been measured yet")
    assert measured.read_text() in (ROOT / "docs" / "performance.md").read_text()
