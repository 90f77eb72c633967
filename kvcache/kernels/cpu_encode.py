"""The loops that quantise blocks, for numba. Imported only where they are used: compiling takes seconds, once.

A head of a block lies as `work` [rows, lanes], where a group is some neighbouring rows of one lane: rows are tokens and lanes channels on the
channel axis, rows are channels and lanes tokens on the token axis. So every inner loop runs over the lanes of one row, which is what LLVM turns
into vector code, and does to each number what `quantize` does by torch, in the same order: without fastmath the results are the same to the bit.
"""

import numba
import numpy as np

COMPILED = dict(cache=True, nogil=True, error_model="numpy")
TINY, TINY16, TINY32 = np.float32(1e-12), np.float32(2.0**-24), np.float32(2.0**-126)  # of `quantize`, the smallest float16 above 0 and the smallest normal float32
MAGNITUDE, INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)  # of a float32's bits: all but its sign, and where finite ones end
NORMAL, OVERFLOW = np.int32(113 << 23), np.int32(0x477FF000)  # 2^-14 and 65,520: where float16 has its full fraction, and where it is infinite


@numba.njit(**COMPILED)
def to_half(x, bits, halves):
    """Make each x the float16 nearest to it, ties to even, and `halves` its bits; `bits` is x seen as int32. Were all in float16's range?

    From 2^-14 on a float16 has 13 bits less of a float32's fraction; below, one is 2^-24 from the next.
    """
    within = True
    for i in range(x.shape[0]):
        whole = np.int32(bits[i] & MAGNITUDE)
        sign = np.int32(bits[i] ^ whole)
        within &= whole < OVERFLOW
        if whole < NORMAL:
            half = np.int32(np.rint(abs(x[i]) * np.float32(2.0**24)))
            x[i] = np.copysign(np.float32(half) * np.float32(2.0**-24), x[i])
        else:
            odd = np.int32(np.int32(whole >> np.int32(13)) & np.int32(1))
            near = np.int32(np.int32(np.int32(whole + np.int32(0xFFF)) + odd) & np.int32(~0x1FFF))
            half = np.int32(np.int32(near >> np.int32(13)) - np.int32(112 << 10))
            bits[i] = np.int32(near | sign)
        halves[i] = np.uint16(half | np.int32(np.int32(sign >> np.int32(16)) & np.int32(0x8000)))
    return within


@numba.njit(**COMPILED)
def largest(bits, top):
    """The larger of `top` and the magnitudes of floats, all by their bits, which are ordered alike."""
    for i in range(bits.shape[0]):
        top = max(top, np.int32(bits[i] & MAGNITUDE))
    return top


@numba.njit(**COMPILED)
def transpose(rows, out):
    for i in range(out.shape[0]):
        line = out[i]
        for j in range(line.shape[0]):
            line[j] = rows[j, i]


@numba.njit(**COMPILED)
def nearest(group, minimum, scale, top, codes):
    """Codes 0 to `top`, as floats, of group [rows, lanes]."""
    for k in range(group.shape[0]):
        for i in range(group.shape[1]):
            step = np.rint((group[k, i] - minimum[i]) / max(scale[i], TINY16))
            step = step if step > np.float32(0.0) else np.float32(0.0)
            codes[k, i] = step if step < top else top


@numba.njit(**COMPILED)
def uniform(group, rim, top, minimum, scale, bits, halves, codes):
    """Levels over all but a `rim` of each lane's range, at both ends, and codes [rows, lanes]. bits, halves [2, lanes]: of minimum, of scale."""
    minimum[:], scale[:] = group[0], group[0]
    for k in range(1, group.shape[0]):
        for i in range(group.shape[1]):
            x, low, high = group[k, i], minimum[i], scale[i]
            minimum[i] = x if x < low else low
            scale[i] = x if x > high else high
    for i in range(minimum.shape[0]):
        edge = (scale[i] - minimum[i]) * rim
        minimum[i] += edge
        scale[i] -= edge
    within = to_half(minimum, bits[0], halves[0])
    for i in range(minimum.shape[0]):
        scale[i] = (scale[i] - minimum[i]) / top
    within &= to_half(scale, bits[1], halves[1])
    nearest(group, minimum, scale, top, codes)
    return within


