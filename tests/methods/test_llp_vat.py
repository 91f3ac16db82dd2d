import math
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fake_gpu import gradient_by_hand
from methods.problems import random_bags
from methods.tester import MethodTester
from torchllp import BagBatch, create_method, create_model, load_dataset
from torchllp.device import full_precision
from torchllp.errors import LLPError
from torchllp.functional import adversarial_perturbation, log_probabilities, prediction_kl, unit_length
from torchllp.methods.llp_vat import LLPVAT


def seeded(batch: BagBatch) -> BagBatch:
    return replace(batch, generator=torch.Generator().manual_seed(0))


class TestLLPVAT(MethodTester):
    name = "llp-vat"
    variants: ClassVar = [
        {"ramp_up_share": 0.0},
        {},
        {"ramp_up_share": 0.0, "consistency_weight": 2.0, "eps": 30.0, "xi": 0.1, "bag_weighting": "size"},
    ]
    bag_loss_alone: ClassVar = {"consistency_weight": 0.0}

    def reference(self, batch: BagBatch, numbers: dict[str, Any], **frozen: Any) -> Tensor:
        return super().reference(
            batch, numbers, noise=seeded(batch).noise().double(), progress=batch.progress, **frozen
        )

    def frozen(self, batch: BagBatch, numbers: dict[str, Any]) -> dict[str, Any]:
        log_p = log_probabilities(batch.weak)
        perturbation = create_method(self.name, **numbers).perturbation(nn.Identity(), seeded(batch), log_p)
        return {"frozen": (perturbation.double(), batch.weak.detach().double().softmax(1))}

    def decided_by_rounding(self, batch: BagBatch, numbers: dict[str, Any]) -> dict[str, Any]:
        """In float32 the direction, where predictions are so certain that they hardly change: tested itself below."""
        return self.frozen(batch, numbers) if batch.weak.dtype == torch.float32 else {}

    def test_j_runs_on_a_gpu_without_waiting_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.autograd, "grad", gradient_by_hand)
        super().test_j_runs_on_a_gpu_without_waiting_for_it()


