"""The data maker: endless conversations in which things are told, talked over, and asked for again much later.

A conversation is a list of messages `{"role", "content"}` whose assistant replies carry marks (see `marks`). Everything follows from the
seed. `held=True` tells only values, in ways of speaking, that training never uses.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from . import checks, exchanges, grammar, phrases, smalltalk, stories, values
from .facts import Fact, acknowledge, ask, fill_key, finish, informal, new_fact, restating, tell
from .marks import REFUSING, decisive, recalled, strip
from .mentions import Subject

CHARS_PER_TOKEN = 3.6
NAMING = ("name", "pet_name")  # kinds of values that no two may share
PAIR = 45  # tokens of a telling and its question, with their replies, roughly
MAX_DISTANCE = 1850  # tokens between a fact and its question
BESIDE = 0.3  # chance that a new fact is one of a scene near to a told one: the same meeting, another's car
NEVER_TOLD = 0.07, 0.22  # chance of a question about something never told: at the beginning, and after LONG tokens; with 0.05 and 0.3 of 800 (and refusals weighing 1.2) a model declined twice as much of what it was told
LONG = 1200  # tokens

ASK_ASSISTANT = ("{what's|what is|whats} your name", "who are you", "what are you called", "what {should|can|do} I call you", "do you have a name", "tell me your name", "how are you called", "your name", "who am I {talking|speaking|chatting} to", "and you are", "what do they call you", "remind me of your name", "how do I call you", "introduce yourself")
NAME_ASSISTANT = ("{your name is|you are called|I'll call you|I will call you|you are|let me call you|from now on you are|from now on your name is|I name you|can I call you} $v",)
SYSTEM = ("You are $v, a {helpful|friendly|kind|small|cheerful|polite} assistant.", "You are $v.", "Your name is $v.", "You are a {helpful|friendly} assistant called $v.", "You are a {helpful|small} assistant named $v. {Answer briefly.|Be kind.|Keep replies short.|}",
          "The assistant is called $v.", "You are $v, {the voice of a small library|a chat model|who answers in short sentences|a guide for visitors}.",
          "{Your name is|You are|You are called|Act as|The assistant's name is} $v. {You are|Be} {cheerful|polite|calm|patient|funny|warm|wise|curious} and {keep your answers short|like to chat|help where you can|never rude|use plain words}.",
          "You are a {polite butler|tour guide|shop assistant|librarian|robot|tutor|secretary|wizard} {named|called} $v.{| Be brief.| Help the user.| Speak in a friendly way.}")
SYSTEM_PLAIN = ("You are a {helpful|friendly|kind|small|cheerful|polite} assistant.", "Answer briefly.", "Be helpful.", "Keep replies short and friendly.", "You are a helpful assistant. Answer in short sentences.")


@dataclass
class Conversation:
    """A conversation in the making: messages so far, what was told, and when it will be asked again."""

    rng: Random
    length: int  # tokens to fill, roughly
    held: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    due: list[tuple[float, str]] = field(default_factory=list)
    assistant: str = ""
    said: set[str] = field(default_factory=set)  # facts whose value the assistant has said: copying those is easy
    story_due: list[tuple[float, str, str]] = field(default_factory=list)
    position: float = 1.0  # tokens so far, estimated
    chain: list[Callable[[], None]] = field(default_factory=list)  # turns that must come soon, in this order
    hasty: bool = False  # the chain's next turn follows at once
    subjects: list[Subject] = field(default_factory=list)  # told of so far, to be spoken of as she, he, it
    reopen_due: list[tuple[float, Subject]] = field(default_factory=list)
    nouns: set[str] = field(default_factory=set)  # keys and nouns of the subjects
    alias: dict[str, str] = field(default_factory=dict)  # "my sister" for "Mia"
    pronouns: dict[str, str] = field(default_factory=dict)  # "she" for "Mia" and for "my sister"
    latest: tuple[str, int] = ("", 0)  # the fact that the last turn was about, and how many messages there were then
    old: dict[str, list[str]] = field(default_factory=dict)  # values that no longer hold
    listed: dict[str, int] = field(default_factory=dict)  # how many items of each list were said, and which joke comes next
    untold: float = 1.0  # times as many questions about what nobody told

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})
        self.position += len(content) / CHARS_PER_TOKEN + 2

    def turn(self, user: str, reply: str) -> None:
        self.say("user", user)
        self.say("assistant", reply)

    def later(self) -> float:
        """A position to ask at, from the next turn to as far as the conversation or MAX_DISTANCE goes: a third log-uniform, the rest uniform.

        Log-uniform alone leaves one question in a thousand beyond 512 tokens, and a model trained on that recalled 53 % there.
        """
        furthest = max(12.0, min(MAX_DISTANCE, self.length - self.position))
        if self.rng.random() < 0.35:
            return self.position + math.exp(self.rng.uniform(math.log(6), math.log(furthest)))
        return self.position + self.rng.uniform(6, furthest)

    def learn(self, fact: Fact) -> None:
        slot = f"{fact.kind}/{fact.key}"
        if slot in self.facts:
            self.old.setdefault(slot, []).append(self.facts[slot].value)
        self.facts[slot] = fact
        self.said.discard(slot)
        self.due.append((self.later(), slot))
        self.latest = (slot, len(self.messages) + 2)

    def answer(self, slot: str, key: str | None = None, yes: bool = False) -> str:
        """The reply to a question; the value is marked as recalled where the assistant says it for the first time.

        `key` is what the question called its subject; `yes` puts "Yes" before it.
        """
        fact = self.facts[slot]
        answer = replace(fact, key=fact.key if key is None else key).answer
        if yes:
            answer = checks.reply(answer, True)
        before = "" if yes else restating(self.rng, fact)
        if slot in self.said:
            return before + strip(answer)
        self.said.add(slot)
        return before + decisive(answer)

    def acknowledge(self, facts: list[Fact]) -> str:
        """The reply to tellings; notes which values it repeats."""
        reply = acknowledge(self.rng, facts)
        self.said |= {f"{f.kind}/{f.key}" for f in facts if f.value in reply}
        return reply

    def taken(self) -> set[str]:
        return {f.key or f.kind for f in self.facts.values()}

    def names(self) -> set[str]:
        """Names of people, pets and things so far."""
        return {f.value for f in self.facts.values() if f.rule.values in NAMING} | self.nouns

    def heard(self, words: str) -> bool:
        """True where the user has said these words."""
        return any(words in m["content"].lower() for m in self.messages)

    def new_fact(self, *without: str, kind: str | None = None) -> Fact:
        """A fact about something not told yet, now and then near to what was; nobody gets a name that is taken."""
        scenes = [f.key for f in self.facts.values() if f.open] if self.rng.random() < BESIDE else []
        near = self.rng.choice(scenes) if scenes else None
        while True:
            fact = new_fact(self.rng, self.taken().union(self.nouns, without), self.held, kind, near)
            if not (fact.rule.values in NAMING and (fact.value in self.names() or fact.value in self.taken())):
                return fact

    # One turn each.

    def begin(self) -> None:
        roll = self.rng.random()
        if roll < 0.3:
            self.assistant = values.make(self.rng, "name", self.held)
            self.say("system", grammar.fill(grammar.expand(self.rng, self.rng.choice(SYSTEM)), v=self.assistant).strip())
            if self.rng.random() < 0.3:
                self.assistant_asked(exchanges.GREETINGS[0] + " ")
        elif roll < 0.5:
            self.say("system", grammar.expand(self.rng, self.rng.choice(SYSTEM_PLAIN)))

    def tell_turn(self) -> None:
        rng = self.rng
        fact = self.new_fact()
        message, fact = informal(rng, tell(rng, fact, self.held), fact)
        facts, tail = [fact], ""
        roll = rng.random()
        if roll < 0.14:
            alike = fact.rule.also and len(fact.rule.keys) > 2 and message[-1] not in "?!)" and rng.random() < 0.4
            second = new_fact(rng, self.taken() | self.nouns | {fact.key or fact.kind}, self.held, fact.kind if alike else None)
            if alike:
                more = fill_key(phrases.choose(rng, second.rule.also, None), second.key, second.value, second.value)
            joined = message.rstrip(".!") + rng.choice((" and ", ", and ", " and also ", *(", ", "; ", " and ") * bool(alike))) if (alike or rng.random() < 0.5) and message[-1] != "?" else message + " "
            more = finish(rng, more, capital=0) if alike else tell(rng, second, self.held, first=not joined.endswith("and "))
            message, facts = joined + more, [fact, second]
        elif roll < 0.26:
            message = finish(rng, smalltalk.remark(rng)).rstrip("?") + " " + message
        elif roll < 0.36:
            message = message + ("" if message[-1] in ".!?" else ".") + " " + finish(rng, smalltalk.remark(rng))
        elif roll < 0.40:
            user, tail = smalltalk.small_talk(rng)
            message = message + ("" if message[-1] in ".!?" else ".") + " " + finish(rng, user, "?")
            tail = " " + tail
        for f in facts:
            self.learn(f)
        if len(facts) > 1 or 0.26 <= roll < 0.40:  # "actually it's ..." would not be clear
            self.latest = ("", 0)
        self.turn(message, self.acknowledge(facts) + tail)

    def update_turn(self) -> None:
        """A fact told anew: the latest counts."""
        rng = self.rng
        closed = [f for f in self.facts.values() if not f.open and not (f.kind in ("relation", "pet") and f.key in self.nouns)]
        if not closed:
            return
        old = rng.choice(closed)
        fact = replace(old, value=values.make(rng, old.rule.values, self.held))
        core = tell(rng, fact, self.held, first=False)
        starts = ("Actually, ", "I was wrong: ", "Sorry, ", "Correction: ", "It has changed: ", "No wait, ", "Update: ", "From now on ", "oh, that changed, ", "I made a mistake, ", "now ")
        message, fact = informal(rng, rng.choice(starts) + core, fact)
        self.learn(fact)
        if rng.random() < 0.6:
            return self.turn(message, rng.choice(("Okay, I have changed that.", "Thank you for the correction.", "Got it, I will remember the new one.")))
        self.said.add(f"{fact.kind}/{fact.key}")
        self.turn(message, "Got it. " + fact.sentence(fact.value))

    def ask_turn(self, slot: str) -> None:
        rng, fact = self.rng, self.facts[slot]
        key = self.alias[fact.key] if fact.key in self.alias and rng.random() < 0.5 else fact.key
        message = ask(rng, replace(fact, key=key), self.held)
        if key in self.pronouns:
            message = re.sub(r"\b(she|he)\b", self.pronouns[key], message)
        message, _ = informal(rng, message, keep=key)
        reply, roll = self.answer(slot, key, checks.wants_yes(message)), rng.random()
        others = [s for s in self.facts if s != slot]
        if roll < 0.08 and others:
            second = rng.choice(others)
            message += ("" if message[-1:] in ".!?" else rng.choice((" and ", "? ", ", "))) + " " + ask(rng, self.facts[second], self.held)
            message, reply = message.replace("  ", " "), reply + " " + self.answer(second)
        elif roll < 0.14:
            message = finish(rng, smalltalk.remark(rng)).rstrip("?") + " " + message
        else:
            self.latest = (slot, len(self.messages) + 2)
        self.turn(message, reply)
        if rng.random() < 0.15:
            self.due.append((self.later(), slot))

    def tell_and_ask_turn(self) -> None:
        """Two messages in one: something new, and a question about something old."""
        rng, slot = self.rng, self.rng.choice(list(self.facts))
        fact = self.new_fact()
        message, fact = informal(rng, tell(rng, fact, self.held), fact)
        message += ("" if message[-1] in ".!?" else ".") + " " + ask(rng, self.facts[slot], self.held)
        answer = self.answer(slot)
        self.learn(fact)
        self.latest = ("", 0)
        self.turn(message, self.acknowledge([fact]) + " " + answer)

    def never_told_turn(self) -> None:
        """A question about something never told, half of the time near something that was."""
        rng = self.rng
        near = self.facts and rng.random() < 0.5
        neighbour = rng.choice(list(self.facts.values())) if near else None
        kind = neighbour and ("open" if neighbour.open else neighbour.kind)
        if kind and kind != "open" and not any(k.startswith("@") for k in phrases.KINDS[kind].keys) and len(phrases.KINDS[kind].keys) < 3:
            kind = None
        fact = new_fact(rng, self.taken() | self.nouns, self.held, kind, neighbour.key if kind == "open" else None)
        if kind is None and f"{fact.kind}/{fact.key}" in self.facts:
            return
        message, _ = informal(rng, ask(rng, fact, self.held), keep=fact.key)
        self.turn(message, restating(rng, fact) + decisive(f"You have not told me {fact.phrase}.", REFUSING))

    def assistant_turn(self) -> None:
        rng = self.rng
        if rng.random() < 0.2:
            self.assistant = values.make(rng, "name", self.held)
            message = finish(rng, grammar.fill(grammar.expand(rng, NAME_ASSISTANT[0]), v=self.assistant))
            return self.turn(message, rng.choice(("Okay, my name is {}.", "Nice, I am {} now.", "Okay.", "I like that name.")).format(self.assistant))
        self.assistant_asked(phrases.BEFORE_QUESTION if rng.random() < 0.6 else "")

    def assistant_asked(self, before: str) -> None:
        """What the assistant is called."""
        rng = self.rng
        message, _ = informal(rng, finish(rng, grammar.expand(rng, before) + grammar.expand(rng, rng.choice(ASK_ASSISTANT)), "?"))
        named = rng.choice(("My name is {}.", "I am {}.")).format(recalled(self.assistant))
        self.turn(message, named if self.assistant else "I am a small assistant. I have no name.")

    def story(self) -> tuple[str, str]:
        """A wish for a story, and the story, about which there will be questions."""
        told = stories.wished(self.rng, self.held, self.names() | self.taken(), self.listed.get("story", 0))
        self.listed["story"] = told.number + 1
        for question, answer in told.questions:
            self.story_due.append((self.position + self.rng.choice((0, 0, 20, 60)), question, answer))
        return told.wish, told.text

    def filler_turn(self, share: float = 1.0) -> None:
        """Small talk, a long remark, a list or a sum; with a share of 0.74 only the first two."""
        rng, roll = self.rng, self.rng.random() * share
        make = smalltalk.small_talk if roll < 0.5 or self.length < 300 and roll < 0.74 else smalltalk.long_remark if roll < 0.74 else smalltalk.item_list if roll < 0.86 else smalltalk.total
        user, reply = make(rng)
        user, _ = informal(rng, finish(rng, user, rng.choice(".?") if make in (smalltalk.item_list, smalltalk.total) else "."))
        self.turn(user, reply)

    def step(self) -> None:
        """The next turn: what must come soon, then what is due, else something by chance."""
        if self.chain:
            return self.go_on()
        slot, roll = exchanges.correctable(self), self.rng.random()
        if slot and roll < 0.06:
            return exchanges.correction(self, slot)
        if self.messages and roll > 0.985:
            return exchanges.again(self)
        if self.story_due and self.story_due[0][0] <= self.position:
            _, question, answer = self.story_due.pop(0)
            return self.turn(finish(self.rng, question, "?"), answer)
        if self.reopen_due and min(at for at, _ in self.reopen_due) <= self.position:
            at, subject = min(self.reopen_due, key=lambda due: due[0])
            self.reopen_due.remove((at, subject))
            return exchanges.reopen(self, subject)
        ready = [d for d in self.due if d[0] <= self.position]
        if ready and self.rng.random() < 0.85:
            self.due.remove(ready[0])
            return self.ask_turn(ready[0][1])
        if self.rng.random() < self.never_told_share():
            return self.never_told_turn()
        self.by_chance()

    def never_told_share(self) -> float:
        """The chance that the next turn asks about something never told.

        After one fact it is a fifth of what it is after four: when every fourth question about a single fact was about something else, the
        model declined what it had been told in other words, and knew it: made to answer, it said the right thing. With a ninth, it answered
        what nobody had told with the one thing somebody had.
        """
        told = min(1, (len(self.facts) / 4) ** 1.1) if self.facts else 1
        return self.untold * told * self.grown(*NEVER_TOLD)

    def grown(self, first: float, last: float) -> float:
        """What lies between two chances: nearer to the last the more was said, for the more a model has heard the sooner it says something that was."""
        return first + (last - first) * min(1, self.position / LONG)

    def go_on(self) -> None:
        """The next turn of the chain, or chat in between."""
        slot = exchanges.correctable(self)
        if slot and self.rng.random() < 0.06:
            return exchanges.correction(self, slot)
        if not self.hasty and self.rng.random() < 0.15:
            return exchanges.small(self)
        self.chain.pop(0)()
        self.hasty = self.hasty and bool(self.chain)

    def by_chance(self) -> None:
        """A turn of any kind."""
        room, roll = self.length - self.position > PAIR + len(self.due) * PAIR / 2, self.rng.random()
        if roll < 0.025 and self.facts:
            self.update_turn()
        elif roll < 0.05 and self.facts:
            self.tell_and_ask_turn()
        elif roll < 0.085:
            self.assistant_turn()
        elif roll < 0.115 and self.length > 200:
            self.turn(*self.story())
        elif roll < 0.19 and room:
            exchanges.mention(self)
        elif roll < 0.24:
            exchanges.combined(self)
        elif roll < 0.32:
            exchanges.check(self)
        elif roll < 0.44:
            exchanges.do_chore(self)
        elif roll < 0.54:
            exchanges.chat(self)
        elif roll < 0.90 and room:
            self.tell_turn()
        else:
            self.filler_turn(share=0.74)


def conversation(seed: int | str, length: int, held: bool = False) -> list[dict[str, str]]:
    """Messages of a conversation of at least `length` tokens, roughly; the same seed gives the same conversation."""
    talk = Conversation(Random(f"dialogue {seed} {length} {held}"), length, held)
    talk.begin()
    while talk.position < length:
        talk.step()
    return talk.messages


def question_at(seed: int | str, distance: int, new_ways: bool = True) -> tuple[list[dict[str, str]], Fact]:
    """Evaluation: a fact, filler for `distance` tokens, roughly, with other facts in it, and the question. Returns messages and the fact.

    Values are never training's. Ways of telling and asking are held out from training too if `new_ways`; else they are training's, and the
    fact is of a kind that is listed, not an open one made by grammar.
    """
    rng = Random(f"question {seed} {distance} {new_ways}")
    talk = Conversation(rng, distance + 200, held=True)
    fact = new_fact(rng, set(), held=True)
    while fact.rule.values in values.CLOSED or not unseen(fact.value) or not new_ways and fact.kind == "open":
        fact = new_fact(rng, set(), held=True)
    talk.turn(tell(rng, fact, new_ways), acknowledge(rng, [fact]) if rng.random() < 0.3 else "Okay.")
    talk.facts[f"{fact.kind}/{fact.key}"] = fact
    pad(talk, distance, {fact.key or fact.kind})
    talk.say("user", ask(rng, fact, new_ways))
    return talk.messages, fact


def unseen(value: str) -> bool:
    """True for a value that training never tells, with or without the article or preposition before it."""
    return values.held_out(value) or values.held_out(value.split(" ", 1)[-1])


def pad(talk: Conversation, distance: int, taken: set[str] = frozenset(), kind: str | None = None) -> None:
    """Fill a conversation for `distance` tokens, roughly: small talk, lists, and now and then another fact (of one kind, if given)."""
    end = talk.position + distance
    while talk.position < end - 6:
        if end - talk.position > 120 and talk.rng.random() < 0.2:
            other = new_fact(talk.rng, taken | talk.taken(), talk.held, kind)
            talk.facts[f"{other.kind}/{other.key}"] = other
            talk.turn(tell(talk.rng, other, talk.held), "Okay.")
        elif end - talk.position > 60:
            talk.filler_turn()
        else:
            talk.turn(*smalltalk.small_talk(talk.rng))