@numba.njit(**COMPILED)
def total(rows, out):
    """The sum of all rows, which are spent: the last half is added to the first until one is left, as `quantize.total` does."""
    left = rows.shape[0]
    while left > 1:
        half = left // 2
        for k in range(half):
            for i in range(rows.shape[1]):
                rows[k, i] += rows[left - half + k, i]
        left -= half
    out[:] = rows[0]


@numba.njit(**COMPILED)
def weigh(group, power, spare, weights, sums):
    """weights [rows, lanes] of square errors, one in sum: by the deviation from the group's mean to the `power` 0, 1 or 3. sums[0]: the weighted mean."""
    many, lanes = group.shape
    mean, whole = sums[1], sums[2]
    spare[:] = group
    total(spare, mean)
    for i in range(lanes):
        mean[i] /= np.float32(many)
    for k in range(many):
        for i in range(lanes):
            deviation = abs(group[k, i] - mean[i])
            weights[k, i] = (deviation * deviation * deviation if power == 3 else deviation if power == 1 else np.float32(1.0)) + TINY
    spare[:] = weights
    total(spare, whole)
    for k in range(many):
        for i in range(lanes):
            weights[k, i] /= whole[i]
            spare[k, i] = weights[k, i] * group[k, i]
    total(spare, sums[0])


@numba.njit(**COMPILED)
def fit(group, top, weights, spare, sums, minimum, scale, bits, halves, codes):
    """One least-squares fit of minimum and scale to the codes, and codes for those, as in `quantize.fitted`. sums [4, lanes]: as `weigh` left them."""
    many, lanes = group.shape
    centre, middle, spread, slope = sums[0], sums[1], sums[2], sums[3]
    for k in range(many):
        for i in range(lanes):
            spare[k, i] = weights[k, i] * codes[k, i]
    total(spare, middle)
    for k in range(many):
        for i in range(lanes):
            codes[k, i] -= middle[i]
            spare[k, i] = weights[k, i] * codes[k, i] * codes[k, i]
    total(spare, spread)
    for k in range(many):
        for i in range(lanes):
            spare[k, i] = weights[k, i] * codes[k, i] * (group[k, i] - centre[i])
    total(spare, slope)
    for i in range(lanes):
        scale[i] = slope[i] / spread[i] if spread[i] > TINY else scale[i]
    within = to_half(scale, bits[1], halves[1])
    for i in range(lanes):
        minimum[i] = centre[i] - scale[i] * middle[i]
    within &= to_half(minimum, bits[0], halves[0])
    nearest(group, minimum, scale, top, codes)
    return within


@numba.njit(**COMPILED)
def put(codes, shift, out):
    """Codes into their bits of each byte."""
    for i in range(out.shape[0]):
        out[i] |= np.uint8(np.uint8(np.int32(codes[i])) << shift)


@numba.njit(**COMPILED)
def rotate(rows, size):
    """Channels, which are the rows, rotated in place in blocks of `size` of them: additions in the order of `hadamard.rotate`."""
    step = size
    while step > 1:
        half = step // 2
        for first in range(0, rows.shape[0], step):
            for k in range(first, first + half):
                upper, lower = rows[k], rows[k + half]
                for i in range(upper.shape[0]):
                    a, b = upper[i], lower[i]
                    upper[i], lower[i] = a + b, a - b
        step = half
    by = np.float32(float(size) ** -0.5)
    for k in range(rows.shape[0]):
        row = rows[k]
        for i in range(row.shape[0]):
            row[i] *= by


