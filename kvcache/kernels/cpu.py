"""The compiled loops on a CPU: one token's attention, over packed codes or rows in full precision, and quantising. They compile in a thread beside, once on a machine.

For a block of keys with one scale and minimum a channel, q . k = sum_d (q_d scale_d) code_d + q . minimum: scales are folded into the query once a
block, and the loop over tokens multiplies small integers. Values fold theirs into the attention weights. Source of the grouping: KIVI, Liu et al.
2024, arXiv 2402.02750. Over plain rows torch's own attention takes up to four times as long where several query heads share a key head: it reads a
row again for each of them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from ..extras import why_not_imported
from ..quantize import LEVELS, Encoded, Scheme, native, native_keys, native_values, rotated_keys, rotated_values
from .packed import Packed
from .threads import Loops, shared, shares, team_address, threads_for

SDPA = torch.nn.functional.scaled_dot_product_attention
NBITS = (8, 4, 2)  # codes that a mask takes out of a byte
TILE = 64  # tokens that were rounded alone and are read at a time
EIGHTS = 8  # the loops take that many tokens at a time
WORTH = 1 << 18  # elements of plain keys from which the loops win more than calling them costs
ENOUGH = 1 << 18  # elements to encode below which a second thread costs more than it brings


def why_not_loops(nbits: int) -> str | None:
    """Why codes of this width cannot be attended to packed, on this machine, or None."""
    if nbits not in NBITS:
        return f"attention over packed codes reads 8, 4 or 2 bits, not {nbits}"
    try:
        import numba  # noqa: F401
    except Exception as error:  # missing, or whatever a broken installation raises
        return f"attention over packed codes is unavailable: {why_not_imported(error)}"
    return None


# ------------------------------------------------------------------------------------------------------------ attention


class Attention(NamedTuple):
    """The compiled loops: `together` does all the work, on torch's threads, each of which runs `worker`, or on this one; `attend` pieces first to last of it, for threads of our own; `join` puts spans together."""

    together: Callable
    worker: Callable
    attend: Callable
    join: Callable


def takes(query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, wait: bool = False) -> bool:
    """Can the loops do this attention now? One token, under no mask but one of tokens, in a layout that they know. `wait` for them to compile, or say no until they have."""
    if query.shape[2] != 1 or query.device.type != "cpu" or not (mask is None or mask.shape[1:] == (1, 1, keys.shape[2])):
        return False
    if torch.is_grad_enabled() and any(states.requires_grad for states in (query, keys, values)):  # which the loops would lose
        return False
    if isinstance(keys, Packed):
        known = isinstance(values, Packed) and not keys.hidden and keys.alike(values) and readable(keys.scheme, values.scheme, keys.block)
        return known and _whole(keys, values) and PACKED.ready(wait)
    return query.dtype == keys.dtype == values.dtype == torch.float32 and PLAIN.ready(wait)


def readable(scheme_key: Scheme, scheme_value: Scheme, block: int) -> bool:
    """Do the loops know this layout: keys per channel over a whole block, values per token, blocks of eights; or both token by token?"""
    known = scheme_key.axis == "channel" and scheme_value.axis == "token" and scheme_key.group == block and block % EIGHTS == 0
    alone = scheme_key.axis == scheme_value.axis == "token" and block == 1
    return (known or alone) and {scheme_key.nbits, scheme_value.nbits} <= set(NBITS)


def _whole(keys: Packed, values: Packed) -> bool:
    """Have tokens that were rounded alone one scale each, and values nothing that they were rounded without?"""
    return keys.block > 1 or keys.encoded.scales.shape[3] == values.encoded.scales.shape[3] == 1 and values.centre is None


def worth(keys: torch.Tensor) -> bool:
    """Do the loops win over plain keys [B, H, T, D] of one token's attention? The first time asked, they are compiled in a thread beside."""
    return keys.numel() >= WORTH and keys.is_cpu and keys.dtype == torch.float32 and PLAIN.ready(wait=False)


