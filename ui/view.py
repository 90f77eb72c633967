"""What one moment of a conversation looks like: messages, statistics, charts and ribbon, as values for widgets."""
from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

from kvcache import catalog
from kvcache.chat.conversation import EXTENDABLE, Turn
from kvcache.chat.engine import Compiling, Done, Prefill, Stats, Token, Waiting, room_left
from kvcache.layer import EvictingLayer, Layer
from kvcache.memory import Snapshot, heard_by, take_snapshot
from kvcache.recurrent import States

from . import charts, html_parts, token_ribbon
from .charts import human_bytes
from .state import Session, predict

LENGTHS = (("1k", 1_000), ("8k", 8_000), ("32k", 32_000))


# -- messages ----------------------------------------------------------------------------------------------------

def chat_messages(session: Session) -> list[dict[str, str]]:
    """The conversation for gr.Chatbot: after each reply a message of its own with the reply's statistics."""
    shown = []
    messages = session.conversation.messages if session.conversation else []
    turns = session.conversation.turns if session.conversation else ()
    stats, gone = iter(session.stats), forgotten(session)
    for n, message in enumerate(messages):
        if message["role"] == "user":
            shown.append(user_message(message["content"], gone.get(n)))
        else:
            shown.append(faded_reply(message, gone.get(n)))
            figures = next(stats)
            line = html_parts.stats_line(figures, turns[n // 2].reason) if figures else ""
            shown.append({"role": "assistant", "content": line + html_parts.actions(n // 2 + 1, **(last_actions(turns[-1]) if n == len(messages) - 1 else {}))})
    return shown


def last_actions(turn: Turn) -> dict[str, Any]:
    """What can be done with the last reply alone."""
    return {"can_go_on": turn.reason in EXTENDABLE, "version": turn.version + 1, "versions": len(turn.versions)}


PLAIN = re.compile(r"(?!\s|[-\s]+$|[-+]\s|\d+[.)]\s)(?:[^\W_]|[ ,.?!'\":;%()-])*")  # what Markdown shows as it is


def user_message(text: str, gone: tuple[int, int] | None = None) -> dict[str, str]:
    """What a person wrote, as it was typed: gr.Chatbot would read it as Markdown and HTML. gone: characters that the cache has forgotten."""
    if PLAIN.fullmatch(text) and not gone:
        return {"role": "user", "content": text}
    return {"role": "user", "content": f'<div class="kv-typed">{_faded(text, gone)}</div>'}


def faded_reply(message: dict[str, str], gone: tuple[int, int] | None) -> dict[str, str]:
    """A reply with what the cache has forgotten of it faded, where Markdown would show it as it is."""
    text = message["content"]
    return message | {"content": _faded(text, gone)} if gone and PLAIN.fullmatch(text.strip()) else message


def _faded(text: str, gone: tuple[int, int] | None) -> str:
    first, end = gone or (0, 0)
    pieces = (escape(part).replace(chr(10), "&#10;") for part in (text[:first], text[first:end], text[end:]))
    before, lost, after = pieces
    return before + (f'<span class="kv-gone" title="the cache has forgotten this">{lost}</span>' if lost else "") + after


class Reply:
    """A reply while it is being written: text so far, statistics so far, the latest snapshot. `begun`: the text that goes on."""

    def __init__(self, begun: str = "") -> None:
        self.text = self.begun = begun
        self.tokens = 0  # written now
        self.stats = Stats(0, 0, 0, 0.0, 0.0, 0.0, 0)
        self.snapshot: Snapshot | None = None
        self.reason = ""
        self.fates: Fates | None = None
        self.waiting_for = ""
        self._total = 0

    def add(self, event) -> None:
        """Take in one event of the engine."""
        self.snapshot = event.snapshot
        self.waiting_for = event.text if isinstance(event, Compiling | Waiting) else ""
        if isinstance(event, Prefill):
            self._total = event.total
            rate = event.done / event.seconds if event.seconds else 0.0
            self.stats = Stats(event.reused, event.done, 0, 0.0, rate, 0.0, event.snapshot.total)
        elif isinstance(event, Token):
            self.text, self.tokens = self.text + event.text, self.tokens + 1
            self.stats = self._after(event)
        elif isinstance(event, Done):
            self.text += event.text
            self.stats, self.reason = event.stats, event.reason

    def _after(self, token: Token) -> Stats:
        old = self.stats
        first = old.time_to_first_token or token.seconds
        rate = token.index / (token.seconds - first) if token.seconds > first else 0.0
        return Stats(old.reused, old.computed, token.index + 1, first, old.prefill_tokens_per_second, rate,
                     token.snapshot.total)

    def messages(self, user: str) -> list[dict[str, str]]:
        """User message, reply so far and its statistics so far, to stand after the earlier messages."""
        written = [user_message(user)]
        if self.begun:
            written.append({"role": "assistant", "content": self.text})
        if self.waiting_for:
            return written + [{"role": "assistant", "content": f'<span class="kv-stats">{escape(self.waiting_for)}</span>'}]
        if self.begun:
            return written + [{"role": "assistant", "content": html_parts.stats_line(self.stats)}]
        if self.stats.computed < self._total:
            line = f"reading the message: {self.stats.computed:,} of {self._total:,} tokens"
            return written + [{"role": "assistant", "content": f'<span class="kv-stats">{line}</span>'}]
        if not self.text:
            return written + [{"role": "assistant", "content": '<span class="kv-stats">thinking</span>'}]
        return written + [{"role": "assistant", "content": self.text},
                          {"role": "assistant", "content": html_parts.stats_line(self.stats)}]


TAKEN_BACK = "Stopped before the first token: the message was taken back."
THE_SAME = "The reply came out the same; a higher temperature makes another one likelier."
FORMER_STAYS = "Stopped before the first token: the former reply stays."
ENDINGS = {
    "length": "The reply has reached its longest length: Continue, under it, goes on from there.",
    "context": "The conversation has reached the model's context length. Clear it, or pick a cache with a window.",
    "capacity": "The cache is full. Clear the conversation, or give the cache a larger capacity.",
}


def ending(reply: Reply, unchanged: str = TAKEN_BACK) -> str:
    """A sentence where a reply ended for another reason than being finished; stopping by hand needs none, unless nothing was written: `unchanged`."""
    if reply.reason == "stopped" and not reply.tokens:
        return unchanged
    return ENDINGS.get(reply.reason, "")


# -- charts ------------------------------------------------------------------------------------------------------

def dynamic_nbytes(loaded, source_tokens: int = 0) -> Any:
    """A function: tokens -> bytes that a DynamicCache would use for them on this model, and for the text that its encoder read."""
    return lambda tokens: _dynamic_nbytes(loaded.config, loaded.dtype, tokens, source_tokens)


@lru_cache(maxsize=4096)
def _cached_dynamic(key, dtype, tokens: int, source_tokens: int) -> int:
    name = "encoder_decoder" if key.config.is_encoder_decoder else "dynamic"
    return predict(name, key.config, dtype, tokens, source_tokens).used


class _ById:
    """A config as a dictionary key: configs compare by value, which is slow, and can't be hashed."""

    def __init__(self, config) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other) -> bool:
        return self.config is other.config


def _dynamic_nbytes(config, dtype, tokens: int, source_tokens: int) -> int:
    if tokens <= 0:
        return 0
    try:
        return _cached_dynamic(_ById(config), dtype, tokens, source_tokens)
    except (ValueError, NotImplementedError):
        return 0


def predicted_nbytes(session: Session, tokens: int) -> int | None:
    """Bytes in use that the catalog predicts for this session's cache, or None where it has no closed form."""
    talk = session.conversation
    try:
        return predict(talk.cache_name, talk.loaded.config, talk.loaded.dtype, tokens, heard_by(talk.cache), **talk.parameters).used
    except (ValueError, NotImplementedError):
        return None


def own_side(cache):
    """The part of a cache that holds the conversation's tokens: of a pair, the decoder's."""
    return getattr(cache, "self_attention_cache", cache)


def limits(cache) -> dict[str, int | None]:
    """The window or the capacity to mark in the chart."""
    cache = own_side(cache)
    windows = [layer.window_length for layer in cache.layers if getattr(layer, "window_length", None)] if getattr(cache, "bounded", False) else []
    return {"window": max(windows, default=None), "capacity": getattr(cache, "capacity", None)}


def memory_chart(snapshot: Snapshot) -> str:
    """The chart's value; "" for a cache that holds nothing, of which no chart is drawn."""
    if not snapshot.total:
        return ""
    return html_parts.chart_value(charts.memory_figure(snapshot), charts.memory_words(snapshot))


def history_chart(session: Session, snapshot: Snapshot) -> str:
    """The chart's value; "" where nothing was processed."""
    if not session.history.processed:
        return ""
    talk = session.conversation
    dynamic = dynamic_nbytes(talk.loaded, heard_by(talk.cache))
    marks = limits(talk.cache)
    figure = charts.history_figure(session.history, dynamic, **marks)
    facts = charts.length_facts(snapshot, dynamic(snapshot.seen), predicted=predicted_nbytes(session, snapshot.seen), **marks)
    sentence = f"Over {session.history.processed:,} tokens processed the cache grew to {human_bytes(snapshot.total)}."
    return html_parts.chart_value(figure, sentence, facts)


def after_undo(session: Session) -> str:
    """What has become of the cache, where that is not what one expects."""
    empty = session.holds_messages and not session.conversation.cached_ids
    return " This cache can't go back: it is empty, and the next message has everything read again." if empty else ""


def charts_at_rest(session: Session) -> tuple[str, str, str]:
    """(memory, history, ribbon) of the cache as it is between two replies."""
    if not session.holds_messages or session.conversation.loaded is None:
        return "", "", ribbon(session, None)
    snapshot, cached = take_snapshot(session.conversation.cache), bool(session.conversation.cached_ids)
    return memory_chart(snapshot) if cached else "", history_chart(session, snapshot) if cached else "", ribbon(session, fates_of(session) if cached else None, pending=1)


Groups = list[tuple[str, list[tuple[str, int]]]]  # by group of layers, its title, and (fate, count) from the oldest to the newest token


@dataclass(frozen=True)
class Fates:
    """What a cache has done with each token. `shares`: where each head keeps its own, the share of heads that still hold it."""
    groups: Groups
    shares: list[float] | None = None

    @property
    def gone(self) -> list[tuple[int, int]]:
        """(first, end) of the tokens that no full-attention layer, or no head of any, holds."""
        runs = self.groups[0][1] if self.shares is None else [("full" if share else "evicted", 1) for share in self.shares]
        return token_ribbon.evicted_runs(runs)


def fates_of(session: Session) -> Fates | None:
    """What the layers of the session's cache have done with each token, or None where it can't tell."""
    cache = own_side(session.conversation.cache)
    if not hasattr(cache, "layer_fates"):
        return None
    groups, shares = layer_groups(cache), None
    with suppress(AttributeError, RuntimeError):  # of a cache that is being filled: its storage is just replaced
        shares = cache.held_shares() if hasattr(cache, "held_shares") else None
    return Fates(groups, shares) if groups else None


def layer_groups(cache) -> Groups:
    """Layers that have done the same with every token together, those of full attention first; one group needs no title."""
    groups: dict[tuple, list[int]] = {}
    for n, runs in enumerate(cache.layer_fates()):
        groups.setdefault((KINDS_OF_LAYERS.index(kind_of(cache.layers[n])), *runs), []).append(n)
    if len({key[1:] for key in groups}) <= 1:
        return [("", list(next(iter(groups))[1:]))] if groups else []
    return [(layers_words(KINDS_OF_LAYERS[kind], numbers), list(runs)) for (kind, *runs), numbers in sorted(groups.items(), key=lambda group: group[0][0])]


KINDS_OF_LAYERS = ("full-attention", "sliding-window", "recurrent")


def kind_of(layer) -> str:
    """Which of KINDS_OF_LAYERS a layer is."""
    if isinstance(layer, States) and not isinstance(layer, Layer):
        return "recurrent"
    return "sliding-window" if getattr(layer, "is_sliding", False) else "full-attention"


def layers_words(kind: str, numbers: Sequence[int]) -> str:
    """"full-attention layers 0, 3 to 5"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" if len(run) > 2 else f"{run[0]}, {run[1]}" for run in runs)
    return f"{kind} layer{'s' * (len(numbers) != 1)} {words}"


def ribbon(session: Session, fates: Fates | None, pending: int = 0) -> str:
    """Every token's fate, by group of layers where they differ; `pending` tokens were picked and not fed yet."""
    if fates is None:
        return token_ribbon.EMPTY
    talk, below = session.conversation, context_words(session, sum(count for _, count in fates.groups[0][1]))
    bits = getattr(own_side(talk.cache), "bits", None)
    if fates.shares is None and not says_which(talk.cache):
        return token_ribbon.ribbons_html(fates.groups, pending, bits, note=OF_EACH_HEAD, below=below)
    ids = talk.ids if len(talk.ids) > len(talk.cached_ids) else talk.cached_ids
    if fates.shares is not None:
        return token_ribbon.shares_html(fates.shares, pending, words_of(session, ids), talk.spans, below)
    return token_ribbon.ribbons_html(fates.groups, pending, bits, words_of(session, ids), talk.spans, below=below)


def context_words(session: Session, seen: int) -> str:
    """How much of what can be had is used: of the cache's capacity or the model's context, whichever ends sooner; "" where nothing ends."""
    talk = session.conversation
    most, limit = room_left(talk.loaded, talk.cache, 0)
    return "" if math.isinf(most) else f"{seen:,} of {most:,} tokens of the {'cache' if limit == 'capacity' else 'context'} used ({seen / most:.0%})"


OF_EACH_HEAD = "How many are left in each head. Which ones differs from head to head."


def says_which(cache) -> bool:
    """Do a cache's fates stand in the order of its tokens? Where each head keeps its own, they only count."""
    return not any(isinstance(layer, EvictingLayer) for layer in getattr(own_side(cache), "layers", ()))


def words_of(session: Session, ids: Sequence[int]) -> list[str]:
    """The text of each token; of one that is a part of a character, a mark."""
    loaded, known = session.conversation.loaded, session.words
    for token in {token for token in ids if (loaded.id, token) not in known}:
        known[loaded.id, token] = loaded.tokenizer.decode([token])
    return [known[loaded.id, token] for token in ids]


def forgotten(session: Session) -> dict[int, tuple[int, int]]:
    """By message, from 0, (first, end) of its characters whose tokens the cache holds no more."""
    talk = session.conversation
    fates = fates_of(session) if talk is not None and talk.loaded is not None and talk.cached_ids else None
    if fates is None or (fates.shares is None and not says_which(talk.cache)):
        return {}
    ids, gone = talk.ids, fates.gone
    found: dict[int, tuple[int, int]] = {}
    for n, (message, (start, end)) in enumerate(zip(talk.messages, talk.spans)):
        for first, last in ((max(start, first), min(end, last)) for first, last in gone):
            if first < last:
                found[n] = _characters(talk.loaded.tokenizer, ids[start:end], first - start, last - start, message["content"])
    return {n: span for n, span in found.items() if span[0] < span[1]}


def _characters(tokenizer, ids: Sequence[int], first: int, end: int, message: str) -> tuple[int, int]:
    """Which characters of a message the tokens [first, end) of its ids say."""
    def length(count: int) -> int:
        return len(tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False))

    before = max(0, tokenizer.decode(ids, clean_up_tokenization_spaces=False).find(message))
    return tuple(min(len(message), max(0, length(count) - before)) for count in (first, end))


# -- set-up ------------------------------------------------------------------------------------------------------

def prediction(cache: str, parameters, loaded) -> str:
    """The table "Predicted bytes", or the sentence that says what is wrong with the parameters."""
    entry = catalog.ENTRIES[cache]
    if entry.why_not_alone(loaded.config):
        return ""  # the line under the cache says why
    try:
        checked = entry.check(loaded.config, **parameters)
        rows = [_prediction_row(cache, checked, loaded, words, tokens) for words, tokens in LENGTHS]
    except ValueError as error:
        return html_parts.notice(str(error))
    except NotImplementedError:
        return '<p class="kv-quiet">No closed form predicts the bytes of this cache on this model.</p>'
    return html_parts.prediction_table(entry.describe(**checked), rows) + _text_line(cache, checked, loaded)


def _text_line(cache: str, parameters, loaded) -> str:
    if not loaded.is_encoder_decoder:
        return ""
    nbytes = [predict(cache, loaded.config, loaded.dtype, 1, source_tokens, **parameters).used for source_tokens in (1, 2)]
    return f'<p class="kv-quiet">Beside them {human_bytes(nbytes[1] - nbytes[0])} for each token that the encoder reads.</p>'


def _prediction_row(cache: str, parameters, loaded, words: str, tokens: int) -> tuple[str, int | None, int]:
    dynamic = dynamic_nbytes(loaded)(tokens)
    try:
        mine = predict(cache, loaded.config, loaded.dtype, tokens, **parameters).used
    except ValueError:  # beyond its capacity
        mine = None
    return words, mine, dynamic


def model_status(loaded) -> str:
    """The header's words: model, device, number format."""
    return f"{loaded.title} · {loaded.device.type} · {str(loaded.dtype).removeprefix('torch.')}"
