"""Attention of one token over packed codes: compiled loops read each byte once and decode nothing into memory; where there are
none, torch decodes one piece after the other.

For a block of keys with one scale and minimum a channel, q . k = sum_d (q_d scale_d) code_d + q . minimum: scales are folded
into the query once a block, and the loop over tokens multiplies small integers. Values fold theirs into the attention
weights. Source of the grouping: KIVI, Liu et al. 2024, arXiv 2402.02750.

A quantised layer returns `PackedStates`, which are tensors to every model: scaled_dot_product_attention on them runs here,
and anything else that is done with them decodes them first, so that no model can read them wrongly.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from .compiled import Loops, shared, shares, team_address
from .extras import why_not_imported
from .quantize import Encoded, Scheme, native

NBITS = (8, 4, 2)  # codes that a mask takes out of a byte
EIGHTS = 8  # the loops take that many tokens at a time
PIECE = 512  # tokens that torch decodes at a time: they stay in the processor's cache


class Side(NamedTuple):
    """Keys or values of one layer at one moment: `packed` tokens as codes, and residual rows start to stop.

    Buffers come at full capacity [B, H, capacity, width]. Good until the layer's next update.
    """

    scheme: Scheme
    block: int
    packed: int
    encoded: Encoded
    residual: torch.Tensor
    start: int
    stop: int

    @property
    def shape(self) -> torch.Size:
        batch, heads, _, dim = self.residual.shape
        return torch.Size((batch, heads, self.packed + self.stop - self.start, dim))

    def dense(self) -> torch.Tensor:
        """All tokens [B, H, T, D], decoded."""
        return torch.cat([self.decoded(0, self.packed, self.residual.dtype), self.residual[:, :, self.start : self.stop]], dim=2)

    def decoded(self, first: int, last: int, dtype: torch.dtype) -> torch.Tensor:
        """Packed tokens first to last [B, H, last - first, D]; both multiples of `block`, or first 0 and last `packed`."""
        rows = self.scheme.group if self.scheme.axis == "channel" else 1
        steps = (1, rows, rows, self.block)
        encoded = Encoded(*(part[:, :, first // step : last // step] for part, step in zip(self.encoded, steps)))
        return self.scheme.decode(encoded, self.block, dtype)

    def pieces(self) -> Iterator[torch.Tensor]:
        """All tokens in turn as float32 [B, H, some, D]: the packed ones, no more than PIECE at a time where a block is not more, then the residual."""
        step = max(1, PIECE // self.block) * self.block
        for first in range(0, self.packed, step):
            yield self.decoded(first, min(first + step, self.packed), torch.float32)
        yield self.residual[:, :, self.start : self.stop].float()

    def contiguous(self) -> "Side":
        """The same with every buffer as the loops read it: row after row, the residual in float32."""
        residual = self.residual if self.residual.dtype == torch.float32 else self.residual.float()
        if residual.is_contiguous() and all(map(torch.Tensor.is_contiguous, self.encoded)):
            return self if residual is self.residual else self._replace(residual=residual)
        return self._replace(encoded=Encoded(*(part.contiguous() for part in self.encoded)), residual=residual.contiguous())

    def places(self) -> tuple[int, ...]:
        """Of contiguous buffers: where codes, scales, minima, gains and residual lie, and how many rows are reserved in each; D, and the scales of a row."""
        (codes, scales, minima, gains), residual = self.encoded, self.residual
        rows, width = scales.shape[2:]
        capacity, dim = residual.shape[2:]
        return (codes.data_ptr(), codes.shape[2], scales.data_ptr(), rows, minima.data_ptr(), gains.data_ptr(), gains.shape[2], residual.data_ptr(), capacity, dim, width)


class Attention(NamedTuple):
    """The compiled loops: `together` does all the work, on torch's threads, each of which runs `worker`, or on this one; `attend` pieces first to last of it, for threads of our own; `join` puts spans together."""

    together: Callable
    worker: Callable
    attend: Callable
    join: Callable


