"""Checks of the numbers that methods take, given by their names."""

from torchllp.errors import LLPError


def check_positive(**numbers: float) -> None:
    """Raise unless all are above 0.

    >>> check_positive(eps=0.1, alpha=0)
    Traceback (most recent call last):
    torchllp.errors.LLPError: alpha must be above 0, not 0
    """
    for name, number in numbers.items():
        if not number > 0:
            raise LLPError(f"{name} must be above 0, not {number}")


def check_not_negative(**numbers: float) -> None:
    """Raise unless all are 0 or above."""
    for name, number in numbers.items():
        if not number >= 0:
            raise LLPError(f"{name} must be 0 or above, not {number}")


def check_below_one(**numbers: float) -> None:
    """Raise unless all are from 0 to below 1."""
    for name, number in numbers.items():
        if not 0 <= number < 1:
            raise LLPError(f"{name} must be from 0 to below 1, not {number}")


def check_whole(**numbers: float) -> None:
    """Raise unless all are whole numbers of 1 or above."""
    for name, number in numbers.items():
        if number < 1 or number != int(number):
            raise LLPError(f"{name} must be a whole number of 1 or above, not {number}")
