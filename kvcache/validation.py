"""Whole numbers and rows of a batch, as callers give them."""

from operator import index
from typing import Any

import torch


def whole_number(name: str, value: Any, low: int, high: int | None = None, typed: bool = False) -> int:
    """The value as an int: of Python, NumPy or a tensor of one; `typed`: "64" and 64.0, which forms and JSON give, too. Raises ValueError for anything else, and out of range."""
    try:
        number = None if isinstance(value, bool) else _typed(value) if typed else index(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be a whole number " + (f"of at least {low}" if high is None else f"from {low} to {high}") + f", got {value!r}")
    return number


def amount(name: str, value: Any, low: int, high: int) -> int | float:
    """A whole number of at least `low`, or a share above 0 and below 1, from Python, forms or JSON. Raises ValueError for anything else."""
    try:
        share = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        share = None
    if share is not None and 0 < share < 1:
        return share
    try:
        return whole_number(name, value, low, high, typed=True)
    except ValueError:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, or a share above 0 and below 1, got {value!r}") from None


def _typed(value: Any) -> int | None:
    """The whole number that a text or a float stands for, or None."""
    number = int(value)
    return number if number == float(value) else None


def batch_rows(name: str, rows: Any) -> torch.Tensor:
    """Rows of a batch as a LongTensor [n], or a BoolTensor over all; a sequence will do, too. Raises ValueError for anything else."""
    try:
        made = torch.as_tensor(rows, dtype=None if len(rows) else torch.long)
    except (TypeError, ValueError, RuntimeError):
        made = None
    if made is None or made.dim() != 1 or made.is_floating_point() or made.is_complex():
        raise ValueError(f"{name} must be a list or a LongTensor of rows, or a BoolTensor over all, got {rows!r}")
    return made
