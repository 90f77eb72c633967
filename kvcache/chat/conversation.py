"""A chat over several turns on one cache: token ids are the truth, and each turn feeds only what the cache has not seen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import catalog
from ..memory import heard_by
from ..prefix_store import PrefixStore
from .engine import PREFILL_CHUNK, Detokenizer, Done, Event, Prefill, Sampling, Stats, Token, checked_decode, generate_tokens, room_left
from .models import LoadedModel
from .prefixes import LEAST, Checkpoints

logger = logging.getLogger(__name__)
MAX_MESSAGE_CHARACTERS = 400_000  # where neither the cache nor the model sets a limit

Message = dict[str, str]  # {"role": "user" | "assistant", "content": ...}


class ConversationError(ValueError):
    """The request can't be done as it stands; the text says why, with numbers, and what would work."""


# ------------------------------------------------------------------------------------------------- messages -> text

STOPPED_EARLY = {"message": "stopped before the first token: the message was taken back", "reply": "stopped before it went on: the reply stays as it was"}
EXTENDABLE = "length", "stopped"  # reasons for which a reply ended that may go on
PLAIN_STOP = "\nUser:"  # where a model without a chat template begins to write the next question itself


def render(loaded: LoadedModel, messages: Sequence[Message], system: str | None = None, opening: bool = True) -> str:
    """The prompt for the next reply as text, by the model's chat template or, without one, "User: ... Assistant:".

    A system prompt that the template refuses or leaves out goes in front of the first user message. `opening`: whether
    the text goes on to where the assistant begins to speak; a plain dialogue always does.
    """
    if not loaded.has_chat_template:
        return _render_plainly(loaded, messages, system)
    if system and accepts_system(loaded):
        messages = [{"role": "system", "content": system}, *messages]
    elif system:
        first, *rest = messages
        messages = [{**first, "content": f"{system}\n\n{first['content']}"}, *rest]
    return _apply_template(loaded, messages, opening)


def accepts_system(loaded: LoadedModel) -> bool:
    """Whether the chat template takes a system message and shows it. Found out by trying."""
    probe = "kvcache system probe"
    try:
        text = _apply_template(loaded, [{"role": "system", "content": probe}, {"role": "user", "content": "?"}])
    except ConversationError:
        return False
    return probe in text


def _apply_template(loaded: LoadedModel, messages: Sequence[Message], opening: bool = True) -> str:
    try:
        # enable_thinking: Qwen3's switch; templates without it ignore it. Its thoughts would eat a short reply whole.
        return loaded.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=opening, enable_thinking=False
        )
    except Exception as error:  # templates are programs: they raise whatever they like
        raise ConversationError(f"The chat template of {loaded.id} refuses these messages: {error}") from error


def _render_plainly(loaded: LoadedModel, messages: Sequence[Message], system: str | None) -> str:
    tokenizer = loaded.tokenizer
    parts = [tokenizer.bos_token] if tokenizer.bos_token_id in tokenizer("a")["input_ids"][:1] else []
    parts += [f"{system}\n\n"] if system else []
    for number, message in enumerate(messages):
        content = message["content"]
        if message["role"] == "user":
            parts.append(f"{chr(10) if number else ''}User: {content}\nAssistant:")
        else:
            parts.append(content if content[:1].isspace() else f" {content}")
    return "".join(parts)


