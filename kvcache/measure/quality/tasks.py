"""Questions about long prompts whose answers are known. All but `facts` are RULER's (https://arxiv.org/abs/2404.06654), smaller, and need no data but the bundled text to hide things in.

A task is given the number of a case and a size, in its own pieces of text, and makes that Case. Answers count as a whole: all of what is asked, to the last digit.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...bundled import questions
from . import texts

HIDDEN = "Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you about the numbers afterwards.\n\n{text}\n\n"
NEEDLE = "One of the special magic numbers for {name} is: {number}."
TRACKED = "Memorize and track the chain of variable assignment hidden in the following text.\n\n{text}\n\n"
LISTED = "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most often.\n\n{text}\n\n"
NUMBERS = range(10_000, 100_000)
OFTEN = 3  # words that are more common than the others of a list
TIMES = 10  # how often these stand there for every time that one of the others does
STRIDE = 53  # from one case's fact to the next one's: neighbours in the file are alike
DISTANCES = (155, 620, 1239)  # between a fact and its question, in tokens of the smallest bundled vocabulary


@dataclass(frozen=True)
class Question:
    """What is asked, what the reply must contain, all of it, and how the reply begins, which is given to the model."""

    text: str
    expected: tuple[str, ...]
    opening: str = ""

    def is_answered(self, reply: str) -> bool:
        """Whether the reply has all that is expected, each as a word of its own, whatever its case."""
        plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", reply).lower()
        return all(re.search(rf"(?<!\w){re.escape(each.lower())}(?!\w)", plain) for each in self.expected)


@dataclass(frozen=True)
class Case:
    """A conversation so far, user and assistant in turns; how the user's next message begins; and the questions, each of which ends that message by itself."""

    said: tuple[str, ...]
    lead: str
    questions: tuple[Question, ...]


Task = Callable[[int, int], Case]


def single(number: int, size: int) -> Case:
    """One number in `size` sentences."""
    return _needles(number, size, names=1, numbers=1)


def multikey(number: int, size: int) -> Case:
    """Four numbers of different names in `size` sentences, each asked for by itself."""
    return _needles(number, size, names=4, numbers=1)


def multivalue(number: int, size: int) -> Case:
    """Four numbers of one name in `size` sentences, all asked for at once."""
    return _needles(number, size, names=1, numbers=4)


def variables(number: int, size: int) -> Case:
    """A variable that is given a value in one of `size` sentences, and two that are given it in turn, each by the one before."""
    draw = random.Random(f"variables {number}")
    names = ["".join(draw.sample(string.ascii_uppercase, 3)) for _ in range(3)]
    value = draw.choice(NUMBERS)
    lines = [f"VAR {name} = {source}." for name, source in zip(names, (value, *(f"VAR {name}" for name in names)))]
    asked = f"Find all variables that are assigned the value {value} in the text above."
    opening = f"According to the chain of variable assignment in the text above, 3 variables are assigned the value {value}, they are:"
    return Case((), TRACKED.format(text=_hide(draw, lines, size)), (Question(asked, tuple(names), opening),))


def common(number: int, size: int) -> Case:
    """Three words of a list of at least 10 `size` that stand there ten times as often as any other."""
    draw = random.Random(f"common {number}")
    share = 1 + size // 30  # how often every other word stands there: lists grow by words and by repeats
    kinds = max(1, 10 * size // share - OFTEN * TIMES)
    words = draw.sample(texts.words(), OFTEN + kinds)
    listed = (words[:OFTEN] * TIMES + words[OFTEN:]) * share
    draw.shuffle(listed)
    text = " ".join(f"{place}. {word}" for place, word in enumerate(listed, 1))
    return Case((), LISTED.format(text=text), (Question(f"What are the {OFTEN} most common words in the above list?", tuple(words[:OFTEN]), f"The {OFTEN} most common words in the list are:"),))


def facts(number: int, size: int) -> Case:
    """A small fact of life told in the first message, `size` times 155 tokens of other talk at most, and a question about it: hand-written ones that come with the bundled models."""
    cases = questions.cases("hand_written", max((distance for distance in DISTANCES if distance <= 155 * size), default=DISTANCES[0]))
    case = cases[STRIDE * number % len(cases)]
    *said, asked = (message["content"] for message in case.messages)
    return Case(tuple(said), "", (Question(asked, (case.expected,)),))


TASKS: dict[str, Task] = {each.__name__: each for each in (facts, single, multikey, multivalue, variables, common)}


def offered() -> tuple[str, ...]:
    """The tasks by name; `facts` only where its questions were installed."""
    return tuple(name for name in TASKS if name != facts.__name__ or not questions.why_not_here())


def named(names: Sequence[str]) -> dict[str, Task]:
    """Tasks by name. Raises ValueError, with the names there are, for others and for one whose questions were not installed."""
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        raise ValueError(f"no task is called {unknown[0]!r}; there are {', '.join(TASKS)}")
    missing = [name for name in names if name not in offered()]
    if missing:
        raise ValueError(f"the task {missing[0]!r} can't be asked: {questions.why_not_here()}")
    return {name: TASKS[name] for name in names}


def _needles(number: int, size: int, names: int, numbers: int) -> Case:
    draw = random.Random(f"{names} {numbers} {number}")
    told = {name: draw.sample(NUMBERS, numbers) for name in draw.sample(texts.words(), names)}
    needles = [NEEDLE.format(name=name, number=number) for name, several in told.items() for number in several]
    draw.shuffle(needles)
    return Case((), HIDDEN.format(text=_hide(draw, needles, size)), tuple(_asked(name, several) for name, several in told.items()))


def _asked(name: str, numbers: Sequence[int]) -> Question:
    what, are = ("is the special magic number", "number for {} mentioned in the provided text is") if len(numbers) == 1 else ("are all the special magic numbers", "numbers for {} mentioned in the provided text are")
    return Question(f"What {what} for {name} mentioned in the provided text?", tuple(map(str, numbers)), f"The special magic {are.format(name)}")


def _hide(draw: random.Random, lines: Sequence[str], size: int) -> str:
    """The lines, in their order, at random places between `size` sentences that follow each other in the bundled text."""
    every = texts.sentences()
    start = draw.randrange(len(every))
    places = sorted(draw.sample(range(size + 1), len(lines)) if size + 1 >= len(lines) else [0] * len(lines))
    pieces = [every[(start + n) % len(every)] for n in range(size)]
    for place, line in reversed(list(zip(places, lines))):
        pieces.insert(place, line)
    return " ".join(pieces)

