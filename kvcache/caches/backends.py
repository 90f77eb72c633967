"""QuantoQuantizedCache and HQQQuantizedCache by names of their own: the "quantized" entry with its backend chosen."""

import functools
from dataclasses import replace

import torch

from ..configs import NBITS
from ..entry import Entry
from . import quantized
from .quantized import HQQQuantizedCache, QuantizedCache, QuantoQuantizedCache


def _make(cache_class: type[QuantizedCache], config, attention: str, **parameters) -> QuantizedCache:
    return cache_class({**parameters, "compute_dtype": torch.float32}, config, attention=attention)


def named(backend: str, title: str, cache_class: type[QuantizedCache]) -> Entry:
    """The entry of a cache whose backend is its name."""
    parameters = tuple(each for each in quantized.ENTRY.parameters if each.name != "backend")
    return replace(
        quantized.ENTRY,
        name=backend,
        title=title,
        summary=f"{quantized.ENTRY.title} with {title} choosing the rounding.",
        cache_class=cache_class,
        make=functools.partial(_make, cache_class),
        parameters=tuple(replace(each, choices=NBITS[backend]) if each.name == "nbits" else each for each in parameters),
        broken=lambda config, values: quantized.ENTRY.broken(config, {**values, "backend": backend}),
        choice_reasons=lambda name, config, values: {},
        label=lambda **values: quantized.ENTRY.describe(**values, backend=backend),
        offered=False,
    )


ENTRIES = (named("quanto", "Quanto", QuantoQuantizedCache), named("hqq", "HQQ", HQQQuantizedCache))
