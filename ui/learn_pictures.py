"""What a cache does to a conversation, drawn from the cache itself: a ribbon for each kind of layer that it has."""
from __future__ import annotations

import warnings
from html import escape
from typing import Any

import torch
from transformers import BambaConfig, Gemma2Config, LlamaConfig, Mamba2Config, PreTrainedConfig, T5Config

from kvcache.recurrent import States

from . import token_ribbon

TOKENS = 400
CHUNK = 40
SOURCE = 120  # tokens that the encoder has read, where there is one
HEADS, HEAD_DIM = 8, 32
_SIZES = {"hidden_size": 32, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM, "vocab_size": 8, "intermediate_size": 8}
MODELS: tuple[PreTrainedConfig, ...] = (  # the first that a cache suits is what its picture is of
    LlamaConfig(**_SIZES, num_hidden_layers=1),
    Gemma2Config(**_SIZES, num_hidden_layers=2, sliding_window=128, layer_types=["full_attention", "sliding_attention"]),
    Mamba2Config(hidden_size=32, num_hidden_layers=1, num_heads=4, head_dim=16, state_size=8, vocab_size=8),
    BambaConfig(**{**_SIZES, "num_hidden_layers": 2}, attn_layer_indices=[0], mamba_n_heads=4, mamba_d_head=16),
    T5Config(d_model=32, d_kv=HEAD_DIM, num_layers=1, num_heads=HEADS, d_ff=8, vocab_size=8),
)


def picture_html(entry: Any, tokens: int = TOKENS) -> str:
    """What this cache, with the settings it starts with, has done to each of `tokens` tokens, one ribbon a kind of layer."""
    config = next(config for config in MODELS if entry.why_not_alone(config) is None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an offloading cache says that it has nowhere to offload to
        cache = entry.build(config)
        fates = _fates(cache, tokens)
    bits, shares = getattr(cache, "bits", None), cache.held_shares() if hasattr(cache, "held_shares") else None
    if shares is not None:
        return token_ribbon.shares_html(shares)
    return "".join(_titled(title) + token_ribbon.ribbons_html([("", runs)], bits=bits) for title, runs in fates)


def _titled(title: str) -> str:
    return f'<p class="kv-quiet kv-of-layer">{escape(title)}</p>' if title else ""


def _fates(cache: Any, tokens: int) -> list[tuple[str, list[tuple[str, int]]]]:
    """(kind of layer, what became of its tokens), the kind "" where there is one alone."""
    if hasattr(cache, "self_attention_cache"):
        return [("what the decoder says", _of_layer(cache.self_attention_cache, 0, tokens)), ("the text that the encoder has read", [("full", SOURCE)])]
    titles = [_title(layer) for layer in cache.layers]
    return [(title if len(titles) > 1 else "", _of_layer(cache, index, tokens)) for index, title in enumerate(titles)]


def _title(layer: Any) -> str:
    if isinstance(layer, States):
        return "a recurrent layer"
    return "a sliding-window layer" if layer.is_sliding else "a full-attention layer"


def _of_layer(cache: Any, index: int, tokens: int) -> list[tuple[str, int]]:
    if isinstance(cache.layers[index], States):
        return [("state", tokens)]
    noise = torch.Generator().manual_seed(index)
    for _ in range(tokens // CHUNK):
        query, keys, values = torch.randn(3, 1, HEADS, CHUNK, HEAD_DIM, generator=noise)
        torch.nn.functional.scaled_dot_product_attention(query, *cache.update(keys, values, index))  # some choose by what the query attends to
    return cache.layers[index].token_fates()
