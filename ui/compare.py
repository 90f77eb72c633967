"""Two to four caches answer the same messages, token by token in turn; what differed is measured afterwards."""
from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcache import catalog
from kvcache.chat import models
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Compiling, Done, Stats, Token
from kvcache.measure.drift import first_divergence
from kvcache.memory import Snapshot, heard_by, take_snapshot

from .charts import POINT, History, decimate, used_nbytes
from .state import Settings, sampling_of
from .view import dynamic_nbytes

REFUSED = "refused"  # a turn's reason where its column had no room for the message
LONGEST_ANSWER = 40  # words


def says(reply: str, expected: str) -> bool:
    """Does a reply say the expected words, as a person would take it: written as they were told, in a sentence that is one."""
    whole = re.search(rf"(?<![\w-]){re.escape(expected)}(?![\w-])", reply) is not None
    return whole and (reply.strip() == expected or reads_as_a_sentence(reply))


def reads_as_a_sentence(text: str) -> bool:
    """Has a text an end, and no word three times running, nor anything that goes on without one? What a damaged cache says has not."""
    words = re.findall(r"\w+(?:['-]\w+)*", text)
    repeats = any(one.lower() == two.lower() == three.lower() for one, two, three in zip(words, words[1:], words[2:]))
    return 0 < len(words) <= LONGEST_ANSWER and not repeats and text.strip().rstrip("\"')*")[-1:] in tuple(".!?") and max(map(len, words)) <= 24


@dataclass
class Turn:
    """One message and a column's reply to it: token ids with the text each one added."""
    user: str
    expects: str = ""  # what a cache that remembers would say; "" where there is nothing to check
    tokens: list[tuple[int, str]] = field(default_factory=list)
    all_ids: list[int] = field(default_factory=list)  # the conversation's ids when the reply was over
    heard_ids: list[int] = field(default_factory=list)  # what the encoder, where there is one, had read
    stats: Stats | None = None
    reason: str = ""  # why it ended, as the engine says it
    waiting_for: str = "reading"  # what is done before the first token

    @property
    def ids(self) -> list[int]:
        return [token for token, _ in self.tokens]

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.tokens)

    @property
    def cut(self) -> bool:
        """Is the reply still being written, was it stopped by hand, or refused? Then the end of its tokens is no difference."""
        return self.reason in ("", "stopped", REFUSED)

    @property
    def remembered(self) -> bool | None:
        """Whether the reply says the expected words; None where there is nothing to check, or the reply was not finished."""
        return says(self.text, self.expects) if self.expects and self.reason == "eos" else None

    @property
    def garbled(self) -> bool:
        """Has a finished reply that was to say something come out as no sentence?"""
        return self.remembered is False and not reads_as_a_sentence(self.text)


@dataclass
class Column:
    """One cache in the comparison, with its own conversation."""
    label: str
    settings: Settings
    conversation: Conversation
    history: History = field(default_factory=History)
    turns: list[Turn] = field(default_factory=list)
    snapshot: Snapshot | None = None
    out: str = ""  # why it takes part no more: the sentence with which it refused a message
    kl: dict[int, float] = field(default_factory=dict)  # nats from the first column, by token of all that one's replies, from 0
    parting: dict[str, Any] | None = None  # where it first differs from the first column, and what both expected there; see `drift.measure`

    @property
    def mean_kl(self) -> float | None:
        return sum(self.kl.values()) / len(self.kl) if self.kl else None

    def begin(self, text: str, expects: str) -> None:
        """The next message."""
        self.turns.append(Turn(text, expects))
        self.history.start_turn()

    def refuse(self, sentence: str) -> None:
        """Take part no more: the message just begun has no room here."""
        self.out, self.turns[-1].reason = sentence, REFUSED

    def go_back(self, turns: int) -> None:
        """Take back all turns but the first `turns`."""
        while len(self.turns) > turns:
            if self.turns.pop().tokens:
                self.conversation.undo()
            self.history.undo_turn()

    def add(self, event) -> None:
        """Take in one event of the engine."""
        turn = self.turns[-1]
        self.snapshot = event.snapshot
        self.history.add(event)
        turn.waiting_for = event.text if isinstance(event, Compiling) else "reading"
        if isinstance(event, Token):
            turn.tokens.append((event.id, event.text))
        elif isinstance(event, Done):
            turn.stats, turn.reason = event.stats, event.reason
            turn.all_ids, turn.heard_ids = self.conversation.ids, self.conversation.heard_ids
            if event.text and turn.tokens:
                last, piece = turn.tokens[-1]
                turn.tokens[-1] = (last, piece + event.text)


