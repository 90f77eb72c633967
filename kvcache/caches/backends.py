"""QuantoQuantizedCache and HQQQuantizedCache by names of their own: the "quantized" entry with its backend chosen."""

import functools
from dataclasses import replace

from ..configs import NBITS
from ..entry import Entry
from . import quantized


def named(backend: str, title: str) -> Entry:
    """The entry of a cache whose backend is its name."""
    parameters = tuple(each for each in quantized.ENTRY.parameters if each.name != "backend")
    return replace(
        quantized.ENTRY,
        name=backend,
        title=title,
        summary=f"{quantized.ENTRY.title} with {title} choosing the rounding.",
        cache_class=quantized.class_of(backend),
        make=functools.partial(quantized.make, backend=backend),
        parameters=tuple(replace(each, choices=NBITS[backend]) if each.name == "nbits" else each for each in parameters),
        why_not_values=lambda config, values: quantized.ENTRY.why_not_values(config, {**values, "backend": backend}),
        choice_reasons=lambda name, config, values: {},
        label=lambda **values: quantized.ENTRY.describe(**values, backend=backend),
        offered=False,
    )


ENTRIES = (named("quanto", "Quanto"), named("hqq", "HQQ"))
