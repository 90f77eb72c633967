"""The page without a browser: /chat, /compare and /catalog for gradio_client, one conversation per client."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import gradio as gr

from kvcache.catalog import ENTRIES
from kvcache.chat import models
from kvcache.chat.engine import Done, Token

from . import drift
from .compare import wanted_columns
from .compare_events import fresh
from .events import CHAT_QUEUE, COMPARE_QUEUE, PAINT_SECONDS, key_of
from .forms import why_not
from .health import log_turn
from .pending import AGAIN, Outbox
from .state import Registry, Session, Settings
from .stream import batches


def describe_stats(stats) -> dict:
    """Figures of one reply as JSON."""
    return {name: getattr(stats, name) for name in (
        "reused", "computed", "generated", "time_to_first_token", "prefill_tokens_per_second", "decode_tokens_per_second",
        "cache_nbytes", "note", "kept")}


def describe_entry(entry, config=None) -> dict:
    """A catalog entry as JSON, with the reason where it can't be used on this model."""
    parameters = [{"name": p.name, "label": p.label, "kind": p.kind, "default": p.default, "help": p.help, "minimum": p.minimum,
                   "maximum": p.maximum, "step": p.step, "choices": list(p.choices)} for p in entry.parameters]
    return {"name": entry.name, "title": entry.title, "summary": entry.summary, "lossy": entry.lossy, "can": sorted(entry.can),
            "paper": entry.paper, "parameters": parameters, "why_not": why_not(entry, config)}


def last_reply(session) -> dict:
    """The conversation's last reply as JSON."""
    messages = session.conversation.messages
    return {"reply": messages[-1]["content"].strip() if messages else "", "messages": messages,
            "stats": describe_stats(session.stats[-1]) if session.stats and session.stats[-1] else None}


@contextmanager
def occupied(box: Outbox) -> Iterator[threading.Event]:
    """The box is this call's; yields the switch that stops it. Raises gr.Error where another call of the same client is running."""
    if not box.take(AGAIN):
        raise gr.Error("This client's last call is still running: wait for it.", print_exception=False)
    box.next()
    try:
        yield box.stop
    finally:
        box.done()


def require(name: str, value, kind: type, example: str) -> None:
    """Raises gr.Error with name, value and what would work where a value came as something else."""
    if not isinstance(value, kind):
        raise gr.Error(f"{name} must be {example}, got {value!r:.80}", print_exception=False)


def require_ready(model: str, session: Session) -> None:
    """Raises gr.Error for a hub model that neither memory nor the session holds: everybody whose turn it is would wait for its download."""
    try:
        is_fetched = models.find_choice(model).source == "hub"
    except models.ModelError as error:
        raise gr.Error(str(error), print_exception=False) from error
    talk = session.conversation
    mine = talk is not None and talk.loaded is not None and talk.loaded.id == model
    if is_fetched and not mine and model not in models.STORE.ids():
        raise gr.Error(f"{model} is not in memory: call /catalog with model={model!r} first, which reads it while others go on.", print_exception=False)


def settings_from(model: str, cache: str, parameters: dict | None, system: str, **sampling) -> Settings:
    for name, value in {"model": model, "cache": cache, "system": system}.items():
        require(name, "" if value is None else value, str, "a text")
    require("parameters", {} if parameters is None else parameters, dict, 'a dictionary such as {"window_length": 128}')
    return Settings(model, cache, parameters or {}, system or "", sampling)


def answer(registry: Registry, key: str, message: str, wanted: Settings, reset: bool = False) -> Iterator[dict]:
    """Send one message in the session of that key; yields the reply so far about seven times a second, then the whole answer. Raises gr.Error with a sentence."""
    session = registry.get(key)
    session.from_api = True
    with occupied(session.chat_box) as stop:
        try:
            changed = session.prepare(wanted)
            talk = session.conversation.with_turns((), "") if reset else session.conversation
            events = talk.send(message, stop)
            if reset:
                session.adopt(talk, wanted)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
        with session.at_work():
            session.history.start_turn()
            reason = yield from _frames(events, session, stop)
    registry.make_room(keep=session)
    log_turn(session, reason)
    yield last_reply(session) | {"reason": reason, "changed": "" if reset else changed}


