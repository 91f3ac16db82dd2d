"""What every method must show. A method's test file subclasses :class:`MethodTester` and gets it all."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import reference.methods
from fake_gpu import backward_by_hand
from methods.problems import random_bags, started, with_unlabelled
from methods.two_processes import gradients_of_two_processes
from torchllp.batch import BagBatch
from torchllp.methods import create_method
from torchllp.methods.method import Method

RAGGED = [1, 5, 2, 9, 3, 1]


def loss_and_gradients(method: nn.Module, batch: BagBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and its gradients with respect to the weak and the strong logits (the model is the identity)."""
    assert batch.strong is not None
    weak, strong = (x.detach().clone().requires_grad_() for x in (batch.weak, batch.strong))
    generator = torch.Generator().manual_seed(0)  # the same random numbers at every call
    loss = method(nn.Identity(), replace(batch, weak=weak, strong=strong, generator=generator))["loss"]
    loss.backward()
    return loss.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in (weak, strong))


class MethodTester:
    name: ClassVar[str]
    """The method's registered name, and of its plain-loop form in ``reference.methods``."""
    variants: ClassVar[list[dict[str, Any]]] = [{}]
    """Sets of numbers to check."""
    bag_loss_alone: ClassVar[dict[str, Any]] = {}
    """Numbers that leave nothing but the bag-level loss."""
    learns_to: ClassVar[float] = 0.95
    """Accuracy on a small separable problem."""

    def problem(self, sizes: list[int], num_classes: int, **others: Any) -> BagBatch:
        """Random bags, with whatever else the method asks of a problem."""
        return random_bags(sizes, num_classes, **others)

    def create(self, numbers: dict[str, Any], batch: BagBatch) -> Method:
        """The method, ready for a step with ``batch``, whose bags are all that it is trained on."""
        return started(create_method(self.name, **numbers), batch)

    def reference(self, batch: BagBatch, numbers: dict[str, Any], **frozen: Any) -> Tensor:
        plain = getattr(reference.methods, self.name.replace("-", "_"))
        views = (batch.weak.double(), batch.strong.double())
        known = (batch.proportions.double(), batch.is_labelled, batch.labels)
        return plain(*views, batch.bag_index, *known, **numbers, **frozen)

    def frozen(self, batch: BagBatch, numbers: dict[str, Any]) -> dict[str, Any]:
        """The targets and weights of a first step, as the plain-loop form takes them to hold them fixed."""
        parts = self.create(numbers, batch)(nn.Identity(), batch)
        return {"frozen": (parts["pseudo_labels"].tolist(), parts["trust"])} if "pseudo_labels" in parts else {}

    def decided_by_rounding(self, batch: BagBatch, numbers: dict[str, Any]) -> dict[str, Any]:
        """What the plain-loop form has to take from the method's own step, because double precision finds another."""
        return {}

    def verify_against_reference(self, batch: BagBatch, numbers: dict[str, Any]) -> None:
        """(a) Loss and gradients of both precisions, against double-precision plain loops on the same numbers."""
        exact = replace(
            batch,
            weak=batch.weak.to(torch.float64, copy=True).requires_grad_(),
            strong=batch.strong.to(torch.float64, copy=True).requires_grad_(),
            proportions=batch.proportions.double(),
        )
        expected = self.reference(exact, numbers, **self.decided_by_rounding(batch, numbers))
        expected.backward()
        tolerance = {torch.float32: 1e-6, torch.float64: 1e-10}[batch.weak.dtype]
        loss, *gradients = loss_and_gradients(self.create(numbers, batch), batch)
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=tolerance, atol=tolerance)
        for gradient, view in zip(gradients, (exact.weak, exact.strong), strict=True):
            reference_gradient = torch.zeros_like(view) if view.grad is None else view.grad
            torch.testing.assert_close(gradient.double(), reference_gradient, rtol=tolerance, atol=tolerance)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("num_bags", "size"), [(64, 16), (16, 64), (4, 256)])
    @pytest.mark.parametrize("num_classes", [10, 100])
    def test_a_equal_sizes(self, num_bags: int, size: int, num_classes: int, dtype: torch.dtype) -> None:
        batch = self.problem([size] * num_bags, num_classes, dtype=dtype)
        self.verify_against_reference(batch, self.variants[0])

    def test_a_ragged(self) -> None:
        @settings(deadline=None, max_examples=25)
        @given(
            sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
            num_classes=st.integers(2, 6),
            seed=st.integers(0, 2**31),
            scale=st.sampled_from([0.1, 1.0, 5.0]),
            dtype=st.sampled_from([torch.float32, torch.float64]),
            numbers=st.sampled_from(self.variants),
        )
        def check(sizes, num_classes, seed, scale, dtype, numbers) -> None:
            batch = self.problem(sizes, num_classes, seed=seed, scale=scale, dtype=dtype)
            self.verify_against_reference(batch, numbers)

        check()

    def test_b_order_of_instances_does_not_matter(self) -> None:
        batch = self.problem(RAGGED, 4)
        order = torch.randperm(len(batch.weak), generator=torch.Generator().manual_seed(1))
        permuted = replace(
            batch,
            **{name: getattr(batch, name)[order] for name in ("weak", "strong", "bag_index", "labels")},
            step_rows=order,
        )
        for numbers in self.variants:
            loss, *gradients = loss_and_gradients(self.create(numbers, batch), batch)
            same, *permuted_gradients = loss_and_gradients(self.create(numbers, permuted), permuted)
            torch.testing.assert_close(loss, same)
            for gradient, other in zip(gradients, permuted_gradients, strict=True):
                torch.testing.assert_close(gradient[order], other)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_c_unlabelled_bags(self, dtype: torch.dtype) -> None:
        batch = with_unlabelled(
            self.problem(RAGGED, 4, dtype=dtype), torch.tensor([False, True, False, False, True, False])
        )
        for numbers in self.variants:
            self.verify_against_reference(batch, numbers)

    def test_c_bag_loss_ignores_unlabelled_bags(self) -> None:
        batch = self.problem(RAGGED, 4)
        unlabelled = torch.tensor([False, True, False, False, True, False])
        method = self.create(self.bag_loss_alone, with_unlabelled(batch, unlabelled))
        loss, gradient, _ = loss_and_gradients(method, with_unlabelled(batch, unlabelled))
        if method.uses_labels:  # what is known of the bags is nothing to it
            assert loss == loss_and_gradients(method, batch)[0]
            return
        assert gradient[unlabelled[batch.bag_index]].abs().max() == 0
        changed = replace(batch, weak=torch.where(unlabelled[batch.bag_index][:, None], -batch.weak, batch.weak))
        assert loss == loss_and_gradients(method, with_unlabelled(changed, unlabelled))[0]

    def test_d_gradient_with_targets_and_weights_frozen(self) -> None:
        """Central differences of the plain-loop loss, in which pseudo-labels and weights stay as they were."""
        batch = self.problem([1, 3, 2], 3)
        for numbers in self.variants:
            frozen = self.frozen(batch, numbers)
            _, *gradients = loss_and_gradients(self.create(numbers, batch), batch)
            for view, gradient in zip(("weak", "strong"), gradients, strict=True):
                logits, step = getattr(batch, view), 1e-6
                for cell in range(logits.numel()):
                    nudge = torch.zeros_like(logits)
                    nudge.view(-1)[cell] = step
                    above = self.reference(replace(batch, **{view: logits + nudge}), numbers, **frozen)
                    below = self.reference(replace(batch, **{view: logits - nudge}), numbers, **frozen)
                    assert gradient.view(-1)[cell].item() == pytest.approx(
                        ((above - below) / (2 * step)).item(), abs=1e-8
                    )

    def test_e_two_processes_have_the_gradient_of_one(self) -> None:
        for one, two in gradients_of_two_processes(self.name, self.variants[0], RAGGED):
            assert one.keys() == two.keys()
            for key in one:
                torch.testing.assert_close(two[key], one[key])

    def test_f_state_dict_round_trip(self) -> None:
        batch = self.problem(RAGGED, 4)
        method = self.create(self.variants[-1], batch)
        method(nn.Identity(), batch)
        other = self.create(self.variants[-1], batch)
        other.load_state_dict(method.state_dict())
        assert loss_and_gradients(method, batch)[0] == loss_and_gradients(other, batch)[0]

    def test_g_bags_of_one_are_supervision(self) -> None:
        batch = self.problem([1] * 20, 5)
        loss, gradient, _ = loss_and_gradients(self.create(self.bag_loss_alone, batch), batch)
        weak = batch.weak.clone().requires_grad_()
        cross_entropy = nn.functional.cross_entropy(weak[batch.bag_index.argsort()], batch.proportions.argmax(1))
        cross_entropy.backward()
        torch.testing.assert_close(loss, cross_entropy.detach())
        torch.testing.assert_close(gradient, weak.grad)

    @pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("sizes", [[1, 1, 1], RAGGED, [64]])
    def test_h_extreme_logits(self, sizes: list[int], dtype: torch.dtype | None) -> None:
        """Gaps of 1e4 that make absent classes certain and present ones impossible."""
        batch = self.problem(sizes, 4, dtype=torch.float32, scale=1e4)
        absent = batch.proportions.clone()
        absent[:, 0] = 0
        absent = torch.where(absent.sum(1, keepdim=True) > 0, absent, torch.eye(4)[1])
        absent /= absent.sum(1, keepdim=True)
        batch = replace(batch, proportions=absent)
        head = nn.Linear(4, 4, bias=False)
        nn.init.eye_(head.weight)
        for numbers in self.variants:
            method = self.create(numbers, batch)
            head.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                parts = method(head, batch)
            parts["loss"].backward()
            assert parts["loss"].isfinite() and parts["loss"].dtype == torch.float32
            assert head.weight.grad is not None and head.weight.grad.isfinite().all()
            assert all(value.isfinite().all() for value in parts.values())

    def test_i_learns_a_separable_problem(self) -> None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (600,), generator=generator)
        inputs = 3 * torch.eye(3)[labels] + 0.5 * torch.randn(600, 3, generator=generator)
        bag_index = torch.arange(600) // 6
        proportions = nn.functional.one_hot(labels, 3).float().view(100, 6, 3).mean(1)
        bags = BagBatch(
            weak=inputs,
            bag_index=bag_index,
            proportions=proportions,
            bags=torch.arange(100),
            generator=generator,
        )
        torch.manual_seed(0)
        model, method = nn.Linear(3, 3), self.create(self.variants[0], bags)
        optimizer = torch.optim.Adam([*model.parameters(), *method.parameters()], lr=0.05)
        for step in range(150):
            noise = 0.1 * torch.randn(2, 600, 3, generator=generator)
            batch = replace(
                bags,
                weak=inputs + noise[0],
                strong=inputs + 2 * noise[1],
                labels=labels if method.uses_labels else None,
                progress=step / 150,
            )
            optimizer.zero_grad()
            method(model, batch)["loss"].backward()
            optimizer.step()
        assert (model(inputs).argmax(1) == labels).float().mean() >= self.learns_to

    def test_j_runs_on_a_gpu_without_waiting_for_it(self) -> None:
        batch = self.problem(RAGGED, 4, dtype=torch.float32)
        for numbers in self.variants:
            with FakeTensorMode() as mode:

                def fake(x: Tensor, mode: FakeTensorMode = mode) -> Tensor:
                    return mode.from_tensor(x).to("cuda")

                names = ("weak", "strong", "bag_index", "proportions", "is_labelled", "bags", "labels")
                on_gpu = replace(
                    batch,
                    num_bags=6.0,
                    largest_bag=max(RAGGED),
                    num_labelled_instances=21.0,
                    mean_bag_size=3.5,
                    **{name: fake(getattr(batch, name)) for name in names},
                )
                with torch.device("cuda"):
                    model, method = nn.Linear(4, 4), self.create(numbers, batch).to("cuda")
                parts = method(model, on_gpu)
                backward_by_hand(parts["loss"])
            assert parts["loss"].device.type == "cuda"
            assert model.weight.grad is not None and model.weight.grad.device.type == "cuda"


