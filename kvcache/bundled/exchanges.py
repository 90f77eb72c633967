"""Turns beyond telling and asking by name: pronouns, yes or no, corrections without a noun, two things at once, lists, counting, jokes, feelings.

Each function adds one turn or more to a conversation in the making, or none where nothing fits. Follow-ups that must come soon wait in
`talk.chain`, between which only chat without people or things is said, so that "she" and "it" stay clear.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from . import chatter, checks, chores, corrections, glue, mentions, phrases, sentences, sums, values
from .facts import Fact, ask, finish, informal, mark, named, new_fact, sloppy, tell
from .grammar import article, expand
from .marks import REFUSING, decisive, recalled, strip, unguessable
from .mentions import OPPOSITES, Subject

if TYPE_CHECKING:
    from .dialogues import Conversation

GREETINGS = ("{hi|hello|hey|good morning|good evening|hi there|hello there|hey there}{!|.|,}", ("Hello!", "Hi!", "Hello!", "Hello, nice to hear from you."))
HOW = ("{hi|hello|hey|good morning}{!|,|} how are you?", ("I am fine, thank you.", "I am doing well, thank you."))
THANKS = ("{thanks|thank you|great, thanks|perfect, thank you|ok thanks|thanks a lot}{!|.|}", ("You are welcome.", "My pleasure."))
COMPLAINT = "{that's wrong|that's not right|wrong|no, that's wrong|that is not correct|no, that's not it|that's incorrect|not true|you got that wrong|that's a mistake|that can't be right|no, wrong|that is false}"
SORRY = ("I am sorry. What is right?", "I am sorry. What should it be?", "Sorry, my mistake. What is the right answer?")
CHANGED = ("Okay, I have changed that.", "Thank you for the correction.", "Got it, I will remember the new one.", "Thank you, I have changed that.", "All right, I will use the new one.")
NAME_ASKS = "{what's $h name|what is $h name|what is $p called|do you remember $h name|tell me $h name|what was $p called|$h name|can you tell me $h name}"
LEAD = "{||||||and |so |ok, |now |well, |and now, |oh, |one more thing, }"
REOPEN = "{let's talk about $k{ again|}|back to $k|I want to ask you about $k|a question about $k|now about $k|it's about $k{ again|}|I was thinking of $k}"
HAVE = "{do I have|have I got|did I tell you about|is there|did I mention|have I mentioned} $a $k{| in my life| at home}"



def small(talk: Conversation) -> None:
    """A turn of chat without anybody in it."""
    user, reply = glue.pair(talk.rng)
    talk.turn(informal(talk.rng, finish(talk.rng, user, mark(user)))[0], reply)


def chat(talk: Conversation) -> None:
    """A feeling, a complaint, a thank you, a remark on anything; now and then with further turns that follow from it."""
    roll = talk.rng.random()
    if roll < 0.2:
        return small(talk)
    if roll < 0.3:
        turns = [(informal(talk.rng, finish(talk.rng, user, mark(user)))[0], reply) for user, reply in glue.exchange(talk.rng)]
    else:
        turns = chatter.talk(talk.rng, talk.held)
    if len(turns) > 1 and talk.rng.random() < 0.15:  # somebody breaks off
        turns = [*turns[:-1], glue.pair(talk.rng)]
    talk.chain += [lambda turn=turn: talk.turn(*turn) for turn in turns]
    talk.hasty = True
    talk.chain.pop(0)()


def typed(rng: Random, message: str, facts: list[Fact]) -> tuple[str, list[Fact]]:
    """The message and its facts in lower case, in haste or without apostrophes now and then."""
    if rng.random() < 0.07:
        message = sloppy(rng, message, tuple(word for f in facts for word in (f.value, f.key)))
    roll = rng.random()
    if roll < 0.25:
        return message.lower(), [replace(f, value=f.value.lower()) for f in facts]
    if roll < 0.32 and not any("'" in f.value for f in facts):
        return message.replace("'", ""), facts
    return message, facts


def answered(talk: Conversation, slot: str, sentence: str) -> str:
    """The sentence with its marks; a value that the assistant has said before isn't marked as recalled."""
    if slot in talk.said:
        sentence = strip(sentence)
    talk.said.add(slot)
    return decisive(sentence)


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