class Comparison:
    """Columns that share model, system prompt and sampling. Raises ValueError, with the column's number, on a misfit."""

    def __init__(self, wanted: Sequence[Settings]) -> None:
        self.wanted = tuple(wanted)
        self.loaded = models.load(wanted[0].model)
        self.asked: list[tuple[str, str]] = []  # every message, and what a cache that remembers would say to it
        self.broken = False  # failed half way
        self.stopped = False  # in the last message
        self.taken_back = False  # the last message, because a column was stopped before its first token
        self.columns = [self._column(n, settings) for n, settings in enumerate(wanted)]
        self._number_twins()
        self.shadows: list = []  # second caches, fed the first column's text by `drift.measure`
        self.forced: list[int] = []  # tokens they have seen
        self.full: set[int] = set()  # columns whose second cache has no room for more of it: nothing is measured of them any more
        self.heard: list[int] = []  # what their encoder has read

    def _column(self, n: int, settings: Settings) -> Column:
        try:
            label = catalog.entry(settings.cache).describe(**_complete(settings, self.loaded.config))
            arguments = (self.loaded, settings.cache, settings.parameters, settings.system, sampling_of(settings))
            return Column(label, settings, Conversation(*arguments))
        except ValueError as error:
            raise ValueError(f"Cache {n + 1}: {error}") from error

    def _number_twins(self) -> None:
        labels = [column.label for column in self.columns]
        for n, column in enumerate(self.columns):
            if labels.count(column.label) > 1:
                column.label += f" ({labels[:n + 1].count(labels[n])})"

    @property
    def ended_early(self) -> bool:
        """Has the last message no reply of every column?"""
        return self.broken or self.stopped

    @property
    def caches(self) -> list:
        return [column.conversation.cache for column in self.columns] + self.shadows

    @property
    def alike(self) -> bool:
        """Do all columns hold the same cache with the same parameters?"""
        first, *others = ((each.cache, _complete(each, self.loaded.config)) for each in self.wanted)
        return all(other == first for other in others)

    @property
    def users(self) -> list[str]:
        return [text for text, _ in self.asked]

    def changed(self, wanted: Sequence[Settings]) -> Comparison | None:
        """This comparison with other caches in some columns: these answer the earlier messages first, the others stay. None where none stays."""
        kept = [n for n, (mine, new) in enumerate(zip(self.wanted, wanted)) if mine == new]
        if not kept:
            return None
        other = Comparison(wanted)
        other.asked = list(self.asked)
        for n in kept:
            self.columns[n].label = other.columns[n].label
            other.columns[n] = self.columns[n]
        if 0 not in kept:
            for column in other.columns:
                column.kl, column.parting = {}, None
        return other

    @property
    def behind(self) -> list[int]:
        """Columns, from 0, that have messages to catch up on."""
        return [n for n, column in enumerate(self.columns) if len(column.turns) < len(self.asked)]

    def ask(self, text: str, stop: threading.Event | None = None, expects: str = "") -> Iterator[Column]:
        """Send `text` to every column; one event of each in turn, yielding the column that has moved.

        A column that refuses the message takes part no more and says why. Raises ValueError, before anything has changed, where every column does.
        """
        replies: dict[int, Iterator] = {}
        refused: dict[int, str] = {}
        for n, column in enumerate(self.columns):
            try:
                if not column.out and n not in self.behind:
                    replies[n] = column.conversation.send(text, stop)
            except ValueError as error:
                refused[n] = str(error)
        if not replies and refused:
            n, sentence = min(refused.items())
            raise ValueError(f"Cache {n + 1}, {self.columns[n].label}: {sentence}")
        self.asked.append((text, expects))
        return self._interleave([self._answer(column, stop, replies.get(n), refused.get(n, "")) for n, column in enumerate(self.columns)])

    def _answer(self, column: Column, stop: threading.Event | None, reply: Iterator | None, refusal: str) -> Iterator[Column]:
        """One column's replies to all that it has not answered yet. `reply`: to the last message, where that is all."""
        for text, expects in self.asked[len(column.turns):]:
            column.begin(text, expects)
            try:
                if column.out or refusal:
                    raise ValueError(column.out or refusal)
                events = reply or column.conversation.send(text, stop)
            except ValueError as error:
                column.refuse(str(error))
                yield column
                continue
            for event in events:
                column.add(event)
                yield column
            if column.turns[-1].reason == "stopped":
                return

    def again(self, stop: threading.Event | None = None) -> Iterator[Column]:
        """Have every column that takes part answer the last message again, with the next seed where tokens are drawn; yields as `ask`.

        A column that is stopped before its first token keeps the reply that it had. Raises ValueError, before anything has changed, where there is none.
        """
        if not self.asked or self.broken or self.behind:
            raise ValueError("There is no reply of every column to make again: send a message first.")
        replies = {n: column.conversation.regenerate(stop) for n, column in enumerate(self.columns) if not column.out}
        self.shadows = []  # they have seen the reply that goes
        first = self.starts[-1]
        for column in self.columns:
            column.kl = {at: nats for at, nats in column.kl.items() if at < first}
            if column.parting and column.parting["turn"] == len(self.asked):
                column.parting = None
        return self._interleave([self._answer_again(self.columns[n], reply) for n, reply in replies.items()])

    def _answer_again(self, column: Column, reply: Iterator) -> Iterator[Column]:
        before = column.turns[-1]
        column.turns[-1] = Turn(before.user, before.expects)
        column.history.start_turn(again=True)
        for event in reply:
            column.add(event)
            yield column
        if not column.turns[-1].tokens:
            column.turns[-1] = before

    @property
    def starts(self) -> list[int]:
        """By turn, how many tokens of the first column's replies come before it."""
        return [sum(len(turn.ids) for turn in self.columns[0].turns[:n]) for n in range(len(self.columns[0].turns))]

    def _interleave(self, answers: list[Iterator[Column]]) -> Iterator[Column]:
        self.broken, self.stopped, self.taken_back = True, False, False  # until every column has finished
        running = list(answers)
        try:
            while running:
                for answer in list(running):
                    moved = next(answer, None)
                    if moved is None:
                        running.remove(answer)
                    else:
                        yield moved
            self.broken = False
            self.stopped = any(column.turns[-1].reason == "stopped" for column in self.columns)
            if self.stopped:
                self._keep_in_step()
        finally:
            for answer in answers:
                answer.close()

    def _keep_in_step(self) -> None:
        """After a stop: a message that some column has not begun to answer is taken back from all, so that they go on with the same ones."""
        if all(column.out or (len(column.turns) == len(self.asked) and column.turns[-1].tokens) for column in self.columns):
            return
        self.taken_back = True
        self.asked.pop()
        for column in self.columns:
            unfinished = column.turns[-1].reason == "stopped"
            column.go_back(min(len(self.asked), len(column.turns) - unfinished))

    def divergence(self, column: Column) -> tuple[int, int] | None:
        """(turn, token) of the first reply token that differs from the first column's, both from 0; None if none does."""
        for n, (mine, first) in enumerate(zip(column.turns, self.columns[0].turns)):
            length = compared_length(mine, first)
            at = first_divergence(mine.ids[:length], first.ids[:length])
            if at is not None:
                return n, at
        return None

    def agreement(self, column: Column) -> float | None:
        """Share of reply tokens equal to the first column's at the same place, over all turns; None where there are none."""
        same = total = 0
        for mine, first in zip(column.turns, self.columns[0].turns):
            same += sum(a == b for a, b in zip(mine.ids, first.ids))
            total += compared_length(mine, first)
        return same / total if total else None

    def rows(self) -> list[dict[str, Any]]:
        """The table: one dict of figures per column. Bytes, seconds, tokens per second, shares, nats."""
        return [self._row(column) for column in self.columns]

    def _row(self, column: Column) -> dict[str, Any]:
        snapshot = column.snapshot or take_snapshot(column.conversation.cache)
        dynamic = dynamic_nbytes(self.loaded, heard_by(column.conversation.cache))(snapshot.seen)
        stats = column.turns[-1].stats if column.turns else None
        checks = [turn.remembered for turn in column.turns if turn.remembered is not None]
        return {
            "cache": column.label, "name": column.settings.cache, "parameters": _complete(column.settings, self.loaded.config),
            "tokens_seen": snapshot.seen, "tokens_held": snapshot.held, "nbytes": snapshot.total,
            "used_nbytes": used_nbytes(snapshot), "reserved_nbytes": snapshot.total - used_nbytes(snapshot),
            "times_smaller_than_dynamic": round(dynamic / snapshot.total, 3) if snapshot.total and dynamic else None,
            "time_to_first_token": stats and stats.time_to_first_token,
            "decode_tokens_per_second": stats and stats.decode_tokens_per_second,
            "agreement": self.agreement(column), "diverges_at": _counted_from_one(self.divergence(column)),
            "mean_kl": column.mean_kl,
            "refused": column.out or None,
            "remembered": sum(checks) if checks else None, "checked": len(checks) or None,
        }

    def record(self) -> dict[str, Any]:
        """The whole run, for the JSON file and the API."""
        first = self.wanted[0]
        columns = [row | {
            "replies": [turn.text for turn in column.turns], "reply_ids": [turn.ids for turn in column.turns],
            "seeds": [turn.seed for turn in column.conversation.turns], "parting": column.parting, "kl": [[at + 1, nats] for at, nats in column.kl.items()],
            "history": [dict(zip(POINT, point)) for point in decimate(column.history.points)],
        } for row, column in zip(self.rows(), self.columns)]
        return {"model": self.loaded.id, "system": first.system, "sampling": dict(first.sampling), "messages": self.users,
                "columns": columns}


def compared_length(one: Turn, other: Turn) -> int:
    """How many tokens of two replies can be compared: those that both have where one was cut, else all of the longer."""
    shorter, longer = sorted((len(one.ids), len(other.ids)))
    return shorter if one.cut or other.cut else longer


def _counted_from_one(place: tuple[int, int] | None) -> dict[str, int] | None:
    return {"turn": place[0] + 1, "token": place[1] + 1} if place else None


def _complete(settings: Settings, config) -> dict[str, Any]:
    return catalog.entry(settings.cache).check(config, **settings.parameters)


def wanted_columns(model: str, system: str, sampling: Mapping[str, Any], caches: Sequence[tuple[str, Mapping[str, Any]]]
                   ) -> list[Settings]:
    """Settings of every column. Raises ValueError unless there are two to four."""
    if not 2 <= len(caches) <= 4:
        raise ValueError(f"a comparison takes two to four caches, got {len(caches)}")
    return [Settings(model, cache, parameters, system, sampling) for cache, parameters in caches]
