"""What the paper's suites train: exactly its settings at full scale, and the same tables at the two others."""

from collections import Counter

import pytest

from torchllp.config import Recipe
from torchllp.experiments import SUITES
from torchllp.experiments.cost import SIZES as SIZES_OF
from torchllp.experiments.cost import steps_an_epoch
from torchllp.experiments.published import published
from torchllp.experiments.scales import SCALES
from torchllp.experiments.suite import Cell
from torchllp.methods import METHODS, create_method

SIZES = [16, 32, 64, 128, 256]
every_suite = pytest.mark.parametrize("name", SUITES.names())
every_scale = pytest.mark.parametrize("scale", SCALES)


def cells_of(name: str, scale: str = "full") -> list[Cell]:
    return [*SUITES.load(name).cells(SCALES[scale])]


@every_suite
@every_scale
def test_every_run_has_a_name_of_its_own_and_a_method_that_exists(name: str, scale: str) -> None:
    cells = cells_of(name, scale)
    assert len({cell.name for cell in cells}) == len(cells)
    for number, cell in enumerate(cells):
        create_method(cell.config.method.name, **cell.config.method.options)
        assert cell.after is None or cell.after in {before.name for before in cells[:number]}
    assert SUITES.load(name).name == name


@every_scale
def test_runs_of_one_name_in_several_suites_are_one_run(scale: str) -> None:
    by_name: dict[str, Cell] = {}
    for suite in SUITES.names():
        for cell in cells_of(suite, scale):
            assert by_name.setdefault(cell.name, cell).config == cell.config
    ahil = {cell.name for cell in cells_of("paper-table1", scale) if cell.row == "ahil"}
    assert ahil >= {cell.name for cell in cells_of("paper-weights", scale)}
    table2 = {cell.name for cell in cells_of("paper-table2", scale) if cell.row == "both weights"}
    assert ahil >= table2


def test_table_1_is_that_of_the_paper() -> None:
    cells = cells_of("paper-table1")
    places = Counter((cell.dataset, cell.row, cell.bag_size) for cell in cells)
    assert set(places.values()) == {3}  # seeds
    for dataset in ("cifar10", "cifar100", "svhn", "fashion-mnist", "mini-imagenet"):
        for method in ("llpfc", "dllp", "llp-vat", "rot", "softmatch", "flmm", "ahil"):
            has_too_few_bags = (dataset, method) == ("mini-imagenet", "llpfc")  # for its 100 classes
            sizes = [16, 32, 64] if has_too_few_bags else SIZES
            assert sorted(size for data, row, size in places if (data, row) == (dataset, method)) == sizes
        assert [size for data, row, size in places if (data, row) == (dataset, "supervised")] == [16]


@pytest.mark.parametrize(
    ("dataset", "model", "lr", "weight_decay", "beta"),
    [
        ("fashion-mnist", "wrn-28-2", 0.03, 5e-4, 1),
        ("svhn", "wrn-28-2", 0.03, 5e-4, 1),
        ("cifar10", "wrn-28-2", 0.03, 5e-4, 1),
        ("cifar100", "wrn-28-8", 0.03, 1e-3, 5),
        ("mini-imagenet", "resnet18", 0.05, 1e-4, 5),
    ],
)
def test_full_scale_has_the_settings_of_section_4(
    dataset: str, model: str, lr: float, weight_decay: float, beta: float
) -> None:
    """All methods alike, but for FLMm, whose features come from elsewhere."""
    for cell in cells_of("paper-table1"):
        config = cell.config
        if cell.dataset != dataset or cell.row in ("flmm", "simclr"):
            continue
        assert (config.model.name, config.recipe.lr, config.recipe.weight_decay) == (model, lr, weight_decay)
        assert config.recipe.instances_per_step == 1024 and config.recipe.schedule == "7pi/16"
        assert config.recipe.epochs * (config.recipe.steps_per_epoch or 0) == 2**20
        assert config.data.bags == "random" and config.data.held_out == 0 and config.data.num_train is None
        if cell.row == "ahil":
            options = config.method.options
            assert (options["beta_bag"], options["beta_instance"]) == (beta, beta)
            assert options.get("instance_weight", 0.5) == 0.5


def test_flmm_trains_a_head_on_a_resnet_50_that_was_pretrained() -> None:
    cells = {cell.name: cell for cell in cells_of("paper-table1")}
    for cell in cells.values():
        if cell.row == "flmm":
            assert cell.config.freeze and cell.after is not None
            before = cells[cell.after]
            assert before.config.model == cell.config.model and cell.config.model.name == "resnet50"
            assert (before.seed, before.dataset) == (cell.seed, cell.dataset)
            assert not METHODS.load(before.config.method.name).learns_classes