# She, he, it, there


def mention(talk: Conversation) -> None:
    """Tell of somebody or something in one message or more; pronoun questions follow."""
    subjects = [mentions.make(talk.rng, talk.held, talk.taken() | talk.nouns, talk.names())]
    if subjects[0] is None:
        return
    first = subjects[0]
    if first.kind == "person" and talk.rng.random() < 0.35:
        other = mentions.make(talk.rng, talk.held, talk.taken() | talk.nouns | {first.noun, first.key}, talk.names() | {f.value for f in first.facts})
        if other and other.kind == "person" and other.pronoun != first.pronoun:
            subjects.append(other)
    for subject in subjects:
        introduce(talk, subject)
    questions = [q for subject in subjects for q in follow_ups(talk.rng, subject)]
    talk.rng.shuffle(questions)
    talk.chain += [lambda s=s, t=t: pronoun_question(talk, s, t) for s, t in questions]
    talk.chain.pop(0)()


def introduce(talk: Conversation, subject: Subject) -> None:
    """Queue the messages that tell of a subject."""
    rng, told = talk.rng, [f for f in subject.facts if f.kind in subject.told]
    talk.nouns |= {subject.noun, subject.key} - {""}
    cut = rng.randint(1, len(told))
    talk.chain.append(lambda: tell_of(talk, subject, subject.facts[:len(subject.facts) - len(told)] + told[:cut], opening=True))
    talk.chain.extend(lambda fact=fact: tell_of(talk, subject, [fact], opening=False) for fact in told[cut:])


def tell_of(talk: Conversation, subject: Subject, facts: list[Fact], opening: bool) -> None:
    """One message with the facts, spoken of with pronouns."""
    rng = talk.rng
    message = subject.intro if opening else ""
    for fact in facts:
        if fact.kind in subject.told:
            text = subject.tell(rng, fact, talk.held)
            link = rng.choice((". ", ". ", ". ", "! ", ", ", " and ")) if message else ""
            message += link + (capital(text) if link in (". ", "! ") and rng.random() < 0.8 else text)
    message, facts = typed(rng, finish(rng, message.strip()), facts)
    for fact in facts:
        talk.learn(fact)
    if len(facts) > 1:
        talk.latest = ("", 0)
    if opening:
        talk.subjects.append(subject)
        if rng.random() < 0.6:
            talk.reopen_due.append((talk.later(), subject))
        if subject.kind == "person" and subject.noun and subject.named:
            talk.alias[subject.key] = f"my {subject.noun}"
        if subject.kind == "person":
            talk.pronouns |= {subject.key: subject.pronoun, f"my {subject.noun}": subject.pronoun}
    what = [subject.phrase(f.kind) if f.kind in subject.told else f.phrase for f in facts]
    if rng.random() < 0.4:
        return talk.turn(message, rng.choice(("Okay, I will remember {}.", "I will remember {}.", "Thank you for telling me {}.")).format(named(what)))
    talk.turn(message, rng.choice(("Okay.", "Got it.", "Good to know.", "I will remember that.", "Thank you for telling me.", "How nice. I will remember that.", "Okay, I will keep that in mind.")))


def follow_ups(rng: Random, subject: Subject) -> list[tuple[Subject, str]]:
    """One to three traits to ask about; a fifth were never told."""
    found = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        trait = rng.choice(subject.told)
        if rng.random() < 0.16:
            trait = rng.choice([t for t in subject.traits if t not in subject.told])
        elif subject.kind in ("person", "pet") and (subject.named or subject.key.startswith("my ")) and rng.random() < 0.3:
            trait = "name"
        if (subject, trait) not in found:
            found.append((subject, trait))
    return found


