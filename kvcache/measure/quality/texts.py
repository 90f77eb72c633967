"""Text to measure on: passages of a user's file, of three novels that are bundled, or of the conversations that the bundled models were made for.

The novels are by Jane Austen and in the public domain: parts of Northanger Abbey, Persuasion and Emma of 46 kB each, from Project Gutenberg's texts as R's package
janeaustenr has them, lines joined to paragraphs.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ... import bundled
from ...bundled import questions

FILE = Path(__file__).parent / "novels.json.xz"  # title -> text
TALK = 1815  # tokens, in the smallest bundled vocabulary, of the longest conversations of which there are many


@dataclass(frozen=True)
class Text:
    """Documents [ids], and what they are in words."""

    title: str
    documents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Passage:
    """A prompt and how the text goes on, in ids."""

    prompt: list[int]
    continuation: list[int]


@cache
def novels() -> dict[str, str]:
    """The bundled novels' parts by title."""
    import lzma  # not above: there are Pythons without it, on which everything else works

    return json.loads(lzma.decompress(FILE.read_bytes()))


@cache
def sentences() -> tuple[str, ...]:
    """The novels' sentences of five to forty words, in order: what needles are hidden in."""
    found = (sentence for text in novels().values() for sentence in re.split(r"(?<=[.!?])(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)\s+(?=[A-Z])", text.replace("\n\n", " ")))
    return tuple(sentence for sentence in found if 5 <= len(sentence.split()) <= 40 and sentence.count('"') % 2 == 0)


@cache
def words() -> tuple[str, ...]:
    """The novels' rarer words of five to eight letters, which name things."""
    counts: dict[str, int] = {}
    for word in re.findall(r"(?<![\w'-])[a-z]{5,8}(?![\w'-])", " ".join(novels().values())):
        counts[word] = counts.get(word, 0) + 1
    return tuple(sorted(word for word, count in counts.items() if count <= 3))


def usual(model_id: str, tokenizer: Any) -> Text:
    """Conversations to a bundled model that can chat, which reads nothing else well; the novels to any other."""
    return conversations(tokenizer) if model_id in bundled.MODELS else in_ids("parts of three novels by Jane Austen", list(novels().values()), tokenizer)


def conversations(tokenizer: Any) -> Text:
    """Conversations that were made up as those were which the bundled models learnt from, and that they never saw."""
    talks = (case.messages for case in questions.cases("trained_ways", TALK, 16))
    return Text("conversations as the bundled models were trained on", tuple(tuple(tokenizer.apply_chat_template(talk, return_dict=False)) for talk in talks))


def read(path: Path, tokenizer: Any) -> Text:
    """A user's text file, UTF-8. Raises ValueError for one that can't be read."""
    try:
        return in_ids(str(path), [path.read_text(encoding="utf-8")], tokenizer)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the text {str(path)!r} can't be read: {error}") from error


def in_ids(title: str, texts: Sequence[str], tokenizer: Any) -> Text:
    return Text(title, tuple(tuple(tokenizer(text)["input_ids"]) for text in texts))


def passages(text: Text, count: int, prompt: int, continuation: int, seed: int) -> list[Passage]:
    """`count` passages from different places. Raises ValueError, with the lengths there are, where the text is too short for one."""
    size = prompt + continuation
    longest = max(map(len, text.documents))
    if longest < size:
        raise ValueError(f"{text.title}: the longest has {longest:,} tokens, and a passage takes {prompt:,} and {continuation:,}")
    draw = random.Random(seed)
    starts = [(n, start) for n, document in enumerate(text.documents) for start in _starts(len(document), size, draw)]
    chosen = sorted(draw.sample(starts, min(count, len(starts))))
    found = [text.documents[n][start : start + size] for n, start in chosen]
    return [Passage(list(ids[:prompt]), list(ids[prompt:])) for ids in found]


def _starts(length: int, size: int, draw: random.Random) -> list[int]:
    """As many places as fit beside each other, the first of them shifted by chance."""
    spare = length % size if length >= size else 0
    first = draw.randint(0, spare)
    return [first + n * size for n in range(length // size)]
