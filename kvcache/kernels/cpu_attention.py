"""The loops of one token's attention, over packed codes and over rows in full precision, for numba. Imported only where they are used: compiling
takes seconds, once. torch's own threads take pieces of the work, a head or a span of its tokens, without Python between them.

Codes become small whole numbers in registers, once for up to four query heads that share them, and nothing is written but sums; scales and minima
are folded into the queries and the attention weights. The innermost loops, at the top, are LLVM vector code: what LLVM makes of plain loops over short rows
depends on the processor, and takes up to three times as long. They take addresses of C-contiguous rows, work on LANES numbers at once and
on what is left over one by one. All is in one file because numba's cache on disk looks at no other when it asks whether a function has changed.
"""

from collections.abc import Callable, Iterator

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

COMPILED = dict(fastmath=True, cache=True, nogil=True, error_model="numpy")
LOG2_E = np.float32(1.4426950408889634)
EXP2 = tuple(np.float32(c) for c in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 0.24022651, 0.69314718, 1.0))  # Taylor series of 2^f
NBITS, FOUR, FULL = (8, 4, 2), 4, 8  # FULL: tokens that go into any number that is read side by side
LANES = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8  # eight sums of so many must fit in registers
ROWS_1, ROWS_2, ROWS_4 = (min(8, LANES // heads) for heads in (1, 2, 4))  # tokens whose codes are read side by side for so many heads: as many sums as fit in registers
WIDE, MOST = 4 * LANES, LANES // 4  # columns that are summed in registers over many rows, and pieces of so many side by side
TILE = 4096  # bytes of rows that are fetched at once
FAST = ("fast",)
INT, WORD, BYTE, FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.FloatType()


def _add(builder: ir.IRBuilder, a, b):
    return builder.fadd(a, b, flags=FAST)


def _multiply(builder: ir.IRBuilder, a, b):
    return builder.fmul(a, b, flags=FAST)


def _pointer(builder: ir.IRBuilder, address, kind: ir.Type):
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: ir.IRBuilder, base, index, kind: ir.Type):
    """A number or vector from a pointer to single ones and an index; no alignment is assumed."""
    single = kind.element if isinstance(kind, ir.VectorType) else kind
    return builder.load(builder.bitcast(builder.gep(base, [index]), kind.as_pointer()), align=1 if single == BYTE else 4)


def _store(builder: ir.IRBuilder, value, base, index) -> None:
    builder.store(value, builder.bitcast(builder.gep(base, [index]), value.type.as_pointer()), align=4)


def _splat(builder: ir.IRBuilder, value, lanes: int):
    """The number in every lane."""
    if lanes == 1:
        return value
    vector = builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(WORD, 0))
    return builder.shuffle_vector(vector, vector, _lanes([0] * lanes))


