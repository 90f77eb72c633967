"""Where two caches part and how far: the distributions behind a comparison, measured by feeding both the same tokens."""
from __future__ import annotations

import threading
from typing import Any

import torch

from kvcache import catalog
from kvcache.engine import PREFILL_CHUNK, feed, prefill_chunks

from .compare import Column, Comparison

TOP_TOKENS = 5


def first_parting(comparison: Comparison) -> dict[str, Any] | None:
    """The earliest place where a column parts from the first, with the likeliest next tokens of both; None if none does.

    Both caches are filled anew with the same tokens, cut into forwards as the conversation cut them.
    """
    places = [(comparison.divergence(column), n) for n, column in enumerate(comparison.columns)]
    places = [(place, n) for place, n in places if place is not None and n]
    if not places:
        return None
    (turn, token), n = min(places)
    first, other = comparison.columns[0], comparison.columns[n]
    return {
        "column": n, "label": other.label, "first_label": first.label, "turn": turn + 1, "token": token + 1,
        "first": likeliest(comparison, first, turn, token), "other": likeliest(comparison, other, turn, token),
    }


def likeliest(comparison: Comparison, column: Column, turn: int, token: int) -> list[tuple[str, float]]:
    """(text, probability) of the likeliest tokens after `token` tokens of reply `turn` of the first column."""
    logits = replay(comparison, column, turn, token)
    probabilities, ids = logits.float().softmax(-1).topk(TOP_TOKENS)
    tokenizer = comparison.loaded.tokenizer
    return [(shown(tokenizer.decode([int(i)])), float(p)) for p, i in zip(probabilities, ids)]


def shown(text: str) -> str:
    """A token's text with its white space made visible."""
    return text.replace("\n", "\\n").replace(" ", "\u2423") or "(empty)"


@torch.no_grad()
def replay(comparison: Comparison, column: Column, turn: int, token: int) -> torch.Tensor:
    """Logits [V] of a fresh cache of this column's kind after the first column's first `token` tokens of reply `turn`."""
    loaded, settings = comparison.loaded, column.settings
    cache = catalog.create(settings.cache, loaded.model, **settings.parameters)
    seen, logits = 0, None
    for n, past in enumerate(comparison.columns[0].turns[:turn + 1]):
        reply = past.ids if n < turn else past.ids[:token]
        prompt_end = len(past.all_ids) - len(past.ids)
        for chunk in prefill_chunks(loaded, past.all_ids[seen:prompt_end], seen, PREFILL_CHUNK):
            logits = feed(loaded, cache, chunk)
        fed = reply if n == turn else reply[:-1]  # the last token of a reply is fed with the next message
        for one in fed:
            logits = feed(loaded, cache, [one])
        seen = prompt_end + len(fed)
    return logits


def measure(comparison: Comparison, stop: threading.Event | None = None) -> None:
    """Set every column's mean KL divergence from the first under teacher forcing on the first column's tokens, in nats."""
    try:
        from kvcache import measure as figures
    except ImportError:
        return
    first = comparison.columns[0]
    first.mean_kl = 0.0
    for column in comparison.columns[1:]:
        if stop is not None and stop.is_set():
            return
        column.mean_kl = figures.teacher_forced_kl(comparison.loaded, _factory(comparison, first), _factory(comparison, column),
                                                   first.conversation.ids)


def _factory(comparison: Comparison, column: Column):
    settings = column.settings
    return lambda: catalog.create(settings.cache, comparison.loaded.model, **settings.parameters)
