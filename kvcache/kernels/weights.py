"""Attention that also says how much each key got: the weights of a softmax, for those who choose keys by them. By torch, on any device, some queries at a time."""

from collections.abc import Callable, Iterator

import torch

from .packed import Packed

AT_ONCE = 1 << 24  # weights that are there at a time
HIDDEN = torch.finfo(torch.float32).min  # the score of what a query does not see: finite, so that a query that sees nothing gives numbers


def attention_and_shares(
    query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """scaled_dot_product_attention of query [B, Hq, n, D] over keys and values [B, H, T, D]: [B, Hq, n, value D]; and what each key got, [B, H, T] in float32.

    A key's share is the sum of its weights over the queries, averaged over the heads that share it, a query counting `decay` times as much as the next; queries that see
    nothing count for nothing. `mask` [B or 1, Hq or 1, n, T], boolean or to be added. The softmax is computed once for both.
    """
    shares = torch.zeros(keys.shape[:3], dtype=torch.float32, device=query.device)
    fading = _fading(query.shape[2], decay, query.device)

    def add(weights: torch.Tensor, first: int, last: int, sees: torch.Tensor | None) -> None:
        counts = (fading[first:last] if sees is None else fading[first:last] * sees).expand(weights.shape[:4]) / weights.shape[2]
        shares[:, :, : weights.shape[4]] += (counts.reshape(*weights.shape[:2], 1, -1) @ weights.flatten(2, 3))[:, :, 0]

    return _attention(query, keys, values, mask, scale, is_causal, add), shares


def attention_and_most(
    query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `attention_and_shares`, with the most that each key got from any query of any head that shares it, [B, H, T]."""
    most = torch.zeros(keys.shape[:3], dtype=torch.float32, device=query.device)

    def compare(weights: torch.Tensor, first: int, last: int, sees: torch.Tensor | None) -> None:
        part = most[:, :, : weights.shape[4]]
        torch.maximum(part, weights.amax(dim=(2, 3)), out=part)

    return _attention(query, keys, values, mask, scale, is_causal, compare), most


def _attention(
    query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool, note: Callable
) -> torch.Tensor:
    """[B, Hq, n, value D]; note(weights [B, H, G, some, T], first, last, sees) is told those of queries first to last, and under a mask which of them see anything."""
    keys, values = _plain(keys), _plain(values)
    (batch, heads, tokens, _), n = keys.shape, query.shape[2]
    queries, out = _grouped(query.float() * scale, heads), query.new_empty(*query.shape[:3], values.shape[3])
    for first, last in _spans(n, batch * query.shape[1] * tokens):
        seen = last if is_causal else tokens
        visible = _of_heads(mask, heads, first, last) if mask is not None else _up_to(first, last, seen, query.device) if is_causal else None
        weights = _weights(queries[:, :, :, first:last], keys[:, :, :seen], visible)
        out[:, :, first:last] = (weights.flatten(2, 3) @ values[:, :, :seen]).unflatten(2, (-1, last - first)).flatten(1, 2).to(out.dtype)
        note(weights.detach(), first, last, None if mask is None else _sees(visible))
    return out


def latest_weights(queries: torch.Tensor, keys: Packed | torch.Tensor, present: torch.Tensor | None = None) -> torch.Tensor:
    """Weights [B, H, G, n, T] in float32 of scaled queries [B, Hq, n, D], those of the last n of the tokens whose keys [B, H, T, D] are: each sees keys up to its own token's.

    `present` [B, T]: which of a row's keys are any.
    """
    n, tokens = queries.shape[2], keys.shape[2]
    visible = _up_to(tokens - n, tokens, tokens, queries.device) if n > 1 else None
    if present is not None:
        present = present[:, None, None, None]
        visible = present if visible is None else present & visible
    return _weights(_grouped(queries.float(), keys.shape[1]), keys, visible)


def latest_shares(queries: torch.Tensor, keys: Packed | torch.Tensor, decay: float, present: torch.Tensor | None = None) -> torch.Tensor:
    """What each key got [B, H, T], as `attention_and_shares` says it, from scaled queries [B, Hq, n, D], those of the last n tokens."""
    weights = latest_weights(queries, keys, present)
    counts = _fading(queries.shape[2], decay, queries.device).expand(weights.shape[:4]) / weights.shape[2]
    return (counts.reshape(*weights.shape[:2], 1, -1) @ weights.flatten(2, 3))[:, :, 0]


def _weights(queries: torch.Tensor, keys: Packed | torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """[B, H, G, s, T] of queries [B, H, G, s, D] over keys [B, H, T, D]; `visible`: a mask, boolean or to be added, that fits."""
    scores = _scores(queries.flatten(2, 3), keys).unflatten(2, queries.shape[2:4])
    if visible is not None:
        scores = scores.masked_fill_(~visible, HIDDEN) if visible.dtype == torch.bool else (scores + visible.float()).clamp_(min=HIDDEN)
    return scores.softmax(dim=-1)


def _scores(queries: torch.Tensor, keys: Packed | torch.Tensor) -> torch.Tensor:
    """[B, H, n, T] of queries [B, H, n, D], rotated where codes are, which are read piece by piece."""
    if not isinstance(keys, Packed):
        return queries @ keys.float().transpose(2, 3)
    turned = keys.scheme.turned(queries)
    return torch.cat([turned @ some.transpose(2, 3) for some in keys.pieces()], dim=3)


def _plain(states: Packed | torch.Tensor) -> torch.Tensor:
    return states.dense(torch.float32) if isinstance(states, Packed) else states.float()


def _grouped(queries: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, Hq, n, D] as [B, H, G, n, D]."""
    return queries.unflatten(1, (heads, -1))


def _fading(n: int, decay: float, device: torch.device) -> torch.Tensor:
    """[n] of how much each of n queries in turn counts after the last."""
    return decay ** torch.arange(n - 1, -1, -1, dtype=torch.float32, device=device)


def _spans(n: int, weights: int) -> Iterator[tuple[int, int]]:
    """First and last + 1 of the queries that are looked at together, where each has so many weights."""
    step = max(1, min(n, AT_ONCE // max(1, weights)))
    return ((first, min(first + step, n)) for first in range(0, n, step))


def _up_to(first: int, last: int, tokens: int, device: torch.device) -> torch.Tensor:
    """[last - first, tokens]: token first + i sees those up to itself."""
    return torch.arange(tokens, device=device) <= torch.arange(first, last, device=device)[:, None]


def _of_heads(mask: torch.Tensor, heads: int, first: int, last: int) -> torch.Tensor:
    """[B or 1, H or 1, G or 1, some, T] of a mask [B or 1, Hq or 1, n, T]."""
    part = mask[:, :, first:last] if mask.shape[2] > 1 else mask
    return part[:, :, None] if part.shape[1] == 1 else part.unflatten(1, (heads, -1))


def _sees(visible: torch.Tensor) -> torch.Tensor:
    """[B or 1, H or 1, G or 1, some]: does a query see any key?"""
    return (visible if visible.dtype == torch.bool else visible > HIDDEN / 2).any(dim=-1)
