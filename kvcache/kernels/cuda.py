"""Triton kernels on a GPU: attention of a few tokens over packed codes, and quantising. Proven by Triton's interpreter and by compiling; not measured on a GPU.

The first attention of a kind compiles its kernel in a thread beside and is tested there against `reference`; then the two are timed at the lengths that
there are, and the kernel is used where it is the faster one. What Triton does for AMD goes the same way, untried.
"""

import functools
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..extras import why_not_imported
from ..hadamard import rotate
from ..quantize import LEVELS, Encoded, Scheme, native
from . import reference
from .packed import Packed

log = logging.getLogger(__name__)

NBITS, BLOCKS = (8, 4, 2), (16, 32, 64, 128)
TOKENS, QUERIES = 16, 128  # of one forward, and of all query heads that share a key head
NARROW, WIDE = 64, 128  # lanes of a head beyond which fewer queries fit in registers, and none at all in float32
SPAN, SPANS = 256, 64  # tokens that a program reads at least, and programs to a head at most
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CLOSE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}  # of values about 1: keys, values and weights are rounded to this dtype, as torch's attention does
ROUNDS = 3  # timings of each


class Side(NamedTuple):
    """How keys or values are laid out. `unit` channels lie together: equal in their part of a byte, and their group of a scale; in registers they are padded to `pad`."""

    bits: int
    dim: int
    group: int
    channel: bool
    unit: int
    pad: int

    @classmethod
    def of(cls, scheme: Scheme, dim: int) -> "Side":
        width = dim * scheme.nbits // 8
        unit = width if scheme.axis == "channel" else math.gcd(width, scheme.group)
        return cls(scheme.nbits, dim, scheme.group, scheme.axis == "channel", unit, 1 << (unit - 1).bit_length())

    @property
    def lanes(self) -> int:
        return self.dim // self.unit * self.pad

    def named(self, side: str) -> dict[str, Any]:
        """As the kernel calls them."""
        return {f"{side}_{name}".upper(): value for name, value in self._asdict().items()}


