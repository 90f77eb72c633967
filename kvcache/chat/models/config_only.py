"""A model's config without its weights: by name, or from the text of somebody's config.json. No code of a repository is ever run."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from transformers import CONFIG_MAPPING, PreTrainedConfig

from ... import bundled
from . import menu
from .hub import ANSWER_WITHIN, ask_hub, explain_download, on_disk, on_disk_file, within
from .loading import bundled_folder, read_config
from .menu import ModelChoice, ModelError, find_choice, find_folder, for_strangers

MAX_CHARACTERS = 400_000
PASTED = ModelChoice("the pasted config", "Pasted config", "local", "")
# Of what a model is built piece by piece: more would keep this computer busy, and no model has so many.
COUNTED = re.compile(r".*(layers?|blocks?|experts?|heads?|depth|loops?|groups?|stages?|codebooks?)$")
MOST_PIECES, MOST = 1024, 2**31


def config_named(model_id: str) -> PreTrainedConfig:
    """The config of a bundled model, of a folder or of a hub id, of which config.json alone is fetched where this disk does not hold it. Raises ModelError."""
    choice = find_choice(model_id)
    try:
        config = read_config(choice, _folder(choice))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(explain_download(choice, error)) from error
    return _of_usual_size(choice, config)


def is_here(model_id: str) -> bool:
    """Whether a model can be loaded without a download, and is open to whoever asks: bundled, or listed or the owner's and on this disk."""
    try:
        choice = find_choice(model_id)
    except ModelError:
        return False
    if choice.source == "hub":
        return (choice in menu.CHOICES or not for_strangers()) and on_disk(choice) is not None
    return choice in menu.CHOICES and (choice.source == "local" or bool(bundled.nbytes(choice.id)))


def config_from_text(text: str) -> PreTrainedConfig:
    """The config in the text of a config.json, which is trusted with nothing. Raises ModelError."""
    if len(text) > MAX_CHARACTERS:
        raise ModelError(f"A config.json has {MAX_CHARACTERS:,} characters at most, got {len(text):,}.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"That is no JSON ({error}): paste the whole of a config.json.") from error
    kind = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ModelError(f"A config.json names a model_type that transformers knows, such as \"llama\"; got {kind!r:.60}.")
    _check_sizes(PASTED, values)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        return _of_usual_size(PASTED, read_config(PASTED, Path(folder)))


def _folder(choice: ModelChoice) -> Path:
    """Where the config.json of a choice lies."""
    if choice.source == "bundled":
        return bundled_folder(choice.id)
    if choice.source == "local":
        return find_folder(choice.id)
    held = on_disk_file(choice, "config.json")
    if held and (choice in menu.CHOICES or not for_strangers()):
        return held.parent
    within(ANSWER_WITHIN, lambda: ask_hub(choice))  # refuses what is private
    return Path(hf_hub_download(choice.id, "config.json", etag_timeout=5)).parent


def _of_usual_size(choice: ModelChoice, config: PreTrainedConfig) -> PreTrainedConfig:
    _check_sizes(choice, config.to_dict())
    return config


def _check_sizes(choice: ModelChoice, values: dict[str, Any]) -> None:
    """Raise ModelError for numbers that no model has, before anything is built of them."""
    for name, value in _numbers(values):
        most = MOST_PIECES if COUNTED.match(name) else MOST
        if abs(value) > most:
            raise ModelError(f"The config of {choice.id} has {name} = {value}, and {most:,} is the most that is taken.")


def _numbers(values: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """(name, whole number) at any depth."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _numbers(value, str(key))
    elif isinstance(values, list):
        for value in values:
            yield from _numbers(value)
    elif isinstance(values, int) and not isinstance(values, bool):
        yield name, values