@pytest.fixture(scope="module", params=["small-cnn", "wrn-10-1", "mlp"])
def problem(request: pytest.FixtureRequest) -> tuple[nn.Module, BagBatch]:
    """A network after a short training on digits, and some of them; the MLP is certain of nearly all by then."""
    data = load_dataset("digits")
    assert data.train.labels is not None
    x, labels = data.train.inputs[:256] / 8.0 - 1, data.train.labels[:256]
    torch.manual_seed(0)
    model = create_model(request.param, num_classes=10, input_shape=(1, 8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    model.zero_grad()
    proportions = nn.functional.one_hot(labels, 10).float().view(16, 16, 10).mean(1)
    return model, BagBatch(weak=x, bag_index=torch.arange(256) // 16, proportions=proportions)


def perturb(model: nn.Module, batch: BagBatch, **numbers: float) -> tuple[Tensor, Tensor]:
    """The perturbations, and the divergence that they make, of each instance."""
    method = create_method("llp-vat", **numbers)
    assert isinstance(method, LLPVAT)
    log_p = log_probabilities(model(batch.weak))
    perturbation = method.perturbation(model, seeded(batch), log_p)
    return perturbation, prediction_kl(log_p, log_probabilities(model(batch.weak + perturbation))).detach()


def test_the_length_of_the_perturbation_is_eps(problem) -> None:
    for eps in (6.0, 0.1):
        perturbation, _ = perturb(*problem, eps=eps)
        lengths = perturbation.flatten(1).norm(dim=1)
        expected = torch.full_like(lengths, eps * math.sqrt(64 / 3072))
        torch.testing.assert_close(lengths, expected, rtol=1e-3, atol=0)


def test_its_direction_is_the_true_one(problem) -> None:
    """That of double precision: by the same step for every instance; on average by one of 1e-6, exact but at kinks."""
    model, batch = problem
    ours, _ = perturb(model, batch)
    in_double = replace(batch, weak=batch.weak.double(), proportions=batch.proportions.double())
    for xi, smallest in ((1e-2, 0.95), (1e-6, -1)):
        exact, _ = perturb(deepcopy(model).double(), in_double, xi=xi)
        cosine = (unit_length(exact) * unit_length(ours.double())).flatten(1).sum(1)
        assert cosine.mean() > 0.995
        assert cosine.min() > smallest


def test_its_direction_is_the_hessian_times_the_start() -> None:
    """Of the divergence, H = J^T (diag p - p p^T) J, by an explicit Jacobian of the logits, instance by instance."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    x, start = (torch.randn(20, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    ours = adversarial_perturbation(
        lambda x: model(x).log_softmax(1), x, model(x).log_softmax(1), start, xi=1e-6, eps=1.0
    )
    for instance, direction, found in zip(x, start, ours, strict=True):
        jacobian = torch.autograd.functional.jacobian(model, instance)
        p = model(instance).softmax(0).detach()
        by_hand = jacobian.T @ (p.diag() - p.outer(p)) @ jacobian @ direction
        torch.testing.assert_close(found, by_hand / by_hand.norm(), rtol=1e-4, atol=1e-4)


def test_it_changes_predictions_ten_times_as_much_as_a_random_one(problem) -> None:
    model, batch = problem
    perturbation, divergence = perturb(model, batch, eps=0.6)
    random = unit_length(torch.randn(batch.weak.shape, generator=torch.Generator().manual_seed(1)))
    random = random * perturbation.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    log_p, log_q = (log_probabilities(model(x)).detach() for x in (batch.weak, batch.weak + random))
    assert divergence.mean() >= 10 * prediction_kl(log_p, log_q).mean()


def test_a_step_costs_three_forwards_and_moves_running_statistics_once(problem) -> None:
    model, batch = deepcopy(problem[0]), problem[1]
    plain = deepcopy(model)
    calls = []
    with model.register_forward_hook(lambda *_: calls.append(1)):
        create_method("llp-vat")(model, seeded(batch))
    assert len(calls) == 3
    plain(batch.weak)
    for (name, ours), (_, expected) in zip(model.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(ours, expected), name
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(norm.track_running_stats and norm.training for norm in norms)


def test_the_search_for_the_direction_leaves_no_gradient_behind(problem) -> None:
    model, batch = problem
    perturbation, _ = perturb(model, batch)
    assert not perturbation.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_a_prediction_that_nothing_changes_keeps_the_random_direction() -> None:
    batch = seeded(random_bags([4, 4], 3, dtype=torch.float32))
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    method = create_method("llp-vat")
    perturbation = method.perturbation(model, batch, log_probabilities(model(batch.weak)))
    expected = unit_length(seeded(batch).noise()) * 6 * math.sqrt(3 / 3072)
    torch.testing.assert_close(perturbation, expected)
    parts = method(model, batch)
    assert parts["consistency"].item() == pytest.approx(0, abs=1e-7)


def test_the_consistency_rises_over_the_first_part_of_the_training() -> None:
    batch = random_bags([6, 6], 3)
    weights = []
    for progress in (0.0, 0.1, 0.2, 0.4, 0.8):
        parts = create_method("llp-vat", eps=60.0)(nn.Identity(), seeded(replace(batch, progress=progress)))
        bag_loss = create_method("dllp")(nn.Identity(), batch)["loss"]
        weights.append(((parts["loss"] - bag_loss) / parts["consistency"]).item())
    assert weights == sorted(weights)
    assert weights[0] == pytest.approx(0.05 * math.exp(-5)) and weights[-2:] == pytest.approx([0.05, 0.05])


def test_half_precision_does_not_reach_the_direction(problem) -> None:
    model, batch = problem
    outside = create_method("llp-vat")(model, seeded(batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = create_method("llp-vat")(model, seeded(batch))
    assert torch.equal(inside["consistency"], outside["consistency"])


@pytest.mark.parametrize("setting", [None, "tf32", "ieee"])
def test_tf32_is_switched_off_and_given_back(setting: str | None) -> None:
    """Whichever of PyTorch's two ways of asking for it was used."""
    places = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    before = [place.fp32_precision for place in places]
    try:
        if setting is not None:
            for place in places:
                place.fp32_precision = setting
        asked_for = [place.fp32_precision for place in places]
        with full_precision(torch.device("cpu")):
            assert [place.fp32_precision for place in places] == ["ieee", "ieee"]
        assert [place.fp32_precision for place in places] == asked_for
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    "numbers",
    [{"consistency_weight": -1}, {"ramp_up_share": -0.1}, {"eps": 0}, {"xi": 0}, {"bag_weighting": "sizes"}],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("llp-vat", **numbers)
