"""Questions and wishes beside words that change nothing: "this may sound silly but are you human", "a joke please, my kids are listening".

A model that had met them bare answered the words beside them. The words are read from the lists in `beside_lists`, written by language models,
a line each; one line in ten is held out from training.
"""

from functools import cache
from pathlib import Path
from random import Random

from . import doubles, facts, lists, remarks, stories
from .grammar import expand

FOLDER = Path(__file__).parent / "beside_lists"
TOLD = ("joke", "fact", "compliment", "story")  # what is wished for; each as often as each kind of question


@cache
def words(where: str, held: bool) -> tuple[str, ...]:
    """What people say "before" or "after", that of training or that held out from it."""
    return tuple(line for line in (FOLDER / f"{where}.txt").read_text().strip().split("\n") if lists.held_out(line) == held)


def turn(rng: Random, held: bool = False) -> tuple[str, str]:
    """A message and its reply, which is that to the question or the wish."""
    asked, reply = wish(rng, held)
    where = rng.choice(("before", "after"))
    said = rng.choice(words(where, held))
    if where == "after":
        message = doubles.led(rng, asked, "{, |. |, | }", said)
    else:
        message = doubles.led(rng, said, " " if said.endswith((",", " but")) else "{. |. |, |! }", asked)
    return facts.informal(rng, message)[0], reply


def wish(rng: Random, held: bool) -> tuple[str, str]:
    """A question or a wish, without a mark at its end, and its reply."""
    kind = rng.choice((*doubles.ASKED, *TOLD))
    if kind in doubles.ASKED:
        return remarks.one(rng, kind, held)
    if kind == "story":
        return expand(rng, stories.PLAIN), stories.stories()[0].whole
    return doubles.piece(rng, kind)
