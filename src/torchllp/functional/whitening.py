"""A linear layer that learns as if its inputs were whitened."""

import torch
from torch import Tensor
from torch.nn.functional import linear


def whitened_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    covariance: Tensor,
    *,
    damping: float = 0.1,
    rate: float = 1.0,
) -> Tensor:
    """``x @ weight.T + bias``, ``[N, C]``, with the gradient that descends as if the inputs were white.

    These are ``x [N, D]`` less ``mean [D]``, whitened by ``covariance [D, D]``, to which ``damping`` times its mean
    variance is added; the weights of white inputs learn ``rate`` times as fast as the bias. A step of plain gradient
    descent (with momentum, too) on ``weight`` and ``bias`` then does what one on those weights and their bias would.

    The means of large bags differ by little from one another. Without this the gradient is nearly all of what they have
    in common.

    >>> x = torch.tensor([[3.0, 1.0], [5.0, -1.0]])
    >>> weight, bias = torch.ones(1, 2, requires_grad=True), torch.zeros(1, requires_grad=True)
    >>> y = whitened_linear(x, weight, bias, x.mean(0), torch.diag(torch.tensor([4.0, 1.0])), damping=0.0)
    >>> y.flatten().tolist()
    [4.0, 4.0]
    >>> torch.autograd.grad(y[1, 0], [weight, bias])  # of (5 - 4) / 4 and -1 - 0; 1 less what these do to the mean
    (tensor([[ 0.2500, -1.0000]]), tensor([0.]))
    """
    with torch.autocast(x.device.type, enabled=False):  # in half precision what is to cancel out would not
        with torch.no_grad():
            smallest = torch.finfo(mean.dtype).eps ** 2
            more = (damping * covariance.diagonal().mean()).clamp(min=smallest)
            damped = covariance + more * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
            white = rate * torch.linalg.solve_ex(damped, (x.to(mean.dtype) - mean).T)[0].T  # waits for no device
            of_bias = (1 - white @ mean)[:, None]
        moved = linear(white.to(weight.dtype), weight) + of_bias.to(bias.dtype) * bias
    return linear(x, weight.detach(), bias.detach()) + (moved - moved.detach())
