"""The loops of attention over packed codes, for numba. Imported only where they are used: compiling takes seconds, once.

Eight tokens at a time are unpacked to small whole numbers, once for all query heads that share them; scales and minima are folded into
the queries and the attention weights. The inner loops are `vectors_numba`'s.
"""

import numba
import numpy as np

from .vectors_numba import add_to_one, add_to_two, dot_eight, fetch, unpack_2, unpack_4, unpack_8

COMPILED = dict(fastmath=True, cache=True, nogil=True, error_model="numpy")
LOG2_E = np.float32(1.4426950408889634)
EXP2 = tuple(np.float32(c) for c in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 0.24022651, 0.69314718, 1.0))  # Taylor series of 2^f


@numba.njit(**COMPILED)
def from_half(halves, bits, floats):
    """floats [n] = float16 numbers, given as their bits; `bits`: the same memory as `floats`, as int32.

    A float16's exponent counts from 15 and a float32's from 127: moved bits are a number 2^112 too small.
    """
    for i in range(halves.shape[0]):
        half = np.int32(halves[i])
        bits[i] = (half & np.int32(0x7FFF)) << np.int32(13) | (half & np.int32(0x8000)) << np.int32(16)
    for i in range(halves.shape[0]):
        floats[i] *= np.float32(2.0**112)


