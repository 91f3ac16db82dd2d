"""Virtual adversarial perturbations: the small change of an instance that changes its prediction most."""

from collections.abc import Callable

import torch
from torch import Tensor


def unit_length(x: Tensor) -> Tensor:
    """Each instance of ``x [N, ...]`` at length 1; one that is 0 everywhere stays so.

    >>> unit_length(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    flat = x.flatten(1)
    largest = flat.abs().amax(1, keepdim=True)  # squares of what is left neither vanish nor overflow
    flat = flat / torch.where(largest > 0, largest, 1.0)
    length = flat.norm(dim=1, keepdim=True)
    return (flat / torch.where(length > 0, length, 1.0)).view_as(x)


def adversarial_perturbation(
    predict: Callable[[Tensor], Tensor], x: Tensor, log_p: Tensor, start: Tensor, *, xi: float, eps: float
) -> Tensor:
    """A perturbation of length ``eps`` for each instance, ``[N, ...]``, found by one power iteration from ``start``.

    ``predict`` turns instances into log-probabilities, ``log_p [N, C]`` are those of ``x``. The divergence from them is
    least at 0, where its Hessian is ``J^T (diag p - p p^T) J``, J being how the logits change with the instance. The
    Hessian times a vector leans towards the direction in which the prediction changes most; ``J start`` is taken by a
    finite step ``xi``, the rest by one backward. (The plain gradient of the divergence is the same but for rounding: it
    is made of differences of probabilities, which in float32 are noise where a prediction is all but certain.)
    Where nothing changes the prediction, the direction of ``start`` is kept.

    >>> weight = torch.tensor([[0.0, 0.0], [3.0, 0.0]])  # the prediction depends on the first number only
    >>> predict = lambda x: (x @ weight.T).log_softmax(1)
    >>> x, start = torch.zeros(1, 2), torch.tensor([[0.6, 0.8]])
    >>> adversarial_perturbation(predict, x, predict(x), start, xi=1e-2, eps=2.0)
    tensor([[2., 0.]])
    """
    start, log_p = unit_length(start), log_p.detach()
    step = (xi * start).detach().requires_grad_()
    with torch.enable_grad():
        log_q = predict(x.detach() + step)
    change = log_q.detach() - log_p
    change = change - change.gather(1, log_p.argmax(1, keepdim=True))  # a shift is nothing; this one costs no digits
    p = log_p.exp()
    (gradient,) = torch.autograd.grad(log_q, step, p * (change - (p * change).sum(1, keepdim=True)))
    direction = unit_length(gradient)
    vanished = (direction == 0).flatten(1).all(1).view(-1, *[1] * (x.ndim - 1))
    return eps * torch.where(vanished, start, direction)
