import numpy as np
import pytest
import torch
from torch import Tensor

from torchllp.functional import whitened_linear


def problem(num_rows: int = 40, num_features: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs far from 0 that depend on one another, first weights, and what is to be learnt."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_rows, num_features)) @ generator.normal(size=(num_features, num_features)) + 5
    weight = generator.normal(size=(3, num_features))
    truth = generator.normal(size=(num_rows, 3))
    return torch.from_numpy(x), torch.from_numpy(weight), torch.from_numpy(truth)


@pytest.mark.parametrize(("damping", "rate", "momentum"), [(0.0, 1.0, 0.0), (0.3, 4.0, 0.0), (0.1, 2.0, 0.9)])
def test_descent_is_that_on_white_inputs(damping: float, rate: float, momentum: float) -> None:
    """Ten steps on the weights of plain inputs, and ten on those of inputs that were whitened before by NumPy."""
    x, weight, truth = problem()
    mean, covariance = x.mean(0), torch.from_numpy(np.cov(x.numpy().T))
    damped = covariance.numpy() + damping * np.mean(np.diag(covariance)) * np.eye(5)
    values, vectors = np.linalg.eigh(damped)
    whiten = torch.from_numpy(vectors @ np.diag(values**-0.5) @ vectors.T)
    white = (x - mean) @ whiten

    plain = [weight.clone().requires_grad_(), torch.zeros(3, dtype=torch.float64, requires_grad=True)]
    theirs = [(weight @ whiten.inverse()).requires_grad_(), (weight @ mean).requires_grad_()]
    rates = [{"params": theirs[:1], "lr": 0.01 * rate}, {"params": theirs[1:], "lr": 0.01}]
    one, two = torch.optim.SGD(plain, lr=0.01, momentum=momentum), torch.optim.SGD(rates, momentum=momentum)
    for _ in range(10):
        ours = whitened_linear(x, *plain, mean, covariance, damping=damping, rate=rate)
        expected = white @ theirs[0].T + theirs[1]
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(ours, x @ plain[0].T + plain[1])
        for predicted, optimizer in ((ours, one), (expected, two)):
            optimizer.zero_grad()
            (predicted - truth).square().sum(1).mean().backward()
            optimizer.step()


def test_inputs_get_their_plain_gradient() -> None:
    x, weight, truth = problem()
    x.requires_grad_()
    y = whitened_linear(x, weight, truth[0], x.detach().mean(0), torch.eye(5, dtype=torch.float64))
    (gradient,) = torch.autograd.grad((y * truth).sum(), x)
    torch.testing.assert_close(gradient, truth @ weight)


def test_inputs_that_are_all_alike_have_a_finite_gradient() -> None:
    x, weight = torch.ones(4, 3), torch.ones(2, 3, requires_grad=True)
    y = whitened_linear(x, weight, torch.zeros(2), x[0], torch.zeros(3, 3))
    y.sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()
