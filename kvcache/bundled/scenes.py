"""Scenes: small facts of a life, each with its own ways of telling and asking, read from the lists in `scene_lists`.

A scene in the lists is a block of lines: `# clause | values`, ways of telling (`- `), ways of asking (`? `). The values are a kind of
`values.MAKERS`, or `: one; two; three`. One scene in ten is held out from training as a whole.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from . import lists, values
from .phrases import ASK_CLAUSE, RELATIONS, Kind
from .sentences import SEEN_ANSWER

FOLDER = Path(__file__).parent / "scene_lists"
TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "Mr", "Mrs", "Ms", "Dr", "Miss", "Professor", "Aunt", "Uncle")


@dataclass(frozen=True)
class Scene:
    """What is asked for ("when the plumber comes"), where its values come from, and how it is told and asked."""

    clause: str
    make: Callable[[Random, bool], str]
    kind: str
    tells: tuple[str, ...]
    questions: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """True for the fixed tenth of all scenes that training never uses."""
        return lists.held_out(self.clause)


@cache
def scenes(held: bool) -> tuple[Scene, ...]:
    """The scenes of training, or those held out from it."""
    return tuple(scene for scene in map(read, lists.blocks(FOLDER)) if scene.held_out == held)


def read(block: str) -> Scene:
    """A scene of its lines. Raises ValueError naming the line that is none."""
    first, *lines = block.strip().split("\n")
    clause, _, source = first.removeprefix("# ").partition(" | ")
    odd = [line for line in lines if line[:2] not in ("- ", "? ")]
    if not first.startswith("# ") or not source or odd:
        raise ValueError(f"a scene is a line '# clause | values' and lines '- tell' and '? ask'; {(odd or [first])[0]!r} is none of them")
    tells, asks = (tuple(line[2:] for line in lines if line.startswith(mark)) for mark in ("- ", "? "))
    return Scene(clause, *_source(source), tells, asks)


def _source(source: str) -> tuple[Callable[[Random, bool], str], str]:
    """A maker of values, and the name of their kind ("listed" for a list of the scene's own)."""
    if not source.startswith(":"):
        if source not in values.MAKERS:
            raise ValueError(f"no values are called {source!r}; there are {', '.join(values.MAKERS)}")
        return lambda rng, held: _person(rng, held) if source == "name" else values.make(rng, source, held), source
    listed = [value.strip() for value in source[1:].split(";") if value.strip()]
    sides = {held: [v for v in listed if values.held_out(v) == held] or listed for held in (False, True)}
    return lambda rng, held: rng.choice(sides[held]), "listed"


def _person(rng: Random, held: bool) -> str:
    """A name, now and then with a title, as one speaks of a doctor or a teacher."""
    name = values.make(rng, "name", held)
    titled = f"{rng.choice(TITLES)} {name}"
    return titled if rng.random() < 0.12 and values.held_out(titled) == held else name


def make(rng: Random, held: bool = False, near: str | None = None) -> tuple[str, Kind]:
    """A value and the ways to tell it and ask for it. Of a scene that is `related` to the one of the clause `near`, if there is one."""
    scene = rng.choice((near and related(near, held)) or scenes(held))
    asks = (*scene.questions, rng.choice(ASK_CLAUSE).replace("$c", scene.clause))
    return scene.make(rng, held), Kind(scene.kind, scene.tells, asks, (scene.clause,), "that", SEEN_ANSWER)


WH = {"who": "who", "whose": "who", "whom": "who", "when": "when", "where": "where", "why": "why", "how": "how"}
TIMES = frozenset("time day date month season year weekday hour morning evening".split())
COMMON = frozenset("my the a an i is are was were am be been in on at of for from to with by and or it its this that me we our us you your their his her they he she has have had do does did will would can could should what which "
                   "who whose whom when where why how many much long old often far one next last first best most favourite every old new again still always into out up off over after before called name get gets got go goes went make makes made "
                   "take takes took keep keeps give gives gave want wants say says said need needs use used".split())  # fmt: skip
OWNERS = frozenset(word for relation in RELATIONS for word in relation.split()) | frozenset("mom gran nan granny ex kids kid children family parents guests guest team client customer dog cat".split())
RARE = 35  # scenes that may share a word for it to make them alike


def _words(clause: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", clause.lower().replace("'s", "")))


def _asks_for(clause: str) -> str:
    """Who, when, where, why, how many and the like; "what" for all that may be asked for in several ways."""
    first, second, *_ = (*clause.lower().split(), "", "")
    if first in ("what", "which") and second in TIMES:
        return "when"
    return f"how {second}" if first == "how" else WH.get(first, "what")


def differ(one: str, other: str) -> bool:
    """Do two clauses that share a word surely ask for different things: of different people, or for a time beside a place or a person?"""
    if _words(one) & OWNERS != _words(other) & OWNERS:
        return True
    asked = {_asks_for(one), _asks_for(other)}
    return len(asked) == 2 and ("what" not in asked or bool(asked & {"when", "why"}))


@cache
def related(clause: str, held: bool) -> tuple[Scene, ...]:
    """Scenes that share a word with a clause, and ask for something else: when the meeting is, beside where it is; my sister's car, beside mine."""
    index = _by_word(held)
    alike = {scene.clause: scene for word in sorted(_words(clause) - COMMON - OWNERS) for scene in index.get(word, ())}
    return tuple(scene for scene in alike.values() if scene.clause != clause and differ(clause, scene.clause))


@cache
def _by_word(held: bool) -> dict[str, list[Scene]]:
    found: dict[str, list[Scene]] = {}
    for scene in scenes(held):
        for word in _words(scene.clause) - COMMON - OWNERS:
            found.setdefault(word, []).append(scene)
    return {word: alike for word, alike in found.items() if len(alike) <= RARE}
