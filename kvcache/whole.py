"""Whole numbers, as callers give them."""

from operator import index
from typing import Any


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """The value as an int: of Python, NumPy or a tensor of one. Raises ValueError for anything else, and out of range."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be a whole number " + (f"of at least {low}" if high is None else f"from {low} to {high}") + f", got {value!r}")
    return number
