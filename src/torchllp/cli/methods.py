"""`llp methods`."""

from torchllp.cli.console import console, show_table
from torchllp.methods import METHODS, method_numbers


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
    console.print(f"{name}: {METHODS.entry(name).summary}", markup=False)
    numbers = method_numbers(name)
    if numbers:
        show_table(["number", "default"], [(key, str(value)) for key, value in numbers.items()])
