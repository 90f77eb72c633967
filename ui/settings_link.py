"""A set-up as the query of a link, and back: model, cache, parameters and tab."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from kvcache.catalog import ENTRIES
from kvcache.chat import models
from kvcache.entry import Entry

from .state import Settings

TABS = ("chat", "compare", "measure", "calculator", "learn")
MAX_CHARACTERS = 200


def query(settings: Settings) -> str:
    """What stands behind the "?": model, cache and the parameters that are not the cache's defaults."""
    entry = ENTRIES[settings.cache]
    known = entry.known(settings.parameters)
    changed = {name: value for name, value in settings.parameters.items() if name in known and value != known[name].default}
    return urlencode({"model": settings.model, "cache": settings.cache, **changed})


def read(given: Mapping[str, str], model: str) -> tuple[Settings, list[str]]:
    """(settings, sentences on what a link asks for and does not get); `model` where it names none that is here. Nothing is downloaded for a link."""
    given, refused = {name: value[:MAX_CHARACTERS] for name, value in given.items()}, []
    wanted = given.get("model", model)
    if wanted != model and not models.is_here(wanted):
        refused.append(f"The link names the model {wanted}, which is not on this computer: pick it under Model to have it.")
        wanted = model
    cache = given.get("cache", "dynamic")
    if cache not in ENTRIES:
        return Settings(wanted, "dynamic"), [*refused, f"The link names the cache {cache!r}; there are {', '.join(ENTRIES)}."]
    parameters, wrong = read_parameters(ENTRIES[cache], given)
    return Settings(wanted, cache, parameters), refused + wrong


def read_parameters(entry: Entry, given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The parameters of a cache that a query gives, in their types, and a sentence for each that cannot be."""
    found, wrong = {}, []
    for name, parameter in entry.known(given).items():
        if name in given:
            try:
                value = given[name]
                found[name] = parameter.check({"true": True, "false": False}.get(value.lower(), value) if parameter.kind == "bool" else value)
            except ValueError as error:
                wrong.append(f"The link's {error}.")
    return found, wrong
