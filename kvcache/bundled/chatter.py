"""Small talk: remarks and chats, what people say to a reply, two things in one message, whole conversations of stock replies."""

from random import Random

from . import doubles, reactions, remarks, repertoire

SHARES = {"reactions": 0.26, "doubles": 0.11, "repertoire": 0.27}  # of small talk; the rest are remarks and chats


def talk(rng: Random, held: bool = False, told: bool = False) -> reactions.Turns:
    """The turns of some small talk. With `told`, facts are told and asked for too."""
    roll = rng.random()
    if roll < SHARES["reactions"]:
        return reactions.turns(rng, reactions.any_kind(rng, told), held)
    roll -= SHARES["reactions"]
    if roll < SHARES["doubles"]:
        return [doubles.turn(rng, held)]
    return repertoire.talk(rng, held) if roll < SHARES["doubles"] + SHARES["repertoire"] else remarks.talk(rng, held)
