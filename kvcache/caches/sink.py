"""SinkCache: keep the first tokens and a recent window, and stay fluent for ever."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import FULL_TYPES, WINDOWED_TYPES, decoder_config, layer_types, other_types, why_not_exact
from ..cache import Cache, build_layers
from ..entry import Entry, Parameter, all_but
from ..kernels.packed import Packed
from ..layer import Buffer, Layer, T, capacity_for
from ..predict import Shape
from ..read_only import read_only
from ..rope import Rope, RopeError, rope_for, verify_rope
from ..validation import whole_number
from ..window import WindowLayer
from .dynamic import windowed
from .quantized import FULL, WINDOW_BITS, QuantizedWindowLayer, bits_suffix, rounding_of, why_not_window_bits, window_of

NO_DRAFTS = "SinkCache cannot decode with drafts (prompt lookup, an assistant): what it evicts for a draft cannot come back"


class Sinks(Layer):
    """What layers with sinks have in common, however they store their window."""

    rope: Rope | None

    @property
    def rotates(self) -> bool:
        """Do the sinks' keys move with the window?"""
        return self.rope is not None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, cache_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As a window's. Of `cache_kwargs`, "partial_rotation_size" must be what the config rotates, or ValueError.

        "sin" and "cos", which 4.48's models passed, are not used. They tell how far each frequency has turned, but not
        which dims turn together: Llama pairs dims half a head apart and GLM neighbours, with the same sin and cos. A
        rotation guessed from them would be wrong in silence; the one from the config is exact.
        """
        _check_rotation(self.rope, cache_kwargs)
        return super().update(key_states, value_states)  # type: ignore[safe-super]  # the window beside it has one


class SinkLayer(Sinks, WindowLayer):
    """The first `num_sink_tokens` and the latest others, `window_length` in all.

    Stores keys, values [B, H, held, D], the sinks first, and the sinks' keys as they came. When tokens are evicted the
    window stays as it is and the sinks alone are rotated forward, by all that has been evicted, from those originals:
    RoPE attention depends on distances only, so this equals re-rotating the whole window, without its rounding drift.
    """

    stores = {**WindowLayer.stores, "sink_keys": "keys"}
    settings = ("window_length", "num_sink_tokens", "rotates")
    sink_keys: Buffer

    def __init__(self, window_length: int, num_sink_tokens: int = 4, rope: Rope | None = None):
        super().__init__(window_length)
        self.num_sink_tokens, self.rope = whole_number("num_sink_tokens", num_sink_tokens, 0, high=self.window_length - 1), rope
        self.sink_keys = Buffer(self.num_sink_tokens)

    def refuse_drafts(self) -> None:
        """Always: a draft that is taken back would have to bring evicted tokens back with it."""
        raise ValueError(NO_DRAFTS)

    def _append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super()._append(keys, values)
        self._collect_sinks()

    def _keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        surplus = keys.shape[-2] - self.window_length
        sinks = self.num_sink_tokens
        if surplus <= 0 or not sinks:
            super()._keep(keys, values)
            return self._collect_sinks()
        if len(self.sink_keys) < sinks:
            self.sink_keys.append(keys[:, :, len(self.sink_keys) : sinks])
        self.key_rows.replace(self._rotated_sinks(self.seen - self.window_length))
        self.key_rows.append(keys[:, :, sinks + surplus :])
        self.value_rows.replace(values[:, :, :sinks])
        self.value_rows.append(values[:, :, sinks + surplus :])

    def editable(self, side: int) -> torch.Tensor | None:
        """Keys as a copy to be read: those of the sinks are rotated anew, from originals, whenever tokens are evicted."""
        if side == 1 or not len(self.sink_keys):
            return super().editable(side)
        with torch.inference_mode(False):
            return read_only(self.key_rows.view().clone(), "keys of a SinkCache cannot be edited in place, since those of the sinks are rotated anew from originals: edit a clone() and assign that before any are evicted")

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        if side == "keys" and self.evicted and self.num_sink_tokens:
            raise ValueError(f"keys cannot be assigned to a {type(self).__name__} that has evicted tokens: its sinks' are rotated anew from originals; reset() it and feed the tokens again")
        super().check_assigned(side, rows)

    def assign(self, side: str, rows: torch.Tensor) -> None:
        super().assign(side, rows)
        if side == "keys":
            self.sink_keys.clear()
            self._collect_sinks()

    def _collect_sinks(self) -> None:
        """Remember the first keys of the stream; called while nothing has been evicted yet."""
        have, want = len(self.sink_keys), min(self.num_sink_tokens, self.held)
        if have < want:
            self.sink_keys.append(self.key_rows.view()[:, :, have:want])

    def _evict(self, n: int) -> None:
        if n == 0:
            return
        sinks = self.num_sink_tokens
        sink_values = self.value_rows.view()[:, :, :sinks].clone()
        super()._evict(n)
        if sinks:
            self.key_rows.rewrite(self._rotated_sinks(self.evicted))
            self.value_rows.rewrite(sink_values)

    def _rotated_sinks(self, evicted: int) -> torch.Tensor:
        sinks = self.sink_keys.view()
        return sinks if self.rope is None else self.rope.rotate(sinks, evicted)

    def _crop_to(self, length: int) -> None:
        self.key_rows.drop_back(self.seen - length)
        self.value_rows.drop_back(self.seen - length)
        self.sink_keys.drop_back(max(0, len(self.sink_keys) - length))

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        amounts, sinks = super().predict(tokens, shape), min(tokens, self.num_sink_tokens)
        first = capacity_for(sinks)  # rows that a prompt longer than the window is given for its sinks, before the rest comes
        if sinks and tokens > self.window_length <= first:
            amounts["reserved"] = (first - self.window_length) * shape.token_nbytes
        amounts["keys"] += sinks * shape.key_nbytes
        amounts["reserved"] += (self.num_sink_tokens - sinks) * shape.key_nbytes if tokens else 0
        return amounts

    def token_fates(self) -> list[tuple[str, int]]:
        sinks = min(self.num_sink_tokens, self.held)
        fates = (("sink", sinks), ("evicted", self.evicted), ("full", self.held - sinks))
        return [(fate, count) for fate, count in fates if count]


class QuantizedSinkLayer(Sinks, QuantizedWindowLayer):
    """As SinkLayer, what is behind the latest `residual_length` tokens in blocks of codes. The sinks stay as they came.

    They are rotated where they are read, by all that has been evicted: the window's keys stay as they are, and so do their codes.
    """

    settings = (*QuantizedWindowLayer.settings, "rotates")
    keeps_first = True

    def __init__(self, *arguments: Any, rope: Rope | None = None, **named: Any):
        super().__init__(*arguments, **named)
        self.rope = rope

    @property
    def num_sink_tokens(self) -> int:
        return self.first_tokens

    def refuse_drafts(self) -> None:
        """Always, as SinkLayer does."""
        raise ValueError(NO_DRAFTS)

    def _shown(self, side: str, states: Packed, new: int) -> Packed:
        hidden = self._hidden(states.shape[T], new)
        evicted = self.dropped + hidden
        if side == "key" and evicted and self.rotates and states.first is not None:
            states = states._replace(first=self._moved(side, states.first[:, :, : states.ahead], evicted))
        return states.without(hidden)

    def _shown_rows(self, side: str, rows: torch.Tensor, new: int) -> torch.Tensor:
        hidden = self._hidden(rows.shape[T], new)
        if not hidden + self.dropped:
            return rows
        first = self._moved(side, rows[:, :, : self.first_tokens], self.dropped + hidden)
        return torch.cat([first, rows[:, :, self.first_tokens + hidden :]], dim=T)

    def _moved(self, side: str, first: torch.Tensor, evicted: int) -> torch.Tensor:
        """The first tokens of one side, next to a window that so many tokens have left."""
        return self.rope.rotate(first, evicted) if side == "key" and self.rope is not None and evicted else first

    def token_fates(self) -> list[tuple[str, int]]:
        sinks = min(self.first_tokens, self.held)
        coded = max(0, self.origin + self.quantized - max(self.origin, sinks + self.evicted))
        fates = (("sink", sinks), ("evicted", self.evicted), ("quantized", coded), ("full", self.held - sinks - coded))
        return [(fate, count) for fate, count in fates if count]


def _check_rotation(rope: Rope | None, cache_kwargs: Mapping[str, Any] | None) -> None:
    size = (cache_kwargs or {}).get("partial_rotation_size")
    if size is not None and rope is not None and size != 2 * len(rope.frequencies):
        raise ValueError(f"partial_rotation_size is {size}, and by its config this model rotates {2 * len(rope.frequencies)} dims of each head")


class SinkCache(Cache):
    """Keep the first `num_sink_tokens` ("attention sinks") and the latest tokens, `window_length` in all.

    With `config` the sinks are rotated to stay next to the window, for every RoPE type of fixed frequencies; without
    one they keep their rotation, and a warning says so once. Lossy once seen > window_length. Layers that the model
    itself gives a sliding window keep that window. With `key_bits` and `value_bits` of 8, 4 or 2 what is behind the latest `residual_length` tokens is rounded, as in
    QuantizedCache, but for the sinks; so are the model's own windows. Padded rows are refused, by ValueError, before anything is stored:
    the padding would become the sinks; a 4-D mask of your own is none that a cache gets to see, so give it no padding there. Source: Xiao et al. 2023, arXiv 2309.17453, section 3.2. Raises ValueError, with the reason, on a model whose
    positions cannot be rotated and on num_sink_tokens >= window_length.
    """

    name = "sink"
    takes_left_padding = False

    def __init__(
        self,
        window_length: int = 256,
        num_sink_tokens: int = 4,
        config: PreTrainedConfig | None = None,
        *,
        key_bits: int = FULL,
        value_bits: int = FULL,
        residual_length: int = 64,
    ):
        first = SinkLayer(window_length, num_sink_tokens)  # raises on bad values now, not at the first token
        self.window_length, self.num_sink_tokens = window_length, num_sink_tokens = first.window_length, first.num_sink_tokens
        bits = (key_bits, value_bits, residual_length)
        config = None if config is None else decoder_config(config)
        reason = (why_not(config) if config else None) or why_not_window_bits(config, *bits, window_length - num_sink_tokens)
        if reason:
            raise ValueError(f"SinkCache: {reason}")
        make = functools.partial(_layer, window_length, num_sink_tokens, bits)
        if config is None:
            warnings.warn("SinkCache without config= cannot rotate the sinks; pass config=model.config for long streams", stacklevel=2)
            return super().__init__(None, make)
        rope = rope_for(config, "full_attention")
        own_window = windowed if key_bits == FULL else functools.partial(_own_window, bits)
        super().__init__(build_layers(config, {"full_attention": lambda **_: make(rope), **dict.fromkeys(WINDOWED_TYPES, own_window)}))


def _layer(window_length: int, num_sink_tokens: int, bits: tuple[int, int, int], rope: Rope | None = None) -> SinkLayer | QuantizedSinkLayer:
    if bits[0] == FULL:
        return SinkLayer(window_length, num_sink_tokens, rope)
    return QuantizedSinkLayer(**rounding_of(window_length, *bits, num_sink_tokens), window_length=window_length, rope=rope)


def _own_window(bits: tuple[int, int, int], sliding_window: int, **_: Any) -> WindowLayer | QuantizedWindowLayer:
    return window_of(sliding_window, True, rounding_of(sliding_window, *bits))


def why_not(config: PreTrainedConfig) -> str | None:
    """Why sinks do not suit this model, or None."""
    if reason := why_not_exact(config):
        return reason
    if odd := other_types(config):
        return f"{config.model_type} has layers of type {', '.join(odd)}, which choose what to attend to and would keep every token"
    if not FULL_TYPES & set(layer_types(config)):
        return f"{config.model_type} has no full-attention layer, and the mask of a model's own window would hide the sinks"
    try:
        rope_for(config, "full_attention")
    except RopeError as error:
        return f"its keys cannot be re-rotated: {error}"
    return None


def _why_not_values(config: PreTrainedConfig, parameters: Mapping[str, Any]) -> str | None:
    window, sinks = parameters["window_length"], parameters["num_sink_tokens"]
    if sinks >= window:
        return f"num_sink_tokens must be below window_length, got {sinks} of {window}"
    return why_not_window_bits(config, parameters["key_bits"], parameters["value_bits"], parameters["residual_length"], window - sinks)


def _label(window_length: int, num_sink_tokens: int, key_bits: int, value_bits: int, **_: Any) -> str:
    return f"Sink {num_sink_tokens} + {window_length - num_sink_tokens}" + bits_suffix(key_bits, value_bits)


def _verify(model: torch.nn.Module, cache: SinkCache) -> None:
    sinks = [index for index, layer in enumerate(cache.layers) if isinstance(layer, (SinkLayer, QuantizedSinkLayer))]
    verify_rope(model, cache.layers[sinks[0]].rope, sinks)


ENTRY = Entry(
    name="sink",
    title="Sink",
    summary="Keeps the first few tokens and a recent window: flat memory, fluent for ever, and the middle is forgotten.",
    cache_class=SinkCache,
    make=lambda config, **parameters: SinkCache(config=config, **parameters),
    parameters=(
        Parameter("window_length", "Window", "int", 256, "Tokens kept in all, sinks included.", minimum=8, maximum=32768, step=8),
        Parameter("num_sink_tokens", "Sinks", "int", 4, "First tokens kept for ever.", minimum=0, maximum=64),
        *WINDOW_BITS,
    ),
    lossy=True,
    can=all_but("crop", "drafts", "left padding", "compile", "export"),
    paper="https://arxiv.org/abs/2309.17453",
    why_not_model=why_not,
    why_not_values=_why_not_values,
    verify=_verify,
    label=_label,
)