class PackedStates(torch.Tensor):
    """Keys or values [B, H, T, D] that are decoded when they are touched, unless attention reads them packed: by the loops if `fused`."""

    side: Side
    fused: bool
    _shape: torch.Size

    @staticmethod
    def __new__(cls, side: Side, fused: bool) -> "PackedStates":
        shape = side.shape
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=side.residual.dtype, device=side.residual.device)
        self.side, self.fused, self._shape = side, fused, shape
        return self

    @property
    def shape(self) -> torch.Size:
        """Models ask for it at every turn, and torch's own would be asked through __torch_function__."""
        return self._shape

    def __repr__(self, *args, **kwargs) -> str:
        return f"PackedStates(shape={tuple(self.shape)}, nbits={self.side.scheme.nbits}, packed={self.side.packed})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        attended = attend(*args, **kwargs) if func is torch.nn.functional.scaled_dot_product_attention else None
        return func(*tree_map(_dense, args), **tree_map(_dense, kwargs)) if attended is None else attended

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*tree_map(_dense, args), **tree_map(_dense, kwargs or {}))


METADATA = frozenset([torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__, torch.Tensor.device.__get__, torch.Tensor.size, torch.Tensor.dim])


def _dense(value):
    return value.side.dense() if isinstance(value, PackedStates) else value


def why_not(nbits: int) -> str | None:
    """Why codes of this width cannot be attended to packed, on this machine, or None."""
    if nbits not in NBITS:
        return f"attention over packed codes reads 8, 4 or 2 bits, not {nbits}"
    try:
        import numba  # noqa: F401
    except Exception as error:  # missing, or whatever a broken installation raises
        return f"attention over packed codes is unavailable: {why_not_imported(error)}"
    return None


def readable(scheme_key: Scheme, scheme_value: Scheme, block: int) -> bool:
    """Do the loops know this layout: keys per channel over a whole block, values per token, blocks of eights?"""
    known = scheme_key.axis == "channel" and scheme_value.axis == "token" and scheme_key.group == block
    return known and block % EIGHTS == 0 and scheme_key.nbits in NBITS


def _find_loops() -> Attention:
    """The compiled loops, once they have come close to attention over decoded tokens on a small example."""
    from .packed_numba import heads_between, heads_together, heads_worker, join

    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, 2, t, 32, generator=generator) for t in (1, 72, 72))
    sides = []
    for axis, states in (("channel", keys), ("token", values)):
        scheme = Scheme(4, axis, 32, native)
        sides.append(Side(scheme, 32, 64, scheme.encode(states[:, :, :64], 32), states, 64, 72))
    loops = Attention(heads_together, heads_worker, heads_between, join)
    expected = torch.nn.functional.scaled_dot_product_attention(query, *(side.dense() for side in sides))
    return tested(loops, lambda sharing: _run(loops, query, *sides, None, 32**-0.5, sharing), expected)


def tested(loops: Attention, run: Callable, expected: torch.Tensor) -> Attention:
    """The loops, once run((spans, threads)) has come close to what is expected on one thread and on two. Raises RuntimeError where it has not."""
    worst = max((run(sharing) - expected).abs().max().item() for sharing in ((1, 1), (1, 2), (2, 2)))
    if not worst < 1e-4:
        raise RuntimeError(f"its self-test is off by {worst:.1e}")
    return loops


LOOPS = Loops("attention over packed codes is unavailable; caches decode instead", _find_loops)


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False) -> torch.Tensor | None:
    """scaled_dot_product_attention for one token over packed keys and values; None where that needs decoding first.

    query [B, Hq, 1, D], or [B, H, Hq / H, D] as transformers packs grouped heads; returns the query's shape with the values' D.
    """
    packed = isinstance(key, PackedStates) and isinstance(value, PackedStates)
    if not packed or is_causal or dropout_p or isinstance(query, PackedStates):
        return None
    if not (fits(query, key.shape, value.shape) and one_token(query, key.shape, attn_mask)):
        return None
    scale = query.shape[3] ** -0.5 if scale is None else scale
    if key.fused and alike(key.side, value.side):
        return _run(LOOPS.run, query, key.side, value.side, attn_mask, scale)
    return _in_pieces(query, key.side, value.side, attn_mask, scale)


