"""A cache as one word of a command line: "quantized:key_bits=4,value_bits=2"; "dynamic:compact=0.25" is one that `kvcache.compact` makes smaller once it has read a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import catalog
from ...cache import Cache
from ...caches.evicting import BUDGET
from ...chat.engine import forward, prefill_chunks
from ...chat.models import LoadedModel
from ...compact import compact

COMPACT = "compact"  # no parameter of any cache: the budget of `kvcache.compact`
WORDS = {"true": True, "false": False}
USUAL = (
    "quantized:nbits=8", "quantized:nbits=4", "quantized:key_bits=4,value_bits=2", "quantized:nbits=2",
    "evicting:budget=0.25", "evicting:budget=0.125", "evicting:budget=0.5,key_bits=4,value_bits=2", "evicting:policy=snapkv,budget=0.25", "evicting:policy=lagkv,budget=0.25",
    "dynamic:compact=0.25", "sliding_window:window_length={quarter}", "sink:window_length={half}", "sink:window_length={quarter}", "sink:window_length={eighth}",
)  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """A cache of the catalog with some of its parameters, the others being the entry's defaults, and what it is compacted to behind a prompt, if at all."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    compact: int | float | None = None

    def __str__(self) -> str:
        own = self.parameters if self.compact is None else {**self.parameters, COMPACT: self.compact}
        given = ",".join(f"{name}={value}" for name, value in own.items())
        return f"{self.name}:{given}" if given else self.name

    @property
    def label(self) -> str:
        """As menus and tables call it: "Sink 4 + 252"."""
        own = catalog.entry(self.name).describe(**self.parameters)
        return own if self.compact is None else f"{own} compacted to {self.compact}"

    def check(self, model: torch.nn.Module) -> Spec:
        """The same with every value given in its own type. Raises ValueError, naming the cache, where the model or the entry refuses."""
        try:
            checked = catalog.entry(self.name).check(model, **self.parameters)
            budget = None if self.compact is None else BUDGET.check(self.compact)
        except ValueError as error:
            raise ValueError(f"the cache {str(self)!r} can't be had: {error}") from error
        return Spec(self.name, {name: checked[name] for name in self.parameters}, budget)

    def make(self, loaded: LoadedModel) -> Cache:
        """A fresh cache."""
        return catalog.create(self.name, loaded.model, **self.parameters)

    def begin(self, loaded: LoadedModel, prompt: Sequence[int], chunk: int | None = None) -> tuple[Cache, int]:
        """A cache for a prompt, and how many of its ids it has seen: none or, if it is to be compacted, all but the last, whose logits are wanted."""
        cache = self.make(loaded)
        if self.compact is None:
            return cache, 0
        *read, _ = prompt
        for piece in prefill_chunks(loaded, read, 0, chunk or len(read)):
            forward(loaded, cache, piece)
        with loaded.forward_lock:
            return compact(loaded.model, cache, torch.tensor([read], device=loaded.device), self.compact), len(read)


def parse(text: str) -> Spec:
    """The inverse of str(spec). Raises ValueError, which shows how it is written, for anything else and for a cache or a parameter that is not in the catalog."""
    name, colon, rest = text.strip().partition(":")
    if not name or (colon and not rest.strip()):
        raise ValueError(f"a cache is written as NAME or NAME:PARAMETER=VALUE,..., for example quantized:nbits=4; got {text!r}")
    known = catalog.entry(name)
    parameters: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise ValueError(f"a parameter is written as NAME=VALUE, got {part!r} in {text!r}")
        if key in parameters:
            raise ValueError(f"{key} is given twice in {text!r}")
        parameters[key] = value_of(value)
    budget = parameters.pop(COMPACT, None)
    unknown = [key for key in parameters if key not in known.known(parameters)]
    if unknown:
        raise ValueError(f"{name} has no parameter {unknown[0]!r}; it takes {', '.join(known.known(parameters)) or 'no parameters'}")
    return Spec(name, parameters, budget)


def value_of(text: str) -> Any:
    """A whole number, a number, True or False, else the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return WORDS.get(text.lower(), text)


def usual(loaded: LoadedModel, tokens: int) -> list[Spec]:
    """What is measured where nothing is chosen, as far as the model takes it: USUAL, and every other lossy cache with its defaults."""
    chosen = list(map(parse, at(tokens)))
    named = {spec.name for spec in chosen}
    chosen += [Spec(name) for name, entry in catalog.ENTRIES.items() if entry.lossy and name not in named]
    return [spec for spec in chosen if not why_not(spec, loaded)]


def at(tokens: int) -> list[str]:
    """USUAL for a context of so many tokens."""
    return [text.format(half=tokens // 2, quarter=tokens // 4, eighth=tokens // 8) for text in USUAL]


def why_not(spec: Spec, loaded: LoadedModel) -> str | None:
    """Why this model can't have this cache, or None."""
    try:
        spec.check(loaded.model)
    except ValueError as error:
        return str(error)
    return None
