"""What a cache really costs: bytes counted from the storage its tensors live on, by layer, by kind and by device."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
import transformers
from transformers.cache_utils import StaticLayer

from .cache import held_by, native_tensors
from .layer import Stored

# Every kind of byte, in the order in which charts stack them. "state" is a linear-attention layer's, and whatever else a model's own layer keeps; "reserved" is
# allocated and not (or no longer) used.
KINDS = ("keys", "values", "scales", "residual", "state", "reserved")
BY_NAME = {"keys": "keys", "values": "values", "_quantized_keys": "keys", "_quantized_values": "values"}  # what transformers' layers call it


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer, by kind."""

    keys: int = 0
    values: int = 0
    scales: int = 0
    residual: int = 0
    state: int = 0
    reserved: int = 0

    @property
    def used(self) -> int:
        return self.total - self.reserved

    @property
    def total(self) -> int:
        return self.keys + self.values + self.scales + self.residual + self.state + self.reserved

    def as_dict(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Memory:
    """Bytes of a cache: `layers` by kind, `devices` by device name."""

    layers: tuple[LayerMemory, ...]
    devices: dict[str, int]

    @property
    def total(self) -> int:
        return sum(layer.total for layer in self.layers)

    @property
    def used(self) -> int:
        return sum(layer.used for layer in self.layers)

    def by_kind(self) -> dict[str, int]:
        return {kind: sum(getattr(layer, kind) for layer in self.layers) for kind in KINDS}


@dataclass(frozen=True)
class Snapshot:
    """Host integers about a cache at one moment: tokens seen and held, bytes by layer, and where it is on more than one device, bytes by device."""

    seen: int
    held: int
    layers: tuple[LayerMemory, ...]
    held_by_layer: tuple[int, ...]
    cross: int = 0  # so many of the layers, the last ones, are cross-attention's: they hold what the encoder gave
    devices: tuple[tuple[str, LayerMemory], ...] = ()

    @property
    def total(self) -> int:
        return sum(layer.total for layer in self.layers)


def measure_memory(cache: transformers.Cache) -> Memory:
    """Real bytes of any transformers cache, each storage counted once, encoder-decoder caches side after side.

    A view counts as used where it looks and as reserved where its storage goes on. Raises TypeError on other objects.
    """
    counted: set[int] = set()
    devices: dict[str, int] = {}
    layers = tuple(_measure_layer(layer, counted, devices) for layer in layers_of(cache))
    return Memory(layers, devices)


def storages_of(cache: transformers.Cache) -> dict[int, int]:
    """address -> bytes of every storage that a cache keeps tokens in: forks that share one have its address in common."""
    storages = (tensor.untyped_storage() for layer in layers_of(cache) for _, tensor in _tensors_of(layer))
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


def measure_added(cache: transformers.Cache, others: Iterable[transformers.Cache]) -> int:
    """Bytes of a cache on storage that none of `others` lives on: what a fork costs beside what it shares with them."""
    counted: set[int] = set()
    for other in others:
        for layer in layers_of(other):
            _measure_layer(layer, counted, {})
    return sum(_measure_layer(layer, counted, {}).total for layer in layers_of(cache))


def take_snapshot(cache: transformers.Cache) -> Snapshot:
    """`measure_memory` cheap enough for every token: our layers answer from shapes, without touching a tensor."""
    layers = layers_of(cache)
    held = tuple(held_by(layer) for layer in layers)
    places: dict[torch.device, dict[str, int]] = {}
    memory = tuple((_quick_bytes if isinstance(layer, Stored) else _native_bytes)(layer, places) for layer in layers)
    devices = tuple((str(device), LayerMemory(**amounts)) for device, amounts in places.items()) if len(places) > 1 else ()
    cross = len(cache.cross_attention_cache.layers) if isinstance(cache, transformers.EncoderDecoderCache) else 0
    return Snapshot(seen_by(cache), max(held[: len(held) - cross], default=0), memory, held, cross, devices)


def seen_by(cache: transformers.Cache) -> int:
    """Tokens a cache has seen; 0 for one that keeps no count, such as a pure state-space cache."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return 0


def heard_by(cache: transformers.Cache) -> int:
    """Tokens of an encoder's that a cache keeps for cross-attention; 0 for a cache without that side."""
    return int(cache.cross_attention_cache.get_seq_length()) if isinstance(cache, transformers.EncoderDecoderCache) else 0


def layers_of(cache: transformers.Cache) -> list:
    """The layers of a cache; of an encoder-decoder cache, the decoder's own and then the cross-attention's."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    if not isinstance(cache, transformers.Cache):
        raise TypeError(f"expected a transformers Cache, got {type(cache).__name__}")
    return list(cache.layers)


def _quick_bytes(layer: Stored, places: dict[torch.device, dict[str, int]]) -> LayerMemory:
    """Bytes of our layer, which are added to those of the devices they are on."""
    amounts = dict.fromkeys(KINDS, 0)
    for name, kind in layer.stores.items():
        buffer = getattr(layer, name)
        if buffer.data is None:
            continue
        used, reserved = buffer.nbytes, buffer.reserved_nbytes
        for each in (amounts, places.get(buffer.data.device) or places.setdefault(buffer.data.device, dict.fromkeys(KINDS, 0))):
            each[kind] += used
            each["reserved"] += reserved
    return LayerMemory(**amounts)


def _native_bytes(layer: Any, places: dict[torch.device, dict[str, int]]) -> LayerMemory:
    """As `_quick_bytes`, of transformers' layer, all of which is where its first tensor is."""
    memory = _measure_layer(layer, set(), {})
    for _, tensor in itertools.islice(_tensors_of(layer), 1):
        there = places.setdefault(tensor.device, dict.fromkeys(KINDS, 0))
        for kind, nbytes in memory.as_dict().items():
            there[kind] += nbytes
    return memory


def _measure_layer(layer: Any, counted: set[int], devices: dict[str, int]) -> LayerMemory:
    amounts = dict.fromkeys(KINDS, 0)
    for kind, tensor in _tensors_of(layer):
        storage = tensor.untyped_storage()
        if tensor.numel() == 0 and storage.nbytes() == 0 or storage.data_ptr() in counted:
            continue
        counted.add(storage.data_ptr())
        used = min(tensor.numel() * tensor.element_size(), storage.nbytes())
        amounts[kind] += used
        amounts["reserved"] += storage.nbytes() - used
        devices[str(tensor.device)] = devices.get(str(tensor.device), 0) + storage.nbytes()
    return LayerMemory(**amounts)


def _tensors_of(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(kind, tensor) for everything a layer, ours or native, keeps for its tokens."""
    if isinstance(layer, Stored):
        for name, kind in layer.stores.items():
            if getattr(layer, name).data is not None:
                yield kind, getattr(layer, name).view()
        return
    for name, tensor in native_tensors(layer).items():
        if name == "indexer_keys":  # [B, T, D]
            yield "keys", tensor[:, : held_by(layer)] if isinstance(layer, StaticLayer) else tensor
        elif name not in BY_NAME:
            yield "state", tensor
    if isinstance(layer, StaticLayer) and layer.is_initialized:
        yield "keys", layer.keys[:, :, : held_by(layer)]
        yield "values", layer.values[:, :, : held_by(layer)]
        return
    quantized = hasattr(layer, "_quantized_keys")
    for name, kind in BY_NAME.items():
        yield from _native(layer, name, "residual" if quantized and name == kind else kind)


def _native(layer: Any, attribute: str, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    held = getattr(layer, attribute, None)
    if isinstance(held, tuple):  # upstream's HQQ and fp8 layers: (codes, {scale, zero, ...}) or (codes, scale)
        codes, meta = held
        yield kind, codes
        parts = meta.values() if isinstance(meta, dict) else (meta,)
        yield from (("scales", part) for part in parts if isinstance(part, torch.Tensor))
    elif isinstance(held, torch.Tensor) and hasattr(held, "__tensor_flatten__") and type(held) is not torch.Tensor:
        yield from _unwrapped(held, kind)
    elif isinstance(held, torch.Tensor):
        yield kind, held


def _unwrapped(tensor: torch.Tensor, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors inside a wrapper such as quanto's: codes as `kind`, scales and shifts as scales."""
    for name in tensor.__tensor_flatten__()[0]:
        inner = getattr(tensor, name)
        inner_kind = kind if name in ("_data", "data") else "scales"
        if hasattr(inner, "__tensor_flatten__") and type(inner) is not torch.Tensor:
            yield from _unwrapped(inner, inner_kind)
        else:
            yield inner_kind, inner
