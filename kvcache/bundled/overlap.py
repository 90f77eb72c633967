"""How near a hand-written set is to the scenes: rows whose telling and whose question one scene has nearly word for word, values aside."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache

from .scenes import COMMON, scenes

SHARE = 0.6  # of the content words of both sentences together that are in both


def overlapping(pairs: Iterable[tuple[str, str, str]]) -> int:
    """How many rows (told, asked, expected) share at least SHARE of their content words with a telling and with a question of one scene."""
    return sum(_near(told, asked, expected) for told, asked, expected in pairs)


def _near(told: str, asked: str, expected: str) -> bool:
    value = _content(expected)
    return bool(_alike(_content(told) - value, 0) & _alike(_content(asked) - value, 1))


def _content(text: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9']+", text.lower().replace("$v", " "))
    return frozenset(word.removesuffix("'s") for word in words) - COMMON


def _alike(words: frozenset[str], side: int) -> set[int]:
    """Scenes, by number, one of whose tellings (side 0) or questions (1) is alike."""
    lines, index = _lines(side)
    shared = Counter(line for word in words for line in index.get(word, ()))
    return {lines[line][0] for line, count in shared.items() if count >= SHARE * len(words | lines[line][1])}


@cache
def _lines(side: int) -> tuple[list[tuple[int, frozenset[str]]], dict[str, list[int]]]:
    """Every telling or question as (scene, its content words), and where each word is."""
    every = (*scenes(held=False), *scenes(held=True))
    lines = [(number, _content(line)) for number, scene in enumerate(every) for line in ((scene.tells, scene.questions)[side])]
    index: dict[str, list[int]] = defaultdict(list)
    for line, (_, words) in enumerate(lines):
        for word in words:
            index[word].append(line)
    return lines, index
