import logging
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from methods.problems import bags_of, random_bags, started, with_unlabelled
from methods.tester import MethodTester, loss_and_gradients
from torchllp import BagBatch, Bags, LLPError, create_method
from torchllp.functional import simplex_least_squares
from torchllp.methods.llpfc import LLPFC


class TestLLPFC(MethodTester):
    name = "llpfc"
    variants: ClassVar = [{}, {"noisy_prior": "approx"}]

    def problem(self, sizes: list[int], num_classes: int, **others: Any) -> BagBatch:
        """The same sizes again until there are as many bags as classes."""
        return random_bags(sizes * -(-num_classes // len(sizes)), num_classes, **others)

    def create(self, numbers: dict[str, Any], batch: BagBatch) -> LLPFC:
        return started(create_method("llpfc", **numbers).to(batch.weak.dtype), batch)

    def reference(self, batch: BagBatch, numbers: dict[str, Any], **frozen: Any) -> Tensor:
        bags = bags_of(batch)
        groups = create_method("llpfc").groups(bags, epoch=0, seed=0)
        alphas = [simplex_least_squares(bags.proportions[group].T, bags.class_shares) for group in groups]
        pairs = [(group.tolist(), alpha.tolist()) for group, alpha in zip(groups, alphas, strict=True)]
        return super().reference(batch, numbers, groups=pairs)

    def test_g_bags_of_one_are_supervision(self) -> None:
        """A group that has each class once names the classes by its bags: T is a permutation, the loss supervision."""
        labels = torch.tensor([2, 0, 1, 3])
        batch = BagBatch(
            weak=torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
            strong=torch.zeros(4, 4, dtype=torch.float64),
            bag_index=torch.arange(4),
            proportions=torch.eye(4, dtype=torch.float64)[labels],
            bags=torch.arange(4),
        )
        for numbers in self.variants:
            method = self.create(numbers, batch)
            torch.testing.assert_close(method.log_row.exp(), batch.proportions)
            torch.testing.assert_close(method.weight, torch.ones_like(method.weight))
            loss, gradient, _ = loss_and_gradients(method, batch)
            weak = batch.weak.clone().requires_grad_()
            cross_entropy = nn.functional.cross_entropy(weak, labels)
            cross_entropy.backward()
            torch.testing.assert_close(loss, cross_entropy.detach())
            torch.testing.assert_close(gradient, weak.grad)


def many_bags(num_bags: int = 47, num_classes: int = 4, size: int = 6) -> Bags:
    return Bags.random(np.random.default_rng(0).integers(num_classes, size=num_bags * size), size, seed=0)


def test_groups_are_a_function_of_seed_and_epoch() -> None:
    bags, method = many_bags(), create_method("llpfc")
    groups = {epoch: method.groups(bags, epoch, seed=3).tolist() for epoch in (0, 19, 20, 39, 40)}
    assert groups[0] == groups[19] != groups[20] == groups[39] != groups[40]
    assert groups[0] == create_method("llpfc").groups(bags, 0, seed=3).tolist()
    assert groups[0] != method.groups(bags, 0, seed=4).tolist()
    assert np.array(groups[0]).shape == (11, 4)


def test_bags_are_regrouped_only_when_it_is_time() -> None:
    bags, method = many_bags(), create_method("llpfc", regroup_every=5)
    method.start_epoch(bags, 0, seed=0)
    first, rows = method.log_row, method.log_row.clone()
    method.start_epoch(bags, 4, seed=0)
    assert method.log_row is first
    method.start_epoch(bags, 5, seed=0)
    assert not torch.equal(method.log_row, rows)
    method.start_epoch(bags, 4, seed=0)
    assert torch.equal(method.log_row, rows)
    method.start_epoch(bags.select(np.arange(20)), 4, seed=0)  # other bags
    assert len(method.log_row) == 20


def test_nothing_is_saved() -> None:
    method = create_method("llpfc")
    method.start_epoch(many_bags(), 0, seed=0)
    assert not method.state_dict()


def test_bags_that_are_left_over_have_no_gradient() -> None:
    batch = random_bags([3, 5, 2, 4, 3, 6, 2], 3)  # two groups of three, and one bag
    method = started(create_method("llpfc"), batch)
    left_over = torch.ones(7, dtype=torch.bool)
    left_over[method.groups(bags_of(batch), 0, 0).ravel()] = False
    assert left_over.sum() == 1
    _, gradient, _ = loss_and_gradients(method, batch)
    sat_out = left_over[batch.bag_index]
    assert gradient[sat_out].abs().max() == 0 and (gradient[~sat_out].abs().amax(1) > 0).all()


def test_unlabelled_bags_are_in_no_group() -> None:
    batch = with_unlabelled(random_bags([3, 5, 2, 4, 3], 3), torch.tensor([True, False, False, True, False]))
    assert sorted(create_method("llpfc").groups(bags_of(batch), 0, 0).ravel()) == [1, 2, 4]


def test_the_mean_weight_of_a_group_is_one() -> None:
    """Bags of unequal size, one group: instances are weighted as if the bags had the probabilities alpha."""
    bags = bags_of(random_bags([2, 9, 4], 3))
    for noisy_prior in ("uniform", "approx"):
        method = create_method("llpfc", noisy_prior=noisy_prior).double()
        method.start_epoch(bags, 0, 0)
        assert (method.weight.numpy() * bags.sizes).sum() / bags.sizes.sum() == pytest.approx(1)
    method = create_method("llpfc").double()
    method.start_epoch(bags, 0, 0)
    np.testing.assert_allclose(method.weight, 15 / (3 * bags.sizes))


def test_approx_solves_the_right_system() -> None:
    """If the group is all there is, the sizes of its bags solve it, so every weight is 1; not so with Gamma turned."""
    counts = {"a": [5, 1, 0], "b": [1, 3, 3], "c": [0, 4, 8]}
    ids = [bag for bag, row in counts.items() for _ in range(sum(row))]
    bags = Bags.from_table(ids, counts, values="counts")
    method = create_method("llpfc", noisy_prior="approx")
    method.start_epoch(bags, 0, 0)
    torch.testing.assert_close(method.weight, torch.ones(3))
    turned = simplex_least_squares(bags.proportions, bags.class_shares)
    assert np.abs(turned - bags.sizes / 25).max() > 0.1


def test_bags_to_which_approx_gives_no_probability_have_no_loss_and_no_infinity() -> None:
    batch = random_bags([3] * 30, 5)
    method = started(create_method("llpfc", noisy_prior="approx"), batch)
    unused = method.weight == 0  # no bag is left over
    assert 0 < unused.sum() < 30
    _, gradient, _ = loss_and_gradients(method, batch)
    assert gradient.isfinite().all()
    assert (gradient.abs().amax(1) == 0).equal(unused[batch.bag_index])


def test_classes_that_groups_lack_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Class 2 is in 1 of 9 bags, so 2 of 3 groups cannot have it; it says nothing there: T is alpha."""
    labels = np.array([0, 1] * 8 + [0, 2])
    bags = Bags.from_labels(np.arange(9).repeat(2), labels)
    method = create_method("llpfc")
    with caplog.at_level(logging.WARNING, "torchllp"):
        method.start_epoch(bags, 0, 0)
    assert "say nothing of 2 of their 9 classes (3 groups)" in caplog.text
    lacking = [group for group in method.groups(bags, 0, 0) if 8 not in group]
    assert len(lacking) == 2
    torch.testing.assert_close(method.log_row[np.concatenate(lacking), 2], torch.full((6,), 1 / 3).log())
    batch = BagBatch(
        weak=torch.zeros(18, 3),
        bag_index=torch.tensor(bags.bag_of),
        proportions=torch.tensor(bags.proportions),
        bags=torch.arange(9),
    )
    assert method(nn.Identity(), batch)["undefined_columns"] == 2


def test_fewer_bags_than_classes_are_refused() -> None:
    batch = with_unlabelled(random_bags([3, 5, 2], 3), torch.tensor([False, True, False]))
    with pytest.raises(LLPError, match="there are 2 such bags for 3 classes"):
        started(create_method("llpfc"), batch)


def test_a_batch_must_say_which_bags_it_has() -> None:
    batch = random_bags([3, 5, 2], 3)
    with pytest.raises(LLPError, match="call start_epoch first"):
        create_method("llpfc")(nn.Identity(), batch)
    unknown = BagBatch(weak=batch.weak, bag_index=batch.bag_index, proportions=batch.proportions)
    with pytest.raises(LLPError, match=r"say which are in batch\.bags"):
        started(create_method("llpfc"), batch)(nn.Identity(), unknown)


@pytest.mark.parametrize("numbers", [{"noisy_prior": "aprox"}, {"regroup_every": 0}, {"regroup_every": 2.5}])
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(LLPError, match=next(iter(numbers))):
        create_method("llpfc", **numbers)
