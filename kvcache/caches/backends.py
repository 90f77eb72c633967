"""QuantoQuantizedCache and HQQQuantizedCache by names of their own: the "quantized" entry with its backend chosen."""

import functools
from dataclasses import replace

from ..configs import NBITS
from ..entry import Entry, Parameter
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
        parameters=tuple(_of_backend(each, backend) for each in parameters),
        why_not_values=lambda config, values: quantized.ENTRY.why_not_values(config, {**values, "backend": backend}),
        choice_reasons=lambda name, config, values: {},
        label=lambda **values: quantized.ENTRY.describe(**values, backend=backend),
        offered=False,
    )


def _of_backend(parameter: Parameter, backend: str) -> Parameter:
    """With the bits that the backend takes."""
    choices = tuple(choice for choice in parameter.choices if choice == "auto" or choice in NBITS[backend])
    return replace(parameter, choices=choices) if parameter.name in quantized.BITS else parameter


ENTRIES = (named("quanto", "Quanto"), named("hqq", "HQQ"))
