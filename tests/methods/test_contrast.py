from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fake_gpu import backward_by_hand
from methods.problems import random_bags
from reference.contrastive import nt_xent
from torchllp import BagBatch, Bags, Compute, Recipe, create_method, create_model, load_dataset, train
from torchllp.engine.batches import BatchMaker
from torchllp.engine.checks import check_parts
from torchllp.engine.process import seeded
from torchllp.engine.train import Observer, Outcome
from torchllp.engine.views import views_of
from torchllp.errors import LLPError
from torchllp.methods.method import Method
from torchllp.models.features import features_of, head_of

FIRST, SECOND, THIRD = 0.0, 0.5, 0.8


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4)).double()


def fitted(model: nn.Module, batch: BagBatch, **numbers: float) -> Method:
    method = create_method("contrast", **{"labels_from": THIRD} | numbers)
    method.fit_to(model, batch.weak[:1])
    return method.double()


def gradients(model: nn.Module, method: Method, batch: BagBatch) -> dict[str, Tensor]:
    method(model, batch)["loss"].backward()
    everyone = [*model.named_parameters(), *method.named_parameters()]
    return {name: p.grad for name, p in everyone if p.grad is not None}


def test_first_the_features_learn_by_contrast_alone() -> None:
    batch, model = random_bags([5, 9, 2], 4), small()
    method = fitted(model, batch, temperature=0.3)
    loss = method(model, batch)["loss"]
    embeddings = method.projection(features_of(deepcopy(model), batch.both_views()))
    expected = nt_xent(*embeddings.detach().chunk(2), 0.3)
    assert loss.item() == pytest.approx(sum(expected) / len(expected))
    assert {name.split(".")[0] for name in gradients(model, method, batch)} == {"0", "1", "projection"}  # not the head


def test_then_the_head_alone_learns_the_bags() -> None:
    """On features as they are at prediction, and as steep as for whitened ones."""
    batch, model = replace(random_bags([5, 9, 2], 4), progress=SECOND), small()
    model(batch.weak + 3)  # running statistics that are not those of the batch
    before = deepcopy(model.state_dict())
    method = fitted(model, batch, head_rate=4.0, damping=0.5)
    parts = method(model, batch)
    with torch.no_grad():
        predicted = model.eval()(batch.weak).log_softmax(1)
        features = model[:3](batch.weak)
    model.train()
    torch.testing.assert_close(parts["log_p"], predicted)
    plain = create_method("dllp")(nn.Identity(), replace(batch, weak=predicted))["loss"]
    torch.testing.assert_close(parts["loss"].detach(), plain)

    found = gradients(model, method, batch)
    assert found.keys() == {"3.weight", "3.bias"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    logits = (features @ model[3].weight.T + model[3].bias).detach().requires_grad_()
    create_method("dllp")(nn.Identity(), replace(batch, weak=logits))["loss"].backward()
    centred = features - features.mean(0)
    covariance = centred.T @ centred / len(features)
    damped = covariance + 0.5 * covariance.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    expected = 4 * logits.grad.T @ centred @ damped.inverse()
    torch.testing.assert_close(found["3.weight"], expected)
    torch.testing.assert_close(found["3.bias"], logits.grad.sum(0) - expected @ features.mean(0))


def test_the_statistics_of_the_features_are_running_ones() -> None:
    model = small()
    method = fitted(model, random_bags([5], 4))
    seen = []
    for seed in range(3):
        batch = replace(random_bags([50, 30], 4, seed=seed), progress=SECOND)
        method(model, batch)
        seen.append(model.eval()[:3](batch.weak).detach())
        model.train()
    torch.testing.assert_close(method.mean, torch.cat(seen).mean(0))  # the plain mean of the first steps
    torch.testing.assert_close(method.covariance, torch.cov(torch.cat(seen).T, correction=0), rtol=0.3, atol=0.02)


def test_at_last_it_is_ahil() -> None:
    batch = replace(random_bags([5, 9, 2], 4), progress=THIRD)
    models = [small(), small()]
    ours = gradients(models[0], fitted(models[0], batch), batch)
    theirs = gradients(models[1], create_method("ahil"), batch)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name])


@pytest.mark.parametrize(("progress", "stage"), [(0.0, 1), (0.19, 1), (0.2, 2), (0.69, 2), (0.7, 3), (1.0, 3)])
def test_stages_begin_when_they_are_said_to(progress: float, stage: int) -> None:
    batch, model = replace(random_bags([5, 9, 2], 4), progress=progress), small()
    parts = fitted(model, batch, classes_from=0.2, labels_from=0.7)(model, batch)
    keys = {1: "contrast_accuracy", 2: "bag_kl", 3: "pseudo_labels"}
    assert [number for number, key in keys.items() if key in parts][-1] == stage


def test_a_gpu_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """But before the first step, when the model is looked at."""
    monkeypatch.setattr("torchllp.methods.contrast.check_head", lambda model, x: head_of(model))
    batch = random_bags([5, 9, 2], 4, dtype=torch.float32)
    for progress in (FIRST, SECOND, THIRD):
        with FakeTensorMode() as mode:
            names = ("weak", "strong", "bag_index", "proportions", "is_labelled")
            on_gpu = replace(
                batch,
                progress=progress,
                num_bags=3.0,
                num_labelled_instances=16.0,
                mean_bag_size=16 / 3,
                largest_bag=9,
                **{name: mode.from_tensor(getattr(batch, name)).to("cuda") for name in names},
            )
            with torch.device("cuda"):
                model, method = (
                    nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)),
                    create_method("contrast", labels_from=THIRD),
                )
                method.fit_to(model, on_gpu.weak[:1])
            parts = method(model, on_gpu)
            backward_by_hand(parts["loss"])
        assert parts["loss"].device.type == "cuda"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("progress", [FIRST, SECOND, THIRD])