def attention(query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """One token's, query [B, Hq, 1, D]: [B, Hq, 1, value D]."""
    return _packed(PACKED.run, query, keys, values, mask, scale) if isinstance(keys, Packed) else _plain(PLAIN.run, query, keys, values, mask, scale)


def attention_of_many(query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None, scale: float, is_causal: bool) -> torch.Tensor:
    """Many tokens', query [B, Hq, n, D], by torch over decoded keys and values, whose heads it need not repeat on a CPU: [B, Hq, n, value D]."""
    plain = (states.dense() for states in (keys, values))
    return torch.nn.functional.scaled_dot_product_attention(query, *plain, attn_mask=mask, scale=scale, is_causal=is_causal, enable_gqa=True)


def _packed(loops: Attention, query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None, scale: float, sharing: tuple[int, int] | None = None) -> torch.Tensor:
    """`sharing`: spans and threads, where they are not to be chosen by size."""
    keys, values = _as_loops_read(keys), _as_loops_read(values)
    batch, heads, _, dim = keys.shape
    queries, added = query.detach().float().contiguous(), bias(mask, batch)
    out = _room(query, values)
    many = queries.numel() // (batch * heads * dim)
    rows = (batch, heads, many, queries.data_ptr(), added.ctypes.data if added.size else 0, added.shape[1])
    block = TILE if keys.block == 1 else keys.block
    here = (*rows, keys.scheme.nbits, values.scheme.nbits, keys.scheme.turn(dim), values.scheme.turn(values.shape[3]), int(keys.block == 1), block, keys.ahead, keys.packed, keys.start, keys.stop)
    fixed = (float(scale), here + _places(keys) + _places(values))
    in_spans(loops, fixed, out.numpy().reshape(batch, heads, 1, many, -1), *sharing or shares(batch, heads, heads * keys.packed * dim, max(1, keys.packed // block)))
    return out.to(query.dtype)


def _plain(loops: Attention, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, sharing: tuple[int, int] | None = None) -> torch.Tensor:
    batch, heads, tokens, dim = keys.shape
    fixed = (query.detach().contiguous().numpy().reshape(batch, heads, -1, dim), scale, keys.detach().numpy(), values.detach().numpy(), bias(mask, batch))
    out = _room(query, values)
    in_spans(loops, fixed, out.numpy().reshape(batch, heads, 1, -1, out.shape[3]), *sharing or shares(batch, heads, heads * tokens * dim, tokens))
    return out


def attention_apart(query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], spans: list[tuple[int, int]], scale: float) -> torch.Tensor | None:
    """One token's of each row, query [B, H, G, D], to the tokens first to last of its own keys and values [1, H, T, D]: [B, H, G, value D]. None where the loops do not know a layout, or are not ready."""
    if query.dtype != torch.float32 or query.device.type != "cpu" or torch.is_grad_enabled() or not all(map(_in_rows, keys)) or not all(map(_in_rows, values)) or not APART.ready(wait=False):
        return None
    return _apart(APART.run, query, keys, values, spans, scale)


def _in_rows(states: torch.Tensor) -> bool:
    """Do the tokens of each head [1, H, T, D] lie one after the other?"""
    return states.dtype == torch.float32 and states.is_cpu and states.stride()[2:] == (states.shape[3], 1)


def _apart(attend: Callable, query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], spans: list[tuple[int, int]], scale: float) -> torch.Tensor:
    batch, heads = query.shape[:2]
    places = np.array([(_at(key, first), _at(value, first), 4 * key.stride(1), 4 * value.stride(1), last - first) for key, value, (first, last) in zip(keys, values, spans)], dtype=np.int64)
    out = torch.empty(*query.shape[:3], values[0].shape[3], dtype=torch.float32, device="cpu")
    numbers = int(places[:, 4].sum()) * heads * query.shape[3]
    shared(attend, (query.contiguous().numpy(), scale, places, out.numpy()), batch * heads, threads_for(numbers))
    return out


def _at(states: torch.Tensor, token: int) -> int:
    return states.data_ptr() + 4 * token * states.shape[3]


def _room(query: torch.Tensor, values: Packed | torch.Tensor) -> torch.Tensor:
    return torch.empty(*query.shape[:3], values.shape[3], dtype=torch.float32, device="cpu")


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
    row = row.logical_not().float() * lowest if row.dtype == torch.bool else row.float().clamp(min=lowest)
    return row.expand(batch, -1).contiguous().numpy()


_NOTHING = np.empty((0, 0), np.float32)


def _as_loops_read(states: Packed) -> Packed:
    """The same with every buffer as the loops read it: row after row, what is in full precision in float32; of tokens that were rounded alone, in the place of gains what keys were rounded without."""
    if states.block == 1:
        centre = states.residual.new_zeros(*states.shape[:2], states.shape[3], 1, dtype=torch.float32) if states.centre is None else states.centre.transpose(2, 3)
        states = states._replace(encoded=states.encoded._replace(gains=centre))
    if states.residual.dtype == torch.float32 and states.residual.is_contiguous() and (states.first is None or states.first.is_contiguous()) and all(map(_regular, states.encoded)):
        return states
    encoded = states.encoded if all(map(_regular, states.encoded)) else Encoded(*(part.contiguous() for part in states.encoded))
    first = None if states.first is None else states.first.float().contiguous()
    return states._replace(encoded=encoded, residual=states.residual.float().contiguous(), first=first)


def _places(states: Packed) -> tuple[int, ...]:
    """Where codes, scales, minima, gains, residual and first rows lie, and how many rows are reserved in each; D, and the scales of a row."""
    (codes, scales, minima, gains), residual = states.encoded, states.residual
    capacity, dim = residual.shape[2:]
    first = (0, 0) if states.first is None else (states.first.data_ptr(), states.first.shape[2])
    return (codes.data_ptr(), _rows(codes), scales.data_ptr(), _rows(scales), minima.data_ptr(), gains.data_ptr(), _rows(gains), residual.data_ptr(), capacity, *first, dim, scales.shape[3])


def _rows(buffer: torch.Tensor) -> int:
    """Rows from the start of one head to that of the next in a buffer [B, H, rows, width], which may begin behind rows that were dropped."""
    batch, heads, rows, width = buffer.shape
    return buffer.stride(0) // (heads * width) if batch > 1 else buffer.stride(1) // width if heads > 1 else rows


def _regular(buffer: torch.Tensor) -> bool:
    """Do the rows of each head lie one after the other, and the heads as far apart as those of all batch rows?"""
    if buffer.is_contiguous():
        return True
    batch, head, row, single = buffer.stride()
    return single == 1 and row == buffer.shape[3] and head % row == 0 and (buffer.shape[0] == 1 or batch == buffer.shape[1] * head)


def _sample(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers for a self-test, of no default's dtype or device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32, device="cpu")


def _find_packed() -> Attention:
    """The loops over packed codes, once they have come close to attention over decoded tokens on a small example."""
    from .cpu_attention import heads_between, heads_together, heads_worker, join

    query, loops = _sample(1, 2, 1, 32), Attention(heads_together, heads_worker, heads_between, join)
    for sides in (_in_blocks(), _alone()):
        expected = SDPA(query, *(side.dense() for side in sides))
        _tested(loops, lambda sharing, sides=sides: _packed(loops, query, *sides, None, 32**-0.5, sharing), expected)
    return loops


def _in_blocks() -> list[Packed]:
    """Keys and values [1, 2, 77, 32] for a self-test, 64 of them in blocks of 32."""
    schemes = [(Scheme(4, axis, 32, native, rotated=True), _sample(1, 2, 72, 32, seed=seed)) for axis, seed in (("channel", 1), ("token", 2))]
    return [Packed(scheme, 32, 64, scheme.encode(states[:, :, :64], 32), states, 64, 72, states, 5) for scheme, states in schemes]


def _alone() -> list[Packed]:
    """The same, [1, 2, 103, 32], 90 of them rounded token by token."""
    scheme, keys, values = Scheme(4, "token", 32, native, rotated=True), _sample(1, 2, 98, 32, seed=1), _sample(1, 2, 98, 32, seed=2)
    return [Packed(scheme, 1, 90, scheme.encode_each(states[:, :, :90]), states, 90, 98, states, 5, centre) for states, centre in ((keys, keys[:, :, :1].clone()), (values, None))]


def _find_plain() -> Attention:
    """The loops over rows in full precision, once they have come close to torch's attention on a small example."""
    from .cpu_attention import attend_rows, join, rows_together, rows_worker

    query, keys, values = _sample(1, 2, 3, 40), _sample(1, 2, 21, 40, seed=1), _sample(1, 2, 21, 40, seed=2)
    loops = Attention(rows_together, rows_worker, attend_rows, join)
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    return _tested(loops, lambda sharing: _plain(loops, query, keys, values, None, 40**-0.5, sharing), expected)


def _tested(loops: Attention, run: Callable, expected: torch.Tensor) -> Attention:
    """The loops, once run((spans, threads)) has come close to what is expected on one thread and on two. Raises RuntimeError where it has not."""
    worst = max((run(sharing) - expected).abs().max().item() for sharing in ((1, 1), (1, 2), (2, 2)))
    if not worst < 1e-4:
        raise RuntimeError(f"its self-test is off by {worst:.1e}")
    return loops


def _find_apart() -> Callable:
    """The loops over rows that lie apart, once they have come close to torch's attention on a small example."""
    from .cpu_attention import attend_apart

    query, keys, values = _sample(2, 2, 3, 40), [_sample(1, 2, n, 40, seed=n) for n in (21, 9)], [_sample(1, 2, n, 24, seed=n + 1) for n in (21, 9)]
    spans = [(2, 21), (0, 5)]
    expected = torch.cat([SDPA(query[n : n + 1], keys[n][:, :, slice(*span)], values[n][:, :, slice(*span)]) for n, span in enumerate(spans)])
    worst = float((_apart(attend_apart, query, keys, values, spans, 40**-0.5) - expected).abs().max())
    if not worst < 1e-4:
        raise RuntimeError(f"its self-test is off by {worst:.1e}")
    return attend_apart


PACKED = Loops("attention over packed codes is unavailable; torch decodes them piece by piece", _find_packed)
PLAIN = Loops("attention by compiled loops is unavailable; torch's own runs instead", _find_plain)

APART = Loops("attention of a batch's rows by compiled loops is unavailable; torch's own runs row by row", _find_apart)

# ----------------------------------------------------------------------------------------------------------- quantising


def encode(scheme: Scheme, states: torch.Tensor, block: int) -> Encoded | None:
    """`scheme.encode` of states [B, H, T, D], to the bit; None where the loops are not to be used, or meet what is not finite."""
    known = scheme.quantizer in LEVELS and scheme.nbits in NBITS and states.device.type == "cpu" and not (torch.is_grad_enabled() and states.requires_grad)
    if not known or not states.numel() or not ENCODE.ready(wait=False):
        return None
    encoded = _empty(scheme, states, block)
    return encoded if _encode(ENCODE.run, scheme, states, encoded) else None


def _empty(scheme: Scheme, states: torch.Tensor, block: int) -> Encoded:
    """Room for states [B, H, T, D]."""
    b, h, t, d = states.shape
    shape = (b, h, t // scheme.group, d) if scheme.axis == "channel" else (b, h, t, d // scheme.group)
    shapes, dtypes = ((b, h, t, d * scheme.nbits // 8), shape, shape, (b, h, t // block, 1)), (torch.uint8, torch.float16, torch.float16, torch.float32)
    return Encoded(*(torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in zip(shapes, dtypes)))


def _encode(encode_heads: Callable, scheme: Scheme, states: torch.Tensor, encoded: Encoded) -> bool:
    """Fill `encoded` for states [B, H, T, D], the heads of its blocks shared by threads; False if there is something that is not finite."""
    states = states.detach().float()
    states = states if states.stride(3) == 1 else states.contiguous()
    extent = sum((size - 1) * stride for size, stride in zip(states.shape, states.stride())) + 1
    flat = states.as_strided((extent,), (1,)).numpy()
    fits, middle, power = scheme.fit
    codes, scales, minima, gains = encoded
    arrays = (codes.numpy(), scales.view(torch.uint16).numpy(), minima.view(torch.uint16).numpy(), gains.numpy())
    arguments = (flat, states.stride()[:3], scheme.axis == "channel", scheme.turn(states.shape[3]), scheme.group, scheme.nbits, (1 - middle) / 2, fits, power, *arrays)
    return all(shared(encode_heads, arguments, gains.numel(), torch.get_num_threads() if states.numel() > ENOUGH else 1))


def _find_encode() -> Callable:
    """The loops that quantise, once they have given what torch gives."""
    from .cpu_encode import encode_heads

    states = _sample(1, 2, 32, 16)
    for nbits, axis, quantizer in ((4, "channel", native), (8, "token", native), (2, "channel", native_keys), (2, "token", native_values), (4, "channel", rotated_keys), (2, "token", rotated_values)):
        scheme = Scheme(nbits, axis, 16, quantizer, rotated=quantizer is not native)
        found = _empty(scheme, states, 32)
        finite = _encode(encode_heads, scheme, states, found)
        if not finite or not all(torch.equal(*pair) for pair in zip(found, scheme.encode(states, 32))):
            raise RuntimeError(f"the self-test of {nbits} bits along the {axis} axis failed")
    return encode_heads


ENCODE = Loops("compiled quantising is unavailable; torch does it, slower", _find_encode)
ALL = (PACKED, PLAIN, APART, ENCODE)