def tokenize(loaded: LoadedModel, text: str) -> list[int]:
    """Token ids of rendered text: the template has put special tokens in already."""
    return list(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


# ------------------------------------------------------------------------------------------- models with an encoder


def chats(loaded: LoadedModel) -> bool:
    """Does the conversation go on from turn to turn? Of models with an encoder only where the decoder was made for it.

    That is where the chat template opens with what the decoder starts from. There the encoder reads the system message
    and the decoder the rest of the chat. Elsewhere, as with the T5s, the encoder reads a message, behind the system
    prompt, and the decoder answers: each message stands by itself.
    """
    if not loaded.is_encoder_decoder:
        return True
    if not loaded.has_chat_template:
        return False
    return tokenize(loaded, _apply_template(loaded, [{"role": "user", "content": "?"}]))[:1] == [loaded.decoder_start_id]


def source_ids_of(loaded: LoadedModel, message: str, system: str | None = None) -> list[int]:
    """What the encoder reads before the reply to `message`, as ids; none for a model without one."""
    if not loaded.is_encoder_decoder:
        return []
    if not chats(loaded):
        return list(loaded.tokenizer(f"{system}\n\n{message}" if system else message, verbose=False)["input_ids"])
    if not system:
        return [loaded.decoder_start_id]
    messages = [{"role": "system", "content": system}]
    return tokenize(loaded, _apply_template(loaded, messages, opening=False) if accepts_system(loaded) else system)


# -------------------------------------------------------------------------------------------------------------- turns


@dataclass(frozen=True)
class Turn:
    """One question and its reply. `prompt_ids` is everything fed before the reply; empty where only text is known."""

    user: str
    reply: str
    prompt_text: str = ""
    opening: int = 0  # characters of prompt_text before the part that opens the reply
    prompt_ids: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    end: str = ""  # how the text of reply_ids goes on behind `reply`: an end-of-text token or a swallowed stop text
    seed: int = 0
    stats: Stats | None = None
    typed_seed: int | None = None  # the one asked for, where tokens were drawn: of a reply made again, `seed` has moved on
    sampling: Sampling | None = None
    reason: str = ""  # why the reply ended, as the engine says it; "" where only text is known
    versions: tuple[Turn, ...] = ()  # all replies made to this message, each without versions of its own; empty where there is one
    version: int = 0  # which of them this is

    @property
    def alone(self) -> Turn:
        """This reply without the others."""
        return replace(self, versions=(), version=0)

    def beside(self, other: Turn) -> Turn:
        """This new reply beside those that there were, `other` the one shown last. One with the same ids takes the place of the one there was."""
        versions = list(other.versions or (other.alone,))
        same = next((n for n, turn in enumerate(versions) if turn.reply_ids == self.reply_ids), len(versions))
        versions[same:same + 1] = [self]
        return replace(self, versions=tuple(versions), version=same) if len(versions) > 1 else self

    def instead_of(self, other: Turn) -> Turn:
        """This reply in the place of one of several."""
        versions = tuple(self if n == other.version else turn for n, turn in enumerate(other.versions))
        return replace(self, versions=versions, version=other.version)


@dataclass(frozen=True)
class _Plan:
    """What a reply is about to be made from; checked, nothing changed yet."""

    found: tuple[Turn, ...]  # all turns when it was made
    turns: tuple[Turn, ...]  # the turns before it
    user: str
    prompt_text: str
    opening: int
    prompt_ids: tuple[int, ...]
    source_ids: tuple[int, ...]
    sampling: Sampling
    begun: Turn | None = None  # the reply that is to go on

    @property
    def ids(self) -> tuple[int, ...]:
        """All that is to be in the cache before the next token is picked."""
        return (*self.prompt_ids, *self.begun.reply_ids) if self.begun else self.prompt_ids


class _Written:
    """What there is of a reply: `seen` tokens were in the cache before it."""

    def __init__(self, plan: _Plan, seen: int, kept: int, note: str, checkpoints: Checkpoints) -> None:
        self.plan, self.seen, self.kept, self.note, self.checkpoints = plan, seen, kept, note, checkpoints
        self.pieces: list[str] = []
        self.ids: list[int] = []
        self.reason = "stopped"  # unless the engine says another
        self.stats = Stats(seen, 0, 0, 0.0, 0.0, 0.0, 0, note, kept)

    @property
    def figures(self) -> Stats:
        """Of the whole reply, what there was of it before included."""
        begun = self.plan.begun
        return joined(begun.stats, self.stats) if begun and begun.stats else self.stats


class Conversation:
    """Messages, token ids and the cache they live in; without `cache_name`, the first of the catalog that suits the model.

    `ids` are the true token ids so far, `cached_ids` those that the cache has seen: after a reply all but the last. With
    an encoder they are the decoder's, and `heard_ids` what the encoder has read: see `chats`.
    `send` and `regenerate` check everything at once, raising ConversationError, and return an iterator of the engine's
    events. Breaking off that iterator counts as Stop. `make_cache` replaces the catalog for caches of one's own. `decode`: as of `engine.generate_tokens`.
    `generate`: what makes the events; `scheduler.generate_tokens` has conversations on one model write at once. `prefixes`: where what others have read is found, and left for others; as `prefixes.store_of`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache_name: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        system: str | None = None,
        sampling: Sampling = Sampling(),
        make_cache: Callable[[], Any] | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        decode: str | None = None,
        generate: Callable[..., Iterator[Event]] = generate_tokens,
        prefixes: Callable[[LoadedModel], PrefixStore | None] = lambda loaded: None,
    ) -> None:
        self.loaded = loaded
        self.cache_name = cache_name = cache_name or catalog.first_fitting(loaded.config)
        self.parameters = dict(parameters or {})
        self.system = system.strip() if system and system.strip() else None
        self.sampling = sampling.check()
        self.prefill_chunk = prefill_chunk
        self.decode = checked_decode(decode)
        self.generate, self.prefixes = generate, prefixes
        self._make_own_cache = make_cache
        self._turns: tuple[Turn, ...] = ()
        self._beginning = threading.Lock()
        self._writing: _Plan | None = None  # the reply being written, if any
        self._fresh_because = ""  # why the cache starts empty, for the note of the next reply
        self.cached_ids: list[int] = []
        self.heard_ids: list[int] = []
        self.cache = self._make_cache()

    @classmethod
    def from_messages(
        cls,
        loaded: LoadedModel,
        cache_name: str,
        parameters: Mapping[str, Any] | None,
        messages: Sequence[Message],
        system: str | None = None,
        sampling: Sampling = Sampling(),
        **options: Any,
    ) -> Conversation:
        """A conversation that goes on from `messages` on a new cache, which the next reply fills.

        A leading system message counts as `system`. Raises ConversationError unless user and assistant alternate.
        """
        messages = [dict(message) for message in messages]
        if messages and messages[0].get("role") == "system":
            system = system or messages[0]["content"]
            messages = messages[1:]
        roles = [message.get("role") for message in messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise ConversationError(f"messages must go user, assistant, user, assistant, ..., got {roles}")
        conversation = cls(loaded, cache_name, parameters, system, sampling, **options)
        pairs = zip(messages[::2], messages[1::2])
        conversation._turns = tuple(Turn(user["content"], reply["content"]) for user, reply in pairs)
        conversation._fresh_because = "the cache is new" if messages else ""
        return conversation

    def with_cache(self, cache_name: str, parameters: Mapping[str, Any] | None = None) -> Conversation:
        """The same conversation, true token ids and all, on a new cache that the next reply fills. This one stays as it is."""
        self._check_ready()
        other = Conversation(self.loaded, cache_name, parameters, self.system, self.sampling, prefill_chunk=self.prefill_chunk, decode=self.decode, generate=self.generate, prefixes=self.prefixes)
        other._turns = self._turns
        other._fresh_because = "the cache is new" if self._turns else ""
        return other

    def with_turns(self, turns: Sequence[Turn], because: str) -> Conversation:
        """The same settings on a new cache, having said `turns`; `because` is what the next reply's note says of computing them."""
        other = self.with_cache(self.cache_name, self.parameters)
        other._turns, other._fresh_because = tuple(turns), because
        return other

    def on(self, cache: Any, cached_ids: Sequence[int], heard_ids: Sequence[int] = ()) -> Conversation:
        """This conversation on a cache that has seen `cached_ids`, and whose encoder's side has heard `heard_ids`; returns itself."""
        self._check_ready()
        self.cache, self.cached_ids, self.heard_ids = cache, list(cached_ids), list(heard_ids)
        return self

    def fork(self, turns: int | None = None) -> Conversation:
        """A branch that goes on from the first `turns`, or from all: its cache shares its bytes with this one's until one of the two writes.

        That of a branch from earlier is cut back, or emptied where it cannot go back; then the next reply computes again and says so.
        """
        self._check_ready()
        other = self.with_turns(self._turns[:turns], self._fresh_because).on(self.cache.fork(), self.cached_ids, self.heard_ids)
        if len(other.turns) < len(self.turns):
            other._go_back_to_turns()
        return other

    # -- what it holds

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every message with its reply, their true ids, and how the reply was drawn."""
        return self._turns

    @property
    def messages(self) -> list[Message]:
        """User and assistant messages in order, without the system prompt. A copy."""
        return _messages(self._turns)

    @property
    def ids(self) -> list[int]:
        """The token ids of the conversation so far; empty where it came from messages and nothing was sent since."""
        return [*self._turns[-1].prompt_ids, *self._turns[-1].reply_ids] if self._turns else []

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(first, end) of each message's tokens in `ids`; what the template puts before a message counts to it. (0, 0) where only text is known."""
        spans: list[tuple[int, int]] = []
        for turn in self._turns:
            begun, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.reply_ids)
            spans += [(min(spans[-1][1] if spans else 0, begun), begun), (begun, end)]
        return spans

    @property
    def stats(self) -> list[Stats | None]:
        """Figures of each reply; None for a reply that came from messages."""
        return [turn.stats for turn in self._turns]

    # -- what one can do

    def send(self, text: str, stop: threading.Event | None = None) -> Iterator[Event]:
        """Answer `text`. Stopped before its first token, the message is taken back and Done's note says so."""
        plan = self._plan(self._turns, self._check_message(text), self.sampling)
        return self._reply(plan, stop)

    def regenerate(self, stop: threading.Event | None = None) -> Iterator[Event]:
        """Answer the last message again, with the next seed where tokens are drawn. The old reply stays until then."""
        self._check_ready()
        if not self._turns:
            raise ConversationError("There is no reply to make again: send a message first.")
        *earlier, last = self._turns
        sampling = self.sampling
        if sampling.temperature > 0 and sampling.seed == last.typed_seed:  # another one that was typed since is taken as it is
            sampling = replace(sampling, seed=(last.seed + 1) % 2**63)
        return self._reply(self._plan(tuple(earlier), last.user, sampling), stop)

    def extend(self, stop: threading.Event | None = None) -> Iterator[Event]:
        """Go on with the last reply, which was cut or stopped, for up to `sampling.max_new_tokens` more, drawn as it was: with the ids of one that was never cut."""
        self._check_ready()
        last = self._turns[-1] if self._turns else None
        if last is None or last.reason not in EXTENDABLE or last.sampling is None:
            raise ConversationError("The last reply has not been cut: there is nothing to go on with.")
        written = len(last.reply_ids)
        sampling = replace(last.sampling, seed=last.seed, max_new_tokens=self.sampling.max_new_tokens).check()
        source = source_ids_of(self.loaded, last.user, self.system)
        limit, what, advice = self._limit()
        if limit is not None and len(last.prompt_ids) + written > limit:
            raise ConversationError(f"The conversation has {len(last.prompt_ids) + written:,} tokens, and {what} takes {limit:,}: {advice}.")
        return self._reply(_Plan(self._turns, self._turns[:-1], last.user, last.prompt_text, last.opening, last.prompt_ids, tuple(source), sampling, last), stop)

    def show_version(self, version: int) -> None:
        """Make another of the last message's replies, from 0, the conversation's own. The cache goes back to where they part; one that can't is emptied, and the next reply says so."""
        self._check_ready()
        last = self._turns[-1] if self._turns else None
        if last is None or not 0 <= version < len(last.versions):
            raise ConversationError(f"There is no version {version + 1} of the last reply: it has {max(1, len(last.versions)) if last else 0}.")
        self._turns = (*self._turns[:-1], replace(last.versions[version], versions=last.versions, version=version))
        self._go_back_to_turns()

    def undo(self) -> str:
        """Take back the last message and its reply, from the cache too; returns the message. A cache that can't go back is emptied."""
        self._check_idle()
        if not self._turns:
            raise ConversationError("There is nothing to undo: the conversation is empty.")
        *earlier, last = self._turns
        self._turns = tuple(earlier)
        if self.loaded is not None:
            self._go_back_to_turns()
        return last.user

    def clear(self) -> None:
        """Forget every message and empty the cache."""
        self._check_ready()
        self._turns = ()
        self._empty_cache("")

    def release(self) -> None:
        """Free the cache's memory and keep the messages; the next reply recomputes and says so."""
        self._check_ready()
        self._renew_cache("the cache had been freed")

    def detach(self) -> None:
        """Let go of the cache and of the model too; only the messages and their ids stay, until `attach`."""
        self._check_idle()
        self.loaded, self.cache = None, None
        self.cached_ids, self.heard_ids = [], []

    def attach(self, loaded: LoadedModel) -> None:
        """Go on after `detach`, on the same model loaded again; the next reply recomputes and says so."""
        self.loaded = loaded
        self._renew_cache("the cache had been freed")

    # -- checks, before anything changes

    def _check_idle(self) -> None:
        if self._writing is not None:
            raise ConversationError("The last reply is still being written: wait for it or press Stop.")

    def _check_ready(self) -> None:
        self._check_idle()
        if self.loaded is None:
            raise ConversationError("The conversation has let go of its model: attach it first.")

    def _check_message(self, text: str) -> str:
        self._check_ready()
        if not isinstance(text, str) or not text.strip():
            raise ConversationError("The message is empty: write something.")
        self._check_text("message", text, self._limit() if chats(self.loaded) else self._source_limit())
        return text

    def _check_text(self, name: str, text: str, limit_of_tokens: tuple[int | None, str, str]) -> None:
        """Raise ConversationError for what is too long by its characters alone, before it is tokenised, or has half a character."""
        limit, what, advice = limit_of_tokens
        least = len(text) // longest_token(self.loaded.tokenizer)
        if limit is not None and least > limit:
            raise ConversationError(
                f"The {name} has {len(text):,} characters, at least {least:,} tokens, and {what} takes {limit:,} "
                f"tokens: {advice}."
            )
        if len(text) > MAX_MESSAGE_CHARACTERS:
            raise ConversationError(
                f"The {name} has {len(text):,} characters, and {MAX_MESSAGE_CHARACTERS:,} is the most that is taken: "
                "shorten it."
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ConversationError(f"The {name} has half a character in it, a surrogate without the other half: type it again.")

    def _limit(self) -> tuple[int | None, str, str]:
        """The most tokens a prompt may have (None: any number), what sets that limit, and what would help."""
        left, reason = room_left(self.loaded, self.cache, 0)
        if left == float("inf"):
            return None, "", ""
        if reason == "capacity":
            return int(left), "this cache", "shorten it, begin a new conversation, or give the cache a larger capacity"
        return int(left), f"the context of {self.loaded.title}", (
            "shorten it, begin a new conversation, or pick a cache with a window or a model with a longer context"
        )

    def _source_limit(self) -> tuple[int | None, str, str]:
        """The same of what the encoder reads."""
        return self.loaded.context_length, f"the encoder of {self.loaded.title}", "shorten it"

    def _plan(self, turns: tuple[Turn, ...], user: str, sampling: Sampling) -> _Plan:
        self._check_ready()
        self._check_text("system prompt", self.system or "", self._source_limit() if self.loaded.is_encoder_decoder else self._limit())
        try:
            sampling = sampling.check()
        except ValueError as error:
            raise ConversationError(str(error)) from error
        source = source_ids_of(self.loaded, user, self.system)
        limit, what, advice = self._source_limit()
        if limit is not None and len(source) > limit:
            raise ConversationError(f"The text to read has {len(source):,} tokens, and {what} takes {limit:,}: {advice}.")
        text, opening, ids = self._prompt(turns, user)
        limit, what, advice = self._limit()
        if limit is not None and len(ids) > limit:
            own = len(tokenize(self.loaded, user))
            raise ConversationError(
                f"With this message of {own:,} tokens the conversation has {len(ids):,}, and {what} takes {limit:,}: "
                f"{advice}."
            )
        return _Plan(self._turns, turns, user, text, opening, tuple(ids), tuple(source), sampling)

    def _prompt(self, turns: tuple[Turn, ...], user: str) -> tuple[str, int, list[int]]:
        """The prompt as text, how many of its characters stand before the part that opens the reply, and as ids."""
        if not chats(self.loaded):
            return "", 0, [self.loaded.decoder_start_id]
        messages = [*_messages(turns), {"role": "user", "content": user}]
        system = None if self.loaded.is_encoder_decoder else self.system
        text = render(self.loaded, messages, system)
        opening = render(self.loaded, messages, system, opening=False)
        return text, common_prefix(opening, text), self._ids_of(turns, text)

    def _ids_of(self, turns: tuple[Turn, ...], text: str) -> list[int]:
        """Ids of the rendered prompt: the true ids go on where they can, or else all of it is tokenised afresh.

        Tokenising a sampled reply again may give other ids than were sampled, and the cache has seen the sampled ones.
        """
        known = _continue(turns[-1], text, self.loaded.eos_ids) if turns and turns[-1].prompt_ids else None
        if known is None:
            return tokenize(self.loaded, text)
        ids, rest = known
        return [*ids, *tokenize(self.loaded, rest)]

    # -- the reply

    def _reply(self, plan: _Plan, stop: threading.Event | None) -> Iterator[Event]:
        self._begin(plan)
        events: Any = None
        try:
            cuts = self._cuts((*plan.turns, *([plan.begun] if plan.begun else [])), plan.ids)
            store = self.prefixes(self.loaded) if self._make_own_cache is None else None
            note, kept = self._rewind(plan.ids, plan.source_ids, cuts, store)
            unheard = () if self.heard_ids else plan.source_ids
            note = _join(note, f"the encoder read {len(unheard):,} token{'s' * (len(unheard) != 1)}" if unheard else "")
            written = _Written(plan, len(self.cached_ids), kept, note, Checkpoints(store, self.cache, plan.source_ids))
            events = self._events(plan, unheard, stop, cuts, written.checkpoints)
            for event in events:
                yield self._take(written, event)
            written.checkpoints.put()
        except GeneratorExit:  # the caller broke off: the same as Stop
            self._take_rest(written, events)
            if self._writing is plan:
                self._keep(written)
            written.checkpoints.put()
            raise
        except BaseException:
            if events is not None:
                events.close()
            if self._writing is plan:
                self._renew_cache("the cache was rebuilt after an error")
            raise
        finally:
            if self._writing is plan:
                self._writing = None

    def _events(self, plan: _Plan, unheard: Sequence[int], stop: threading.Event | None, cuts: Sequence[int], checkpoints: Checkpoints) -> Any:
        """The engine's, of what the cache has not seen."""
        seen = len(self.cached_ids)

        def on_read(seen: int) -> None:
            if checkpoints.in_prompt and seen < len(plan.prompt_ids):
                checkpoints.note(plan.prompt_ids[:seen])

        return self.generate(
            self.loaded,
            self.cache,
            plan.ids[seen:],
            plan.ids[:seen],
            plan.sampling,
            stop,
            self.prefill_chunk,
            self._stop_text,
            unheard,
            self.decode,
            cuts,
            on_read,
            len(plan.ids) - len(plan.prompt_ids),
        )

    @property
    def _stop_text(self) -> str | None:
        return None if self.loaded.has_chat_template or self.loaded.is_encoder_decoder else PLAIN_STOP

    def _take(self, written: _Written, event: Event) -> Event:
        """Note what an event says of the cache and the reply; the event as it is handed on."""
        plan, stats = written.plan, written.stats
        if isinstance(event, Prefill):
            self.heard_ids = list(plan.source_ids)
            self.cached_ids = list(plan.ids[: written.seen + event.done])
            written.stats = replace(stats, computed=event.done, cache_nbytes=event.snapshot.total)
        elif isinstance(event, Token):
            self.cached_ids += written.ids[-1:]
            written.ids.append(event.id)
            written.pieces.append(event.text)
            first = stats.time_to_first_token or event.seconds
            written.stats = replace(stats, generated=len(written.ids), time_to_first_token=first, cache_nbytes=event.snapshot.total)
        elif isinstance(event, Done):
            written.pieces.append(event.text)
            note = written.note if written.ids else _join(written.note, STOPPED_EARLY["reply" if plan.begun else "message"])
            written.stats, written.reason = replace(event.stats, note=_join(note, event.stats.note), kept=written.kept), event.reason
            event = replace(event, stats=written.figures)
            self._keep(written)
            if written.ids:
                written.checkpoints.note(self.cached_ids)
            self._writing = None  # whoever hears Done may go on at once
        return event

    def _begin(self, plan: _Plan) -> None:
        with self._beginning:  # of two threads that ask at once, one is told to wait
            self._check_idle()
            if plan.found != self._turns:
                raise ConversationError("The conversation has changed since this reply was asked for: send it again.")
            self._writing = plan

    def _take_rest(self, written: _Written, events: Any) -> None:
        """Stop the reply, and take in what was written while the caller looked away."""
        events.close()
        try:
            for event in events:
                self._take(written, event)
        except Exception as error:  # nobody listens any more: the log is told, and whoever sends next reads that the cache is new
            logger.warning("a reply that nobody waits for broke off: %s", error)
            self._renew_cache("the cache was rebuilt after an error")

    def _keep(self, written: _Written) -> None:
        """Make the reply, whole or partial, part of the conversation; without a token there is no turn."""
        plan = written.plan
        if not written.ids:
            return
        self._fresh_because = ""  # this reply's note has said it
        before = plan.begun.reply_ids if plan.begun else ()
        ids = [*before, *written.ids]
        reply = Detokenizer(self.loaded.tokenizer, self._stop_text).read(before) + "".join(written.pieces)
        turn = Turn(
            plan.user,
            reply,
            plan.prompt_text,
            plan.opening,
            plan.prompt_ids,
            tuple(ids),
            self._end_of(reply, ids),
            plan.sampling.seed,
            written.figures,
            (plan.begun.typed_seed if plan.begun else self.sampling.seed) if plan.sampling.temperature > 0 else None,
            replace(plan.sampling, max_new_tokens=len(before) + plan.sampling.max_new_tokens),
            written.reason,
        )
        self._turns = (*plan.turns, self._among_versions(turn, plan))

    def _among_versions(self, turn: Turn, plan: _Plan) -> Turn:
        """The turn with the other replies that were made to its message."""
        if plan.begun:
            return turn.instead_of(plan.begun)
        made_again = len(plan.found) > len(plan.turns)
        return turn.beside(plan.found[-1]) if made_again and plan.found[-1].reply_ids else turn

    def _end_of(self, reply: str, reply_ids: list[int]) -> str:
        """What the ids of a reply say behind its text: the end-of-text token, or the stop text that ended it."""
        tokenizer = self.loaded.tokenizer
        if reply_ids[-1] in self.loaded.eos_ids:
            return tokenizer.decode(reply_ids[-1:])
        said = tokenizer.decode(reply_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return said[len(reply) :] if said.startswith(reply + PLAIN_STOP) else ""

    # -- the cache

    def _cuts(self, turns: Sequence[Turn], ids: Sequence[int]) -> list[int]:
        """Lengths of `ids` at which a forward ended when `turns` were fed: a message at once, its reply token by token.

        A cache that evicts or rounds holds other things when the same ids are cut otherwise. None where it makes no difference.
        """
        exact = self._make_own_cache is None and not catalog.entry(self.cache_name).lossy
        return [] if exact else cuts_of(turns, ids)

    def _rewind(self, prompt_ids: Sequence[int], source_ids: Sequence[int], cuts: Sequence[int] = (), store: PrefixStore | None = None) -> tuple[str, int]:
        """Bring the cache back to what it shares with `prompt_ids`, less one token at least, or take one that shares more. Returns a note or "", and how many tokens are the store's."""
        seen = len(self.cached_ids)
        if seen != _seen_by(self.cache, seen) or len(self.heard_ids) != heard_by(self.cache):
            self._renew_cache("the cache was not as this conversation had left it")
            seen = 0
        if self.heard_ids and self.heard_ids != list(source_ids):
            self._empty_cache("the encoder has another text to read" if chats(self.loaded) else "")
            seen = 0
        self._go_back(min(common_prefix(self.cached_ids, prompt_ids), len(prompt_ids) - 1), cuts)
        stored = self._take_prefix(prompt_ids, source_ids, store) if store is not None and len(prompt_ids) - len(self.cached_ids) > LEAST else 0
        if not self._fresh_because:
            return "", stored
        kept, total = len(self.cached_ids), len(prompt_ids)  # some are there where the reply before was stopped as it began
        return (f"recomputed all {total:,}: {self._fresh_because}" if not kept else f"recomputed {total - kept:,} more of {total:,}: {self._fresh_because}"), stored

    def _take_prefix(self, prompt_ids: Sequence[int], source_ids: Sequence[int], store: PrefixStore) -> int:
        """Go on from a cache of the store's that has seen more of these ids than this one; how many, or 0."""
        if store.longest(prompt_ids, self.cache_name, source_ids=source_ids, **self.parameters) < len(self.cached_ids) + LEAST:
            return 0
        cache, length = store.match(prompt_ids, self.cache_name, source_ids=source_ids, **self.parameters)
        if length <= len(self.cached_ids):
            return 0
        self.cache, self.cached_ids, self.heard_ids = cache, list(prompt_ids[:length]), list(source_ids)
        return length

    def _go_back_to_turns(self) -> None:
        """Have the cache see no more than the turns there are."""
        ids = self.ids if chats(self.loaded) else []
        self._go_back(common_prefix(self.cached_ids, ids[:-1]), self._cuts(self._turns, ids))

    def _go_back(self, shared: int, cuts: Sequence[int]) -> None:
        """Cut the cache to `shared` tokens, or to the last of `cuts` before, so that all that follows is cut as it was; empty it where it can't go back."""
        seen = len(self.cached_ids)
        target = max((cut for cut in cuts if cut <= shared), default=shared)
        exact = target >= getattr(self.cache, "exact_crop_floor", 0)
        if shared >= seen or (target > 0 and exact and self._cut(target)):
            return
        back, floor = target or shared, _crop_floor(self.cache, seen)
        no_way_back = f"this cache can't go back from {seen:,} to {back:,} tokens" + (f", only to {floor:,}" if 0 < floor < seen else "")
        self._empty_cache((no_way_back if floor > back else "read again in the pieces it was read in") if shared else "")

    def _make_cache(self) -> Any:
        if self._make_own_cache is not None:
            return self._make_own_cache()
        reason = catalog.entry(self.cache_name).why_not_alone(self.loaded.config)
        if reason:
            raise ValueError(f"{self.cache_name}: {reason}")
        with self.loaded.forward_lock:  # some caches try out the model first
            return catalog.create(self.cache_name, self.loaded.model, **self.parameters)

    def _cut(self, length: int) -> bool:
        """Crop the cache to `length` tokens; False where it can't."""
        seen = len(self.cached_ids)
        if length < _crop_floor(self.cache, seen):
            return False
        try:
            self.cache.crop(length - seen)  # negative: every cache understands that
        except (ValueError, NotImplementedError, AttributeError):
            return False
        self.cached_ids = self.cached_ids[:length]
        return True

    def _empty_cache(self, reason: str) -> None:
        """Empty the cache and keep its storage for the next prompt."""
        self.cached_ids, self.heard_ids = [], []
        self._fresh_because = reason
        try:
            self.cache.reset()
        except Exception:  # a layer that was never filled, or was left half way by an error
            self.cache = self._make_cache()

    def _renew_cache(self, reason: str) -> None:
        """Replace the cache by a new one, whatever state it is in. New caches hold no memory before they are fed."""
        self.cached_ids, self.heard_ids = [], []
        self._fresh_because = reason if self._turns else ""
        self.cache = self._make_cache()


# ------------------------------------------------------------------------------------------------------------- pieces


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many leading ids, or characters, two sequences share."""
    if a == b[: len(a)]:
        return len(a)
    return next((index for index, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def joined(before: Stats, after: Stats) -> Stats:
    """The figures of a reply that went on: what was reused and computed before it began, all its tokens, and the rate of both parts together."""
    seconds = sum((stats.generated - 1) / stats.decode_tokens_per_second for stats in (before, after) if stats.decode_tokens_per_second)
    counted = sum(stats.generated - 1 for stats in (before, after) if stats.decode_tokens_per_second)
    return replace(before, generated=before.generated + after.generated, decode_tokens_per_second=counted / seconds if seconds else 0.0,
                   cache_nbytes=after.cache_nbytes, note=_join(before.note, after.note))


def cuts_of(turns: Sequence[Turn], ids: Sequence[int]) -> list[int]:
    """Lengths of `ids` at which a forward ended when `turns` were said: a message at once, its reply token by token."""
    cuts, ids = [0], tuple(ids)
    for turn in turns:
        end = len(turn.prompt_ids) + len(turn.reply_ids)
        shared = common_prefix((*turn.prompt_ids, *turn.reply_ids), ids)
        cuts += [cut for cut in range(max(1, len(turn.prompt_ids)), end) if cut <= shared]
    return cuts


def longest_token(tokenizer: Any) -> int:
    """Characters in the longest entry of the vocabulary, at least 1: no text has fewer tokens than length / this."""
    length = getattr(tokenizer, "_kvcache_longest_token", None)
    if length is None:
        length = max((len(token) for token in tokenizer.get_vocab()), default=1)
        tokenizer._kvcache_longest_token = length
    return max(length, 1)


def _messages(turns: Sequence[Turn]) -> list[Message]:
    return [
        {"role": role, "content": content}
        for turn in turns
        for role, content in (("user", turn.user), ("assistant", turn.reply))
    ]


def _continue(turn: Turn, text: str, end_ids: Container[int]) -> tuple[tuple[int, ...], str] | None:
    """The ids of a turn that a rendered prompt goes on from, and the text that follows; None where it does not.

    Templates often strip the reply: the ids keep the white space that was sampled. Some open a reply with more than
    they later repeat (Qwen3 with empty thoughts): the ids keep that too. Where the template ends a reply with something
    else than the end token of this one, out of `end_ids`, that token is left out: the cache has not seen it.
    """
    if not text.startswith(turn.prompt_text[: turn.opening]):
        return None
    rest = text[turn.opening :]
    rest = rest[common_prefix(rest, turn.prompt_text[turn.opening :]) :]
    said = turn.reply if rest.startswith(turn.reply) else turn.reply.strip()
    if not rest.startswith(said):
        rest = rest.lstrip()
        if not rest.startswith(said):
            return None
    rest = rest[len(said) :]
    if not turn.end:
        return turn.prompt_ids + turn.reply_ids, rest
    if rest.lstrip().startswith(turn.end.lstrip()):
        return turn.prompt_ids + turn.reply_ids, rest.lstrip()[len(turn.end.lstrip()) :]
    return (turn.prompt_ids + turn.reply_ids[:-1], rest) if turn.reply_ids[-1] in end_ids else None


def _seen_by(cache: Any, default: int) -> int:
    """Tokens a cache says it has seen; `default` for one that can't tell (purely recurrent layers raise)."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return default


def _crop_floor(cache: Any, seen: int) -> int:
    """The shortest length the cache can be cropped to; `seen` where it can't be cropped at all."""
    floor = getattr(cache, "crop_floor", None)
    if floor is None:
        floor = 0 if getattr(cache, "is_croppable", False) else seen
    return int(floor)


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
