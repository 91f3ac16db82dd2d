"""Every model: its size, its shapes, its two halves, its gradients, and what it says to wrong arguments."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.functional import cross_entropy

from fake_gpu import backward_by_hand, gradient_by_hand
from torchllp.errors import LLPError
from torchllp.models import MODELS, create_model, list_models
from torchllp.models.features import features_of
from torchllp.models.wide_resnet import WideResNet

# One quick model of each kind; wrn-10-1 also has a first block whose shape does not change.
IMAGE_MODELS = ["wrn-10-1", "wrn-28-2", "resnet18", "resnet50", "small-cnn"]
NUM_FEATURES = {
    "wrn-10-1": 64,
    "wrn-28-2": 128,
    "wrn-28-8": 512,
    "resnet18": 512,
    "resnet50": 2048,
    "small-cnn": 64,
    "mlp": 256,
}


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_names_are_listed_and_described():
    assert list_models() == ["linear", "mlp", "resnet18", "resnet50", "small-cnn", "wrn-28-2", "wrn-28-8"]
    assert all(MODELS.entry(name).summary for name in list_models())


def test_listing_models_does_not_import_torch():
    code = "import torchllp.models as m, sys; assert m.list_models(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "num_classes", "input_shape", "options", "expected"),
    [
        ("wrn-28-2", 10, (3, 32, 32), {}, 1_467_610),
        ("wrn-28-2", 10, (1, 28, 28), {}, 1_467_322),
        ("wrn-28-8", 100, (3, 32, 32), {}, 23_401_012),
        ("resnet18", 100, (3, 64, 64), {}, 11_220_132),
        ("resnet18", 1000, (3, 224, 224), {"stem": "imagenet"}, 11_689_512),  # as torchvision documents it
        ("resnet50", 1000, (3, 224, 224), {"stem": "imagenet"}, 25_557_032),
        # 9 * (1 * 16 + 16 * 32 + 32 * 64) for convolutions, 2 * (16 + 32 + 64) for batch norm, 65 * 10 for the head
        ("small-cnn", 10, (1, 28, 28), {}, 24_058),
        ("small-cnn", 10, (1, 28, 28), {"width": 64}, 9 * (64 + 64 * 128 + 128 * 256) + 2 * (64 + 128 + 256) + 2570),
        ("mlp", 3, (5,), {}, 6 * 256 + 257 * 256 + 257 * 3),
    ],
)
def test_number_of_parameters(
    name: str, num_classes: int, input_shape: tuple[int, ...], options: dict[str, Any], expected: int
):
    with torch.device("meta"):
        model = create_model(name, num_classes=num_classes, input_shape=input_shape, **options)
    assert num_parameters(model) == expected


def test_keys_of_small_cnn():
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8)).state_dict()) == [
        "body.0.weight",
        *(f"body.1.{key}" for key in norm),
        "body.4.weight",
        *(f"body.5.{key}" for key in norm),
        "body.8.weight",
        *(f"body.9.{key}" for key in norm),
        "head.weight",
        "head.bias",
    ]


def test_keys_of_mlp():
    assert list(create_model("mlp", num_classes=3, input_shape=(5,)).state_dict()) == [
        "body.1.weight",
        "body.1.bias",
        "body.3.weight",
        "body.3.bias",
        "head.weight",
        "head.bias",
    ]


@pytest.mark.parametrize("side", [8, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*IMAGE_MODELS, "wrn-28-8", "mlp"])
def test_shapes(name: str, channels: int, side: int):
    with torch.device("meta"):
        model = create_model(name, num_classes=7, input_shape=(channels, side, side))
        x = torch.empty(2, channels, side, side)
        assert model.features(x).shape == (2, NUM_FEATURES[name])
        assert model(x).shape == (2, 7)


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "mlp"])
def test_forward_is_head_of_features(name: str):
    model = create_model(name, num_classes=7, input_shape=(3, 12, 16)).eval()
    x = torch.randn(2, 3, 12, 16)
    assert isinstance(model.head, nn.Linear)
    assert torch.equal(model.head(model.features(x)), model(x))
    assert model(x).isfinite().all()


def test_small_cnn_takes_images_of_4x4():
    assert create_model("small-cnn", num_classes=2, input_shape=(1, 4, 4))(torch.randn(3, 1, 4, 4)).shape == (3, 2)


def test_small_cnn_is_convolution_norm_relu_and_pooling():
    model, x = create_model("small-cnn", num_classes=2, input_shape=(1, 9, 9)), torch.randn(7, 1, 9, 9)
    first, second, third = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    expected = x
    for convolution, norm in zip((first, second), norms, strict=False):
        expected = functional.max_pool2d(functional.leaky_relu(norm(convolution(expected)), 0.1), 2)
    expected = functional.leaky_relu(norms[2](third(expected)), 0.1).mean((2, 3))
    torch.testing.assert_close(model.features(x), expected)


def test_mlp_takes_rows():
    assert create_model("mlp", num_classes=2, input_shape=(5,))(torch.randn(3, 5)).shape == (3, 2)


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "mlp"])
def test_backward_gives_every_parameter_a_finite_gradient(name: str):
    model = create_model(name, num_classes=3, input_shape=(3, 8, 8))
    cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.tensor([0, 1, 2, 0])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_channels_last_gives_the_same(name: str):
    model = create_model(name, num_classes=3, input_shape=(3, 16, 16)).eval()
    x = torch.randn(2, 3, 16, 16)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


def test_backward_by_hand_is_backward():
    model = create_model("wrn-10-1", num_classes=3, input_shape=(3, 8, 8))
    loss = cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.tensor([0, 1, 2, 0]))
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    backward_by_hand(loss)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_gradient_by_hand_is_the_gradient():
    model, x = create_model("mlp", num_classes=3, input_shape=(5,)), torch.randn(4, 5, requires_grad=True)
    output, given = model(x), torch.randn(4, 3)
    (expected,) = torch.autograd.grad(output, x, given, retain_graph=True)
    (gradient,) = gradient_by_hand(output, x, given)
    torch.testing.assert_close(gradient, expected)
    assert all(p.grad is None for p in [x, *model.parameters()])


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "mlp"])
def test_runs_on_a_gpu_without_waiting_for_it(name: str):
    with FakeTensorMode(), torch.device("cuda"):
        model = create_model(name, num_classes=3, input_shape=(3, 16, 16))
        logits = model(torch.randn(4, 3, 16, 16))
        backward_by_hand(cross_entropy(logits, torch.zeros(4, dtype=torch.long)))
    assert logits.device.type == "cuda"
    assert all(p.grad is not None and p.grad.device.type == "cuda" for p in model.parameters())


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet18", "small-cnn", "mlp"])
def test_initialisation_follows_the_seed(name: str):
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return create_model(name, num_classes=3, input_shape=(3, 8, 8)).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_wide_resnet_initialisation_and_batch_norm():
    model = create_model("wrn-16-4", num_classes=3, input_shape=(3, 8, 8), bn_momentum=0.001)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 4000:
            expected = (2 / (1.01 * module.weight[0].numel())) ** 0.5  # kaiming, fan-in, slope 0.1
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert not model.head.bias.any()
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {0.001}
    assert {m.negative_slope for m in model.modules() if isinstance(m, nn.LeakyReLU)} == {0.1}


def test_wide_resnet_groups():
    model = WideResNet(16, 2, in_channels=3, num_classes=3)
    x, shapes = torch.randn(2, 3, 32, 32), []
    for module in list(model.body)[:7]:  # the first convolution, then three groups of two blocks
        x = module(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(16, 32, 32), *[(32, 32, 32)] * 2, *[(64, 16, 16)] * 2, *[(128, 8, 8)] * 2]


def test_wide_resnet_block_without_its_branch():
    """Where the shape stays, the way past is the identity; where it changes, it starts at the activated input."""
    first, second = list(WideResNet(16, 2, in_channels=3, num_classes=3).body)[1:3]
    x = torch.randn(2, 16, 8, 8)
    nn.init.zeros_(first.conv2.weight)
    nn.init.zeros_(second.conv2.weight)
    y = first(x)
    torch.testing.assert_close(y, first.shortcut(functional.leaky_relu(first.norm1(x), 0.1)))
    assert torch.equal(second(y), y)


def trained(model: nn.Module) -> nn.Module:
    """The model in evaluation, as after a training: no batch norm is the identity."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()


