import math
import tracemalloc

import numpy as np
import pytest

from torchllp import Bags
from torchllp.check import Finding, check_bags


def found(bags: Bags, inputs: np.ndarray | None = None) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_bags(bags, inputs)}


def warnings(bags: Bags, inputs: np.ndarray | None = None) -> set[str]:
    return {finding.subject for finding in check_bags(bags, inputs) if finding.level == "warning"}


def table(rows: list[list[float]], size: int = 20) -> Bags:
    ids = np.arange(len(rows)).repeat(size)
    return Bags.from_table(ids, dict(enumerate(rows)))


def spread_by_random(bags: Bags) -> float:
    return float(found(bags)["spread of the proportions"].value.split("(")[1].split()[0])


def test_random_bags_are_fine() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 4000)
    bags = Bags.random(labels, 16, 0)
    assert warnings(bags) == set()
    assert found(bags)["labelled bags"].value == "250"
    assert found(bags)["rank of the proportions"].value == "4 of 4"


@pytest.mark.parametrize("size", [1, 4, 16, 256])
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_the_yardstick_of_the_spread_is_random_bags(num_classes: int, size: int) -> None:
    shares = np.arange(1, num_classes + 1) / np.arange(1, num_classes + 1).sum()
    labels = np.random.default_rng(1).choice(num_classes, 60_000, p=shares)
    assert spread_by_random(Bags.random(labels, size, 0)) == pytest.approx(1, abs=0.1)


def test_no_bag_is_labelled() -> None:
    bags = table([[0.5, 0.5], [0.1, 0.9]])
    unknown = Bags(
        bag_of=bags.bag_of,
        bag_ids=bags.bag_ids,
        proportions=np.zeros((2, 2)),
        is_labelled=np.zeros(2, dtype=bool),
        class_names=bags.class_names,
    )
    assert warnings(unknown) == {"labelled bags"}


def test_bags_of_one_class_each_differ_more() -> None:
    assert spread_by_random(table([[1, 0], [0, 1]] * 20)) > 3


def test_equal_proportions_teach_nothing() -> None:
    bags = table([[0.5, 0.5]] * 30)
    assert warnings(bags) == {"spread of the proportions", "rank of the proportions"}
    assert found(bags)["rank of the proportions"].value == "1 of 2"
    assert warnings(table([[1.0, 0.0]] * 30)) == {"spread of the proportions", "classes without any mass"}


def test_two_classes_that_always_come_together() -> None:
    rows = [[1 - 2 * x, x, x] for x in np.linspace(0.15, 0.4, 30)]
    assert warnings(table(rows)) == {"rank of the proportions"}
    nearly = [[a, b + 1e-5 * (-1) ** i, c - 1e-5 * (-1) ** i] for i, (a, b, c) in enumerate(rows)]
    assert warnings(table(nearly)) == {"condition of the proportions"}


def test_fewer_bags_than_classes() -> None:
    assert warnings(table([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])) == {"labelled bags", "rank of the proportions"}


def test_rare_and_missing_classes() -> None:
    rows = [[0.6 + 0.01 * i, 0.396 - 0.01 * i, 0.004, 0.0] for i in range(20)]
    result = found(table(rows))
    assert result["rare classes"].value == "2" and result["rare classes"].level == "warning"
    assert result["classes without any mass"].value == "3"
    assert result["class shares"].level == "note"
    assert result["classes in 95% of the bags"].value == "3 of 4, 3 of them in every bag"


def test_unlabelled_bags_and_instances_in_no_bag() -> None:
    bags = Bags.from_table(["a"] * 6 + ["b"] * 2 + ["z"] * 2, {"a": [0.5, 0.5], "b": [0, 1]}, unlabelled="keep")
    finding = found(bags)["bags without proportions"]
    assert finding.value == "1" and "20.0%" in finding.meaning
    assert found(bags.select(np.array([0, 2])))["instances in no bag"].value == "2"


def test_identical_instances() -> None:
    bags = table([[0.5, 0.5], [0.1, 0.9], [0.9, 0.1]], size=4)
    inputs = np.arange(12, dtype=np.uint8)[:, None]
    assert found(bags, inputs)["identical instances"].value == "none"
    inputs[1] = inputs[0]
    finding = found(bags, inputs)["identical instances"]
    assert finding.value == "2 in 1 groups" and finding.level == "fine"
    inputs[11] = inputs[0]
    finding = found(bags, inputs)["identical instances"]
    assert finding.value == "3 in 1 groups" and finding.level == "warning"
    assert "1 groups are in several bags" in finding.meaning


def test_identical_instances_by_plain_loops() -> None:
    """Few values, and these at the end: many copies, in one bag, in several bags, and in no bag."""
    generator = np.random.default_rng(0)
    inputs = np.zeros((200, 3, 9, 4), dtype=np.uint8)
    inputs[:, 2, 8] = generator.integers(0, 4, (200, 4))
    bag_of = generator.integers(-1, 60, 200)
    bag_of[:60] = np.arange(60)
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(bag_of >= 0):
        rows.setdefault(str(inputs[row].tolist()), []).append(row)
    copies = [same for same in rows.values() if len(same) > 1]
    across = sum(len({bag_of[row] for row in same}) > 1 for same in copies)
    assert 0 < len(copies) < len(rows) and across > 0
    finding = found(Bags.from_labels(bag_of, generator.integers(0, 2, 200)), inputs)["identical instances"]
    assert finding.value == f"{sum(map(len, copies))} in {len(copies)} groups"
    assert finding.meaning.startswith(f"{across} groups are in several bags")


def test_identical_instances_are_found_in_little_memory() -> None:
    inputs = np.random.default_rng(0).integers(0, 256, (2000, 5000), dtype=np.uint8)
    bags = table([[0.5, 0.5], [0.1, 0.9]] * 50)
    tracemalloc.start()
    check_bags(bags, inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < inputs.nbytes / 5


def test_uncertain_bags_are_said_to_be() -> None:
    ids, table = ["a", "a", "b", "b", "c"], {"a": [1.0, -1.0], "b": [math.nan, 2.0], "c": [1.0, 0.0]}
    scale = {"a": 2.0, "b": 3.0, "c": 0.0}
    bags = Bags.from_table(ids, table, values="counts", noise="gaussian", noise_scale=scale)
    findings = found(bags)
    assert findings["bags with a class that was not observed"].value == "1"
    assert findings["noise of the counts"].value == "gaussian, scale 2 to 3"
    assert findings["noise of the counts"].meaning.startswith("in 2 bags: ")
    exact = found(Bags.from_table(ids, {"a": [1, 0], "b": [0, 1], "c": [1, 0]}))
    assert not exact.keys() & {"noise of the counts", "bags with a class that was not observed"}
