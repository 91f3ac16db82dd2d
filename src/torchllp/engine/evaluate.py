"""Predictions of a whole set of instances, and what they are worth."""

import torch
from torch import Tensor, nn

from torchllp.bags import Bags
from torchllp.data.dataset import Instances
from torchllp.functional import log_probabilities
from torchllp.metrics import accuracy, bag_errors
from torchllp.views.views import Views

EVALUATION_BATCH = 1024


@torch.no_grad()
def predict(model: nn.Module, views: Views, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
    """Log-probabilities of raw instances, ``[N, C]``, on the model's device; its mode is left as it was.

    With ``rows``, of those alone; the inputs may be larger than memory.
    """
    was_training, device = model.training, next(model.parameters()).device
    chunks = inputs.split(EVALUATION_BATCH) if rows is None else (inputs[part] for part in rows.split(EVALUATION_BATCH))
    model.eval()
    try:
        return torch.cat([log_probabilities(model(views.plain(chunk.to(device)))) for chunk in chunks])
    finally:
        model.train(was_training)


def held_out_errors(model: nn.Module, views: Views, train: Instances, held_out: Bags) -> dict[str, Tensor]:
    """Errors of the predicted proportions of bags that were not trained on."""
    log_p = predict(model, views, train.inputs, torch.tensor(held_out.members, device=train.inputs.device))
    bag_index = torch.tensor(held_out.bag_of[held_out.members], device=log_p.device)
    proportions = torch.tensor(held_out.proportions, dtype=torch.float32, device=log_p.device)
    return bag_errors(log_p, bag_index, proportions)


def evaluate(
    model: nn.Module, views: Views, train: Instances, held_out: Bags | None, test: Instances | None
) -> dict[str, float]:
    """Held-out bag errors, and accuracy where test labels exist, by the name they have in the metrics."""
    metrics: dict[str, Tensor] = {}
    if held_out is not None:
        errors = held_out_errors(model, views, train, held_out)
        metrics |= {f"held_out/{name}": value for name, value in errors.items()}
    if test is not None and test.labels is not None and test.is_labelled:
        metrics["test/accuracy"] = accuracy(predict(model, views, test.inputs), test.labels)
    return {name: value.item() for name, value in metrics.items()}