def pronoun_question(talk: Conversation, subject: Subject, trait: str) -> None:
    """"Where does she live?" and its answer, or "does she live in Bern?"."""
    rng = talk.rng
    if trait == "name":
        return name_question(talk, subject)
    slot = subject.slot(trait)
    fact = talk.facts.get(slot) if trait in subject.told else None
    if fact and rng.random() < 0.25:
        return pronoun_check(talk, subject, fact)
    text = subject.ask(rng, trait, talk.held)
    message, _ = typed(rng, finish(rng, expand(rng, LEAD) + text, "?"), [])
    if not fact:
        return talk.turn(message, decisive(f"You have not told me {subject.phrase(trait)}.", REFUSING))
    talk.turn(message, answered(talk, slot, subject.sentence(trait, fact, fact.marked)))
    talk.latest = (slot, len(talk.messages))


def name_question(talk: Conversation, subject: Subject) -> None:
    """"What's her name?"."""
    rng = talk.rng
    message, _ = typed(rng, finish(rng, expand(rng, LEAD) + subject.words(phrases.choose(rng, (NAME_ASKS,), talk.held)), "?"), [])
    if not subject.named:
        return talk.turn(message, decisive(subject.words("You have not told me $h name."), REFUSING))
    slot = f"{subject.facts[0].kind}/{subject.noun}"
    talk.turn(message, answered(talk, slot, capital(subject.words("$h name is $v.", v=talk.facts[slot].marked))))


def pronoun_check(talk: Conversation, subject: Subject, fact: Fact) -> None:
    """"Is it big?", "does she work in a bakery?"."""
    rng, trait = talk.rng, fact.kind
    asked = fact.value if rng.random() < 0.5 else OPPOSITES.get(fact.value.lower()) or other_value(talk, subject.slot(trait), fact)
    message, _ = typed(rng, finish(rng, checks.ask(rng, subject.sentence(trait, replace(fact, value=asked), asked), talk.held), "?"), [replace(fact, value=asked)])
    sentence = checks.reply(subject.sentence(trait, fact, fact.marked), asked == fact.value)
    talk.turn(message, answered(talk, subject.slot(trait), sentence))


def reopen(talk: Conversation, subject: Subject) -> None:
    """Speak of somebody or something again, much later: by name first, then by pronoun."""
    rng = talk.rng
    questions = follow_ups(rng, subject)
    if rng.random() < 0.4:
        talk.ask_turn(subject.slot(rng.choice(subject.told)))
    else:
        key = subject.key if subject.kind in ("person", "pet", "place") else f"my {subject.noun}"
        if subject.named and rng.random() < 0.5:
            key = f"my {subject.noun}"
        message, _ = typed(rng, finish(rng, expand(rng, REOPEN).replace("$k", key)), [])
        shown = key.replace("my ", "your ", 1) if key.startswith("my ") else key
        talk.turn(message, rng.choice(("Of course. What about {}?", "Yes, what about {}?", "Sure. What would you like to know about {}?")).format(shown))
    talk.chain += [lambda s=s, t=t: pronoun_question(talk, s, t) for s, t in questions[:2]]


# Yes or no


def other_value(talk: Conversation, slot: str, fact: Fact) -> str:
    """A value that is not the fact's: an older one of it, one of another fact of its kind, or any."""
    rng = talk.rng
    old = [v for v in talk.old.get(slot, []) if differ(v, fact.value)]
    if old and rng.random() < 0.5:
        return rng.choice(old)
    alike = [f.value for f in talk.facts.values() if f.rule.values == fact.rule.values and f.rule.answer != sentences.SEEN_ANSWER and differ(f.value, fact.value)]
    if alike and rng.random() < 0.5:
        return rng.choice(alike)
    value = fact.value
    while not differ(value, fact.value):
        value = values.make(rng, fact.rule.values, talk.held)
    return value


def differ(one: str, other: str) -> bool:
    """False where one of two values is the other or says it with more: "on Saturday", "on Saturday at 9 o'clock"."""
    one, other = one.lower(), other.lower()
    return one not in other and other not in one


