"""Trees: a conversation in which things are told, and questions about it side by side, each of which sees the conversation and no other question.

A telling serves all questions about it, near and far, and none is answered by copying an earlier answer. Rows of trees have no more answers than other
rows (17 in 1,000 tokens, measured over 40 rows of 1,024), but each must be read from what was told. As ids, a row holds trees one after the other;
each token's place says what it may attend to.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from . import chatter, dialogues, drills, exchanges, passages, records
from .scenes import OWNERS

Messages = list[dict[str, str]]
SHORTEST, LONGEST = 60, 1700  # tokens of a conversation
LONG = 0.5  # power of a chance: 1 would draw trunks as often short as long; questions far from what they ask for are what is hardest
PASSAGE, RECORDS, SCENE = 0.42, 0.16, 0.22  # chances that what is told next is a passage or records, if they are about nothing that was told, or a scene; else it is any fact
FILLER, EXCHANGE = 0.4, 0.3  # chances of what is said in between; else it is a chat
TELLING = 0.1, 0.9  # the smallest and largest share of turns that tell something
AGAIN = 2  # times a fact is asked for, in other words
NEVER_TOLD = 0.26, 0.33  # share of questions about something never told: beside one or two facts, and beside MANY; with 0.11 and 0.27 a model answered with the one thing it had been told; ten million tokens with these changed that after 512 tokens, not after 128
MANY = 8
TWO = 0.12  # chance that a question is followed by another one


@dataclass
class Tree:
    """What is said, and questions that each follow on it."""

    trunk: Messages
    branches: list[Messages]


def tree(seed: str, room: int) -> Tree:
    """A tree of at most about `room` tokens of the small vocabulary, its trunk rather long than short."""
    rng = Random(f"tree {seed}")
    length = min(room * rng.uniform(0.4, 0.75), LONGEST, SHORTEST * (LONGEST / SHORTEST) ** rng.random() ** LONG)
    grown = Growing(dialogues.Conversation(rng, round(length)))
    grown.begin()
    share = rng.uniform(*TELLING)
    while grown.talk.position < length:
        grown.tell() if not grown.told_any() or rng.random() < share else between(grown.talk)
    return Tree(grown.talk.messages, branches(grown.talk, grown.asked))


@dataclass
class Growing:
    """A trunk in the making: the conversation, what passages ask about it, and what those are about."""

    talk: dialogues.Conversation
    asked: list[list[Messages]] = field(default_factory=list)
    subjects: set[str | tuple[str, ...]] = field(default_factory=set)
    kinds: list[records.Record] = field(default_factory=list)  # of the records told

    def told_any(self) -> bool:
        return bool(self.talk.facts or self.asked)

    def begin(self) -> None:
        """A passage with a system message, or a beginning as conversations have it."""
        first = self.talk.rng.choice(passages.passages(False))
        self.passage(first) if first.told.system else self.talk.begin()

    def tell(self) -> None:
        """Something new: a passage or records about nothing and nobody told of, a scene, or any fact."""
        rng, roll = self.talk.rng, self.talk.rng.random()
        if roll < PASSAGE:
            found = rng.choice(passages.passages(False))
            if not found.told.system and not found.subjects & (self.subjects | self.owners()):
                return self.passage(found)
        elif roll < PASSAGE + RECORDS:
            tables = records.tables(rng, without=self.kinds)
            if not records.words(tables) & OWNERS & (self.subjects | self.owners()):
                return self.table(tables)
        drills.tell_scene(self.talk) if roll < PASSAGE + RECORDS + SCENE else self.talk.tell_turn()

    def owners(self) -> set[str]:
        """Who of the user's was told of outside passages."""
        return {word for key in self.talk.taken() for word in key.lower().split()} & OWNERS

    def passage(self, passage: passages.Passage) -> None:
        """The turns of a passage; what it asks is kept for the branches."""
        system, told, questions = passage.draw(self.talk.rng)
        if system:
            self.talk.say("system", system)
        for turn in told:
            self.talk.turn(*turn)
        self.asked.append([messages(turns) for turns in questions])
        self.spoken_of(passage.subjects)

    def table(self, tables: list[records.Table]) -> None:
        """Records as they are told; the branches ask for each of them about twice."""
        for turn in records.told(self.talk.rng, tables):
            self.talk.turn(*turn)
        self.asked.append([messages(table.asked()) for table in tables for _ in table.rows for _ in range(AGAIN)])
        self.kinds += [table.kind for table in tables]
        self.spoken_of(records.words(tables))

    def spoken_of(self, subjects: Iterable[str | tuple[str, ...]]) -> None:
        """No other fact is told of the same sister."""
        self.subjects |= set(subjects)
        self.talk.nouns |= {key for owner in OWNERS.intersection(subjects) for key in (owner, f"my {owner}")}


def messages(turns: passages.Turns) -> Messages:
    return [m for user, reply in turns for m in ({"role": "user", "content": user}, {"role": "assistant", "content": reply})]


def between(talk: dialogues.Conversation) -> None:
    """A turn that tells nothing to be asked for."""
    roll = talk.rng.random()
    if roll < FILLER:
        return talk.filler_turn()
    if roll < FILLER + EXCHANGE:
        return exchanges.chat(talk)
    for turn in chatter.talk(talk.rng):
        talk.turn(*turn)


def branches(talk: dialogues.Conversation, asked: list[list[Messages]]) -> list[Messages]:
    """Questions about all that was told, in any order, some of two turns, and some about what nobody told."""
    rng = talk.rng
    found = [question for questions in asked for question in questions]
    found += [branch(talk, lambda slot=slot: talk.ask_turn(slot)) for slot in talk.facts for _ in range(AGAIN)]
    facts = len(talk.facts) + 2 * len(asked)
    share = NEVER_TOLD[0] + (NEVER_TOLD[1] - NEVER_TOLD[0]) * min(1, facts / MANY)
    found += [branch(talk, talk.never_told_turn) for _ in range(round(len(found) * share / (1 - share) + rng.random() - 0.5))]
    rng.shuffle(found)
    found = [question for question in found if question]
    return [one + (rng.choice(found) if rng.random() < TWO else []) for one in found]


def branch(talk: dialogues.Conversation, turn: Callable[[], None]) -> Messages:
    """What `turn` says, taken back from the conversation."""
    said, position, length = set(talk.said), talk.position, len(talk.messages)
    turn()
    new, talk.messages[length:] = talk.messages[length:], []
    talk.said, talk.position = said, position
    return new
