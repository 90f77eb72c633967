"""Passages: something told in a message or two, and many questions about it, none of which knows of the others, read from the lists in `passage_lists`.

Who of two does what, which day belongs to whom, what follows from what was said. A passage in the lists is a block that begins as a situation
does (see `situations`): a system message if it has one, its slots, turns `> message | other wording` and `< reply | other`. Then come questions
`? question | other wording` with replies `= reply | other`; `& ` in place of `? ` is a question that follows on the one above it. Values are
drawn anew each time. One passage in ten is held out from training as a whole.
"""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from random import Random

from . import chats, lists, situations
from .scenes import OWNERS

FOLDER = Path(__file__).parent / "passage_lists"
TURN = {"? ": "> ", "& ": "> ", "= ": "< "}
Turns = list[tuple[str, str]]  # messages and replies, these with marks


@dataclass(frozen=True)
class Passage:
    """What is told, and the questions about it; each is a chat of its own of one turn or more."""

    told: situations.Situation
    questions: tuple[chats.Chat, ...]

    @cached_property
    def subjects(self) -> frozenset[str | tuple[str, ...]]:
        """Whom of the user's it is about, and what kinds of values it tells: two passages that share none of these can be told in one conversation."""
        words = {word for chat in (self.told.chat, *self.questions) for messages, replies in chat for text in (*messages, *replies) for word in re.findall("[a-z]+", text.lower())}
        return frozenset(words & OWNERS) | frozenset(self.told.slots.values()) - {"name"}

    def draw(self, rng: Random, held: bool = False) -> tuple[str, Turns, list[Turns]]:
        """A system message ("" for none), the turns that tell, and for each question its turns."""
        drawn = self.told.draw(rng, held)
        told, *asked = (situations.filled(rng, chat, drawn) for chat in (self.told.chat, *self.questions))
        return self.told.opened(rng, drawn), told, asked


@cache
def passages(held: bool) -> tuple[Passage, ...]:
    """The passages of training, or those held out from it."""
    return tuple(read(block) for block in lists.blocks(FOLDER) if lists.held_out(block) == held)


def read(block: str) -> Passage:
    """A passage of its lines. Raises ValueError naming what is wrong with it."""
    lines = block.strip().split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("? ")]
    if not starts:
        raise ValueError(f"a passage has questions, lines '? question | another wording'; there is none after {lines[-1]!r}")
    telling = lines[:starts[0]]
    told = situations.read("\n".join(telling))
    ends = (*starts[1:], len(lines))
    asked = ([TURN.get(line[:2], line[:2]) + line[2:] for line in lines[start:end]] for start, end in zip(starts, ends))
    return Passage(told, tuple(situations.read("\n".join((*telling, *turns))).chat[len(told.chat):] for turns in asked))
