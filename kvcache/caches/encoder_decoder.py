"""EncoderDecoderCache: any cache for what the decoder says, a plain one for what the encoder gave."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DummyLayer, DynamicLayer

from ..architecture import decoder_config
from ..cache import Cache, Made, crop_floor_of, is_bounded, row_count
from ..entry import Entry, Parameter
from ..layer import target_length
from ..memory import LayerMemory, Memory, measure_memory
from ..predict import predict_layer, shapes_of
from ..validation import whole_number
from . import dynamic, hybrid, offloaded, offloaded_static, quantized, sink, sliding_window, static
from .dynamic import DynamicCache, GrowingLayer

SIDES = ("self", "cross")
Tensors = tuple[torch.Tensor | None, ...]


class EncoderDecoderCache(transformers.EncoderDecoderCache):
    """`EncoderDecoderCache(self_attention_cache, cross_attention_cache)` for T5, BART, Whisper and every model with cross-attention.

    `self_attention_cache`: any cache, ours or transformers'. `cross_attention_cache`: a DynamicCache(), since models read the encoder's
    keys and values [B, H, source, D] straight from its layers: codes, windows, spare rows and tensors that lie on
    another device would all be taken for them. One argument instead of two: tuples (self keys, self values, cross
    keys, cross values) by layer. `crop` takes back the decoder's tokens and leaves the encoder's alone. Raises
    ValueError on a cross_attention_cache of another kind, and on a window without config= for self-attention.
    """

    name = "encoder_decoder"
    parameters: dict[str, Any] | None = None  # the catalog's, of a cache that the catalog made
    made_for: Made | None = None  # the model that `create` was given
    shift = None  # no such model places its tokens among pictures
    save, refuse_torn = Cache.save, Cache.refuse_torn
    seen_tokens = Cache.seen_tokens
    get_max_cache_shape = Cache.get_max_cache_shape
    get_usable_length = Cache.get_usable_length

    def __init__(self, self_attention_cache: transformers.Cache | Iterable, cross_attention_cache: transformers.Cache | None = None):
        caches = (self_attention_cache, cross_attention_cache)
        if cross_attention_cache is None:
            caches = _from_tuples(self_attention_cache)
        if not all(isinstance(cache, transformers.Cache) for cache in caches):
            raise TypeError(f"EncoderDecoderCache takes a self-attention and a cross-attention cache, got {[type(c).__name__ for c in caches]}")
        reason = why_not_self(caches[0]) or why_not_cross(caches[1])
        if reason:
            raise ValueError(f"EncoderDecoderCache: {reason}")
        super().__init__(*caches)

    @property
    def sides(self) -> tuple[transformers.Cache, transformers.Cache]:
        """The self-attention cache and the cross-attention cache."""
        return self.self_attention_cache, self.cross_attention_cache

    @property
    def layers(self) -> tuple:
        """The decoder's own layers, then those of cross-attention; each side has its own list."""
        return (*self.self_attention_cache.layers, *self.cross_attention_cache.layers)

    @property
    def capacity(self) -> int | None:
        """Most of the decoder's tokens it can ever see; None for no limit."""
        return getattr(self.self_attention_cache, "capacity", None)

    @property
    def takes_left_padding(self) -> bool:
        """Are the decoder's rows right whose first tokens are padding?"""
        return getattr(self.self_attention_cache, "takes_left_padding", True)

    def why_no_padding(self, left: bool) -> str:
        """Why it does not take them."""
        return self.self_attention_cache.why_no_padding(left)

    def check_dynamic_cache(self, method: str) -> None:
        """Nothing to refuse before `crop` and the batch operations: each side does them, or says itself why not."""

    @property
    def torn(self) -> str:
        """Why the decoder's layers may hold parts of a forward that others do not, or ""."""
        return getattr(self.self_attention_cache, "torn", "")

    @property
    def tokens_seen(self) -> int:
        """Tokens of the decoder's own seen."""
        return int(self.self_attention_cache.get_seq_length())

    @property
    def crop_floor(self) -> int:
        """Smallest number of the decoder's tokens that `crop` can go back to now."""
        return max((crop_floor_of(layer) for layer in self.self_attention_cache.layers), default=0)

    @property
    def exact_crop_floor(self) -> int:
        """As `Cache.exact_crop_floor`, of the decoder's tokens."""
        return getattr(self.self_attention_cache, "exact_crop_floor", self.crop_floor)

    def token_fates(self) -> list[tuple[str, int]]:
        """(fate, count) of the decoder's tokens, from the oldest to the newest seen."""
        own, seen = self.self_attention_cache, self.tokens_seen
        return own.token_fates() if hasattr(own, "token_fates") else [("full", seen)] * bool(seen)

    def update(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError: keys and values of the decoder's go to one side, the encoder's to the other."""
        raise NotImplementedError("an EncoderDecoderCache has two sides: update its self_attention_cache or its cross_attention_cache")

    def settle(self) -> None:
        """Have all that is stored in its place."""
        for side in self.sides:
            if hasattr(side, "settle"):
                side.settle()

    def restored(self) -> None:
        """Notice what was loaded into the layers: which of them have heard the encoder."""
        self.is_updated = {index: layer.get_seq_length() > 0 for index, layer in enumerate(self.cross_attention_cache.layers)}

    @property
    def batch_size(self) -> int:
        """Batch rows held; -1 before the first token."""
        held = [row_count(layer) for layer in self.layers if isinstance(layer, CacheLayerMixin) and layer.is_initialized]
        if len(set(held)) > 1:
            raise ValueError(f"the layers hold different numbers of rows: {held}")
        return held[0] if held else -1

    @property
    def is_initialized(self) -> bool:
        """Have both sides been given tokens?"""
        return all(side.layers and side.is_initialized for side in self.sides)

    def __getitem__(self, layer_idx: int) -> Tensors:
        """(self keys, self values, cross keys, cross values) of a layer."""
        if not -len(self) <= layer_idx < len(self):
            raise IndexError(f"this cache has {len(self)} layers so far, asked for layer {layer_idx}")
        return tuple(tensor for side in self.sides for tensor in _pair(side, layer_idx))

    def __iter__(self) -> Iterator[Tensors]:
        return (self[layer_idx] for layer_idx in range(len(self)))

    def to_legacy_cache(self) -> tuple[Tensors, ...]:
        """((self keys, self values, cross keys, cross values), ...) by layer, copied; pairs where the encoder gave nothing yet.

        Raises ValueError where the self-attention cache has evicted tokens, for which that form has no place.
        """
        own, cross = (side.to_legacy_cache() if hasattr(side, "to_legacy_cache") else _copied(side) for side in self.sides)
        filled = any(keys is not None for keys, _ in cross)
        return tuple(pair + other for pair, other in zip(own, cross)) if filled else tuple(own)

    @classmethod
    def from_legacy_cache(cls, past_key_values: Sequence[Sequence[torch.Tensor]] | None = None) -> "EncoderDecoderCache":
        """A cache filled from tuples of four tensors by layer, or of two: the decoder's alone."""
        return cls(past_key_values or ())

    def crop(self, maximum_length: int) -> None:
        """Positive: keep that many of the decoder's tokens; negative: remove that many; 0: nothing to remove."""
        own = self.self_attention_cache
        seen = int(own.get_seq_length())
        own.crop(min(0, target_length(seen, maximum_length) - seen))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row `repeats` times: a, b -> a, a, b, b."""
        for side in self.sides:
            side.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these batch rows (LongTensor of rows, or BoolTensor over all)."""
        for side in self.sides:
            side.batch_select_indices(indices)

    def batch_split(self, full_batch_size: int, split_size: int, num_hidden_layers: int | None = None) -> list["EncoderDecoderCache"]:
        """Caches of `split_size` rows each, the last of what remains; `num_hidden_layers` says nothing, as in 4.48. Raises ValueError if this one has other rows."""
        full_batch_size, split_size = whole_number("full_batch_size", full_batch_size, 0), whole_number("split_size", split_size, 1)
        if self.batch_size not in (-1, full_batch_size):
            raise ValueError(f"full_batch_size is {full_batch_size} and this cache holds {self.batch_size} rows")
        return [self._rows(start, min(start + split_size, full_batch_size)) for start in range(0, full_batch_size, split_size)]

    def _rows(self, start: int, stop: int) -> "EncoderDecoderCache":
        piece = self.fork()
        piece.batch_select_indices(torch.arange(start, stop))
        return piece

    @classmethod
    def from_batch_splits(cls, splits: Sequence["EncoderDecoderCache"], num_hidden_layers: int | None = None) -> "EncoderDecoderCache":
        """One cache of the rows of `splits`, in order; `num_hidden_layers` says nothing, as in 4.48. Raises ValueError if they differ in kind, layers or tokens."""
        if not splits or any(not isinstance(split, cls) for split in splits):
            raise ValueError(f"splits must be one or more {cls.__name__}, got {[type(split).__name__ for split in splits]}")
        sides = list(zip(*(split.sides for split in splits)))
        missing = [type(side[0]).__name__ for side in sides if not hasattr(side[0], "from_batch_splits")]
        if missing:
            raise ValueError(f"{missing[0]} is transformers' own and cannot be joined; use kvcache's")
        return splits[0]._of(type(side[0]).from_batch_splits(side) for side in sides)

    def fork(self) -> "EncoderDecoderCache":
        """A copy that shares storage, where its sides do, until one of the two writes."""
        return self._of(side.fork() if hasattr(side, "fork") else copy.deepcopy(side) for side in self.sides)

    def _of(self, sides: Iterable[transformers.Cache]) -> "EncoderDecoderCache":
        """A cache of these sides, made for what this one was made for."""
        other = type(self)(*sides)
        other.parameters, other.made_for = self.parameters, self.made_for
        return other

    def memory_by_side(self) -> dict[str, Memory]:
        """Measured bytes of "self" (the decoder's own tokens) and "cross" (the encoder's)."""
        return {name: measure_memory(side) for name, side in zip(SIDES, self.sides)}

    def predict_memory(
        self, config: PreTrainedConfig, tokens: int, source_tokens: int, batch_size: int = 1, dtype: torch.dtype = torch.float32
    ) -> dict[str, Memory]:
        """Bytes by side after one prefill of `tokens` for the decoder and `source_tokens` from the encoder.

        `source_tokens` is the length of the encoder's output. Raises ValueError for layers with no closed form.
        """
        config = decoder_config(config)
        shapes = shapes_of(config, batch_size, dtype.itemsize)
        return {
            name: Memory(tuple(LayerMemory(**predict_layer(layer, count, shape)) for layer, shape in zip(_layers(side, len(shapes)), shapes)), {})
            for name, side, count in zip(SIDES, self.sides, (tokens, source_tokens))
        }


def _sample(cache: transformers.Cache) -> list:
    """The layers of a cache, or one of those that it will make."""
    return cache.layers or [cache.layer_class_to_replicate()]


def _layers(cache: transformers.Cache, count: int) -> list:
    return cache.layers or [cache.layer_class_to_replicate() for _ in range(count)]


def why_not_self(cache: transformers.Cache) -> str | None:
    """Why a cache does not do for self-attention, or None."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return "the self-attention cache is itself an EncoderDecoderCache; give its two sides"
    if cache.layer_class_to_replicate is not None and any(is_bounded(layer) for layer in _sample(cache)):
        return (
            f"a {type(cache).__name__} without config= cannot tell a model whose position biases count the tokens held, such as T5, "
            "from one that it suits, such as BART or Whisper; make it with config=model.config"
        )
    return None


def why_not_cross(cache: transformers.Cache) -> str | None:
    """Why a cache cannot hold the encoder's keys and values, or None."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return "the cross-attention cache is itself an EncoderDecoderCache; give its two sides"
    if getattr(cache, "offloading", False) or hasattr(cache, "offload_device"):
        return f"a {type(cache).__name__} for cross-attention would be read while it lies on the host; use DynamicCache()"
    for layer in _sample(cache):
        reason = _why_not_cross_layer(layer)
        if reason:
            return f"{type(cache).__name__} for cross-attention: {reason}; use DynamicCache()"
    return None


def _why_not_cross_layer(layer: Any) -> str | None:
    if type(layer) in (GrowingLayer, DynamicLayer, DummyLayer):
        return None
    kind = type(layer).__name__
    if "Quantized" in kind:
        return f"models read .layers[i].keys of the encoder directly, and a {kind} holds codes"
    if getattr(layer, "is_sliding", False) or is_bounded(layer):
        return f"a {kind} would evict the encoder's tokens, all of which every step attends to"
    return f"models attend to all of .layers[i].keys, and what a {kind} has there is more, or less, than the encoder gave"


def _pair(cache: transformers.Cache, layer_idx: int) -> Tensors:
    layer = cache.layers[layer_idx] if -len(cache.layers) <= layer_idx < len(cache.layers) else None
    return getattr(layer, "keys", None), getattr(layer, "values", None)


def _copied(cache: transformers.Cache) -> tuple[Tensors, ...]:
    """Legacy form of transformers' own cache of plain growing layers."""
    others = [type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer]
    if others:
        raise ValueError(f"transformers' {others[0]} has no legacy form here; use kvcache's caches")
    return tuple((layer.keys.clone(), layer.values.clone()) if layer.is_initialized else (None, None) for layer in cache.layers)


def _from_tuples(layers: Iterable[Sequence[torch.Tensor]]) -> tuple[DynamicCache, DynamicCache]:
    """Both sides from tuples of 2 (self), 4 (self and cross) or 6 tensors (with transformers' window sizes between) by layer."""
    own, cross = DynamicCache(), DynamicCache()
    for index, tensors in enumerate(layers):
        if len(tensors) not in (2, 4, 6):
            raise ValueError(f"layer {index} has {len(tensors)} tensors; it takes 2 (self-attention), 4 (and cross-attention) or 6 (with window sizes)")
        half = max(2, len(tensors) // 2)
        for side, part in ((own, tensors[:half]), (cross, tensors[half:])):
            if len(part) == 3 and part[2] is not None:
                raise ValueError(f"layer {index} keeps a sliding window, which plain tuples cannot continue")
            if part and part[0] is not None:
                side.update(part[0], part[1], index)
    return own, cross


# What its self-attention side can be, by name.
OWN = {each.ENTRY.name: each.ENTRY for each in (dynamic, static, hybrid, offloaded, offloaded_static, sliding_window, sink, quantized)}


@dataclass(frozen=True)
class PairEntry(Entry):
    """An entry for two caches: `self_cache` names that of self-attention."""

    def why_not_alone(self, config: torch.nn.Module | PreTrainedConfig) -> str | None:
        return self.why_not(config)

    def why_not(self, config: torch.nn.Module | PreTrainedConfig) -> str | None:
        whole = getattr(config, "config", config)
        reason = super().why_not(config)
        if reason is None and not getattr(whole, "is_encoder_decoder", False):
            return f"{whole.model_type} has no encoder whose output would be kept; 'dynamic' keeps what it needs"
        return reason

    def known(self, values: Mapping[str, Any]) -> dict[str, Parameter]:
        choice = self.parameters[0]
        return {**super().known(values), **OWN[choice.check(values.get(choice.name, choice.default))].known(values)}


def _choice_reasons(parameter: str, config: PreTrainedConfig, values: Mapping[str, Any]) -> dict[Any, str]:
    """The caches that do not do for this model's decoder; of the chosen one's own choices, those that it would not take."""
    if parameter == "self_cache":
        reasons = {name: own.why_not_here() or own.why_not(config) for name, own in OWN.items()}
        return {name: reason for name, reason in reasons.items() if reason}
    own = OWN[values["self_cache"]]
    return own.choice_reasons(parameter, config, {**own.defaults(), **values})


def _why_not_values(config: PreTrainedConfig, values: Mapping[str, Any]) -> str | None:
    own = OWN[values["self_cache"]]
    return own.why_not_here() or own.why_not(config) or own.why_not_values(config, values)


def _make(config: PreTrainedConfig, self_cache: str, **parameters: Any) -> EncoderDecoderCache:
    own, cross = OWN[self_cache].build(config, **parameters), DynamicCache()
    cross.layers = [GrowingLayer() for _ in own.layers]  # as many as a file of it may be read into
    return EncoderDecoderCache(own, cross)


ENTRY = PairEntry(
    name="encoder_decoder",
    title="Encoder-decoder",
    summary="For T5, BART, Whisper and kin: any cache for what the decoder says, and the encoder's keys and values in full beside it.",
    cache_class=EncoderDecoderCache,
    make=_make,
    parameters=(Parameter("self_cache", "Decoder's cache", "choice", "dynamic", "What keeps the decoder's own tokens; its parameters go beside.", choices=tuple(OWN)),),
    why_not_values=_why_not_values,
    choice_reasons=_choice_reasons,
    parts=OWN,
    verify=lambda model, cache: OWN[cache.self_attention_cache.name].verify(model, cache.self_attention_cache),
    label=lambda self_cache, **parameters: f"{OWN[self_cache].describe(**parameters)} + cross",
)