def test_half_precision(progress: float, dtype: torch.dtype) -> None:
    batch, model = replace(random_bags([5, 9, 2], 4, dtype=torch.float32), progress=progress), small().float()
    method = create_method("contrast", labels_from=THIRD)
    method.fit_to(model, batch.weak[:1])
    with torch.autocast("cpu", dtype=dtype):
        parts = method(model, batch)
    assert parts["loss"].dtype == torch.float32
    parts["loss"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def train_digits(method: str, bag_size: int, epochs: int = 30, **others) -> Outcome:
    data = load_dataset("digits")
    bags = Bags.random(data.train.labels.numpy(), bag_size, seed=0, class_names=data.class_names)
    torch.manual_seed(0)
    model = create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8))
    compute = Compute(device="cpu", threads=1)
    return train(model, create_method(method), data, bags, recipe=Recipe(epochs=epochs), compute=compute, **others)


def test_eleven_bags_are_enough_for_the_digits() -> None:
    """Of 128 each, on which the bag loss alone stays near chance."""
    ours, theirs = (train_digits(method, 128).metrics[-1]["test/accuracy"] for method in ("contrast", "dllp"))
    assert ours > 0.8
    assert theirs < 0.5


def test_no_epoch_is_chosen_before_classes_are_learnt() -> None:
    """After the first one bags that are held out like the untrained head best."""
    data = load_dataset("digits")
    bags = Bags.random(data.train.labels.numpy(), 64, seed=0, class_names=data.class_names)
    train_bags, held_out = bags.hold_out(3, seed=0)
    with seeded("first weights", 0):
        model = create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8))
    arguments = {"held_out": held_out, "recipe": Recipe(epochs=12), "compute": Compute(device="cpu", threads=1)}
    outcome = train(model, create_method("contrast"), data, train_bags, **arguments)
    errors = [row["held_out/bag_kl"] for row in outcome.metrics]
    assert min(errors) < min(errors[6:])
    assert outcome.chosen is not None and outcome.chosen["held_out/bag_kl"] == min(errors[6:])


def test_it_goes_on_from_any_epoch_as_if_it_had_never_stopped() -> None:
    class Memory(Observer):
        def __init__(self) -> None:
            self.states: dict[int, dict] = {}

        def on_epoch(self, row, state) -> None:
            self.states[int(row["epoch"])] = deepcopy(state)

    memory = Memory()
    whole = train_digits("contrast", 64, epochs=5, observer=memory)
    for epoch in (1, 3):  # in the first stage, and in the second
        resumed = train_digits("contrast", 64, epochs=5, state=memory.states[epoch])
        for ours, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, expected)


def test_the_step_must_be_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LLPError, match="Contrast compares all instances of a step: train it as one process"):
        check_parts(create_method("contrast"), Compute())


class Scaled(nn.Module):
    """Does something after its last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) / 0.05


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2, bias=False)), "has no last nn.Linear with a bias"),
        (nn.Sequential(nn.Conv1d(4, 2, 1), nn.Flatten()), "has no last nn.Linear with a bias"),
        (Scaled(), "Scaled is not its features and one nn.Linear on them"),
        (nn.Sequential(nn.Linear(4, 2)), "this model has nothing but a head"),
    ],
)
def test_models_that_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        create_method("contrast").fit_to(model, torch.ones(1, 4))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"classes_from": 1.0}, "classes_from must be from 0 to below 1, .* not 1.0 and 1.0"),
        ({"classes_from": 0.7, "labels_from": 0.5}, "labels_from from there to 1, not 0.7 and 0.5"),
        ({"damping": -1.0}, "damping must be 0 or above, not -1.0"),
        ({"head_rate": 0.0}, "head_rate must be above 0, not 0.0"),
        ({"num_dimensions": 0}, "num_dimensions must be a whole number of 1 or above, not 0"),
        ({"beta_bag": 0.0}, "beta_bag must be above 0, not 0.0"),
    ],
)
def test_numbers_that_are_refused(numbers: dict[str, float], message: str) -> None:
    with pytest.raises(LLPError, match=message):
        create_method("contrast", **numbers)


@pytest.mark.parametrize(
    ("labels_from", "stages_with_strong"), [(1.0, [True, False, False]), (THIRD, [True, False, True])]
)
def test_a_strong_view_is_made_where_it_is_looked_at(labels_from: float, stages_with_strong: list[bool]) -> None:
    data = load_dataset("digits")
    assert data.train.labels is not None
    bags = Bags.random(data.train.labels.numpy(), 64, seed=0)
    maker = BatchMaker(data.train, bags, views_of(data, Recipe()), create_method("contrast", labels_from=labels_from))
    share = maker.share(np.array([0, 1]))
    batches = [
        maker.make(share, generator=torch.Generator().manual_seed(0), progress=stage).batch
        for stage in (FIRST, SECOND, THIRD)
    ]
    assert [batch.strong is not None for batch in batches] == stages_with_strong
    assert torch.equal(batches[0].weak, batches[1].weak)