def _frames(events: Iterator, session: Session, stop: threading.Event) -> Generator[dict, None, str]:
    """The reply so far as JSON; returns why it ended."""
    text, event = "", None
    for batch in batches(events, stop, PAINT_SECONDS):
        for event in batch:
            session.history.add(event)
            text += event.text if isinstance(event, (Token, Done)) else ""
        if not isinstance(event, Done):
            yield {"reply": text, "cache_nbytes": event.snapshot.total, "reason": ""}
    return event.reason


def compare_caches(registry: Registry, key: str, messages: list[str], wanted: list[Settings]) -> dict:
    """Send every message to every cache, measure what differed, and return the run. Raises gr.Error with a sentence."""
    session = registry.get(key)
    session.from_api = True
    with occupied(session.compare_box) as stop, session.at_work():
        try:
            comparison = fresh(session, wanted)
            for message in messages:
                for _ in comparison.ask(message, stop):
                    pass
                if stop.is_set():
                    break
                for _ in drift.measure(comparison, stop):
                    pass
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
    return comparison.record()


def wire_api(registry: Registry, default_model: str = models.DEFAULT) -> None:
    """Add the named endpoints to the page being built. `default_model` answers the calls that name none."""

    def chat(message: str, model: str = "", cache: str = "dynamic", parameters: dict = {}, system: str = "",  # noqa: B006
             temperature: float = 0.0, max_new_tokens: int = 256, seed: int = 0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0,
             repetition_penalty: float = 1.0, reset: bool = False, request: gr.Request = None) -> dict:
        """Send a message; the conversation and its cache stay with this client, until reset=True begins a new one. Streams the reply so far, then reply, statistics, messages."""
        require("message", message, str, "a text")
        require("reset", reset, bool, "true or false")
        sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed, "top_p": top_p, "top_k": top_k, "min_p": min_p,
                    "repetition_penalty": repetition_penalty}
        wanted = settings_from(model or default_model, cache, parameters, system, **sampling)
        require_ready(wanted.model, registry.get(key_of(request)))
        yield from answer(registry, key_of(request), message, wanted, reset)

    def compare(messages: list[str], caches: list[dict], model: str = "", system: str = "", temperature: float = 0.0,
                max_new_tokens: int = 256, seed: int = 0, request: gr.Request = None) -> dict:
        """Send the same messages, in order, to two to four caches: [{"cache": "sink", "parameters": {...}}, ...]."""
        listed = 'a list such as [{"cache": "sink", "parameters": {"window_length": 128}}, {"cache": "dynamic"}]'
        require("messages", messages, list, 'a list of texts such as ["My name is Ada.", "What is my name?"]')
        if not messages:
            raise gr.Error("messages is empty: give at least one", print_exception=False)
        for message in messages:
            require("each of messages", message, str, "a text")
        if not isinstance(caches, list) or not all(isinstance(one, dict) and "cache" in one for one in caches):
            raise gr.Error(f"caches must be {listed}, got {caches!r:.80}", print_exception=False)
        sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
        model = model or default_model
        each = [settings_from(model, one["cache"], one.get("parameters"), system, **sampling) for one in caches]
        require_ready(model, registry.get(key_of(request)))
        try:
            wanted = wanted_columns(model, system, sampling, [(one.cache, one.parameters) for one in each])
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return compare_caches(registry, key_of(request), messages, wanted)

    def catalog(model: str = "") -> dict:
        """The models on offer and the caches in the catalog; with `model`, why a cache does not fit it."""
        config = None
        if model:
            try:
                config = models.load(model).config
            except models.ModelError as error:
                raise gr.Error(str(error), print_exception=False) from error
        listed = [{"id": choice.id, "title": choice.title, "source": choice.source, "note": choice.note} for choice in models.CHOICES if models.is_allowed(choice.id)]
        return {"default_model": default_model, "models": listed,
                "caches": [describe_entry(entry, config) for entry in ENTRIES.values()]}

    gr.api(chat, api_name="chat", **CHAT_QUEUE)
    gr.api(compare, api_name="compare", **COMPARE_QUEUE)
    gr.api(catalog, api_name="catalog", concurrency_id="load", concurrency_limit=2)
