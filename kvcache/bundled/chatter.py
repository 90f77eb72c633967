"""Small talk: remarks and chats, what people say to a reply, two things in one message, a wish beside words that change nothing, whole conversations of stock replies, riddles."""

from random import Random

from . import beside, doubles, games, reactions, remarks, repertoire

SHARES = {"reactions": 0.25, "doubles": 0.09, "beside": 0.08, "repertoire": 0.29, "games": 0.04}  # of small talk; the rest are remarks and chats


def talk(rng: Random, held: bool = False, told: bool = False) -> reactions.Turns:
    """The turns of some small talk. With `told`, facts are told and asked for too."""
    sort = rng.choices((*SHARES, "remarks"), (*SHARES.values(), 1 - sum(SHARES.values())))[0]
    if sort == "reactions":
        return reactions.turns(rng, reactions.any_kind(rng, told), held)
    if sort in ("doubles", "beside"):
        return [(doubles if sort == "doubles" else beside).turn(rng, held)]
    if sort == "games":
        return games.turns(rng, held)
    return (repertoire if sort == "repertoire" else remarks).talk(rng, held)
