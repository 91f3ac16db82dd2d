import numpy as np
import pytest
import torch

from torchllp import Bags, Recipe, create_method, create_model, load_dataset, train
from torchllp.engine.alarms import alarms, new_alarms, patience
from torchllp.metrics import effective_number

EVEN = np.full(10, 0.1)
FINE = {"train/entropy": 0.3, "train/predicted_classes": 9.8, "train/trust": 0.4}


@pytest.mark.parametrize(
    ("wrong", "name", "words"),
    [
        ({"train/entropy": 0.99}, "smooth", "over-smoothed"),
        ({"train/predicted_classes": 2.0}, "collapsed", "2.0 classes in effect, where the bags have 10.0"),
        ({"train/trust": 0.001}, "trust", "mean trust 0.0010"),
    ],
)
def test_what_goes_wrong_for_long_enough_is_said_once(wrong: dict[str, float], name: str, words: str) -> None:
    needed = patience(50)
    rows = [FINE, *[FINE | wrong] * needed]
    assert new_alarms(rows[:-1], EVEN, 50) == []
    (alarm,) = new_alarms(rows, EVEN, 50)
    assert words in alarm and "try " in alarm and f"for {needed} epochs" in alarm
    assert new_alarms([*rows, FINE | wrong], EVEN, 50) == []
    assert list(alarms([*rows, FINE | wrong], EVEN, 50)) == [name]
    assert alarms([*rows, FINE], EVEN, 50) == {}
    again = [*rows, FINE, *[FINE | wrong] * needed]
    assert len(new_alarms(again, EVEN, 50)) == 1


def test_a_healthy_training_sets_nothing_off() -> None:
    assert alarms([FINE] * 50, EVEN, 50) == {}
    # a method without pseudo-labels has no trust to watch
    assert alarms([{"train/entropy": 0.3, "train/predicted_classes": 9.8}] * 50, EVEN, 50) == {}


def test_rare_classes_are_no_collapse_and_no_smoothness() -> None:
    """One class in fifty: predictions are sure, and in effect of little more than one class, as they should be."""
    shares = np.array([0.98, 0.02])
    row = {"train/entropy": 0.08, "train/predicted_classes": effective_number(torch.from_numpy(shares)).item()}
    assert alarms([row] * 50, shares, 50) == {}
    assert list(alarms([row | {"train/predicted_classes": 1.001}] * 50, shares, 50)) == ["collapsed"]
    assert list(alarms([row | {"train/entropy": 0.1410}] * 50, shares, 50)) == ["smooth"]


def test_a_training_that_learns_nothing_is_noticed() -> None:
    data = load_dataset("digits")
    assert data.train.labels is not None
    bags = Bags.random(data.train.labels.numpy(), 256, seed=0, class_names=data.class_names)
    model = create_model("small-cnn", num_classes=10, input_shape=data.input_shape)
    rows = train(model, create_method("ahil"), data, bags, recipe=Recipe(epochs=6, lr=1e-5)).metrics
    assert {"smooth", "trust"} <= alarms(rows, bags.class_shares, 6).keys()
    assert 1 <= rows[-1]["train/predicted_classes"] <= 10