def check(talk: Conversation) -> None:
    """"Is my cat called Pepper?" of something told, or of something never told."""
    rng = talk.rng
    if rng.random() < 0.17:
        return check_never_told(talk)
    slots = [s for s, f in talk.facts.items() if f.rule.answer != sentences.SEEN_ANSWER]
    if not slots:
        return
    slot = rng.choice(slots)
    fact = talk.facts[slot]
    if fact.kind in ("relation", "pet") and rng.random() < 0.4:
        message, true = have(talk, fact), True
    else:
        true = rng.random() < 0.5
        asked = replace(fact, value=fact.value if true else other_value(talk, slot, fact))
        message = finish(rng, checks.ask(rng, asked.sentence(asked.value), talk.held), "?")
        message, _ = typed(rng, message, [asked])
    talk.turn(message, answered(talk, slot, checks.reply(fact.answer, true)))
    talk.latest = (slot, len(talk.messages))


def have(talk: Conversation, fact: Fact) -> str:
    """"Do I have a dog?"."""
    text = phrases.choose(talk.rng, (HAVE,), talk.held).replace("$a", article(fact.key)).replace("$k", fact.key)
    return informal(talk.rng, finish(talk.rng, text, "?"), keep=fact.key)[0]


def check_never_told(talk: Conversation) -> None:
    """The same of something that nothing was told about."""
    rng = talk.rng
    fact = new_fact(rng, talk.taken() | talk.nouns, talk.held)
    if fact.open or f"{fact.kind}/{fact.key}" in talk.facts:
        return
    if fact.kind in ("relation", "pet") and rng.random() < 0.5:
        if not talk.heard(f" {fact.key}"):
            talk.turn(have(talk, fact), decisive(f"You have not told me about {article(fact.key)} {fact.key}.", REFUSING))
        return
    message = finish(rng, checks.ask(rng, fact.sentence(fact.value), talk.held), "?")
    talk.turn(informal(rng, message, keep=fact.key)[0], decisive(f"You have not told me {fact.phrase}.", REFUSING))


# Corrections


def correctable(talk: Conversation) -> str | None:
    """The slot of the fact that the last turn was about, if "actually it's ..." would be clear."""
    slot, at = talk.latest
    fact = talk.facts.get(slot)
    if at != len(talk.messages) or fact is None or fact.rule.answer == sentences.SEEN_ANSWER:
        return None
    if fact.kind in ("their character", "their mood", "stay length") or fact.kind in ("relation", "pet") and fact.value in talk.nouns:
        return None
    return slot


def correction(talk: Conversation, slot: str) -> None:
    """A new value for what was just said, now and then after a complaint and an apology."""
    rng = talk.rng
    if strip(talk.messages[-1]["content"]).endswith(f"{talk.facts[slot].value}.") and rng.random() < 0.3:
        talk.turn(informal(rng, finish(rng, expand(rng, COMPLAINT)))[0], rng.choice(SORRY))
    for _ in range(rng.choice((1, 1, 1, 2))):
        old = talk.facts[slot]
        before = {v.lower() for v in (old.value, *talk.old.get(slot, ()))}
        drawn = (values.make(rng, old.rule.values, talk.held) for _ in range(50))
        value = next((v for v in drawn if v.lower() not in before and v not in talk.names()), None)
        if value is None:  # all four seasons were said
            return
        message = finish(rng, corrections.correct(rng, old, value, talk.held), protect=value)
        message, fact = informal(rng, message, replace(old, value=value))
        talk.learn(fact)
        if rng.random() < 0.5:
            talk.turn(message, rng.choice(CHANGED))
        else:
            talk.said.add(slot)
            talk.turn(message, rng.choice(("Got it. ", "Okay. ", "Thank you. ")) + fact.sentence(fact.value))
    if rng.random() < 0.35:
        talk.chain.append(lambda: talk.ask_turn(slot))


# Two things in one message


def combined(talk: Conversation) -> None:
    """A greeting, a thank you, a feeling or a request beside a telling or a question, or two of these; the reply serves both."""
    rng = talk.rng
    if rng.random() < 0.2:
        return two_facts(talk)
    parts = [rng.choice((greeting, greeting, feeling, request, request, asked)), rng.choice((told, told, asked, asked, own_name))] if talk.facts else [rng.choice((greeting, greeting, request)), told]
    if rng.random() < (0.7 if parts[0] is request else 0.3 if parts[0] is feeling else 0):
        parts.reverse()
    messages, replies = zip(*(part(talk) for part in parts))
    first = messages[0] if messages[0][-1] in ".!?," else messages[0] + rng.choice((".", "!", ",", " and") if parts[0] is not request else ("?", "."))
    message = f"{first} {messages[1]}"
    talk.latest = ("", 0)
    talk.turn(message, " ".join(replies))


