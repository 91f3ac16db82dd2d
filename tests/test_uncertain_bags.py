"""Bags whose counts were reported with noise, rounded, or not for all classes."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchllp import Bags, LLPError
from torchllp.noise import Noise

nan = math.nan
ROWS = ["a"] * 4 + ["b"] * 2 + ["c"]


def test_classes_that_were_not_observed() -> None:
    table = {"a": [2, nan, nan], "b": [nan, 1, 1], "c": [0, 0, 1]}
    bags = Bags.from_table(ROWS, table, values="counts")
    np.testing.assert_array_equal(bags.reported, [[2, nan, nan], [nan, 1, 1], [0, 0, 1]])
    np.testing.assert_array_equal(bags.observed, [[True, False, False], [False, True, True], [True, True, True]])
    np.testing.assert_allclose(bags.proportions, [[0.5, 0.25, 0.25], [0, 0.5, 0.5], [0, 0, 1]])
    assert bags.noise is None and bags.is_labelled.all()
    assert repr(bags) == "Bags(3 bags of 1 to 4 instances, 7 instances, 3 classes, some not observed)"
    shares = Bags.from_table(ROWS, {"a": [0.5, nan, nan], "b": [nan, 0.5, 0.5], "c": [0, 0, 1]})
    assert shares.content_hash == bags.content_hash
    with pytest.raises(LLPError, match="rot needs the share of every class, and class '1' was not observed in bag 'a'"):
        bags.need_all_observed("rot")
    bags.select(np.array([2])).need_all_observed("rot")


def test_large_bag_ids_stay_what_they_are() -> None:
    first = 20240101123456
    bags = Bags.from_table([first, first, first + 1, first + 1], {first: [1, 1], first + 1: [0, 2]}, values="counts")
    bags = bags.with_labels(np.array([0, -1, -1, -1]))
    assert bags.bag_ids.tolist() == [20240101123456, 20240101123457, 20240101123458]


def test_a_bag_of_which_no_class_was_observed_is_not_labelled() -> None:
    table = {"a": [nan, nan], "b": [1, 1], "c": [0, 1]}
    with pytest.raises(LLPError, match=r"1 of the rows' bags are without any class that was observed \(first: 'a'"):
        Bags.from_table(ROWS, table, values="counts")
    bags = Bags.from_table(ROWS, table, values="counts", unlabelled="keep")
    assert bags.is_labelled.tolist() == [False, True, True]
    assert bags.reported is None and bags.proportions[0].tolist() == [0, 0]  # all that is known is exact
    assert Bags.from_table(ROWS, table, values="counts", unlabelled="drop").bag_ids.tolist() == ["b", "c"]
    noisy = Bags.from_table(
        ROWS, table, values="counts", unlabelled="keep", noise="laplace", noise_scale={"b": 1, "c": 2}
    )
    assert noisy.noise is not None and noisy.noise.scale.tolist() == [math.inf, 1, 2]


def test_noisy_counts_may_be_anything() -> None:
    table = {"a": [-1.5, 2.0, 9.0], "b": [-1.0, -2.0, 0.0], "c": [0.25, nan, 0.25]}
    bags = Bags.from_table(ROWS, table, values="counts", noise="gaussian", noise_scale=3)
    np.testing.assert_array_equal(bags.reported, list(table.values()))
    np.testing.assert_allclose(bags.proportions, [[0, 1 / 3, 2 / 3], [1 / 3] * 3, [0.25, 0.5, 0.25]])
    assert bags.noise is not None and bags.noise.kind == "gaussian" and bags.noise.scale.tolist() == [3, 3, 3]
    assert repr(bags).endswith("3 classes, some not observed, gaussian noise)")


def test_scales_are_in_the_unit_of_the_table_and_epsilon_has_none() -> None:
    shares = {"a": [0.5, 0.6], "b": [0.0, 1.1], "c": [0.0, 1.0]}
    by_bag = {"a": 0.05, "b": 0.0, "c": 0.1, "another": 5.0}
    with pytest.raises(LLPError, match=r"bag 'b': the classes sum to 1\.1 instead of 1"):
        Bags.from_table(ROWS, shares, noise="gaussian", noise_scale=by_bag)
    shares["b"] = [0.0, 1.0]
    bags = Bags.from_table(ROWS, shares, noise="gaussian", noise_scale=by_bag)
    np.testing.assert_allclose(bags.noise.scale, [0.2, 0, 0.1])
    assert bags.noise.is_exact.tolist() == [False, True, False]
    np.testing.assert_allclose(bags.reported, [[2, 2.4], [0, 2], [0, 1]])
    laplace = Bags.from_table(ROWS, shares, noise="laplace", noise_scale=0.5)
    assert laplace.noise.scale.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"a": [3, nan]}, {}, "bag 'a': the observed classes sum to 3, more than the bag's 2 rows"),
        ({"a": [3, nan]}, {"normalize": True}, "bag 'a': the observed classes sum to 3, more than the bag's 2 rows"),
        ({"a": [-1, nan]}, {}, "bag 'a': class '0' is -1: negative"),
        ({"a": [math.inf, 1]}, {"noise": "gaussian", "noise_scale": 1}, "bag 'a': class '0' is inf: infinite"),
        ({"a": [1, 1]}, {"noise": "poisson", "noise_scale": 1}, "no noise 'poisson': it is one of gaussian, lap"),
        ({"a": [1, 1]}, {"noise": "gaussian"}, "noise is given without noise_scale"),
        ({"a": [1, 1]}, {"noise_scale": 1}, "noise_scale is given without noise"),
        (
            {"a": [1, 1]},
            {"noise": "gaussian", "noise_scale": -1},
            "its standard deviation, a number of 0 or above, not -1",
        ),
        ({"a": [1, 1]}, {"noise": "gaussian", "noise_scale": nan}, "of gaussian noise is its standard dev.* not nan"),
        ({"a": [1, 1]}, {"noise": "laplace", "noise_scale": 0}, "laplace noise is its epsilon, above 0, not 0"),
        ({"a": [1, 1]}, {"noise": "rounding", "noise_scale": -5}, "rounding noise is its step, a number of 0 or .* -5"),
        ({"a": [1, 1]}, {"noise": "rounding", "noise_scale": {"b": 1}}, "bag 'a' has no noise_scale"),
        ({"a": [1, 1]}, {"noise": "rounding", "noise_scale": "much"}, "noise_scale must be a number, or one a bag"),
        (
            {"a": [5, 0]},
            {"noise": "rounding", "noise_scale": 5},
            "bag 'a': class '0' is 5, to which none of 0 to 2 rounds by steps of 5",
        ),
        (
            {"a": [0.5, 1]},
            {"noise": "rounding", "noise_scale": 0.3},
            "bag 'a': class '0' is 0.5, to which none of 0 to 2 rounds by steps of 0.3",
        ),
        (
            {"a": [0, 0]},
            {"noise": "rounding", "noise_scale": 1},
            "bag 'a': no counts that round to its numbers by steps of 1 sum to the bag's 2 rows",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(table, options, message: str) -> None:
    with pytest.raises(LLPError, match=message) as caught:
        Bags.from_table(["a", "a"], table, values="counts", **options)
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=2, max_size=3).filter(any),
    step=st.sampled_from([1, 2, 3, 5, 10]),
    unobserved=st.booleans(),
)
def test_what_was_rounded_is_accepted_and_what_nothing_rounds_to_is_not(counts, step, unobserved) -> None:
    """By trying all counts that the bag could have."""
    size = sum(counts)
    reported = [float(step * round(m / step)) for m in counts]
    if unobserved:
        reported[0] = nan
    bags = Bags.from_table(["a"] * size, {"a": reported}, values="counts", noise="rounding", noise_scale=step)
    assert bags.proportions.sum() == pytest.approx(1)

    changed = [z + step for z in reported]
    possible = any(
        sum(trial) == size and all(math.isnan(z) or abs(z - m) <= step / 2 for z, m in zip(changed, trial, strict=True))
        for trial in product(range(size + 1), repeat=len(counts))
    )
    try:
        Bags.from_table(["a"] * size, {"a": changed}, values="counts", noise="rounding", noise_scale=step)
    except LLPError:
        assert not possible
    else:
        assert possible


def test_files_and_parts_keep_all_that_was_reported(tmp_path: Path) -> None:
    table = {"a": [-1.5, 2.0, 9.0], "b": [-1.0, -2.0, 0.0], "c": [0.25, nan, 0.25]}
    scale = {"a": 1.0, "b": 2.0, "c": 3.0}
    bags = Bags.from_table(ROWS, table, values="counts", noise="gaussian", noise_scale=scale)
    bags.save(tmp_path / "bags.npz")
    loaded = Bags.load(tmp_path / "bags.npz")
    assert loaded.content_hash == bags.content_hash
    np.testing.assert_array_equal(loaded.reported, bags.reported)
    assert loaded.noise.kind == "gaussian" and loaded.noise.scale.tolist() == [1, 2, 3]
    train, held_out = bags.hold_out(1, seed=0)
    both = {bag.item(): row for part in (train, held_out) for bag, row in zip(part.bag_ids, part.reported, strict=True)}
    for bag, row in table.items():
        np.testing.assert_array_equal(both[bag], row)
    assert {b.item(): s for p in (train, held_out) for b, s in zip(p.bag_ids, p.noise.scale, strict=True)} == scale


def test_every_part_of_what_is_known_is_in_the_hash() -> None:
    table = {"a": [-1.0, 3.0], "b": [1.0, 1.0], "c": [0.0, 1.0]}

    def bags(noise="gaussian", scale=1.0, **change):
        return Bags.from_table(ROWS, table | change, values="counts", noise=noise, noise_scale=scale)

    exact = Bags.from_table(ROWS, table | {"a": [0, 4]}, values="counts")
    # a is clipped to the same shares in all of them
    several = [exact, bags(), bags("laplace"), bags(scale=2.0), bags(a=[-2.0, 3.0]), bags(a=[nan, 4.0])]
    assert (several[1].proportions == exact.proportions).all()
    assert len({some.content_hash for some in several}) == len(several)


def test_files_without_noise_are_as_before(tmp_path: Path) -> None:
    """The hash and the format of exact bags, which runs of before have."""
    bags = Bags.from_table(["a", "b", "a"], {"a": [0.5, 0.5], "b": [0.0, 1.0]}, class_names=["good", "bad"])
    assert bags.content_hash == "59acc122ef502d923e57b645a48f804b013652118880eda35e629216477d8c49"
    bags.save(tmp_path / "bags.npz")
    with np.load(tmp_path / "bags.npz") as file:
        assert file["format_version"] == 1
        assert set(file.files) == {"format_version", "bag_of", "bag_ids", "proportions", "is_labelled", "class_names"}


def test_noise_is_not_changed_from_outside() -> None:
    scale = np.ones(2)
    noise = Noise("gaussian", scale)
    scale[0] = 5
    assert noise.scale.tolist() == [1, 1] and not noise.scale.flags.writeable