class CountTermTester(MethodTester):
    """For a method whose bag-level loss is how probable the counts are."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_shares_of_no_whole_counts(self, dtype: torch.dtype) -> None:
        """As of reports that were rounded; whole counts that sum to the bag's size are learnt from."""
        batch = self.problem(RAGGED, 4, dtype=dtype)
        shares = 0.6 * batch.proportions + 0.4 * torch.tensor([0.37, 0.33, 0.2, 0.1], dtype=dtype)
        self.verify_against_reference(replace(batch, proportions=shares), self.variants[0])

    def test_g_bags_of_one_are_supervision(self) -> None:
        """Of each class against all others."""
        batch = self.problem([1] * 20, 5)
        loss, gradient, _ = loss_and_gradients(self.create(self.bag_loss_alone, batch), batch)
        weak = batch.weak.clone().requires_grad_()
        p, truth = weak[batch.bag_index.argsort()].softmax(1), batch.proportions
        one_against_rest = nn.functional.binary_cross_entropy(p, truth, reduction="sum") / 20
        one_against_rest.backward()
        torch.testing.assert_close(loss, one_against_rest.detach())
        torch.testing.assert_close(gradient, weak.grad)

    @pytest.mark.parametrize("dtype", [None, torch.bfloat16])  # 64 inputs of 1e4 sum to more than float16 has
    @pytest.mark.parametrize("sizes", [[1, 1, 1], RAGGED, [64]])
    def test_h_extreme_logits(self, sizes: list[int], dtype: torch.dtype | None) -> None:
        super().test_h_extreme_logits(sizes, dtype)
