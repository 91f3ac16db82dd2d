"""The loop, on real digits."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from torchllp import Bags, Compute, Instances, LLPError, Recipe, create_method, create_model, load_dataset, train
from torchllp.engine.train import Observer, Outcome
from torchllp.methods.method import Method

QUICK = Recipe(epochs=2, instances_per_step=256)
ONE_THREAD = Compute(device="cpu")


def run(
    method: str = "ahil", *, numbers=None, recipe: Recipe = QUICK, compute: Compute = ONE_THREAD, **others
) -> Outcome:
    data = others.pop("data", None) or load_dataset("digits")
    labels = load_dataset("digits").train.labels
    assert labels is not None
    train_bags, held_out = Bags.random(labels.numpy(), 16, 0).hold_out(9, 0)
    torch.manual_seed(0)
    model = others.pop("model", None) or create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8))
    bags = others.pop("bags", train_bags)
    arguments = {"held_out": held_out, "recipe": recipe, "compute": compute, "seed": 0} | others
    return train(model, create_method(method, **(numbers or {})), data, bags, **arguments)


def weights(outcome: Outcome) -> list[torch.Tensor]:
    return list(outcome.model.state_dict().values())


def same(one: Outcome, other: Outcome) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("method", ["ahil", "dllp", "flmm", "llp-vat", "llpfc", "rot", "softmatch", "supervised"])
def test_every_method_trains_and_repeats_itself(method: str) -> None:
    one, other = run(method), run(method)
    assert same(one, other)
    assert [row["epoch"] for row in one.metrics] == [1, 2]
    keys = {"train/loss", "train/entropy", "train/accuracy", "held_out/bag_kl", "held_out/bag_mae", "test/accuracy"}
    assert keys <= one.metrics[0].keys()
    assert {"held_out/bag_kl_raw", "test/accuracy_raw"} <= one.metrics[0].keys()
    assert ("train/trust" in one.metrics[0]) == (method in ("ahil", "flmm", "softmatch"))
    assert ("train/bag_kl" in one.metrics[0]) == (method != "supervised")
    assert one.metrics[1]["steps"] == 2 * 5


def test_another_seed_is_another_run() -> None:
    assert not same(run(seed=0), run(seed=1))


def test_labels_are_for_looking_at_only() -> None:
    """Without a single instance label, the same weights come out; only what needs labels is missing."""
    data = load_dataset("digits")
    unlabelled = replace(data, train=Instances(data.train.inputs), test=None)
    with_labels, without = run(), run(data=unlabelled)
    assert same(with_labels, without)
    assert not any("accuracy" in key for key in without.metrics[0])
    assert without.metrics[0]["held_out/bag_kl"] == with_labels.metrics[0]["held_out/bag_kl"]


def test_a_test_set_without_any_label_is_not_evaluated() -> None:
    data = load_dataset("digits")
    assert data.test is not None
    outcome = run(data=replace(data, test=Instances(data.test.inputs, torch.full((360,), -1))))
    assert "test/accuracy" not in outcome.metrics[0]


def test_supervision_needs_labels() -> None:
    data = load_dataset("digits")
    with pytest.raises(LLPError, match="Supervised needs the labels"):
        run("supervised", data=replace(data, train=Instances(data.train.inputs)))


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = create_model("mlp", num_classes=10, input_shape=(1, 8, 8))
    torch.manual_seed(5)
    data = load_dataset("digits")
    assert data.train.labels is not None
    train(model, create_method("dllp"), data, Bags.random(data.train.labels.numpy(), 64, 0), recipe=QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_threads_are_used_and_given_back() -> None:
    seen = set()

    class Look(Observer):
        def on_step(self, epoch, step, num_steps) -> None:
            seen.add(torch.get_num_threads())

    before = torch.get_num_threads()
    run("dllp", compute=Compute(device="cpu", threads=2), observer=Look())
    assert seen == {2} and torch.get_num_threads() == before


def test_a_method_may_return_its_loss_alone() -> None:
    class Plain(Method):
        def forward(self, model, batch):
            return {"loss": model(batch.weak).square().mean()}

    data = load_dataset("digits")
    assert data.train.labels is not None
    model = create_model("mlp", num_classes=10, input_shape=(1, 8, 8))
    outcome = train(model, Plain(), data, Bags.random(data.train.labels.numpy(), 64, 0), recipe=QUICK)
    assert outcome.metrics[1]["train/loss"] < outcome.metrics[0]["train/loss"]


def test_a_module_of_ones_own_with_dropout() -> None:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))

    one, other = run(model=build()), run(model=build())
    assert same(one, other)
    assert isinstance(one.model, nn.Sequential) and not one.model.training


def test_the_model_is_that_of_the_chosen_epoch() -> None:
    outcome = run(recipe=Recipe(epochs=6, instances_per_step=512, lr=1.0))
    scores = [row["held_out/bag_kl"] for row in outcome.metrics]
    assert outcome.chosen == outcome.metrics[scores.index(min(scores))]
    chosen = outcome.state["chosen"]["ema"]
    assert all(torch.equal(chosen[key], value) for key, value in outcome.model.state_dict().items())


@pytest.mark.parametrize(("criterion", "best"), [("bag_kl", min), ("bag_mae", min), ("count_score", max)])
def test_the_epoch_is_chosen_by_the_criterion(criterion: str, best) -> None:
    outcome = run("dllp", recipe=Recipe(epochs=6, instances_per_step=512, lr=1.0, choose_by=criterion))
    scores = [row[f"held_out/{criterion}"] for row in outcome.metrics]
    assert outcome.chosen == outcome.metrics[scores.index(best(scores))]


def test_with_nothing_held_out_the_last_epoch_counts() -> None:
    outcome = run(held_out=None)
    assert outcome.chosen is None
    last = {key.removeprefix("module."): value for key, value in outcome.state["ema"].items()}
    assert all(torch.equal(last[key], value) for key, value in outcome.model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "numbers"),
    [("ahil", {}), ("llpfc", {"regroup_every": 3})],  # it is stopped within the epochs of one grouping
)
def test_training_continues_from_a_state_as_if_it_had_never_stopped(method: str, numbers: dict[str, int]) -> None:
    recipe = Recipe(epochs=4, instances_per_step=256)

    class Stop(Observer):
        def on_epoch(self, row, state) -> None:
            if row["epoch"] == 2:
                raise InterruptedError(state)

    with pytest.raises(InterruptedError) as stopped:
        run(method, numbers=numbers, recipe=recipe, observer=Stop())
    resumed = run(method, numbers=numbers, recipe=recipe, state=stopped.value.args[0])
    whole = run(method, numbers=numbers, recipe=recipe)
    assert same(resumed, whole)
    assert [row["epoch"] for row in resumed.metrics] == [3, 4]


def test_bags_of_any_size_and_unlabelled_bags() -> None:
    data = load_dataset("digits")
    assert data.train.labels is not None
    ids = [f"{i % 7}-{i % 11 if i % 7 else 0}" for i in range(len(data.train))]  # 1 large bag, 66 small ones
    table = {bag: [0] * 10 for bag in set(ids)}
    for bag, label in zip(ids, data.train.labels.tolist(), strict=True):
        table[bag][label] += 1
    del table["3-3"], table["5-5"]
    bags = Bags.from_table(ids, table, values="counts", unlabelled="keep")
    outcome = run(bags=bags, held_out=None, recipe=Recipe(epochs=3, instances_per_step=64))
    assert outcome.metrics[-1]["train/bag_kl"] < outcome.metrics[0]["train/bag_kl"]


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": Recipe(epochs=2, instances_per_step=256, optimizer="adamw", lr=1e-3)},
        {"recipe": Recipe(epochs=2, steps_per_epoch=3, schedule="pi/2", randaugment="fixed")},
        {"compute": Compute(device="cpu", precision="bfloat16")},
        {"compute": Compute(device="cpu", precision="float16")},
        {"compute": Compute(device="cpu", channels_last=False)},
    ],
)
def test_other_recipes_and_precisions(change) -> None:
    outcome = run(**change)
    assert outcome.metrics[-1]["train/loss"] < outcome.metrics[0]["train/loss"]
    assert outcome.metrics != run().metrics


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_compiled_models_train_and_save_plain_weights() -> None:
    model = create_model("mlp", num_classes=10, input_shape=(1, 8, 8))
    keys = set(model.state_dict())
    outcome = run(model=model, compute=Compute(device="cpu", compile=True))
    assert set(outcome.model.state_dict()) == keys
    assert outcome.metrics[-1]["train/loss"] < outcome.metrics[0]["train/loss"]


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    with pytest.raises(LLPError, match=r"the loss was not finite at step \d+ of epoch 1: try a smaller learning rate"):
        run(recipe=Recipe(epochs=2, lr=1e30))
    with pytest.raises(LLPError, match=r"not finite after epoch 1: held_out/bag_kl"):
        run(recipe=Recipe(epochs=1, steps_per_epoch=1, lr=1e38))


def test_bags_of_other_data_are_refused() -> None:
    with pytest.raises(LLPError, match="the bags are over 4 instances and digits has 1437"):
        run(bags=Bags.from_table([0, 0, 1, 1], {0: [0.1] * 10, 1: [0.1] * 10}))
    with pytest.raises(LLPError, match="the bags have 2 classes and digits has 10"):
        run(bags=Bags.from_table([0] * 1437, {0: [0.5, 0.5]}))


def test_held_out_bags_must_be_others_and_labelled() -> None:
    ids = [row % 30 for row in range(1437)]
    bags = Bags.from_table(ids, {bag: [0.1] * 10 for bag in range(25)}, unlabelled="keep")
    with pytest.raises(LLPError, match="some instances of held-out bags are in the bags to be trained on"):
        run(bags=bags, held_out=bags.select(np.arange(3)))
    with pytest.raises(LLPError, match="some of the held-out bags have no known proportions"):
        run(bags=bags.select(np.arange(20)), held_out=bags.select(np.arange(20, 30)))


def test_labels_and_outputs_must_fit() -> None:
    data = load_dataset("digits")
    with pytest.raises(LLPError, match="digits has 1437 instances and 3 labels"):
        run(data=replace(data, train=Instances(data.train.inputs, torch.zeros(3, dtype=torch.long))))
    with pytest.raises(LLPError, match="the labels of digits must be from 0 to 9"):
        run(data=replace(data, train=Instances(data.train.inputs, torch.full((1437,), 10))))
    with pytest.raises(LLPError, match=r"output for one instance has shape \(1, 5\) and should have \(1, 10\)"):
        run(model=create_model("mlp", num_classes=5, input_shape=(1, 8, 8)))


def test_predictions_for_new_instances() -> None:
    outcome = run(recipe=Recipe(epochs=1))
    test = load_dataset("digits").test
    assert test is not None and test.labels is not None
    log_p = outcome.predict(test.inputs)
    right = (log_p.argmax(1) == test.labels).float().mean().item()
    assert right == pytest.approx(outcome.metrics[0]["test/accuracy"])
