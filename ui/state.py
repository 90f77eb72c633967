"""Whose conversation is whose: one session per browser tab or API client, its cache freed when it goes or when it must."""
from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from kvcache import catalog
from kvcache.chat import models, prefixes, scheduler
from kvcache.chat.conversation import Conversation, ConversationError, chats
from kvcache.chat.engine import Sampling
from kvcache.memory import Memory, measure_added, take_snapshot

from .branches import Branches
from .charts import History, decimate, human_bytes
from .pending import Outbox


def whole_setting(name: str, default: int, minimum: int = 1) -> int:
    """The whole number in that variable of the environment (docs/playground.md lists them). Ends the program, with the name, for anything else."""
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal() and int(text) >= minimum):
        raise SystemExit(f"{name} must be a whole number from {minimum} on, got {text!r}")
    return int(text) if text else default


MEMORY_BUDGET = whole_setting("KVCACHE_MEMORY_BYTES", max(2_000_000_000, psutil.virtual_memory().total // 4))  # bytes of cache kept for all sessions together
MAX_SESSIONS = 500  # beyond this the least recently used is forgotten, messages and all
API_SECONDS = whole_setting("KVCACHE_API_SECONDS", 600)  # that an API client, who has no tab to close, may be silent before its cache is freed as that of a tab which went
KEPT_SECONDS = whole_setting("KVCACHE_KEPT_SECONDS", 3600)  # that the messages of a tab stay after it went: it may only have lost its connection
GIVE_BACK_SECONDS = 10.0  # at least between two times that freed memory is handed to the system: it holds everybody up
whole_setting("KVCACHE_CONTEXT", 1)  # heard by models.load; one that will not do is to end the start


@dataclass(frozen=True)
class Settings:
    """What a person has set up, as typed. `parameters` and `sampling` are checked where they are used."""
    model: str
    cache: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def same_conversation(self, other: Settings) -> bool:
        """Whether a conversation can go on under `other`: everything equal but the sampling."""
        return (self.model, self.cache, dict(self.parameters), self.system) == (
            other.model, other.cache, dict(other.parameters), other.system)


@dataclass
class Session:
    """One person's conversation and its chart history, a comparison if one was run, and what waits or runs in each tab."""
    key: str
    budget: int = MEMORY_BUDGET
    conversation: Conversation | None = None
    settings: Settings | None = None
    earlier_stats: list = field(default_factory=list)  # figures of replies made under former settings
    history: History = field(default_factory=History)
    words: dict[tuple[str, int], str] = field(default_factory=dict)  # by model and token, its text
    working: int = 0  # jobs of its tabs that are being computed
    needs: int = 0  # bytes that its chat's cache will hold, as far as can be told, at the end of the reply asked for last
    reserved: int = 0  # the same once that reply has begun
    has_room: Callable[[Session], bool] = field(default=lambda session: True, repr=False)  # for what it needs, beside others' replies
    from_api: bool = False
    last_used: float = field(default_factory=time.monotonic)
    comparison: Any = None
    lost_comparison: bool = False  # freed since it was run
    showing: str = ""  # the model that the page shows
    refused: str | None = None  # the model picked last, where it can't be had
    stand_ins: dict[str, tuple[str, str]] = field(default_factory=dict)  # by form, the cache that a model's change put there and the one it stands in for
    chat_box: Outbox = field(default_factory=Outbox)
    compare_box: Outbox = field(default_factory=Outbox)
    measure_box: Outbox = field(default_factory=Outbox)
    quality_box: Outbox = field(default_factory=Outbox)
    branches: Branches = field(default_factory=Branches)
    gone: bool = False

    @property
    def boxes(self) -> tuple[Outbox, ...]:
        """One for each place that computes."""
        return self.chat_box, self.compare_box, self.measure_box, self.quality_box

    @property
    def busy(self) -> bool:
        """Is anything being computed for it?"""
        return self.working > 0

    @property
    def claims(self) -> int:
        """Bytes that nobody else may count on while a reply is written."""
        return self.reserved if self.busy else 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Compute inside: its caches stay."""
        with _counting:
            self.working += 1
        try:
            yield
        finally:
            with _counting:
                self.working -= 1
            self.last_used = time.monotonic()

    def generate(self, loaded, cache, new_ids, seen_ids, sampling, *arguments) -> Iterator:
        """The events of a reply, written beside everybody else's once there is room for it."""
        self.needs = bytes_at_end(self.settings, loaded, len(new_ids) + len(seen_ids) + sampling.max_new_tokens)
        return scheduler.generate_tokens(loaded, cache, new_ids, seen_ids, sampling, *arguments, may_begin=lambda: self.has_room(self))

    def wanted(self, form_id: str, name: str) -> str:
        """The cache that the one in a form stands in for, or itself."""
        stand_in, wanted = self.stand_ins.get(form_id, ("", ""))
        return wanted if name == stand_in else name

    def picked(self, form_id: str) -> None:
        """The visitor chose the cache in that form himself: it stands in for no other."""
        self.stand_ins.pop(form_id, None)

    def prepare(self, wanted: Settings) -> str:
        """Make the conversation answer to `wanted`; returns a sentence where the cache must be rebuilt, else "".

        Raises ModelError or ValueError with a sentence, and then nothing has changed.
        """
        if self.conversation and self.conversation.loaded is None and self.settings.model == wanted.model:
            self.conversation.attach(models.load(wanted.model))
        if self.settings and self.conversation and self.settings.same_conversation(wanted):
            self.conversation.sampling = sampling_of(wanted)
            self.settings = wanted
            return ""
        loaded = models.load(wanted.model)
        messages = self.conversation.messages if self.conversation else []
        stats = self.stats
        conversation = self._on_new_cache(loaded, wanted, messages)
        require_room([wanted], loaded, self.budget)
        sentence = self._what_changed(wanted, loaded) if messages else ""
        history = History(self._former(wanted, loaded))
        self.conversation, self.settings, self.earlier_stats, self.history = conversation, wanted, stats, history
        return sentence

    def _on_new_cache(self, loaded, wanted: Settings, messages: list[dict]) -> Conversation:
        """The conversation so far as `wanted` asks; on the same model its true token ids go with it."""
        if self.conversation and self.conversation.loaded is loaded and self.settings.system == wanted.system:
            conversation = self.conversation.with_cache(wanted.cache, wanted.parameters)
            conversation.sampling = sampling_of(wanted)
            return conversation
        return Conversation.from_messages(loaded, wanted.cache, wanted.parameters, messages, wanted.system, sampling_of(wanted), generate=self.generate, prefixes=prefixes.store_of)

    def _former(self, wanted: Settings, loaded) -> tuple[str, list[tuple[int, ...]]] | None:
        """The line of the cache that another one takes the place of, under the same model."""
        before = self.settings
        if before is None or before.model != wanted.model or not self.history.processed or (before.cache, dict(before.parameters)) == (wanted.cache, dict(wanted.parameters)):
            return None
        entry = catalog.entry(before.cache)
        return entry.describe(**entry.check(loaded.config, **before.parameters)), decimate(self.history.points)

    def _what_changed(self, wanted: Settings, loaded) -> str:
        system = "text" if loaded.is_encoder_decoder and chats(loaded) else "system prompt"
        names = {"model": "model", "cache": "cache", "parameters": "cache's parameters", "system": system}
        changed = [words for name, words in names.items() if getattr(self.settings, name) != getattr(wanted, name)]
        if "cache" in changed and "cache's parameters" in changed:
            changed.remove("cache's parameters")
        return (f"Changed the {' and the '.join(changed)}: the messages stay, and their tokens are computed again on a new "
                "cache.")

    def adopt(self, talk: Conversation, settings: Settings) -> None:
        """Go on with a conversation from elsewhere in place of this one. Raises ValueError where its cache takes more than there is for all."""
        nbytes = take_snapshot(talk.cache).total
        if nbytes > self.budget:
            raise ValueError(f"Its cache takes {human_bytes(nbytes)}, and {human_bytes(self.budget)} are kept for all caches of this page together.")
        talk.generate, talk.prefixes = self.generate, prefixes.store_of  # as everybody else's
        self.branches.forget()
        self.conversation, self.settings, self.earlier_stats, self.history = talk, settings, [], History()

    def undo(self) -> str:
        """Take back the last message and its reply, from the cache and the charts too; returns the message, "" where there is none. Raises ValueError as the conversation does."""
        if not self.holds_messages:
            return ""
        text = self.conversation.undo()
        self.history.undo_turn()
        return text

    def show_version(self, step: int) -> str:
        """Show the reply so many versions on, or back, in the place of the last one; returns which it is, in words. Raises ValueError as the conversation does."""
        if not self.holds_messages:
            raise ValueError("There is no reply yet.")
        if self.conversation.loaded is None:
            self.conversation.attach(models.load(self.settings.model))
        self.conversation.show_version(self.conversation.turns[-1].version + step)
        self.history.undo_turn()
        self.history.start_turn()
        shown = self.conversation.turns[-1]
        return f"version {shown.version + 1} of {len(shown.versions)}"

    @property
    def stats(self) -> list:
        """Figures of every reply, None where they are not known."""
        if self.conversation is None:
            return []
        now = self.conversation.stats
        earlier = (self.earlier_stats + [None] * len(now))[:len(now)]
        return [new or old for new, old in zip(now, earlier)]

    @property
    def holds_messages(self) -> bool:
        """Is there a conversation to go on with?"""
        return bool(self.conversation and self.conversation.messages)

    @property
    def holds_caches(self) -> bool:
        """Is there anything to release?"""
        return self.comparison is not None or bool(self.conversation and self.conversation.loaded)

    @property
    def nbytes(self) -> int:
        """Bytes of every cache this session holds."""
        talk, comparison = self.conversation, self.comparison  # read once: another thread may be freeing them
        caches = [talk.cache if talk else None, *(comparison.caches if comparison else ())]
        caches, aside = ([cache for cache in some if cache is not None] for some in (caches, [branch.conversation.cache for branch in self.branches.others]))
        return sum(take_snapshot(cache).total for cache in caches) + sum(measure_added(cache, caches + aside[:number]) for number, cache in enumerate(aside))

    def release(self) -> None:
        """Free the caches, and let go of the model where the tab has gone; messages stay, and the next reply computes their tokens again and says so."""
        if self.conversation and self.conversation.loaded:
            self.conversation.detach() if self.gone else self.conversation.release()
        self.branches.release(self.gone)
        self.lost_comparison = self.lost_comparison or self.comparison is not None
        self.comparison = None


_counting = threading.Lock()


def sampling_of(settings: Settings) -> Sampling:
    """The sampling that was typed. Raises ValueError naming what is wrong."""
    return Sampling(**settings.sampling).check()


def require_room(wanted: Sequence[Settings], loaded, budget: int) -> None:
    """Refuse caches, made already, that take more than `budget` bytes as soon as they are used. Raises ValueError with what would fit."""
    sizes = [_at_once(settings, loaded) for settings in wanted]
    if sum(sizes) > budget:
        nbytes, name = max(zip(sizes, (settings.cache for settings in wanted)))
        raise ValueError(f"{name} would take {human_bytes(nbytes)} at once, and {human_bytes(budget)} are kept for all caches of this page together: "
                         "give it a smaller capacity.")


def _at_once(settings: Settings, loaded) -> int:
    """Bytes that the cache takes with its first token; 0 where no closed form tells: such caches grow as they are fed."""
    try:
        return predict(settings.cache, loaded.config, loaded.dtype, 1, 1, **settings.parameters).total
    except (ValueError, NotImplementedError):
        return 0


def bytes_at_end(settings: Settings, loaded, tokens: int) -> int:
    """Bytes of the cache behind so many tokens, or with its first where it takes no more of them."""
    try:
        return predict(settings.cache, loaded.config, loaded.dtype, tokens, 1, **settings.parameters).total
    except ValueError:
        return _at_once(settings, loaded)


def predict(name: str, config, dtype, tokens: int, source_tokens: int = 0, **parameters) -> Memory:
    """Bytes that the catalog predicts, with an encoder those for the text it read too. Raises ValueError as it does."""
    beside = {"source_tokens": source_tokens} if config.is_encoder_decoder else {}
    return catalog.predict_memory(name, config, tokens, dtype=dtype, **beside, **parameters)


class Registry:
    """Every live session by its key. Least recently used caches go first when the memory budget is spent."""

    def __init__(self, budget: int = MEMORY_BUDGET, max_sessions: int = MAX_SESSIONS) -> None:
        self.budget = budget
        self.max_sessions = max_sessions
        self._sessions: dict[str, Session] = {}
        self._guard = threading.Lock()
        self._freeing = threading.Lock()  # one thread frees at a time
        self._owes_memory, self._gave_back = False, -math.inf  # is freed memory to be handed to the system, and when was it last

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str | None) -> Session:
        """The session of that key, made at first use, and marked as just used."""
        with self._guard:
            session = self._sessions.setdefault(key or "", Session(key or "", self.budget, has_room=self.has_room))
            session.last_used, session.gone = time.monotonic(), False
            self._forget_oldest()
            return session

    def find(self, key: str | None) -> Session | None:
        """The session of that key if there is one; makes none."""
        return self._sessions.get(key or "")

    def leave(self, key: str | None) -> None:
        """The tab has gone, or its connection has: stop what runs for it and free its caches. Its messages stay for a while, since it may come back."""
        session = self.find(key)
        if session:
            session.gone = True
            for box in session.boxes:
                box.stop.set()
                box.waiting = None
                box.done()
            self.make_room()

    def has_room(self, session: Session) -> bool:
        """Take what the session's reply needs out of the budget; False where the replies being written leave too little, unless there are none."""
        with self._guard:
            others = sum(each.claims for each in self._sessions.values() if each is not session)
            if others and others + session.needs > self.budget:
                return False
            session.reserved = session.needs
            return True

    def make_room(self, keep: Session | None = None) -> list[str]:
        """Free the caches of tabs that have gone, then of idle sessions but `keep`, least recently used first, until the budget holds; returns their keys."""
        with self._freeing:
            self._owes_memory = self._free_the_gone() or self._owes_memory
            if self._owes_memory and time.monotonic() - self._gave_back >= GIVE_BACK_SECONDS:
                give_back_memory()
                self._owes_memory, self._gave_back = False, time.monotonic()
            with self._guard:
                oldest_first = sorted(self._sessions.values(), key=lambda session: session.last_used)
            total = prefixes.nbytes() + sum(session.claims or _held(session) for session in oldest_first)
            freed = []
            for session in oldest_first:
                if total <= self.budget:
                    break
                if session is not keep and not session.busy and (nbytes := _held(session)):
                    total -= nbytes
                    _release(session)
                    freed.append(session.key)
            return freed

    def _free_the_gone(self) -> bool:
        """Free what those hold who have left. Whoever comes back meanwhile is there before it, or afterwards, as `get` waits."""
        with self._guard:
            left = [session for session in self._sessions.values() if _has_left(session) and not session.busy and session.holds_caches]
            for session in left:
                _release(session)
        return bool(left)

    def counts(self) -> dict[str, int]:
        """People here now, those of them for whom something is computed, and the bytes of everybody's caches."""
        with self._guard:
            sessions = list(self._sessions.values())
        here = [session for session in sessions if not session.gone]
        return {"people": len(here), "busy": sum(session.busy for session in here), "cache_nbytes": sum(map(_held, sessions))}

    def stop(self) -> None:
        """Stop everything that runs or waits, for the end of the program."""
        with self._guard:
            boxes = [box for session in self._sessions.values() for box in session.boxes]
        for box in boxes:
            box.stop.set()

    def _forget_oldest(self) -> None:
        idle = sorted((s for s in self._sessions.values() if not s.busy), key=lambda session: session.last_used)
        surplus = idle[:max(0, len(self._sessions) - self.max_sessions)]
        left = [session for session in idle if session.gone and time.monotonic() - session.last_used > KEPT_SECONDS]
        for key in {session.key for session in (*surplus, *left)}:
            del self._sessions[key]


def watch(registry: Registry) -> None:
    """Free what clients who fall silent have held, in a thread beside, as long as the registry is there: nobody's next call is to be waited for."""
    reference = weakref.ref(registry)
    pause = min(30.0, API_SECONDS / 4)

    def look() -> None:
        while True:
            time.sleep(pause)
            there = reference()
            if there is None:
                return
            there.make_room()
            del there

    threading.Thread(target=look, name="kvcache-registry", daemon=True).start()


def give_back_memory() -> None:
    """Hand what was freed back to the system: glibc keeps it otherwise, in an arena for each thread that has run."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def is_silent(session: Session) -> bool:
    """Has an API client, who has no tab to close, been away for so long that its caches are freed?"""
    return session.from_api and not session.busy and time.monotonic() - session.last_used > API_SECONDS


def _has_left(session: Session) -> bool:
    """Has its tab gone, or its client fallen silent?"""
    session.gone = session.gone or is_silent(session)
    return session.gone


def _release(session: Session) -> None:
    with suppress(ConversationError):  # a reply has begun meanwhile
        session.release()


def _held(session: Session) -> int:
    try:
        return session.nbytes
    except AttributeError:  # of a cache that is being filled: its storage is just replaced
        return 0