@numba.njit(**COMPILED)
def dot(a, b):
    total = np.float32(0.0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@numba.njit(**COMPILED)
def add(share, b, out):
    for i in range(out.shape[0]):
        out[i] += share * b[i]


@numba.njit(**COMPILED)
def unpack(codes, t, nbits, eight):
    """eight [8, D] = the codes of tokens t to t + 8, as float32; codes [tokens, D nbits / 8]."""
    address, stride = codes.ctypes.data + t * codes.strides[0], codes.strides[0]
    if nbits == 4:
        unpack_4(address, stride, codes.shape[1], eight.ctypes.data)
    elif nbits == 8:
        unpack_8(address, stride, codes.shape[1], eight.ctypes.data)
    else:
        unpack_2(address, stride, codes.shape[1], eight.ctypes.data)


@numba.njit(**COMPILED)
def score(queries, codes, scales, minima, gains, nbits, block, scores):
    """scores [G, tokens] of queries [G, D] that share a head, over packed keys: codes [tokens, D nbits / 8], scales [blocks, D]."""
    many, dim = queries.shape
    folded, offsets, eight = np.empty((many, dim), np.float32), np.empty(many, np.float32), np.empty((8, dim), np.float32)
    bits = np.empty(dim, np.int32)
    floats = bits.view(np.float32)
    for index in range(codes.shape[0] // block):
        from_half(minima[index], bits, floats)
        for g in range(many):
            offsets[g] = dot(queries[g], floats) * gains[index, 0]
        from_half(scales[index], bits, floats)
        for g in range(many):
            fold(queries[g], floats, gains[index, 0], folded[g])
        for t in range(index * block, (index + 1) * block, 8):
            unpack(codes, t, nbits, eight)
            for g in range(many):
                dot_eight(folded.ctypes.data + 4 * g * dim, eight.ctypes.data, 4 * dim, dim, offsets[g], scores.ctypes.data + g * scores.strides[0] + 4 * t)


@numba.njit(**COMPILED)
def fold(query, scales, gain, folded):
    """folded [D] = the query with a block's scales and gain in it."""
    for i in range(query.shape[0]):
        folded[i] = query[i] * scales[i] * gain


@numba.njit(**COMPILED)
def weigh(weights, codes, scales, minima, gains, nbits, block, out):
    """out [G, D] = weights [G, tokens] times packed values: codes [tokens, D nbits / 8], scales [tokens, groups].

    Tokens go by eights, which `block` is a multiple of; the codes of each are unpacked once for all that share it.
    """
    many, dim = out.shape
    groups = scales.shape[1]
    size = dim // groups
    eight, bits = np.empty((8, dim), np.float32), np.empty(block * groups, np.int32)
    token_scales, token_minima = np.empty((groups, block), np.float32), np.empty((groups, block), np.float32)
    shares, least = np.empty((many, groups, block), np.float32), np.zeros((many, groups), np.float32)
    out[:] = np.float32(0.0)
    for index in range(codes.shape[0] // block):
        start, stop = index * block, (index + 1) * block
        by_group(scales[start:stop], bits, token_scales)
        by_group(minima[start:stop], bits, token_minima)
        for g in range(many):
            for j in range(groups):
                least[g, j] += spread(weights[g, start:stop], token_scales[j], token_minima[j], gains[index, 0], shares[g, j])
        for t in range(0, block, 8):
            unpack(codes, start + t, nbits, eight)
            for j in range(groups):
                first = 4 * j * size
                add_rows(many, shares.ctypes.data + 4 * (j * block + t), 4 * groups * block, eight.ctypes.data + first, 4 * dim, size, out.ctypes.data + first, out.strides[0])
    for g in range(many):
        for i in range(dim):
            out[g, i] += least[g, i // size]


@numba.njit(**COMPILED)
def by_group(halves, bits, out):
    """out [groups, tokens] = float16 numbers [tokens, groups], given as their bits; bits: room for as many int32."""
    floats = bits.view(np.float32)
    from_half(halves.reshape(-1), bits, floats)
    groups = out.shape[0]
    for j in range(groups):
        for t in range(out.shape[1]):
            out[j, t] = floats[t * groups + j]


@numba.njit(**COMPILED)
def add_rows(many, shares, apart, rows, stride, count, out, step):
    """To each of `many` rows at `out`, `step` bytes apart, eight rows times its own shares: `add_to_one`, two at a time while there are two."""
    for g in range(0, many - 1, 2):
        add_to_two(shares + g * apart, apart, rows, stride, count, out + g * step, step)
    if many % 2:
        add_to_one(shares + (many - 1) * apart, apart, rows, stride, count, out + (many - 1) * step, step)


@numba.njit(**COMPILED)
def spread(weights, scales, minima, gain, shares):
    """shares [tokens] = weights times scales and gain; returns the sum of weights times minima and gain."""
    total = np.float32(0.0)
    for t in range(shares.shape[0]):
        shares[t] = weights[t] * gain * scales[t]
        total += weights[t] * minima[t]
    return total * gain


@numba.njit(**COMPILED)
def softmax(scores, bits):
    """In place; bits: room for as many int32. exp(x) = 2^k p(f) with k = round(x log2 e): numba's own exp doesn't vectorise.

    2^k is the float32 whose exponent bits say k.
    """
    top = scores[0]
    for t in range(scores.shape[0]):
        top = max(top, scores[t])
    for t in range(scores.shape[0]):
        x = max((scores[t] - top) * LOG2_E, np.float32(-126.0))
        whole = np.floor(x + np.float32(0.5))
        rest = x - whole
        value = EXP2[0]
        for c in EXP2[1:]:
            value = value * rest + c
        scores[t] = value
        bits[t] = np.int32(np.int32(whole) + np.int32(127)) << np.int32(23)
    powers, total = bits.view(np.float32), np.float32(0.0)
    for t in range(scores.shape[0]):
        scores[t] *= powers[t]
        total += scores[t]
    share = np.float32(1.0) / total
    for t in range(scores.shape[0]):
        scores[t] *= share


@numba.njit(**COMPILED)
def score_rows(queries, rows, scores):
    """scores [G, tokens] of queries [G, D] over keys in full precision [tokens, D]."""
    eights, dim = rows.shape[0] // 8 * 8, rows.shape[1]
    for t in range(0, eights, 8):
        fetch(rows.ctypes.data + (t + 8) * rows.strides[0], 8 * rows.strides[0])
        for g in range(queries.shape[0]):
            dot_eight(queries[g].ctypes.data, rows.ctypes.data + t * rows.strides[0], rows.strides[0], dim, np.float32(0.0), scores.ctypes.data + g * scores.strides[0] + 4 * t)
    for t in range(eights, rows.shape[0]):
        for g in range(queries.shape[0]):
            scores[g, t] = dot(queries[g], rows[t])


@numba.njit(**COMPILED)
def weigh_rows(weights, rows, out):
    """out [G, D] += weights [G, tokens] times values in full precision [tokens, D]."""
    eights = rows.shape[0] // 8 * 8
    for t in range(0, eights, 8):
        fetch(rows.ctypes.data + (t + 8) * rows.strides[0], 8 * rows.strides[0])
        add_rows(out.shape[0], weights.ctypes.data + 4 * t, weights.strides[0], rows.ctypes.data + t * rows.strides[0], rows.strides[0], rows.shape[1], out.ctypes.data, out.strides[0])
    for t in range(eights, rows.shape[0]):
        for g in range(out.shape[0]):
            add(weights[g, t], rows[t], out[g])


@numba.njit(**COMPILED)
def attend_heads(queries, scale, kc, ks, km, kg, vc, vs, vm, vg, rk, rv, bias, nbits, block, packed, start, stop, out, first, last):
    """Heads first to last, counted over batch x key/value heads, of out [B, H, G, value D]; G query heads share each.

    queries [B, H, G, D]; kc, vc: codes [B, H, capacity, bytes], of which `packed` tokens count; rk, rv: residual
    [B, H, capacity, D], of which start to stop count; bias [B, packed + stop - start] to add to the scores, or [0, 0].
    """
    blocks, heads = packed // block, queries.shape[1]
    scores = np.empty((queries.shape[2], packed + stop - start), np.float32)
    bits = np.empty(scores.shape[1], np.int32)
    for n in range(first, last):
        b, h = n // heads, n % heads
        query = queries[b, h] * np.float32(scale)
        score(query, kc[b, h, :packed], ks[b, h, :blocks], km[b, h, :blocks], kg[b, h], nbits, block, scores)
        score_rows(query, rk[b, h, start:stop], scores[:, packed:])
        for g in range(scores.shape[0]):
            if bias.shape[0]:
                add(np.float32(1.0), bias[b], scores[g])
            softmax(scores[g], bits)
        weigh(scores, vc[b, h, :packed], vs[b, h, :packed], vm[b, h, :packed], vg[b, h], nbits, block, out[b, h])
        weigh_rows(scores[:, packed:], rv[b, h, start:stop], out[b, h])


@numba.njit(**COMPILED)
def attend_rows(queries, scale, keys, values, bias, out, first, last):
    """Heads first to last, counted over batch x key/value heads, of out [B, H, G, value D], for keys and values in full precision [B, H, T, D].

    queries [B, H, G, D]; bias [B, T] to add to the scores, or [0, 0].
    """
    heads, scores = queries.shape[1], np.empty((queries.shape[2], keys.shape[2]), np.float32)
    bits = np.empty(scores.shape[1], np.int32)
    for n in range(first, last):
        b, h = n // heads, n % heads
        score_rows(queries[b, h] * np.float32(scale), keys[b, h], scores)
        for g in range(scores.shape[0]):
            if bias.shape[0]:
                add(np.float32(1.0), bias[b], scores[g])
            softmax(scores[g], bits)
        out[b, h] = np.float32(0.0)
        weigh_rows(scores, values[b, h], out[b, h])