class Kind(NamedTuple):
    """What one compiled kernel does: `many` query heads to a key head, of which a program takes `rows`, blocks of so many tokens, 0: no mask, 1: boolean, 2: to be added."""

    keys: Side
    values: Side
    dtype: torch.dtype
    many: int
    rows: int
    block: int
    mask: int

    def constants(self) -> dict[str, Any]:
        shape = {"MANY": self.many, "BLOCK": self.block, "MASK": self.mask, "M": self.rows, "N": self.tokens, "PRECISION": "ieee" if torch.version.hip else "tf32x3"}
        return shape | self.keys.named("key") | self.values.named("value")

    @property
    def tokens(self) -> int:
        """Tokens that a program takes at a time: of one block, and as many as fit in registers."""
        wide = max(self.keys.lanes, self.values.lanes) * (2 if self.dtype == torch.float32 else 1)
        return min(self.block, max(16, 64 * 64 // max(64, wide)))

    @property
    def warps(self) -> int:
        return 8 if max(self.keys.lanes, self.values.lanes) * self.rows > 2048 else 4


def kind_of(query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None) -> Kind:
    many, count = query.shape[1] // keys.shape[1], query.shape[2]
    sides = [Side.of(states.scheme, states.residual.shape[3]) for states in (keys, values)]
    lanes = max(side.lanes for side in sides)
    most = 16 if query.dtype == torch.float32 or lanes > WIDE else 64 if lanes <= NARROW else 32  # what fits in registers, by tests/compile_kernels.py
    rows = min(most, max(16, 1 << (many * count - 1).bit_length()))
    return Kind(*sides, query.dtype, many, rows, keys.block, 0 if mask is None else 1 if mask.dtype == torch.bool else 2)


# ------------------------------------------------------------------------------------------------------------ which one


@functools.cache
def why_not_triton() -> str | None:
    """Why there are no kernels here, or None."""
    try:
        import triton  # noqa: F401
    except Exception as error:  # missing, or whatever a broken installation raises
        return why_not_imported(error)
    return None


def readable(query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Do the kernels know this: a few tokens, codes of 8, 4 or 2 bits in blocks of a power of two, heads of 16 to 256, of 128 in float32, whose groups are a power of two in number?"""
    if not (isinstance(keys, Packed) and isinstance(values, Packed)) or query.dtype not in DTYPES:
        return False
    if keys.hidden or (keys.block, keys.packed, keys.ahead, keys.hidden) != (values.block, values.packed, values.ahead, values.hidden) or keys.shape[:3] != values.shape[:3]:
        return False
    if query.dtype == torch.float32 and max(keys.shape[3], values.shape[3]) > WIDE:
        return False
    if query.shape[2] > TOKENS or query.shape[2] * (query.shape[1] // keys.shape[1]) > QUERIES or keys.block not in BLOCKS:
        return False
    if mask is not None and (mask.dim() != 4 or mask.shape[3] != keys.shape[2]):
        return False
    return all(_known(states.scheme, states.residual.shape[3], states.block) for states in (keys, values))


def _known(scheme: Scheme, dim: int, block: int) -> bool:
    if scheme.nbits not in NBITS or block not in BLOCKS or not 16 <= dim <= 256 or dim % 8 or (scheme.axis == "channel" and scheme.group != block):
        return False
    side = Side.of(scheme, dim)
    return all(number & (number - 1) == 0 for number in (side.lanes, 1 if side.channel else dim // side.group))


def takes(query: torch.Tensor, keys: Packed | torch.Tensor, values: Packed | torch.Tensor, mask: torch.Tensor | None, scale: float, wait: bool = False) -> bool:
    """Is there a kernel for this attention, right and faster here? `wait` for it to compile and take it if it is right, or say no until it is known."""
    if not query.is_cuda or why_not_triton() or not readable(query, keys, values, mask):
        return False
    if torch.is_grad_enabled() and any(states.requires_grad for states in (query, keys, values)):  # which the kernels would lose
        return False
    trial = trial_of(kind_of(query, keys, values, mask), query.device)
    return trial.right(wait) and (wait or trial.faster(query, keys, values, mask, scale))


@functools.cache
def trial_of(kind: Kind, device: torch.device) -> "Trial":
    return Trial(kind, device)


class Tested:
    """A kernel that is not used before `test` has run it without raising. `words` say what is done without it, for the log."""

    def __init__(self, words: str, test: Callable[[], None]) -> None:
        self.words, self._test = words, test
        self.reason: str | None = None
        self._tested = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def right(self, wait: bool) -> bool:
        """Has it passed? Compiles and tests in a thread beside; `wait` for it, or no until it is done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvcache-triton")
                self._thread.start()
        return (self._tested.wait() if wait else self._tested.is_set()) and self.reason is None

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._test()
        except Exception as error:  # whatever a compiler or a broken installation raises is the answer
            self.reason = why_not_imported(error)
            log.warning("%s (%s)", self.words, self.reason)
        self._tested.set()


class Trial(Tested):
    """One kind of attention on one device: is its kernel right, on an example, and for which lengths is it faster than what runs without it?"""

    def __init__(self, kind: Kind, device: torch.device) -> None:
        super().__init__("attention over packed codes is torch's, piece by piece, without a Triton kernel", self._compare)
        self.kind, self.device = kind, device
        self.seconds: dict[tuple[int, int], tuple[float, float]] = {}  # by size: of the kernel, of the reference

    def _compare(self) -> None:
        worst = error_of(self.kind, self.device)
        if not worst < CLOSE[self.kind.dtype]:
            raise RuntimeError(f"its self-test is off by {worst:.1e}")

    def faster(self, *arguments: Any) -> bool:
        """Is it, at this batch and length, give or take a factor of two? Timed at the first use, in milliseconds."""
        query, keys = arguments[:2]
        size = keys.shape[0] * keys.shape[1], keys.shape[2].bit_length()
        if size not in self.seconds:
            if query.is_cuda and torch.cuda.is_current_stream_capturing():
                return False
            self.seconds[size] = tuple(seconds_of(each, *arguments) for each in (attention, reference.attention))
        ours, other = self.seconds[size]
        return ours < other


def seconds_of(run: Callable, *arguments: Any) -> float:
    """The median of a few calls, each waited for; one before them is a warm-up."""
    device, taken = arguments[0].device, []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        run(*arguments)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def error_of(kind: Kind, device: torch.device) -> float:
    """How far the kernel is from the reference at most, on two key heads of a small example with two spans and a residual."""
    query, keys, values, mask = example(kind, device)
    scale = query.shape[3] ** -0.5
    return (attention(query, keys, values, mask, scale, span=kind.block).float() - reference.attention(query, keys, values, mask, scale).float()).abs().max().item()


def example(kind: Kind, device: torch.device) -> tuple[torch.Tensor, Packed, Packed, torch.Tensor | None]:
    """A query, keys, values and a mask of a kind: two key heads, three blocks and some recent tokens."""
    packed, recent, ahead, generator = 3 * kind.block, 9, 4, torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu").to(device)

    def side(of: Side) -> Packed:
        scheme = Scheme(of.bits, "channel" if of.channel else "token", of.group, native)
        rows, first = (normal(1, 2, count, of.dim).to(kind.dtype) for count in (recent, ahead))
        return Packed(scheme, kind.block, packed, scheme.encode(normal(1, 2, packed, of.dim), kind.block), rows, 0, recent, first, ahead)

    count = max(1, min(TOKENS, kind.rows // kind.many))
    keep = torch.arange(ahead + packed + recent, device=device)[None] % 7 > 0
    keep = keep.expand(count, -1)[None, None]
    mask = (None, keep, torch.where(keep, 0.0, -1e4).to(kind.dtype))[kind.mask]
    return normal(1, 2 * kind.many, count, kind.keys.dim).to(kind.dtype), side(kind.keys), side(kind.values), mask


# ------------------------------------------------------------------------------------------------------------ attention


def attention(query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None, scale: float, span: int | None = None) -> torch.Tensor:
    """Few tokens', query [B, Hq, n, D], none of which goes by is_causal: [B, Hq, n, value D]. `span`: tokens to a program, a multiple of a block."""
    scheme, query, keys, values = values.scheme, _turned(keys, query), _as_kernels_read(keys), _as_kernels_read(values)
    out = _attention(query, keys, values, mask, scale, span)
    return scheme.turned(out).to(out.dtype) if scheme.rotated else out


def _turned(held: Packed, states: torch.Tensor) -> torch.Tensor:
    """Rotated as the codes are, in the states' own dtype."""
    return held.scheme.turned(states).to(states.dtype) if held.scheme.rotated else states


def _as_kernels_read(states: Packed) -> Packed:
    """The same, what is in full precision rotated where the codes are."""
    if not states.scheme.rotated:
        return states
    rows, first = _turned(states, states.recent()), states.first if states.first is None else _turned(states, states.first[:, :, : states.ahead])
    return states._replace(residual=rows, start=0, stop=rows.shape[2], first=first)


def _attention(query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None, scale: float, span: int | None) -> torch.Tensor:
    from .cuda_attention import attend, join

    kind, (batch, heads, tokens, _) = kind_of(query, keys, values, mask), keys.shape
    queries, count = query.shape[1] // heads * query.shape[2], query.shape[2]
    span = span or span_of(tokens, keys.block)
    splits = -(-tokens // span)
    parts, tops, totals = (torch.empty(batch * heads, splits, queries, *last, dtype=torch.float32, device=query.device) for last in ((kind.values.dim,), (), ()))
    buffers = [_heads_apart(part) for states in (keys, values) for part in (*states.encoded, states.recent(), _ahead(states))]
    bias = _as_read(mask, batch, query.shape[1], count)
    with torch.cuda.device(query.device.index if query.is_cuda else -1):
        attend[(batch * heads, splits, -(-queries // kind.rows))](
            query.contiguous(), query if bias is None else bias, parts, tops, totals, *buffers, *(_head(part) for part in buffers),
            float(scale), count, keys.ahead, keys.packed, keys.stop - keys.start, span, splits, *((0, 0, 0) if bias is None else bias.stride()[:3]),
            HEADS=heads, **kind.constants(), num_warps=kind.warps, num_stages=2, enable_fp_fusion=True,
        )  # fmt: skip
        out = torch.empty(*query.shape[:3], kind.values.dim, dtype=query.dtype, device=query.device)
        join[(batch * heads, queries)](parts, tops, totals, out, splits, queries, DIM=kind.values.dim, LANES=1 << (kind.values.dim - 1).bit_length(), num_warps=4, enable_fp_fusion=True)
    return out


def _ahead(states: Packed) -> torch.Tensor:
    """The rows before the codes; any where there are none."""
    return states.recent() if states.first is None else states.first[:, :, : states.ahead]


def span_of(tokens: int, block: int) -> int:
    """Tokens to a program, whole blocks. The batch has no say, or a row would be summed in another order beside others."""
    return max(-(-SPAN // block), -(-tokens // SPANS // block)) * block


def _heads_apart(buffer: torch.Tensor) -> torch.Tensor:
    """The same [B, H, rows, width], its rows one after the other and all heads equally far apart."""
    if buffer.is_contiguous():
        return buffer
    batch, head, row, single = buffer.stride()
    regular = single == 1 and row == buffer.shape[3] and (buffer.shape[0] == 1 or batch == buffer.shape[1] * head)
    return buffer if regular else buffer.contiguous()


def _head(buffer: torch.Tensor) -> int:
    """Elements from one head to the next."""
    batch, heads = buffer.shape[:2]
    return buffer.stride(1) if heads > 1 else buffer.stride(0) if batch > 1 else 0


def _as_read(mask: torch.Tensor | None, batch: int, heads: int, count: int) -> torch.Tensor | None:
    """The mask for every row, head and token [B, Hq, n, T], nothing copied where it says the same of many; a boolean one as bytes."""
    if mask is None:
        return None
    mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    mask = mask if mask.stride(3) == 1 else mask.contiguous()
    return mask.expand(batch, heads, count, -1)


# ----------------------------------------------------------------------------------------------------------- quantising


def encode(scheme: Scheme, states: torch.Tensor, block: int) -> Encoded | None:
    """`scheme.encode` of states [B, H, T, D], to the bit; None where there is no kernel for it, or it is not known yet to give the same."""
    if not states.is_cuda or not states.numel() or why_not_triton() or not encodable(scheme, states, block) or (torch.is_grad_enabled() and states.requires_grad):
        return None
    return encoded(scheme, states, block) if encoder_of(scheme, states.shape[3], block, states.dtype, states.device).right(wait=False) else None


def encodable(scheme: Scheme, states: torch.Tensor, block: int) -> bool:
    """Is there a kernel: for our own levels, whose fits add up groups of a power of two?"""
    if scheme.quantizer not in LEVELS:
        return False
    whole = not scheme.fit[0] or scheme.group & (scheme.group - 1) == 0
    return states.dtype in DTYPES and whole and _known(scheme, states.shape[3], block)


def encoded(scheme: Scheme, states: torch.Tensor, block: int) -> Encoded:
    """By the kernel."""
    from . import cuda_encode

    states = rotate(states) if scheme.rotated else states
    states = states if states.stride(3) == 1 else states.contiguous()
    (b, h, t, d), side, constants = states.shape, Side.of(scheme, states.shape[3]), encode_constants(scheme, states.shape[3], block)
    shape = (b, h, t // block, d) if side.channel else (b, h, t, d // side.group)
    shapes, dtypes = ((b, h, t, d * side.bits // 8), shape, shape, (b, h, t // block, 1)), (torch.uint8, torch.float16, torch.float16, torch.float32)
    out = Encoded(*(torch.empty(shape, dtype=dtype, device=states.device) for shape, dtype in zip(shapes, dtypes)))
    parts = -(-(shapes[0][3] if side.channel else block) // constants["SOME"])
    with torch.cuda.device(states.device.index if states.is_cuda else -1):
        cuda_encode.encode[(b * h * (t // block), parts)](states.detach(), *states.stride()[:3], *out, h, t // block, **constants, num_warps=4, enable_fp_fusion=False)
    return out


def encode_constants(scheme: Scheme, dim: int, block: int) -> dict[str, Any]:
    """What the kernel is compiled for. A program takes 8 bytes of each row of a block, or the tokens that 1,024 lanes hold."""
    side, (fits, middle, power) = Side.of(scheme, dim), scheme.fit
    named = {name.removeprefix("SIDE_"): value for name, value in side.named("side").items()}
    some = 8 if side.channel else min(block, max(1, 1024 // side.lanes))
    return {**named, "BLOCK": block, "RIM": (1 - middle) / 2, "FITS": fits, "POWER": power, "SOME": some, "LANES": 1 << (dim - 1).bit_length()}


@functools.cache
def encoder_of(scheme: Scheme, dim: int, block: int, dtype: torch.dtype, device: torch.device) -> "Tested":
    def test() -> None:
        states = torch.randn(1, 2, 2 * block, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu").to(device, dtype)
        if not all(torch.equal(*pair) for pair in zip(encoded(scheme, states, block), scheme.encode(states, block))):
            raise RuntimeError(f"its self-test of {scheme.nbits} bits along the {scheme.axis} axis failed")

    return Tested("quantising is torch's, without a Triton kernel", test)
