"""Load a cache that `cache.save(path)` wrote, for the same model, with equal logits."""

import os

import torch

from .cache import Cache
from .catalog import create
from .files import CacheFileError, fingerprint, read
from .pictures import Shift
from .weights import device_of


def load(path: str | os.PathLike, model: torch.nn.Module) -> Cache:
    """The cache in a file, on the model's device, ready to go on; `cache.token_ids` are the ids saved with it.

    Raises CacheFileError on a damaged file and on one that another model has filled, TypeError without a model.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"a cache file is opened for the model that filled it, got {type(model).__name__}")
    file = read(path)
    header, found = file.header, file.header["model"]
    if found["fingerprint"] != fingerprint(model):
        raise CacheFileError(f"this cache was filled by another model: a {found['type']} of other weights or another config than this {model.config.model_type}")
    parameters = {name: value for name, value in header["parameters"].items() if name != "decode"}  # which was one of a cache's, and changed nothing that is held
    cache = create(header["cache"], model, **parameters)
    types = [type(layer).__name__ for layer in cache.layers]
    if types != [saved["type"] for saved in header["layers"]]:
        raise CacheFileError(f"the file's layers {[saved['type'] for saved in header['layers']]} are not this cache's {types}")
    device = device_of(model)
    for index, (layer, saved) in enumerate(zip(cache.layers, header["layers"])):
        rows = {name: file.tensors[f"{index}.{name}"].to(device) for name in layer.stores if f"{index}.{name}" in file.tensors}
        layer.restore(rows, saved)
    if "shift" in header:
        end, by = header["shift"]
        cache.shift = Shift(end, torch.tensor(by, device=device))
    if hasattr(cache, "restored"):
        cache.restored()
    cache.token_ids = header["token_ids"]
    return cache
