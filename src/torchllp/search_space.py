"""What `llp tune` tries: settings by name, each with a range or a list of values, and the config of a draw."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchllp.config import Config, Recipe, plain_value
from torchllp.errors import LLPError
from torchllp.methods import METHODS, create_method, method_numbers
from torchllp.registry import unknown_name

MAIN_NUMBERS = {
    "ahil": {"beta_bag": "0.1:20:log", "beta_instance": "0.1:20:log", "instance_weight": "0.1:1"},
    "flmm": {"entropy_weight": "0.001:0.1:log", "label_weight": "5e-05:0.005:log"},
    "llp-vat": {"consistency_weight": "0.005:0.5:log", "eps": "0.6:60:log"},
    "rot": {"alpha": "0.1:0.9", "eps": "0.1:10:log"},
    "softmatch": {"instance_weight": "0.1:1", "n_sigma": "1:4"},
}
"""The numbers of a method that are tried where nothing is said."""
SETTINGS = tuple(name for name in Recipe.model_fields if name != "choose_by")  # which is what a trial is judged by


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, drawn evenly or, with ``log``, evenly by their logarithms."""

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def examples(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def draw(self, trial: Any, name: str) -> Any:
        suggest = trial.suggest_int if self.whole else trial.suggest_float
        return suggest(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Choice:
    """Some values."""

    examples: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.examples

    def draw(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.examples)


class SearchSpace:
    """Settings to try, by name: ``method``, a setting of the recipe, or a number of the methods that have it.

    ``METHOD.NUMBER`` is that of one method alone. What to try of it is ``low:high``, ``low:high:log`` or ``a,b,c``.

    >>> space = SearchSpace({"lr": "0.01:1:log", "method": "ahil,dllp", "beta_bag": "1:5"}, Config())
    >>> space.config({"method": "ahil", "lr": 0.5, "beta_bag": 3.0}).method.options
    {'beta_bag': 3.0}
    >>> space.names_of("dllp")
    ['lr']
    """

    def __init__(self, texts: Mapping[str, str], base: Config) -> None:
        self.texts, self.base = dict(texts), base
        methods = _parse("method", texts["method"], "") if "method" in texts else Choice((base.method.name,))
        self.methods = methods.examples
        self.specs: dict[str, Range | Choice] = {"method": methods} if "method" in texts else {}
        for name, text in texts.items():
            if name != "method":
                self.specs[name] = _parse(name, text, self._default(name))
        self._check()

    @classmethod
    def default(cls, base: Config) -> "SearchSpace":
        """The learning rate and the method's main numbers."""
        lr = base.recipe.lr
        return cls({"lr": f"{lr / 10:g}:{lr * 10:g}:log"} | MAIN_NUMBERS.get(base.method.name, {}), base)

    def names_of(self, method: str) -> list[str]:
        """The settings, besides the method, that this method has."""
        return [name for name in self.specs if name != "method" and self._applies(name, method)]

    def draw(self, trial: Any) -> Config:
        """The config of an Optuna trial."""
        method = self.specs["method"].draw(trial, "method") if "method" in self.specs else self.base.method.name
        values = {name: self.specs[name].draw(trial, name) for name in self.names_of(method)}
        return self.config(values | {"method": method})

    def config(self, values: Mapping[str, Any]) -> Config:
        """The base config with these values."""
        method = values.get("method", self.base.method.name)
        layer: dict[str, dict[str, Any]] = {"recipe": {}, "method": {"options": {}}}
        for name in self.names_of(method):
            if name in values:
                place = layer["recipe"] if name in SETTINGS else layer["method"]["options"]
                place[_option(name)] = values[name]
        return Config.layered(self.base.model_dump(), {"method": {"name": method}}, layer)

    def base_values(self) -> dict[str, Any]:
        """Where the base config is in this space, as far as it is inside."""
        method = self.base.method
        values: dict[str, Any] = {}
        for name in self.names_of(method.name):
            if name in SETTINGS:
                values[name] = getattr(self.base.recipe, name)
            else:
                values[name] = (method_numbers(method.name) | method.options)[_option(name)]
        values |= {"method": method.name} if "method" in self.specs else {}
        return {name: value for name, value in values.items() if value in self.specs[name]}

    def _applies(self, name: str, method: str) -> bool:
        owner, _, _ = name.rpartition(".")
        return name in SETTINGS or (owner in ("", method) and _option(name) in method_numbers(method))

    def _default(self, name: str) -> Any:
        """The default of a setting, or the error that there is none of this name."""
        if name in SETTINGS:
            return Recipe.model_fields[name].default
        for method in self.methods:
            if self._applies(name, method):
                return method_numbers(method)[_option(name)]
        known = [number for method in self.methods for number in method_numbers(method)]
        raise unknown_name("setting to search", name, {"method", *SETTINGS, *known})

    def _check(self) -> None:
        """Raise unless the ends of all ranges, and all values, can be trained with."""
        for method in self.methods:
            if not METHODS.load(method).learns_classes:
                raise LLPError(f"{method} learns features and no classes: it is for `llp pretrain`")
            for name in self.names_of(method):
                for value in self.specs[name].examples:
                    try:
                        named = self.config({"method": method, name: value}).method
                        create_method(named.name, **named.options)
                    except LLPError as error:
                        raise LLPError(f"{name}={self.texts[name]}: {error}") from error


def _option(name: str) -> str:
    return name.rpartition(".")[2]


def _parse(name: str, text: str, default: Any) -> Range | Choice:
    """What to try of a setting whose default this is."""
    if ":" not in text:
        values = tuple(plain_value(word) for word in text.split(","))
        if len(set(values)) < 2 or "" in values:
            raise LLPError(f"{name}={text}: several values are A,B,C, and a range is LOW:HIGH or LOW:HIGH:log")
        return Choice(values)
    ends, scale = text.split(":")[:2], text.split(":")[2:]
    values = [plain_value(end) for end in ends]
    numbers = [end for end in values if not isinstance(end, bool | str) and math.isfinite(end)]
    if len(numbers) < 2 or not numbers[0] < numbers[1] or scale not in ([], ["log"]):
        raise LLPError(f"{name}={text}: a range is LOW:HIGH or LOW:HIGH:log, two numbers of which the first is smaller")
    low, high = numbers
    if scale and low <= 0:
        raise LLPError(f"{name}={text}: a range by logarithms starts above 0")
    if isinstance(default, bool | str):
        raise LLPError(f"{name}={text}: it is no number, so give its values: A,B,C")
    whole = not isinstance(default, float)
    if whole and not (isinstance(low, int) and isinstance(high, int)):
        raise LLPError(f"{name}={text}: it is a whole number, and so are the ends of its range")
    return Range(low, high, log=bool(scale), whole=whole)
