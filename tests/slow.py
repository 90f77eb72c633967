"""Slow obvious formulas of what each lossy cache forgets: keep everything, and work out at each forward what is attended to.

A reference for whole caches, through any model and through `generate`: nothing here evicts, packs, or writes in place.
"""

from collections.abc import Callable

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

from kvcache.caches.quantized import QuantizedLayer
from kvcache.caches.sink import SinkLayer
from kvcache.caches.sliding_window import WindowLayer

Past = Callable[[torch.Tensor, str], torch.Tensor]


class SlowLayer(CacheLayerMixin):
    """All keys and values that came; `past(rows, side)` is what of them the next tokens attend to, besides themselves."""

    is_croppable = True

    def __init__(self, past: Past):
        super().__init__()
        self.past = past

    def lazy_initialization(self, key_states, value_states):
        self.keys, self.values, self.is_initialized = key_states[:, :, :0], value_states[:, :, :0], True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        attended = torch.cat([self.past(self.keys, "key"), key_states], dim=2), torch.cat([self.past(self.values, "value"), value_states], dim=2)
        self.keys, self.values = torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)
        return attended

    def get_seq_length(self):
        return self.keys.shape[2] if self.is_initialized else 0

    def get_max_length(self):
        return -1

    def get_mask_sizes(self, query_length):
        attended = query_length + (self.past(self.keys, "key").shape[2] if self.is_initialized else 0)
        return attended, self.get_seq_length() + query_length - attended

    def crop(self, tokens):
        length = tokens if tokens > 0 else self.get_seq_length() + tokens
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


def window(layer: WindowLayer) -> Past:
    """The latest window_length - 1 tokens."""
    return lambda rows, side: rows[:, :, -(layer.window_length - 1) :]


def sinks(layer: SinkLayer) -> Past:
    """The first tokens and the latest, window_length - 1 in all, the first ones' keys rotated by what lies between."""
    count, room = layer.num_sink_tokens, layer.window_length - 1 - layer.num_sink_tokens

    def past(rows, side):
        gap = rows.shape[2] - count - room
        if gap <= 0:
            return rows
        first = rows[:, :, :count]
        return torch.cat([layer.rope.rotate(first, gap) if side == "key" else first, rows[:, :, -room:]], dim=2)

    return past


class RoundedLayer(SlowLayer):
    """Every token; whole blocks behind the `first_tokens`, once they are behind the latest `residual_length` too, as they come back from their codes.

    What is rounded stays so when others go: of a block that a `crop` cuts, the kept tokens keep their rounded values.
    """

    def __init__(self, layer: QuantizedLayer):
        super().__init__(lambda rows, side: self.rounded(rows, side, self.due()))
        self.layer, self.coded, self.is_recording = layer, 0, False

    def activate_past_recording(self):
        self.is_recording = True

    def due(self) -> int:
        """Tokens that the next ones see rounded."""
        return max(self.coded, (self.get_seq_length() - self.layer.first_tokens - self.layer.residual_length) // self.layer.block * self.layer.block)

    def rounded(self, rows, side, coded):
        scheme, first = self.layer.scheme(side, rows.shape[3]), self.layer.first_tokens
        blocks = [scheme.decode(scheme.encode(block), self.layer.block, rows.dtype) for block in rows[:, :, first : first + coded].split(self.layer.block, dim=2) if coded]
        return torch.cat([rows[:, :, :first], *blocks, rows[:, :, first + coded :]], dim=2)

    def update(self, key_states, value_states, *args, **kwargs):
        self.coded = self.due()
        return super().update(key_states, value_states, *args, **kwargs)

    def crop(self, tokens):
        length = tokens if tokens > 0 else self.get_seq_length() + tokens
        coded = self.coded if self.is_recording else self.due()
        self.coded = max(0, min(coded, length - self.layer.first_tokens)) // self.layer.block * self.layer.block
        kept = self.layer.first_tokens + self.coded if self.coded else 0
        self.keys, self.values = (
            torch.cat([rows[:, :, :kept], self.rounded(rows, side, coded)[:, :, kept:length]], dim=2)
            for rows, side in ((self.keys, "key"), (self.values, "value"))
        )


FORMULAS = {
    SinkLayer: lambda layer: SlowLayer(sinks(layer)),
    WindowLayer: lambda layer: SlowLayer(window(layer)),
    QuantizedLayer: RoundedLayer,
}


def slow(cache) -> transformers.Cache:
    """A fresh cache that gives what this one, of one of the kinds above on a model of full attention, should give."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return transformers.EncoderDecoderCache(slow(cache.self_attention_cache), transformers.DynamicCache())
    result = transformers.DynamicCache()
    result.layers = [FORMULAS[type(layer)](layer) for layer in cache.layers]
    return result
