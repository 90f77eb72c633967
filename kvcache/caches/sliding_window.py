"""SlidingWindowCache: keep the last tokens only, on any model."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING

from ..architecture import WINDOWED_TYPES, decoder_config, other_types, why_not_exact, why_not_static
from ..attention import attendable
from ..cache import Cache, build_layers
from ..entry import Entry, Parameter, all_but
from ..layer import Layer, RowsLayer, T, append_both
from ..legacy import StaticNames
from ..predict import Shape, predicted_rows
from ..recurrent import has_states_alone
from ..validation import whole_number
from .static import StaticWindowLayer, checked_batch, checked_length, heads_of, place

DRAFT = 256  # tokens that an assistant may draft one by one


class WindowLayer(RowsLayer):
    """The last `window_length` tokens. Stores keys, values [B, H, held, D], held <= window_length.

    A single token attends to itself and the window_length - 1 before it. A chunk of n tokens attends to the
    window_length - 1 tokens before the chunk and, causally, to the chunk itself: tokens are evicted between calls. On
    a model's own sliding-window layers its mask makes every chunking equal; on full attention the chunking matters.
    """

    settings = ("window_length",)
    bounded = True

    def __init__(self, window_length: int, is_sliding: bool = False):
        super().__init__(is_sliding)
        self.window_length = whole_number("window_length", window_length, 2)
        self.masked = is_sliding  # does the model's own mask hide every token that this window forgets?
        self.record_past = False
        self.unsettled: int | None = None  # tokens since the last `crop`, but for the first piece; None before that

    @property
    def is_croppable(self) -> bool:
        """As decoding with drafts asks: while it lets go of nothing on its own."""
        return self.record_past

    def refuse_drafts(self) -> None:
        """Where the model does not mask the window: the tokens of a draft, fed at once, would see what came before it, and say other things than token by token."""
        if not self.masked:
            raise ValueError(
                f"a window of {self.window_length} tokens on full attention cannot decode with drafts (prompt lookup, an assistant): "
                "the tokens of a draft would see more than the window and could say something else; use a cache that keeps every token"
            )

    def activate_past_recording(self) -> None:
        """From now on let go of old tokens at each `crop` only, as decoding with drafts asks, so that it can go back."""
        self.record_past, self.unsettled = True, None

    def trim(self) -> None:
        self._evict(max(0, self.held - self.window_length))
        self.unsettled = None

    def reset(self) -> None:
        super().reset()
        self.record_past, self.unsettled = False, None

    def _drafting(self, n: int) -> bool:
        """Are the next `n` tokens still a draft's? Once DRAFT tokens have come with no `crop` they are not, since nothing says when drafts end."""
        if self.record_past:
            self.unsettled = 0 if self.unsettled is None else self.unsettled + n
            self.record_past = self.unsettled <= DRAFT
        return self.record_past

    @property
    def held(self) -> int:
        return len(self.key_rows)

    @property
    def evicted(self) -> int:
        """Tokens seen and no longer held."""
        return self.seen - self.held

    @property
    def crop_floor(self) -> int:
        return 0 if not self.evicted else min(self.seen, self.evicted + self.window_length - 1)

    def get_max_length(self) -> int:
        return self.window_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        attended = min(self.held, self.window_length - 1) + query_length
        return attended, self.seen + query_length - attended

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; return what the n tokens attend to, [B, H, min(held, window_length - 1) + n, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.key_rows.refuse(key_states)
        self.value_rows.refuse(value_states)
        n = key_states.shape[T]
        if self._drafting(n):
            return self._recorded(key_states, value_states)
        self._evict(max(0, self.held - self.window_length + 1))
        if n == 1:
            self._append(key_states, value_states)
            return attendable(self, *self.readable())
        attended = _joined(self.key_rows.view(), key_states), _joined(self.value_rows.view(), value_states)
        self.seen += n
        self._keep(*attended)
        return attended

    def _recorded(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attended = self.get_mask_sizes(key_states.shape[T])[0]
        self._append(key_states, value_states)
        return self.key_rows.view()[:, :, -attended:], self.value_rows.view()[:, :, -attended:]

    def _append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        append_both(self.key_rows, self.value_rows, keys, values)
        self.seen += keys.shape[T]

    def _keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold what stays of [B, H, n, D], the tokens a chunk attended to."""
        self.key_rows.replace(keys[:, :, -self.window_length :])
        self.value_rows.replace(values[:, :, -self.window_length :])

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        super().check_assigned(side, rows)
        if self.evicted and rows.shape[T] != self.held:
            raise ValueError(
                f"{side} of {rows.shape[T]} tokens cannot be assigned to a {type(self).__name__} that has seen {self.seen} and holds {self.held}: it could not tell "
                "which they are; assign as many, crop() the last ones, or reset() it and feed the tokens again"
            )

    def _evict(self, n: int) -> None:
        """Forget the `n` oldest tokens."""
        self.key_rows.drop_front(n)
        self.value_rows.drop_front(n)

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        return predicted_rows(min(tokens, self.window_length), shape)

    def token_fates(self) -> list[tuple[str, int]]:
        return [(fate, count) for fate, count in (("evicted", self.evicted), ("full", self.held)) if count]


def _joined(held: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new if held is None or held.shape[T] == 0 else torch.cat([held, new], dim=T)


class SlidingWindowCache(StaticNames, Cache):
    """Keep the last `window_length` tokens in every attention layer; without one, the model's own sliding window.

    With `max_cache_len` shapes are static, min(window_length, max_cache_len) tokens a layer in one piece, allocated now
    where batch size (`max_batch_size`, or `batch_size`) and device (or layer_device_map) are given; without it
    windows grow as they fill. Lossy on full-attention layers once seen > window_length, and without sinks a model may
    lose its thread there: see SinkCache. Decoding with drafts is refused where the window is not the model's own. Raises ValueError when there is neither a window_length nor a config with one.
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
    ):
        text = None if config is None else decoder_config(config)
        window_length = getattr(text, "sliding_window", None) if window_length is None else window_length
        if not window_length:
            raise ValueError("SlidingWindowCache needs window_length=, or a config whose model has a sliding window")
        window_length = WindowLayer(window_length).window_length  # raises on bad values now, not at the first token
        reason = None if text is None else why_not(text)
        if reason:
            raise ValueError(f"SlidingWindowCache: {reason}")
        self.takes_left_padding = text is None or text.model_type != "bloom"  # whose bias is counted over the mask, padding and evicted tokens too
        given = {"batch_size": checked_batch(batch_size, max_batch_size), "device": device, "dtype": dtype, "layer_device_map": layer_device_map}
        if max_cache_len is None:
            _refuse_allocation(given)
            super().__init__(None if text is None else _layers(text, window_length, WindowLayer), functools.partial(WindowLayer, window_length))
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


def _layers(config: PreTrainedConfig, window_length: int, layer: type[Layer], *native: Any, **native_kwargs: Any) -> list:
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
    make=lambda config, window_length: SlidingWindowCache(config, window_length=window_length),
    parameters=(
        Parameter("window_length", "Window", "int", 256, "Tokens kept, the newest included.", minimum=8, maximum=32768, step=8),
    ),
    lossy=True,
    can=all_but("crop", "drafts", "compile", "export"),
    paper="https://arxiv.org/abs/2004.05150",
    why_not_model=why_not,
    label=lambda window_length: f"Window {window_length}",
)
