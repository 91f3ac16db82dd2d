"""Fully supervised training on the true labels: the upper row of every table."""

from torch import Tensor, nn
from torch.nn.functional import nll_loss

from torchllp.batch import BagBatch
from torchllp.errors import LLPError
from torchllp.functional import log_probabilities
from torchllp.methods.method import Method


class Supervised(Method):
    """Cross-entropy on the true labels of the weak view; instances without a label (-1) add nothing."""

    uses_labels = True

    def forward(self, model: nn.Module, batch: BagBatch) -> dict[str, Tensor]:
        if batch.labels is None:
            raise LLPError("the method 'supervised' needs the label of every training instance, and there are none")
        log_p = log_probabilities(model(batch.weak))
        loss = nll_loss(log_p, batch.labels, ignore_index=-1, reduction="sum") / batch.num_instances
        return {"loss": loss, "log_p": log_p.detach()}
