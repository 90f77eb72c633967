"""The container: a table from layer type to layer class, filled from a model's config.

transformers names each layer's type; a cache says what it has for which type, and native layers serve the rest.
So a hybrid model is a row in a table, not a special case, and an architecture that nobody listed still works.
"""

import copy
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    CacheLayerMixin,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
    StaticLayer,
    get_layer_types_and_kwargs,
)

from . import saving
from .architecture import tokens_at_once
from .export import refuse_export
from .layer import B, CropError, Layer, Stored, T, target_length
from .legacy import KeyCache, usable_length
from .mrope import Shift, joined_shift
from .recurrent import GONE, NOWHERE_TO_GO_BACK, States, state_layers
from .refusals import refuse_halved, refuse_jump, refuse_other_length, refuse_overflow, refuse_padding, went_ahead
from .upstream_quirks import leave_out_seen, loop_that_feeds, mask_of_forward
from .validation import batch_rows, whole_number
from .weights import shard_of

# layer type -> what makes our layer for it, called with transformers' keyword arguments for that type
LayerTable = Mapping[str, Callable[..., Layer]]
BIASED_BY_MASK = "bloom"  # the model type whose position bias is as long as its mask; measured of those with such a bias: Falcon and MPT take any
POSITIONS = "indexer_position_ids"  # of transformers' indexed layers: [dims, B, tokens], the one tensor whose rows come second


def build_layers(config: PreTrainedConfig, table: LayerTable, native: Mapping[str, type] = DYNAMIC_LAYER_TYPE_MAPPING, **native_kwargs: Any) -> list:
    """One cache layer per model layer: ours where `table` has the type, else transformers' own."""
    types, kwargs = get_layer_types_and_kwargs(config)
    table = {**state_layers(config, table), **table}
    layers = [table[t](**k) if t in table else native[t](**native_kwargs, **k) for t, k in zip(types, kwargs)]
    for index in getattr(config, "cross_attention_layers", None) or ():
        layers[index].skippable = True  # without a picture
    layers[-1].one_by_one = tokens_at_once(config, filled=True) == 1  # asked of the last one: once it has seen tokens, so have all
    layers[-1].biased_by_mask = config.model_type == BIASED_BY_MASK
    return layers


class Made:
    """The model that a cache was made for, called to have it; None once the model is gone, and in another process."""

    def __init__(self, model: torch.nn.Module | None):
        self.reference = None if model is None else weakref.ref(model)

    def __call__(self) -> torch.nn.Module | None:
        return self.reference and self.reference()

    def __deepcopy__(self, memo: dict) -> "Made":
        return self

    def __reduce__(self) -> tuple:
        return Made, (None,)


