"""Attention of a few tokens over packed codes, for Triton. Imported only where it is used: compiling a kind of it takes a second or so, once on a machine.

A program takes a span of one key head's tokens for all the queries that share them: codes are read once, become numbers in registers and go into the
tensor cores in the query's dtype; all sums and the softmax are float32. Spans are joined by their largest scores and their sums.
Source of splitting tokens among programs: Dao et al. 2023, Flash-Decoding; of the running softmax: Milakov and Gimelshein 2018, arXiv 1805.02867.
"""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOWEST = tl.constexpr(-3.4028234663852886e38)  # float32's, for what is masked: rows without any token stay finite
LARGEST16 = tl.constexpr(65504.0)
JOINED = tl.constexpr(16)  # spans that are joined at a time


@triton.jit
def channel_of(lane, UNIT: tl.constexpr, PAD: tl.constexpr):
    """The channel in a lane, where every `UNIT` channels are padded to `PAD` lanes, a power of two; and is it one?"""
    return lane // PAD * UNIT + lane % PAD, lane % PAD < UNIT


@triton.jit
def codes_at(codes, token, BITS: tl.constexpr, DIM: tl.constexpr, UNIT: tl.constexpr, PAD: tl.constexpr):
    """Codes of tokens [N] as float32 [N, lanes]; a byte takes its codes from equal parts of the head."""
    WIDTH: tl.constexpr = DIM * BITS // 8
    LANES: tl.constexpr = WIDTH // UNIT * PAD
    PARTS: tl.constexpr = 8 // BITS
    place, there = channel_of(tl.arange(0, LANES), UNIT, PAD)
    packed = tl.load(codes + token[:, None] * WIDTH + place[None, :], mask=there[None, :], other=0)
    if PARTS > 1:
        shift = (tl.arange(0, PARTS) * BITS).to(tl.uint8)
        parts = (packed[:, None, :] >> shift[None, :, None]) & (2**BITS - 1)
        packed = tl.reshape(parts, (packed.shape[0], PARTS * LANES))
    return packed.to(tl.float32)


