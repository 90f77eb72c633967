"""Inner loops for numba as LLVM vector code: what LLVM makes of plain loops over short rows depends on the processor, and is up to three times slower.

Each takes eight tokens at a time and addresses of C-contiguous rows; LANES numbers are worked on at once, what is left over one by one.
"""

from collections.abc import Callable, Iterator

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

EIGHT = 8
LANES = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8  # eight sums of so many must fit in registers
FAST = ("fast",)
INT, FLOAT = ir.IntType(64), ir.FloatType()


def _add(builder: ir.IRBuilder, a, b):
    return builder.fadd(a, b, flags=FAST)


def _multiply(builder: ir.IRBuilder, a, b):
    return builder.fmul(a, b, flags=FAST)


def _pointer(builder: ir.IRBuilder, address, kind: ir.Type):
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: ir.IRBuilder, base, index, kind: ir.Type):
    """A number or vector from a pointer to single ones and an index; no alignment is assumed."""
    single = kind.element if isinstance(kind, ir.VectorType) else kind
    return builder.load(builder.bitcast(builder.gep(base, [index]), kind.as_pointer()), align=1 if single == ir.IntType(8) else 4)


def _store(builder: ir.IRBuilder, value, base, index) -> None:
    builder.store(value, builder.bitcast(builder.gep(base, [index]), value.type.as_pointer()), align=4)


def _splat(builder: ir.IRBuilder, value, lanes: int):
    """The number in every lane."""
    if lanes == 1:
        return value
    vector = builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))