class ByHand:
    """Layers as functions of a model's weights."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = model.state_dict()

    def conv(self, x: torch.Tensor, key: str, stride: int = 1) -> torch.Tensor:
        weight = self.weights[f"{key}.weight"]
        return functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def activated(self, x: torch.Tensor, key: str) -> torch.Tensor:
        names = ("running_mean", "running_var", "weight", "bias")
        return functional.leaky_relu(functional.batch_norm(x, *(self.weights[f"{key}.{name}"] for name in names)), 0.1)

    def linear(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return functional.linear(x, self.weights[f"{key}.weight"], self.weights[f"{key}.bias"])


@pytest.mark.parametrize(("name", "blocks_a_group"), [("wrn-10-1", 1), ("wrn-16-2", 2)])
def test_wide_resnet_by_hand(name: str, blocks_a_group: int):
    model = trained(create_model(name, num_classes=5, input_shape=(3, 16, 16)))
    hand, x = ByHand(model), torch.randn(4, 3, 16, 16)
    y = hand.conv(x, "body.0")
    for block in range(3 * blocks_a_group):
        key, stride = f"body.{block + 1}", 2 if block in (blocks_a_group, 2 * blocks_a_group) else 1
        inner = hand.activated(y, f"{key}.norm1")
        past = hand.conv(inner, f"{key}.shortcut", stride) if f"{key}.shortcut.weight" in hand.weights else y
        inner = hand.activated(hand.conv(inner, f"{key}.conv1", stride), f"{key}.norm2")
        y = past + hand.conv(inner, f"{key}.conv2")
    y = hand.activated(y, f"body.{3 * blocks_a_group + 1}").mean((2, 3))
    torch.testing.assert_close(model(x), hand.linear(y, "head"), rtol=1e-4, atol=1e-4)


def test_small_cnn_by_hand():
    model = trained(create_model("small-cnn", num_classes=5, input_shape=(3, 9, 9)))
    hand, x = ByHand(model), torch.randn(4, 3, 9, 9)
    y = functional.max_pool2d(hand.activated(hand.conv(x, "body.0"), "body.1"), 2)
    y = functional.max_pool2d(hand.activated(hand.conv(y, "body.4"), "body.5"), 2)
    y = hand.activated(hand.conv(y, "body.8"), "body.9").mean((2, 3))
    torch.testing.assert_close(model(x), hand.linear(y, "head"), rtol=1e-4, atol=1e-4)


def test_mlp_by_hand():
    model = create_model("mlp", num_classes=5, input_shape=(2, 3))
    hand, x = ByHand(model), torch.randn(4, 2, 3)
    y = hand.linear(hand.linear(x.flatten(1), "body.1").relu(), "body.3").relu()
    torch.testing.assert_close(model(x), hand.linear(y, "head"))


@pytest.mark.parametrize(("stem", "expected"), [("small", (64, 32, 32)), ("imagenet", (64, 8, 8))])
def test_resnet_stems(stem: str, expected: tuple[int, ...]):
    body = create_model("resnet18", num_classes=3, input_shape=(5, 32, 32), stem=stem).body
    assert body.maxpool(body.relu(body.bn1(body.conv1(torch.randn(2, 5, 32, 32))))).shape[1:] == expected
    fan_out = body.conv1.weight[:, 0].numel()
    assert body.conv1.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


class Own(nn.Module):
    """A user's model whose ``features`` is a submodule that gives maps, as in torchvision's VGG."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 6, 3)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(6 * 36, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x))


