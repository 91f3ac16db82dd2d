"""Means over an epoch that stay on the device until they are read."""

import math

import torch
from torch import Tensor

from torchllp.errors import LLPError
from torchllp.metrics import effective_number, normalized_entropy

TRUSTED = 0.5
"""A pseudo-label counts as trusted from this weight on."""
PER_INSTANCE = ("log_p", "pseudo_labels", "trust")


class RunningMeans:
    """Sums of named values and what they are divided by; nothing waits for the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self.totals: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}
        self.class_totals: Tensor | None = None
        self.first_bad_step = torch.full((), torch.inf, device=device)
        self.num_steps = 0

    def _add(self, name: str, total: Tensor, count: Tensor | int) -> None:
        total = total.detach().float()
        self.totals[name] = self.totals[name] + total if name in self.totals else total
        self.counts[name] = self.counts.get(name, 0) + count

    def add_step(self, parts: dict[str, Tensor], num_instances: int, labels: Tensor | None) -> None:
        """Take in what a method returned. ``labels`` are the true ones, for looking at only, where they exist.

        A scalar counts once for each of the step's instances, so that a short last step counts for less.
        """
        for name, value in parts.items():
            if name not in PER_INSTANCE:
                self._add(name, value * num_instances, num_instances)
        if "log_p" in parts:
            self._add("entropy", normalized_entropy(parts["log_p"]).sum(), num_instances)
            of_step = parts["log_p"].float().exp().sum(0)
            self.class_totals = of_step if self.class_totals is None else self.class_totals + of_step
        if "trust" in parts:
            self._add("trust", parts["trust"].sum(), num_instances)
            self._add("trusted", (parts["trust"] >= TRUSTED).sum(), num_instances)
        if labels is not None:
            num_known = (labels >= 0).sum()
            if "log_p" in parts:
                self._add("accuracy", (parts["log_p"].argmax(1) == labels).sum(), num_known)
            if "pseudo_labels" in parts:
                self._add("pseudo_label_accuracy", (parts["pseudo_labels"] == labels).sum(), num_known)
        bad = torch.where(parts["loss"].detach().isfinite(), torch.inf, float(self.num_steps))
        self.first_bad_step = torch.minimum(self.first_bad_step, bad)
        self.num_steps += 1

    def check_finite(self, epoch: int) -> None:
        """Stop with a clear word if a loss of this epoch was not finite; waits for the device."""
        step = self.first_bad_step.item()
        if math.isfinite(step):
            raise LLPError(
                f"the loss was not finite at step {step + 1:.0f} of epoch {epoch + 1}: "
                "try a smaller learning rate or float32, and look for broken values in the data"
            )

    def read(self) -> dict[str, float]:
        """The means, by name; one without any value (no label is known) is left out. Waits for the device."""
        totals = torch.stack(list(self.totals.values())).tolist()
        counts = map(float, self.counts.values())
        means = {name: total / n for name, total, n in zip(self.totals, totals, counts, strict=True) if n}
        if self.class_totals is not None:
            means["predicted_classes"] = effective_number(self.class_totals).item()
        return means
