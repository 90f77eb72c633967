"""The Learn tab: one card per catalog entry, its ribbon drawn from the cache itself."""
from __future__ import annotations

import warnings
from collections.abc import Mapping
from html import escape
from typing import Any

import torch
from transformers import LlamaConfig

from kvcache.entry import OPERATIONS

from . import token_ribbon
from .forms import info_text, why_not

SAMPLE_TOKENS = 400
INTRODUCTION = (
    "To write the next token a transformer looks back at all earlier ones. It keeps a key and a value vector for each of "
    "them, in every layer, so that they need not be computed again: that is the KV cache. It grows with every token, and "
    "in a long conversation it can outweigh the model. Each cache below answers in its own way what to keep, in which "
    "precision, and what to let go. Each card shows what its cache does, with the settings it starts with, to a conversation "
    f"of {SAMPLE_TOKENS} tokens: oldest first."
)


def lead_html() -> str:
    """What a cache is, in a paragraph."""
    return f'<p class="kv-lead">{escape(INTRODUCTION)}</p>'


def cards_html(entries: Mapping[str, Any]) -> str:
    """All cards, in the order of the catalog."""
    return f'<div class="kv-cards">{"".join(card_html(entry) for entry in entries.values())}</div>'


def card_html(entry) -> str:
    """One cache: what it is for, what it keeps, what can be set, what it can do, where it comes from."""
    loss = "Forgets or rounds: replies can differ from the full cache." if entry.lossy else "Exact: replies are those of the model run without a cache."
    reason = entry.why_not_here()
    parts = [
        f"<h3>{escape(entry.title)}</h3>", f"<p>{escape(entry.summary)}</p>",
        f'<p class="kv-warning">{escape(reason)}</p>' if reason else sample_ribbon(entry),
        f'<p class="kv-quiet">{loss}</p>', _parameters(entry), _operations(entry),
        f'<p><a href="{escape(entry.paper)}" target="_blank" rel="noopener">The paper</a></p>' if entry.paper else "",
    ]
    return f'<article class="kv-card kv-learn">{"".join(parts)}</article>'


def _parameters(entry) -> str:
    rows = "".join(f"<dt>{escape(p.label)} <code>{escape(p.name)}</code></dt><dd>{escape(info_text(p))} Starts at {p.default}.</dd>"
                   for p in entry.parameters)
    return f"<dl>{rows}</dl>" if rows else '<p class="kv-quiet">Nothing to set.</p>'


def _operations(entry) -> str:
    refused = [words for name, words in OPERATIONS.items() if name not in entry.can]
    return f'<p class="kv-quiet">Refuses, with the reason: {escape("; ".join(refused))}.</p>' if refused else ""


def sample_ribbon(entry, tokens: int = SAMPLE_TOKENS) -> str:
    """What this cache, with the settings it starts with, has done to each of `tokens` tokens; "" where it can't tell."""
    config = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=32,
                         vocab_size=8, intermediate_size=8)
    if why_not(entry, config):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an offloading cache says that it has nowhere to offload to
            cache = entry.build(config)
            for _ in range(tokens // 20):
                cache.update(torch.zeros(1, 1, 20, 32), torch.zeros(1, 1, 20, 32), 0)  # [B, H, T, D]
        return token_ribbon.ribbon_html(cache.token_fates(), bits=getattr(cache, "bits", None))
    except (ValueError, RuntimeError, AttributeError):
        return ""