@numba.njit(**COMPILED)
def load(flat, at, step, channel, turn, square, work, gain):
    """A head of a block, rotated where `turn` is more than 1 and divided by `gain` [1], its largest magnitude, into work; square [tokens, D]: room. False if a number is infinite or none."""
    gain_bits, (block, dim) = gain.view(np.int32), square.shape
    rows, lanes = work if channel else square, square.reshape(dim, block) if channel else work
    for t in range(block):
        rows[t] = flat[at + t * step : at + t * step + dim]
    if not channel or turn > 1:
        transpose(rows, lanes)
    if turn > 1:
        rotate(lanes, turn)
    if channel and turn > 1:
        transpose(lanes, rows)
    numbers = work.reshape(-1)
    gain_bits[0] = largest(numbers.view(np.int32), np.int32(0))
    if gain_bits[0] >= INFINITY:
        return False
    gain[0] = max(gain[0], TINY32)
    by = gain[0]
    for i in range(numbers.shape[0]):
        numbers[i] /= by
    return True


@numba.njit(**COMPILED)
def pack_tokens(codes, nbits, out):
    """Codes [tokens, D] into bytes [tokens, D nbits / 8], as `quantize.pack` does."""
    width = out.shape[1]
    for t in range(codes.shape[0]):
        out[t] = 0
        for part in range(codes.shape[1] // width):
            put(codes[t, part * width : (part + 1) * width], np.uint8(part * nbits), out[t])


@numba.njit(**COMPILED)
def pack_channels(codes, first, nbits, out):
    """Codes [some channels, tokens], the head's from `first` on, into bytes [D nbits / 8, tokens]."""
    width = out.shape[0]
    for k in range(codes.shape[0]):
        part, row = (first + k) // width, out[(first + k) % width]
        if part == 0:
            row[:] = 0
        put(codes[k], np.uint8(part * nbits), row)


@numba.njit(**COMPILED)
def encode_heads(flat, steps, channel, turn, group, nbits, rim, fits, power, codes, scales, minima, gains, first, last):
    """Blocks first to last, counted over batch x heads x blocks, of states [B, H, T, D] into what `quantize.Encoded` holds, float16 by its bits.

    Element [b, h, t, d] of the states is flat[b steps[0] + h steps[1] + t steps[2] + d]. channel: does a group run along tokens? turn: channels that are rotated together, or 1. rim: the share of
    a range that levels leave out at each end. fits: how often they are fitted, by deviations to this `power`. Returns False, and nothing that
    was written counts, if a number was infinite or none at all, or a level beyond float16.
    """
    heads, blocks, width = gains.shape[1], gains.shape[2], codes.shape[3]
    block, dim = codes.shape[2] // blocks, width * 8 // nbits
    rows, lanes = (block, dim) if channel else (dim, block)
    square, work, packed = np.empty((block, dim), np.float32), np.empty((rows, lanes), np.float32), np.empty((width, lanes), np.uint8)
    levels, weights, spare = np.empty((group, lanes), np.float32), np.empty((group, lanes), np.float32), np.empty((group, lanes), np.float32)
    sums, ends, halves, gain = np.empty((4, lanes), np.float32), np.empty((2, lanes), np.float32), np.empty((2, lanes), np.uint16), np.empty(1, np.float32)
    minimum, scale, bits, top = ends[0], ends[1], ends.view(np.int32), np.float32((1 << nbits) - 1)
    for n in range(first, last):
        b, h, index = n // blocks // heads, n // blocks % heads, n % blocks
        begin, end = index * block, (index + 1) * block
        within = load(flat, b * steps[0] + h * steps[1] + begin * steps[2], steps[2], channel, turn, square, work, gain)
        gains[b, h, index, 0] = gain[0]
        for g in range(rows // group):
            part = work[g * group : (g + 1) * group]
            within = within and uniform(part, np.float32(rim), top, minimum, scale, bits, halves, levels)
            if fits:
                weigh(part, power, spare, weights, sums)
            for _ in range(fits):
                within = within and fit(part, top, weights, spare, sums, minimum, scale, bits, halves, levels)
            if not within:
                return False
            if channel:
                minima[b, h, index * (rows // group) + g], scales[b, h, index * (rows // group) + g] = halves[0], halves[1]
                pack_tokens(levels, nbits, codes[b, h, begin + g * group : begin + (g + 1) * group])
            else:
                minima[b, h, begin:end, g], scales[b, h, begin:end, g] = halves[0], halves[1]
                pack_channels(levels, g * group, nbits, packed)
        if not channel:
            transpose(packed, codes[b, h, begin:end])
    return True
