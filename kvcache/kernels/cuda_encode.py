"""Quantising blocks, for Triton: what `quantize` does by torch, to each number in the same order, so that codes come out the same to the bit.

Imported only where it is used. It is to be compiled without fused multiply-add, and divides as IEEE 754 says.
"""

import triton
import triton.language as tl

TINY, TINY16, TINY32 = tl.constexpr(1e-12), tl.constexpr(2.0**-24), tl.constexpr(2.0**-126)  # of `quantize`, the smallest float16 above 0, the smallest normal float32
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and taken away, it rounds to whole numbers, ties to even


@triton.jit
def total(x):
    """Sum over the last axis [A, L, 1], L a power of two: the last half is added to the first until one is left."""
    A: tl.constexpr = x.shape[0]
    L: tl.constexpr = x.shape[1]
    G: tl.constexpr = x.shape[2]
    if G == 1:
        return x
    else:
        return total(tl.sum(tl.reshape(x, (A, L, 2, G // 2)), axis=2))


@triton.jit
def half(x):
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def codes_of(x, scale, minimum, TOP: tl.constexpr):
    """Codes 0 to TOP, as floats."""
    steps = tl.div_rn(x - minimum, tl.maximum(scale, TINY16))
    return tl.minimum(tl.maximum(steps, 0.0), TOP) + ROUND - ROUND


@triton.jit
def levels(x, there, RIM: tl.constexpr, TOP: tl.constexpr, FITS: tl.constexpr, POWER: tl.constexpr):
    """Codes, scale and minimum [A, L, 1] of groups x [A, L, G], of which some lanes are `there`; fitted as `quantize.fitted` says, where all are."""
    low = tl.min(tl.where(there, x, float("inf")), axis=2, keep_dims=True)
    high = tl.max(tl.where(there, x, float("-inf")), axis=2, keep_dims=True)
    rim = (high - low) * RIM
    minimum = half(low + rim)
    scale = half(tl.div_rn(high - rim - minimum, tl.zeros_like(low) + TOP))
    codes = codes_of(x, scale, minimum, TOP)
    if FITS > 0:
        apart = tl.abs(x - total(x) * (1.0 / x.shape[2]))
        weights = (apart * apart * apart if POWER == 3 else apart if POWER == 1 else tl.zeros_like(x) + 1.0) + TINY
        weights = tl.div_rn(weights, tl.zeros_like(x) + total(weights))
        centre = total(weights * x)
        for _ in tl.static_range(FITS):
            middle = total(weights * codes)
            steps = codes - middle
            weighted = weights * steps
            spread = total(weighted * steps)
            slope = tl.div_rn(total(weighted * (x - centre)), tl.maximum(spread, TINY))
            scale = half(tl.where(spread > TINY, slope, scale))
            minimum = half(centre - scale * middle)
            codes = codes_of(x, scale, minimum, TOP)
    return codes, scale, minimum


@triton.jit
def gain_of(rows, stride, BLOCK: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr):
    """The largest magnitude in a head of a block, by its bits, which are ordered alike: what is no number is the largest of all."""
    channel, top = tl.arange(0, LANES), tl.zeros((LANES,), tl.int32)
    for first in range(0, BLOCK, STEP):
        token = first + tl.arange(0, STEP)
        some = tl.load(rows + token[:, None] * stride + channel[None, :], mask=(channel < DIM)[None, :], other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.max(some.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0))
    gain = tl.max(top, axis=0).to(tl.float32, bitcast=True)
    return tl.where(gain < TINY32, TINY32, gain)


@triton.jit(do_not_specialize=["blocks"])
def encode(
    states, batch_stride, head_stride, token_stride, codes, scales, minima, gains, heads, blocks,
    BITS: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr, CHANNEL: tl.constexpr, UNIT: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    RIM: tl.constexpr, FITS: tl.constexpr, POWER: tl.constexpr, SOME: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Program (block of a head, part of it): a block of states [B, H, T, D] into what `quantize.Encoded` holds.

    A part is SOME bytes of every row on the channel axis, whose groups are a channel's tokens, or SOME tokens on the token axis.
    """
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, block = index // blocks, index % blocks
    rows = states + (head // heads) * batch_stride + (head % heads) * head_stride + block * BLOCK * token_stride
    gain = gain_of(rows, token_stride, BLOCK, DIM, LANES, 16)
    tl.store(gains + index, gain)
    WIDTH: tl.constexpr = DIM * BITS // 8
    PARTS: tl.constexpr = 8 // BITS
    TOP: tl.constexpr = 2**BITS - 1
    if CHANNEL:
        place, token = part * SOME + tl.arange(0, SOME), tl.arange(0, BLOCK)
        there = place < WIDTH
        packed = tl.zeros((SOME, BLOCK), tl.int32)
        for i in tl.static_range(PARTS):
            channel = i * WIDTH + place
            x = tl.load(rows + token[None, :] * token_stride + channel[:, None], mask=there[:, None], other=0.0).to(tl.float32)
            x = tl.reshape(tl.div_rn(x, tl.zeros_like(x) + gain), (1, SOME, BLOCK))
            found, scale, minimum = levels(x, x == x, RIM, TOP, FITS, POWER)
            level = index * DIM + channel
            tl.store(scales + level, tl.reshape(scale, (SOME,)).to(tl.float16), mask=there)
            tl.store(minima + level, tl.reshape(minimum, (SOME,)).to(tl.float16), mask=there)
            packed = packed | (tl.reshape(found, (SOME, BLOCK)).to(tl.int32) << (i * BITS))
        tl.store(codes + (index * BLOCK + token[None, :]) * WIDTH + place[:, None], packed.to(tl.uint8), mask=there[:, None])
    else:
        GROUPS: tl.constexpr = DIM // GROUP
        ALL: tl.constexpr = DIM // UNIT * PAD
        lane, token = tl.arange(0, ALL), part * SOME + tl.arange(0, SOME)
        is_one = lane % PAD < UNIT
        x = tl.load(rows + token[:, None] * token_stride + (lane // PAD * UNIT + lane % PAD)[None, :], mask=is_one[None, :], other=0.0).to(tl.float32)
        x = tl.reshape(tl.div_rn(x, tl.zeros_like(x) + gain), (SOME, GROUPS, ALL // GROUPS))
        found, scale, minimum = levels(x, tl.reshape(is_one, (1, GROUPS, ALL // GROUPS)), RIM, TOP, FITS, POWER)
        level = (index * BLOCK + token[:, None]) * GROUPS + tl.arange(0, GROUPS)[None, :]
        tl.store(scales + level, tl.reshape(scale, (SOME, GROUPS)).to(tl.float16))
        tl.store(minima + level, tl.reshape(minimum, (SOME, GROUPS)).to(tl.float16))
        shifted = tl.reshape(found.to(tl.int32), (SOME, PARTS, ALL // PARTS)) << (tl.arange(0, PARTS) * BITS)[None, :, None]
        byte = tl.arange(0, ALL // PARTS)
        target = codes + (index * BLOCK + token[:, None]) * WIDTH + (byte // PAD * UNIT + byte % PAD)[None, :]
        tl.store(target, tl.sum(shifted, axis=1).to(tl.uint8), mask=(byte % PAD < UNIT)[None, :])
