"""Yes or no: questions whether a told fact is so, made from the sentence that would answer for it."""

import re
from random import Random

from . import phrases

_DO = {"lives": "does live", "works": "does work", "likes": "does like", "plays": "does play", "speaks": "does speak", "drives": "does drive", "drinks": "does drink", "sleeps": "does sleep",
       "comes": "does come", "live": "do live", "work": "do work", "have": "do have", "drive": "do drive", "play": "do play", "bought": "did buy", "cost": "did cost", "lasts": "does last",
       "got": "did get", "met": "did meet", "ate": "did eat", "stayed": "did stay"}
_BE = ("is", "are", "was", "were", "am")
_VERB = re.compile(r"^(I|she|he|it|.+?) (" + "|".join((*_BE, *_DO)) + r") (.*)$")
STATED = ("{I think |if I remember well, |}$s, {right|is that right|correct|am I right|isn't that so|yes|true|is that true}", "is it {true|right|correct} that $s", "did I {say|tell you} that $s", "am I right that $s", "did I say $s", "you know that $s, right", "$s, yes or no")
ASKED = ("{|||so |and |wait, |ok, |tell me, |quick check: |just to be sure, }$q{|| now| or not}",)


def mine(sentence: str) -> str:
    """"Your cat is called Rex." as the user says it: "my cat is called Rex"."""
    text = sentence.rstrip(".")
    text = text[:1].lower() + text[1:] if text.startswith(("You", "The ", "She ", "He ", "It ", "Her ", "His ", "Its ")) else text
    for there, here in (("you are", "I am"), ("you were", "I was"), ("you", "I")):
        text = re.sub(rf"^{there}\b", here, text)
    return re.sub(r"\byour\b", "my", text)


def question(sentence: str) -> str:
    """"is my cat called Rex" for "Your cat is called Rex."; raises ValueError for a sentence without a known verb."""
    found = _VERB.match(mine(sentence))
    if not found:
        raise ValueError(f"no yes-or-no question for {sentence!r}: its verb must be one of {', '.join((*_BE, *_DO))}")
    subject, verb, rest = found.groups()
    if verb in _BE:
        return f"{verb} {subject} {rest}"
    auxiliary, base = _DO[verb].split(" ")
    return f"{auxiliary} {subject} {base} {rest}"


def ask(rng: Random, sentence: str, held: bool) -> str:
    """A message that asks whether the sentence, worded as the assistant would, is true."""
    way = phrases.choose(rng, STATED if rng.random() < 0.35 else ASKED, held)
    return way.replace("$s", mine(sentence)).replace("$q", question(sentence))


def reply(sentence: str, true: bool) -> str:
    """"Yes, your cat is called Rex." or "No, your cat is called Rex."; the sentence may carry marks."""
    for start in ("You", "The ", "She ", "He ", "It ", "Her ", "His ", "Its "):
        if sentence.startswith(start):
            sentence = sentence[:1].lower() + sentence[1:]
            break
    return ("Yes, " if true else "No, ") + sentence


def wants_yes(message: str) -> bool:
    """True for "do you know where I live" and "did I tell you my age", which are answered with yes where they can be."""
    return re.search(r"(^|[,.:!?] |^(so|ok|and|hey|now|well) )(do you (still |happen to )?(know|remember|recall)|did I (ever |already )?(tell you|mention|say)|have I told you) \w", message, re.IGNORECASE) is not None
