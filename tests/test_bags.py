import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchllp import Bags, LLPError
from torchllp.bags import SUM_TOLERANCE, default_held_out
from torchllp.noise import Noise

TABLE = {"a": [0.5, 0.5], "b": [0.0, 1.0]}
ROWS = ["a", "b", "a"]


def test_strings_and_proportions() -> None:
    bags = Bags.from_table(ROWS, TABLE, class_names=["good", "bad"])
    assert len(bags) == 2
    assert bags.bag_ids.tolist() == ["a", "b"]
    assert bags.sizes.tolist() == [2, 1]
    assert bags.bag_of.tolist() == [0, 1, 0]
    assert bags.proportions.tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert bags.class_names == ("good", "bad")
    assert bags.is_labelled.all()


@pytest.mark.parametrize(
    "ids", [[7, 3, 7], np.array([7, 3, 7]), np.array([7, 3, 7], dtype=np.uint8), torch.tensor([7, 3, 7])]
)
def test_whole_numbers_and_counts(ids) -> None:
    bags = Bags.from_table(ids, {7: [2, 0], 3: [0, 1]}, values="counts")
    assert bags.bag_ids.tolist() == [3, 7]
    assert bags.proportions.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert bags.counts.tolist() == [[0.0, 1.0], [2.0, 0.0]]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"a": [math.nan, 1.2], "b": [0, 1]}, {}, "bag 'a': the observed classes sum to 1.2, more than 1"),
        ({"a": [math.inf, 1], "b": [0, 1]}, {}, "bag 'a': class 'x' is inf: infinite"),
        ({"a": [1.5, -0.5], "b": [0, 1]}, {}, "bag 'a': class 'y' is -0.5: negative"),
        ({"a": [0.5, 0.4], "b": [0, 1]}, {}, r"bag 'a': the classes sum to 0.9 instead of 1 \(tolerance 0.001\)"),
        ({"a": [0, 0], "b": [0, 1]}, {"normalize": True}, "bag 'a': the classes sum to 0"),
        ({"a": [1, 2], "b": [0, 1]}, {"values": "counts"}, "bag 'a': the classes sum to 3 instead of the bag's 2 rows"),
        ({"a": [0.5, 0.5], "b": [1]}, {}, "bag 'b' has 1 numbers in the bag table and the first bag 2"),
        ({"a": ["x", 0.5], "b": [0, 1]}, {}, "bag 'a' has 'x' in the bag table, which is no number"),
        ({**TABLE, "c": [1, 0]}, {}, "bag 'c' is in the bag table but has no row"),
        ({"a": [0.5, 0.5]}, {}, r"1 of the rows' bags are not in the bag table \(first: 'b'\): say unlabelled 'keep'"),
        ({"a": [1], "b": [1]}, {"class_names": ["x"]}, "at least two classes, not 1"),
        (TABLE, {"class_names": ["x", "y", "z"]}, "3 class names were given for the 2 classes"),
        ({1: [0.5, 0.5], 2: [0, 1]}, {}, "bag ids are strings in the rows and whole numbers in the bag table"),
        (TABLE, {"unlabelled": "ignore"}, "unlabelled must be 'keep' or 'drop', not 'ignore'"),
        (TABLE, {"values": "percent"}, "values must be 'proportions' or 'counts', not 'percent'"),
        ({}, {}, "no bag in the bag table"),
        ({"a": 0.3, "b": 0.7}, {}, "bag 'a' has 0.3 in the bag table: give one number a class"),
        ({"a": "half", "b": [0, 1]}, {}, "bag 'a' has 'half' in the bag table"),
        ([[0.5, 0.5], [0, 1]], {}, "the bag table must map each bag's id to one number a class, not be a list"),
        (TABLE, {"class_names": ["x", "x"]}, "two classes have the same name: x, x"),
    ],
)
def test_bad_tables_get_one_clear_sentence(table, options, message: str) -> None:
    with pytest.raises(LLPError, match=message) as caught:
        Bags.from_table(ROWS, table, **({"class_names": ["x", "y"]} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "there is no row"),
        ([1.5, 2.0], "row 0 has the bag id 1.5"),
        (["a", None], "row 1 has the bag id None"),
        (["a", 1], "row 1 has the bag id 1 and row 0 'a'"),
        ([True, False], "row 0 has the bag id True"),
        (["a", ("a", "b")], r"row 1 is in several bags \(\('a', 'b'\)\): an instance belongs to one bag"),
        (np.array([[1, 2], [3, 4]]), "row 0 is in several bags"),
        ([2**63, 1], "row 0 has the bag id 9223372036854775808, which is too large"),
        (np.array([2**64 - 1, 1], dtype=np.uint64), "too large"),
        (["a", "a\0"], "has a NUL character"),
    ],
)
def test_bad_ids_get_one_clear_sentence(ids, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        Bags.from_table(ids, TABLE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": Noise("gaussian", np.ones(2))}, "noise is of reported counts, to be given with it"),
        ({"reported": np.ones((2, 2)), "noise": Noise("gaussian", np.ones(3))}, "has a scale for each of 2"),
        ({"reported": np.ones((2, 3))}, r"reported must be of shape \(2, 2\), not \(2, 3\)"),
        ({"reported": np.full((2, 2), math.nan)}, "bag 'a': is labelled, and none of its classes was observed"),
        ({"reported": np.array([[1, 2], [0, 1]])}, "bag 'a': the classes sum to 3 instead of the bag's 2 rows"),
        ({"proportions": np.array([[math.nan, 1], [0, 1]])}, "bag 'a': class '0' is nan"),
        ({"proportions": np.array([[3, 4], [0, 1]])}, "bag 'a': the classes sum to 7 instead of 1"),
        ({"proportions": np.ones((2, 3)) / 3}, r"need proportions of shape \(2, 2\), not \(2, 3\)"),
        ({"is_labelled": np.array([True])}, r"as many values of is_labelled, not \(1,\)"),
        ({"is_labelled": np.array([True, False])}, "of a bag that is not labelled must be zeros"),
        ({"bag_of": np.array([0, 1, 2])}, "bag_of must be from 0 to 1, or -1"),
        ({"bag_of": np.array([0, 0, 0])}, "bag 'b' is in the bag table but has no row"),
    ],
)
def test_the_object_itself_refuses_what_is_wrong(change, message: str) -> None:
    bags = Bags.from_table(ROWS, TABLE)
    fields = {name: getattr(bags, name) for name in ("bag_of", "bag_ids", "proportions", "is_labelled", "class_names")}
    with pytest.raises(LLPError, match=message):
        Bags(**(fields | change))


