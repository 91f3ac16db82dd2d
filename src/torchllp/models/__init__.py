"""Classifiers by name. Listing them imports no torch; each is built by :func:`create_model`."""

import inspect
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from torchllp.errors import LLPError
from torchllp.registry import Entry, Registry, check_options

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "create_model", "list_models"]


class _ModelRegistry(Registry):
    """Models by name, where every ``wrn-D-K`` is known though only the usual ones are listed."""

    def entry(self, name: str) -> Entry:
        return super().entry("wrn-28-2" if re.fullmatch(r"wrn-\d+-\d+", name) else name)


MODELS = _ModelRegistry(
    "model",
    {
        "wrn-28-2": Entry("torchllp.models.wide_resnet:WideResNet", "wide ResNet; any wrn-DEPTH-WIDTH works"),
        "wrn-28-8": Entry("torchllp.models.wide_resnet:WideResNet", "wide ResNet for many classes"),
        "resnet18": Entry("torchllp.models.resnet:ResNet", "ResNet-18, with a stem for small images unless told"),
        "resnet50": Entry("torchllp.models.resnet:ResNet", "ResNet-50, with a stem for small images unless told"),
        "small-cnn": Entry("torchllp.models.small_cnn:SmallCNN", "three convolutions, quick on a CPU"),
        "linear": Entry("torchllp.models.linear:LinearModel", "one linear layer, for precomputed features"),
        "mlp": Entry("torchllp.models.mlp:MLP", "two hidden layers of 256, for tables and flattened images"),
    },
)


def list_models() -> list[str]:
    """The names that :func:`create_model` takes (and any other ``wrn-DEPTH-WIDTH``).

    >>> list_models()
    ['linear', 'mlp', 'resnet18', 'resnet50', 'small-cnn', 'wrn-28-2', 'wrn-28-8']
    """
    return MODELS.names()


def create_model(name: str, *, num_classes: int, input_shape: tuple[int, ...], **options: Any) -> "nn.Module":
    """A new model for instances of shape ``input_shape``: (channels, height, width) or (features,).

    The numbers in a name are the model's first arguments (``wrn-28-2``: depth 28, width 2), and ``options`` its
    keyword arguments that have a default.

    >>> create_model("mlp", num_classes=3, input_shape=(5,)).head
    Linear(in_features=256, out_features=3, bias=True)
    """
    build = partial(MODELS.load(name), *map(int, re.findall(r"\d+", name)))
    parameters = inspect.signature(build).parameters
    defaults = {key: p.default for key, p in parameters.items() if p.default is not p.empty}
    check_options(f"model {name!r}", options, defaults)
    if num_classes < 2:
        raise LLPError(f"a model needs at least two classes, not num_classes={num_classes}")
    if "in_channels" not in parameters:
        return build(in_features=math.prod(input_shape), num_classes=num_classes, **options)
    if len(input_shape) != 3:
        raise LLPError(
            f"model {name!r} reads images of shape (channels, height, width), but the instances have shape "
            f"{tuple(input_shape)}: take 'mlp' for them"
        )
    if name == "small-cnn" and min(input_shape[1:]) < 4:
        raise LLPError(
            f"model 'small-cnn' halves images twice, so {tuple(input_shape)} is too small: take 'mlp' for it"
        )
    return build(in_channels=input_shape[0], num_classes=num_classes, **options)
