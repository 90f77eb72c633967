"""The questions that are asked of the bundled models: a conversation in which something is told and then talked about other things, and its last message asks.

Frozen: made once by the code at commit 1e93f6c, which also trained the models. Sets of them, by the names in evaluations.json: `trained_ways` of telling
and asking and `new_ways`, which training never used, both about values that it never told; `hand_written` and five sets that others wrote, `verdict` and
`third` to `sixth`; for each of those things that were never told, which should be declined.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "questions.json.xz"  # set -> distance -> rows of what the answer must contain, and the messages, user and assistant in turns
# By size of vocabulary: how many tokens of the smallest one, in which the file counts distances, make one of its own. An estimate: a tenth too many for the largest.
STRETCH = {3072: 1.11, 8192: 1.21}


@dataclass(frozen=True)
class Case:
    """A conversation that ends with a question, and what the answer must contain ("" for a thing never told)."""

    messages: list[dict[str, str]]
    expected: str


def tokens(distance: int, tokenizer: Any) -> int:
    """A distance in a model's own tokens as the file counts it."""
    return round(distance * STRETCH.get(len(tokenizer), 1.0))


def cases(kind: str, distance: int, count: int | None = None) -> list[Case]:
    """The first `count` questions of a set (default: all), `distance` tokens of the smallest vocabulary after the telling.

    Raises ValueError where there are not so many, and FileNotFoundError where they were not installed.
    """
    if kind not in _read():
        raise ValueError(f"no questions are called {kind!r}; there are {', '.join(_read())}")
    rows = _read()[kind].get(str(distance), [])
    if not rows or count is not None and not 0 < count <= len(rows):
        there = ", ".join(f"{len(rows)} at {d}" for d, rows in _read()[kind].items())
        raise ValueError(f"there are not {count or 'any'} questions {kind!r} at {distance} tokens; there are {there}")
    return [_case(*row) for row in rows[:count]]


def kinds(distance: int) -> list[str]:
    """The sets with questions at this distance, in tokens of the smallest vocabulary. Raises ValueError where none has."""
    found = [kind for kind, rows in _read().items() if str(distance) in rows]
    if not found:
        raise ValueError(f"nothing is asked at {distance} tokens, but at {', '.join(_read()['trained_ways'])}")
    return found


def why_not_here() -> str | None:
    """A sentence that says where the questions are to be had if they were not installed, or None."""
    return None if FILE.exists() else "the questions to the bundled models are not here: the package is installed without them. Clone the project to have them."


@cache
def _read() -> dict[str, dict[str, list[list[str]]]]:
    import lzma  # not above: there are Pythons without it, on which everything else works

    if missing := why_not_here():
        raise FileNotFoundError(missing)
    return json.loads(lzma.decompress(FILE.read_bytes()))


def _case(expected: str, *texts: str) -> Case:
    return Case([{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)], expected)