def test_proportions_are_rescaled_within_the_tolerance_and_on_demand() -> None:
    near = Bags.from_table(ROWS, {"a": [0.5, 0.5 + SUM_TOLERANCE / 2], "b": [0, 1]})
    assert near.proportions.sum(1).tolist() == pytest.approx([1, 1], abs=1e-15)
    far = Bags.from_table(ROWS, {"a": [30, 10], "b": [0, 5]}, normalize=True)
    assert far.proportions.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    counts = Bags.from_table(ROWS, {"a": [30, 10], "b": [0, 5]}, values="counts", normalize=True)
    assert counts.counts.tolist() == [[1.5, 0.5], [0.0, 1.0]]


def test_rows_of_unlabelled_bags_are_kept_or_dropped() -> None:
    rows = ["a", "z", "b", "z", "a"]
    kept = Bags.from_table(rows, TABLE, unlabelled="keep")
    assert kept.bag_ids.tolist() == ["a", "b", "z"]
    assert kept.is_labelled.tolist() == [True, True, False]
    assert kept.proportions[2].tolist() == [0, 0]
    assert "1 unlabelled" in repr(kept)
    dropped = Bags.from_table(rows, TABLE, unlabelled="drop")
    assert dropped.bag_of.tolist() == [0, -1, 1, -1, 0]
    assert dropped.is_labelled.all() and len(dropped) == 2


