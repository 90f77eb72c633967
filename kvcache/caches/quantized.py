"""QuantizedCache: old tokens at 8, 4, 3, 2 or 1 bits, recent ones in full precision."""

import functools
import importlib

import torch
from transformers import PreTrainedConfig

from ..cache import Cache, build_layers, layer_types
from ..entry import Entry, Parameter
from ..layer import T, Layer, capacity_for
from ..predict import Shape
from ..quantize import QUANTIZERS, Encoded, Scheme
from .dynamic import windowed
from .sliding_window import WINDOWED_TYPES

NBITS = {"native": (8, 4, 2), "hqq": (8, 4, 3, 2, 1), "quanto": (4, 2)}
PACKAGES = {"hqq": "hqq", "quanto": "optimum.quanto"}
GROUPS = (32, 64, 128)


class QuantizedLayer(Layer):
    """Packed blocks of old tokens and a residual of recent ones.

    At least the latest `residual_length` tokens stay in full precision; whenever a further `q_group_size` have come,
    the oldest block of that many is quantised, once: no history is quantised twice. Stores, for keys (grouped per
    channel) and for values (per token), codes [B, H, held, D * nbits / 8], float16 scales and minima, float32 block
    gains, and the residual [B, H, residual, D]. Source: KIVI, Liu et al. 2024, arXiv 2402.02750.
    """

    stores = {
        "key_codes": "keys", "key_scales": "scales", "key_minima": "scales", "key_gains": "scales",
        "value_codes": "values", "value_scales": "scales", "value_minima": "scales", "value_gains": "scales",
        "key_residual": "residual", "value_residual": "residual",
    }  # fmt: skip
    is_croppable = True

    def __init__(self, backend: str, nbits: int, q_group_size: int, residual_length: int, value_group: int):
        super().__init__()
        self.block, self.residual_length = q_group_size, residual_length
        self.schemes = {
            "key": Scheme(nbits, "channel", q_group_size, QUANTIZERS[backend]),
            "value": Scheme(nbits, "token", value_group, QUANTIZERS[backend]),
        }

    @property
    def quantized(self) -> int:
        """Tokens held as codes."""
        return len(self.key_codes)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; return all tokens [B, H, seen, D], the quantised ones decoded, the others as they came."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.key_residual.append(key_states)
        self.value_residual.append(value_states)
        self.seen += key_states.shape[T]
        attended = self.keys, self.values
        self._flush()
        return attended

    def _flush(self) -> None:
        tokens = (len(self.key_residual) - self.residual_length) // self.block * self.block
        if tokens <= 0:
            return
        for side in ("key", "value"):
            residual = getattr(self, f"{side}_residual")
            old = residual.view()[:, :, :tokens]
            self._store(side, [self.schemes[side].encode(block) for block in old.split(self.block, dim=T)])
            residual.drop_front(tokens)
            residual.shrink(self.residual_length + self.block)

    def _store(self, side: str, blocks: list[Encoded]) -> None:
        for part in ("codes", "scales", "minima", "gains"):
            getattr(self, f"{side}_{part}").append(torch.cat([getattr(block, part) for block in blocks], dim=T))

    def _decoded(self, side: str) -> torch.Tensor:
        """The quantised tokens of one side [B, H, quantized, D]."""
        parts = (getattr(self, f"{side}_{part}").view() for part in ("codes", "scales", "minima", "gains"))
        return self.schemes[side].decode(Encoded(*parts), self.block, self.dtype)

    def _all(self, side: str) -> torch.Tensor | None:
        residual = getattr(self, f"{side}_residual").view()
        return torch.cat([self._decoded(side), residual], dim=T) if self.quantized else residual

    @property
    def keys(self) -> torch.Tensor | None:
        """All keys [B, H, seen, D], decoded."""
        return self._all("key")

    @property
    def values(self) -> torch.Tensor | None:
        """All values [B, H, seen, D], decoded."""
        return self._all("value")

    def _crop_to(self, length: int) -> None:
        """Drop blocks; of a block that is cut in two, the kept tokens come back to the residual as they decode."""
        kept = min(self.quantized, length) // self.block * self.block
        for side in ("key", "value"):
            residual = getattr(self, f"{side}_residual")
            if length >= self.quantized:
                residual.drop_back(self.seen - length)
            else:
                residual.replace(self._decoded(side)[:, :, kept:length].clone())
        if length < self.quantized:
            self._drop_blocks(kept)

    def _drop_blocks(self, kept: int) -> None:
        dropped = (self.quantized - kept) // self.block
        for side, scheme in self.schemes.items():
            rows = self.block // scheme.group if scheme.axis == "channel" else self.block
            getattr(self, f"{side}_codes").drop_back(dropped * self.block)
            getattr(self, f"{side}_scales").drop_back(dropped * rows)
            getattr(self, f"{side}_minima").drop_back(dropped * rows)
            getattr(self, f"{side}_gains").drop_back(dropped)

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        blocks = max(0, tokens - self.residual_length) // self.block
        coded, residual = blocks * self.block, tokens - blocks * self.block
        amounts = {"residual": residual * shape.token_nbytes, "scales": 0}
        reserved = (capacity_for(self.residual_length + self.block if blocks else tokens) - residual) * shape.token_nbytes
        for side, dim in (("key", shape.key_dim), ("value", shape.value_dim)):
            scheme, heads = self.schemes[side], shape.batch * shape.heads
            rows = (coded // scheme.group, dim) if scheme.axis == "channel" else (coded, dim // scheme.group)
            parts = [(coded, dim * scheme.nbits // 8, f"{side}s"), (*(rows), "scales"), (*(rows), "scales"), (blocks, 1, "scales")]
            for (count, width, kind), itemsize in zip(parts, (1, 2, 2, 4)):
                amounts[kind] = amounts.get(kind, 0) + heads * count * width * itemsize
                reserved += heads * (capacity_for(count) - count) * width * itemsize if blocks else 0
        return {**amounts, "reserved": reserved}

    def token_fates(self) -> list[tuple[str, int]]:
        fates = (("quantized", self.quantized), ("full", self.seen - self.quantized))
        return [(fate, count) for fate, count in fates if count]


class QuantizedCache(Cache):
    """Hold old tokens as `nbits`-bit codes and at least the latest `residual_length` tokens in full precision.

    `backend` chooses scales and codes: "native" (uniform levels), "hqq" or "quanto"; storage is ours for all three,
    append-only, keys grouped per channel, values per token. Full-attention layers only: windows that the model has
    itself stay in full precision. Lossy once seen >= residual_length + q_group_size. `q_group_size`: tokens to a key
    block and, at most, channels to a value group ("auto": 64). Raises ValueError on values that cannot be held.
    """

    name = "quantized"

    def __init__(
        self,
        config: PreTrainedConfig,
        backend: str = "native",
        nbits: int = 4,
        residual_length: int = 64,
        q_group_size: int | str = "auto",
    ):
        config = config.get_text_config(decoder=True)
        backend = backend.lower()
        reason = misfit(config) or _broken(config, {"backend": backend, "nbits": nbits, "q_group_size": q_group_size}) or _missing(backend)
        if reason:
            raise ValueError(f"QuantizedCache: {reason}")
        if residual_length < 0:
            raise ValueError(f"residual_length must be at least 0, got {residual_length}")
        group = 64 if q_group_size == "auto" else q_group_size
        make = functools.partial(QuantizedLayer, backend, nbits, group, residual_length, value_group(_value_dim(config), group))
        table = {"full_attention": lambda **_: make(), **dict.fromkeys(WINDOWED_TYPES, windowed)}
        super().__init__(build_layers(config, table))


def value_group(head_dim: int, at_most: int) -> int:
    """The largest divisor of head_dim that is no larger than asked: every head dim is held exactly."""
    return max(size for size in range(1, at_most + 1) if head_dim % size == 0)


def _value_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "v_head_dim", None) or getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def misfit(config: PreTrainedConfig) -> str | None:
    """Why quantising does not suit this model, or None."""
    if "full_attention" not in layer_types(config):
        return f"{config.model_type} has no full-attention layer; its windows and states are small already"
    dim = _value_dim(config)
    return f"head_dim {dim} is not a multiple of 8, which packing needs" if dim % 8 else None


def _broken(config: PreTrainedConfig, parameters) -> str | None:
    backend, nbits, group = parameters["backend"], parameters["nbits"], parameters["q_group_size"]
    if backend not in NBITS:
        return f"backend must be one of {', '.join(NBITS)}, got {backend!r}"
    if nbits not in NBITS[backend]:
        others = "; ".join(f"{other} takes {_listed(bits)}" for other, bits in NBITS.items() if other != backend)
        return f"nbits must be {_listed(NBITS[backend])} for {backend}, got {nbits}; {others}"
    if group not in (*GROUPS, "auto"):
        return f"q_group_size must be {_listed(GROUPS)} or auto, got {group}"
    return None


def _listed(values) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


@functools.cache
def _missing(backend: str) -> str | None:
    """Try the backend once on a small block; the reason why it cannot be used, or None."""
    if backend == "native":
        return None
    try:
        importlib.import_module(PACKAGES[backend])
        grouped = torch.linspace(-1, 1, 128).view(1, 1, 2, 64)
        codes, scale, minimum = QUANTIZERS[backend](grouped, 4)
    except Exception as error:  # whatever a broken installation raises is the answer
        return f"backend {backend} unavailable because {type(error).__name__}: {error}"
    worst = (codes * scale + minimum - grouped).abs().max().item()
    return None if worst < 0.2 else f"backend {backend} unavailable because its self-test is off by {worst:.2f}"


def _choice_reasons(parameter: str, config: PreTrainedConfig, values) -> dict:
    if parameter == "backend":
        return {backend: reason for backend in NBITS if (reason := _missing(backend))}
    if parameter == "nbits":
        backend = values["backend"]
        return {nbits: f"{backend} takes {_listed(NBITS[backend])} bits" for nbits in (8, 4, 3, 2, 1) if nbits not in NBITS[backend]}
    return {}


def _broken_or_missing(config: PreTrainedConfig, parameters) -> str | None:
    return _broken(config, parameters) or _missing(parameters["backend"])


ENTRY = Entry(
    name="quantized",
    title="Quantized",
    summary="Rounds old tokens to a few bits each and keeps the latest in full precision: all is remembered, a little blurred.",
    cache_class=QuantizedCache,
    make=QuantizedCache,
    parameters=(
        Parameter("backend", "Backend", "choice", "native", "What chooses the rounding: our own levels, HQQ's solver or quanto.", choices=tuple(NBITS)),
        Parameter("nbits", "Bits", "choice", 4, "Bits an element: native 8, 4, 2; hqq also 3 and 1; quanto 4, 2.", choices=(8, 4, 3, 2, 1)),
        Parameter("residual_length", "Residual", "int", 64, "Latest tokens kept in full precision, at least.", minimum=0, maximum=4096, step=16),
        Parameter("q_group_size", "Group", "choice", "auto", "Elements that share a scale; also the tokens to a block.", choices=("auto", *GROUPS)),
    ),
    lossy=True,
    can=frozenset({"crop", "beam", "continue", "batch", "copy"}),
    paper="https://arxiv.org/abs/2402.02750",
    misfit=misfit,
    broken=_broken_or_missing,
    choice_reasons=_choice_reasons,
    label=lambda backend, nbits, residual_length, q_group_size: f"{backend.capitalize() if backend != 'hqq' else 'HQQ'} {nbits}-bit",
)
