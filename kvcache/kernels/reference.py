"""Attention by torch, on any device: over packed keys and values piece by piece, so that a history is never decoded whole.

Softmax is carried from piece to piece: the largest score so far, the sum of all exp(score - largest), and the values weighted so.
Source: Milakov and Gimelshein 2018, arXiv 1805.02867.
"""

from collections.abc import Iterator

import torch

from .packed import Packed


def attention(query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool = False) -> torch.Tensor:
    """scaled_dot_product_attention of query [B, Hq, n, D] over keys and values [B, H, T, D], Hq a multiple of H; returns [B, Hq, n, value D] in the query's dtype.

    `mask`: boolean, or to be added, [B or 1, Hq or 1, n or 1, T]. `is_causal`: query i attends to keys 0 to i. All is computed in float32. Where codes are rotated, so are the query, what is in full precision, and the output once more.
    """
    batch, heads, _, dim = keys.shape
    queries, lowest = (_turned(keys, query) * scale).reshape(batch, heads, -1, dim), torch.finfo(torch.float32).min  # [B, H, G n, D]
    top = torch.full((*queries.shape[:3], 1), lowest, dtype=torch.float32, device=query.device)
    total, out, first = torch.zeros_like(top), 0.0, 0
    for some_keys, some_values in zip(_pieces(keys), _pieces(values), strict=True):
        scores = queries @ some_keys.transpose(2, 3)  # [B, H, G n, some]
        last = first + scores.shape[3]
        if is_causal or mask is not None:
            scores = _masked(scores, query, mask, first, last, is_causal)
        before, top = top, torch.maximum(top, scores.amax(dim=3, keepdim=True))
        weights, fade = (scores - top).exp(), (before - top).exp()
        total, out = total * fade + weights.sum(dim=3, keepdim=True), out * fade + weights @ some_values
        first = last
    return _turned(values, out / total).reshape(*query.shape[:3], -1).to(query.dtype)


def _turned(held: Packed | torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """A query [..., D] rotated as the pieces of `held` are, or attention's output rotated back; float32."""
    return held.scheme.turned(states) if isinstance(held, Packed) else states.float()


def _pieces(states: Packed | torch.Tensor) -> Iterator[torch.Tensor]:
    return states.pieces() if isinstance(states, Packed) else iter([states.float()])


def _masked(scores: torch.Tensor, query: torch.Tensor, mask: torch.Tensor | None, first: int, last: int, is_causal: bool) -> torch.Tensor:
    """The scores [B, H, G n, last - first] of keys first to last under a mask of all; what is masked gets the lowest number, which leaves rows without any token finite."""
    batch, heads, _, some = scores.shape
    lowest, n = torch.finfo(torch.float32).min, query.shape[2]
    scores = scores.view(batch, heads, -1, n, some)
    if is_causal:
        hidden = torch.arange(n, device=scores.device)[:, None] < torch.arange(first, last, device=scores.device)
        scores = scores.masked_fill(hidden, lowest)
    if mask is not None:
        part = mask[..., first:last]
        part = part[:, :, None] if part.shape[1] == 1 else part.unflatten(1, (heads, -1))  # [B, H or 1, G or 1, n, some]
        scores = scores.masked_fill(~part, lowest) if part.dtype == torch.bool else (scores + part.float()).clamp_min(lowest)
    return scores.view(batch, heads, -1, some)
