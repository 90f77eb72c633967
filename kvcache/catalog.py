"""Every cache as data: the single source of menus, forms, reasons, tables and tests. A new cache is one new file.

ENTRIES are what menus offer; OTHERS have a name of their own all the same: "quanto" and "hqq" are "quantized" with the
backend chosen.
"""

import importlib
import os
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig

from . import caches
from .architecture import decoder_config, processes_of, why_not_cached
from .cache import Cache, Made
from .caches.encoder_decoder import EncoderDecoderCache
from .entry import Entry
from .memory import LayerMemory, Memory
from .mrope import Shift
from .predict import predict_layer, shapes_of
from .saving import CacheFileError, fingerprint, own_path, read
from .validation import whole_number
from .weights import device_of, layer_devices, shard_of

ORDER = ("dynamic", "static", "hybrid", "offloaded", "offloaded_static", "sliding_window", "sink", "evicting", "quantized", "mamba", "hybrid_mamba", "encoder_decoder")


def _find_entries() -> dict[str, Entry]:
    modules = [importlib.import_module(f"{caches.__name__}.{module.name}") for module in pkgutil.iter_modules(caches.__path__)]
    found = [entry for module in modules for entry in (*getattr(module, "ENTRIES", ()), *([module.ENTRY] if hasattr(module, "ENTRY") else []))]
    return {entry.name: entry for entry in sorted(found, key=lambda entry: ORDER.index(entry.name) if entry.name in ORDER else len(ORDER))}


_ALL = _find_entries()
ENTRIES: Mapping[str, Entry] = {name: each for name, each in _ALL.items() if each.offered}
OTHERS: Mapping[str, Entry] = {name: each for name, each in _ALL.items() if not each.offered}


def entry(name: str) -> Entry:
    """The entry called `name`; ValueError lists the names there are."""
    if name not in (*ENTRIES, *OTHERS):  # a list would not be hashed
        raise ValueError(f"no cache is called {name!r}; there are {', '.join([*ENTRIES, *OTHERS])}")
    return ENTRIES[name] if name in ENTRIES else OTHERS[name]


def first_fitting(model_or_config: torch.nn.Module | PreTrainedConfig) -> str:
    """The first cache in the catalog that suits this model: "dynamic" for most, "mamba" for state spaces, "encoder_decoder" with an encoder.

    Raises ValueError, with the reason, for a model that none suits.
    """
    if reason := why_not_cached(model_or_config):
        raise ValueError(f"no cache suits this model: {reason}")
    return next(name for name, each in ENTRIES.items() if not each.why_not_alone(model_or_config))


def create(name: str, model_or_config: torch.nn.Module | PreTrainedConfig, **parameters: Any) -> Cache:
    """A fresh cache by name for a model or its config: `create("sink", model, window_length=256)`.

    Given a model, a cache that re-rotates keys is first checked against two short forwards of it. Raises ValueError
    on an unknown name, on values that are out of range and on a cache that does not fit the model, with the reason.
    """
    cache = entry(name).build(model_or_config, **parameters)
    if isinstance(model_or_config, torch.nn.Module):
        entry(name).verify(model_or_config, cache)
        cache.made_for = Made(model_or_config)
    return cache


