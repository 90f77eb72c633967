"""SlidingWindowCache: keep the last tokens only, on any model."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING

from ..architecture import WINDOWED_TYPES, decoder_config, other_types, why_not_exact, why_not_static
from ..cache import Cache, build_layers
from ..entry import Entry, Parameter, all_but
from ..layer import Layer
from ..legacy import StaticNames
from ..recurrent import has_states_alone
from ..window import WindowLayer
from .quantized import FULL, WINDOW_BITS, bits_suffix, rounding_of, why_not_window_bits, window_of
from .static import StaticWindowLayer, checked_batch, checked_length, heads_of, place


class SlidingWindowCache(StaticNames, Cache):
    """Keep the last `window_length` tokens in every attention layer; without one, the model's own sliding window.

    With `max_cache_len` shapes are static, min(window_length, max_cache_len) tokens a layer in one piece, allocated now
    where batch size (`max_batch_size`, or `batch_size`) and device (or layer_device_map) are given; without it
    windows grow as they fill. Lossy on full-attention layers once seen > window_length, and without sinks a model may
    lose its thread there: see SinkCache. With `key_bits` and `value_bits` of 8, 4 or 2 what is behind the latest `residual_length` tokens is rounded, as in
    QuantizedCache; blocks of codes go once the window has left them whole. Decoding with drafts is refused where the window is not the model's own. Raises ValueError when there is neither a window_length nor a config with one.
    """

    name = "sliding_window"

    def __init__(
        self,
        config: PreTrainedConfig | None = None,
        batch_size: int | None = None,
        max_cache_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        max_batch_size: int | None = None,
        layer_device_map: Mapping[int, torch.device | str] | None = None,
        *,
        window_length: int | None = None,
        key_bits: int = FULL,
        value_bits: int = FULL,
        residual_length: int = 64,
    ):
        text = None if config is None else decoder_config(config)
        window_length = getattr(text, "sliding_window", None) if window_length is None else window_length
        if not window_length:
            raise ValueError("SlidingWindowCache needs window_length=, or a config whose model has a sliding window")
        window_length = WindowLayer(window_length).window_length  # raises on bad values now, not at the first token
        bits = (key_bits, value_bits, residual_length)
        reason = (why_not(text) if text is not None else None) or why_not_window_bits(text, *bits, window_length)
        if reason:
            raise ValueError(f"SlidingWindowCache: {reason}")
        self.takes_left_padding = text is None or text.model_type != "bloom"  # whose bias is counted over the mask, padding and evicted tokens too
        given = {"batch_size": checked_batch(batch_size, max_batch_size), "device": device, "dtype": dtype, "layer_device_map": layer_device_map}
        if max_cache_len is None:
            _refuse_allocation(given)
            make = WindowLayer if key_bits == FULL else functools.partial(_rounded, bits)
            super().__init__(None if text is None else _layers(text, window_length, make), functools.partial(make, window_length))
        elif key_bits != FULL:
            raise ValueError(f"SlidingWindowCache of static shapes (max_cache_len=) rounds nothing: leave key_bits and value_bits at {FULL}")
        elif text is None:
            raise ValueError("SlidingWindowCache of static shapes (max_cache_len=) needs config=")
        elif reason := why_not_static(text):
            raise ValueError(f"SlidingWindowCache of static shapes: {reason}")
        else:
            max_cache_len = checked_length(text, max_cache_len)
            window_length = min(window_length, max_cache_len)
            super().__init__(_layers(text, window_length, StaticWindowLayer, STATIC_LAYER_TYPE_MAPPING, max_cache_len=max_cache_len))
            self.max_cache_len, (self.num_key_value_heads, self.head_dim) = max_cache_len, heads_of(text)
            place(self.layers, text, **given)

    def why_no_padding(self, left: bool) -> str:
        """Why padded rows go wrong on BLOOM."""
        return "bloom counts its position bias over the whole mask, which no longer fits the tokens held once some are evicted"


def why_not(config: PreTrainedConfig) -> str | None:
    """Why a window does not suit this model, or None."""
    if getattr(config, "relative_attention_num_buckets", None):  # measured on T5: logits off by 19 % once a token is gone
        return f"{config.model_type} biases by the distance between tokens and counts it over those held: with some evicted it would be wrong"
    if odd := other_types(config):
        return f"{config.model_type} has layers of type {', '.join(odd)}, which choose what to attend to and would keep every token"
    if has_states_alone(config):
        return f"{config.model_type} has recurrent states and no keys and values of which a window could be kept; 'mamba' is its cache"
    return why_not_exact(config)


def _rounded(bits: tuple[int, int, int], window_length: int, is_sliding: bool = False) -> Layer:
    return window_of(window_length, is_sliding, rounding_of(window_length, *bits))


def _why_not_values(config: PreTrainedConfig, parameters: Mapping[str, Any]) -> str | None:
    return why_not_window_bits(config, parameters["key_bits"], parameters["value_bits"], parameters["residual_length"], parameters["window_length"])


def _label(window_length: int, key_bits: int, value_bits: int, **_: Any) -> str:
    return f"Window {window_length}" + bits_suffix(key_bits, value_bits)


def _layers(config: PreTrainedConfig, window_length: int, layer: Callable[..., Layer], *native: Any, **native_kwargs: Any) -> list:
    def own_window(sliding_window: int, **_: Any) -> Layer:
        made = layer(min(window_length, sliding_window), True)
        made.masked = window_length >= sliding_window
        return made

    table = {"full_attention": lambda **_: layer(window_length, False), **dict.fromkeys(WINDOWED_TYPES, own_window)}
    return build_layers(config, table, *native, **native_kwargs)


def _refuse_allocation(given: Mapping[str, Any]) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(f"SlidingWindowCache takes {', '.join(names)} to allocate up front and then needs max_cache_len= too")


ENTRY = Entry(
    name="sliding_window",
    title="Sliding window",
    summary="Keeps the most recent tokens and forgets the rest, so memory stays flat however long you talk.",
    cache_class=SlidingWindowCache,
    make=lambda config, **parameters: SlidingWindowCache(config, **parameters),
    parameters=(
        Parameter("window_length", "Window", "int", 256, "Tokens kept, the newest included.", minimum=8, maximum=32768, step=8),
        *WINDOW_BITS,
    ),
    lossy=True,
    can=all_but("crop", "drafts", "compile", "export"),
    paper="https://arxiv.org/abs/2004.05150",
    why_not_model=why_not,
    why_not_values=_why_not_values,
    label=_label,
)
