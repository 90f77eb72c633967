"""The loops of attention over packed codes, for numba. Imported only where they are used: compiling takes seconds, once.

A byte holds codes from equal parts of the head (`quantize.pack`). Masking leaves each where it stands, so that a code of part j
comes out multiplied by 2^(j nbits), which is divided out of its scale: every inner loop multiplies small integers. Inner loops
run over one-dimensional slices to their own length, which is what LLVM turns into vector code for every width.
"""

import math

import numba
import numpy as np

COMPILED = dict(fastmath=True, cache=True, nogil=True, error_model="numpy")
LOG2_E = np.float32(1.4426950408889634)
EXP2 = tuple(np.float32(c) for c in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 0.24022651, 0.69314718, 1.0))  # Taylor series of 2^f


@numba.njit(**COMPILED)
def widen(row, bits, wide):
    """wide[i] = row[i] & bits, as float."""
    for i in range(row.shape[0]):
        wide[i] = np.float32(row[i] & bits)


@numba.njit(**COMPILED)
def dot(a, b):
    total = np.float32(0.0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@numba.njit(**COMPILED)
def dot_codes(a, row, bits):
    total = np.float32(0.0)
    for i in range(row.shape[0]):
        total += a[i] * np.float32(row[i] & bits)
    return total


@numba.njit(**COMPILED)
def add(share, b, out):
    for i in range(out.shape[0]):
        out[i] += share * b[i]


@numba.njit(**COMPILED)
def add_eight(shares, rows, out):
    """out += shares [8] times eight rows; eight, so that `out` is loaded and stored seldom."""
    a, b, c, d, e, f, g, h = shares[0], shares[1], shares[2], shares[3], shares[4], shares[5], shares[6], shares[7]
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    for i in range(out.shape[0]):
        first = (a * r0[i] + b * r1[i]) + (c * r2[i] + d * r3[i])
        out[i] += first + ((e * r4[i] + f * r5[i]) + (g * r6[i] + h * r7[i]))


@numba.njit(**COMPILED)
def fold(query, scales, minima, gain, nbits, halves, folded):
    """folded = the query with a block's scales in it; returns what the block's minima add to each score."""
    width = query.shape[0] * nbits // 8
    constant, spread = np.float32(0.0), gain
    for start in range(0, query.shape[0], width):
        for i in range(start, start + width):
            constant += query[i] * halves[minima[i]]
            folded[i] = query[i] * halves[scales[i]] * spread
        spread /= np.float32(1 << nbits)
    return constant * gain


@numba.njit(**COMPILED)
def score(queries, codes, scales, minima, gains, nbits, block, halves, scores):
    """scores [G, tokens] of queries [G, D] that share a head, over packed keys: codes [tokens, D nbits / 8], scales [blocks, D]."""
    many, dim = queries.shape
    width, mask = codes.shape[1], (1 << nbits) - 1
    folded, constants, wide = np.empty((many, dim), np.float32), np.empty(many, np.float32), np.empty(dim, np.float32)
    for index in range(codes.shape[0] // block):
        for g in range(many):
            constants[g] = fold(queries[g], scales[index], minima[index], gains[index, 0], nbits, halves, folded[g])
        for t in range(index * block, (index + 1) * block):
            if many == 1:
                total = constants[0]
                for part in range(dim // width):
                    total += dot_codes(folded[0, part * width : (part + 1) * width], codes[t], np.uint8(mask << part * nbits))
                scores[0, t] = total
            else:
                for part in range(dim // width):
                    widen(codes[t], np.uint8(mask << part * nbits), wide[part * width : (part + 1) * width])
                for g in range(many):
                    scores[g, t] = constants[g] + dot(folded[g], wide)


@numba.njit(**COMPILED)
def decode_eight(codes, column, bits, scales, lows, out, first, count):
    """Of eight rows: out[first : first + count] = (codes[column : column + count] & bits) scale + low."""
    for k in range(8):
        row, decoded, scale, low = codes[k, column : column + count], out[k, first : first + count], scales[k], lows[k]
        for i in range(count):
            decoded[i] = np.float32(row[i] & bits) * scale + low


@numba.njit(**COMPILED)
def weigh(weights, codes, scales, minima, gains, nbits, block, halves, out):
    """out [G, D] = weights [G, tokens] times packed values: codes [tokens, D nbits / 8], scales [tokens, groups].

    Tokens go by eights, which `block` is a multiple of; each is decoded once for all that share it.
    """
    many, dim = out.shape
    width, mask, group = codes.shape[1], (1 << nbits) - 1, dim // scales.shape[1]
    step = math.gcd(group, width)
    eight, scale, low = np.empty((8, dim), np.float32), np.empty(8, np.float32), np.empty(8, np.float32)
    out[:] = np.float32(0.0)
    for t in range(0, codes.shape[0], 8):
        gain = gains[t // block, 0]
        for first in range(0, dim, step):
            part, j = first // width, first // group
            for k in range(8):
                scale[k] = halves[scales[t + k, j]] * (gain / np.float32(1 << part * nbits))
                low[k] = halves[minima[t + k, j]] * gain
            decode_eight(codes[t : t + 8], first - part * width, np.uint8(mask << part * nbits), scale, low, eight, first, step)
        for g in range(many):
            add_eight(weights[g, t : t + 8], eight, out[g])


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
def attend_heads(queries, scale, kc, ks, km, kg, vc, vs, vm, vg, rk, rv, bias, halves, nbits, block, packed, start, stop, out, first, last):
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
        score(query, kc[b, h, :packed], ks[b, h, :blocks], km[b, h, :blocks], kg[b, h], nbits, block, halves, scores)
        for g in range(scores.shape[0]):
            for t in range(start, stop):
                scores[g, packed + t - start] = dot(query[g], rk[b, h, t])
            if bias.shape[0]:
                add(np.float32(1.0), bias[b], scores[g])
            softmax(scores[g], bits)
        weigh(scores, vc[b, h, :packed], vs[b, h, :packed], vm[b, h, :packed], vg[b, h], nbits, block, halves, out[b, h])
        for g in range(scores.shape[0]):
            for t in range(start, stop):
                add(scores[g, packed + t - start], rv[b, h, t], out[b, h, g])
