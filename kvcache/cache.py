"""The container: a table from layer type to layer class, filled from a model's config.

transformers names each layer's type; a cache says what it has for which type, and native layers serve the rest.
So a hybrid model is a row in a table, not a special case, and an architecture that nobody listed still works.
"""

from collections.abc import Callable, Mapping

import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    CacheLayerMixin,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
    StaticLayer,
    StaticSlidingWindowLayer,
    get_layer_types_and_kwargs,
)

from .layer import CropError, Layer, target_length

# layer type -> what makes our layer for it, called with transformers' keyword arguments for that type
LayerTable = Mapping[str, Callable[..., Layer]]
WINDOWED_TYPES = ("sliding_attention", "chunked_attention")


def decoder_config(model_or_config) -> PreTrainedConfig:
    """The text decoder's config of a model or a config."""
    config = getattr(model_or_config, "config", model_or_config)
    if not isinstance(config, PreTrainedConfig):
        raise TypeError(f"expected a transformers model or config, got {type(model_or_config).__name__}")
    return config.get_text_config(decoder=True)


def layer_types(config: PreTrainedConfig) -> list[str]:
    """transformers' type of each layer: full_attention, sliding_attention, linear_attention ..."""
    return get_layer_types_and_kwargs(config)[0]


def build_layers(config: PreTrainedConfig, table: LayerTable, native: Mapping[str, type] = DYNAMIC_LAYER_TYPE_MAPPING, **native_kwargs) -> list:
    """One cache layer per model layer: ours where `table` has the type, else transformers' own."""
    types, kwargs = get_layer_types_and_kwargs(config)
    return [table[t](**k) if t in table else native[t](**native_kwargs, **k) for t, k in zip(types, kwargs)]


class Cache(transformers.Cache):
    """Base of our caches: transformers' contract, plus what a conversation and a page need to know.

    `layers`: one per model layer; or `new_layer`, called for each further layer that a model without a config fills.
    """

    name = "cache"  # the catalog's name
    capacity: int | None = None  # most tokens it can ever see; None for no limit

    def __init__(self, layers: list | None = None, new_layer: Callable[[], Layer] | None = None):
        # Not super(): a subclass may also inherit one of transformers' caches, for its isinstance checks alone.
        transformers.Cache.__init__(self, layers=layers, layer_class_to_replicate=None if layers else new_layer)

    def held_length(self) -> int:
        """Tokens stored in the fullest attention layer."""
        return max((held_by(layer) for layer in self.layers), default=0)

    @property
    def crop_floor(self) -> int:
        """Smallest length that `crop` can go back to now; `reset()` to nothing is always possible."""
        return max((crop_floor_of(layer) for layer in self.layers), default=0)

    @property
    def bounded(self) -> bool:
        """Do the bytes stay bounded however long the stream is?"""
        return bool(self.layers) and all(is_bounded(layer) for layer in self.layers)

    @property
    def is_croppable(self) -> bool:
        """Can every token be taken back at any time? Windows evict, so they answer no."""
        return bool(self.layers) and not any(is_bounded(layer) for layer in self.layers)

    def crop(self, tokens: int) -> None:
        """Positive: keep that many tokens; negative: remove that many; 0: nothing to remove.

        Raises CropError before any layer has changed when one of them no longer holds what it would go back to.
        """
        seen = self.get_seq_length()
        length = target_length(seen, tokens)
        if length < min(seen, self.crop_floor):
            raise CropError(
                f"cannot go back to {length} of {seen} tokens: this {type(self).__name__} can drop at most its last "
                f"{seen - self.crop_floor}; reset() it and feed the tokens again"
            )
        for layer in self.layers:
            _crop_layer(layer, length)
            if isinstance(layer, Layer):
                layer.trim()

    def token_fates(self) -> list[tuple[str, int]]:
        """(fate, count) from the oldest to the newest token seen, in the first full-attention layer of ours."""
        ours = [layer for layer in self.layers if isinstance(layer, Layer)]
        chosen = next((layer for layer in ours if not layer.is_sliding), ours[0] if ours else None)
        if chosen is not None:
            return chosen.token_fates()
        seen, held = self.get_seq_length() if self.layers else 0, self.held_length()
        return [(fate, count) for fate, count in (("evicted", seen - held), ("full", held)) if count]


def held_by(layer) -> int:
    """Tokens stored by one layer, ours or native; 0 for layers without keys."""
    if isinstance(layer, Layer):
        return layer.held
    if not isinstance(layer, CacheLayerMixin) or not layer.is_initialized or layer.keys is None:
        return 0
    if isinstance(layer, StaticLayer):
        return min(int(layer.get_seq_length()), layer.max_cache_len)
    return layer.keys.shape[-2] if layer.keys.dim() == 4 else 0


def crop_floor_of(layer) -> int:
    """Smallest length one layer, ours or native, can be cropped to."""
    if isinstance(layer, Layer):
        return layer.crop_floor
    if isinstance(layer, DynamicSlidingWindowLayer):
        return layer.get_seq_length() if layer.get_seq_length() >= layer.sliding_window else 0
    if isinstance(layer, (StaticLayer, StaticSlidingWindowLayer)):
        return int(layer.get_seq_length())
    if isinstance(layer, LinearAttentionCacheLayerMixin) and any(layer.has_previous_state.values()):
        return 1 << 62  # a recurrent state cannot go back
    return 0


def is_bounded(layer) -> bool:
    """Does one layer's storage stop growing?"""
    if isinstance(layer, Layer):
        return layer.bounded
    if isinstance(layer, CacheLayerMixin):
        return bool(getattr(layer, "is_sliding", False))
    return True


def _crop_layer(layer, length: int) -> None:
    if isinstance(layer, Layer):
        return layer.crop(length) if 0 < length < layer.seen else (layer.reset() if length == 0 else None)
    surplus = layer.get_seq_length() - length if isinstance(layer, CacheLayerMixin) else 0
    if surplus > 0:
        layer.crop(-surplus)
