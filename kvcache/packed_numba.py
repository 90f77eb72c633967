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
def add_sums(s0, s1, s2, s3, s4, s5, s6, s7, sums):
    sums[0] += s0
    sums[1] += s1
    sums[2] += s2
    sums[3] += s3
    sums[4] += s4
    sums[5] += s5
    sums[6] += s6
    sums[7] += s7


@numba.njit(**COMPILED)
def dot_whole(a, rows, sums):
    """sums [8] += a times eight rows."""
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0.0)
    for i in range(a.shape[0]):
        x = a[i]
        s0 += x * np.float32(r0[i])
        s1 += x * np.float32(r1[i])
        s2 += x * np.float32(r2[i])
        s3 += x * np.float32(r3[i])
        s4 += x * np.float32(r4[i])
        s5 += x * np.float32(r5[i])
        s6 += x * np.float32(r6[i])
        s7 += x * np.float32(r7[i])
    add_sums(s0, s1, s2, s3, s4, s5, s6, s7, sums)


@numba.njit(**COMPILED)
def dot_pair(a, b, rows, low, high, sums):
    """sums [8] += a times the `low` bits of eight rows, and b times their `high` bits: each byte is widened once for both."""
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0.0)
    for i in range(a.shape[0]):
        x, y = a[i], b[i]
        c0, c1, c2, c3, c4, c5, c6, c7 = np.int32(r0[i]), np.int32(r1[i]), np.int32(r2[i]), np.int32(r3[i]), np.int32(r4[i]), np.int32(r5[i]), np.int32(r6[i]), np.int32(r7[i])
        s0 += x * np.float32(c0 & low) + y * np.float32(c0 & high)
        s1 += x * np.float32(c1 & low) + y * np.float32(c1 & high)
        s2 += x * np.float32(c2 & low) + y * np.float32(c2 & high)
        s3 += x * np.float32(c3 & low) + y * np.float32(c3 & high)
        s4 += x * np.float32(c4 & low) + y * np.float32(c4 & high)
        s5 += x * np.float32(c5 & low) + y * np.float32(c5 & high)
        s6 += x * np.float32(c6 & low) + y * np.float32(c6 & high)
        s7 += x * np.float32(c7 & low) + y * np.float32(c7 & high)
    add_sums(s0, s1, s2, s3, s4, s5, s6, s7, sums)


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
def fold(query, scales, gain, nbits, folded):
    """folded [parts, width] = the query [D] with a block's scales [D] and gain in it."""
    width = folded.shape[1]
    for part in range(folded.shape[0]):
        spread = gain / np.float32(1 << part * nbits)
        for i in range(width):
            folded[part, i] = query[part * width + i] * scales[part * width + i] * spread


