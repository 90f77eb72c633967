"""How far two caches drift apart: the first token that differs, and next-token distributions on the same text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..chat.engine import PREFILL_CHUNK, forward, prefill_chunks, room_left
from ..chat.models import LoadedModel


def first_divergence(ids_a: Sequence[int], ids_b: Sequence[int]) -> int | None:
    """Index of the first token in which two replies differ, None where they are the same.

    A reply that ends while the other goes on differs at its own length.
    """
    for index, (a, b) in enumerate(zip(ids_a, ids_b)):
        if a != b:
            return index
    return None if len(ids_a) == len(ids_b) else min(len(ids_a), len(ids_b))


def teacher_forced(
    loaded: LoadedModel,
    cache: Any,
    prompt_ids: Sequence[int],
    continuation_ids: Sequence[int],
    seen_ids: Sequence[int] = (),
    prefill_chunk: int = PREFILL_CHUNK,
    cuts: Collection[int] = (),
) -> torch.Tensor:
    """What a cache makes the model expect at every token of a given text: log-probabilities [T, V], fp32 on the CPU.

    Row t is the distribution from which `continuation_ids[t]` would be picked. The prompt is fed in chunks and the
    continuation token by token, as in a chat, so that evicting and quantising happen where they would; `cuts` are more
    lengths at which a forward ends, as of `prefill_chunks`. `cache` has seen `seen_ids` and ends having seen everything but the last token. ValueError for empty ids or too many to fit.
    Takes 4 T V bytes: 100 tokens of a vocabulary of 150,000 are 60 MB.
    """
    if not prompt_ids or not continuation_ids:
        raise ValueError(f"needs a prompt and a continuation, got {len(prompt_ids)} and {len(continuation_ids)} tokens")
    needed = len(prompt_ids) + len(continuation_ids) - 1
    left, limit = room_left(loaded, cache, len(seen_ids))
    if needed > left:
        raise ValueError(f"{needed} tokens don't fit: the {limit} leaves room for {left:g}")
    logits = None
    for chunk in prefill_chunks(loaded, prompt_ids, len(seen_ids), prefill_chunk, cuts):
        logits = forward(loaded, cache, chunk)
    rows = [_log_probabilities(logits)]
    for token in continuation_ids[:-1]:
        rows.append(_log_probabilities(forward(loaded, cache, [token])))
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