def _kind(single: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(single, lanes) if lanes > 1 else single


def _lanes(numbers: list[int]) -> ir.Constant:
    """Which lanes a shuffle takes."""
    return ir.Constant(ir.VectorType(WORD, len(numbers)), numbers)


def _halved(builder: ir.IRBuilder, vectors: list, size: int):
    """One or two vectors of parts of `size` lanes each as one: every part's first half plus its second, in their order."""
    first = [part + i for part in range(0, len(vectors) * vectors[0].type.count, size) for i in range(size // 2)]
    halves = (builder.shuffle_vector(vectors[0], vectors[-1], _lanes([lane + half for lane in first])) for half in (0, size // 2))
    return _add(builder, *halves)


def _sums(builder: ir.IRBuilder, vectors: list):
    """The sums over all lanes of 2, 4 or 8 vectors, as one vector, in their order: a quarter of the shuffles that one after the other would take."""
    size = vectors[0].type.count
    while size > 1:
        vectors = [_halved(builder, vectors[i : i + 2], size) for i in range(0, len(vectors), 2)]
        size //= 2
    return vectors[0]


def _together(builder: ir.IRBuilder, numbers: list):
    """Single numbers as a vector."""
    vector = ir.Constant(ir.VectorType(numbers[0].type, len(numbers)), ir.Undefined)
    for lane, number in enumerate(numbers):
        vector = builder.insert_element(vector, number, ir.Constant(WORD, lane))
    return vector


def _strides(builder: ir.IRBuilder, count, carried: list[list], widths: tuple[int, ...] = (LANES, 1)) -> Iterator:
    """The body of a loop over `count` numbers, so many at a time as fit of each width: yields (index, lanes, carried values).

    carried: per width the initial values; the body leaves the next ones in the list that it was given, and the last ones stay there.
    """
    last = ir.Constant(INT, 0)
    for lanes, values in zip(widths, carried):
        first, last = last, builder.and_(count, ir.Constant(INT, -lanes))
        before, head, body, after = builder.block, *(builder.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(INT)
        index.add_incoming(first, before)
        phis = [builder.phi(value.type) for value in values]
        for phi, value in zip(phis, values):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", index, last), body, after)
        builder.position_at_end(body)
        values[:] = phis
        yield index, lanes, values
        index.add_incoming(builder.add(index, ir.Constant(INT, lanes)), builder.block)
        for phi, value in zip(phis, values):
            phi.add_incoming(value, builder.block)
        values[:] = phis
        builder.branch(head)
        builder.position_at_end(after)


def _over(builder: ir.IRBuilder, count, held: list[list]) -> Iterator:
    """The body of a loop over 0 to `count`: yields (index, rows of carried values, at first `held`); the body leaves the next ones in them, and the last ones are in `held` after it."""
    before, head, body, after = builder.block, *(builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(INT)
    index.add_incoming(ir.Constant(INT, 0), before)
    phis = [[builder.phi(value.type) for value in row] for row in held]
    for own, row in zip(phis, held):
        for phi, value in zip(own, row):
            phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, count), body, after)
    builder.position_at_end(body)
    values = [list(row) for row in phis]
    yield index, values
    index.add_incoming(builder.add(index, ir.Constant(INT, 1)), builder.block)
    for own, row in zip(phis, values):
        for phi, value in zip(own, row):
            phi.add_incoming(value, builder.block)
    held[:] = phis
    builder.branch(head)
    builder.position_at_end(after)


def _rows(builder: ir.IRBuilder, address, stride, kind: ir.Type, many: int) -> list:
    """Pointers to so many rows, `stride` bytes from one to the next."""
    return [_pointer(builder, builder.add(address, builder.mul(stride, ir.Constant(INT, k))), kind) for k in range(many)]


def _decode(builder: ir.IRBuilder, packed, part: int, nbits: int):
    """One of the 8 / nbits codes that a byte holds, of every lane of `packed` [int32], as float32."""
    code = builder.lshr(packed, ir.Constant(packed.type, _filled(packed.type, part * nbits))) if part else packed
    if (part + 1) * nbits < 8:
        code = builder.and_(code, ir.Constant(packed.type, _filled(packed.type, (1 << nbits) - 1)))
    return builder.sitofp(code, _kind(FLOAT, getattr(packed.type, "count", 1)))


def _filled(kind: ir.Type, number: int):
    return [number] * kind.count if isinstance(kind, ir.VectorType) else number


def _packed(builder: ir.IRBuilder, source, index, lanes: int):
    """Bytes at an index, one a lane, as int32."""
    return builder.zext(_load(builder, source, index, _kind(BYTE, lanes)), _kind(WORD, lanes))


def _columns(builder: ir.IRBuilder, width, nbits: int) -> list:
    """Where the parts of a row [D] begin that share its `width` bytes."""
    return [builder.mul(width, ir.Constant(INT, part)) for part in range(8 // nbits)]


def _code_dotter(heads: int) -> Callable:
    """dot(nbits, rows, apart, codes, stride, width, offsets, scores, step): for `heads` rows [D], `apart` bytes from one to the next, scores [ROWS] =
    an offset + the row times the codes of so many tokens, each in `width` bytes, `stride` from one to the next; scores go `step` bytes apart.
    """
    many = {1: ROWS_1, 2: ROWS_2, 4: ROWS_4}[heads]

    def generate(context, builder, signature, arguments):
        bits, rows, apart, codes, stride, width, offsets, scores, step = arguments
        queries, targets = _rows(builder, rows, apart, FLOAT, heads), _rows(builder, scores, step, FLOAT, heads)
        first, sources = _pointer(builder, offsets, FLOAT), _rows(builder, codes, stride, BYTE, many)
        for nbits in NBITS:
            with builder.if_then(builder.icmp_signed("==", bits, ir.Constant(INT, nbits))):
                columns = _columns(builder, width, nbits)
                carried = [[ir.Constant(_kind(FLOAT, lanes), 0.0 if lanes == 1 else [0.0] * lanes)] * (heads * many) for lanes in (LANES, 1)]
                for index, lanes, totals in _strides(builder, width, carried):
                    packed = [_packed(builder, source, index, lanes) for source in sources]
                    for part, column in enumerate(columns):
                        decoded = [_decode(builder, row, part, nbits) for row in packed]
                        at = builder.add(column, index)
                        for h, query in enumerate(queries):
                            x = _load(builder, query, at, _kind(FLOAT, lanes))
                            own = slice(h * many, (h + 1) * many)
                            totals[own] = [_add(builder, total, _multiply(builder, x, code)) for total, code in zip(totals[own], decoded)]
                for h, target in enumerate(targets):
                    own, offset = slice(h * many, (h + 1) * many), _splat(builder, _load(builder, first, ir.Constant(INT, h), FLOAT), many)
                    total = _add(builder, _sums(builder, carried[0][own]), _together(builder, carried[1][own]))
                    _store(builder, _add(builder, total, offset), target, ir.Constant(INT, 0))
        return context.get_dummy_value()

    def dot(typing, nbits, rows, apart, codes, stride, width, offsets, scores, step):
        return types.void(*[types.int64] * 9), generate

    dot.__name__ = dot.__qualname__ = f"dot_codes_{heads}"
    return intrinsic(dot)


def _code_adder(heads: int) -> Callable:
    """add(nbits, shares, apart, between, size, codes, stride, count, width, first, last, out, step): to `heads` rows out [D], `step` bytes apart, the codes of
    `count` tokens in bytes first to last of their `width`, times the tokens' shares [heads, groups, count]: of the group that these columns are in, `size` to a group.

    Shares are `apart` bytes from one head's to the next's, and `between` from one group's; tokens `stride`. Sums stay in registers over all tokens.
    """

    def generate(context, builder, signature, arguments):
        bits, shares, apart, between, size, codes, stride, count, width, first, last, out, step = arguments
        targets, own = _rows(builder, out, step, FLOAT, heads), [builder.add(shares, builder.mul(apart, ir.Constant(INT, h))) for h in range(heads)]
        for nbits in NBITS:
            with builder.if_then(builder.icmp_signed("==", bits, ir.Constant(INT, nbits))):
                columns = [builder.add(column, first) for column in _columns(builder, width, nbits)]
                groups = [builder.mul(builder.udiv(column, size), between) for column in columns]
                sources = [[_pointer(builder, builder.add(address, group), FLOAT) for group in groups] for address in own]
                begin = _pointer(builder, builder.add(codes, first), BYTE)
                widest = LANES * (4 if heads * len(columns) == 1 else 1)  # a single sum would wait for itself
                widths = tuple(dict.fromkeys((widest, LANES, 1)))
                for index, lanes, _ in _strides(builder, builder.sub(last, first), [[] for _ in widths], widths):
                    at = [builder.add(column, index) for column in columns]
                    held = [[_load(builder, target, i, _kind(FLOAT, lanes)) for i in at] for target in targets]
                    for t, sums in _over(builder, count, held):
                        packed = _packed(builder, begin, builder.add(index, builder.mul(t, stride)), lanes)
                        for part in range(len(at)):
                            code = _decode(builder, packed, part, nbits)
                            for source, row in zip(sources, sums):
                                share = _splat(builder, _load(builder, source[part], t, FLOAT), lanes)
                                row[part] = _add(builder, row[part], _multiply(builder, share, code))
                    for target, row in zip(targets, held):
                        for i, total in zip(at, row):
                            _store(builder, total, target, i)
        return context.get_dummy_value()

    def add(typing, nbits, shares, apart, between, size, codes, stride, count, width, first, last, out, step):
        return types.void(*[types.int64] * 13), generate

    add.__name__ = add.__qualname__ = f"add_codes_{heads}"
    return intrinsic(add)


dot_codes_1, dot_codes_2, dot_codes_4 = (_code_dotter(heads) for heads in (1, 2, 4))
add_codes_1, add_codes_2, add_codes_4 = (_code_adder(heads) for heads in (1, 2, 4))


@intrinsic
def dot_four(typing, row, rows, stride, count, sums):
    """sums [4] = a row [count] times each of four rows, `stride` bytes apart. All float32."""

    def generate(context, builder, signature, arguments):
        row, rows, stride, count, sums = arguments
        query, keys = _pointer(builder, row, FLOAT), _rows(builder, rows, stride, FLOAT, FOUR)
        carried = [[ir.Constant(_kind(FLOAT, lanes), 0.0 if lanes == 1 else [0.0] * lanes)] * FOUR for lanes in (LANES, 1)]
        for index, lanes, totals in _strides(builder, count, carried):
            x = _load(builder, query, index, _kind(FLOAT, lanes))
            totals[:] = [_add(builder, total, _multiply(builder, x, _load(builder, key, index, x.type))) for total, key in zip(totals, keys)]
        _store(builder, _add(builder, _sums(builder, carried[0]), _together(builder, carried[1])), _pointer(builder, sums, FLOAT), ir.Constant(INT, 0))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _wide_adder(many: int) -> Callable:
    """add(shares, apart, rows, stride, count, out, step): to each of `many` pieces out [WIDE], `step` bytes apart, `count` rows times its own shares.

    The shares [count] of one piece are `apart` bytes from those of the next; the sums stay in registers from the first row to the last. All float32.
    """

    def generate(context, builder, signature, arguments):
        shares, apart, rows, stride, count, out, step = arguments
        kind, at = _kind(FLOAT, LANES), [ir.Constant(INT, i) for i in range(0, WIDE, LANES)]
        sources, targets = _rows(builder, shares, apart, FLOAT, many), _rows(builder, out, step, FLOAT, many)
        held = [[_load(builder, target, i, kind) for i in at] for target in targets]
        for t, sums in _over(builder, count, held):
            row = _pointer(builder, builder.add(rows, builder.mul(stride, t)), FLOAT)
            values = [_load(builder, row, i, kind) for i in at]
            for source, total in zip(sources, sums):
                share = _splat(builder, _load(builder, source, t, FLOAT), LANES)
                total[:] = [_add(builder, before, _multiply(builder, share, value)) for before, value in zip(total, values)]
        for target, total in zip(targets, held):
            for i, value in zip(at, total):
                _store(builder, value, target, i)
        return context.get_dummy_value()

    def add(typing, shares, apart, rows, stride, count, out, step):
        return types.void(*[types.int64] * 7), generate

    add.__name__ = add.__qualname__ = f"add_wide_to_{many}"
    return intrinsic(add)


add_wide_to_one, add_wide_to_most = _wide_adder(1), _wide_adder(MOST)


@intrinsic
def take(typing, address):
    """The int64 at an address, which becomes one more in the same moment: no two threads get the same."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _pointer(builder, arguments[0], INT), ir.Constant(INT, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def call_team(typing, team, worker, task, threads):
    """team(worker, task, threads, 0), the address of GOMP_parallel: calls worker(task) on so many threads at once, this one among them."""

    def generate(context, builder, signature, arguments):
        team, worker, task, threads = arguments
        kind = ir.FunctionType(ir.VoidType(), [INT, INT, WORD, WORD])
        builder.call(_pointer(builder, team, kind), [worker, task, builder.trunc(threads, WORD), ir.Constant(WORD, 0)])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _handing_over(*kinds: types.Type) -> tuple[Callable, Callable]:
    """keep(tuple) and kept(address): put arguments of these kinds where other threads find them, good until the caller returns; and what lies there."""
    both = types.Tuple(kinds)

    @intrinsic
    def keep(typing, held):
        def generate(context, builder, signature, arguments):
            return builder.ptrtoint(cgutils.alloca_once_value(builder, arguments[0]), INT)

        return types.int64(both), generate

    @intrinsic
    def kept(typing, address):
        def generate(context, builder, signature, arguments):
            held = builder.load(_pointer(builder, arguments[0], context.get_value_type(both)))
            context.nrt.incref(builder, both, held)
            return held

        return both(types.int64), generate

    return keep, kept


def _finding(kind: types.Type) -> Callable:
    """at(address): a pointer to numbers of this kind."""
    pointer = types.CPointer(kind)

    @intrinsic
    def at(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.int64), generate

    return at


floats_at, halves_at, bytes_at = _finding(types.float32), _finding(types.uint16), _finding(types.uint8)


@intrinsic
def fetch(typing, address, count):
    """Ask for `count` bytes that are read next, all at once: rows read side by side look like no stream to the processor."""

    def generate(context, builder, signature, arguments):
        address, count = arguments
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [BYTE.as_pointer()], ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), WORD, WORD, WORD]))
        base = _pointer(builder, address, BYTE)
        with cgutils.for_range_slice(builder, ir.Constant(INT, 0), count, ir.Constant(INT, 64)) as (index, _):
            builder.call(prefetch, [builder.gep(base, [index]), ir.Constant(WORD, 0), ir.Constant(WORD, 3), ir.Constant(WORD, 1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


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
def score(queries, codes, scales, minima, gains, nbits, block, scores):
    """scores [G, tokens] of queries [G, D] that share a head, over packed keys: codes [tokens, D nbits / 8], scales [blocks, D]."""
    many, dim = queries.shape
    folded, offsets = np.empty((many, dim), np.float32), np.empty(many, np.float32)
    bits = np.empty(dim, np.int32)
    floats = bits.view(np.float32)
    for index in range(codes.shape[0] // block):
        from_half(minima[index], bits, floats)
        for g in range(many):
            offsets[g] = dot(queries[g], floats) * gains[index, 0]
        from_half(scales[index], bits, floats)
        for g in range(many):
            fold(queries[g], floats, gains[index, 0], folded[g])
        first = index * block
        dot_codes(nbits, many, folded.ctypes.data, 4 * dim, codes.ctypes.data + first * codes.strides[0], codes.strides[0], block, codes.shape[1], offsets.ctypes.data, scores.ctypes.data + 4 * first, scores.strides[0])


@numba.njit(**COMPILED)
def score_alone(queries, plain, centre, codes, scales, minima, nbits, scores):
    """As `score`, over keys that were rounded token by token, as bfloat16 scales and minima [tokens] say, and less `centre` [D]; plain [G, D]: the queries as they were before they were rotated."""
    many, dim = queries.shape
    tokens, width = codes.shape
    step, whole, offsets, bits = scores.strides[0], tokens // FULL * FULL, np.zeros(many, np.float32), np.empty(2 * tokens, np.int32)
    dot_codes(nbits, many, queries.ctypes.data, 4 * dim, codes.ctypes.data, codes.strides[0], whole, width, offsets.ctypes.data, scores.ctypes.data, step)
    if whole < tokens:
        rest, found = np.zeros((FULL, width), np.uint8), np.empty((many, FULL), np.float32)
        rest[: tokens - whole] = codes[whole:]
        dot_codes(nbits, many, queries.ctypes.data, 4 * dim, rest.ctypes.data, width, FULL, width, offsets.ctypes.data, found.ctypes.data, 4 * FULL)
        for g in range(many):
            scores[g, whole:tokens] = found[g, : tokens - whole]
    from_bfloat(scales, bits[:tokens])
    from_bfloat(minima, bits[tokens:])
    floats = bits.view(np.float32)
    for g in range(many):
        offset, total = dot(plain[g], centre), queries[g].sum()
        for t in range(tokens):
            scores[g, t] = scores[g, t] * floats[t] + (floats[tokens + t] * total + offset)


@numba.njit(**COMPILED)
def from_bfloat(halves, bits):
    """bits [n], int32, of the float32 that are bfloat16 numbers, given as their bits."""
    for i in range(halves.shape[0]):
        bits[i] = np.int32(halves[i]) << np.int32(16)


@numba.njit(**COMPILED)
def dot_codes(nbits, many, rows, apart, codes, stride, tokens, width, offsets, scores, step):
    """Scores of `many` rows with the codes of `tokens`: for four, two or one of the rows at a time, and as many tokens as go with them."""
    h = 0
    while h < many:
        heads = 4 if many - h >= 4 else 2 if many - h >= 2 else 1
        row, offset, out = rows + h * apart, offsets + 4 * h, scores + h * step
        if heads == 4:
            for t in range(0, tokens, ROWS_4):
                dot_codes_4(nbits, row, apart, codes + t * stride, stride, width, offset, out + 4 * t, step)
        elif heads == 2:
            for t in range(0, tokens, ROWS_2):
                dot_codes_2(nbits, row, apart, codes + t * stride, stride, width, offset, out + 4 * t, step)
        else:
            for t in range(0, tokens, ROWS_1):
                dot_codes_1(nbits, row, apart, codes + t * stride, stride, width, offset, out + 4 * t, step)
        h += heads


@numba.njit(**COMPILED)
def fold(query, scales, gain, folded):
    """folded [D] = the query with a block's scales and gain in it."""
    for i in range(query.shape[0]):
        folded[i] = query[i] * scales[i] * gain


@numba.njit(**COMPILED)
def weigh(weights, codes, scales, minima, gains, nbits, block, out):
    """out [G, D] = weights [G, tokens] times packed values: codes [tokens, D nbits / 8], scales [tokens, groups]."""
    many, dim = out.shape
    groups, width = scales.shape[1], codes.shape[1]
    size, bits = dim // groups, np.empty(block * groups, np.int32)
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
        first = 0
        while first < width:
            last = in_one_group(first, width, nbits, size)
            add_codes(nbits, many, shares.ctypes.data, 4 * groups * block, 4 * block, size, codes.ctypes.data + start * width, width, block, first, last, out.ctypes.data, out.strides[0])
            first = last
    for g in range(many):
        for i in range(dim):
            out[g, i] += least[g, i // size]


@numba.njit(**COMPILED)
def weigh_alone(weights, codes, scales, minima, nbits, tile, out):
    """As `weigh`, over values with one bfloat16 scale and minimum a token, `tile` of them at a time."""
    many, dim = out.shape
    tokens, width = codes.shape
    shares, least, bits = np.empty((many, tile), np.float32), np.zeros(many, np.float32), np.empty(2 * tokens, np.int32)
    from_bfloat(scales, bits[:tokens])
    from_bfloat(minima, bits[tokens:])
    floats = bits.view(np.float32)
    out[:] = np.float32(0.0)
    for start in range(0, tokens, tile):
        count = min(tile, tokens - start)
        for g in range(many):
            least[g] += spread(weights[g, start : start + count], floats[start : start + count], floats[tokens + start : tokens + start + count], np.float32(1.0), shares[g, :count])
        add_codes(nbits, many, shares.ctypes.data, 4 * tile, 4 * tile, dim, codes.ctypes.data + start * width, width, count, 0, width, out.ctypes.data, out.strides[0])
    for g in range(many):
        for i in range(dim):
            out[g, i] += least[g]


@numba.njit(**COMPILED)
def in_one_group(first, width, nbits, size):
    """How far after byte `first` of a row no code, in any part of the bytes, is in another group than its part's first."""
    last = width
    for part in range(8 // nbits):
        column = part * width + first
        last = min(last, first + size - column % size)
    return last


@numba.njit(**COMPILED)
def add_codes(nbits, many, shares, apart, between, size, codes, width, tokens, first, last, out, step):
    """To `many` rows at `out` the codes in bytes first to last, times their shares: four, two or one of the rows at a time."""
    h = 0
    while h < many:
        heads = 4 if many - h >= 4 else 2 if many - h >= 2 else 1
        share, row = shares + h * apart, out + h * step
        if heads == 4:
            add_codes_4(nbits, share, apart, between, size, codes, width, tokens, width, first, last, row, step)
        elif heads == 2:
            add_codes_2(nbits, share, apart, between, size, codes, width, tokens, width, first, last, row, step)
        else:
            add_codes_1(nbits, share, apart, between, size, codes, width, tokens, width, first, last, row, step)
        h += heads


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
def spread(weights, scales, minima, gain, shares):
    """shares [tokens] = weights times scales and gain; returns the sum of weights times minima and gain."""
    total = np.float32(0.0)
    for t in range(shares.shape[0]):
        shares[t] = weights[t] * gain * scales[t]
        total += weights[t] * minima[t]
    return total * gain


@numba.njit(**COMPILED)
def softmax(scores, bits):
    """In place; returns the log of the sum of their exp. bits: room for as many int32. exp(x) = 2^k p(f) with k = round(x log2 e): numba's own exp doesn't vectorise.

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
    return top + np.log(total)


@numba.njit(**COMPILED)
def score_rows(queries, rows, scores):
    """scores [G, tokens] of queries [G, D] over keys in full precision [tokens, D]."""
    fours, dim = rows.shape[0] // FOUR * FOUR, rows.shape[1]
    for t in range(0, fours, FOUR):
        at = rows.ctypes.data + t * rows.strides[0]
        fetch(at, FOUR * rows.strides[0])
        for g in range(queries.shape[0]):
            dot_four(queries[g].ctypes.data, at, rows.strides[0], dim, scores.ctypes.data + g * scores.strides[0] + 4 * t)
    for t in range(fours, rows.shape[0]):
        for g in range(queries.shape[0]):
            scores[g, t] = dot(queries[g], rows[t])


@numba.njit(**COMPILED)
def weigh_rows(weights, rows, out):
    """out [G, D] += weights [G, tokens] times values in full precision [tokens, D]: tile by tile, columns by WIDEs, what is left over one row after the other."""
    tokens, dim = rows.shape
    tile, wide = max(1, TILE // rows.strides[0]), dim // WIDE * WIDE
    for t in range(0, tokens, tile):
        many, at = min(tile, tokens - t), rows.ctypes.data + t * rows.strides[0]
        fetch(at, many * rows.strides[0])
        for i in range(0, wide, WIDE):
            add_wide(out.shape[0], weights.ctypes.data + 4 * t, weights.strides[0], at + 4 * i, rows.strides[0], many, out.ctypes.data + 4 * i, out.strides[0])
        if wide < dim:
            for k in range(t, t + many):
                for g in range(out.shape[0]):
                    add(weights[g, k], rows[k, wide:], out[g, wide:])


@numba.njit(**COMPILED)
def add_wide(many, shares, apart, rows, stride, count, out, step):
    """To each of `many` pieces [WIDE] at `out`, `step` bytes apart, `count` rows times its own shares: MOST at a time while there are as many."""
    together = many // MOST * MOST
    for g in range(0, together, MOST):
        add_wide_to_most(shares + g * apart, apart, rows, stride, count, out + g * step, step)
    for g in range(together, many):
        add_wide_to_one(shares + g * apart, apart, rows, stride, count, out + g * step, step)


@numba.njit(**COMPILED)
def rotated(rows, size):
    """Rows [G, D] rotated by Hadamard in blocks of `size` channels; the rows themselves for a size of 1."""
    if size == 1:
        return rows
    out = rows * np.float32(float(size) ** -0.5)
    step = size
    while step > 1:
        half = step // 2
        for g in range(out.shape[0]):
            for first in range(0, out.shape[1], step):
                upper, lower = out[g, first : first + half], out[g, first + half : first + step]
                for i in range(half):
                    a, b = upper[i], lower[i]
                    upper[i], lower[i] = a + b, a - b
        step = half
    return out


@numba.njit(**COMPILED)
def attend_heads(queries, scale, kc, ks, km, kg, vc, vs, vm, vg, rk, rv, fk, fv, bias, key_bits, value_bits, key_turn, value_turn, alone, block, ahead, packed, start, stop, spans, mass, out, first, last):
    """Pieces first to last, counted over batch x key/value heads x spans of tokens, of out [B, H, spans, G, value D] and of its mass [B, H, spans, G].

    G query heads share each key head; mass is the log of the sum of exp(scores), by which the spans of a head are put together.
    queries [B, H, G, D]; kc, vc: codes [B, H, capacity, bytes], of which `packed` tokens count; fk, fv: rows before them
    [B, H, capacity, D], of which `ahead` count, in the first span; rk, rv: rows behind, the residual [B, H, capacity, D], of which start to stop count, in the last span;
    bias [B, ahead + packed + stop - start] to add to the scores, or [0, 0]. key_turn, value_turn: channels of codes that are rotated together, or 1.
    alone: was each token rounded alone, with bfloat16 scales and minima [B, H, capacity, 1]? Then kg is what keys were rounded without [B, H, D, 1], and `block` tokens are read at a time.
    """
    blocks, heads = (packed + block - 1) // block, queries.shape[1]
    for n in range(first, last):
        b, h, span = n // spans // heads, n // spans % heads, n % spans
        lo, hi, rest = blocks * span // spans, blocks * (span + 1) // spans, start if span == spans - 1 else stop
        before = ahead if span == 0 else 0
        begin, end = lo * block, min(hi * block, packed)
        behind = before + end - begin
        scores = np.empty((queries.shape[2], behind + stop - rest), np.float32)
        bits = np.empty(scores.shape[1], np.int32)
        query = queries[b, h] * np.float32(scale)
        score_rows(query, fk[b, h, :before], scores)
        if alone:
            score_alone(rotated(query, key_turn), query, kg[b, h].reshape(-1), kc[b, h, begin:end], ks[b, h, begin:end].reshape(-1), km[b, h, begin:end].reshape(-1), key_bits, scores[:, before:])
        else:
            score(rotated(query, key_turn), kc[b, h, begin:end], ks[b, h, lo:hi], km[b, h, lo:hi], kg[b, h, lo:hi], key_bits, block, scores[:, before:])
        score_rows(query, rk[b, h, rest:stop], scores[:, behind:])
        weigh_up(scores, bits, bias[b, ahead - before + begin :] if bias.shape[0] else bias[0:0, 0], mass[b, h, span])
        if alone:
            weigh_alone(scores[:, before:], vc[b, h, begin:end], vs[b, h, begin:end].reshape(-1), vm[b, h, begin:end].reshape(-1), value_bits, block, out[b, h, span])
        else:
            weigh(scores[:, before:], vc[b, h, begin:end], vs[b, h, begin:end], vm[b, h, begin:end], vg[b, h, lo:hi], value_bits, block, out[b, h, span])
        if value_turn > 1:
            out[b, h, span] = rotated(out[b, h, span], value_turn)
        weigh_rows(scores, fv[b, h, :before], out[b, h, span])
        weigh_rows(scores[:, behind:], rv[b, h, rest:stop], out[b, h, span])


@numba.njit(**COMPILED)
def attend_rows(queries, scale, keys, values, bias, spans, mass, out, first, last):
    """As `attend_heads`, for keys and values in full precision [B, H, T, D]; bias [B, T], or [0, 0]."""
    heads, tokens = queries.shape[1], keys.shape[2]
    for n in range(first, last):
        b, h, span = n // spans // heads, n // spans % heads, n % spans
        lo, hi = tokens * span // spans, tokens * (span + 1) // spans
        scores, bits = np.empty((queries.shape[2], hi - lo), np.float32), np.empty(hi - lo, np.int32)
        score_rows(queries[b, h] * np.float32(scale), keys[b, h, lo:hi], scores)
        weigh_up(scores, bits, bias[b, lo:hi] if bias.shape[0] else bias[0:0, 0], mass[b, h, span])
        out[b, h, span] = np.float32(0.0)
        weigh_rows(scores, values[b, h, lo:hi], out[b, h, span])


@numba.njit(**COMPILED)
def attend_apart(queries, scale, places, out, first, last):
    """As `attend_rows`, in one span, for rows of a batch whose keys and values lie anywhere: queries [B, H, G, D], out [B, H, G, value D].

    places [B, 5]: addresses of the first token's keys and values, bytes from one head to the next in each, tokens, which lie one after the other.
    """
    heads, nothing, mass = queries.shape[1], np.empty(0, np.float32), np.empty(queries.shape[2], np.float32)
    for n in range(first, last):
        b, h = n // heads, n % heads
        key, value, key_apart, value_apart, tokens = places[b, 0], places[b, 1], places[b, 2], places[b, 3], places[b, 4]
        keys = carray(floats_at(key + h * key_apart), (tokens, queries.shape[3]))
        values = carray(floats_at(value + h * value_apart), (tokens, out.shape[3]))
        scores, bits = np.empty((queries.shape[2], tokens), np.float32), np.empty(tokens, np.int32)
        score_rows(queries[b, h] * np.float32(scale), keys, scores)
        weigh_up(scores, bits, nothing, mass)
        out[b, h] = np.float32(0.0)
        weigh_rows(scores, values, out[b, h])


@numba.njit(**COMPILED)
def weigh_up(scores, bits, bias, mass):
    """Scores [G, tokens] to attention weights in place; their masses [G]. bias [tokens or more] is added first; [0]: none."""
    for g in range(scores.shape[0]):
        if bias.shape[0]:
            add(np.float32(1.0), bias, scores[g])
        mass[g] = softmax(scores[g], bits)


def _arrays(number: types.Type, dimensions: int, layout: str = "C") -> types.Array:
    return types.Array(number, dimensions, layout)


_FLOATS, _CODES, _HALVES = (_arrays(number, 4) for number in (types.float32, types.uint8, types.uint16))
_SIDE, _TOTALS = (_CODES, _HALVES, _HALVES, _FLOATS), (types.int64, _FLOATS, _arrays(types.float32, 5))
_BIAS, _PROGRESS = _arrays(types.float32, 2), _arrays(types.int64, 1)
keep_heads, kept_heads = _handing_over(_FLOATS, types.float64, *_SIDE, *_SIDE, *[_FLOATS] * 4, _BIAS, *[types.int64] * 10, *_TOTALS, _PROGRESS)
keep_rows, kept_rows = _handing_over(_FLOATS, types.float64, *[_arrays(types.float32, 4, "A")] * 2, _BIAS, *_TOTALS, _PROGRESS)


@numba.cfunc(types.void(types.int64), **COMPILED)
def heads_worker(task):
    """Pieces of `attend_heads`, one after the other, as long as there are some."""
    held = kept_heads(task)
    piece = take(held[-1].ctypes.data)
    while piece < held[-1][1]:
        attend_heads(*held[:-1], piece, piece + 1)
        piece = take(held[-1].ctypes.data)


@numba.cfunc(types.void(types.int64), **COMPILED)
def rows_worker(task):
    """Pieces of `attend_rows`, one after the other, as long as there are some."""
    held = kept_rows(task)
    piece = take(held[-1].ctypes.data)
    while piece < held[-1][1]:
        attend_rows(*held[:-1], piece, piece + 1)
        piece = take(held[-1].ctypes.data)


@numba.njit(**COMPILED)
def heads_at(scale, places):
    """What `attend_heads` takes first, from `cpu._places`: numbers cost a tenth of what arrays do to hand over from Python."""
    batch, heads, many, query, bias, biased, key_bits, value_bits, key_turn, value_turn, alone, block, ahead, packed, start, stop = places[:16]
    kc, key_tokens, ks, key_rows, km, kg, key_blocks, rk, key_capacity, fk, key_first, key_dim, key_groups = places[16:29]
    vc, value_tokens, vs, value_rows, vm, vg, value_blocks, rv, value_capacity, fv, value_first, value_dim, groups = places[29:]
    keys, values = (batch, heads, key_rows, key_groups), (batch, heads, value_rows, groups)
    return (
        carray(floats_at(query), (batch, heads, many, key_dim)), scale,
        carray(bytes_at(kc), (batch, heads, key_tokens, key_dim * key_bits // 8)), carray(halves_at(ks), keys), carray(halves_at(km), keys), carray(floats_at(kg), (batch, heads, key_blocks, 1)),
        carray(bytes_at(vc), (batch, heads, value_tokens, value_dim * value_bits // 8)), carray(halves_at(vs), values), carray(halves_at(vm), values), carray(floats_at(vg), (batch, heads, value_blocks, 1)),
        carray(floats_at(rk), (batch, heads, key_capacity, key_dim)), carray(floats_at(rv), (batch, heads, value_capacity, value_dim)),
        carray(floats_at(fk), (batch, heads, key_first, key_dim)), carray(floats_at(fv), (batch, heads, value_first, value_dim)),
        carray(floats_at(bias), (batch * (biased > 0), biased)), key_bits, value_bits, key_turn, value_turn, alone, block, ahead, packed, start, stop,
    )  # fmt: skip


@numba.njit(**COMPILED)
def heads_between(scale, places, spans, mass, out, first, last):
    """`attend_heads` of what is at `places`."""
    attend_heads(*heads_at(scale, places), spans, mass, out, first, last)


@numba.njit(**COMPILED)
def heads_together(team, worker, threads, count, scale, places, spans, mass, out):
    """All `count` pieces of `heads_between`, on so many threads of the team, or on this one if `team` is 0. Returns how often a piece was asked for."""
    arguments = heads_at(scale, places) + (spans, mass, out)
    if team == 0:
        attend_heads(*arguments, 0, count)
        return 0
    progress = np.array([0, count])
    call_team(team, worker, keep_heads(arguments + (progress,)), threads)
    return progress[0]  # which keeps it alive until here


@numba.njit(**COMPILED)
def rows_together(team, worker, threads, count, *arguments):
    """As `heads_together`, of `attend_rows`."""
    if team == 0:
        attend_rows(*arguments, 0, count)
        return 0
    progress = np.array([0, count])
    call_team(team, worker, keep_rows(arguments + (progress,)), threads)
    return progress[0]


@numba.njit(**COMPILED)
def join(parts, mass, out):
    """out [B, H, 1, G, D] = attention over all spans, of that over each: parts [B, H, spans, G, D] and mass [B, H, spans, G] of `attend_heads`."""
    for b, h, g in np.ndindex(out.shape[0], out.shape[1], out.shape[3]):
        top, total = mass[b, h, :, g].max(), np.float32(0.0)
        out[b, h, 0, g] = np.float32(0.0)
        for span in range(parts.shape[2]):
            share = np.exp(mass[b, h, span, g] - top)
            total += share
            add(share, parts[b, h, span, g], out[b, h, 0, g])
        out[b, h, 0, g] /= total