class Cache(transformers.Cache):
    """Base of our caches: transformers' contract, plus what a conversation and a page need to know.

    `layers`: one per model layer; or `new_layer`, called for each further layer that a model without a config fills.
    """

    name = "cache"  # the catalog's name
    capacity: int | None = None  # most tokens it can ever see; None for no limit
    parameters: dict[str, Any] | None = None  # the catalog's, of a cache that the catalog made
    made_for: "Made | None" = None  # the model that `create` was given
    shift: "Shift | None" = None  # of the positions behind pictures, where `feed` filled it
    torn: str = ""  # why layers may hold parts of a forward that others do not: then only `reset` helps
    at_once: int | None = None  # most tokens that `feed` gives it in one forward
    takes_left_padding: bool = True  # are rows right whose first tokens are padding? Where not, such a forward is refused.

    def __init__(self, layers: list | None = None, new_layer: Callable[[], Layer] | None = None):
        # Not super(): a subclass may also inherit one of transformers' caches, for its isinstance checks alone.
        self.in_program = torch.compiler.is_exporting()  # made inside a program that torch.export makes: there it begins and ends
        transformers.Cache.__init__(self, layers=layers, layer_class_to_replicate=None if layers else new_layer)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        cache_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values [B, H, n, D] of layer `layer_idx`; return what these n tokens attend to.

        Layers may come in any order, and be skipped. `cache_kwargs`, all optional: "cache_position" [n] must say where
        the tokens go anyway, behind those seen; the rest is for the layer. Raises ValueError before anything changes.
        """
        self._check_rows(key_states, value_states, layer_idx)
        if torch.compiler.is_exporting():
            refuse_export(self)
        if cache_kwargs is not None:
            self._check_position(cache_kwargs.get("cache_position"), key_states.shape[T], layer_idx)
        try:
            if cache_kwargs is None and layer_idx < len(self.layers):  # the usual case, which is to cost little
                return self.layers[layer_idx].update(key_states, value_states, **kwargs)
            if cache_kwargs is None:
                return super().update(key_states, value_states, layer_idx, **kwargs)
            return super().update(key_states, value_states, layer_idx, cache_kwargs, **kwargs)
        except BaseException as error:
            self._left_by(error, layer_idx)
            raise

    def _left_by(self, error: BaseException, layer_idx: int) -> None:
        """Note what a layer's update left. A ValueError is a refusal, before anything changed there; anything else comes from anywhere."""
        if not isinstance(error, ValueError):
            self.torn = self.torn or f"a forward ended inside this {type(self).__name__}, by {type(error).__name__}"
        elif went_ahead(self.layers, layer_idx):
            self.torn = self.torn or f"a forward was refused after recurrent layers of this {type(self).__name__} had taken its tokens"

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """As transformers' own. Raises ValueError where the first recurrent layer begins a forward and the one before ended half-way, or `generate` gives old tokens again."""
        if torch.compiler.is_exporting():
            refuse_export(self)
        if layer_idx == state_idx == 0 and not torch.compiler.is_compiling():  # models without attention ask for no mask
            self.refuse_torn()
            refuse_halved(self.layers)
            if (loop := loop_that_feeds(self, conv_states.shape[-1])) is not None:
                loop.refuse_repetition(conv_states.shape[-1], self.layers[0].seen)
        try:
            return super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)
        except BaseException as error:
            self._left_by(error, layer_idx)
            raise

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """As transformers' own."""
        try:
            return super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)
        except BaseException as error:
            self._left_by(error, layer_idx)
            raise

    def _check_rows(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> None:
        ours, theirs = keys.shape, values.shape
        if ours != theirs and (ours[B] != theirs[B] or ours[-2] != theirs[-2]):
            raise ValueError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} must be of the same rows and tokens")
        if layer_idx < 0 or (layer_idx >= len(self.layers) and self.layer_class_to_replicate is None):
            raise ValueError(f"layer_idx must be from 0 to {len(self.layers) - 1} for this model, got {layer_idx}")

    def _check_position(self, position: torch.Tensor | None, n: int, layer_idx: int) -> None:
        if position is None or torch.compiler.is_compiling():
            return
        seen = int(self.get_seq_length(layer_idx))
        if position.shape[-1] != n or (n and (int(position[0]), int(position[-1])) != (seen, seen + n - 1)):
            raise ValueError(
                f"cache_position {position.tolist()} is not where layer {layer_idx} of this {type(self).__name__} goes on: it has seen "
                f"{seen} tokens and was given {n}; crop() it to write over old ones, or leave cache_position out"
            )

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Most tokens a layer, or the longest one, can hold; -1 for no limit, as transformers 5 has it."""
        layers = self.layers or [self.layer_class_to_replicate()]
        if layer_idx is not None:
            return layers[min(layer_idx, len(layers) - 1)].get_max_length()
        lengths = [layer.get_max_length() for layer in layers if isinstance(layer, CacheLayerMixin)]
        return -1 if -1 in lengths else max(lengths, default=-1)

    def get_max_cache_shape(self) -> int | None:
        """Most tokens it can hold; None for no limit, as transformers 4.48 has it."""
        length = self.get_max_length()
        return None if length == -1 else length

    def get_usable_length(self, new_seq_length: int, layer_idx: int = 0) -> int:
        """Tokens of the past that the next `new_seq_length` tokens will attend to in this layer. Raises ValueError if they do not fit."""
        self.refuse_torn()
        return usable_length(self, new_seq_length, layer_idx)

    @property
    def seen_tokens(self) -> int:
        """Tokens seen. Deprecated: use get_seq_length()."""
        warnings.warn("seen_tokens is deprecated; use get_seq_length()", FutureWarning, stacklevel=2)
        return self.get_seq_length()

    def __getitem__(self, layer_idx: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(keys, values) of a layer as attention reads them, valid until the cache changes or is forked; (None, None) if it has none."""
        if not -len(self.layers) <= layer_idx < len(self.layers):
            raise IndexError(f"this cache has {len(self.layers)} layers so far, asked for layer {layer_idx}")
        layer = self.layers[layer_idx]
        return getattr(layer, "keys", None), getattr(layer, "values", None)

    def __iter__(self) -> Iterator[tuple[torch.Tensor | None, torch.Tensor | None]]:
        """(keys, values) of each layer, which is also what transformers' DynamicCache takes as data."""
        return (self[layer_idx] for layer_idx in range(len(self.layers)))

    @property
    def key_cache(self) -> KeyCache:
        """By layer, keys as attention reads them, as 4.48 calls them; None for layers without attention or tokens. Those assigned to it are held."""
        return KeyCache(self, "keys")

    @key_cache.setter
    def key_cache(self, rows: Iterable[torch.Tensor | None]) -> None:
        KeyCache(self, "keys").assign(rows)

    @property
    def value_cache(self) -> KeyCache:
        """By layer, values as attention reads them; None for layers without attention or tokens. Those assigned to it are held."""
        return KeyCache(self, "values")

    @value_cache.setter
    def value_cache(self, rows: Iterable[torch.Tensor | None]) -> None:
        KeyCache(self, "values").assign(rows)

    def to_legacy_cache(self) -> tuple[tuple[torch.Tensor | None, torch.Tensor | None], ...]:
        """((keys, values), ...) [B, H, seen, D] by layer, copied; (None, None) for layers without tokens.

        Raises ValueError when a layer has evicted tokens or keeps a state, for which that form has no place.
        """
        return tuple(_legacy_of(index, layer) for index, layer in enumerate(self.layers))

    @classmethod
    def from_legacy_cache(cls, past_key_values: Sequence[Sequence[torch.Tensor | None]] | None = None, num_hidden_layers: int | None = None, **kwargs: Any) -> "Cache":
        """A cache filled from ((keys, values), ...) by layer, made with `kwargs` (config=, window_length= ...); `num_hidden_layers` says nothing, as in 4.48."""
        cache = cls(**kwargs)
        if cache.layers and past_key_values is not None and len(past_key_values) > len(cache.layers):
            raise ValueError(f"{len(past_key_values)} layers of keys and values do not fit a model of {len(cache.layers)} layers")
        for layer_idx, (keys, values, *_) in enumerate(past_key_values or ()):
            if keys is not None and len(keys):
                cache.update(keys, values, layer_idx)
        lengths = sorted({int(layer.get_seq_length()) for layer in cache.layers if isinstance(layer, CacheLayerMixin)} - {0})
        if len(lengths) > 1:
            raise ValueError(f"the layers of keys and values have different lengths: {lengths} tokens; a forward would go on wrongly from them")
        return cache

    def save(self, path: str | os.PathLike, model: torch.nn.Module | None = None, token_ids: Sequence[int] = (), source_ids: Sequence[int] = ()) -> None:
        """Write this cache to a file, as safetensors with a JSON header; kvcache.load_cache(path, model) goes on from there.

        `model`, which filled it, need not be given if `create` was given one; `token_ids`, the ids seen, travel along, and so do `source_ids`, those that an encoder read.
        Of a tensor parallel model each process writes the heads it holds into a file of its own, talk-00001-of-00002.safetensors for "talk.safetensors", and `load_cache` of the same path finds it.
        Raises ValueError without a model, for layers that are not ours, and for another number of ids than was seen.
        """
        model = model if model is not None else self.made_for and self.made_for()
        if model is None or self.parameters is None:
            raise ValueError(f"a cache file says which model and parameters it is for: make the cache with kvcache.create({self.name!r}, model)")
        self.refuse_torn()
        refuse_halved(getattr(self, "self_attention_cache", self).layers)
        self.settle()
        if len(shape := torch.as_tensor(token_ids).shape) != 1:
            raise ValueError(f"token_ids are those of one row, as a list or [n], got {tuple(shape)}")
        token_ids, seen = [int(token) for token in token_ids], counted(self)
        if token_ids and len(token_ids) != seen:
            raise ValueError(f"token_ids has {len(token_ids)} ids and the cache has seen {seen} tokens")
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, Stored):
                raise ValueError(f"layer {index} is transformers' {type(layer).__name__}, which cannot be saved")
        header = {"cache": self.name, "parameters": self.parameters, "token_ids": token_ids, "source_ids": [int(token) for token in source_ids], "crop_floor": self.crop_floor}
        shard = shard_of(model)
        header["model"] = {"type": model.config.model_type, "fingerprint": saving.fingerprint(model), **({"shard": shard} if shard else {})}
        if self.shift is not None:
            header["shift"] = [self.shift.end, self.shift.by.tolist()]
        header["layers"] = [{"type": type(layer).__name__, **layer.header()} for layer in self.layers]
        tensors = {f"{index}.{name}": rows for index, layer in enumerate(self.layers) for name, rows in layer.rows().items()}
        saving.write(saving.own_path(path, shard), header, tensors)

    def settle(self) -> None:
        """Have all that is stored in its place, for those who read it directly: an offloaded cache waits for its copies."""

    def fork(self) -> "Cache":
        """A copy that shares storage with this cache until one of the two writes; neither ever changes the other."""
        other = copy.copy(self)
        other.layers = [_forked(layer) for layer in self.layers]
        return other

    def batch_split(self, full_batch_size: int, split_size: int, num_hidden_layers: int | None = None) -> list["Cache"]:
        """Caches of `split_size` rows each, the last of what remains; `num_hidden_layers` says nothing, as in 4.48. Raises ValueError if this one has other rows."""
        full_batch_size, split_size = whole_number("full_batch_size", full_batch_size, 0), whole_number("split_size", split_size, 1)
        held = {rows for layer in self.layers if (rows := row_count(layer)) is not None}
        if held - {full_batch_size}:
            raise ValueError(f"full_batch_size is {full_batch_size} and this cache holds {', '.join(map(str, sorted(held)))} rows")
        return [self._rows(start, min(start + split_size, full_batch_size)) for start in range(0, full_batch_size, split_size)]

    def _rows(self, start: int, stop: int) -> "Cache":
        piece = self.fork()
        piece.batch_select_indices(torch.arange(start, stop))
        return piece

    @classmethod
    def from_batch_splits(cls, splits: Sequence["Cache"], num_hidden_layers: int | None = None) -> "Cache":
        """One cache of the rows of `splits`, in order; `num_hidden_layers` says nothing, as in 4.48. Raises ValueError if they differ in kind, layers or tokens."""
        if not splits or any(type(split) is not type(splits[0]) or not isinstance(split, cls) for split in splits):
            raise ValueError(f"splits must be one or more {cls.__name__} of one class, got {[type(split).__name__ for split in splits]}")
        if any(split.parameters != splits[0].parameters for split in splits):
            raise ValueError(f"splits have different parameters: {[split.parameters for split in splits]}")
        counts = sorted({len(split.layers) for split in splits})
        if len(counts) > 1:
            raise ValueError(f"splits have different numbers of layers: {counts}")
        joined = splits[0].fork()
        joined.layers = [_joined(index, layers) for index, layers in enumerate(zip(*(split.layers for split in splits)))]
        joined.shift, joined.torn = joined_shift([split.shift for split in splits]), next((split.torn for split in splits if split.torn), "")
        return joined

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these batch rows (LongTensor of rows, or BoolTensor over all). Raises ValueError for anything else, IndexError for rows that are not there."""
        indices = batch_rows("indices", indices)
        held = max((row_count(layer) or 0 for layer in self.layers), default=0)
        if indices.dtype == torch.bool:
            if held and len(indices) != held:
                raise ValueError(f"a BoolTensor over all rows has one place for each of the {held} that the cache holds, got {len(indices)}")
            indices = indices.nonzero().flatten()
        if held and len(indices) and not -held <= int(indices.min()) <= int(indices.max()) < held:
            raise IndexError(f"this cache holds {held} rows, asked for {indices.tolist()}")
        for layer in self.layers:
            _select_rows(layer, indices)
        self.shift = self.shift and self.shift.rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row `repeats` times: a, b -> a, a, b, b."""
        repeats = whole_number("repeats", repeats, 1)
        for layer in self.layers:
            if _does(layer, "batch_repeat_interleave"):
                layer.batch_repeat_interleave(repeats)
            else:
                _select_rows(layer, torch.arange(row_count(layer) or 0).repeat_interleave(repeats))
        self.shift = self.shift and self.shift.rows(torch.arange(len(self.shift.by)).repeat_interleave(repeats))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let each batch row become another's: beams go on from those that were chosen. Raises ValueError for anything but a list or tensor of rows."""
        beam_idx = batch_rows("beam_idx", beam_idx)
        for layer in self.layers:
            _refuse_views(layer)
        super().reorder_cache(beam_idx)
        self.shift = self.shift and self.shift.rows(beam_idx)

    def reset(self) -> None:
        """Forget every token."""
        super().reset()
        for layer in self.layers:
            if _keeps_views(layer):
                layer.is_initialized = False  # its storage is cut for the prompt that it had
        self.shift, self.torn = None, ""

    @property
    def tokens_seen(self) -> int:
        """Tokens seen by the layer that has seen most: layer 0 may be skipped, and recurrent layers keep no count."""
        return max((int(layer.get_seq_length()) for layer in self.layers if isinstance(layer, CacheLayerMixin)), default=0)

    def held_length(self) -> int:
        """Tokens stored in the fullest attention layer."""
        return max((held_by(layer) for layer in self.layers), default=0)

    @property
    def crop_floor(self) -> int:
        """Smallest length that `crop` can go back to now; `reset()` to nothing is always possible."""
        return max((crop_floor_of(layer) for layer in self.layers), default=0) if self.shift is None else max(self.shift.crop_floor, *map(crop_floor_of, self.layers))

    @property
    def exact_crop_floor(self) -> int:
        """Smallest length from which on `crop` leaves the cache as it was when that many tokens had been seen; before it, rounded tokens come back rounded."""
        return max([self.crop_floor, *(layer.exact_crop_floor for layer in self.layers if isinstance(layer, Layer))])

    @property
    def bounded(self) -> bool:
        """Do the bytes stay bounded however long the stream is?"""
        return bool(self.layers) and all(is_bounded(layer) for layer in self.layers)

    @property
    def is_croppable(self) -> bool:
        """Can every token be taken back at any time? Windows evict, so they answer no, but while they keep what drafts may take back."""
        return bool(self.layers) and all(_gives_back(layer) for layer in self.layers)

    @property
    def is_linear(self) -> list[bool]:
        """Which layers have a recurrent state and no keys: transformers knows its own hybrid layers only."""
        return [isinstance(layer, LinearAttentionCacheLayerMixin) and not isinstance(layer, CacheLayerMixin) for layer in self.layers]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(kv_length, kv_offset) of a layer.

        Asked in every forward before any layer has changed, so forwards that would go wrong are refused here: raises
        ValueError for a jump that recurrent layers or the model's mask would get wrong, for more tokens than static layers have room for
        beside recurrent ones, for padding that this cache cannot take, and after a forward that was refused or died half-way.
        """
        self.refuse_torn()
        if not torch.compiler.is_compiling():
            refuse_halved(self.layers, query_length, layer_idx)
            if (loop := loop_that_feeds(self, query_length)) is not None:
                loop.refuse_repetition(query_length, int(self.get_seq_length(layer_idx)))
        refuse_jump(self.layers, query_length)
        refuse_overflow(self.layers, query_length)
        if not self.takes_left_padding and not torch.compiler.is_compiling() and (query_length > 1 or not self.tokens_seen):
            refuse_padding(self, mask_of_forward())  # not at single tokens, where looking would cost
        sizes = super().get_mask_sizes(query_length, layer_idx)
        if self.layers and getattr(self.layers[-1], "biased_by_mask", False) and not torch.compiler.is_compiling():
            refuse_other_length(type(self).__name__, mask_of_forward(), sizes[0])
        return sizes

    def why_no_padding(self, left: bool) -> str:
        """Why a cache that takes no padded rows, on the left or anywhere else, would get them wrong."""
        return "their padding would be kept as their first tokens" if left else "once tokens are evicted, a mask over all of them no longer says which of those held are padding"

    def refuse_torn(self) -> None:
        """Raise ValueError, with the reason, where a forward left this cache in parts."""
        if self.torn:
            raise ValueError(f"{self.torn}: reset() it and feed all tokens again, or go on with a copy made before")

    def activate_past_recording(self) -> None:
        """Be ready to take drafts back (prompt lookup, an assistant). Raises ValueError, no layer changed, where one can not."""
        for layer in self.layers:
            if isinstance(layer, Stored):
                layer.refuse_drafts()
        super().activate_past_recording()
        leave_out_seen(self)

    def crop(self, max_length: int) -> None:
        """Positive: keep that many tokens; negative: remove that many; 0: nothing to remove.

        Raises CropError before any layer has changed when one of them no longer holds what it would go back to.
        """
        seen = self.tokens_seen
        length = target_length(seen, max_length)
        if length < min(seen, self.crop_floor):
            if self.crop_floor == NOWHERE_TO_GO_BACK:
                raise CropError(f"cannot go back to {length} of {seen} tokens: {GONE}")
            raise CropError(
                f"cannot go back to {length} of {seen} tokens: this {type(self).__name__} can drop at most its last "
                f"{seen - self.crop_floor}; reset() it and feed the tokens again"
            )
        for layer in self.layers:
            if isinstance(layer, Layer):
                layer.check_sides()
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

    def layer_fates(self) -> list[list[tuple[str, int]]]:
        """By layer, what `token_fates` says of it; states sum up every token they have seen."""
        return [_fates(layer) for layer in self.layers]


def _fates(layer: Any) -> list[tuple[str, int]]:
    if isinstance(layer, Layer):
        return layer.token_fates()
    if isinstance(layer, States):
        return [("state", layer.taken)] if layer.taken else []
    seen, held = int(layer.get_seq_length()), held_by(layer)
    return [(fate, count) for fate, count in (("evicted", seen - held), ("full", held)) if count]


def counted(cache: transformers.Cache) -> int:
    """Tokens a cache has seen; of states alone, whose `get_seq_length` raises as transformers' does, those that its layers have counted."""
    counts = (int(layer.get_seq_length()) if isinstance(layer, CacheLayerMixin) else getattr(layer, "seen", 0) for layer in getattr(cache, "self_attention_cache", cache).layers)
    return max(counts, default=0)


