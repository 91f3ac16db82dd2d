"""Columns of tables that are numbers, whose digits stand below one another."""

import re
from collections.abc import Iterable

NUMBER = r"-|[+-]?[\d.,]+(e[+-]\d+)?( ± [\d.]+)?( %)?"


def are_numbers(cells: Iterable[str]) -> bool:
    """Whether all cells of a column are numbers in words, a dash among them.

    >>> are_numbers(["98.50 ± 0.31", "-", "+1.2 %"]), are_numbers(["98.5", "about 99"])
    (True, False)
    """
    return all(re.fullmatch(NUMBER, cell) for cell in cells)
