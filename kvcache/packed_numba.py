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
POWERS = (2.0 ** -np.arange(127)).astype(np.float32)
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
def add_eight(shares, rows, start, out):
    """out += shares [8] times eight rows of floats, from column `start` on; eight, so that `out` is loaded and stored seldom."""
    a, b, c, d, e, f, g, h = shares[0], shares[1], shares[2], shares[3], shares[4], shares[5], shares[6], shares[7]
    stop = start + out.shape[0]
    r0, r1, r2, r3 = rows[0, start:stop], rows[1, start:stop], rows[2, start:stop], rows[3, start:stop]
    r4, r5, r6, r7 = rows[4, start:stop], rows[5, start:stop], rows[6, start:stop], rows[7, start:stop]
    for i in range(out.shape[0]):
        first = (a * r0[i] + b * r1[i]) + (c * r2[i] + d * r3[i])
        out[i] += first + ((e * r4[i] + f * r5[i]) + (g * r6[i] + h * r7[i]))


@numba.njit(**COMPILED)
def add_eight_codes(shares, codes, start, bits, out):
    """The same straight from eight packed rows."""
    a, b, c, d, e, f, g, h = shares[0], shares[1], shares[2], shares[3], shares[4], shares[5], shares[6], shares[7]
    stop = start + out.shape[0]
    r0, r1, r2, r3 = codes[0, start:stop], codes[1, start:stop], codes[2, start:stop], codes[3, start:stop]
    r4, r5, r6, r7 = codes[4, start:stop], codes[5, start:stop], codes[6, start:stop], codes[7, start:stop]
    for i in range(out.shape[0]):
        first = (a * np.float32(r0[i] & bits) + b * np.float32(r1[i] & bits)) + (c * np.float32(r2[i] & bits) + d * np.float32(r3[i] & bits))
        out[i] += first + ((e * np.float32(r4[i] & bits) + f * np.float32(r5[i] & bits)) + (g * np.float32(r6[i] & bits) + h * np.float32(r7[i] & bits)))


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
def weigh(weights, codes, scales, minima, gains, nbits, block, halves, out):
    """out [G, D] = weights [G, tokens] times packed values: codes [tokens, D nbits / 8], scales [tokens, groups].

    Tokens go by eights, which `block` is a multiple of.
    """
    many, dim = out.shape
    width, mask, groups = codes.shape[1], (1 << nbits) - 1, scales.shape[1]
    group = dim // groups
    step = math.gcd(group, width)
    scale, low = np.empty((groups, 8), np.float32), np.empty((groups, 8), np.float32)
    wide, shares, lows = np.empty((8, dim), np.float32), np.empty(8, np.float32), np.zeros((many, groups), np.float32)
    out[:] = np.float32(0.0)
    for t in range(0, codes.shape[0], 8):
        gain = gains[t // block, 0]
        for j in range(groups):
            for k in range(8):
                scale[j, k] = halves[scales[t + k, j]] * gain
                low[j, k] = halves[minima[t + k, j]] * gain
        if many > 1:
            for k in range(8):
                for part in range(dim // width):
                    widen(codes[t + k], np.uint8(mask << part * nbits), wide[k, part * width : (part + 1) * width])
        for g in range(many):
            eight = weights[g, t : t + 8]
            for j in range(groups):
                total = np.float32(0.0)
                for k in range(8):
                    total += eight[k] * low[j, k]
                lows[g, j] += total
            for start in range(0, dim, step):
                part, row = start // width, scale[start // group]
                for k in range(8):
                    shares[k] = eight[k] * row[k] / np.float32(1 << part * nbits)
                if many == 1:
                    add_eight_codes(shares, codes[t : t + 8], start - part * width, np.uint8(mask << part * nbits), out[0, start : start + step])
                else:
                    add_eight(shares, wide, start, out[g, start : start + step])
    for g in range(many):
        for i in range(dim):
            out[g, i] += lows[g, i // group]


@numba.njit(**COMPILED)
def softmax(scores):
    """In place. exp(x) = 2^k p(f) with k = round(x log2 e), because numba's own exp doesn't vectorise."""
    top = scores[0]
    for t in range(scores.shape[0]):
        top = max(top, scores[t])
    total = np.float32(0.0)
    for t in range(scores.shape[0]):
        x = max((scores[t] - top) * LOG2_E, np.float32(-126.0))
        whole = np.floor(x + np.float32(0.5))
        rest = x - whole
        value = EXP2[0]
        for c in EXP2[1:]:
            value = value * rest + c
        value *= POWERS[int(-whole)]
        scores[t] = value
        total += value
    share = np.float32(1.0) / total
    for t in range(scores.shape[0]):
        scores[t] *= share


@numba.njit(**COMPILED)
def attend_heads(queries, kc, ks, km, kg, vc, vs, vm, vg, rk, rv, bias, halves, nbits, block, packed, start, stop, first, last, out):
    """Rows first to last of out [N, G, value D], where N = batch x key/value heads and G query heads share each.

    queries [N, G, D], scaled; kc, vc: codes [N, capacity, bytes], of which `packed` tokens count; rk, rv: residual
    [N, capacity, D], of which start to stop count; bias [batch, packed + stop - start] to add to the scores, or [0, 0].
    """
    blocks, heads = packed // block, queries.shape[0] // max(1, bias.shape[0])
    scores = np.empty((queries.shape[1], packed + stop - start), np.float32)
    for n in range(first, last):
        score(queries[n], kc[n, :packed], ks[n, :blocks], km[n, :blocks], kg[n], nbits, block, halves, scores)
        for g in range(scores.shape[0]):
            for t in range(start, stop):
                scores[g, packed + t - start] = dot(queries[n, g], rk[n, t])
            if bias.shape[0]:
                add(np.float32(1.0), bias[n // heads], scores[g])
            softmax(scores[g])
        weigh(scores, vc[n, :packed], vs[n, :packed], vm[n, :packed], vg[n], nbits, block, halves, out[n])
        for g in range(scores.shape[0]):
            for t in range(start, stop):
                add(scores[g, packed + t - start], rv[n, t], out[n, g])
