"""Means over an epoch that stay on the device until they are read."""

import math
from collections import Counter

import torch
from torch import Tensor

from torchllp.engine.distributed import ALONE, Processes
from torchllp.errors import LLPError
from torchllp.metrics import effective_number, normalized_entropy

TRUSTED = 0.5
"""A pseudo-label counts as trusted from this weight on."""
PER_INSTANCE = ("log_p", "pseudo_labels", "trust")
OF_KNOWN = ("accuracy", "pseudo_label_accuracy")
NUM_KNOWN = "instances whose label is known"


class RunningMeans:
    """Sums of named values and what they are divided by; nothing waits for the device until they are read."""

    def __init__(self, device: torch.device, processes: Processes = ALONE) -> None:
        self.processes = processes
        self.totals: dict[tuple[str, ...], Tensor] = {}  # of the steps that had values of these names, side by side
        self.num_instances: dict[tuple[str, ...], int] = {}
        self.class_totals: Tensor | None = None
        self.first_bad_step = torch.full((), torch.inf, device=device)
        self.num_steps = 0

    def add_step(
        self, parts: dict[str, Tensor], num_instances: int, labels: Tensor | None, *, is_idle: bool = False
    ) -> None:
        """Take in what a method returned. ``labels`` are the true ones, for looking at only, where they exist.

        A scalar counts once for each of the step's ``num_instances``, those of all processes, so that a short last step
        counts for less; what is summed over instances does not count where the process ``is_idle``.
        """
        scalars = {name: value.detach().float() for name, value in parts.items() if name not in PER_INSTANCE}
        sums: dict[str, Tensor] = {}
        if "log_p" in parts:
            sums["entropy"] = normalized_entropy(parts["log_p"]).sum()
            of_step = parts["log_p"].float().exp().sum(0)
            of_step = torch.zeros_like(of_step) if is_idle else of_step
            self.class_totals = of_step if self.class_totals is None else self.class_totals + of_step
        if "trust" in parts:
            sums["trust"] = parts["trust"].sum()
            sums["trusted"] = (parts["trust"] >= TRUSTED).sum()
        if labels is not None:
            sums[NUM_KNOWN] = (labels >= 0).sum()
            if "log_p" in parts:
                sums["accuracy"] = (parts["log_p"].argmax(1) == labels).sum()
            if "pseudo_labels" in parts:
                sums["pseudo_label_accuracy"] = (parts["pseudo_labels"] == labels).sum()
        values = torch.stack([*scalars.values(), *(value.float() for value in sums.values())])
        values[: len(scalars)] *= num_instances / self.processes.count
        if is_idle:
            values[len(scalars) :] = 0
        names = (*scalars, *sums)
        self.totals[names] = self.totals[names] + values if names in self.totals else values
        self.num_instances[names] = self.num_instances.get(names, 0) + num_instances
        bad = torch.where(scalars["loss"].isfinite(), torch.inf, float(self.num_steps))
        self.first_bad_step = torch.minimum(self.first_bad_step, bad)
        self.num_steps += 1

    def check_finite(self, epoch: int) -> None:
        """Stop with a clear word if a loss of this epoch was not finite; waits for the device."""
        step = self.processes.minimum(self.first_bad_step).item()
        if math.isfinite(step):
            raise LLPError(
                f"the loss was not finite at step {step + 1:.0f} of epoch {epoch + 1}: "
                "try a smaller learning rate or float32, and look for broken values in the data"
            )

    def read(self) -> dict[str, float]:
        """The means, by name; one without any value (no label is known) is left out. Waits for the device."""
        totals: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for names, values in self.totals.items():
            of_steps = dict(zip(names, self.processes.sum(values).tolist(), strict=True))
            num_known = of_steps.pop(NUM_KNOWN, 0)
            totals.update(of_steps)
            counts.update({n: num_known if n in OF_KNOWN else self.num_instances[names] for n in of_steps})
        means = {name: total / counts[name] for name, total in totals.items() if counts[name]}
        if self.class_totals is not None:
            means["predicted_classes"] = effective_number(self.processes.sum(self.class_totals)).item()
        return means
