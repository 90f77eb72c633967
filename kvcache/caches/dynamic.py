"""DynamicCache: keep everything, in buffers that grow without copying their history at each token."""

from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import WINDOWED_TYPES, decoder_config
from ..attention import attendable
from ..cache import Cache, build_layers
from ..entry import Entry, all_but
from ..layer import RowsLayer, T, append_both
from ..predict import Shape, predicted_rows
from ..window import WindowLayer


class GrowingLayer(RowsLayer):
    """All tokens. Stores keys, values [B, H, seen, D] at the front of buffers with some rows spare, see `capacity_for`."""

    is_croppable = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; return all keys and values [B, H, seen, D] as views, a single token's as `CachedStates` where that is faster."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        append_both(self.key_rows, self.value_rows, key_states, value_states)
        keys, values, n = self.key_rows.view(), self.value_rows.view(), key_states.shape[T]
        self.seen += n
        return attendable(self, keys, values) if n == 1 else (keys, values)

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        return predicted_rows(tokens, shape)


def windowed(sliding_window: int, **_: Any) -> WindowLayer:
    """The layer for a model's own sliding-window or chunked attention."""
    return WindowLayer(sliding_window, is_sliding=True)


LAYERS = {"full_attention": lambda **_: GrowingLayer(), **dict.fromkeys(WINDOWED_TYPES, windowed)}


class DynamicCache(Cache):
    """Keep every token's keys and values; the model's own sliding-window layers keep their window.

    Without a `config`, every layer keeps everything, which is right for any model and larger for windowed ones.
    `num_hidden_layers` says nothing, as in 4.48: layers come with their first tokens. `offloading`, as T5Gemma's `generate`
    makes its own of a cache's class, must be False. Raises ValueError where it is not.
    """

    name = "dynamic"

    def __init__(self, config: PreTrainedConfig | None = None, num_hidden_layers: int | None = None, *, offloading: bool = False):
        if offloading:
            raise ValueError("a DynamicCache keeps its layers where they compute; kvcache.OffloadedCache(config) has them wait in the host's memory")
        layers = None if config is None else build_layers(decoder_config(config), LAYERS)
        super().__init__(layers, GrowingLayer)


ENTRY = Entry(
    name="dynamic",
    title="Dynamic",
    summary="Keeps every token in full precision and grows with the conversation. Nothing is lost, nothing is saved.",
    cache_class=DynamicCache,
    make=DynamicCache,
    can=all_but("compile", "export"),
)
