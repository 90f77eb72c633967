"""How near a hand-written set is to scenes, situations, records and passages: rows whose telling and whose question one of those has nearly word for word, values aside."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import chain

from .chats import Chat
from .passages import Passage, passages
from .records import Record, records
from .scenes import COMMON, Scene, scenes
from .situations import Situation, situations

SHARE = 0.6  # of the content words of both sentences together that are in both


def overlapping(pairs: Iterable[tuple[str, str, str]]) -> int:
    """How many rows (told, asked, expected) share at least SHARE of their content words with a telling and with a question of one scene, situation, kind of records or passage."""
    return sum(_near(told, asked, expected) for told, asked, expected in pairs)


def _near(told: str, asked: str, expected: str) -> bool:
    value = _content(expected)
    return bool(_alike(_content(told) - value, 0) & _alike(_content(asked) - value, 1))


def _content(text: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9']+", re.sub(r"\$[a-z]\b", " ", text.lower()))
    return frozenset(word.removesuffix("'s") for word in words) - COMMON


def _alike(words: frozenset[str], side: int) -> set[int]:
    """Scenes and the like, by number, one of whose tellings (side 0) or questions (1) is alike."""
    lines, index = _lines(side)
    shared = Counter(line for word in words for line in index.get(word, ()))
    return {lines[line][0] for line, count in shared.items() if count >= SHARE * len(words | lines[line][1])}


def _parts(scene: Scene) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return scene.tells, scene.questions


def _parts_of_chat(situation: Situation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Any message but the last may tell, any but the first may ask."""
    said = _said(situation.chat)
    return tuple(chain(*said[:-1])), tuple(chain(*said[1:]))


def _parts_of_record(record: Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return record.tells, tuple(chain(*(question.ways for question in record.questions)))


def _parts_of_passage(passage: Passage) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(chain(*_said(passage.told.chat))), tuple(chain(*(chain(*_said(question)) for question in passage.questions)))


def _said(chat: Chat) -> list[tuple[str, ...]]:
    """The wordings of each message of a chat."""
    return [messages for messages, _ in chat]


@cache
def _lines(side: int) -> tuple[list[tuple[int, frozenset[str]]], dict[str, list[int]]]:
    """Every telling or question as (scene or the like, its content words), and where each word is."""
    every = [part for held in (False, True) for part in (*map(_parts, scenes(held)), *map(_parts_of_chat, situations(held)), *map(_parts_of_record, records(held)), *map(_parts_of_passage, passages(held)))]
    lines = [(number, _content(line)) for number, parts in enumerate(every) for line in parts[side]]
    index: dict[str, list[int]] = defaultdict(list)
    for line, (_, words) in enumerate(lines):
        for word in words:
            index[word].append(line)
    return lines, index
