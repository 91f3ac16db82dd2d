from pathlib import Path

import pytest
import torch

from torchllp import Config, LLPError, list_datasets, list_methods
from torchllp.config import read_toml
from torchllp.methods import create_method
from torchllp.models import create_model
from torchllp.presets import NAMES, TABLE, preset


def test_toml_round_trip(tmp_path: Path) -> None:
    config = Config.layered(preset("paper", "cifar10"), {"method": {"options": {"beta_bag": 5.0}}, "seed": 3})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert Config.layered(read_toml(path)) == config


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"recipe": {"learning_rate": 1}}, "there is no setting 'recipe.learning_rate'"),
        ({"recipe": {"lr": 0}}, "recipe.lr: input should be greater than 0, not 0"),
        ({"recipe": {"schedule": "cosine"}}, "recipe.schedule: input should be '7pi/16' or 'pi/2', not 'cosine'"),
        ({"data": {"bag_size": 0}}, "data.bag_size: input should be greater than or equal to 1, not 0"),
        ({"data": {"held_out": 1.0}}, "data.held_out"),
        ({"compute": {"precision": "int8"}}, "compute.precision"),
        ({"seed": "x"}, "seed: input should be a valid integer.*not 'x'"),
        ({"method": {"name": 3}}, "method.name"),
        ({"method": "dllp"}, "method: input should be a valid dictionary"),
        ({"method": {"options": 3}}, "method.options: input should be a valid dictionary"),
        ({"recipe": {"lr": float("inf")}}, "recipe.lr: input should be a finite number"),
        ({"recipe": 3}, "recipe: input should be a valid dictionary"),
    ],
)
def test_wrong_settings_are_one_sentence(layer, message: str) -> None:
    with pytest.raises(LLPError, match=message) as caught:
        Config.layered(layer)
    assert "\n" not in str(caught.value)


def test_later_layers_win_key_by_key() -> None:
    config = Config.layered({"recipe": {"lr": 0.5, "epochs": 7}}, {"recipe": {"lr": 0.25}}, {"seed": 9})
    assert (config.recipe.lr, config.recipe.epochs, config.seed) == (0.25, 7, 9)


def test_options_belong_to_their_method() -> None:
    ahil = {"method": {"name": "ahil", "options": {"beta_bag": 5.0}}}
    assert Config.layered(ahil, {"method": {"options": {"beta_instance": 2.0}}}).method.options == {
        "beta_bag": 5.0,
        "beta_instance": 2.0,
    }
    assert Config.layered(ahil, {"method": {"name": "dllp"}}).method.options == {}


@pytest.mark.parametrize("content", ["recipe = [", "\udcff"])
def test_a_file_that_is_no_toml(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(LLPError, match=r"config\.toml: not a TOML file"):
        read_toml(path)
    with pytest.raises(LLPError, match="there is no such file"):
        read_toml(tmp_path / "missing.toml")


@pytest.mark.parametrize("dataset", list_datasets())
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_config_that_can_be_built(name: str, dataset: str) -> None:
    config = Config.layered(preset(name, dataset))
    with torch.device("meta"):
        model = create_model(config.model.name, num_classes=10, input_shape=(3, 32, 32), **config.model.options)
    assert model is not None
    assert config.method.name in list_methods()
    assert create_method(config.method.name, **config.method.options).views == ("weak", "strong")


def test_a_table_has_a_recipe_of_its_own_and_none_of_the_papers() -> None:
    config = Config.layered(preset("quick", TABLE))
    assert (config.model.name, config.recipe.optimizer) == ("mlp", "adamw")
    assert Config.layered(preset("quick", TABLE, "linear")).recipe.lr > config.recipe.lr  # one layer has far to go
    with pytest.raises(LLPError, match="the paper recipe is for images"):
        preset("paper", TABLE)


def test_the_papers_recipe() -> None:
    paper, reference = (Config.layered(preset(name, "cifar10")).recipe for name in ("paper", "reference"))
    assert paper.epochs * (paper.steps_per_epoch or 0) == 2**20
    assert (paper.lr, paper.weight_decay, paper.instances_per_step, paper.schedule) == (0.03, 5e-4, 1024, "7pi/16")
    assert (reference.epochs, reference.steps_per_epoch, reference.schedule) == (1024, None, "pi/2")
    splits = [Config.layered(preset(name, "mini-imagenet")).data.split for name in ("paper", "reference")]
    assert splits == [None, "500-100"]  # 80 and 20 images a class by default
    with pytest.raises(LLPError, match="unknown preset 'papr': did you mean 'paper'"):
        preset("papr", "cifar10")


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
def test_the_papers_numbers_for_each_data_set(dataset, model, lr, weight_decay, beta) -> None:
    config = Config.layered(preset("paper", dataset))
    assert (config.model.name, config.recipe.lr, config.recipe.weight_decay) == (model, lr, weight_decay)
    assert config.method.options == {"beta_bag": beta, "beta_instance": beta}
    assert Config.layered(preset("paper", dataset), {"method": {"name": "dllp"}}).method.options == {}
