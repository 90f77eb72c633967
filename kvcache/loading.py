"""Load a cache that `cache.save(path)` wrote, for the same model, with equal logits."""

import os

import torch

from .cache import Cache
from .catalog import create, entry
from .files import CacheFileError, fingerprint, read
from .pictures import Shift
from .weights import device_of


def load(path: str | os.PathLike, model: torch.nn.Module) -> Cache:
    """The cache in a file, on the model's device, ready to go on; `cache.token_ids` are the ids saved with it.

    Raises CacheFileError on a damaged file and on one that another model has filled, TypeError without a model. How single tokens are
    decoded changes nothing that is held: a cache of decode="compiled" opens as "eager" where nothing can be compiled.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"a cache file is opened for the model that filled it, got {type(model).__name__}")
    file = read(path)
    header, found = file.header, file.header["model"]
    if found["fingerprint"] != fingerprint(model):
        raise CacheFileError(f"this cache was filled by another model: a {found['type']} of other weights or another config than this {model.config.model_type}")
    parameters = dict(header["parameters"])
    if parameters.get("decode") in entry(header["cache"]).disabled_choices("decode", model):
        parameters["decode"] = "eager"
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
