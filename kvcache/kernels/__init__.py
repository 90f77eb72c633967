"""Attention over what layers store, and the encoding of it, chosen by device: compiled loops on a CPU, Triton's on a GPU, torch in pieces everywhere.

A further kernel is one more file and one more line in each function here; a cache never knows which of them ran.
"""

import torch

from ..quantize import Encoded, Scheme
from . import cpu, cuda, reference
from .packed import Packed

FEW = 64  # query tokens up to which reading codes piece by piece beats decoding them all for torch's attention: measured on a CPU, 16 tokens take a quarter, 512 twice as long
LOOPS = ("auto", "fused", "decode")  # compiled kernels once they are ready, at the price of waiting for them, or never


def decode_attention(
    query: torch.Tensor,
    keys: Packed | torch.Tensor,
    values: Packed | torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    loops: str = "auto",
    by: str | None = None,
) -> torch.Tensor | None:
    """scaled_dot_product_attention of query [B, Hq, n, D] over a layer's keys and values [B, H, T, D]; returns [B, Hq, n, value D].

    None where torch's own over plain keys and values serves better, as for many tokens at once on an accelerator. `mask` [B or 1, Hq or 1, n or 1, T], boolean or to be added. `loops`: one of LOOPS.
    `by`: what `reader` says, where it was asked before.
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    by = by or reader(query, keys, values, mask, scale, is_causal, loops)
    if by in COMPILED:
        return COMPILED[by].attention(query, keys, values, mask, scale)
    if not isinstance(keys, Packed):
        return None
    if query.shape[2] <= FEW:
        return reference.attention(query, keys, values, mask, scale, is_causal)
    return cpu.attention_of_many(query, keys, values, mask, scale, is_causal) if query.is_cpu else None


def reader(query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool, loops: str) -> str:
    """Who does this attention, as things are now: "numba", "triton" or "torch"."""
    if loops == "decode" or is_causal:
        return "torch"
    if query.is_cpu:
        return "numba" if cpu.takes(query, keys, values, mask, wait=loops == "fused") else "torch"
    return "triton" if cuda.takes(query, keys, values, mask, scale, wait=loops == "fused") else "torch"


COMPILED = {"numba": cpu, "triton": cuda}


def attention(
    query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None = None, scale: float | None = None, is_causal: bool = False
) -> torch.Tensor:
    """As `decode_attention`, and by torch where that returns None: [B, Hq, n, value D]."""
    out = decode_attention(query, keys, values, mask, scale, is_causal)
    if out is not None:
        return out
    keys, values = (states.dense() if isinstance(states, Packed) else states for states in (keys, values))
    return _by_torch(query, keys, values, mask, scale, is_causal)


def _by_torch(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float | None, is_causal: bool) -> torch.Tensor:
    """torch's own, which on a CPU, and for one token's heads everywhere, need not have keys repeated for the query heads that share them."""
    sdpa, heads = torch.nn.functional.scaled_dot_product_attention, keys.shape[1]
    if query.shape[2] == 1 and not is_causal:  # the heads of one token that share a key as if they were so many tokens
        mask = mask.unflatten(1, (heads, -1)).flatten(2, 3) if mask is not None and mask.shape[1] > 1 else mask
        return sdpa(query.unflatten(1, (heads, -1)).flatten(2, 3), keys, values, attn_mask=mask, scale=scale).reshape(*query.shape[:3], -1)
    if not query.is_cpu:
        keys, values = (states.repeat_interleave(query.shape[1] // heads, dim=1) for states in (keys, values))
    return sdpa(query, keys, values, attn_mask=mask, scale=scale, is_causal=is_causal, enable_gqa=query.shape[1] != keys.shape[1])


def faster(keys: torch.Tensor) -> bool:
    """Is there a kernel that attends with one token to plain keys [B, H, T, D], of this size, faster than torch does?"""
    return cpu.worth(keys)


def attention_apart(query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], spans: list[tuple[int, int]], scale: float) -> torch.Tensor | None:
    """Attention of one token of each row of a batch, query [B, H, G, D], to tokens first to last of its own plain keys and values [1, H, T, D]; None where that is better done row by row."""
    return cpu.attention_apart(query, keys, values, spans, scale)


def encode(scheme: Scheme, states: torch.Tensor, block: int) -> Encoded:
    """Quantise states [B, H, T, D] in blocks of `block` tokens: the same codes, to the bit, by whatever does it."""
    encoded = cuda.encode(scheme, states, block) if states.is_cuda else cpu.encode(scheme, states, block)
    return scheme.encode(states, block) if encoded is None else encoded
