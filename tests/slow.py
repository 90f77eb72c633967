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


def rounded(layer: QuantizedLayer) -> Past:
    """Every token, whole blocks of those behind the latest `residual_length` as they come back from their codes."""

    def past(rows, side):
        tokens = max(0, rows.shape[2] - layer.residual_length) // layer.block * layer.block
        scheme = layer.scheme(side, rows.shape[3])
        blocks = [scheme.decode(scheme.encode(block), layer.block, rows.dtype) for block in rows[:, :, :tokens].split(layer.block, dim=2) if tokens]
        return torch.cat([*blocks, rows[:, :, tokens:]], dim=2)

    return past


FORMULAS = {SinkLayer: sinks, WindowLayer: window, QuantizedLayer: rounded}


def slow(cache) -> transformers.Cache:
    """A fresh cache that gives what this one, of one of the kinds above on a model of full attention, should give."""
    return transformers.Cache(layers=[SlowLayer(FORMULAS[type(layer)](layer)) for layer in cache.layers])
