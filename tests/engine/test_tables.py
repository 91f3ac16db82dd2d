"""Rows of features in place of images: the same loop, other views."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from torchllp import Bags, Compute, Dataset, Instances, LLPError, Recipe, create_method, create_model, load_table, train
from torchllp.engine.train import Observer, Outcome, State
from torchllp.engine.views import views_of
from torchllp.views.table import TableViews

RECIPE = Recipe(epochs=12, optimizer="adamw", lr=0.003, instances_per_step=64)


def problem() -> tuple[Dataset, Bags]:
    """Two classes that differ in one of three numbers; 60 bags of 10."""
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=600)
    rows = generator.normal(size=(600, 3)).astype(np.float32)
    rows[:, 1] += 4 * labels
    instances = Instances(torch.from_numpy(rows), torch.from_numpy(labels))
    data = Dataset(name="numbers", train=instances, test=instances, class_names=("low", "high"))
    return data, Bags.random(labels, bag_size=10, seed=0, class_names=data.class_names)


def fit(observer: Observer | None = None, state: State | None = None) -> Outcome:
    data, bags = problem()
    train_bags, held_out = bags.hold_out(6, seed=0)
    torch.manual_seed(0)
    model = create_model("mlp", num_classes=2, input_shape=data.input_shape)
    return train(
        model,
        create_method("ahil"),
        data,
        train_bags,
        held_out=held_out,
        recipe=RECIPE,
        compute=Compute(device="cpu", threads=1),
        observer=observer,
        state=state,
    )


def test_rows_are_learnt_from_their_bags() -> None:
    outcome = fit()
    assert outcome.chosen is not None and outcome.chosen["test/accuracy"] > 0.95
    data, _ = problem()
    assert outcome.predict(data.train.inputs).shape == (600, 2)


def test_training_on_rows_continues_exactly() -> None:
    states: list[State] = []

    class Keep(Observer):
        def on_epoch(self, row: dict[str, float], state: State) -> None:
            states.append(deepcopy(state))

    whole = fit(Keep())
    continued = fit(state=states[8])
    assert len(continued.metrics) == 3
    for one, other in zip(whole.model.parameters(), continued.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_without_an_encoder_every_feature_is_a_column_of_numbers() -> None:
    data, _ = problem()
    views = views_of(data, Recipe(noise=0.2, corruption=0.5))
    assert isinstance(views, TableViews)
    assert (views.columns, views.is_number) == ((0, 1, 2), (True, True, True))
    assert (views.noise, views.corruption) == (0.2, 0.5) and views.source is data.train.inputs


def test_with_an_encoder_a_category_is_one_column() -> None:
    rows = {"bag": [1, 1, 2], "press": ["A", "B", "A"], "width": [1.0, 2.0, 3.0]}
    data, _ = load_table(rows, {"bag": [1, 2], "good": [1, 0], "bad": [1, 1]})
    views = views_of(data, Recipe())
    assert isinstance(views, TableViews)
    assert (views.columns, views.is_number) == ((0, 1, 1), (True, False, False))


def test_other_numbers_are_refused() -> None:
    data, bags = problem()
    wrong = Instances(data.train.inputs.double())
    dataset = Dataset(name="numbers", train=wrong, test=None, class_names=data.class_names)
    model = create_model("mlp", num_classes=2, input_shape=dataset.input_shape)
    with pytest.raises(LLPError, match=r"uint8 images or float32 features of shape .*, not torch\.float64"):
        train(model, create_method("dllp"), dataset, bags, recipe=RECIPE)
