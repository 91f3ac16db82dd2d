import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck

from reference import contrastive as reference
from torchllp.functional import contrast_accuracy, contrast_log_probabilities, nt_xent


def embeddings(num_instances: int, dim: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(num_instances, dim, generator=generator, dtype=dtype) for _ in range(2)]


@settings(deadline=None)
@given(
    num_instances=st.integers(1, 12),
    dim=st.integers(2, 8),
    temperature=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 2**20),
)
def test_loss_and_accuracy_are_those_of_the_plain_loops(num_instances, dim, temperature, scale, seed) -> None:
    first, second = embeddings(num_instances, dim, seed)
    loss = nt_xent(first * scale, second, temperature)
    expected = loss.new_tensor(reference.nt_xent(first, second, temperature))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    accuracy = contrast_accuracy(*contrast_log_probabilities(first, second, temperature))
    assert accuracy.item() == pytest.approx(reference.contrast_accuracy(first, second))


def test_the_default_temperature_is_a_half() -> None:
    assert torch.equal(nt_xent(*embeddings(5)), nt_xent(*embeddings(5), 0.5))


def test_rows_are_distributions_over_the_others() -> None:
    log_p, partner = contrast_log_probabilities(*embeddings(6))
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(12, dtype=torch.float64))
    assert (log_p.diagonal() == -math.inf).all()
    assert partner.tolist() == [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]


def test_gradients() -> None:
    first, second = (x.requires_grad_() for x in embeddings(4, 3))
    assert gradcheck(nt_xent, (first, second))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_embeddings_of_zero_are_finite_and_get_no_gradient(dtype: torch.dtype) -> None:
    first, second = embeddings(4, dtype=dtype)
    first[1] = second[2] = 0
    both = [x.requires_grad_() for x in (first, second)]
    loss = nt_xent(*both)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert loss[[1, 6]].tolist() == pytest.approx([math.log(7)] * 2)  # all others are equally likely
    assert all(x.grad.isfinite().all() and x.grad.any() for x in both)
    assert not first.grad[1].any() and not second.grad[2].any()


def test_all_embeddings_zero() -> None:
    zeros = torch.zeros(3, 2, requires_grad=True)
    loss = nt_xent(zeros, zeros)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([math.log(5)] * 6) and not zeros.grad.any()


def test_permuted_instances_and_swapped_views() -> None:
    first, second = embeddings(7)
    loss = nt_xent(first, second).view(2, 7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(nt_xent(first[order], second[order]).view(2, 7), loss[:, order])
    torch.testing.assert_close(nt_xent(second, first).view(2, 7), loss.flip(0))


def test_one_instance_has_nothing_to_be_told_from() -> None:
    first, second = (x.requires_grad_() for x in embeddings(1))
    loss = nt_xent(first, second)
    loss.sum().backward()
    assert loss.tolist() == [0, 0] and not first.grad.any() and not second.grad.any()
    assert contrast_accuracy(*contrast_log_probabilities(first, second)) == 1


def test_embeddings_that_are_all_the_same_do_not_count_as_told_apart() -> None:
    same = torch.ones(50, 4)
    assert contrast_accuracy(*contrast_log_probabilities(same, same)) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_float32_at_least_under_autocast(dtype: torch.dtype) -> None:
    first, second = (x.to(dtype) for x in embeddings(16, 32))
    with torch.autocast("cpu", torch.bfloat16):
        loss = nt_xent(first, second, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), nt_xent(first.double(), second.double(), 0.1), rtol=0, atol=1e-5)


def test_a_device_is_not_waited_for() -> None:
    with FakeTensorMode() as mode:
        first, second = (mode.from_tensor(x).to("cuda") for x in embeddings(4, dtype=torch.float32))
        log_p, partner = contrast_log_probabilities(first, second)
        assert {x.device.type for x in (nt_xent(first, second), contrast_accuracy(log_p, partner))} == {"cuda"}
