"""The optimiser and its learning rate, as the paper's recipe has them."""

import math

import torch
from torch import nn

from torchllp.config import Recipe

MOMENTUM = 0.9
ANGLES = {"7pi/16": 7 * math.pi / 16, "pi/2": math.pi / 2}
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def create_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or AdamW; weight decay on everything but normalisation layers."""
    norm = [p for m in module.modules() if isinstance(m, _NORMALISATION) for p in m.parameters(recurse=False)]
    without_decay = {id(p) for p in norm}
    decayed = [p for p in module.parameters() if id(p) not in without_decay]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": norm, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    fused = all(p.device.type in ("cpu", "cuda") for p in module.parameters())  # one kernel for all weights
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr, fused=fused)
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=MOMENTUM, nesterov=True, fused=fused)


def learning_rate(recipe: Recipe, progress: float) -> float:
    """``lr cos(angle k / K)`` at step ``k`` of ``K``, ``progress = k / K``.

    >>> learning_rate(Recipe(lr=0.1, schedule="pi/2"), 1.0) < 1e-9
    True
    >>> round(learning_rate(Recipe(lr=0.1, schedule="7pi/16"), 1.0), 4)
    0.0195
    """
    return recipe.lr * math.cos(ANGLES[recipe.schedule] * progress)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