def held_by(layer: Any) -> int:
    """Tokens stored by one layer, ours or native; 0 for layers without keys."""
    if isinstance(layer, Layer):
        return layer.held
    if not isinstance(layer, CacheLayerMixin) or not layer.is_initialized or layer.keys is None:
        return 0
    if isinstance(layer, StaticLayer):
        return min(int(layer.get_seq_length()), layer.max_cache_len)
    return layer.keys.shape[-2] if layer.keys.dim() == 4 else 0


def crop_floor_of(layer: Any) -> int:
    """Smallest length one layer, ours or native, can be cropped to."""
    if isinstance(layer, Layer):
        return layer.crop_floor
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return NOWHERE_TO_GO_BACK if any(layer.has_previous_state.values()) else 0
    if not _does(layer, "crop") or (isinstance(layer, DynamicSlidingWindowLayer) and layer.get_seq_length() >= layer.sliding_window):
        return int(layer.get_seq_length())
    return 0


def is_bounded(layer: Any) -> bool:
    """Does one layer's storage stop growing?"""
    if isinstance(layer, Layer):
        return layer.bounded
    if isinstance(layer, CacheLayerMixin):  # a window that a model brings itself may have more beside it
        return bool(getattr(layer, "is_sliding", False)) and type(layer).__module__ == CacheLayerMixin.__module__
    return True


