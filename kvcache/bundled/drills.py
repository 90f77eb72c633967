"""Drills: exercises mixed into the conversations. Copying, because recall emerges from it; sums; and scenes, one after the other without talk in between.

Source: induction heads, Olsson et al. 2022, arXiv 2209.11895.
"""

from collections.abc import Callable
from random import Random

from . import chatter, compared, dialogues, exchanges, facts, own_lists, reactions, records, remarks, repertoire, situations, values
from .marks import recalled

NEVER_TOLD = 0.15, 0.33  # chance that a question about a scene is followed by one about something never told: at the beginning, and after a long talk
CHATS, RECORDS, OWN = 0.44, 0.1, 0.1  # shares among situations: small talk, records, lists of the user's own and numbers compared
REACTED = 0.4  # share of stories in a row of nothing else to which something is said, in place of being asked about
PIECES = 0.42  # share of the others in whose place there is a joke or a fact, about something or not
WHOLE = 0.55  # share of small talk in a row of nothing else that is whole conversations of stock replies
UNLISTED = 0.7  # chance that a list is asked for that there isn't, before one that there is
LISTED = 0.55  # of those, the lists
LATER = 0.1  # chance that the next thing is a question about records told before
TOLD, ASKED, UNTOLD = 0.25, 0.35, 0.18  # amid small talk: chances of something told, of a question about it, of one about what nobody told
ANY = 0.4  # of what is told there, any fact in place of a scene
SPECIAL_TOKENS = 6  # the first ids of the tokenizer