def fits(query: torch.Tensor, keys: torch.Size, values: torch.Size) -> bool:
    """Are these of the same rows, heads and tokens, as loops that work on addresses must be sure of?"""
    batch, heads, _, dim = keys
    return keys[:3] == values[:3] and query.dim() == 4 and query.shape[0] == batch and query.shape[1] % heads == 0 and query.shape[3] == dim


def alike(key: Side, value: Side) -> bool:
    """Are as many tokens of both codes and residual, in codes of one width and blocks of one size? Keys of one cache beside values of another may not be."""
    return key.scheme.nbits == value.scheme.nbits and key[1:3] == value[1:3] and key[5:] == value[5:]


def one_token(query: torch.Tensor, keys: torch.Size, mask: torch.Tensor | None) -> bool:
    """Is it one token that attends to keys [B, H, T, D], under no mask but one of tokens, and is no gradient asked for?"""
    single = query.shape[2] == 1 or query.shape[1] == keys[1]
    plain_mask = mask is None or mask.dim() == 4 and mask.shape[1:] == (1, 1, keys[2])
    return single and plain_mask and not (query.requires_grad and torch.is_grad_enabled())


def _in_pieces(query: torch.Tensor, key: Side, value: Side, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """As `_run`, by torch: never more than a piece of keys or values is decoded at once."""
    batch, heads, _, dim = key.residual.shape
    queries = (query.float() * scale).reshape(batch, heads, -1, dim)
    scores = torch.cat([queries @ keys.transpose(2, 3) for keys in key.pieces()], dim=3)
    if mask is not None:
        scores += torch.from_numpy(bias(mask, batch))[:, None, None]
    weights, out, seen = scores.softmax(dim=3), 0.0, 0
    for values in value.pieces():
        out = out + weights[..., seen : seen + values.shape[2]] @ values
        seen += values.shape[2]
    return out.reshape(*query.shape[:3], -1).to(query.dtype)


def _run(loops: Attention, query: torch.Tensor, key: Side, value: Side, mask: torch.Tensor | None, scale: float, sharing: tuple[int, int] | None = None) -> torch.Tensor:
    """`sharing`: spans and threads, where they are not to be chosen by size."""
    key, value = key.contiguous(), value.contiguous()
    batch, heads, _, dim = key.residual.shape
    queries, added = query.detach().float().contiguous(), bias(mask, batch)
    out = torch.empty(*query.shape[:3], value.residual.shape[3])
    many = queries.numel() // (batch * heads * dim)
    here = (batch, heads, many, queries.data_ptr(), added.ctypes.data if added.size else 0, added.shape[1], key.scheme.nbits, key.block, key.packed, key.start, key.stop)
    fixed = (float(scale), here + key.places() + value.places())
    in_spans(loops, fixed, out.numpy().reshape(batch, heads, 1, many, -1), *sharing or shares(batch, heads, heads * key.packed * dim, key.packed // key.block))
    return out.to(query.dtype)


def in_spans(loops: Attention, fixed: tuple, out: np.ndarray, cut: int, threads: int) -> None:
    """Run the loops for out [B, H, 1, G, D] on so many threads, over `cut` spans of each head's tokens, which are then put together."""
    batch, heads, _, many, dim = out.shape
    parts, mass = out if cut == 1 else np.empty((batch, heads, cut, many, dim), np.float32), np.empty((batch, heads, cut, many), np.float32)
    count, team = batch * heads * cut, team_address() if threads > 1 else 0
    if team or threads == 1:
        loops.together(team, loops.worker.address, min(threads, count), count, *fixed, cut, mass, parts)
    else:
        shared(loops.attend, (*fixed, cut, mass, parts), count, threads)
    if cut > 1:
        loops.join(parts, mass, out)


def bias(mask: torch.Tensor | None, batch: int) -> np.ndarray:
    """[batch, tokens] to add to the scores, for the loops; [0, 0] without a mask."""
    if mask is None:
        return _NOTHING
    row = mask[:, 0, 0]
    lowest = torch.finfo(torch.float32).min  # and not -inf, which loops compiled for speed may not meet
    row = torch.where(row, 0.0, lowest) if row.dtype == torch.bool else row.float().clamp(min=lowest)
    return row.expand(batch, -1).contiguous().numpy()


_NOTHING = np.empty((0, 0), np.float32)
