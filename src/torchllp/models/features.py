"""The features of any classifier, ours or a user's."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchllp.errors import LLPError


def head_of(model: nn.Module) -> nn.Linear | None:
    """``model.head`` where that is a linear layer, else its last one; None if it has none."""
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear):
        return head
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linears[-1] if linears else None


def features_of(model: nn.Module, x: Tensor) -> Tensor:
    """``model.features(x)`` where the model has that method, else the input of its head (:func:`head_of`).

    A submodule called ``features`` is no such method: torchvision's VGG keeps its feature maps there.

    >>> features_of(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3)), torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """
    method = getattr(model, "features", None)
    if inspect.ismethod(method):
        return method(x)
    head = head_of(model)
    inputs: list[Tensor] = []
    if head is not None:
        with head.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
            model(x)
    if not inputs:
        raise LLPError(
            f"no features found: {type(model).__name__} neither has a method features(x) nor runs an nn.Linear last"
        )
    return inputs[0]


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """The model as at prediction: batch norm by its running statistics, no dropout, no gradient."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def as_predicted(model: nn.Module, x: Tensor) -> Tensor:
    """The features by which ``x`` is predicted."""
    with predicting(model):
        return features_of(model, x)


def check_head(model: nn.Module, x: Tensor) -> nn.Linear:
    """The head, if the model is its features followed by that layer, which alone can be trained on them; else raise."""
    head = head_of(model)
    if head is None or head.bias is None:
        raise LLPError(f"{type(model).__name__} has no last nn.Linear with a bias, so nothing is left to train")
    with predicting(model):
        features, output = features_of(model, x), model(x)
        fits = features.ndim == 2 and features.shape[1] == head.in_features
        if not fits or not torch.allclose(head(features), output, rtol=1e-3, atol=1e-4):
            raise LLPError(
                f"{type(model).__name__} is not its features and one nn.Linear on them, which alone could be trained"
            )
    return head


def projection_of(model: nn.Module, example: Tensor, num_dimensions: int) -> nn.Sequential:
    """New layers that turn the features of ``model``, as many as of ``example [1, ...]``, into what is contrasted."""
    num_features = as_predicted(model, example).shape[1]
    return nn.Sequential(nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, num_dimensions))