class TestFeaturesOf:
    @pytest.mark.parametrize("name", ["wrn-10-1", "resnet18", "small-cnn", "mlp"])
    def test_ours(self, name: str):
        model = create_model(name, num_classes=3, input_shape=(1, 8, 8)).eval()
        x = torch.randn(2, 1, 8, 8)
        assert torch.equal(features_of(model, x), model.features(x))

    def test_sequential(self):
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.Softplus())
        x = torch.randn(2, 5)
        features = features_of(model, x)
        assert torch.equal(features, model[:2](x))
        features.sum().backward()
        assert model[0].weight.grad.any()

    def test_the_hook_is_taken_away(self):
        model = nn.Sequential(nn.Linear(5, 4))
        features_of(model, torch.randn(2, 5))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            features_of(model, torch.randn(2, 6))
        assert not model[0]._forward_pre_hooks

    def test_a_submodule_called_features(self):
        model, x = Own(), torch.randn(2, 1, 8, 8)
        assert torch.equal(features_of(model, x), model.classifier[:-1](model.features(x)))

    def test_a_wrapped_model(self):
        model = create_model("mlp", num_classes=3, input_shape=(5,))
        x = torch.randn(2, 5)
        assert torch.equal(features_of(torch.optim.swa_utils.AveragedModel(model), x), model.features(x))

    @pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten()), nn.Sequential(nn.MultiheadAttention(4, 1))])
    def test_no_linear(self, model: nn.Module):
        class Wrapper(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        message = "no features found: Wrapper neither has a method features(x) nor runs an nn.Linear last"
        with pytest.raises(LLPError, match=re.escape(message)):
            features_of(Wrapper(), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet19", {}, "unknown model 'resnet19': did you mean 'resnet18'?"),
        ("wrn-28", {}, "unknown model 'wrn-28': did you mean 'wrn-28-8'?"),
        ("wrn-27-2", {}, "a wide ResNet's depth is 6n + 4 (10, 16, 22, 28, ...), not 27"),
        ("wrn-4-2", {}, "a wide ResNet's depth is 6n + 4 (10, 16, 22, 28, ...), not 4"),
        ("wrn-28-0", {}, "a wide ResNet's width is at least 1, not 0"),
        ("mlp", {"stem": "imagenet"}, "model 'mlp' has no option 'stem': it has none"),
        ("wrn-28-2", {"depth": 40}, "model 'wrn-28-2' has no option 'depth': it has bn_momentum"),
        ("resnet18", {"in_channels": 4}, "model 'resnet18' has no option 'in_channels': it has stem"),
        ("resnet18", {"stem": "big"}, "a ResNet's stem is 'small' or 'imagenet', not 'big'"),
        ("small-cnn", {"width": 0}, "a small CNN's width is at least 1, not 0"),
        ("mlp", {"num_classes": 1}, "a model needs at least two classes, not num_classes=1"),
        (
            "small-cnn",
            {"input_shape": (5,)},
            "model 'small-cnn' reads images of shape (channels, height, width), but the instances have shape (5,): "
            "take 'mlp' for them",
        ),
        (
            "small-cnn",
            {"input_shape": (1, 8, 3)},
            "model 'small-cnn' halves images twice, so (1, 8, 3) is too small: take 'mlp' for it",
        ),
    ],
)
def test_errors(name: str, arguments: dict[str, Any], message: str):
    with pytest.raises(LLPError, match=re.escape(message)):
        create_model(name, **{"num_classes": 3, "input_shape": (3, 8, 8), **arguments})
