"""NT-Xent, the loss of SimCLR: of all embeddings in a batch, which is the other view of the same instance?"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def contrast_log_probabilities(first: Tensor, second: Tensor, temperature: float = 0.5) -> tuple[Tensor, Tensor]:
    """Log-probability ``[2N, 2N]`` that each embedding gives each other one of being its partner, and the true partner.

    ``first`` and ``second [N, D]`` are the embeddings of two views; rows and columns are those of the first and then
    of the second, so the partners ``[2N]`` are ``N`` apart. It is the softmax of the cosine similarities over
    ``temperature``; the diagonal is ``-inf``. Embeddings are taken in float32 at least, also under autocast. One that
    is 0 has no direction: its similarities are 0 and it gets no gradient.

    >>> first, second = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    >>> log_p, partner = contrast_log_probabilities(first, second)
    >>> log_p.exp()
    tensor([[0.0000, 0.0800, 0.5910, 0.3290],
            [0.1636, 0.0000, 0.1636, 0.6728],
            [0.5910, 0.0800, 0.0000, 0.3290],
            [0.3333, 0.3333, 0.3333, 0.0000]])
    >>> partner
    tensor([2, 3, 0, 1])
    """
    with torch.autocast(first.device.type, enabled=False):
        both = torch.cat([first, second])
        both = both.to(torch.promote_types(both.dtype, torch.float32))
        norm = torch.linalg.vector_norm(both, dim=1, keepdim=True)
        direction = both / norm.masked_fill(norm == 0, math.inf)
        similarity = direction @ direction.T / temperature
    log_p = similarity.fill_diagonal_(-math.inf).log_softmax(1)
    return log_p, torch.arange(len(both), device=both.device).roll(len(first))


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.5) -> Tensor:
    """The loss of each embedding, ``[2N]``: less the log-probability of its partner among the ``2N - 1`` others.

    The arguments are those of :func:`contrast_log_probabilities`.

    >>> nt_xent(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]]))
    tensor([0.5259, 0.3962, 0.5259, 1.0986])
    """
    return functional.nll_loss(*contrast_log_probabilities(first, second, temperature), reduction="none")


def contrast_accuracy(log_p: Tensor, partner: Tensor) -> Tensor:
    """The share of embeddings whose partner is the most similar of all, a scalar.

    The arguments are the result of :func:`contrast_log_probabilities`.

    >>> first, second = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.1], [1.0, 0.9]])
    >>> contrast_accuracy(*contrast_log_probabilities(first, second))
    tensor(0.7500)
    """
    return (log_p.argmax(1) == partner).float().mean()