def repeated_segment(rng: Random, length: int, vocab_size: int) -> tuple[list[int], list[float]]:
    """Random tokens said again and again: ids and the loss weight of each (0 for what nobody could know)."""
    n = rng.randint(8, max(9, length // 2))
    segment = [rng.randrange(SPECIAL_TOKENS, vocab_size) for _ in range(n)]
    ids = (segment * (length // n + 1))[:length]
    return ids, [0.0] * n + [1.0] * (length - n)


def key_values(seed: int | str, length: int) -> list[dict[str, str]]:
    """Lists of keys with values, asked again in any order, as a conversation with marks."""
    rng = Random(f"drill {seed} {length}")
    messages, known, size = [], {}, 0.0
    arrow = rng.choice((": ", " = ", " is ", " - "))
    while size < length:
        fresh = {}
        for _ in range(rng.randint(1, 6)):
            key = values.make(rng, rng.choice(("word", "name")))
            fresh[key] = values.make(rng, rng.choice(("code", "name", "word", "city", "number", "colour", "title")))
        known |= fresh
        pairs = [k + arrow + v for k, v in fresh.items()]
        messages += [{"role": "user", "content": rng.choice((", ", ". ", "; ")).join(pairs)}, {"role": "assistant", "content": "Okay."}]
        for key in rng.sample(list(known), min(len(known), rng.randint(2, 6))):
            messages += [{"role": "user", "content": key + rng.choice(("?", "", "?"))}, {"role": "assistant", "content": recalled(known[key]) + "."}]
        size = sum(len(m["content"]) / 3 + 3 for m in messages)
    return messages


def reckoning(seed: int | str, length: int) -> list[dict[str, str]]:
    """Nothing but sums, as a conversation with marks."""
    rng = Random(f"sums {seed} {length}")
    talk = dialogues.Conversation(rng, length)
    while talk.position < length:
        for turn in exchanges.reckoned(rng):
            talk.turn(*turn)
    return talk.messages


def listing(seed: int | str, length: int) -> list[dict[str, str]]:
    """Lists of things, asked for one after the other, now and then of things of which there is no list, as a conversation with marks."""
    rng = Random(f"lists {seed} {length}")
    talk = dialogues.Conversation(rng, length)
    while talk.position < length:
        if rng.random() < UNLISTED:
            talk.turn(*remarks.exchange(rng, "unlisted")[0])
        exchanges.item_list(talk)
        while talk.chain:
            talk.chain.pop(0)()
    return talk.messages


def storytelling(seed: int | str, length: int) -> list[dict[str, str]]:
    """Stories and questions about them, with what people say to them, jokes and facts among them, as a conversation with marks."""
    rng = Random(f"stories {seed} {length}")
    talk = dialogues.Conversation(rng, length)
    while talk.position < length:
        if rng.random() < REACTED:
            for turn in reactions.turns(rng, f"story_{rng.choice(('liked', 'disliked', 'next', 'another', 'another'))}"):
                talk.turn(*turn)
        elif rng.random() < PIECES:
            exchanges.told_piece(talk)
            while talk.chain:
                talk.chain.pop(0)()
        else:
            talk.turn(*talk.story())
            for _, question, answer in talk.story_due:
                talk.turn(facts.finish(rng, question, "?"), answer)
            talk.story_due.clear()
    return talk.messages


def chatting(seed: int | str, length: int) -> list[dict[str, str]]:
    """Nothing but small talk, most of it whole conversations of stock replies, as a conversation with marks."""
    rng = Random(f"chats {seed} {length}")
    talk = dialogues.Conversation(rng, length)
    while talk.position < length:
        for turn in repertoire.talk(rng) if rng.random() < WHOLE else chatter.talk(rng):
            talk.turn(*turn)
    return talk.messages


def told_and_asked(seed: int | str, length: int) -> list[dict[str, str]]:
    """Scenes told one after the other, then asked for in any order, as a conversation with marks."""
    rng = Random(f"scenes {seed} {length}")
    talk = dialogues.Conversation(rng, length)
    while talk.position < length:
        told = [tell_scene(talk) for _ in range(rng.randint(2, max(3, min(16, length // 60))))]
        for slot in rng.sample(told, len(told)):
            talk.ask_turn(slot)
            if rng.random() < talk.grown(*NEVER_TOLD):
                talk.never_told_turn()
    return talk.messages


def tell_scene(talk: dialogues.Conversation) -> str:
    """A turn that tells a scene not told yet, now and then one near to one that was; returns its slot."""
    fact = talk.new_fact(kind="scene")
    message, fact = facts.informal(talk.rng, facts.tell(talk.rng, fact), fact)
    talk.learn(fact)
    talk.turn(message, talk.acknowledge([fact]))
    return f"{fact.kind}/{fact.key}"


def told_amid_talk(seed: int | str, length: int) -> list[dict[str, str]]:
    """Small talk in which few things are told, asked for and asked for in vain, as a conversation with marks: where hardly anything was told, a model made its answers up."""
    rng = Random(f"amid {seed} {length}")
    talk = dialogues.Conversation(rng, length)
    while talk.position < length:
        roll = rng.random()
        if roll < TOLD:
            talk.tell_turn() if rng.random() < ANY else tell_scene(talk)
        elif roll < TOLD + ASKED and talk.facts:
            talk.ask_turn(rng.choice(list(talk.facts)))
        elif TOLD + ASKED < roll < TOLD + ASKED + UNTOLD:
            talk.never_told_turn()
        else:
            for turn in chatter.talk(rng):
                talk.turn(*turn)
    return talk.messages


def talked_over(seed: int | str, length: int) -> list[dict[str, str]]:
    """Situations, chats, records and lists in turn, as a conversation with marks; one with a system message begins anew."""
    rng = Random(f"situations {seed} {length}")
    talk, tables = dialogues.Conversation(rng, length), []
    while talk.position < length:
        system, roll = "", rng.random()
        if tables and rng.random() < LATER:
            turns = rng.choice(tables).asked()
        elif roll < CHATS:
            turns = chatter.talk(rng, told=True)
        elif roll < CHATS + RECORDS:
            turns, told = records.conversation(rng, without=[table.kind for table in tables])
            tables += told
        elif roll < CHATS + RECORDS + OWN:
            turns = (own_lists if rng.random() < LISTED else compared).turns(rng)
        else:
            system, turns = rng.choice(situations.weighed()).begin(rng)
        if system:
            tables.clear()
            talk.say("system", system)
        for turn in turns:
            talk.turn(*turn)
    return talk.messages


KINDS: dict[str, Callable[[int | str, int], list[dict[str, str]]]] = {"key_values": key_values, "listing": listing, "storytelling": storytelling, "reckoning": reckoning, "chatting": chatting}
