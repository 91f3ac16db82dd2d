from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fake_gpu import backward_by_hand
from reference.contrastive import nt_xent
from torchllp import (
    BagBatch,
    Bags,
    Compute,
    Dataset,
    Instances,
    Recipe,
    create_method,
    create_model,
    load_dataset,
    train,
)
from torchllp.engine.frozen import freeze
from torchllp.engine.train import Observer
from torchllp.engine.views import views_of
from torchllp.errors import LLPError
from torchllp.methods.simclr import SimCLR
from torchllp.views.contrastive import ContrastiveViews
from torchllp.views.table import TableViews

QUICK = Recipe(epochs=3, instances_per_step=256)


def fitted(model: nn.Module, x: Tensor, **numbers: float) -> SimCLR:
    method = create_method("simclr", **numbers)
    assert isinstance(method, SimCLR)
    method.fit_to(model, x[:1])
    return method


def batch_of(first: Tensor, second: Tensor) -> BagBatch:
    n = len(first)
    return BagBatch(weak=first, strong=second, bag_index=torch.arange(n), proportions=torch.zeros(n, 2))


def images() -> Dataset:
    data = load_dataset("digits")
    return replace(data, train=Instances(data.train.inputs), test=None)


def pretrain(seed: int = 0, recipe: Recipe = QUICK, **others):
    torch.manual_seed(7)  # the model's; the method's own weights come from the seed
    model = create_model("small-cnn", num_classes=2, input_shape=(1, 8, 8))
    bags = Bags.unlabelled(1437)
    compute = Compute(device="cpu")
    return train(model, create_method("simclr"), images(), bags, recipe=recipe, compute=compute, seed=seed, **others)


def test_the_loss_is_nt_xent_of_the_projected_features() -> None:
    torch.manual_seed(0)
    model = create_model("mlp", num_classes=3, input_shape=(5,)).double()
    first, second = torch.randn(2, 12, 5, dtype=torch.float64)
    method = fitted(model, first, temperature=0.3, num_dimensions=7).double()
    parts = method(model, batch_of(first, second))
    embeddings = [method.projection(model.features(x)) for x in (first, second)]
    assert embeddings[0].shape == (12, 7)
    expected = torch.tensor(nt_xent(*embeddings, 0.3), dtype=torch.float64).mean()
    torch.testing.assert_close(parts["loss"], expected, rtol=1e-10, atol=1e-10)
    assert 0 <= parts["contrast_accuracy"] <= 1 and not parts["contrast_accuracy"].requires_grad


def test_the_projection_is_two_layers_of_the_features_width() -> None:
    model = create_model("small-cnn", num_classes=3, input_shape=(1, 8, 8))
    layers = fitted(model, torch.randn(2, 1, 8, 8)).projection
    assert [layer.weight.shape for layer in layers if isinstance(layer, nn.Linear)] == [(64, 64), (128, 64)]


def test_over_processes_it_is_a_mean_over_the_instances_of_all() -> None:
    """Each process compares its own; the average of their losses weighs all instances alike."""
    torch.manual_seed(0)
    model = create_model("mlp", num_classes=3, input_shape=(5,)).double()
    first, second = torch.randn(2, 10, 5, dtype=torch.float64)
    method = fitted(model, first).double()
    shares = (slice(0, 3), slice(3, 10))
    parts = [batch_of(first[share], second[share]) for share in shares]
    whole = sum(method(model, part)["loss"] * len(part.weak) for part in parts) / 10
    average = sum(method(model, replace(part, num_instances=10 / 2))["loss"] for part in parts) / 2
    torch.testing.assert_close(average, whole)


def test_the_body_and_the_projection_learn_and_the_head_does_not() -> None:
    model = create_model("small-cnn", num_classes=3, input_shape=(1, 8, 8))
    x = torch.randn(6, 1, 8, 8)
    method = fitted(model, x)
    assert model.training  # left as it was
    method(model, batch_of(x, x + 0.1))["loss"].backward()
    assert model.head.weight.grad is None
    assert all(p.grad is not None for p in [*model.body.parameters(), *method.parameters()])


def test_views_are_simclrs_for_images_and_the_usual_pair_for_rows() -> None:
    views = views_of(images(), QUICK, contrastive=True)
    assert isinstance(views, ContrastiveViews) and not views.flip  # a mirrored digit is no digit
    mirrored = views_of(replace(images(), flip=True), QUICK, contrastive=True)
    assert isinstance(mirrored, ContrastiveViews) and mirrored.flip
    rows = Dataset(name="rows", train=Instances(torch.randn(9, 4)), test=None, class_names=())
    assert isinstance(views_of(rows, QUICK, contrastive=True), TableViews)


def test_it_trains_repeats_itself_and_resumes_exactly() -> None:
    whole, again, other = pretrain(), pretrain(), pretrain(seed=1)
    assert whole.metrics[-1]["train/loss"] < whole.metrics[0]["train/loss"]
    assert whole.metrics[-1]["train/contrast_accuracy"] > 0.02
    assert not any("accuracy" in key and "contrast" not in key for key in whole.metrics[0])

    class Stop(Observer):
        def on_epoch(self, row, state) -> None:
            if row["epoch"] == 2:
                raise InterruptedError(state)

    with pytest.raises(InterruptedError) as stopped:
        pretrain(observer=Stop())
    resumed = pretrain(state=stopped.value.args[0])
    for name, tensor in whole.state["learner"].items():
        assert torch.equal(tensor, again.state["learner"][name])
        assert torch.equal(tensor, resumed.state["learner"][name])
    different = [n for n, t in whole.state["learner"].items() if not torch.equal(t, other.state["learner"][n])]
    assert "method.projection.0.weight" in different and "model.body.0.weight" in different
    assert "model.head.weight" not in different  # nothing trains it


def test_its_features_are_better_than_those_of_an_untrained_network() -> None:
    """By the accuracy of a linear head that is trained on bags of 16."""
    data = load_dataset("digits")
    assert data.train.labels is not None
    bags = Bags.random(data.train.labels.numpy(), 16, 0)
    torch.manual_seed(7)
    untrained = create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8))
    pretrained = create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8))
    pretrained.body.load_state_dict(pretrain(recipe=Recipe(epochs=20, instances_per_step=256)).model.body.state_dict())
    accuracies = []
    for model in (untrained, pretrained):
        frozen, features = freeze(model, data)
        torch.manual_seed(0)
        recipe = Recipe(epochs=20, optimizer="adamw", lr=1e-2, noise=0.0)
        outcome = train(frozen.new_head(), create_method("flmm"), features, bags, recipe=recipe)
        accuracies.append(outcome.metrics[-1]["test/accuracy"])
    assert accuracies[1] > 0.9 > accuracies[0]


def test_it_runs_on_a_gpu_without_waiting_for_it() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        model = create_model("small-cnn", num_classes=3, input_shape=(1, 8, 8))
        x = torch.randn(6, 1, 8, 8)
        method = fitted(model, x)
        parts = method(model, replace(batch_of(x, x), num_bags=1.0, num_labelled_instances=1.0, mean_bag_size=1.0))
        backward_by_hand(parts["loss"])
    assert parts["loss"].device.type == "cuda" and method.projection[0].weight.grad.device.type == "cuda"


@pytest.mark.parametrize("numbers", [{"temperature": 0}, {"num_dimensions": 0}, {"num_dimensions": 1.5}])
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("simclr", **numbers)
