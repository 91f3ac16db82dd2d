import math

import pytest
import torch
from torch.autograd import gradcheck

from torchllp.functional import log_probabilities, truncated_gaussian, uniform_alignment


def test_trust_falls_below_the_mean_only() -> None:
    confidence = torch.tensor([0.2, 0.5, 0.7, 1.0], dtype=torch.float64)
    weights = truncated_gaussian(confidence, confidence.new_tensor(0.7), confidence.new_tensor(0.09), n_sigma=3.0)
    assert weights[2:].tolist() == [1.0, 1.0]
    assert weights[1].item() == pytest.approx(math.exp(-(0.2**2) / (2 * 0.09 / 9)))


def test_no_variance_at_all_is_finite() -> None:
    weights = truncated_gaussian(torch.tensor([0.5, 1.0, 1 - 1e-7]), torch.tensor(1.0), torch.tensor(0.0))
    assert weights[0] == 0 and weights[1] == 1 and weights[2] > 0.999


def test_alignment_to_the_uniform_mean_changes_nothing() -> None:
    log_p = log_probabilities(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(uniform_alignment(log_p, torch.full((4,), 0.25)), log_p)


def test_alignment_of_a_class_that_is_never_predicted_is_finite() -> None:
    aligned = uniform_alignment(log_probabilities(torch.tensor([[1e4, 0.0]])), torch.tensor([1.0, 0.0]))
    assert aligned.isfinite().all()


def test_gradients() -> None:
    """Both are detached in use; as functions they are smooth but for the kink at the mean."""
    log_p = log_probabilities(torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    log_p.requires_grad_()
    mean, variance = log_p.new_tensor(0.6), log_p.new_tensor(0.1)
    assert gradcheck(lambda x: truncated_gaussian(x.exp().amax(1), mean, variance), (log_p,))
    assert gradcheck(lambda x: uniform_alignment(x, log_p.new_tensor([0.5, 0.3, 0.2])), (log_p,))