def test_llpfc_groups_bags_anew_about_every_20_passes() -> None:
    """At full scale an epoch of 1,024 steps of 1,024 instances is many passes over the bags."""
    passes = set()
    for cell in cells_of("paper-table1"):
        if cell.row == "llpfc" and cell.dataset != "mini-imagenet":
            every = cell.config.method.options["regroup_every"]
            passes.add(every * 1024 / steps_an_epoch(Recipe(instances_per_step=1024), SIZES_OF[cell.dataset][0], 16))
    assert min(passes) >= 14 and max(passes) <= 21


def test_table_2_switches_the_weights_off() -> None:
    off = {
        (cell.row, cell.config.method.options.get("weigh_bags"), cell.config.method.options.get("weigh_instances"))
        for cell in cells_of("paper-table2")
    }
    assert off == {
        ("no weights", False, False),
        ("bag weights", None, False),
        ("instance weights", False, None),
        ("both weights", None, None),
    }
    betas = {(cell.dataset, cell.config.method.options["beta_bag"]) for cell in cells_of("paper-table2")}
    assert betas == {("cifar10", 1.0), ("cifar100", 5.0)}


def test_the_figures_have_the_bags_that_the_paper_says() -> None:
    def sizes(name: str) -> list[int]:
        return sorted({cell.bag_size for cell in cells_of(name)})

    assert sizes("paper-sensitivity") == [128]
    assert sizes("paper-weights") == [16, 64, 256]
    assert sizes("paper-tsne") == [256]
    assert sizes("paper-motivation") == SIZES
    assert {cell.config.recipe.epochs for cell in cells_of("paper-motivation")} == {500}
    assert [cell.row for cell in cells_of("paper-tsne")] == ["dllp", "rot", "ahil"]


@every_suite
def test_the_other_scales_are_small(name: str) -> None:
    for cell in cells_of(name, "quick"):
        assert cell.dataset == "digits" and cell.bag_size in (16, 64)
    for cell in cells_of(name, "cpu"):
        assert cell.config.data.num_train == {"fashion-mnist": 20_000, "svhn": 30_000}[cell.dataset]
        assert cell.config.model.name == "small-cnn" and cell.config.compute.threads == 1
        by_sgd = cell.row in ("contrast", "simclr")
        expected = ("sgd", 0.1) if by_sgd else ("adamw", 0.01 if cell.config.freeze else 0.003)
        assert (cell.config.recipe.optimizer, cell.config.recipe.lr) == expected
        assert cell.config.recipe.instances_per_step >= 2 * cell.bag_size or cell.row == "simclr"


def test_the_published_tables_are_whole() -> None:
    """Every cell of a full table stands beside what is printed, and its dashes are marked."""
    dashes = set()
    for name in ("paper-table1", "paper-table2"):
        table = SUITES.load(name).table
        for cell in cells_of(name):
            found = published(table, cell.dataset, cell.row, cell.bag_size)
            if cell.row == "simclr":
                assert found is None
                continue
            assert found is not None
            if found.accuracy is None:
                dashes.add((cell.dataset, cell.row))
                assert found.note
    assert dashes == {("cifar100", "llpfc"), ("mini-imagenet", "llpfc")} | {
        (dataset, "flmm") for dataset in ("svhn", "fashion-mnist", "mini-imagenet")
    }


@pytest.mark.parametrize(
    ("table", "dataset", "row", "bag_size", "accuracy", "deviation"),
    [
        ("table1", "cifar100", "flmm", 256, 57.10, None),
        ("table1", "svhn", "rot", 128, 26.00, 0.43),
        ("table1", "mini-imagenet", "softmatch", 128, 1.72, 0.33),
        ("table1", "fashion-mnist", "supervised", 64, 96.39, 0.02),
        ("table2", "cifar10", "no weights", 256, 51.90, 0.35),
        ("table2", "cifar100", "both weights", 256, 23.56, 2.13),
    ],
)
def test_some_printed_figures(
    table: str, dataset: str, row: str, bag_size: int, accuracy: float, deviation: float | None
) -> None:
    found = published(table, dataset, row, bag_size)
    assert found is not None and (found.accuracy, found.deviation) == (accuracy, deviation)


def test_a_head_on_frozen_features_takes_what_is_said_of_it() -> None:
    for scale in SCALES.values():
        features = scale.pretrained("fashion-mnist", 0)
        recipe = scale.cell("fashion-mnist", "flmm", 16, 0, after=features).config.recipe
        whole = scale.cell("fashion-mnist", "dllp", 16, 0).config.recipe
        assert (recipe.optimizer, recipe.lr, recipe.instances_per_step) == ("adamw", 0.01, whole.instances_per_step)
        said = scale.cell("fashion-mnist", "flmm", 16, 0, after=features, recipe={"lr": 0.5}).config.recipe
        assert said.lr == 0.5
