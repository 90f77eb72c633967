"""One graph of a token's step for every cache: all of the model but the cache's update and attention, which run in between as they do without it.

A cache that grows, rounds or evicts has no shapes that a graph could rely on. So the graph calls them by an operator of its own, in which the layer's update
and torch's attention find the cache that this thread is feeding. Neither the cache's kind nor its length is in the graph.
Source: vLLM's piecewise compilation splits a model at attention in the same way, https://docs.vllm.ai/en/latest/design/torch_compile/.
"""

from __future__ import annotations  # transformers.PreTrainedModel takes a second to import

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
import transformers

from ..architecture import cache_argument, decoder_config, layer_types
from .graph import graph

WHOLE = {"full_attention", "sliding_attention"}  # types of layers in which a single token attends to all that an update returns; in a chunked one a mask hides some
NAME = "kvcache_around"  # of the attention, as transformers knows it
_fed = threading.local()  # .cache: what the graph that runs on this thread feeds
_library = torch.library.Library("kvcache", "DEF")
_library.define("attend(Tensor query, Tensor key, Tensor value, int layer, float? scale) -> Tensor")


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float | None) -> torch.Tensor:
    """Give the cache one token's keys and values [B, H, 1, D], attend to all it returns with the query [B, Hq, 1, D]: [B, 1, Hq, D]. B is 1 but for a `Batch`."""
    keys, values = _fed.cache.update(key, value, layer)
    return attend_packed(query, keys, values, None, scale).contiguous()


def attend_packed(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """torch's attention of one token, query [B, Hq, 1, D], to keys and values [B, H, T, D], with the queries that share a key together: [B, 1, Hq, D]."""
    packed = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[3])  # [B, H, Hq / H, D]
    out = torch.nn.functional.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(query.shape[0], 1, query.shape[1], -1)


_library.impl("attend", _attend, "CompositeExplicitAutograd")


@torch.library.register_fake("kvcache::attend", lib=_library)
def _shape(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float | None) -> torch.Tensor:
    return query.new_empty(query.shape[0], 1, query.shape[1], value.shape[3])


def attend_around(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, scaling: float | None = None, **options: Any) -> tuple:
    """Attention as transformers calls it, by the operator. `key` and `value` are the new token's alone: see `Passing`."""
    odd = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if odd:
        raise ValueError(f"a compiled step attends without {odd[0]}, which this model gives its attention")
    return torch.ops.kvcache.attend(query, key, value, module.layer_idx, scaling), None


@functools.cache
def _registered() -> str:
    """The name under which transformers knows `attend_around`, registered at first use: importing what registers takes a second."""
    transformers.AttentionInterface.register(NAME, attend_around)
    transformers.AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)  # a single token attends to all that an update returns
    return NAME


class Passing:
    """What the graph takes for a cache: it hands on the token's own keys and values. Its lengths reach nothing, as positions are given and masks are none."""

    is_compileable = False
    is_initialized = True

    def __init__(self, layers: int) -> None:
        self.is_sliding = self.is_linear = self.is_dummy = (False,) * layers

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer: int) -> tuple[int, int]:
        return query_length, 0


def why_not_split(config: transformers.PreTrainedConfig) -> str | None:
    """Why a graph around its cache does not suit a model, or None."""
    config = decoder_config(config)
    odd = sorted(set(layer_types(config)) - WHOLE)
    return f"{config.model_type} has layers of type {', '.join(odd)}, around which no step is compiled" if odd else None


def forward_around(model: transformers.PreTrainedModel, backend: str | Callable) -> Callable:
    """The forward of a single token, compiled at its first call, on whatever cache is given. Attends to all that an update returns, which is right of this library's caches.

    model: one that nobody else uses, such as a `single_row.twin`: from now on it attends by the operator. Raises ValueError for a model that
    does not attend by sdpa, or is not to be told positions; when called, for other than one token of one row, and for a mask.
    """
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation != "sdpa":
        raise ValueError(f"the model attends by {config._attn_implementation}, and a step is compiled for sdpa")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError("the model's forward takes no position_ids")
    config._attn_implementation = _registered()
    keyword, passing = cache_argument(model), Passing(config.num_hidden_layers)
    compiled = graph(model.forward, dynamic=False, backend=backend)

    def forward(**arguments: Any) -> Any:
        if arguments["input_ids"].shape != (1, 1) or arguments.get("attention_mask") is not None:
            raise ValueError("a step compiled around its cache takes one token of one row, without a mask")
        cache = arguments.pop(keyword)
        cache.get_mask_sizes(1, 0)  # where a cache refuses a forward, as the model's own mask would ask
        arguments["position_ids"] = torch.full((1, 1), int(cache.get_seq_length()), device=arguments["input_ids"].device)
        _fed.cache = cache
        try:
            return compiled(**arguments, **{keyword: passing})
        finally:
            del _fed.cache

    return forward


def forward_of_many(model: transformers.PreTrainedModel, backend: str | Callable) -> Callable:
    """The forward of one token a row on a `Batch` of two rows or more, compiled at its first call for any number of them. As `forward_around` in all else."""
    config = model.config.get_text_config(decoder=True)
    config._attn_implementation = _registered()
    keyword, passing = cache_argument(model), Passing(config.num_hidden_layers)
    compiled = graph(model.forward, dynamic=True, backend=backend)

    def forward(**arguments: Any) -> Any:
        _fed.cache = arguments.pop(keyword)
        try:
            return compiled(**arguments, **{keyword: passing})
        finally:
            del _fed.cache

    return forward
