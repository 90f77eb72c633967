"""A conversation as a file: settings, messages, true token ids, seeds, bytes, times and versions as JSON, alone or in the header of its cache's file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import catalog, saving
from ..architecture import decoder_config
from .conversation import Conversation, Turn
from .engine import Sampling, Stats
from .models import LoadedModel

FORMAT = "kvcache conversation 1"
MAX_CHARACTERS = 50_000_000
SETTINGS = {"model": str, "fingerprint": str, "cache": str, "parameters": dict, "system": str, "decode": str, "prefill_chunk": int, "sampling": dict, "turns": list}


class RecordError(ValueError):
    """The file is no conversation, is damaged, or cannot go on with this model; the text says why."""


# ------------------------------------------------------------------------------------------------------------- writing


def record(talk: Conversation) -> dict[str, Any]:
    """A conversation as what JSON can hold, with a digest; `messages` are there to be read, `turns` to go on from and to be run again."""
    found = {
        "format": FORMAT,
        "versions": saving.versions(),
        "model": talk.loaded.id,
        "fingerprint": saving.fingerprint(talk.loaded.model),
        "cache": talk.cache_name,
        "parameters": talk.parameters,
        "system": talk.system or "",
        "decode": talk.decode,
        "prefill_chunk": talk.prefill_chunk,
        "sampling": asdict(talk.sampling),
        "messages": talk.messages,
        "turns": [asdict(turn) for turn in talk.turns],
    }
    found = json.loads(json.dumps(found))  # tuples become the lists that will be read back
    return {**found, "digest": _digest(found)}


def to_json(talk: Conversation) -> str:
    """`record` as text."""
    return json.dumps(record(talk), indent=1, ensure_ascii=False) + "\n"


def save(talk: Conversation, path: str | os.PathLike) -> None:
    """Write conversation and cache: the cache's own file, which `kvcache.load_cache` opens, too, with the record in its header. Raises ValueError as `Cache.save`."""
    talk = talk.fork()  # which refuses while a reply is written, and does not change under the writing
    talk.cache.save(path, talk.loaded.model, talk.cached_ids)
    file = saving.read(path)
    saving.write(path, {**file.header, "conversation": record(talk), "heard_ids": talk.heard_ids}, file.tensors)


def _digest(found: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps({name: value for name, value in found.items() if name != "digest"}, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------- reading


def parse(text: str) -> dict[str, Any]:
    """The record in a file's text. Raises RecordError for anything else, and for one that was changed after it was written."""
    if len(text) > MAX_CHARACTERS:
        raise RecordError(f"The file has {len(text):,} characters, and {MAX_CHARACTERS:,} is the most that is read.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"The file is no whole JSON ({error}).") from error
    return check(found)


def check(found: Any) -> dict[str, Any]:
    """The same record, once its format, its digest and the kinds of its settings are right. Raises RecordError."""
    named = found.get("format") if isinstance(found, dict) else None
    if named != FORMAT:
        raise RecordError(f"The file is no conversation of this version: its format is {named!r:.60}, and {FORMAT!r} is read.")
    if found.get("digest") != _digest(found):
        raise RecordError("The file was changed after it was written: its digest does not match.")
    for name, kind in SETTINGS.items():
        if not isinstance(found.get(name), kind):
            raise RecordError(f"The file's {name} must be a {kind.__name__}, got {found.get(name)!r:.60}.")
    return found


def restore(found: Mapping[str, Any], loaded: LoadedModel) -> Conversation:
    """The conversation in a record, on a new cache that the next reply fills. Raises RecordError.

    True ids come along where the model has the weights that said them; with others the messages stay and are tokenised again.
    """
    same = found["fingerprint"] == saving.fingerprint(loaded.model)
    turns = turns_of(found, loaded if same else None)
    try:
        talk = Conversation(loaded, found["cache"], found["parameters"], found["system"], Sampling(**found["sampling"]), prefill_chunk=found["prefill_chunk"])
    except (TypeError, ValueError) as error:
        raise RecordError(f"The file's settings cannot be: {error}") from error
    return talk.with_turns(turns if same else [Turn(turn.user, turn.reply) for turn in turns], "the cache is new" if turns else "")


def turns_of(found: Mapping[str, Any], loaded: LoadedModel | None = None) -> list[Turn]:
    """The turns of a record, their ids checked against a model's vocabulary. Raises RecordError."""
    most = decoder_config(loaded.config).vocab_size if loaded else None
    return [_turn(number, values, most) for number, values in enumerate(found["turns"], 1)]


def _turn(number: int, values: Any, vocabulary: int | None) -> Turn:
    try:
        stats, sampling = values.get("stats"), values.get("sampling")
        ids = {name: _ids(values[name], vocabulary) for name in ("prompt_ids", "reply_ids")}
        rest = {"stats": Stats(**stats) if stats else None, "sampling": Sampling(**sampling).check() if sampling else None}
        turn = Turn(**{**values, **ids, **rest, "versions": tuple(_version(number, each, vocabulary) for each in values.get("versions", ()))})
        if not all(isinstance(each, str) for each in (turn.user, turn.reply, turn.prompt_text, turn.end, turn.reason)) or not isinstance(turn.opening, int):
            raise TypeError("a text is none")
        if type(turn.version) is not int or not (turn.versions[turn.version : turn.version + 1] == (turn.alone,) if turn.versions else turn.version == 0):
            raise ValueError(f"its version {turn.version!r:.20} is none of its versions")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"Turn {number} of the file cannot be read: {error}") from error
    return turn


def _version(number: int, values: Any, vocabulary: int | None) -> Turn:
    if values.get("versions"):
        raise ValueError("a version has versions of its own")
    return _turn(number, values, vocabulary)


def _ids(values: Any, vocabulary: int | None) -> tuple[int, ...]:
    ids = tuple(values)
    if any(type(token) is not int or token < 0 or (vocabulary is not None and token >= vocabulary) for token in ids):
        raise ValueError("its ids are not all tokens of this model")
    return ids


def load(path: str | os.PathLike, loaded: LoadedModel) -> Conversation:
    """The conversation in a cache's file, on that cache: its next reply says how many tokens were reused. Raises RecordError and CacheFileError."""
    header = saving.read(path).header
    if "conversation" not in header:
        raise RecordError(f"{Path(path).name} holds a cache and no conversation: kvcache.load_cache opens it.")
    talk = restore(check(header["conversation"]), loaded)
    cache = catalog.load_cache(path, loaded.model)
    return talk.with_turns(talk.turns, "").on(cache, cache.token_ids, header.get("heard_ids", []))
