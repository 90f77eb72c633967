"""Models, loaded by name: `load` answers with a `LoadedModel` or raises `ModelError`, whose text is one sentence saying what to do."""

from .config_only import config_from_text, config_named, is_here
from .hub import why_not_fetched
from .loading import LoadedModel, pick_device, pick_dtype, wrap
from .menu import (
    CHOICES,
    DEFAULT,
    WORLDLY,
    ModelChoice,
    ModelError,
    Progress,
    find_choice,
    for_strangers,
    is_allowed,
    offer,
    serve_strangers,
)
from .store import STORE, ModelStore, load

__all__ = [
    "CHOICES", "DEFAULT", "STORE", "WORLDLY", "LoadedModel", "ModelChoice", "ModelError", "ModelStore", "Progress", "config_from_text", "config_named", "find_choice", "for_strangers", "is_allowed", "is_here", "load", "offer",
    "pick_device", "pick_dtype", "serve_strangers", "why_not_fetched", "wrap",
]  # fmt: skip
