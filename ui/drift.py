"""How far the columns of a comparison drift apart: each expects something of every token the first one wrote.

Every column has a second cache that is fed the first column's text (teacher forcing), turn after turn. What both expect
at each token gives the mean KL divergence, and, where a reply first differs, the likeliest tokens of both.
"""
from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kvcache import catalog
from kvcache.chat.conversation import cuts_of
from kvcache.chat.engine import hear, room_left
from kvcache.measure.drift import kl_divergence, teacher_forced

from .compare import Comparison

SLICE = 32  # tokens measured between two looks at stop
TOP_TOKENS = 10


def measure(comparison: Comparison, stop: threading.Event | None = None) -> Iterator[float]:
    """Measure the last turn; yields the fraction done. Fills `kl` of every column and, where one first differs, its `parting`."""
    turn = comparison.columns[0].turns[-1]
    if not turn.tokens:
        return
    if not comparison.shadows or turn.heard_ids != comparison.heard or turn.all_ids[:len(comparison.forced)] != comparison.forced:
        comparison.forced, comparison.heard, comparison.full = [], turn.heard_ids, set()
        comparison.shadows = [_fresh_cache(comparison, n) for n in range(len(comparison.columns))]
    comparison.full |= {n for n, column in enumerate(comparison.columns) if column.out}
    prompt_end = len(turn.all_ids) - len(turn.ids)
    seen = len(comparison.forced)
    prompt = turn.all_ids[seen:prompt_end]
    for start in range(0, len(turn.ids), SLICE):
        if stop is not None and stop.is_set():
            comparison.shadows = []  # they have seen a part of it: the next turn begins them anew
            return
        part = turn.ids[start:start + SLICE]
        _measure_slice(comparison, prompt, part, turn.all_ids[:seen], start)
        prompt, seen = part[-1:], prompt_end + start + len(part) - 1
        yield (start + len(part)) / len(turn.ids)
    comparison.forced = turn.all_ids[:seen]


def _fresh_cache(comparison: Comparison, n: int) -> Any:
    settings = comparison.columns[n].settings
    cache = catalog.create(settings.cache, comparison.loaded.model, **settings.parameters)
    if comparison.heard:
        hear(comparison.loaded, cache, comparison.heard)
    return cache


def _measure_slice(comparison: Comparison, prompt: Sequence[int], part: Sequence[int], seen_ids: Sequence[int], start: int) -> None:
    """Feed every second cache that has room. A smaller one than the first column's is measured as far as it reaches."""
    tables: dict[int, torch.Tensor] = {}  # each [T, V]
    cuts = cuts_of(comparison.columns[0].conversation.turns[:-1], (*seen_ids, *prompt))
    for n, cache in enumerate(comparison.shadows):
        fits = min(len(part), room_left(comparison.loaded, cache, len(seen_ids))[0] - len(prompt) + 1)
        if n not in comparison.full and fits > 0:
            as_before = cuts if catalog.entry(comparison.columns[n].settings.cache).lossy else ()  # where it begins anew
            tables[n] = teacher_forced(comparison.loaded, cache, prompt, part[:int(fits)], seen_ids, cuts=as_before)
        if fits < len(part):
            comparison.full.add(n)
    if 0 not in tables:
        return
    for n, table in tables.items():
        column, measured, first = comparison.columns[n], min(len(table), len(tables[0])), comparison.starts[-1] + start
        column.kl |= dict(enumerate(kl_divergence(tables[0][:measured], table[:measured]).tolist(), first))
        place = comparison.divergence(column)
        if place and place[0] == len(comparison.users) - 1 and 0 <= place[1] - start < measured:
            column.parting = _parting(comparison, place[1], tables[0][place[1] - start], table[place[1] - start])


def _parting(comparison: Comparison, at: int, first: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
    """The likeliest next tokens of two columns at a token, from 0, of the last turn. first, other: log-probabilities [V]."""
    tokenizer = comparison.loaded.tokenizer
    return {"turn": len(comparison.users), "token": at + 1, "first": likeliest(tokenizer, first), "other": likeliest(tokenizer, other)}


def likeliest(tokenizer: Any, log_probabilities: torch.Tensor) -> list[tuple[str, float]]:
    """(text, probability) of the likeliest tokens of one distribution [V], highest first."""
    values, ids = log_probabilities.exp().topk(min(TOP_TOKENS, len(log_probabilities)))
    return [(shown(tokenizer.decode([token])), value) for token, value in zip(ids.tolist(), values.tolist())]


def shown(text: str) -> str:
    """A token's text with its white space made visible."""
    return text.replace("\n", "\\n").replace(" ", "\u2423") or "(empty)"
