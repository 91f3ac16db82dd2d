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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_same_gradient(dtype: torch.dtype) -> None:
    """Also of features that differ by little from their mean, of which weight and bias must cancel the common part."""
    generator = torch.Generator().manual_seed(0)
    x = (1 + 0.03 * torch.randn(50, 6, generator=generator)).to(dtype).float()
    parameters = [torch.randn(3, 6, generator=generator).requires_grad_(), torch.zeros(3, requires_grad=True)]
    statistics, of_logits = (x.mean(0), torch.cov(x.T)), torch.randn(50, 3, generator=generator)
    found = []
    for is_half in (False, True):
        with torch.autocast("cpu", dtype=dtype, enabled=is_half):
            y = whitened_linear(x.to(dtype) if is_half else x, *parameters, *statistics)
        weight, bias = torch.autograd.grad((y.float() * of_logits).sum(), parameters)
        found.append(x @ weight.T + bias)  # how a step moves the logits
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3 * found[0].abs().max().item())


def test_inputs_that_are_all_alike_have_a_finite_gradient() -> None:
    x, weight = torch.ones(4, 3), torch.ones(2, 3, requires_grad=True)
    y = whitened_linear(x, weight, torch.zeros(2), x[0], torch.zeros(3, 3))
    y.sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()
