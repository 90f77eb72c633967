"""QuantoQuantizedCache and HQQQuantizedCache by names of their own: the "quantized" entry with its backend chosen."""

import functools
from dataclasses import fields, replace

import torch

from ..configs import NBITS, QuantizedCacheConfig, why_not_nbits
from ..entry import Entry
from . import quantized
from .quantized import HQQQuantizedCache, QuantizedCache, QuantoQuantizedCache


def _make(cache_class: type[QuantizedCache], config, **parameters) -> QuantizedCache:
    return cache_class({**parameters, "compute_dtype": torch.float32}, config)


def named(backend: str, title: str, cache_class: type[QuantizedCache]) -> Entry:
    """The entry of a cache whose backend is its name."""
    known = {field.name for field in fields(QuantizedCacheConfig)} - {"backend"}
    parameters = tuple(each for each in quantized.ENTRY.parameters if each.name in known)
    return replace(
        quantized.ENTRY,
        name=backend,
        title=title,
        summary=f"{quantized.ENTRY.title} with {title} choosing the rounding.",
        cache_class=cache_class,
        make=functools.partial(_make, cache_class),
        parameters=tuple(replace(each, choices=NBITS[backend]) if each.name == "nbits" else each for each in parameters),
        broken=lambda config, values: why_not_nbits(backend, values["nbits"]) or quantized._missing(backend),
        choice_reasons=lambda name, config, values: {},
        label=lambda nbits, **_: f"{title} {nbits}-bit",
        offered=False,
    )


ENTRIES = (named("quanto", "Quanto", QuantoQuantizedCache), named("hqq", "HQQ", HQQQuantizedCache))
