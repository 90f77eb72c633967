"""Two things in one message: a greeting and a question, bad news and a wish, a joke and a fact; the reply serves both, in turn.

A model that had met one thing at a time answered the first of them, or the second, or neither.
"""

from collections.abc import Callable
from random import Random

from . import chores, facts, remarks, smalltalk, sums
from .grammar import expand
from .marks import unguessable

GREETING = "{hi|hello|hey|hi there|hello there|good morning|good evening|good afternoon|hiya|hey there}"
THANKS = "{thanks|thank you|thank you very much|ok thanks|thanks a lot|great, thanks|thanks for that|oh thank you}"
LINK = "{. |. |! |, }"
AND = "{ and | and |. And |, and |. | and then |, then | and also }"
ASKED = ("taste", "unknown", "self", "advice", "outside", "feels", "errs", "keeps", "works", "allowed", "hopes", "bored", "sure")  # kinds that ask, whatever was said before
SHORT = {"proud": "Congratulations!", "good": "That sounds good.", "annoyed": "I am sorry to hear that.", "hurt": "I am so sorry.", "ill": "I am sorry to hear that.", "tired": "That sounds tiring.", "worried": "I hope it goes well.", "plan": "That sounds like a plan."}
LISTS = 0.2  # of two wishes, those for two lists
Part = tuple[str, str]  # what is typed, without a mark at its end, and the reply


def turn(rng: Random, held: bool = False) -> Part:
    """A message of two things and its reply."""
    message, reply = rng.choices((opened, news, comforted, wishes), (3, 3, 1.5, 3))[0](rng, held)
    return facts.informal(rng, message)[0], reply


def led(rng: Random, first: str, link: str, second: str) -> str:
    """The one and then the other, each as it is typed."""
    start = expand(rng, link)
    return facts.finish(rng, first, "").rstrip(".!?") + start + facts.finish(rng, second, facts.mark(second), capital=0.8 if "." in start or "!" in start else 0.1)


def opened(rng: Random, held: bool) -> Part:
    """A greeting or thanks, and what else there is to say or to ask."""
    words, answer = (GREETING, "Hello!") if rng.random() < 0.7 else (THANKS, "You are welcome.")
    kind = rng.choice(ASKED if rng.random() < 0.6 else tuple(SHORT))
    text, reply = remarks.one(rng, kind, held)
    return led(rng, expand(rng, words), LINK, text), f"{answer} {SHORT.get(kind, reply)}"


def news(rng: Random, held: bool) -> Part:
    """What happened, and a question."""
    kind = rng.choice(tuple(SHORT))
    asked, reply = remarks.one(rng, rng.choice(ASKED), held)
    return led(rng, remarks.one(rng, kind, held)[0], LINK, asked), f"{SHORT[kind]} {reply}"


def comforted(rng: Random, held: bool) -> Part:
    """Bad news, and the wish to laugh."""
    kind = rng.choice(remarks.SAD)
    asked, joke = remarks.one(rng, "cheer", held) if rng.random() < 0.6 else piece(rng, "joke")
    return led(rng, remarks.one(rng, kind, held)[0], LINK, asked), f"{SHORT[kind]} {joke}"


def wishes(rng: Random, held: bool) -> Part:
    """Two small things to do, now and then two lists."""
    (first, done), (second, also) = (make(rng) for make in ((smalltalk.item_list, smalltalk.item_list) if rng.random() < LISTS else rng.sample(WISHES, 2)))
    return led(rng, first, AND, second), f"{done} {also}"


def piece(rng: Random, kind: str) -> Part:
    """A joke, a fact or a kind word."""
    _, wish, told = chores.piece(rng, kind)
    return wish, unguessable(told)


def total(rng: Random) -> Part:
    """A sum."""
    asked, result = sums.total(rng)
    return expand(rng, asked).strip(), result


def counted(rng: Random) -> Part:
    """Counting up or down."""
    asked, row = chores.count(rng)
    return expand(rng, asked), row


WISHES: tuple[Callable[[Random], Part], ...] = (lambda rng: piece(rng, "joke"), lambda rng: piece(rng, "fact"), lambda rng: piece(rng, "compliment"), smalltalk.item_list, total, counted)