def two_facts(talk: Conversation) -> None:
    """Two facts in one message, both named in the reply."""
    rng, facts = talk.rng, []
    texts = []
    for _ in range(2):
        facts.append(talk.new_fact(*(f.key or f.kind for f in facts)))
        texts.append(tell(rng, facts[-1], talk.held, first=False))
        talk.learn(facts[-1])
    link = rng.choice((". ", ". ", " and ", ", and ", ", ")) if texts[0][-1] not in "!?)" else " "
    talk.latest = ("", 0)
    talk.turn(texts[0].rstrip("." if link != " " else "") + link + texts[1], rng.choice(("Okay, I will remember {}.", "I will remember {}.", "Thank you for telling me {}.")).format(named([f.phrase for f in facts])))


def greeting(talk: Conversation) -> tuple[str, str]:
    message, replies = talk.rng.choice((GREETINGS, GREETINGS, HOW, THANKS) if len(talk.messages) > 3 else (GREETINGS, GREETINGS, HOW))
    text = expand(talk.rng, message)
    return (capital(text) if talk.rng.random() < 0.5 else text), talk.rng.choice(replies)


def feeling(talk: Conversation) -> tuple[str, str]:
    user, reply = glue.feeling(talk.rng)
    return finish(talk.rng, user).rstrip("?"), reply


def chore(talk: Conversation) -> tuple[str, str]:
    user, reply = talk.rng.choice(chores.CHORES)(talk.rng)
    text = expand(talk.rng, user).strip()
    return finish(talk.rng, text, mark(text)), reply


def request(talk: Conversation) -> tuple[str, str]:
    """A chore, a story, a joke, a fact or a kind word that is wanted beside something else."""
    rng, roll = talk.rng, talk.rng.random()
    if roll < 0.3:
        return chore(talk)
    if roll < 0.6 and talk.length > 200:
        return talk.story()
    pieces, ways = chores.TELLING[rng.choice(("joke", "joke", "fact", "compliment"))]
    text = expand(rng, ways)
    return finish(rng, text, mark(text)), unguessable(rng.choice(pieces[:chores.PLAIN]))


def told(talk: Conversation) -> tuple[str, str]:
    fact = talk.new_fact()
    message = tell(talk.rng, fact, talk.held, first=False)
    talk.learn(fact)
    return message, talk.rng.choice(("I will remember {}.", "I will remember {}.", "Okay, I will remember {}.", "Thank you for telling me {}.")).format(fact.phrase)


def own_name(talk: Conversation) -> tuple[str, str]:
    """What the assistant is called, asked beside something else."""
    message = expand(talk.rng, "{what's yours|what is yours|what is your name|what's your name|who are you|how are you called|what are you called}")
    return message + "?", f"My name is {recalled(talk.assistant)}." if talk.assistant else "I have no name."


def asked(talk: Conversation) -> tuple[str, str]:
    if talk.rng.random() < 0.15:
        fact = new_fact(talk.rng, talk.taken() | talk.nouns, talk.held)
        if f"{fact.kind}/{fact.key}" not in talk.facts and fact.kind != "open":
            return ask(talk.rng, fact, talk.held), decisive(f"You have not told me {fact.phrase}.", REFUSING)
    slot = talk.rng.choice(list(talk.facts))
    return ask(talk.rng, talk.facts[slot], talk.held), answered(talk, slot, talk.facts[slot].answer)


# Lists, counting, jokes, and again