@settings(deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=60), size=st.integers(1, 20), seed=st.integers(0, 1000))
def test_random_bags_are_disjoint_equal_and_say_the_truth(labels: list[int], size: int, seed: int) -> None:
    values = np.array(labels)
    if size > len(values):
        with pytest.raises(LLPError, match="bag_size must be between 1 and"):
            Bags.random(values, size, seed)
        return
    bags = Bags.random(values, size, seed, class_names=list("abcd"))
    assert len(bags) == len(values) // size
    assert (bags.sizes == size).all()
    assert np.count_nonzero(bags.bag_of < 0) == len(values) % size
    for bag in range(len(bags)):
        truth = np.bincount(values[bags.bag_of == bag], minlength=4) / size
        np.testing.assert_array_equal(bags.proportions[bag], truth)


def test_random_bags_follow_the_seed() -> None:
    labels = np.arange(100) % 5
    same, again, other = (Bags.random(labels, 10, seed).content_hash for seed in (1, 1, 2))
    assert same == again != other


@pytest.mark.parametrize("labels", [np.array([0.5, 1.0]), np.array([-1, 0]), np.array([[0, 1]])])
def test_random_bags_need_labels(labels) -> None:
    with pytest.raises(LLPError, match="labels must be one whole number"):
        Bags.random(labels, 1, 0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=50), st.randoms())
