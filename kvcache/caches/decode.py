"""The choice of how single tokens are decoded, as a parameter of the caches that leave it to whoever runs the model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from .. import around
from ..entry import Entry, Parameter
from ..step import DECODE, why_not_compiled

STEP = Parameter("decode", "Decode", "choice", "eager", "Compiled: torch.compile makes one graph of a token's step; a wait once, then faster replies.", choices=DECODE)


def decoded(entry: Entry) -> Entry:
    """The entry of a cache with `decode` among its parameters, which changes nothing that the cache holds."""
    static = "compile" in entry.can  # else the graph goes around the cache

    def reasons(parameter: str, config: PreTrainedConfig, values: Mapping[str, Any]) -> dict[Any, str]:
        if parameter != STEP.name:
            return entry.choice_reasons(parameter, config, values)
        reason = why_not_compiled() or (None if static else around.misfit(config))
        return {"compiled": reason} if reason else {}

    def broken(config: PreTrainedConfig, values: Mapping[str, Any]) -> str | None:
        return entry.broken(config, values) or reasons(STEP.name, config, values).get(values[STEP.name])

    def make(config: PreTrainedConfig, decode: str, **parameters: Any):
        return entry.make(config, **parameters)

    def label(decode: str, **parameters: Any) -> str:
        return entry.describe(**parameters) + (", compiled" if decode == "compiled" else "")

    return replace(entry, parameters=(*entry.parameters, STEP), make=make, broken=broken, choice_reasons=reasons, label=label)