def _gives_back(layer: Any) -> bool:
    """Can one layer be cropped to any length?"""
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return False
    return layer.is_croppable if isinstance(layer, Layer) else not is_bounded(layer) and _does(layer, "crop") and not layer.is_sliding


def _crop_layer(layer: Any, length: int) -> None:
    if isinstance(layer, Layer):
        return layer.crop(length) if 0 < length < layer.seen else (layer.reset() if length == 0 else None)
    surplus = layer.get_seq_length() - length if isinstance(layer, CacheLayerMixin) else 0
    if surplus > 0:
        layer.crop(-surplus)


def _legacy_of(index: int, layer: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        raise ValueError(f"layer {index} keeps a state, not keys and values: no legacy form")
    held = held_by(layer)
    if not held:
        return None, None
    seen = int(layer.get_seq_length())
    if held < seen:
        raise ValueError(f"layer {index} holds {held} of the {seen} tokens it has seen; the legacy form cannot say which are gone")
    keys, values = layer.readable() if isinstance(layer, Layer) else (layer.keys, layer.values)
    return keys[:, :, :held].clone(), values[:, :, :held].clone()


def _joined(index: int, layers: Sequence) -> Any:
    """A layer with the batch rows of all `layers`, which have seen the same number of tokens."""
    first = layers[0]
    states = [_tensors_of(layer) for layer in layers]
    shapes = [{name: tensor.shape[B + 1 :] for name, tensor in state.items()} for state in states]
    seen = [layer.get_seq_length() if isinstance(layer, CacheLayerMixin) else None for layer in layers]
    if any(type(layer) is not type(first) for layer in layers) or any(s != shapes[0] for s in shapes) or any(n != seen[0] for n in seen):
        raise ValueError(f"layer {index} of the splits cannot be joined: they have seen {seen} tokens and hold {shapes}")
    made_with = [{name: getattr(layer, name) for name in getattr(layer, "settings", ())} for layer in layers]
    if any(settings != made_with[0] for settings in made_with):
        raise ValueError(f"layer {index} of the splits cannot be joined: they were made with {made_with}")
    joined, tensors = _forked(first), {name: torch.cat([state[name] for state in states]) for name in states[0]}
    _select_rows(joined, torch.zeros(sum(row_count(layer) or 0 for layer in layers), dtype=torch.long))  # as many rows as there will be
    _set_tensors(joined, tensors)
    return joined


def _tensors_of(layer: Any) -> dict[str | tuple[str, Any], torch.Tensor]:
    """What a layer, ours or native, stores for its rows [B, ...], by name; of what it keeps in a dict, by (name, key)."""
    if hasattr(layer, "rows"):
        return layer.rows()
    tensors = native_tensors(layer)
    positions = getattr(layer, POSITIONS, None)
    return tensors if positions is None else {**tensors, POSITIONS: positions.transpose(0, 1)}


def native_tensors(layer: Any) -> dict[str | tuple[str, Any], torch.Tensor]:
    """Everything of floating point that transformers' layer keeps [B, ..., ...], whatever it calls it: indexers' keys, states, what a compressor has made."""
    tensors = {}
    for name, value in vars(layer).items():
        parts = {(name, key): part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        tensors |= {at: part for at, part in parts.items() if isinstance(part, torch.Tensor) and part.is_floating_point() and part.dim() > 2}
    return tensors


def _set_tensors(layer: Any, tensors: Mapping) -> None:
    if hasattr(layer, "restore"):
        return layer.restore(tensors, layer.header())
    for name, tensor in tensors.items():
        if isinstance(name, tuple):
            getattr(layer, name[0])[name[1]] = tensor
        else:
            setattr(layer, name, tensor.transpose(0, 1) if name == POSITIONS else tensor)
    _mark_rows(layer)


def row_count(layer: Any) -> int | None:
    """Batch rows a layer holds; None when it holds nothing yet."""
    tensors = (tensor for tensor in _tensors_of(layer).values() if tensor.dim() > 1)
    first = next(tensors, None)
    return None if first is None else first.shape[B]


def _select_rows(layer: Any, rows: torch.Tensor) -> None:
    """Keep batch rows of one layer."""
    _refuse_views(layer)
    if _does(layer, "batch_select_indices"):
        layer.batch_select_indices(rows)
    elif row_count(layer) is not None:
        layer.reorder_cache(rows)
        _mark_rows(layer)


def _does(layer: Any, operation: str) -> bool:
    """Is this operation there and whole? One that a native layer inherits from a class before the one that says what it reorders forgets the rest."""
    if isinstance(layer, Stored):
        return hasattr(layer, operation)
    order = type(layer).__mro__
    its, reordering = (next((place for place, cls in enumerate(order) if name in vars(cls)), len(order)) for name in (operation, "reorder_cache"))
    return its <= reordering


def _keeps_views(layer: Any) -> bool:
    """Does a static layer that a model brings itself look at one storage through several tensors, which an operation on each would part?"""
    if not isinstance(layer, StaticLayer) or type(layer).__module__ == StaticLayer.__module__:
        return False
    tensors = native_tensors(layer).values()
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors)


def _refuse_views(layer: Any) -> None:
    if _keeps_views(layer):
        raise ValueError(f"the rows of a {type(layer).__name__} cannot be chosen or reordered: its tensors look at one storage, and would no longer; use a dynamic cache")


def _forked(layer: Any) -> Any:
    return layer.fork() if hasattr(layer, "fork") else copy.deepcopy(layer)


def _mark_rows(layer: Any) -> None:
    for name in ("batch_size", "max_batch_size"):
        if name in vars(layer):
            setattr(layer, name, row_count(layer))
