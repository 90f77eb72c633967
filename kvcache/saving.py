"""Save a filled cache to a file and load it again for the same model, with equal logits."""

import os
from collections.abc import Sequence

import torch

from .cache import Cache
from .catalog import create
from .files import CacheFileError, fingerprint, read, write
from .layer import Stored


def save(cache: Cache, path: str | os.PathLike, model: torch.nn.Module, token_ids: Sequence[int] = ()) -> None:
    """Write a cache as safetensors with a JSON header; `token_ids`, the ids it has seen, travel along.

    Raises ValueError for layers that are not ours, and for token_ids of another length than the cache has seen.
    """
    cache.settle()
    seen = cache.get_seq_length()
    token_ids = [int(token) for token in token_ids]
    if token_ids and len(token_ids) != seen:
        raise ValueError(f"token_ids has {len(token_ids)} ids and the cache has seen {seen} tokens")
    tensors, layers = {}, []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, Stored):
            raise ValueError(f"layer {index} is transformers' {type(layer).__name__}, which cannot be saved")
        layers.append({"type": type(layer).__name__, **layer.header()})
        tensors |= {f"{index}.{name}": rows for name, rows in layer.rows().items()}
    header = {
        "cache": cache.name,
        "parameters": _parameters_of(cache),
        "model": {"type": model.config.model_type, "fingerprint": fingerprint(model)},
        "token_ids": token_ids,
        "layers": layers,
    }
    write(path, header, tensors)


def load(path: str | os.PathLike, model: torch.nn.Module) -> Cache:
    """The cache in a file, on the model's device, ready to go on; `cache.token_ids` are the ids saved with it.

    Raises CacheFileError on a damaged or tampered file and on one that another model has filled.
    """
    file = read(path)
    header, found = file.header, file.header["model"]
    if found["fingerprint"] != fingerprint(model):
        raise CacheFileError(f"this cache was filled by another model: a {found['type']} with other weights than this {model.config.model_type}")
    cache = create(header["cache"], model, **header["parameters"])
    types = [type(layer).__name__ for layer in cache.layers]
    if types != [saved["type"] for saved in header["layers"]]:
        raise CacheFileError(f"the file's layers {[saved['type'] for saved in header['layers']]} are not this cache's {types}")
    for index, (layer, saved) in enumerate(zip(cache.layers, header["layers"])):
        rows = {name: file.tensors[f"{index}.{name}"].to(model.device) for name in layer.stores if f"{index}.{name}" in file.tensors}
        layer.restore(rows, saved)
    cache.token_ids = header["token_ids"]
    return cache


def _parameters_of(cache: Cache) -> dict:
    parameters = getattr(cache, "parameters", None)
    if parameters is None:
        raise ValueError(f"this {type(cache).__name__} does not know its parameters; make it with kvcache.create({cache.name!r}, ...) to save it")
    return parameters