def test_members_of_any_bags_in_any_order(ids: list[int], random) -> None:
    bags = Bags.from_table(ids, {bag: [0.5, 0.5] for bag in set(ids)})
    rows = list(range(len(bags)))
    random.shuffle(rows)
    chosen = np.array(rows[: max(1, len(rows) // 2)])
    members, index = bags.members_of(chosen)
    expected = [(row, place) for place, bag in enumerate(chosen) for row in np.flatnonzero(bags.bag_of == bag)]
    assert list(zip(members.tolist(), index.tolist(), strict=True)) == expected


def test_held_out_bags_are_labelled_and_disjoint_from_the_rest() -> None:
    rows = [f"{i // 2:02}" for i in range(100)]
    table = {f"{i:02}": [0.5, 0.5] for i in range(40)}
    train, held_out = Bags.from_table(rows, table, unlabelled="keep").hold_out(8, seed=3)
    assert held_out is not None
    assert len(train) == 42 and len(held_out) == 8
    assert held_out.is_labelled.all() and train.is_labelled.sum() == 32
    assert not set(train.members) & set(held_out.members)
    assert set(train.members) | set(held_out.members) == set(range(100))
    assert not set(train.bag_ids.tolist()) & set(held_out.bag_ids.tolist())


def test_nothing_held_out_and_too_much() -> None:
    bags = Bags.from_table(ROWS, TABLE)
    assert bags.hold_out(0, seed=0) == (bags, None)
    with pytest.raises(LLPError, match="2 bags cannot be held out of 2 labelled bags"):
        bags.hold_out(2, seed=0)


def test_how_many_are_held_out_by_default() -> None:
    assert [default_held_out(n) for n in (1, 19, 20, 30, 40, 1000)] == [0, 0, 3, 3, 4, 100]


@pytest.mark.parametrize("ids", [ROWS, [5, 9, 5], ["ä", "b c", "ä"]])
def test_saved_bags_come_back_and_hash_alike(ids, tmp_path: Path) -> None:
    bags = Bags.from_table(ids, {ids[0]: [0.25, 0.75], ids[1]: [0, 1]}, class_names=["ja", "nein"])
    bags.save(tmp_path / "bags.npz")
    loaded = Bags.load(tmp_path / "bags.npz")
    assert loaded.content_hash == bags.content_hash
    assert loaded.bag_ids.tolist() == bags.bag_ids.tolist()
    np.testing.assert_array_equal(loaded.proportions, bags.proportions)


def test_the_hash_notices_every_part() -> None:
    variants = [
        Bags.from_table(ROWS, TABLE),
        Bags.from_table(["a", "b", "b"], TABLE),
        Bags.from_table(ROWS, TABLE | {"b": [0.1, 0.9]}),
        Bags.from_table(ROWS, TABLE, class_names=["x", "y"]),
        Bags.from_table(["a", "c", "a"], {"a": TABLE["a"], "c": TABLE["b"]}),
        Bags.from_table([*ROWS, "z"], TABLE, unlabelled="keep"),
        Bags.from_table([*ROWS, "z"], TABLE, unlabelled="drop"),
    ]
    assert len({bags.content_hash for bags in variants}) == len(variants)


def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from torchllp import Bags; print(Bags.from_table(['a','b','a'], {'a':[.5,.5],'b':[0.,1.]}).content_hash)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == Bags.from_table(ROWS, TABLE).content_hash


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04broken"])
def test_a_file_that_is_no_bags_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bags.npz"
    path.write_bytes(content)
    with pytest.raises(LLPError, match=r"bags\.npz: not a bags file"):
        Bags.load(path)


def test_bags_cannot_be_changed_and_leave_the_callers_arrays_alone() -> None:
    ids = np.array([0, 1, 0])
    bags = Bags.from_table(ids, {0: [0.5, 0.5], 1: [0, 1]})
    ids[0] = 1
    assert bags.bag_of.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="read-only"):
        bags.proportions[0, 0] = 1


class TestWithLabels:
    @settings(deadline=None)
    @given(seed=st.integers(0, 2**31), num_bags=st.integers(1, 5), num_classes=st.integers(2, 4))
    def test_nothing_is_lost_and_nothing_is_added(self, seed: int, num_bags: int, num_classes: int) -> None:
        generator = np.random.default_rng(seed)
        bag_of = np.concatenate([np.arange(num_bags), generator.integers(-1, num_bags, size=20)])
        truth = generator.integers(num_classes, size=len(bag_of))
        names = [str(c) for c in range(num_classes)]
        bags = Bags.from_labels(bag_of, truth, class_names=names)
        known = np.where(generator.random(len(bag_of)) < 0.4, truth, -1)
        more = bags.with_labels(known)
        single = known >= 0
        assert (more.sizes[more.bag_of[single]] == 1).all()
        np.testing.assert_array_equal(more.proportions[more.bag_of[single]].argmax(1), truth[single])
        for bag in range(num_bags):
            others = np.flatnonzero(~single & (bag_of == bag))
            if len(others):
                assert len({*more.bag_of[others].tolist()}) == 1
                expected = np.bincount(truth[others], minlength=num_classes) / len(others)
                np.testing.assert_allclose(more.proportions[more.bag_of[others[0]]], expected, atol=1e-12)
        assert (more.bag_of[~single & (bag_of < 0)] == -1).all()

    def test_labels_that_contradict_the_bag_are_refused(self) -> None:
        bags = Bags.from_table(["a", "a", "b"], {"a": [1, 0], "b": [0, 1]}, class_names=["good", "bad"])
        with pytest.raises(LLPError, match="bag 'a': 1 of its instances are labelled 'bad', and 0 are of that class"):
            bags.with_labels(np.array([1, -1, -1]))
        with pytest.raises(LLPError, match="label 2 has no name"):
            bags.with_labels(np.array([2, -1, -1]))
        with pytest.raises(LLPError, match="one whole number for each of 3 instances"):
            bags.with_labels(np.array([0.5, -1, -1]))

    def test_shares_that_were_rounded_are_no_contradiction(self) -> None:
        bags = Bags.from_table(["a"] * 3, {"a": [0.33, 0.67]})
        assert bags.with_labels(np.array([0, -1, -1])).proportions[0].tolist() == pytest.approx([0, 1], abs=0.01)

        uncertain = Bags.from_table([0] * 10 + [1] * 2, {0: [0.36, 0.64], 1: [math.nan, 0.5]})
        labels = np.array([0] * 4 + [-1] * 8)
        assert uncertain.with_labels(labels).reported[0].tolist() == pytest.approx([0, 6])

    def test_uncertain_counts_keep_their_noise(self) -> None:
        bags = Bags.from_table(
            [0, 0, 0, 1, 1],
            {0: [2.4, -0.2], 1: [math.nan, 1.3]},
            values="counts",
            noise="gaussian",
            noise_scale={0: 1.0, 1: 2.0},
        )
        more = bags.with_labels(np.array([0, -1, -1, -1, -1]))
        assert more.reported is not None and more.noise is not None
        np.testing.assert_allclose(more.reported, [[1.4, -0.2], [math.nan, 1.3], [1, 0]])
        assert more.noise.scale.tolist() == [1, 2, 0] and more.bag_ids.tolist() == [0, 1, 2]
