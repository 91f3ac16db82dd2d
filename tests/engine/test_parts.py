"""The pieces of the loop, each against what it should compute."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torchllp import Bags, Dataset, Instances, LLPError, Recipe, create_method, load_dataset
from torchllp.engine.batches import BatchMaker
from torchllp.engine.ema import EMA
from torchllp.engine.evaluate import HeldOut, predict
from torchllp.engine.optimizer import create_optimizer, learning_rate
from torchllp.engine.precision import Precision, pick_device
from torchllp.engine.running_means import RunningMeans
from torchllp.engine.train import Learner
from torchllp.engine.views import views_of
from torchllp.models import create_model
from torchllp.views.image import ImageViews
from torchllp.views.parameters import WeakParameters
from torchllp.views.table import TableViews


def test_learning_rate_is_the_papers_cosine() -> None:
    recipe = Recipe(lr=0.03, schedule="7pi/16")
    for k, total in ((0, 100), (37, 100), (100, 100)):
        assert learning_rate(recipe, k / total) == pytest.approx(0.03 * math.cos(7 * math.pi * k / (16 * total)))
    assert learning_rate(Recipe(lr=0.03, schedule="pi/2"), 0.5) == pytest.approx(0.03 * math.cos(math.pi / 4))


def test_weight_decay_spares_normalisation_only() -> None:
    model = create_model("small-cnn", num_classes=3, input_shape=(1, 8, 8))
    decayed, spared = create_optimizer(Learner(model, create_method("ahil")), Recipe(weight_decay=0.1)).param_groups
    assert decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0
    norms = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    assert {id(p) for p in spared["params"]} == norms
    assert {id(p) for p in decayed["params"]} == {id(p) for p in model.parameters()} - norms
    assert decayed["nesterov"] and decayed["momentum"] == 0.9


def test_a_methods_own_parameters_are_optimised() -> None:
    method = create_method("dllp")
    method.scale = nn.Parameter(torch.ones(1))
    (group,) = create_optimizer(Learner(nn.Linear(2, 2), method), Recipe(optimizer="adamw")).param_groups
    assert any(p is method.scale for p in group["params"])


def test_moving_average_is_the_plain_recursion() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ema = EMA(model, decay=0.9)
    expected = deepcopy(model[0].weight.detach())
    for k in range(40):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(4, 3))
        ema.update()
        current = deepcopy(model[0].weight.detach())
        decay = min(0.9, (1 + k) / (10 + k))
        expected = decay * expected + (1 - decay) * current
        torch.testing.assert_close(ema.module[0].weight.detach(), expected)
        assert torch.equal(ema.module[1].running_mean, model[1].running_mean)


def test_device_and_precision_by_name() -> None:
    assert pick_device("cpu").type == "cpu"
    for name in ("cuda:99", "tpu", ""):
        with pytest.raises(LLPError, match="cannot be used here"):
            pick_device(name)
    assert Precision("auto", torch.device("cpu")).dtype is None
    with Precision("bfloat16", torch.device("cpu")).autocast():
        assert nn.Linear(2, 2)(torch.zeros(1, 2)).dtype == torch.bfloat16
    assert Precision("float16", torch.device("cpu")).scaler.is_enabled()


def _digit_batches(method_name: str) -> tuple[BatchMaker, Bags]:
    data = load_dataset("digits")
    assert data.train.labels is not None
    bags = Bags.random(data.train.labels.numpy(), 16, 0)
    return BatchMaker(data.train, bags, views_of(data, Recipe()), create_method(method_name)), bags


def test_a_batch_has_what_the_method_asks_for_and_no_more() -> None:
    for name, has_strong, has_labels in (("dllp", False, False), ("ahil", True, False), ("supervised", False, True)):
        maker, bags = _digit_batches(name)
        rows = torch.tensor([5, 2, 7]).numpy()
        step = maker.make(maker.share(rows), generator=torch.Generator().manual_seed(0), progress=0.5)
        batch, labels = step.batch, step.labels
        assert batch.weak.shape == (48, 1, 8, 8) and batch.weak.dtype == torch.float32
        assert (batch.strong is not None) == has_strong
        assert (batch.labels is not None) == has_labels
        assert labels is not None
        assert batch.progress == 0.5 and batch.num_bags == 3 and batch.num_instances == 48
        counts = torch.zeros(3, 10).index_put((batch.bag_index, labels), torch.ones(48), accumulate=True)
        torch.testing.assert_close(counts / 16, batch.proportions)
        assert batch.bags is not None and batch.bags.tolist() == rows.tolist()
        assert bags.bag_ids[rows].tolist() == rows.tolist()


def test_every_method_sees_the_same_weak_views() -> None:
    views = []
    for name in ("dllp", "ahil", "supervised"):
        maker, _ = _digit_batches(name)
        views.append(
            maker.make(
                maker.share(torch.arange(4).numpy()), generator=torch.Generator().manual_seed(3), progress=0.0
            ).batch.weak
        )
    assert torch.equal(views[0], views[1]) and torch.equal(views[0], views[2])


def test_the_strong_view_has_a_crop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    crops: list[WeakParameters] = []
    draw = ImageViews.draw_weak

    def draw_and_keep(*args: Any) -> WeakParameters:
        crops.append(draw(*args))
        return crops[-1]

    monkeypatch.setattr(ImageViews, "draw_weak", draw_and_keep)
    maker, _ = _digit_batches("ahil")
    maker.make(maker.share(torch.arange(40).numpy()), generator=torch.Generator().manual_seed(0), progress=0.0)
    weak, strong = crops
    same = (weak.down == strong.down) & (weak.right == strong.right)
    assert 0.05 < same.double().mean() < 0.2  # 1 in 9 by chance


def test_prediction_leaves_the_model_as_it_was() -> None:
    data = load_dataset("digits")
    torch.manual_seed(0)
    model = create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8)).train()
    before = deepcopy(model.state_dict())
    inputs = torch.cat([data.train.inputs, data.train.inputs])  # more than one evaluation batch
    log_p = predict(model, views_of(data, Recipe()), inputs)
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(len(inputs)))
    torch.testing.assert_close(log_p[:1437], log_p[1437:])


def test_running_means_are_means_over_all_instances() -> None:
    means = RunningMeans(torch.device("cpu"))
    for n, loss in ((2, 1.0), (6, 3.0)):
        log_p = torch.full((n, 2), 0.5).log()
        trust = torch.full((n,), n / 6)
        parts = {"loss": torch.tensor(loss), "log_p": log_p, "trust": trust, "pseudo_labels": torch.zeros(n)}
        means.add_step(parts, n, torch.tensor([0, 1] * (n // 2)))
    read = means.read()
    assert read["loss"] == (2 * 1.0 + 6 * 3.0) / 8
    assert read["entropy"] == pytest.approx(1.0)
    assert read["trust"] == pytest.approx((2 * 2 / 6 + 6 * 1) / 8)
    assert read["trusted"] == pytest.approx(6 / 8)
    assert read["pseudo_label_accuracy"] == 0.5
    means.check_finite(0)


def test_the_first_step_that_is_not_finite_is_named() -> None:
    means = RunningMeans(torch.device("cpu"))
    for loss in (1.0, math.nan, 1.0, math.inf):
        means.add_step({"loss": torch.tensor(loss)}, 1, None)
    with pytest.raises(LLPError, match="not finite at step 2 of epoch 4"):
        means.check_finite(3)


def test_metrics_do_not_wait_for_a_gpu() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        means = RunningMeans(torch.device("cuda"))
        parts = {"loss": torch.zeros(()), "log_p": torch.zeros(4, 3), "trust": torch.zeros(4)}
        means.add_step(parts | {"pseudo_labels": torch.zeros(4)}, 4, torch.zeros(4, dtype=torch.long))
    (totals,) = means.totals.values()
    assert totals.device.type == "cuda"


def test_held_out_bags_judge_a_model_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instances are elsewhere, as `llp evaluate` has them; the count score, of doubles, is no matter of a GPU."""
    monkeypatch.setattr("torchllp.engine.evaluate.count_score", lambda log_p, *_, **__: log_p.sum())
    data = load_dataset("digits")
    train_bags, held_out = Bags.random(data.train.labels.numpy(), bag_size=16, seed=0).hold_out(9, seed=0)
    judge, views = HeldOut(held_out, train_bags, data.train), views_of(data, Recipe())
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            model = create_model("small-cnn", num_classes=10, input_shape=data.input_shape)
        judged = judge.judge(model, views)
    assert next(model.parameters()).is_cuda
    assert {value.device.type for value in judged.values()} == {"cpu"} and "bag_mae" in judged


def test_a_large_tables_strong_view_takes_values_of_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones wherever they are, so that a stream changes nothing."""
    monkeypatch.setattr("torchllp.engine.views.DONORS", 7)
    rows = torch.arange(64.0).view(32, 2)
    data = Dataset(name="rows", train=Instances(rows), test=None, class_names=("a", "b"))
    for device in (None, torch.device("cpu")):
        views = views_of(data, Recipe(), device=device)
        assert isinstance(views, TableViews) and views.source.equal(rows[::4])
