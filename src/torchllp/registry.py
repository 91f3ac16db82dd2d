"""Tables of names that list themselves without importing what they name."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torchllp.errors import LLPError


def unknown_name(kind: str, name: str, known: Iterable[str]) -> LLPError:
    """The error for a name that is not in a table, with the nearest one that is.

    >>> print(unknown_name("method", "ahli", ["ahil", "dllp"]))
    unknown method 'ahli': did you mean 'ahil'? (known: ahil, dllp)
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return LLPError(f"unknown {kind} {name!r}{hint} (known: {', '.join(known)})")


def check_options(owner: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise unless every option is one of ``defaults`` and of its kind: a switch, a number or a word.

    >>> check_options("method 'ahil'", {"beta_bag": "one"}, {"beta_bag": 1.0})
    Traceback (most recent call last):
    torchllp.errors.LLPError: method 'ahil': beta_bag must be a finite number, not 'one'
    """
    for name, value in options.items():
        if name not in defaults:
            known = f"it has {', '.join(defaults)}" if defaults else "it has none"
            raise LLPError(f"{owner} has no option {name!r}: {known}")
        default = defaults[name]
        if isinstance(default, bool):
            fits, kind = isinstance(value, bool), "true or false"
        elif isinstance(default, int | float):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            fits, kind = number and math.isfinite(value), "a finite number"
        else:
            fits, kind = isinstance(value, str), "a word"
        if not fits:
            raise LLPError(f"{owner}: {name} must be {kind}, not {value!r}")


@dataclass(frozen=True)
class Entry:
    """Where a named thing lives (``"module:attribute"``) and what it is, in one line."""

    path: str
    summary: str


class Registry:
    """``name -> Entry``; importing the module is left to :meth:`load`, so listing names stays cheap.

    >>> registry = Registry("number", {"pi": Entry("math:pi", "the circle's")})
    >>> registry.names()
    ['pi']
    >>> round(registry.load("pi"), 2)
    3.14
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        self.kind = kind
        self.entries = dict(entries)

    def names(self) -> list[str]:
        return sorted(self.entries)

    def entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise unknown_name(self.kind, name, self.entries)
        return self.entries[name]

    def load(self, name: str) -> Any:
        module, attribute = self.entry(name).path.split(":")
        return getattr(import_module(module), attribute)
