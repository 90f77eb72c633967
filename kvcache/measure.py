"""How far two caches drift apart: first different token, agreement, and distributions on the same text.

`python -m kvcache.measure speed` runs the benchmark of kvcache.speed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .engine import PREFILL_CHUNK, feed, prefill_chunks, room_left
from .models import LoadedModel


def first_divergence(ids_a: Sequence[int], ids_b: Sequence[int]) -> int | None:
    """Index of the first token in which two replies differ, None where they are the same.

    A reply that ends while the other goes on differs at its own length.
    """
    for index, (a, b) in enumerate(zip(ids_a, ids_b)):
        if a != b:
            return index
    return None if len(ids_a) == len(ids_b) else min(len(ids_a), len(ids_b))


def agreement(ids_a: Sequence[int], ids_b: Sequence[int]) -> float:
    """Share of positions, 0 to 1, at which two replies have the same token, out of the longer one's length.

    Two empty replies agree fully. After a first difference greedy replies go their own ways, so read it together
    with `first_divergence`; `kl_divergence` under teacher forcing compares every position on equal terms.
    """
    longest = max(len(ids_a), len(ids_b))
    return sum(a == b for a, b in zip(ids_a, ids_b)) / longest if longest else 1.0


def teacher_forced(
    loaded: LoadedModel,
    cache: Any,
    prompt_ids: Sequence[int],
    continuation_ids: Sequence[int],
    seen_ids: Sequence[int] = (),
    prefill_chunk: int = PREFILL_CHUNK,
) -> torch.Tensor:
    """What a cache makes the model expect at every token of a given text: log-probabilities [T, V], fp32 on the CPU.

    Row t is the distribution from which `continuation_ids[t]` would be picked. The prompt is fed in chunks and the
    continuation token by token, as in a chat, so that evicting and quantising happen where they would. `cache` has
    seen `seen_ids` and ends having seen everything but the last token. ValueError for empty ids or too many to fit.
    Takes 4 T V bytes: 100 tokens of a vocabulary of 150,000 are 60 MB.
    """
    if not prompt_ids or not continuation_ids:
        raise ValueError(f"needs a prompt and a continuation, got {len(prompt_ids)} and {len(continuation_ids)} tokens")
    needed = len(prompt_ids) + len(continuation_ids) - 1
    left, limit = room_left(loaded, cache, len(seen_ids))
    if needed > left:
        raise ValueError(f"{needed} tokens don't fit: the {limit} leaves room for {left:g}")
    logits = None
    for chunk in prefill_chunks(loaded, prompt_ids, len(seen_ids), prefill_chunk):
        logits = feed(loaded, cache, chunk)
    rows = [_log_probabilities(logits)]
    for token in continuation_ids[:-1]:
        rows.append(_log_probabilities(feed(loaded, cache, [token])))
    return torch.stack(rows)  # (T, V)


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(dim=-1).cpu()


def kl_divergence(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL(reference || other) per token in nats, [T], of two log-probability tables [T, V]. 0 means no drift."""
    if reference.shape != other.shape:
        raise ValueError(f"tables differ in shape: {tuple(reference.shape)} and {tuple(other.shape)}")
    reference, other = reference.double(), other.double()  # differences of 1e-9 are summed over the vocabulary
    terms = reference.exp() * (reference - other)
    return terms.nan_to_num(nan=0.0).sum(dim=-1).clamp_min(0.0).float()  # 0 * (-inf + inf) is a token nobody expects


@dataclass(frozen=True)
class TopToken:
    """A token that either distribution expects, with its probability in both."""

    id: int
    text: str
    reference: float
    other: float


def top_tokens(
    tokenizer: Any, reference: torch.Tensor, other: torch.Tensor, position: int, count: int = 5
) -> list[TopToken]:
    """The `count` likeliest tokens of either table [T, V] at a position, by the reference's probability, highest first.

    Raises IndexError for a position outside the tables.
    """
    if not 0 <= position < len(reference) or not 0 <= position < len(other):
        raise IndexError(f"position {position} is outside tables of {len(reference)} and {len(other)} tokens")
    a, b = reference[position].exp(), other[position].exp()  # (V,)
    count = min(count, a.numel())
    ids = {*a.topk(count).indices.tolist(), *b.topk(count).indices.tolist()}
    rows = [TopToken(id, tokenizer.decode([id]), float(a[id]), float(b[id])) for id in ids]
    return sorted(rows, key=lambda row: (-row.reference, -row.other, row.id))


@dataclass(frozen=True)
class Drift:
    """How far one cache's expectations are from another's over a text."""

    mean_kl: float  # nats per token
    max_kl: float  # nats
    worst: int  # position of max_kl in the continuation
    same_choice: float  # share of positions, 0 to 1, whose likeliest token is the same


def drift(reference: torch.Tensor, other: torch.Tensor) -> Drift:
    """Sum up two log-probability tables [T, V] that `teacher_forced` made of the same ids."""
    kl = kl_divergence(reference, other)
    same = reference.argmax(dim=-1) == other.argmax(dim=-1)
    return Drift(float(kl.mean()), float(kl.max()), int(kl.argmax()), float(same.float().mean()))


def main(arguments: Sequence[str] | None = None) -> None:
    """What `python -m kvcache.measure WHAT` does; there is one WHAT so far."""
    from .speed import command

    what, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or [""]
    if what != "speed":
        named = "" if what in ("", "-h", "--help") else f", not {what!r}"
        print(f"usage: python -m kvcache.measure speed [options]{named}; python -m kvcache.measure speed --help lists them", file=sys.stderr)
        raise SystemExit(0 if what in ("-h", "--help") else 2)
    command.main(rest)


if __name__ == "__main__":
    main()
