"""How far the columns of a comparison drift apart: each expects something of every token the first one wrote.

Every column has a second cache that is fed the first column's text (teacher forcing), turn after turn. What both expect
at each token gives the mean KL divergence, and, where a reply first differs, the likeliest tokens of both.
"""
from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kvcache import catalog
from kvcache.chat.engine import hear, room_left
from kvcache.measure.drift import kl_divergence, teacher_forced

from .compare import Comparison

SLICE = 32  # tokens measured between two looks at stop
TOP_TOKENS = 5


def measure(comparison: Comparison, stop: threading.Event | None = None) -> Iterator[float]:
    """Measure the last turn; yields the fraction done. Sets `kl` of every column and, at the first parting, `parting`."""
    turn = comparison.columns[0].turns[-1]
    if not turn.tokens:
        return
    if not comparison.shadows or turn.heard_ids != comparison.heard:
        comparison.forced, comparison.heard, comparison.full = 0, turn.heard_ids, set()
        comparison.shadows = [_fresh_cache(comparison, n) for n in range(len(comparison.columns))]
    comparison.full |= {n for n, column in enumerate(comparison.columns) if column.out}
    prompt_end = len(turn.all_ids) - len(turn.ids)
    prompt, seen = turn.all_ids[comparison.forced:prompt_end], comparison.forced
    for start in range(0, len(turn.ids), SLICE):
        if stop is not None and stop.is_set():
            comparison.shadows = []  # they have seen a part of it: the next turn begins them anew
            return
        part = turn.ids[start:start + SLICE]
        _measure_slice(comparison, prompt, part, turn.all_ids[:seen], start)
        prompt, seen = part[-1:], prompt_end + start + len(part) - 1
        yield (start + len(part)) / len(turn.ids)
    comparison.forced = seen
    if comparison.parting is None:
        comparison.parting = _ending(comparison)


def _fresh_cache(comparison: Comparison, n: int) -> Any:
    settings = comparison.columns[n].settings
    cache = catalog.create(settings.cache, comparison.loaded.model, **settings.parameters)
    if comparison.heard:
        hear(comparison.loaded, cache, comparison.heard)
    return cache


def _measure_slice(comparison: Comparison, prompt: Sequence[int], part: Sequence[int], seen_ids: Sequence[int], start: int) -> None:
    """Feed every second cache that has room. A smaller one than the first column's is measured as far as it reaches."""
    tables: dict[int, torch.Tensor] = {}  # each [T, V]
    for n, cache in enumerate(comparison.shadows):
        fits = min(len(part), room_left(comparison.loaded, cache, len(seen_ids))[0] - len(prompt) + 1)
        if n not in comparison.full and fits > 0:
            tables[n] = teacher_forced(comparison.loaded, cache, prompt, part[:int(fits)], seen_ids)
        if fits < len(part):
            comparison.full.add(n)
    if 0 not in tables:
        return
    for n, table in tables.items():
        measured = min(len(table), len(tables[0]))
        comparison.columns[n].kl += kl_divergence(tables[0][:measured], table[:measured]).tolist()
    if comparison.parting is None:
        comparison.parting = _parting(comparison, tables, start)


def _differences(comparison: Comparison) -> list[tuple[int, int]]:
    """(token, column), both from 0, of each reply of the last turn in which its column first differs from the first one's."""
    places = [(comparison.divergence(column), n) for n, column in enumerate(comparison.columns)]
    return [(place[1], n) for place, n in places if place and place[0] == len(comparison.users) - 1]


def _parting(comparison: Comparison, tables: Mapping[int, torch.Tensor], start: int) -> dict[str, Any] | None:
    """The earliest difference from the first column, if it lies in this slice of the last turn and was measured."""
    here = [(at, n) for at, n in _differences(comparison) if n in tables and 0 <= at - start < min(len(tables[0]), len(tables[n]))]
    if not here:
        return None
    at, n = min(here)
    tokenizer = comparison.loaded.tokenizer
    return _described(comparison, at, n) | {"first": likeliest(tokenizer, tables[0][at - start]), "other": likeliest(tokenizer, tables[n][at - start])}


def _ending(comparison: Comparison) -> dict[str, Any] | None:
    """The earliest difference of the last turn where nothing could be measured: one of the replies has ended there, or a second cache is full."""
    found = _differences(comparison)
    if not found:
        return None
    at, n = min(found)
    going_on = [column.label for column in (comparison.columns[0], comparison.columns[n]) if len(column.turns[-1].ids) > at]
    return _described(comparison, at, n) | {"first": [], "other": [], "goes_on": going_on}


def _described(comparison: Comparison, at: int, n: int) -> dict[str, Any]:
    columns = comparison.columns
    return {"column": n, "label": columns[n].label, "first_label": columns[0].label, "turn": len(comparison.users), "token": at + 1}


def likeliest(tokenizer: Any, log_probabilities: torch.Tensor) -> list[tuple[str, float]]:
    """(text, probability) of the likeliest tokens of one distribution [V], highest first."""
    values, ids = log_probabilities.exp().topk(min(TOP_TOKENS, len(log_probabilities)))
    return [(shown(tokenizer.decode([token])), value) for token, value in zip(ids.tolist(), values.tolist())]


def shown(text: str) -> str:
    """A token's text with its white space made visible."""
    return text.replace("\n", "\\n").replace(" ", "\u2423") or "(empty)"
