"""The shape of a catalog entry: a cache as data, from which forms, reasons, tables and tests are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig

from .architecture import decoder_config, why_not_cached
from .cache import Cache
from .recurrent import has_states_alone
from .validation import amount, whole_number

# What can be asked of a cache beyond plain generation. Each entry says what it refuses; tests try every one on every cache.
OPERATIONS = {
    "plain": "one forward over a whole prompt",
    "chunked prefill": "a prompt in pieces of any size",
    "turns": "generate again on a cache that generate has filled",
    "crop": "go back to an earlier token once it has evicted, rounded or recurred",
    "reorder": "beam reorder",
    "beams": "beam search, 4 and 40 beams",
    "batch": "repeat and select rows",
    "split": "batch_split and from_batch_splits",
    "deepcopy": "copy.deepcopy",
    "pickle": "pickle and torch.save",
    "fork": "cheap copies that never change their parent",
    "save": "save to a file and load",
    "reset": "reset and use again",
    "drafts": "prompt lookup and assisted decoding",
    "left padding": "batches padded on the left",
    "row alone": "a row's logits do not depend on other rows",
    "compile": "torch.compile(fullgraph=True) of a decode step, the cache in its graph",
    "export": "torch.export of a decode step",
    "offload": "layers offloaded and prefetched",
    "move": "layers moved to another device",
    "half": "bfloat16 and float16",
}


def all_but(*refused: str) -> frozenset[str]:
    """Every operation but these. Raises ValueError for a name that is none."""
    unknown = set(refused) - set(OPERATIONS)
    if unknown:
        raise ValueError(f"no operation is called {', '.join(unknown)}; there are {', '.join(OPERATIONS)}")
    return frozenset(OPERATIONS) - set(refused)


@dataclass(frozen=True)
class Parameter:
    """One setting of a cache. `kind`: "int" (minimum, maximum, step), "amount" (as "int", or a share between 0 and 1), "choice" (choices, and what is taken `also` and not offered) or "bool".

    `unsaved`: what it was in caches whose files do not name it, as they are older than it is, where that is not the default.
    """

    name: str
    label: str
    kind: str
    default: Any
    help: str
    minimum: int | None = None
    maximum: int | None = None
    step: int = 1
    choices: tuple = ()
    also: tuple = ()
    unsaved: Any = None

    def check(self, value: Any) -> Any:
        """The value in its own type, or ValueError naming the parameter, the value and what would do."""
        if self.kind == "bool":
            return self._checked_bool(value)
        if self.kind == "amount":
            return amount(self.name, value, self.minimum, self.maximum)
        return self._checked_choice(value) if self.kind == "choice" else self._checked_int(value)

    def _checked_bool(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{self.name} must be true or false, got {value!r}")
        return value

    def _checked_choice(self, value: Any) -> Any:
        for choice in (*self.choices, *self.also):
            if str(choice).lower() == str(value).lower():
                return choice
        raise ValueError(f"{self.name} must be one of {', '.join(map(str, (*self.choices, *self.also)))}, got {value!r}")

    def _checked_int(self, value: Any) -> int:
        return whole_number(self.name, value, self.minimum, self.maximum, typed=True)


@dataclass(frozen=True)
class Entry:
    """A cache on offer.

    `make(config, **parameters)` builds it; `why_not_model(config)` says in a sentence why it does not suit a model, or None;
    `why_not_values(config, parameters)` says which combination of values cannot be, or None; `why_not_installed()` why it cannot run here;
    `verify(model, cache)` checks a new cache against the model itself and raises ValueError.
    `parts`: the caches of which the first parameter chooses one that this is made of; its parameters are taken beside.
    `can`: which of OPERATIONS it does right; the others it refuses with a sentence. Tested both ways.
    """

    name: str
    title: str
    summary: str
    cache_class: type[Cache]
    make: Callable[..., Cache]
    parameters: tuple[Parameter, ...] = ()
    lossy: bool = False
    can: frozenset[str] = all_but("compile", "export")
    paper: str | None = None
    for_states: bool = False  # does it suit models that have recurrent states and no attention?
    offered: bool = True  # in menus; others are kin of one that is, or for models that cannot chat
    why_not_model: Callable[[PreTrainedConfig], str | None] = lambda config: None
    why_not_values: Callable[[PreTrainedConfig, Mapping[str, Any]], str | None] = lambda config, parameters: None
    why_not_installed: Callable[[], str | None] = lambda: None
    choice_reasons: Callable[[str, PreTrainedConfig, Mapping[str, Any]], dict[Any, str]] = lambda name, config, values: {}
    verify: Callable[[Any, Cache], None] = lambda model, cache: None
    parts: Mapping[str, Entry] = field(default_factory=dict)  # other caches, of which the first parameter names the one it is made of
    label: Callable[..., str] | None = field(default=None)

    def why_not(self, config: torch.nn.Module | PreTrainedConfig) -> str | None:
        """None, or a sentence why this cache does not suit the model."""
        if reason := why_not_cached(config):
            return reason
        config = decoder_config(config)
        if has_states_alone(config) and not self.for_states:
            return f"{config.model_type} has recurrent states and no keys and values to keep; 'mamba' is its cache"
        return self.why_not_model(config)

    def why_not_alone(self, config: torch.nn.Module | PreTrainedConfig) -> str | None:
        """As `why_not`, of a cache that is all a model is given: a model with an encoder takes a pair of them."""
        whole = getattr(config, "config", config)
        if self.why_not(whole) or not getattr(whole, "is_encoder_decoder", False):
            return self.why_not(whole)
        return f"{whole.model_type} has an encoder, whose keys and values need a place too: 'encoder_decoder' takes this cache for its decoder's"

    def why_not_here(self) -> str | None:
        """None, or "unavailable because ..."."""
        reason = self.why_not_installed()
        return None if reason is None else f"unavailable because {reason}"

    def disabled_choices(self, parameter: str, config: torch.nn.Module | PreTrainedConfig, **values: Any) -> dict[Any, str]:
        """choice -> why it cannot be taken for this model on this machine, given the other parameters' values."""
        return self.choice_reasons(parameter, decoder_config(config), {**self.defaults(), **values})

    def defaults(self) -> dict[str, Any]:
        return {parameter.name: parameter.default for parameter in self.parameters}

    def known(self, values: Mapping[str, Any]) -> dict[str, Parameter]:
        """The parameters there are, by name, beside these values."""
        return {parameter.name: parameter for parameter in self.parameters}

    def check(self, config: torch.nn.Module | PreTrainedConfig, **parameters: Any) -> dict[str, Any]:
        """Every parameter, defaults filled in. Raises ValueError naming what is wrong and what would do."""
        known = self.known(parameters)
        for name in parameters:
            if name not in known and name == "decode":
                raise ValueError(f"{self.name} has no parameter 'decode': how tokens are decoded is chosen where the model is run, by decode= of Conversation and generate_tokens")
            if name not in known:
                takes = ", ".join(known) or "no parameters"
                raise ValueError(f"{self.name} has no parameter {name!r}; it takes {takes}")
        values = {name: known[name].check(parameters.get(name, known[name].default)) for name in known}
        reason = self.why_not_here() or self.why_not(config) or self.why_not_values(decoder_config(config), values)
        if reason:
            raise ValueError(f"{self.name}: {reason}")
        return values

    def build(self, config: torch.nn.Module | PreTrainedConfig, **parameters: Any) -> Cache:
        """A fresh cache for this model. Raises ValueError as `check` does."""
        values = self.check(config, **parameters)
        cache = self.make(decoder_config(config), **values)
        cache.name, cache.parameters = self.name, values
        return cache

    def describe(self, **parameters: Any) -> str:
        """A short label with the parameters that matter: "Sink 4 + 252"."""
        values = {**self.defaults(), **parameters}
        return self.label(**values) if self.label else self.title
