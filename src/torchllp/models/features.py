"""The features of any classifier, ours or a user's."""

import inspect

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

    >>> import torch
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
