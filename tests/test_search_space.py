"""What `llp tune` tries: names, ranges and values, and the configs that they make."""

import optuna
import pytest

from torchllp import Config, LLPError, list_methods
from torchllp.config import Recipe
from torchllp.methods import METHODS, method_numbers
from torchllp.search_space import MAIN_NUMBERS, Choice, Range, SearchSpace


def test_ranges_and_values() -> None:
    texts = {"lr": "0.01:1:log", "epochs": "2:9", "noise": "0:0.5", "optimizer": "sgd,adamw", "instance_weight": "0:1"}
    space = SearchSpace(texts, Config())
    assert space.specs == {
        "lr": Range(0.01, 1, log=True, whole=False),
        "epochs": Range(2, 9, log=False, whole=True),
        "noise": Range(0, 0.5, log=False, whole=False),
        "optimizer": Choice(("sgd", "adamw")),
        "instance_weight": Range(0, 1, log=False, whole=False),
    }


def test_a_draw_is_a_config() -> None:
    base = Config.layered({"method": {"options": {"weigh_bags": False}}, "recipe": {"lr": 0.5}, "seed": 3})
    space = SearchSpace({"epochs": "2:9", "beta_bag": "1:5"}, base)
    config = space.draw(optuna.trial.FixedTrial({"epochs": 7, "beta_bag": 2.5}))
    expected = {"method": {"options": {"weigh_bags": False, "beta_bag": 2.5}}, "recipe": {"lr": 0.5, "epochs": 7}}
    assert config == Config.layered(expected, {"seed": 3})


def test_only_what_a_method_has_is_drawn() -> None:
    base = Config.layered({"method": {"options": {"beta_instance": 7.0}}})
    texts = {
        "method": "ahil,rot,llp-vat,dllp",
        "beta_bag": "1:5",
        "rot.eps": "0.1:1",
        "llp-vat.eps": "2:9",
        "lr": "0.1:1",
    }
    space = SearchSpace(texts, base)
    drawn = {
        name: space.draw(
            optuna.trial.FixedTrial({"method": name, "beta_bag": 2.0, "rot.eps": 0.5, "llp-vat.eps": 3.0, "lr": 0.2})
        )
        for name in space.methods
    }
    assert {name: config.method.options for name, config in drawn.items()} == {
        "ahil": {"beta_instance": 7.0, "beta_bag": 2.0},
        "rot": {"eps": 0.5},
        "llp-vat": {"eps": 3.0},
        "dllp": {},
    }
    assert {config.recipe.lr for config in drawn.values()} == {0.2}


def test_a_setting_of_the_recipe_goes_before_a_number_of_the_same_name() -> None:
    base = Config.layered({"method": {"name": "softmatch"}})
    space = SearchSpace({"ema_decay": "0.9:0.99", "softmatch.ema_decay": "0.5:0.6"}, base)
    config = space.draw(optuna.trial.FixedTrial({"ema_decay": 0.95, "softmatch.ema_decay": 0.55}))
    assert config.recipe.ema_decay == 0.95 and config.method.options == {"ema_decay": 0.55}


def test_where_the_base_is() -> None:
    texts = {
        "method": "ahil,dllp",
        "lr": "0.2:1",
        "beta_bag": "0.5:5",
        "steps_per_epoch": "1:5",
        "bag_weighting": "equal,size",
    }
    assert SearchSpace(texts, Config()).base_values() == {"method": "ahil", "beta_bag": 1.0, "bag_weighting": "equal"}
    assert SearchSpace({"method": "rot,dllp"}, Config()).base_values() == {}


@pytest.mark.parametrize("method", [name for name in list_methods() if METHODS.load(name).learns_classes])
def test_default_spaces_have_the_recipe_inside(method: str) -> None:
    base = Config.layered({"method": {"name": method}, "recipe": {"lr": 3e-4}})
    space = SearchSpace.default(base)
    assert space.texts["lr"] == "3e-05:0.003:log"
    assert set(space.texts) == {"lr", *MAIN_NUMBERS.get(method, {})} <= {"lr", *method_numbers(method)}
    assert space.base_values() == {"lr": 3e-4} | {n: method_numbers(method)[n] for n in MAIN_NUMBERS.get(method, {})}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"lr": "0.1"}, "lr=0.1: several values are A,B,C, and a range is LOW:HIGH or LOW:HIGH:log"),
        ({"lr": "0.1,0.1"}, "several values"),
        ({"lr": "0.1,,0.2"}, "several values"),
        ({"lr": "1:0.1"}, "lr=1:0.1: a range is LOW:HIGH"),
        ({"lr": "small:large"}, "a range is LOW:HIGH"),
        ({"lr": "0.1:inf"}, "a range is LOW:HIGH"),
        ({"lr": "0.1:1:lin"}, "a range is LOW:HIGH"),
        ({"lr": "0:1:log"}, "lr=0:1:log: a range by logarithms starts above 0"),
        ({"lr": "-1:1"}, "lr=-1:1: recipe.lr: input should be greater than 0, not -1"),
        ({"epochs": "0.5:3"}, "epochs=0.5:3: it is a whole number"),
        ({"optimizer": "1:2"}, "optimizer=1:2: it is no number, so give its values"),
        ({"optimizer": "sgd,adam"}, "optimizer=sgd,adam: recipe.optimizer"),
        ({"beta_bag": "-1:5"}, "beta_bag=-1:5: beta_bag must be above 0"),
        ({"weigh_bags": "0:1"}, "it is no number"),
        ({"beta_bga": "1:5"}, "unknown setting to search 'beta_bga': did you mean 'beta_bag'?"),
        ({"choose_by": "bag_kl,bag_mae"}, "unknown setting to search 'choose_by'"),
        ({"rot.eps": "1:5"}, "unknown setting to search 'rot.eps'"),
        ({"method": "ahil,rto"}, "unknown method 'rto': did you mean 'rot'?"),
        ({"method": "ahil,simclr"}, "simclr learns features and no classes"),
    ],
)
def test_what_cannot_be_searched(texts: dict[str, str], message: str) -> None:
    with pytest.raises(LLPError) as error:
        SearchSpace(texts, Config())
    assert message in str(error.value)


def test_every_setting_of_the_recipe_but_the_criterion_can_be_searched() -> None:
    numbers = {
        name for name in Recipe.model_fields if name not in ("choose_by", "optimizer", "schedule", "randaugment")
    }
    texts = {name: "1:2" if name.endswith(("epochs", "epoch", "step")) else "0.1:0.2" for name in numbers}
    assert set(SearchSpace(texts, Config()).names_of("ahil")) == numbers
