"""Runs that are cut down: they stand for the others, and tell what these will take."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchllp import Bags, load_dataset
from torchllp.config import Recipe
from torchllp.data.sampler import plan_epoch
from torchllp.experiments.cost import COPIES, SIZES, Meter, steps_an_epoch
from torchllp.experiments.directory import SuiteDirectory
from torchllp.experiments.generated import NUM_TEST, write_generated
from torchllp.experiments.paper_table1 import SUITE
from torchllp.experiments.scales import SCALES
from torchllp.experiments.smoke import cut_down
from torchllp.experiments.suite import Cell
from torchllp.experiments.worker import train

NUM_CLASSES = {"fashion-mnist": 10, "svhn": 10, "cifar10": 10, "cifar100": 100, "mini-imagenet": 10}


@pytest.mark.parametrize("dataset", NUM_CLASSES)
def test_generated_files_are_read_like_the_real_ones(dataset: str, tmp_path: Path) -> None:
    write_generated(dataset, tmp_path)
    data = load_dataset(dataset, tmp_path)
    assert len(data.class_names) == NUM_CLASSES[dataset]
    assert data.test is not None and len(data.test) == NUM_TEST
    assert len(data.train) // 8 >= len(data.class_names)  # bags enough for LLPFC
    assert data.train.labels is not None and len(data.train.labels.unique()) == NUM_CLASSES[dataset]


def test_cells_that_are_alike_once_cut_down_share_a_run(tmp_path: Path) -> None:
    cells = [*SUITE.cells(SCALES["quick"])]
    small = cut_down(cells, tmp_path)
    assert {*small} == {cell.name for cell in cells}
    kinds = {cell.name: cell for cell in small.values()}
    assert sorted(cell.row for cell in kinds.values()) == sorted({cell.row for cell in cells})
    for cell in kinds.values():
        assert cell.after is None or cell.after in kinds
        assert (cell.bag_size, cell.config.recipe.epochs, cell.config.recipe.steps_per_epoch) == (8, 1, 2)
        assert cell.config.recipe.instances_per_step == 16


@given(
    num_train=st.integers(1, 3000),
    bag_size=st.integers(1, 70),
    budget=st.integers(1, 300),
    steps=st.none() | st.integers(1, 50),
)
def test_steps_are_those_of_the_training(num_train: int, bag_size: int, budget: int, steps: int | None) -> None:
    num_train = max(num_train, bag_size)
    bags = Bags.random(np.arange(num_train) % 2, bag_size, seed=0, class_names=("a", "b"))
    planned = plan_epoch(bags, budget, seed=0, epoch=0, steps_per_epoch=steps)
    recipe = Recipe(instances_per_step=budget, steps_per_epoch=steps)
    assert steps_an_epoch(recipe, num_train, bag_size) == len(planned)


def test_sizes_are_those_of_the_data() -> None:
    data = load_dataset("digits")
    assert data.test is not None and SIZES["digits"] == (len(data.train), len(data.test))


def measured(cell: Cell, folder: Path, num_instances: int) -> Meter:
    directory, meter = SuiteDirectory(folder), Meter(num_instances)
    train(cut_down([cell], folder / "files", num_instances=num_instances)[cell.name], directory, meter)
    assert not directory.failure_file(cell).is_file(), directory.why_failed(cell)
    return meter


def test_memory_grows_with_the_step_and_the_weights(tmp_path: Path) -> None:
    """Activations by the instance are the same from steps of 16 and of 128, and weights are those of the model."""
    cell = SCALES["quick"].cell("digits", "dllp", 16, 0)
    larger = cell.over({"recipe": {"instances_per_step": 1024}})
    meters = [measured(cell, tmp_path / str(number), number) for number in (16, 128)]
    costs = [meter.cost(each.config) for meter in meters for each in (cell, larger)]
    small, large = costs[0].memory, costs[1].memory
    assert costs[2].memory == pytest.approx(small, rel=0.1) and costs[3].memory == pytest.approx(large, rel=0.1)
    an_instance = (large - small) / (1024 - 128)
    weights = (small - 128 * an_instance) / COPIES
    directory = SuiteDirectory(tmp_path / "16")
    assert weights == pytest.approx(directory.run(cell.name).model_file.stat().st_size, rel=0.1)
    assert costs[0].num_steps == 150 * 12 and costs[1].num_steps == 150 * 2
    assert costs[0].seconds > 0
