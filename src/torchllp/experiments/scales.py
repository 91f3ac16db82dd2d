"""How large the runs of a suite are: as the paper's, hours of a CPU, or minutes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchllp.config import Config
from torchllp.experiments.suite import Cell, name_of
from torchllp.methods import METHODS
from torchllp.presets import preset, pretraining

Layer = Mapping[str, Any]
SEEDS = (0, 1, 2)
"""The paper does not say how many of which its means are."""


@dataclass(frozen=True)
class Scale:
    """Which data, in which bags, by which recipe."""

    name: str
    recipe: str
    """Preset of all data sets."""
    datasets: tuple[str, ...] = ()
    """In place of the paper's; none: its own."""
    bag_sizes: tuple[int, ...] = ()
    """In place of the paper's; none: its own."""
    layer: Layer = field(default_factory=dict)
    """Over the preset."""
    by_dataset: Mapping[str, Layer] = field(default_factory=dict)
    """Over that."""
    pretraining: Layer = field(default_factory=dict)
    """Over the preset of pre-training."""
    seeds: tuple[int, ...] = SEEDS

    def datasets_for(self, *of_the_paper: str) -> tuple[str, ...]:
        return self.datasets or of_the_paper

    def bag_sizes_for(self, *of_the_paper: int) -> tuple[int, ...]:
        """The paper's sizes, each brought to the largest of this scale that is not above it, or else to the smallest.

        >>> SCALES["quick"].bag_sizes_for(16, 128, 256)
        (16, 64)
        """
        if not self.bag_sizes:
            return of_the_paper
        smallest = min(self.bag_sizes)
        sizes = [max((known for known in self.bag_sizes if known <= size), default=smallest) for size in of_the_paper]
        return tuple(dict.fromkeys(sizes))

    def cell(
        self,
        dataset: str,
        method: str,
        bag_size: int,
        seed: int,
        *,
        row: str | None = None,
        options: Layer | None = None,
        recipe: Layer | None = None,
        after: Cell | None = None,
    ) -> Cell:
        """A run by the recipe of this scale; ``after`` has its first weights.

        A method that is meant for frozen features trains a head alone on what was learnt there.
        """
        options, recipe = options or {}, recipe or {}
        freeze = after is not None and METHODS.load(method).for_frozen_features
        layers = [
            {} if freeze else preset(self.recipe, dataset),
            self.layer,
            self.by_dataset.get(dataset, {}),
            {"recipe": self._frozen_recipe(dataset) if freeze else {}},
            {"method": {"name": method, "options": options}, "recipe": recipe, "seed": seed},
            {"data": {"dataset": dataset, "bag_size": bag_size, "held_out": 0.0}},
        ]
        if after is not None:
            layers.append({"model": after.config.model.model_dump(), "freeze": freeze})
        name = name_of(dataset, method, **options, **recipe, bag=bag_size, seed=seed)
        return Cell(name, row or method, Config.layered(*layers), after.name if after else None)

    def _frozen_recipe(self, dataset: str) -> Layer:
        """What a head on frozen features is trained by: as many instances a step as whole networks, else its own."""
        whole = Config.layered(preset(self.recipe, dataset), self.layer).recipe
        return {"instances_per_step": whole.instances_per_step, **preset("quick", dataset, frozen=True)["recipe"]}

    def pretrained(self, dataset: str, seed: int) -> Cell:
        """Features that others start from, learnt without labels."""
        layers = [
            self.layer,
            self.by_dataset.get(dataset, {}),
            pretraining(dataset),
            self.pretraining,
            {"data": {"dataset": dataset}, "seed": seed},
        ]
        return Cell(name_of(dataset, "simclr", seed=seed), "simclr", Config.layered(*layers))

    def grid(self, datasets: tuple[str, ...], bag_sizes: tuple[int, ...]) -> Iterator[tuple[int, str, int]]:
        """Seed, data set and bag size, all of a seed first: what there is when it is stopped is a whole table.

        >>> next(SCALES["quick"].grid(("cifar10",), (16, 64)))
        (0, 'digits', 16)
        """
        for seed in self.seeds:
            for dataset in self.datasets_for(*datasets):
                for bag_size in self.bag_sizes_for(*bag_sizes):
                    yield seed, dataset, bag_size


ONE_THREAD: Layer = {"device": "cpu", "threads": 1}
"""So that a run is the same, bit for bit, however many are trained beside it."""
CPU_RECIPE: Layer = {"epochs": 30, "instances_per_step": 512, "optimizer": "adamw", "lr": 0.003}
"""Two bags of 256 a step: of one alone nothing is learnt; and AdamW, as in so few steps more is learnt than by SGD."""
SCALES = {
    "full": Scale("full", "paper"),
    "cpu": Scale(
        "cpu",
        "quick",
        ("fashion-mnist", "svhn"),
        (16, 64, 256),
        {"recipe": CPU_RECIPE, "compute": ONE_THREAD},
        {
            "fashion-mnist": {"data": {"num_train": 20_000, "num_test": 10_000}},
            "svhn": {"data": {"num_train": 30_000, "num_test": 10_000}},
        },
        {"model": {"name": "small-cnn"}, "recipe": {"epochs": 15, "instances_per_step": 256}},
    ),
    "quick": Scale(
        "quick",
        "quick",
        ("digits",),
        (16, 64),
        {"compute": ONE_THREAD},
        pretraining={"model": {"name": "small-cnn"}},
    ),
}
