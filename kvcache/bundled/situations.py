"""Situations: short conversations, written one by one by language models, whose values are drawn anew each time, read from the lists in `situation_lists`.

Two boxes and whom they are for, a plan that changes, a question that leans on the one before it. A situation in the lists is a block: a line
`* system message | another wording` if it begins with one, lines `$x = kind` or `$x = : value; value`, one for each slot, then a chat as in
`chats`, with slots in its lines; a reply `=kind` is one of that kind in `repertoire`. What a reply has from a slot was told before. One situation
in ten is held out from training as a whole.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from . import chats, facts, lists, repertoire, values
from .grammar import article
from .marks import REFUSING, decisive, recalled

FOLDER = Path(__file__).parent / "situation_lists"
NEWEST = ("likes_by_the_way", "likes_and_habits", "two_in_one", "two_at_home", "roles_and_questions", "young_in_passing", "visits_moods", "visits_young", "visits_old", "visits_roles", "visits_testing", "visits_names", "visits_at_work")  # lists, which the weights that ship have read least often
DECLINES = ("You have not told me", "They have not told me")  # they: who wrote a system message
UNASKED = 0.6  # chance that a last question about something not told is left out: with all of them the model declined a quarter of what it was told
OF_THE_USER = re.compile(r"\b(my|our|I|we) | (me|us)\b")
SLOT = re.compile(r"(\b[aA] )?\$([a-z])\b")


@dataclass(frozen=True)
class Situation:
    """Where the value of each slot comes from (a kind of values, or a list of its own), the turns, and wordings of a system message or none."""

    slots: dict[str, str | tuple[str, ...]]
    chat: chats.Chat
    system: tuple[str, ...] = ()

    def draw(self, rng: Random, held: bool = False) -> dict[str, str]:
        """A value for each slot; no two are the same."""
        drawn: dict[str, str] = {}
        for slot, source in self.slots.items():
            while slot not in drawn:
                value = values.make(rng, source, held) if isinstance(source, str) else rng.choice(source)
                if value.lower() not in (other.lower() for other in drawn.values()):
                    drawn[slot] = value
        return drawn

    def begin(self, rng: Random, held: bool = False) -> tuple[str, list[tuple[str, str]]]:
        """The system message ("" for none), and messages and replies, these with marks."""
        drawn, said = self.draw(rng, held), self.chat
        if said[-1][1][0].startswith(DECLINES) and rng.random() < UNASKED:
            said = said[:-1]
        turns = filled(rng, said, drawn)
        return self.opened(rng, drawn), turns

    def opened(self, rng: Random, drawn: dict[str, str]) -> str:
        """The system message, or "" for none."""
        return fill(rng.choice(self.system), drawn) if self.system else ""


@cache
def situations(held: bool) -> tuple[Situation, ...]:
    """The situations of training, or those held out from it."""
    return tuple(read(block) for block in lists.blocks(FOLDER) if lists.held_out(block) == held)


@cache
def weighed() -> tuple[Situation, ...]:
    """Those of training, the newest several times."""
    return tuple(map(read, lists.weighed(FOLDER, NEWEST)))


def read(block: str) -> Situation:
    """A situation of its lines. Raises ValueError naming what is wrong with it."""
    lines = block.strip().split("\n")
    system = tuple(part.strip() for part in lines.pop(0)[2:].split(" | ")) if lines[0].startswith("* ") else ()
    slots = [line for line in lines if line.startswith("$")]
    chat = chats.read("\n".join(lines[len(slots):]))
    named = {line[1]: source(line) for line in slots}
    told = in_every(system)
    for messages, replies in chat:
        told = told | in_every(messages)
        for slot in set().union(*map(slots_in, (*system, *messages, *replies))):
            if slot not in named:
                raise ValueError(f"{messages[0]!r} or its reply has ${slot}, which no line says where to take from")
        if replies[0].startswith("=") and replies[0][1:] not in repertoire.kinds():
            raise ValueError(f"{replies[0]!r} after {messages[0]!r} is no kind of reply: those are {', '.join(repertoire.kinds())}")
        unknown = set().union(*map(slots_in, replies)) - told
        if unknown:
            raise ValueError(f"{replies[0]!r} answers with ${sorted(unknown)[0]}, which is not told before it in every wording")
    return Situation(named, chat, system)


def source(line: str) -> str | tuple[str, ...]:
    """A kind of values, or values of its own: what a line `$x = ...` says."""
    found = re.fullmatch(r"\$([a-z]) = (?:: (.+)|(\w+))", line)
    if not found or found[3] and found[3] not in values.MAKERS:
        raise ValueError(f"{line!r} names no values: it should be '$x = kind' or '$x = : value; value', with a kind out of {', '.join(values.MAKERS)}")
    return found[3] or tuple(dict.fromkeys(value.strip() for value in found[2].split(";") if value.strip()))


def slots_in(text: str) -> set[str]:
    """The slots of a text."""
    return {slot for _, slot in SLOT.findall(text)}


def in_every(wordings: tuple[str, ...]) -> set[str]:
    """The slots that each of some wordings has."""
    return set.intersection(*map(slots_in, wordings)) if wordings else set()


def fill(text: str, drawn: dict[str, str], show=str) -> str:
    """The text with values for slots, "a" made "an" where it belongs."""
    return SLOT.sub(lambda m: (f"{m[1][0]}{article(drawn[m[2]])[1:]} " if m[1] else "") + show(drawn[m[2]]), text)


def filled(rng: Random, chat: chats.Chat, drawn: dict[str, str]) -> list[tuple[str, str]]:
    """Messages and replies of a chat, these with marks."""
    told = repertoire.Stock(rng)
    return [(fill(rng.choice(messages), drawn), told.reply(replies[0][1:]) if replies[0].startswith("=") else marked(chats.reply(rng, replies), drawn)) for messages, replies in chat]


def marked(reply: str, drawn: dict[str, str]) -> str:
    """A reply with values and marks: what it recalls, and the words that decide between an answer and a refusal."""
    filled = fill(reply, {slot: yours(value) for slot, value in drawn.items()}, recalled)
    if filled.startswith(DECLINES):
        return decisive(filled, REFUSING)
    return decisive(filled) if filled != reply else filled


def yours(value: str) -> str:
    """A value as the assistant says it: "your sister" for "my sister"."""
    return facts.turned(value) or value if OF_THE_USER.search(value) else value
