"""Trust in a pseudo-label by how its confidence compares with that of all instances (SoftMatch)."""

import torch
from torch import Tensor


def truncated_gaussian(confidence: Tensor, mean: Tensor, variance: Tensor, n_sigma: float = 2.0) -> Tensor:
    """Weight ``exp(-min(confidence - mean, 0)^2 / (2 variance / n_sigma^2))``: 1 from the mean on, a Gaussian below it.

    ``confidence [N]``; ``mean`` and ``variance`` are scalars. A variance below the rounding of the confidences is
    raised to it, so that instances which are all equally certain all have weight 1.

    >>> truncated_gaussian(torch.tensor([0.9, 0.8, 0.6]), torch.tensor(0.8), torch.tensor(0.04))
    tensor([1.0000, 1.0000, 0.1353])
    """
    variance = variance.clamp(min=torch.finfo(variance.dtype).eps)
    return (-(confidence - mean).clamp(max=0).square() / (2 * variance) * n_sigma**2).exp()


def uniform_alignment(log_p: Tensor, class_mean: Tensor) -> Tensor:
    """Log of ``p / class_mean``, normalised, ``[N, C]``: predictions as if every class were predicted equally often.

    ``log_p [N, C]`` are log-probabilities, ``class_mean [C]`` is the mean prediction of all instances.

    >>> uniform_alignment(torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log(), torch.tensor([0.8, 0.2])).exp()
    tensor([[0.2000, 0.8000],
            [0.5000, 0.5000]])
    """
    return (log_p - class_mean.clamp(min=torch.finfo(class_mean.dtype).tiny).log()).log_softmax(1)
