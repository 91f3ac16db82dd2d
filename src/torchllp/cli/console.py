"""How the command shows things: tables that line up, progress with time left."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from torchllp.report.numbers import are_numbers

# In a pipe nobody is there to be wrapped for at 80 columns.
# Brackets are no markup: names of classes, columns and files may have them.
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
aside = Console(highlight=False, markup=False, stderr=True)
"""For what is no result, where the result goes to standard output."""


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table in which columns of numbers are aligned right."""
    rows = list(rows)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        is_number = are_numbers(row[i] for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def percent(share: float | None) -> str:
    """A share as a percentage, ``-`` where there is none.

    >>> percent(0.98765), percent(None)
    ('98.77 %', '-')
    """
    return "-" if share is None else f"{100 * share:.2f} %"


def duration(seconds: float) -> str:
    """In the unit that fits.

    >>> [duration(seconds) for seconds in (5, 300, 9_000, 10**6)]
    ['5 s', '5 min', '2.5 h', '11.6 days']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 86400:.1f} days"


@contextmanager
def saying_how_to_go_on(words: str) -> Iterator[None]:
    """When it is stopped, not when it fails."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            console.print(f"stopped; {words}", soft_wrap=True)
        raise