@triton.jit
def levels_at(levels, token, block, DIM: tl.constexpr, GROUP: tl.constexpr, CHANNEL: tl.constexpr, UNIT: tl.constexpr, PAD: tl.constexpr):
    """Scales or minima: of a block's channels [1, lanes], or of the tokens' groups of neighbouring channels [N, lanes]."""
    LANES: tl.constexpr = DIM // UNIT * PAD
    if CHANNEL:
        channel, there = channel_of(tl.arange(0, LANES), UNIT, PAD)
        return tl.load(levels + block * DIM + channel, mask=there, other=0.0).to(tl.float32)[None, :]
    else:
        GROUPS: tl.constexpr = DIM // GROUP
        of_groups = tl.load(levels + token[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]).to(tl.float32)
        spread = tl.broadcast_to(of_groups[:, :, None], (token.shape[0], GROUPS, LANES // GROUPS))
        return tl.reshape(spread, (token.shape[0], LANES))


@triton.jit
def decoded(
    codes, scales, minima, gains, token, block, BITS: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr, CHANNEL: tl.constexpr, UNIT: tl.constexpr, PAD: tl.constexpr, DTYPE: tl.constexpr
):
    """Tokens [N] of one block as they decode [N, lanes]; lanes that pad hold 0 for keys, and for values what is not stored."""
    gain = tl.load(gains + block)
    scale = levels_at(scales, token, block, DIM, GROUP, CHANNEL, UNIT, PAD) * gain
    minimum = levels_at(minima, token, block, DIM, GROUP, CHANNEL, UNIT, PAD) * gain
    return in_dtype(codes_at(codes, token, BITS, DIM, UNIT, PAD) * scale + minimum, DTYPE)


@triton.jit
def in_dtype(states, DTYPE: tl.constexpr):
    """Rounded to what is multiplied; a level may lie a rounding beyond float16's largest. Triton's interpreter multiplies no bfloat16, only float32, which holds it exactly."""
    if DTYPE == tl.float16:
        states = tl.minimum(tl.maximum(states, -LARGEST16), LARGEST16)
    states = states.to(DTYPE)
    return states.to(tl.float32) if INTERPRETED and DTYPE == tl.bfloat16 else states


@triton.jit
def rows_at(rows, token, there, DIM: tl.constexpr, UNIT: tl.constexpr, PAD: tl.constexpr, DTYPE: tl.constexpr):
    """Tokens [N] in full precision [N, lanes]; 0 where there is none."""
    channel, is_one = channel_of(tl.arange(0, DIM // UNIT * PAD), UNIT, PAD)
    states = tl.load(rows + token[:, None] * DIM + channel[None, :], mask=there[:, None] & is_one[None, :], other=0.0)
    return in_dtype(states.to(tl.float32), DTYPE)


@triton.jit
def masked(scores, mask_rows, column, there, is_row, MASK: tl.constexpr):
    """Scores [M, N] under the mask's columns [N]; MASK 0: there is none, 1: boolean, 2: to be added."""
    if MASK == 1:
        keep = tl.load(mask_rows[:, None] + column[None, :], mask=is_row[:, None] & there[None, :], other=0)
        scores = tl.where(keep != 0, scores, LOWEST)
    if MASK == 2:
        add = tl.load(mask_rows[:, None] + column[None, :], mask=is_row[:, None] & there[None, :], other=0.0)
        scores = tl.maximum(scores + add.to(tl.float32), LOWEST)
    return tl.where(there[None, :], scores, float("-inf"))


@triton.jit
def taken_in(scores, values, top, total, sums, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """The running softmax [M], [M], [M, lanes] with N more scores [M, N] and values [N, lanes]."""
    higher = tl.maximum(top, tl.max(scores, axis=1))
    fade, weights = tl.exp(top - higher), tl.exp(scores - higher[:, None])
    sums = sums * fade[:, None] + tl.dot(in_dtype(weights, DTYPE), values, input_precision=PRECISION)
    return higher, total * fade + tl.sum(weights, axis=1), sums


@triton.jit
def over_rows(
    key_rows, value_rows, first, last, column, asked, mask_rows, is_row, scale, top, total, sums, N: tl.constexpr, MASK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_UNIT: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_UNIT: tl.constexpr, VALUE_PAD: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax with rows first to last in full precision, the first of all under this column of the mask."""
    for at in range(tl.maximum(first, 0), last, N):
        token = at + tl.arange(0, N)
        there = token < last
        keys = rows_at(key_rows, token, there, KEY_DIM, KEY_UNIT, KEY_PAD, DTYPE)
        scores = masked(tl.dot(asked, tl.trans(keys), input_precision=PRECISION) * scale, mask_rows, column + token, there, is_row, MASK)
        values = rows_at(value_rows, token, there, VALUE_DIM, VALUE_UNIT, VALUE_PAD, DTYPE)
        top, total, sums = taken_in(scores, values, top, total, sums, DTYPE, PRECISION)
    return top, total, sums


@triton.jit(do_not_specialize=["count", "ahead", "packed", "recent", "span", "splits", "mask_batch", "mask_head", "mask_row"])
def attend(
    query, mask, parts, tops, totals,
    key_codes, key_scales, key_minima, key_gains, key_rows, key_first, value_codes, value_scales, value_minima, value_gains, value_rows, value_first,
    key_codes_head, key_scales_head, key_minima_head, key_gains_head, key_rows_head, key_first_head,
    value_codes_head, value_scales_head, value_minima_head, value_gains_head, value_rows_head, value_first_head,
    scale, count, ahead, packed, recent, span, splits, mask_batch, mask_head, mask_row,
    HEADS: tl.constexpr, MANY: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
    KEY_BITS: tl.constexpr, KEY_DIM: tl.constexpr, KEY_GROUP: tl.constexpr, KEY_CHANNEL: tl.constexpr, KEY_UNIT: tl.constexpr, KEY_PAD: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_GROUP: tl.constexpr, VALUE_CHANNEL: tl.constexpr, VALUE_UNIT: tl.constexpr, VALUE_PAD: tl.constexpr,
):  # fmt: skip
    """Program (head of a batch row, span, M of its queries): weighted values of a span's tokens into parts [heads, splits, queries, D], its largest scores and sums beside.

    Queries [heads, MANY * count, D]: MANY query heads to a key head, `count` tokens each. A span counts codes, then recent rows, then those ahead of the codes.
    `*_head`: elements from one head to the next in a buffer.
    """
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, queries = tl.program_id(2) * M + tl.arange(0, M), MANY * count
    DTYPE: tl.constexpr = query.dtype.element_ty
    is_row = row < queries
    channel, is_channel = channel_of(tl.arange(0, KEY_DIM // KEY_UNIT * KEY_PAD), KEY_UNIT, KEY_PAD)
    asked = tl.load(query + (head * queries + row[:, None]) * KEY_DIM + channel[None, :], mask=is_row[:, None] & is_channel[None, :], other=0.0)
    asked = in_dtype(asked.to(tl.float32), DTYPE)
    mask_rows = mask + (head // HEADS) * mask_batch + (head % HEADS * MANY + row // count) * mask_head + (row % count) * mask_row
    LANES: tl.constexpr = VALUE_DIM // VALUE_UNIT * VALUE_PAD
    top, total, sums = tl.full((M,), LOWEST, tl.float32), tl.zeros((M,), tl.float32), tl.zeros((M, LANES), tl.float32)
    first = split * span
    last = tl.minimum(first + span, packed + recent + ahead)
    for at in range(first, tl.minimum(last, packed), N):
        token, block = at + tl.arange(0, N), at // BLOCK
        keys = decoded(
            key_codes + head * key_codes_head, key_scales + head * key_scales_head, key_minima + head * key_minima_head, key_gains + head * key_gains_head,
            token, block, KEY_BITS, KEY_DIM, KEY_GROUP, KEY_CHANNEL, KEY_UNIT, KEY_PAD, DTYPE,
        )  # fmt: skip
        scores = masked(tl.dot(asked, tl.trans(keys), input_precision=PRECISION) * scale, mask_rows, ahead + token, token < last, is_row, MASK)
        values = decoded(
            value_codes + head * value_codes_head, value_scales + head * value_scales_head, value_minima + head * value_minima_head, value_gains + head * value_gains_head,
            token, block, VALUE_BITS, VALUE_DIM, VALUE_GROUP, VALUE_CHANNEL, VALUE_UNIT, VALUE_PAD, DTYPE,
        )  # fmt: skip
        top, total, sums = taken_in(scores, values, top, total, sums, DTYPE, PRECISION)
    top, total, sums = over_rows(
        key_rows + head * key_rows_head, value_rows + head * value_rows_head, first - packed, tl.minimum(last - packed, recent), ahead + packed, asked, mask_rows, is_row, scale, top, total, sums,
        N, MASK, KEY_DIM, KEY_UNIT, KEY_PAD, VALUE_DIM, VALUE_UNIT, VALUE_PAD, DTYPE, PRECISION,
    )  # fmt: skip
    top, total, sums = over_rows(
        key_first + head * key_first_head, value_first + head * value_first_head, first - packed - recent, last - packed - recent, 0, asked, mask_rows, is_row, scale, top, total, sums,
        N, MASK, KEY_DIM, KEY_UNIT, KEY_PAD, VALUE_DIM, VALUE_UNIT, VALUE_PAD, DTYPE, PRECISION,
    )  # fmt: skip
    place = (head * splits + split) * queries + row
    tl.store(tops + place, top, mask=is_row)
    tl.store(totals + place, total, mask=is_row)
    channel, is_channel = channel_of(tl.arange(0, LANES), VALUE_UNIT, VALUE_PAD)
    tl.store(parts + place[:, None] * VALUE_DIM + channel[None, :], sums, mask=is_row[:, None] & is_channel[None, :])


@triton.jit(do_not_specialize=["splits", "queries"])
def join(parts, tops, totals, out, splits, queries, DIM: tl.constexpr, LANES: tl.constexpr):
    """Program (head of a batch row, query): what all spans together attend to, into out [heads, queries, D]."""
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, LANES)
    top, total, sums = tl.full((), LOWEST, tl.float32), tl.zeros((), tl.float32), tl.zeros((LANES,), tl.float32)
    for first in range(0, splits, JOINED):
        split = first + tl.arange(0, JOINED)
        there, place = split < splits, (head * splits + split) * queries + row
        tops_here = tl.load(tops + place, mask=there, other=float("-inf"))
        higher = tl.maximum(top, tl.max(tops_here, axis=0))
        fade, weights = tl.exp(top - higher), tl.exp(tops_here - higher)
        some = tl.load(parts + place[:, None] * DIM + channel[None, :], mask=there[:, None] & (channel < DIM)[None, :], other=0.0)
        total = total * fade + tl.sum(weights * tl.load(totals + place, mask=there, other=0.0), axis=0)
        sums = sums * fade + tl.sum(weights[:, None] * some, axis=0)
        top = higher
    tl.store(out + (head * queries + row) * DIM + channel, (sums / total).to(out.dtype.element_ty), mask=channel < DIM)
