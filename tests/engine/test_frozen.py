from dataclasses import replace

import pytest
import torch
from torch import nn

from torchllp import Dataset, Instances, LLPError, create_model, load_dataset
from torchllp.config import Recipe
from torchllp.engine.frozen import freeze
from torchllp.engine.views import views_of
from torchllp.models.features import features_of


def digits(num: int = 200) -> Dataset:
    data = load_dataset("digits")
    assert data.train.labels is not None
    return replace(data, train=Instances(data.train.inputs[:num], data.train.labels[:num]))


@pytest.mark.parametrize("name", ["small-cnn", "wrn-10-1", "mlp", "linear"])
def test_a_head_on_features_is_the_classifier_of_instances(name: str) -> None:
    data = digits()
    torch.manual_seed(0)
    model = create_model(name, num_classes=10, input_shape=(1, 8, 8))
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    frozen, features = freeze(model, data)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items()) and model.training
    head = frozen.new_head()
    whole = frozen.classifier(head.state_dict())
    assert not whole.training
    views = views_of(data, Recipe())
    for part, its_features in ((data.train, features.train), (data.test, features.test)):
        expected = whole(views.plain(part.inputs))
        torch.testing.assert_close(head(its_features.inputs), expected, rtol=1e-4, atol=1e-4)
        assert its_features.labels is part.labels
    assert {*whole.state_dict()} == {*before}
    for key, value in whole.state_dict().items():
        assert torch.equal(value, before[key]) or key.startswith("head.")


def test_features_are_standardised_over_the_training_instances() -> None:
    _, features = freeze(create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8)), digits())
    torch.testing.assert_close(features.train.inputs.mean(0), torch.zeros(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.train.inputs.std(0, correction=0), torch.ones(64), atol=1e-4, rtol=0)
    assert not features.is_images and features.input_shape == (64,)


def test_a_feature_that_never_changes_is_shifted_only() -> None:
    model = create_model("mlp", num_classes=3, input_shape=(1, 8, 8))
    with torch.no_grad():
        model.body[3].weight[0] = 0.0
        model.body[3].bias[0] = 1.0
    frozen, features = freeze(model, digits())
    assert frozen.std[0] == 1 and (features.train.inputs[:, 0] == 0).all()


def test_a_feature_that_hardly_changes_does_not_cost_the_classifier_its_digits() -> None:
    model = create_model("mlp", num_classes=3, input_shape=(1, 8, 8))
    with torch.no_grad():
        model.body[3].weight[0] = 1e-8
        model.body[3].bias[0] = 5.0
    data = digits()
    frozen, features = freeze(model, data)
    head = frozen.new_head()
    whole = frozen.classifier(head.state_dict())(views_of(data, Recipe()).plain(data.train.inputs))
    torch.testing.assert_close(head(features.train.inputs), whole, rtol=1e-4, atol=1e-4)


def test_data_tested_on_themselves_stay_so() -> None:
    data = digits()
    _, features = freeze(create_model("mlp", num_classes=10, input_shape=(1, 8, 8)), replace(data, test=data.train))
    assert features.test is features.train


def test_a_module_of_ones_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    data = digits()
    frozen, features = freeze(model, data)
    raw = views_of(data, Recipe()).plain(data.train.inputs)
    expected = (features_of(model, raw) - frozen.mean) / frozen.std
    torch.testing.assert_close(features.train.inputs, expected.detach())
    head = frozen.new_head()
    torch.testing.assert_close(frozen.classifier(head.state_dict())(raw), head(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [nn.Flatten(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))])
def test_without_a_last_layer_there_is_nothing_to_train(model: nn.Module) -> None:
    with pytest.raises(LLPError, match=r"no last nn\.Linear with a bias"):
        freeze(model, digits())


class LongHead(nn.Module):
    """Features and two layers on them; the last one has as many inputs as there are features, if ``hidden`` is 12."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
        self.last = nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.last(self.features(x))


class HeadFirst(nn.Module):
    """Registers its head before its body."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 10)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize("hidden", [12, 20])
def test_a_head_of_several_layers_is_refused(hidden: int) -> None:
    with pytest.raises(LLPError, match=r"LongHead is not its features and one nn\.Linear on them"):
        freeze(LongHead(hidden), digits())


def test_the_head_is_found_by_its_name() -> None:
    frozen, features = freeze(HeadFirst(), digits())
    assert features.input_shape == (12,) and frozen.new_head().head.out_features == 10
