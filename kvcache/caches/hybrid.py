"""HybridCache: static shapes for models whose layers alternate between full attention and a sliding window."""

from dataclasses import replace

from transformers import PreTrainedConfig

from ..architecture import WINDOWED_TYPES, layer_types, why_not_static
from ..entry import Entry, all_but
from .static import CAPACITY, StaticCache


def why_not(config: PreTrainedConfig) -> str | None:
    """Why this model has no use for two kinds of attention layers, or None."""
    if not set(layer_types(config)) & set(WINDOWED_TYPES):
        return f"{config.model_type} has no sliding-window layers that could alternate with full-attention ones; static does the same for it"
    return why_not_static(config)


class HybridCache(StaticCache):
    """Static full-attention layers of `max_cache_len` tokens and static windows of the window's own size.

    For Gemma 2 and 3 and every model whose layers alternate; constructed and refused as StaticCache is. Raises
    ValueError on a model without windows, where StaticCache says the same in fewer words.
    """

    name = "hybrid"
    why_not_model = staticmethod(why_not)


ENTRY = Entry(
    name="hybrid",
    title="Hybrid",
    summary="Reserves the full length for full-attention layers and only a window for sliding ones, as Gemma alternates them.",
    cache_class=HybridCache,
    make=lambda config, max_cache_len: HybridCache(config, max_cache_len=max_cache_len),
    parameters=(replace(CAPACITY, help="Tokens that full-attention layers have room for."),),
    can=all_but("crop", "drafts"),
    why_not_model=why_not,
    label=lambda max_cache_len: f"Hybrid {max_cache_len}",
)
