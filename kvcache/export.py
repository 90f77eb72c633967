"""Which caches an exported program can go on from: torch.export settles once what Python decides, such as how many tokens are held and where."""

from typing import Any

import torch
import transformers

from .layer import Stored


def refuse_export(cache: transformers.Cache) -> None:
    """Raise ValueError, while a program is exported, for a cache from outside whose later tokens it would get wrong."""
    if not cache.in_program:
        layers: list[Any] = cache.layers or [Stored()]
        for layer in layers:
            if reason := _why_not(layer):
                _refuse(f"{type(cache).__name__} cannot be exported: {reason}")


def _why_not(layer: object) -> str | None:
    if isinstance(layer, Stored):
        return layer.why_not_exported()
    return None if layer.is_compileable and layer.is_initialized else f"a {type(layer).__name__} is not as allocated and fixed as a program needs it"


@torch.compiler.assume_constant_result
def _refuse(reason: str) -> None:
    """Raise while a graph is traced: a plain raise would reach the caller as an error of torch's own, without the sentence."""
    raise ValueError(reason)
