"""Recipes by name: layers over the defaults of `config`, which are the CPU recipe for small data."""

from typing import Any

from torchllp.registry import unknown_name

_FULL_SCALE: dict[str, Any] = {
    "model": {"name": "wrn-28-2", "options": {"bn_momentum": 0.001}},
    "recipe": {"instances_per_step": 1024, "lr": 0.03, "weight_decay": 5e-4, "epochs": 1024},
}

PRESETS: dict[str, dict[str, Any]] = {
    # The defaults: minutes on two cores.
    "quick": {},
    # Section 4 of the paper: 2^20 steps.
    "paper": _FULL_SCALE | {"recipe": _FULL_SCALE["recipe"] | {"schedule": "7pi/16", "steps_per_epoch": 1024}},
    # What the paper's published code does: 1,024 passes, a full half cosine, RandAugment at level 10.
    "reference": _FULL_SCALE | {"recipe": _FULL_SCALE["recipe"] | {"schedule": "pi/2", "randaugment": "fixed"}},
}


def preset(name: str) -> dict[str, Any]:
    """The layer called ``name``.

    >>> preset("paper")["recipe"]["steps_per_epoch"]
    1024
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]