def _kind(single: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(single, lanes) if lanes > 1 else single


def _sum(builder: ir.IRBuilder, vector):
    """All lanes together."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(first, first + lanes))) for first in (0, lanes))
        vector = _add(builder, builder.shuffle_vector(vector, vector, low), builder.shuffle_vector(vector, vector, high))
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _strides(builder: ir.IRBuilder, count, carried: list[list]) -> Iterator:
    """The body of a loop over `count` numbers, LANES at a time and then one by one: yields (index, lanes, carried values).

    carried: per width the initial values; the body leaves the next ones in the list that it was given, and the last ones stay there.
    """
    whole = builder.and_(count, ir.Constant(INT, -LANES))
    for lanes, first, last, values in ((LANES, ir.Constant(INT, 0), whole, carried[0]), (1, whole, count, carried[1])):
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


def _rows(builder: ir.IRBuilder, address, stride, kind: ir.Type) -> list:
    """Pointers to eight rows, `stride` bytes from one to the next."""
    return [_pointer(builder, builder.add(address, builder.mul(stride, ir.Constant(INT, k))), kind) for k in range(EIGHT)]


def _unpacker(nbits: int) -> Callable:
    """unpack(codes, stride, width, out): eight rows of `width` bytes, `stride` apart, as float32 rows [8, width * 8 / nbits]."""
    parts, byte, word = 8 // nbits, ir.IntType(8), ir.IntType(32)

    def generate(context, builder, signature, arguments):
        codes, stride, width, out = arguments
        dim = builder.mul(width, ir.Constant(INT, parts))
        sources = _rows(builder, codes, stride, byte)
        targets = _rows(builder, out, builder.mul(dim, ir.Constant(INT, 4)), FLOAT)
        columns = [builder.mul(width, ir.Constant(INT, part)) for part in range(parts)]
        for index, lanes, _ in _strides(builder, width, [[], []]):
            for source, target in zip(sources, targets):
                wide = builder.zext(_load(builder, source, index, _kind(byte, lanes)), _kind(word, lanes))
                for part, column in enumerate(columns):
                    code = builder.lshr(wide, _splat(builder, ir.Constant(word, part * nbits), lanes)) if part else wide
                    if part < parts - 1:
                        code = builder.and_(code, _splat(builder, ir.Constant(word, (1 << nbits) - 1), lanes))
                    _store(builder, builder.sitofp(code, _kind(FLOAT, lanes)), target, builder.add(column, index))
        return context.get_dummy_value()

    def unpack(typing, codes, stride, width, out):
        return types.void(types.int64, types.int64, types.int64, types.int64), generate

    unpack.__name__ = unpack.__qualname__ = f"unpack_{nbits}"
    return intrinsic(unpack)


unpack_8, unpack_4, unpack_2 = (_unpacker(nbits) for nbits in (8, 4, 2))


@intrinsic
def dot_eight(typing, row, rows, stride, count, offset, sums):
    """sums [8] = offset + a row [count] times each of eight rows, `stride` bytes apart. All float32."""

    def generate(context, builder, signature, arguments):
        row, rows, stride, count, offset, sums = arguments
        query, keys = _pointer(builder, row, FLOAT), _rows(builder, rows, stride, FLOAT)
        carried = [[ir.Constant(_kind(FLOAT, lanes), 0.0 if lanes == 1 else [0.0] * lanes) for _ in range(EIGHT)] for lanes in (LANES, 1)]
        for index, lanes, totals in _strides(builder, count, carried):
            x = _load(builder, query, index, _kind(FLOAT, lanes))
            totals[:] = [_add(builder, total, _multiply(builder, x, _load(builder, key, index, x.type))) for total, key in zip(totals, keys)]
        out = _pointer(builder, sums, FLOAT)
        for k in range(EIGHT):
            total = _add(builder, _add(builder, _sum(builder, carried[0][k]), carried[1][k]), offset)
            _store(builder, total, out, ir.Constant(INT, k))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, types.float32, types.int64), generate


def _adder(many: int) -> Callable:
    """add(shares, apart, rows, stride, count, out, step): to each of `many` rows out [count], `step` bytes apart, eight rows times its own shares [8].

    The shares of one are `apart` bytes from those of the next; the eight rows, `stride` bytes apart, are loaded once for all. All float32.
    """

    def generate(context, builder, signature, arguments):
        shares, apart, rows, stride, count, out, step = arguments
        values = _rows(builder, rows, stride, FLOAT)
        at = [(ir.Constant(INT, g), ir.Constant(INT, k)) for g in range(many) for k in range(EIGHT)]
        weights = [_load(builder, _pointer(builder, builder.add(shares, builder.mul(apart, g)), FLOAT), k, FLOAT) for g, k in at]
        targets = [_pointer(builder, builder.add(out, builder.mul(step, ir.Constant(INT, g))), FLOAT) for g in range(many)]
        for index, lanes, _ in _strides(builder, count, [[], []]):
            loaded = [_load(builder, value, index, _kind(FLOAT, lanes)) for value in values]
            for g, target in enumerate(targets):
                terms = [_multiply(builder, _splat(builder, weight, lanes), value) for weight, value in zip(weights[g * EIGHT :], loaded)]
                halves = [_load(builder, target, index, _kind(FLOAT, lanes)), terms.pop()]  # two chains of sums, which need not wait for each other
                for number, term in enumerate(terms):
                    halves[number % 2] = _add(builder, halves[number % 2], term)
                _store(builder, _add(builder, *halves), target, index)
        return context.get_dummy_value()

    def add(typing, shares, apart, rows, stride, count, out, step):
        return types.void(*[types.int64] * 7), generate

    add.__name__ = add.__qualname__ = f"add_to_{many}"
    return intrinsic(add)


add_to_one, add_to_two = _adder(1), _adder(2)


@intrinsic
def fetch(typing, address, count):
    """Ask for `count` bytes that will be read soon: eight rows read side by side look like no stream to the processor.

    At 16k, 8 heads of 128 channels, this takes attention over float32 rows from 18.7 to 10.9 ms (Zen 4, one thread).
    """

    def generate(context, builder, signature, arguments):
        address, count = arguments
        byte, word = ir.IntType(8), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte.as_pointer()], ir.FunctionType(ir.VoidType(), [byte.as_pointer(), word, word, word]))
        base = _pointer(builder, address, byte)
        with cgutils.for_range_slice(builder, ir.Constant(INT, 0), count, ir.Constant(INT, 64)) as (index, _):
            builder.call(prefetch, [builder.gep(base, [index]), ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
