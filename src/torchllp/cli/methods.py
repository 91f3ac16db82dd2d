"""`llp methods`."""

import inspect
import re

from torchllp.cli.console import console, show_table
from torchllp.methods import METHODS, method_numbers


def argument_meanings(described: type) -> dict[str, str]:
    """What the docstring of a class says of its arguments."""
    _, _, arguments = inspect.cleandoc(described.__doc__ or "").partition("Args:\n")
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", arguments, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.replace("``", "").split()) for name, text in found}


def methods(name: str | None = None) -> None:
    """List the methods, or show one with its numbers.

    Parameters
    ----------
    name
        A method to show: what `llp train --set` can change, and the defaults.
    """
    if name is None:
        show_table(["method", "what it is"], [(n, METHODS.entry(n).summary) for n in METHODS.names()])
        return
    console.print(f"{name}: {METHODS.entry(name).summary}")
    meanings = argument_meanings(METHODS.load(name))
    rows = [(key, str(value), meanings[key]) for key, value in method_numbers(name).items()]
    if rows:
        show_table(["number", "default", "what it is"], rows)
