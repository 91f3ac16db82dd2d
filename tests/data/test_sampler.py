import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchllp import Bags
from torchllp.data.sampler import plan_epoch, plan_pass


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(1, 60), st.integers(0, 1000))
def test_a_pass_has_every_bag_once_in_full_steps(sizes: list[int], budget: int, seed: int) -> None:
    values = np.array(sizes)
    steps = plan_pass(values, budget, np.random.default_rng(seed))
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(sizes)))
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        total = values[step].sum()
        assert total <= budget or len(step) == 1  # a bag over the budget is a step of its own
        if following is not None:  # the next bag did not fit; only the last step may have room
            assert total + values[following[0]] > budget


def _bags(num_bags: int, size: int) -> Bags:
    return Bags.random(np.arange(num_bags * size) % 2, size, seed=0)


def test_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    bags = _bags(20, 3)

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [step.tolist() for step in plan_epoch(bags, 10, seed=seed, epoch=epoch)]

    assert plan(0, 0) == plan(0, 0)
    assert plan(0, 0) != plan(0, 1) != plan(1, 1)
    assert [len(step) for step in plan(0, 0)] == [3] * 6 + [2]


def test_steps_per_epoch_cuts_and_continues_passes() -> None:
    bags = _bags(20, 3)
    short = plan_epoch(bags, 12, seed=0, epoch=4, steps_per_epoch=2)
    long = plan_epoch(bags, 12, seed=0, epoch=4, steps_per_epoch=13)
    assert len(short) == 2 and len(long) == 13
    assert [s.tolist() for s in short] == [s.tolist() for s in long[:2]]
    first, second = (np.concatenate(long[i : i + 5]) for i in (0, 5))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(20))
    assert first.tolist() != second.tolist()