@numba.njit(**COMPILED)
def score(queries, codes, scales, minima, gains, nbits, block, scores):
    """scores [G, tokens] of queries [G, D] that share a head, over packed keys: codes [tokens, D nbits / 8], scales [blocks, D]."""
    many, dim = queries.shape
    width, mask = codes.shape[1], (1 << nbits) - 1
    parts = dim // width
    folded, bits = np.empty((many, parts, width), np.float32), np.empty(dim, np.int32)
    floats = bits.view(np.float32)
    for index in range(codes.shape[0] // block):
        first, last, gain = index * block, (index + 1) * block, gains[index, 0]
        from_half(minima[index], bits, floats)
        for g in range(many):
            scores[g, first:last] = dot(queries[g], floats) * gain
        from_half(scales[index], bits, floats)
        for g in range(many):
            fold(queries[g], floats, gain, nbits, folded[g])
        for t in range(first, last, 8):
            for g in range(many):
                if parts == 1:
                    dot_whole(folded[g, 0], codes[t : t + 8], scores[g, t : t + 8])
                for part in range(0, parts - 1, 2):
                    low = np.int32(mask << part * nbits)
                    dot_pair(folded[g, part], folded[g, part + 1], codes[t : t + 8], low, low << np.int32(nbits), scores[g, t : t + 8])


@numba.njit(**COMPILED)
def decode_whole(rows, column, scales, minima, j, gain, out):
    """Of eight rows: out[:, column : ...] = codes from a column on, by the scales and minima [8, groups] of group j; as many as a group has."""
    count = out.shape[1] // scales.shape[1]
    for k in range(8):
        row, decoded = rows[k][column : column + count], out[k][column : column + count]
        scale, minimum = scales[k, j] * gain, minima[k, j] * gain
        for i in range(count):
            decoded[i] = np.float32(row[i]) * scale + minimum


@numba.njit(**COMPILED)
def decode_pair(row, low, high, scale_a, minimum_a, scale_b, minimum_b, out_a, out_b):
    """out_a = the `low` bits of a row, decoded; out_b = its `high` bits."""
    for i in range(row.shape[0]):
        code = np.int32(row[i])
        out_a[i] = np.float32(code & low) * scale_a + minimum_a
        out_b[i] = np.float32(code & high) * scale_b + minimum_b


@numba.njit(**COMPILED)
def decode_eight(rows, column, count, part, nbits, scales, minima, gain, out):
    """Two parts of eight tokens, from `part` and a column on: out [8, D] by scales, minima [8, groups]."""
    width, group = rows.shape[1], out.shape[1] // scales.shape[1]
    a = part * width + column
    b = a + width
    first, second = a // group, b // group
    low = np.int32(((1 << nbits) - 1) << part * nbits)
    high, spread = low << np.int32(nbits), gain / np.float32(1 << part * nbits)
    spread_b = spread / np.float32(1 << nbits)
    for k in range(8):
        decode_pair(
            rows[k][column : column + count], low, high, scales[k, first] * spread, minima[k, first] * gain,
            scales[k, second] * spread_b, minima[k, second] * gain, out[k][a : a + count], out[k][b : b + count],
        )  # fmt: skip


@numba.njit(**COMPILED)
def weigh(weights, codes, scales, minima, gains, nbits, block, out):
    """out [G, D] = weights [G, tokens] times packed values: codes [tokens, D nbits / 8], scales [tokens, groups].

    Tokens go by eights, which `block` is a multiple of; each is decoded once for all that share it.
    """
    many, dim = out.shape
    width, groups = codes.shape[1], scales.shape[1]
    step = math.gcd(dim // groups, width)
    eight, bits = np.empty((8, dim), np.float32), np.empty((2, block * groups), np.int32)
    floats = bits.view(np.float32)
    token_scales, token_minima = floats[0].reshape(block, groups), floats[1].reshape(block, groups)
    out[:] = np.float32(0.0)
    for index in range(codes.shape[0] // block):
        start, stop, gain = index * block, (index + 1) * block, gains[index, 0]
        from_half(scales[start:stop].reshape(-1), bits[0], floats[0])
        from_half(minima[start:stop].reshape(-1), bits[1], floats[1])
        for t in range(0, block, 8):
            rows = codes[start + t : start + t + 8]
            if nbits == 8:
                for j in range(groups):
                    decode_whole(rows, j * step, token_scales[t : t + 8], token_minima[t : t + 8], j, gain, eight)
            for part in range(0, dim // width - 1, 2):
                for column in range(0, width, step):
                    decode_eight(rows, column, step, part, nbits, token_scales[t : t + 8], token_minima[t : t + 8], gain, eight)
            for g in range(many):
                add_eight(weights[g, start + t : start + t + 8], eight, out[g])


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
    eights = rows.shape[0] // 8 * 8
    for t in range(0, eights, 8):
        for g in range(queries.shape[0]):
            scores[g, t : t + 8] = np.float32(0.0)
            dot_whole(queries[g], rows[t : t + 8], scores[g, t : t + 8])
    for t in range(eights, rows.shape[0]):
        for g in range(queries.shape[0]):
            scores[g, t] = dot(queries[g], rows[t])


@numba.njit(**COMPILED)
def weigh_rows(weights, rows, out):
    """out [G, D] += weights [G, tokens] times values in full precision [tokens, D]."""
    eights = rows.shape[0] // 8 * 8
    for t in range(0, eights, 8):
        for g in range(out.shape[0]):
            add_eight(weights[g, t : t + 8], rows[t : t + 8], out[g])
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
