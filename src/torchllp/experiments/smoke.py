"""Every kind of run of a suite, cut down to seconds: two steps of two bags of 8, on generated files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchllp.experiments.generated import write_generated
from torchllp.experiments.suite import Cell

BAG_SIZE = 8


def cut_down(
    cells: Sequence[Cell], files: Path, *, num_instances: int = 2 * BAG_SIZE, num_steps: int = 2
) -> dict[str, Cell]:
    """The name of each cell -> it as a run of seconds; cells that are then the same, as by seed or bag size, share one.

    The data sets' files are written below ``files``, unless they are there.
    """
    for dataset in {cell.dataset for cell in cells}:
        if not (files / dataset).exists():
            write_generated(dataset, files / dataset)
    recipe = {"epochs": 1, "steps_per_epoch": num_steps, "instances_per_step": num_instances}
    by_config: dict[str, Cell] = {}
    by_name: dict[str, Cell] = {}
    for cell in cells:
        data = {
            "bag_size": BAG_SIZE,
            "data_dir": str(files / cell.dataset),
            "num_train": None,
            "num_test": num_instances,
        }
        small = cell.over({"data": data, "recipe": recipe, "seed": 0})
        if cell.after is not None:
            small = replace(small, after=by_name[cell.after].name)
        by_name[cell.name] = by_config.setdefault(small.config.to_toml(), small)
    return by_name
