"""Conversations of the assistant's stock of replies, written by language models: what people say after what, and which kind of reply fits.

A reply with words of its own is soon learnt by heart and helps with no other turn; here the words are known, and what is to be learnt is which of
them fit. A conversation in the lists is a block of lines, in turn `> message | the same in other words` and `< =kind`, a kind of `remarks`,
`reactions` or `OTHERS`. One conversation in ten is held out from training as a whole.
"""

from functools import cache
from pathlib import Path
from random import Random

from . import chores, lists, marks, reactions, remarks, stories
from .grammar import expand

FOLDER = Path(__file__).parent / "repertoire_lists"
NEWEST = ("after_pieces", "open_hearts", "whole_visits", "short_turns")  # lists, which the weights that ship have read least often
TELLING_WORDS = 4  # of a reply that say which kind it is of
TOLD_IN_TURN = ("joke", "fact", "compliment", "story")
OTHERS = {
    "howareyou": "I am fine, thank you. How are you?",
    "can": "I can chat, remember what you tell me, tell jokes, facts and short stories, make lists, count and do small sums.",
    "what": "I am a very small language model, made to show how a cache works.",
    "remembers": "I remember what you tell me in this conversation, as long as my cache keeps it.",
    "noname": "I have no name.",
    "hello": "Hello!",
}
Said = tuple[tuple[str, ...], str]  # the wordings of a message, and the kind of its reply


@cache
def conversations(held: bool) -> tuple[tuple[Said, ...], ...]:
    """The conversations of training, or those held out from it."""
    return tuple(read(block) for block in lists.blocks(FOLDER) if lists.held_out(block) == held)


@cache
def weighed() -> tuple[tuple[Said, ...], ...]:
    """Those of training, the newest several times."""
    return tuple(map(read, lists.weighed(FOLDER, NEWEST)))


def read(block: str) -> tuple[Said, ...]:
    """A conversation of its lines. Raises ValueError naming the line that is none."""
    lines = block.strip().split("\n")
    odd = [line for number, line in enumerate(lines) if not line.startswith(("> ", "< =")[number % 2]) or number % 2 and line[3:] not in kinds()]
    if odd or len(lines) % 2:
        raise ValueError(f"a conversation is lines '> message | another wording' and '< =kind' in turn; {(odd or lines[-1:])[0]!r} is out of place")
    return tuple((tuple(part.strip() for part in said[2:].split(" | ")), reply[3:]) for said, reply in zip(lines[::2], lines[1::2]))


@cache
def kinds() -> dict[str, str]:
    """The replies of each kind, as a template."""
    fixed = {kind: replies for kind, replies in reactions.REPLIES.items() if replies != reactions.AT_ONCE}
    return {kind: rules.replies for kind, rules in remarks.KINDS.items()} | fixed | OTHERS | dict.fromkeys(TOLD_IN_TURN, "")


def talk(rng: Random, held: bool = False) -> reactions.Turns:
    """The turns of a conversation."""
    return [(reactions.typed(rng, message), reply) for message, reply in said(rng, rng.choice(conversations(True) if held else weighed()))]


def said(rng: Random, conversation: tuple[Said, ...]) -> reactions.Turns:
    """Its messages, one wording of each, and replies."""
    stock = Stock(rng)
    return [(rng.choice(messages), stock.reply(kind)) for messages, kind in conversation]


class Stock:
    """The replies of one conversation: jokes, facts and stories come one after the other."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.told = {kind: rng.randrange(min(chores.PLAIN, len(pieces))) for kind, (pieces, _) in chores.TELLING.items()} | {"story": 0}

    def reply(self, kind: str) -> str:
        """A reply of a kind, with marks."""
        if kind not in self.told:
            return chosen(expand(self.rng, kinds()[kind]))
        pieces = [story.whole for story in stories.stories()] if kind == "story" else chores.TELLING[kind][0]
        self.told[kind] += 1
        return pieces[(self.told[kind] - 1) % len(pieces)]


def chosen(reply: str) -> str:
    """The reply with its first words marked, in which one kind parts from another: the rest of it follows from them."""
    words = reply.split(" ")
    return " ".join([marks.DECISIVE + " ".join(words[:TELLING_WORDS]) + marks.CLOSE, *words[TELLING_WORDS:]])


def fitting(kind: str) -> set[str]:
    """The replies of a kind."""
    if kind == "story":
        return {story.whole for story in stories.stories()}
    if kind in chores.TELLING:
        return set(chores.TELLING[kind][0])
    return set(marks.strip(kinds()[kind]).strip("{}").split("|"))
