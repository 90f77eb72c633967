"""What a browser keeps of a chat, so that a reload or a restart of the server loses nothing: the chat's record, without what repeats."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvcache.catalog import ENTRIES, first_fitting
from kvcache.chat import models, record
from kvcache.chat.conversation import Conversation, Turn, common_prefix
from kvcache.chat.record import RecordError

from .pending import shown
from .state import Session, Settings, sampling_of

FORMAT = "kvcache page 1"
LARGEST = 2_000_000  # characters: browsers keep about 5 MB of a site, and some take two bytes for each
LARGEST_WHOLE = 10 * LARGEST  # characters and ids of all prompts, unfolded
TOO_LONG = json.dumps({"format": FORMAT, "too_long": True})
GROWN_TOO_LONG = 'This chat has grown too long to be kept in the browser: after a reload it is gone. Export it under "Keep and share".'
UNREADABLE = "What this browser had kept of an earlier chat is damaged or of another version: the page begins anew."
WAS_TOO_LONG = "The earlier chat had grown too long to be kept in this browser: the page begins anew."
BEGUN = "A new chat had begun before the earlier one was there: it stays, and the earlier one is gone."
REOPENED = "the page was opened anew"


# -- out ---------------------------------------------------------------------------------------------------------

def write(session: Session | None) -> tuple[str, str]:
    """(what the browser is to keep of the chat, "" of an empty one; a sentence where it is too long to be kept)."""
    if session is None or not session.holds_messages or session.conversation.loaded is None:
        return "", ""
    found = record.record(session.conversation)
    whole = sum(_size(version) for turn in found["turns"] for version in (turn, *turn["versions"]))
    text = json.dumps({"format": FORMAT, "model": session.settings.model, "record": {**found, "turns": folded(found["turns"])}}, ensure_ascii=False)
    return (text, "") if len(text) <= LARGEST and whole <= LARGEST_WHOLE else (TOO_LONG, GROWN_TOO_LONG)


def folded(turns: list[dict]) -> list[dict]:
    """A record's turns, each prompt as [how much of it repeats what came before, the rest]: without this, what is kept would grow with the square of the turns."""
    shorter, text, ids = [], "", []
    for turn in turns:
        versions = [_folded(version, turn["prompt_text"], turn["prompt_ids"]) for version in turn["versions"]]
        shorter.append({**_folded(turn, text, ids), "versions": versions})
        text, ids = turn["prompt_text"], [*turn["prompt_ids"], *turn["reply_ids"]]
    return shorter


def _folded(turn: dict, text: str, ids: list[int]) -> dict:
    shared = common_prefix(text, turn["prompt_text"]), common_prefix(ids, turn["prompt_ids"])
    return {**turn, "prompt_text": [shared[0], turn["prompt_text"][shared[0]:]], "prompt_ids": [shared[1], turn["prompt_ids"][shared[1]:]]}


def unfolded(turns: list[dict]) -> list[dict]:
    """The turns that were `folded`. Raises RecordError where they would be longer than what is ever kept."""
    whole, text, ids, total = [], "", [], 0
    for turn in turns:
        turn = _unfolded(turn, text, ids)
        versions = []
        for version in turn["versions"]:
            versions.append(_unfolded(version, turn["prompt_text"], turn["prompt_ids"]))
            total += _size(versions[-1])
            _refuse(total)
        whole.append({**turn, "versions": versions})
        total += _size(turn)
        _refuse(total)
        text, ids = turn["prompt_text"], [*turn["prompt_ids"], *turn["reply_ids"]]
    return whole


def _unfolded(turn: dict, text: str, ids: list[int]) -> dict:
    (same_text, more_text), (same_ids, more_ids) = turn["prompt_text"], turn["prompt_ids"]
    return {**turn, "prompt_text": text[:same_text] + more_text, "prompt_ids": ids[:same_ids] + more_ids}


def _size(turn: dict) -> int:
    """Characters and ids of a prompt."""
    return len(turn["prompt_text"]) + len(turn["prompt_ids"])


def _refuse(total: int) -> None:
    if total > LARGEST_WHOLE:
        raise RecordError(UNREADABLE)


# -- in ----------------------------------------------------------------------------------------------------------

def read(text: str) -> dict[str, Any]:
    """What `write` wrote, with its record whole and checked. Raises RecordError with a sentence for anything else."""
    try:
        found = json.loads(text[:LARGEST + 1])
        if found["format"] != FORMAT or not isinstance(found["model"], str):
            raise RecordError(UNREADABLE)
        whole = {**found["record"], "turns": unfolded(found["record"]["turns"])}
        return {**found, "record": record.check(whole)}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(UNREADABLE) from error


def take_up(session: Session, text: str, model: str) -> str:
    """Go on with the chat that a browser kept, on `model` where its own is not here; returns what is to be said of it. Raises ValueError with a sentence."""
    if not text:
        return ""
    if text == TOO_LONG:
        return WAS_TOO_LONG
    found = read(text)
    here = found["model"] in models.STORE.ids() or models.is_here(found["model"])
    try:
        talk = record.restore(found["record"], models.load(found["model"])) if here else on_another(found["record"], models.load(model))
        settings = settings_of(talk, found["model"] if here else model)
    except ValueError as error:
        raise RecordError(f"The chat that this browser kept cannot go on here, and the page begins anew: {error}") from error
    if session.holds_messages or session.chat_box.answering:
        return BEGUN
    session.adopt(talk.with_turns(talk.turns, REOPENED), settings)
    return "" if here else f"The earlier chat was with {found['model']:.100}, which is not on this computer: its messages stay, and {model} goes on with them."


def on_another(found: Mapping[str, Any], loaded: models.LoadedModel) -> Conversation:
    """The messages of a record on another model than their own, on a cache that suits it."""
    cache = found["cache"] if found["cache"] in ENTRIES and not ENTRIES[found["cache"]].why_not_alone(loaded.config) else first_fitting(loaded.config)
    talk = Conversation(loaded, cache, {}, found["system"])
    return talk.with_turns([Turn(turn.user, turn.reply) for turn in record.turns_of(found)], REOPENED)


def settings_of(talk: Conversation, model: str | None = None) -> Settings:
    """A conversation's settings as the page's form would read them; `model` as it was picked, where that is known. Raises RecordError."""
    entry = ENTRIES[talk.cache_name] if talk.cache_name in ENTRIES else None
    if entry is None:
        raise RecordError(f"This page's menu has no cache {talk.cache_name!r}.")
    known = entry.known(talk.parameters)
    parameters = {name: talk.parameters.get(name, parameter.default) for name, parameter in known.items()}
    return Settings(model or talk.loaded.id, talk.cache_name, parameters, talk.system or "", asdict(talk.sampling))


# -- settings ----------------------------------------------------------------------------------------------------

def read_values(text: Any) -> dict[str, Any]:
    """What was kept by name, texts, numbers and switches; empty where there is nothing, or nothing that can be read."""
    try:
        found = json.loads(text or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return {name: shown(value) if isinstance(value, str) else value for name, value in found.items() if isinstance(value, str | int | float)} if isinstance(found, dict) else {}


def sound_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling that was kept where all of it can be, else none of it."""
    try:
        return asdict(sampling_of(Settings("", "", sampling=values)))
    except (TypeError, ValueError):
        return {}