def predict_memory(
    name: str, model_or_config: torch.nn.Module | PreTrainedConfig, tokens: int, batch_size: int = 1, dtype: torch.dtype | None = None, *, source_tokens: int | None = None, **parameters: Any
) -> Memory:
    """Bytes of this cache after one prefill of `tokens`, from the config alone; `dtype` defaults to the config's. Of a tensor parallel model, those of one process.

    Token by token the used bytes are the same and the reserved ones may differ by a growth step. `devices` are told of a
    model whose layers accelerate has spread; what an offloading cache moves is counted there, too. `source_tokens`, the
    length of the encoder's output, is asked for with "encoder_decoder" alone. Raises ValueError as `create` does, on
    tokens beyond a capacity, and for layers with no closed form.
    """
    tokens, batch_size = whole_number("tokens", tokens, 0), whole_number("batch_size", batch_size, 1)
    if source_tokens is not None:
        source_tokens = whole_number("source_tokens", source_tokens, 0)
    cache = create(name, getattr(model_or_config, "config", model_or_config), **parameters)
    if isinstance(cache, EncoderDecoderCache) != (source_tokens is not None):
        raise ValueError(f"source_tokens, the length of the encoder's output, is for encoder_decoder, which needs it; got {source_tokens} for {name}")
    if cache.capacity is not None and tokens > cache.capacity:
        raise ValueError(f"{name} has room for {cache.capacity} tokens, asked about {tokens}")
    config = decoder_config(model_or_config)
    dtype = dtype or getattr(model_or_config, "dtype", None) or torch.float32
    if source_tokens is not None and processes_of(config) > 1:
        raise ValueError(f"whether the processes of this tensor parallel {config.model_type} share the keys of cross-attention too, its plan says for each model otherwise: not predicted, only measured")
    if source_tokens is not None:
        sides = cache.predict_memory(config, tokens, source_tokens, batch_size, dtype)
        return Memory(tuple(layer for memory in sides.values() for layer in memory.layers), {})
    if pictures := getattr(config, "cross_attention_layers", None):
        raise ValueError(f"how long the keys in layers {list(pictures)} of {config.model_type} are depends on its pictures: not predicted, only measured")
    shapes = shapes_of(config, batch_size, dtype.itemsize)
    layers = tuple(LayerMemory(**predict_layer(layer, tokens, shape)) for layer, shape in zip(cache.layers, shapes))
    return Memory(layers, _by_device(layers, model_or_config))


def _by_device(layers: tuple[LayerMemory, ...], model: torch.nn.Module | PreTrainedConfig) -> dict[str, int]:
    """Bytes on each device of a model whose layers accelerate has spread; of any other nothing is said."""
    devices, found = layer_devices(model) if isinstance(model, torch.nn.Module) else [], {}
    for device, layer in zip(devices if len(devices) == len(layers) else [], layers):
        found[str(device)] = found.get(str(device), 0) + layer.total
    return found


def load_cache(path: str | os.PathLike, model: torch.nn.Module) -> Cache:
    """The cache in a file, every layer on the device of the model's, ready to go on; `cache.token_ids` are the ids saved with it, `cache.source_ids` those that an encoder read.

    Raises CacheFileError on a damaged file and on one that another model has filled, TypeError without a model.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"a cache file is opened for the model that filled it, got {type(model).__name__}")
    shard = shard_of(model)
    file = read(own_path(path, shard))
    header, found = file.header, file.header["model"]
    if (saved := found.get("shard")) != (shard and list(shard)):
        raise CacheFileError(f"this cache holds the heads of {_share(saved)}, and the model at hand is {_share(shard)}: load it as it was when the cache was saved")
    if found["fingerprint"] != fingerprint(model):
        raise CacheFileError(f"this cache was filled by another model: a {found['type']} of other weights or another config than this {model.config.model_type}")
    cache = create(header["cache"], model, **_parameters(header["cache"], header["parameters"]))
    types = [type(layer).__name__ for layer in cache.layers]
    if types != [saved["type"] for saved in header["layers"]]:
        raise CacheFileError(f"the file's layers {[saved['type'] for saved in header['layers']]} are not this cache's {types}")
    device, devices = device_of(model), layer_devices(model)
    for index, (layer, saved) in enumerate(zip(cache.layers, header["layers"])):
        where = devices[index] if len(devices) == len(cache.layers) else device
        rows = {name: file.tensors[f"{index}.{name}"].to(where) for name in layer.stores if f"{index}.{name}" in file.tensors}
        layer.restore(rows, saved)
    if "shift" in header:
        end, by = header["shift"]
        cache.shift = Shift(end, torch.tensor(by, device=device))
    if hasattr(cache, "restored"):
        cache.restored()
    cache.token_ids, cache.source_ids = header["token_ids"], header.get("source_ids", [])
    return cache


def _share(shard: Sequence[int] | None) -> str:
    return "a whole model" if shard is None else f"part {shard[0]} of {shard[1]} of a tensor parallel one"


def _parameters(name: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a cache in a file, which may be older than some of them."""
    given = {name: value for name, value in saved.items() if name != "decode"}  # which was one of a cache's, and changed nothing that is held
    older = {each.name: each.unsaved for each in entry(name).known(given).values() if each.unsaved is not None}
    return older | given