def do_chore(talk: Conversation) -> None:
    """Count, add, say the days; or a list, a joke or a fact with more of it; at times what was said is asked again."""
    rng = talk.rng
    roll = rng.random()
    if roll < 0.24:
        user, reply = chore(talk)
        talk.turn(informal(rng, user)[0], reply)
    elif roll < 0.3:
        for text, reply in chores.counted(rng):
            talk.turn(informal(rng, finish(rng, text, mark(text)))[0], reply)
    elif roll < 0.6:
        running_sum(talk)
    elif roll < 0.8:
        item_list(talk)
    else:
        told_piece(talk)
    if rng.random() < 0.2:
        talk.chain.insert(0, lambda: again(talk))


def running_sum(talk: Conversation) -> None:
    """"What is 3 + 4", "now add 2"; or things counted."""
    for turn in reckoned(talk.rng):
        talk.chain.append(lambda turn=turn: talk.turn(*turn))
    talk.hasty = True
    talk.chain.pop(0)()


def reckoned(rng: Random) -> list[tuple[str, str]]:
    """Some sums as they are typed, and their answers."""
    turns = []
    for user, reply in sums.some(rng):
        text = expand(rng, user).strip()
        turns.append((informal(rng, finish(rng, text, mark(text)))[0], expand(rng, reply)))
    return turns


def item_list(talk: Conversation) -> None:
    """"Name three fruits", "another one please", "two more"; no item comes twice in a conversation."""
    rng = talk.rng
    name, n, text = chores.asked_list(rng)
    done = talk.listed.get(name, 0)
    if done + n > len(chores.named(name)):
        return
    message = phrases.choose(rng, (chores.ASK_LIST,), talk.held).replace("$n", text)
    message = informal(rng, finish(rng, message, mark(message)))[0]
    talk.turn(message, listing(talk, name, n, "Here you are"))
    talk.hasty = True
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        talk.chain.append(lambda: more_items(talk, name))


def listing(talk: Conversation, name: str, n: int, lead: str) -> str:
    """The next n items of a list, as a reply."""
    done = talk.listed.get(name, 0)
    talk.listed[name] = done + n
    return f"{lead}: {chores.items(name, done, n)}."


def more_items(talk: Conversation, name: str) -> None:
    rng, done = talk.rng, talk.listed[name]
    left = len(chores.named(name)) - done
    n = 2 if left > 1 and rng.random() < 0.25 else 1
    message = informal(rng, finish(rng, expand(rng, chores.MORE_TWO if n == 2 else chores.MORE_LIST), "."))[0]
    talk.turn(message, listing(talk, name, n, chores.MORE_OF[n]) if left else "I do not know any more.")


def told_piece(talk: Conversation) -> None:
    """A joke, a fact or a kind word, and another one."""
    rng = talk.rng
    kind = rng.choice(("joke", "joke", "fact", "fact", "compliment"))
    pieces, _ = chores.TELLING[kind]
    at, wish, told = chores.piece(rng, kind, talk.listed.get(kind))
    for turn in range(rng.choice((1, 2, 2, 3))):
        def say(at=at + turn, text=expand(rng, chores.MORE[kind]) if turn else wish, told=told if turn == 0 else pieces[(at + turn) % len(pieces)]):
            talk.listed[kind] = at + 1
            talk.turn(informal(rng, finish(rng, text, mark(text)))[0], told)
        talk.chain.append(say)
    if kind == "joke" and rng.random() < 0.3:
        talk.chain.append(lambda: talk.turn(informal(rng, finish(rng, expand(rng, (laugh := rng.choice(chores.LAUGHS))[0])))[0], expand(rng, laugh[1])))
    elif rng.random() < 0.2:
        talk.chain.append(lambda: small(talk))  # it is not always laughter that follows
    talk.hasty = True
    talk.chain.pop(0)()


def again(talk: Conversation) -> None:
    """"What did you say?"."""
    last = strip(talk.messages[-1]["content"]) if talk.messages else ""
    if talk.messages and talk.messages[-1]["role"] == "assistant" and len(last) < 160:
        message = informal(talk.rng, finish(talk.rng, phrases.choose(talk.rng, (chores.AGAIN,), talk.held), "?"))[0]
        talk.turn(message, last if last.startswith("I said: ") else "I said: " + last)
