"""Logits to log-probabilities, and what is read off them one instance at a time."""

import torch
from torch import Tensor

FEW_CLASSES = 16
"""Numbers in a vector register: a row of fewer PyTorch takes one by one on a CPU, columns it does not (a third of the
time for 10 classes). That is for training alone: in which place of a column a row is shows in the last digit, and what
is predicted of an instance should not depend on its neighbours."""


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax over classes, in float32 at least: half precision loses what the bag terms need.

    >>> log_probabilities(torch.tensor([[0.0, 0.0]], dtype=torch.bfloat16))
    tensor([[-0.6931, -0.6931]])
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.requires_grad and logits.shape[1] < FEW_CLASSES and logits.device.type == "cpu":
        return logits.t().contiguous().log_softmax(0).t().contiguous()
    return logits.log_softmax(1)


def entropy(log_p: Tensor) -> Tensor:
    """Entropy (nats) of each instance's prediction, ``[N]``.

    >>> entropy(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log())
    tensor([0.6931, 0.3251])
    """
    return -(log_p.exp() * log_p).sum(1)


def prediction_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the prediction ``q`` from ``p``, one value an instance, ``[N]``.

    >>> prediction_kl(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log())
    tensor([0.5108])
    """
    return (log_p.exp() * (log_p - log_q)).sum(1)
