"""A tiny grammar for many ways to say one thing: "{hi|hello|} I'm $v" expands to one of its readings.

Braces hold alternatives and nest; an empty alternative makes a part optional. `$x` slots are filled afterwards by `fill`.
"""

import re
from functools import cache
from random import Random


@cache
def parse(template: str) -> tuple:
    """The template as a sequence of strings and tuples of alternatives (each again a sequence)."""
    stack, branches = [], [[]]
    for piece in re.findall(r"[{}|]|[^{}|]+", template):
        if piece == "{":
            stack.append(branches)
            branches = [[]]
        elif piece == "|":
            branches.append([])
        elif piece == "}":
            choice = tuple(tuple(b) for b in branches)
            branches = stack.pop()
            branches[-1].append(choice)
        else:
            branches[-1].append(piece)
    if stack or len(branches) != 1:
        raise ValueError(f"unbalanced braces in {template!r}")
    return tuple(branches[0])


def expand(rng: Random, template: str) -> str:
    """One reading of the template, spaces tidied."""
    return re.sub(r"  +", " ", _walk(rng, parse(template)))


def _walk(rng: Random, sequence: tuple) -> str:
    return "".join(p if isinstance(p, str) else _walk(rng, rng.choice(p)) for p in sequence)


def fill(text: str, **slots: str) -> str:
    """Replace `$name` by its value; unknown slots raise KeyError."""
    return re.sub(r"\$([a-z]+)", lambda m: slots[m.group(1)], text)


def article(word: str) -> str:
    """"an" before a vowel letter, else "a"."""
    return "an" if word[:1].lower() in "aeiou" else "a"
