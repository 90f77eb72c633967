"""Compact a filled cache: have the model repeat what it has read, and keep the tokens that any query needed."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from .attention import hand_over
from .cache import Cache
from .caches.evicting import BUDGET, PolicyLayer, RoundedPolicyLayer
from .catalog import create
from .feed import feed
from .kernels.weights import attention_and_most
from .layer import Layer, Stored
from .policies import COMPACTING, Held
from .recurrent import States

PIECE = 1024  # tokens repeated at once
AGAIN = 8  # of the piece before, by which the model finds where it is
FIRST, LAST = 4, 8  # tokens that stay in any case: what comes later stays whole


@torch.no_grad()
def compact(model: torch.nn.Module, cache: Cache, ids: torch.Tensor, budget: int | float, policy: str = "kvzip", instruction: Sequence[int] = (), key_bits: int = 16, value_bits: int = 16) -> Cache:
    """A copy of a filled cache with `budget` of its tokens in each key head of full-attention layers: those that the model needs most to repeat `ids` [B, T], all that the cache has seen.

    `budget`: a number of tokens, or the share of those seen; the first 4 and the latest 8 stay in any case. `instruction`: ids of a sentence that asks to repeat the text, put before
    each piece that is repeated, which helps models that follow instructions. What comes later is kept whole. Any cache of ours that has evicted nothing, quantised ones
    too, gives an evicting one, in full precision or, of a cache in full precision, of `key_bits` and `value_bits`; the one given is left as it is. It costs a second prefill. Raises
    ValueError for other ids than were seen, a cache that has evicted tokens, codes that would be rounded again, and a model that does not attend by sdpa. Source: KVzip, Kim et al. 2025, arXiv 2505.23416, with as many tokens in every head.
    """
    _check(cache, ids, policy)
    made = create("evicting", model, policy=policy, key_bits=key_bits, value_bits=value_bits)
    if reason := _why_not(cache, made):
        raise ValueError(f"this {type(cache).__name__} cannot be compacted: {reason}")
    tokens, budget = ids.shape[1], BUDGET.check(budget)
    count = min(tokens, max(budget if isinstance(budget, int) else round(budget * tokens), FIRST + LAST))
    scores = _needed(model, cache, ids, list(instruction))
    for index, layer in enumerate(cache.layers):
        if index in scores:
            _fill(made.layers[index], layer, scores[index], count)
        elif isinstance(layer, Stored):
            made.layers[index] = layer.fork()
    made.shift = cache.shift
    return made


def _check(cache: Any, ids: torch.Tensor, policy: str) -> None:
    if policy not in COMPACTING:
        raise ValueError(f"a cache is compacted by {' or '.join(COMPACTING)}, got policy {policy!r}; the policies of kvcache.create('evicting', ...) choose while tokens come")
    if not isinstance(cache, Cache):
        raise ValueError(f"compact takes a cache of kvcache's, got {type(cache).__name__}")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.shape[1] != cache.tokens_seen or not ids.shape[1]:
        raise ValueError(f"ids must be all {cache.tokens_seen} tokens that the cache has seen, [B, {cache.tokens_seen}], got {list(getattr(ids, 'shape', []))}")


def _why_not(cache: Cache, made: Cache) -> str | None:
    if len(cache.layers) != len(made.layers):
        return f"it has {len(cache.layers)} layers and the model {len(made.layers)}"
    for layer, new in zip(cache.layers, made.layers):
        if not isinstance(new, PolicyLayer) and type(layer) is not type(new):
            return f"it has a {type(layer).__name__} where an evicting cache of this model has a {type(new).__name__}"
        if isinstance(new, PolicyLayer) and (not isinstance(layer, Layer) or isinstance(new, States)):
            return f"its {type(layer).__name__} holds more than keys and values"
        if isinstance(new, PolicyLayer) and layer.held != layer.seen:
            return f"it has evicted {layer.seen - layer.held} of {layer.seen} tokens already"
        if isinstance(new, RoundedPolicyLayer) and any(fate == "quantized" for fate, _ in layer.token_fates()):
            return "it has rounded tokens already, and none is rounded twice: leave key_bits and value_bits at 16, or compact a cache in full precision"
    return None


def _needed(model: torch.nn.Module, cache: Cache, ids: torch.Tensor, instruction: list[int]) -> dict[int, torch.Tensor]:
    """By layer of full attention, the most attention [B, H, T] that each key got while the ids were repeated."""
    most: dict[int, torch.Tensor] = {}
    for start in range(0, ids.shape[1], PIECE):
        asked = torch.tensor(instruction, dtype=ids.dtype, device=ids.device).expand(len(ids), -1)
        listened = cache.fork()
        listened.layers = [Listener(layer) if isinstance(layer, Layer) and not layer.is_sliding else layer for layer in listened.layers]
        feed(model, torch.cat([asked, ids[:, max(0, start - AGAIN) : start + PIECE]], dim=1), listened)
        for index, layer in enumerate(listened.layers):
            if isinstance(layer, Listener):
                most[index] = layer.most if index not in most else torch.maximum(most[index], layer.most)
    return most


class Listener(CacheLayerMixin):
    """Attends in the place of a layer, and remembers the most attention [B, H, T] that each key it held at first gets from any query."""

    needs_query, why_query, is_sliding = True, "is compacted by what queries attend to", False

    def __init__(self, layer: Layer):
        self.layer, self.tokens, self.is_initialized = layer, layer.seen, True
        self.most: torch.Tensor = torch.zeros(())

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Its layer is filled."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.layer.update(key_states, value_states)
        return hand_over(self, *self.layer.readable(), key_states.shape[2])

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float | None, is_causal: bool) -> torch.Tensor:
        out, most = attention_and_most(query, keys, values, mask, query.shape[3] ** -0.5 if scale is None else scale, is_causal)
        most = most[:, :, : self.tokens]
        self.most = torch.maximum(self.most.to(most), most)
        return out

    def get_seq_length(self) -> int:
        return self.layer.get_seq_length()

    def get_max_length(self) -> int:
        return self.layer.get_max_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.layer.get_mask_sizes(query_length)


def _fill(made: PolicyLayer, layer: Layer, most: torch.Tensor, count: int) -> None:
    """Have a layer of the new cache hold `count` tokens of the old one's in each key head, those its policy scores highest by the most attention [B, H, T] that they got."""
    keys, values = layer.readable()
    places = made.best(Held(keys, values, layer.seen, count, FIRST, LAST, attention=most)).sort(dim=-1).values
    kept = {name: rows.gather(2, places[..., None].expand(*places.shape, rows.shape[3])) for name, rows in (("key_rows", keys), ("value_rows", values))}
    made.restore(kept, layer.header())
    made.round()
