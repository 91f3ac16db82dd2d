"""Tables of names that list themselves without importing what they name."""

import difflib
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
    hint = f"did you mean {near[0]!r}? " if near else ""
    return LLPError(f"unknown {kind} {name!r}: {hint}(known: {', '.join(known)})")


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
