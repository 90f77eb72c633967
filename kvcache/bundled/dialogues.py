"""The data maker: endless conversations in which things are told, talked over, and asked for again much later.

A conversation is a list of messages `{"role", "content"}` whose assistant replies carry marks (see `marks`). Everything follows from the
seed. `held=True` tells only values, in ways of speaking, that training never uses.
"""

import math
import re
from dataclasses import dataclass, field, replace
from random import Random

from . import grammar, phrases, sentences, smalltalk, values
from .marks import REFUSING, decisive, recalled, strip

CHARS_PER_TOKEN = 3.6
OPEN = 0.1  # share of open facts
PAIR = 45  # tokens of a telling and its question, with their replies, roughly
MAX_DISTANCE = 1500  # tokens between a fact and its question
STATEMENT = ("my ", "I ", "I'm ", "we ", "our ", "the ", "they ", "people ", "$v is ", "$k is ", "$k lives ")  # how a plain statement begins
PLEA = ("help", "help me", "help me look", "please", "pls", "forgot the code", "forgot the number", "forgot the name", "forgot the password", "know the code", "know the password", "my head", "is gone")  # ends of asks that are no questions
CHAT = [line.split(":") for line in """you:u|ya
your:ur
please:pls|plz
thanks:thx|ty
what's:whats|wats
what is:whats
I'm:im
I am:im
because:cuz|bc
are:r
people:ppl
password:pw|pass
birthday:bday
number:nr|num
favourite:fav|fave
don't:dont
can't:cant
it's:its
okay:k|ok
by the way:btw
tell me:tell me pls
my name is:my names|my name s""".splitlines()]
PLURAL = frozenset("keys glasses headphones gloves shoes scissors socks".split())
_KINDS = [k for k in phrases.KINDS if phrases.KINDS[k].weight > 0]
_WEIGHTS = [phrases.KINDS[k].weight for k in _KINDS]


@dataclass(frozen=True)
class Fact:
    """A kind of fact, what it belongs to, and the value last told."""

    kind: str
    key: str
    value: str
    open: phrases.Kind | None = None  # the ways of an open fact, which is a kind of its own

    @property
    def rule(self) -> phrases.Kind:
        """How it is told, asked and answered."""
        return self.open or phrases.KINDS[self.kind]

    @property
    def answer(self) -> str:
        """The plain reply, the value marked as recalled."""
        return self.sentence(recalled(self.value))

    def sentence(self, shown: str) -> str:
        """The answer around a value shown in some way."""
        key = self.key.replace("my ", "your ", 1) if self.key.startswith("my ") else self.key
        text = _fill(self.rule.answer, key, self.value, shown)
        return text[:1].upper() + text[1:]

    @property
    def phrase(self) -> str:
        """What it is, as the assistant says it: "your locker code"."""
        words = _fill(self.rule.phrase, self.key, self.value, self.value)
        return " ".join({"my": "your", "I": "you"}.get(w, w) for w in words.split(" "))


def _fill(text: str, key: str, value: str, shown: str) -> str:
    verb = "are" if key in PLURAL else "is"
    text = re.sub(r"(?<!\$)\b([aA]) (?=\$[kv]\b)", lambda m: (m[1]) + "n" * _vowel(key if text[m.end() + 1] == "k" else value) + " ", text)
    if key.startswith("my "):  # "my friend $k" is for names
        text = re.sub(r"\bmy (?:old )?(?:[a-z]+ )?(?=\$k)", "", text)
    return grammar.fill(text.replace("@is", verb), k=key, v=shown, a=grammar.article(value))


def _vowel(word: str) -> bool:
    return grammar.article(word) == "an"


def new_fact(rng: Random, taken: set[str], held: bool = False, kind: str | None = None) -> Fact:
    """A fact whose key is not in `taken` (names of people may come back for another kind of fact)."""
    if kind == "open" or kind is None and rng.random() < OPEN:
        value, rule = sentences.make(rng, held)
        return Fact("open", rule.clauses[0], value, rule)
    while True:
        name = kind or rng.choices(_KINDS, _WEIGHTS)[0]
        rule = phrases.KINDS[name]
        key = rng.choice(rule.keys)
        if key == "@name":
            key = values.make(rng, "name", held) if rng.random() < 0.65 else f"my {rng.choice(phrases.RELATIONS)}"
        elif key == "@made up":
            key = values.syllables(rng, 2, 3) if rng.random() < 0.5 else f"{rng.choice(values.NOUNS)} {rng.choice(values.NOUNS)}"
        if (key or name) not in taken:
            return Fact(name, key, values.make(rng, rule.values, held))


def finish(rng: Random, text: str, mark: str = ".", protect: str = "", capital: float = 0.65) -> str:
    """Case and punctuation as people type: a capital unless the text starts with the protected value, often no full stop."""
    text = text.strip()
    if rng.random() < capital and not (protect and text.startswith(protect)):
        text = text[:1].upper() + text[1:]
    if text[-1:] in ".!?)":
        return text
    return text + rng.choice((mark, mark, mark, "!" if mark == "." else "?", "", "", ""))


def tell(rng: Random, fact: Fact, held: bool = False, first: bool = True) -> str:
    """A sentence that tells the fact; `first` allows a greeting or the like before it."""
    plain = phrases.choose(rng, fact.rule.tells, held)
    core = _fill(plain, fact.key, fact.value, fact.value)
    before = grammar.expand(rng, _frame(rng, plain)) if first and not plain.startswith(("you ", "don't ", "do you ", "guess ", "if ")) and rng.random() < 0.25 else ""
    after = grammar.expand(rng, phrases.AFTER_TELL) if core[-1] not in ".!?" and rng.random() < 0.15 else ""
    return finish(rng, before + core + after, protect=fact.value, capital=0.65 if first else 0)


def _frame(rng: Random, core: str) -> str:
    """The template of something to say before a telling; "did you know that" goes only before a plain statement."""
    statement = core.startswith(STATEMENT) and not any(c in core for c in ".:?")
    return phrases.BEFORE_STATEMENT if statement and rng.random() < 0.4 else phrases.BEFORE_TELL


def ask(rng: Random, fact: Fact, held: bool = False) -> str:
    """A question for the fact: a question, "do you know" and the like before a clause, or a noun phrase in a frame."""
    rule, form = fact.rule, rng.random()
    if form < 0.14 and rule.nouns:
        text = phrases.choose(rng, (rng.choice(phrases.ASK_NOUN).replace("$n", rng.choice(rule.nouns)),), held)
    elif form < 0.38:
        text = grammar.expand(rng, phrases.BEFORE_CLAUSE) + phrases.choose(rng, rule.indirect or rule.clauses, held)
    else:
        before = grammar.expand(rng, phrases.BEFORE_QUESTION) if rng.random() < 0.25 else ""
        core = phrases.choose(rng, rule.questions, held)
        after = grammar.expand(rng, phrases.AFTER_QUESTION) if not core.endswith(PLEA) and rng.random() < 0.15 else ""
        text = before + core + after
    return finish(rng, _fill(text, fact.key, "", ""), "." if text.endswith(PLEA) else "?")


def sloppy(rng: Random, message: str, keep: tuple[str, ...]) -> str:
    """The message as typed in haste: chat spelling, or a letter dropped, doubled or swapped in a word; what is in `keep` stays."""
    pieces = re.split("(" + "|".join(rf"(?<!\w){re.escape(k)}(?!\w)" for k in keep if k) + ")", message) if any(keep) else [message]
    if rng.random() < 0.5:
        for long, short in rng.sample(CHAT, len(CHAT) // 2):
            pieces[::2] = [re.sub(rf"\b{long}\b", rng.choice(short.split("|")), p) for p in pieces[::2]]
        return "".join(pieces)
    found = [(i, m) for i in range(0, len(pieces), 2) for m in re.finditer(r"(?<![\w'])[a-z]{4,}(?![\w'])", pieces[i])]
    if found:
        i, word = rng.choice(found)
        at, old = rng.randrange(1, len(word[0]) - 1), word[0]
        new = rng.choice((old[:at] + old[at + 1:], old[:at] + old[at] + old[at:], old[:at] + old[at + 1] + old[at] + old[at + 2:]))
        pieces[i] = pieces[i][:word.start()] + new + pieces[i][word.end():]
    return "".join(pieces)


def informal(rng: Random, message: str, fact: Fact | None = None, keep: str = "") -> tuple[str, Fact | None]:
    """The message in lower case, in haste or without apostrophes now and then; its fact's value follows, so that a reply repeats what was typed.

    Haste leaves the fact's words and `keep` as they are.
    """
    if rng.random() < 0.12:
        message = sloppy(rng, message, (fact.value, fact.key) if fact else (keep,))
    roll = rng.random()
    if roll < 0.22:
        message = message.lower()
        fact = fact and replace(fact, value=fact.value.lower())
    elif roll < 0.28 and not (fact and "'" in fact.value):
        message = message.replace("'", "")
    elif roll < 0.30:
        message = message.upper()
        fact = fact and replace(fact, value=fact.value.upper())
    return message, fact


def acknowledge(rng: Random, facts: list[Fact]) -> str:
    """The reply to a telling: now and then it repeats the value, often it names what was told, else it says nothing of it.

    Where it names what was told, finding it again is easy (84 % at 512 tokens beside 75 %, with the same weights): half of the replies don't.
    """
    fact, roll = facts[-1], rng.random()
    if roll < 0.2 and len(facts) == 1:
        echo = fact.rule.echo
        if echo and rng.random() < 0.7:
            return _fill(rng.choice(echo), fact.key, fact.value, fact.value)
        return rng.choice(("Got it. ", "Okay. ", "Noted. ", "Thank you. ")) + fact.sentence(fact.value)
    if roll < 0.5:
        return rng.choice(("Okay, I will remember {}.", "Okay, I will remember {}.", "I will remember {}.", "Thank you for telling me {}.", "Noted, I will remember {}.")).format(" and ".join(f.phrase for f in facts))
    return rng.choice(("Okay.", "Okay.", "Got it.", "Noted.", "I will remember that.", "Thank you for telling me.", "Good to know.", "Okay, I will keep that in mind."))



ASK_ASSISTANT = ("{what's|what is|whats} your name", "who are you", "what are you called", "what {should|can|do} I call you", "do you have a name", "tell me your name", "how are you called", "your name", "who am I {talking|speaking|chatting} to", "and you are", "what do they call you", "remind me of your name", "how do I call you", "introduce yourself")
NAME_ASSISTANT = ("{your name is|you are called|I'll call you|I will call you|you are|let me call you|from now on you are|from now on your name is|I name you|can I call you} $v",)
SYSTEM = ("You are $v, a {helpful|friendly|kind|small|cheerful|polite} assistant.", "You are $v.", "Your name is $v.", "You are a {helpful|friendly} assistant called $v.", "You are a {helpful|small} assistant named $v. {Answer briefly.|Be kind.|Keep replies short.|}",
          "The assistant is called $v.", "You are $v, {the voice of a small library|a chat model|who answers in short sentences|a guide for visitors}.")
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
        self.facts[slot] = fact
        self.said.discard(slot)
        self.due.append((self.later(), slot))

    def answer(self, slot: str) -> str:
        """The reply to a question; the value is marked as recalled where the assistant says it for the first time."""
        answer = self.facts[slot].answer
        if slot in self.said:
            return strip(answer)
        self.said.add(slot)
        return decisive(answer)

    def acknowledge(self, facts: list[Fact]) -> str:
        """The reply to tellings; notes which values it repeats."""
        reply = acknowledge(self.rng, facts)
        self.said |= {f"{f.kind}/{f.key}" for f in facts if f.value in reply}
        return reply

    def taken(self) -> set[str]:
        return {f.key or f.kind for f in self.facts.values()}

    # One turn each.

    def begin(self) -> None:
        roll = self.rng.random()
        if roll < 0.3:
            self.assistant = values.make(self.rng, "name", self.held)
            self.say("system", grammar.fill(grammar.expand(self.rng, self.rng.choice(SYSTEM)), v=self.assistant).strip())
        elif roll < 0.5:
            self.say("system", grammar.expand(self.rng, self.rng.choice(SYSTEM_PLAIN)))

    def tell_turn(self) -> None:
        rng = self.rng
        fact = new_fact(rng, self.taken(), self.held)
        message, fact = informal(rng, tell(rng, fact, self.held), fact)
        facts, tail = [fact], ""
        roll = rng.random()
        if roll < 0.14:
            alike = fact.rule.also and len(fact.rule.keys) > 2 and message[-1] not in "?!)" and rng.random() < 0.4
            second = new_fact(rng, self.taken() | {fact.key or fact.kind}, self.held, fact.kind if alike else None)
            if alike:
                more = _fill(phrases.choose(rng, second.rule.also, None), second.key, second.value, second.value)
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
        self.turn(message, self.acknowledge(facts) + tail)

    def update_turn(self) -> None:
        """A fact told anew: the latest counts."""
        rng = self.rng
        closed = [f for f in self.facts.values() if not f.open]
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
        message, _ = informal(rng, ask(rng, fact, self.held), keep=fact.key)
        reply, roll = self.answer(slot), rng.random()
        others = [s for s in self.facts if s != slot]
        if roll < 0.08 and others:
            second = rng.choice(others)
            message += ("" if message[-1:] in ".!?" else rng.choice((" and ", "? ", ", "))) + " " + ask(rng, self.facts[second], self.held)
            message, reply = message.replace("  ", " "), reply + " " + self.answer(second)
        elif roll < 0.14:
            message = finish(rng, smalltalk.remark(rng)).rstrip("?") + " " + message
        self.turn(message, reply)
        if rng.random() < 0.15:
            self.due.append((self.later(), slot))

    def tell_and_ask_turn(self) -> None:
        """Two messages in one: something new, and a question about something old."""
        rng, slot = self.rng, self.rng.choice(list(self.facts))
        fact = new_fact(rng, self.taken(), self.held)
        message, fact = informal(rng, tell(rng, fact, self.held), fact)
        message += ("" if message[-1] in ".!?" else ".") + " " + ask(rng, self.facts[slot], self.held)
        answer = self.answer(slot)
        self.learn(fact)
        self.turn(message, self.acknowledge([fact]) + " " + answer)

    def never_told_turn(self) -> None:
        """A question about something never told, half of the time near something that was."""
        rng = self.rng
        near = self.facts and rng.random() < 0.5
        kind = rng.choice(list(self.facts.values())).kind if near else None
        if kind and kind != "open" and not any(k.startswith("@") for k in phrases.KINDS[kind].keys) and len(phrases.KINDS[kind].keys) < 3:
            kind = None
        fact = new_fact(rng, self.taken(), self.held, kind)
        if kind is None and f"{fact.kind}/{fact.key}" in self.facts:
            return
        message, _ = informal(rng, ask(rng, fact, self.held), keep=fact.key)
        self.turn(message, decisive(f"You have not told me {fact.phrase}.", REFUSING))

    def assistant_turn(self) -> None:
        rng = self.rng
        if rng.random() < 0.2:
            self.assistant = values.make(rng, "name", self.held)
            message = finish(rng, grammar.fill(grammar.expand(rng, NAME_ASSISTANT[0]), v=self.assistant))
            return self.turn(message, rng.choice(("Okay, my name is {}.", "Nice, I am {} now.", "Okay.", "I like that name.")).format(self.assistant))
        message, _ = informal(rng, finish(rng, (grammar.expand(rng, phrases.BEFORE_QUESTION) if rng.random() < 0.6 else "") + grammar.expand(rng, rng.choice(ASK_ASSISTANT)), "?"))
        named = rng.choice(("My name is {}.", "I am {}.")).format(recalled(self.assistant))
        self.turn(message, named if self.assistant else "I am a small assistant. I have no name.")

    def story_turn(self) -> None:
        turns, questions = smalltalk.story(self.rng, self.held)
        for user, reply in turns:
            self.turn(finish(self.rng, user), reply)
        for question, answer in questions:
            self.story_due.append((self.position + self.rng.choice((0, 0, 20, 60)), question, answer))

    def filler_turn(self) -> None:
        rng, roll = self.rng, self.rng.random()
        make = smalltalk.small_talk if roll < 0.5 or self.length < 300 and roll < 0.74 else smalltalk.long_remark if roll < 0.74 else smalltalk.item_list if roll < 0.86 else smalltalk.total
        user, reply = make(rng)
        user, _ = informal(rng, finish(rng, user, rng.choice(".?") if make in (smalltalk.item_list, smalltalk.total) else "."))
        self.turn(user, reply)

    def step(self) -> None:
        """The next turn: what is due first, else something by chance."""
        if self.story_due and self.story_due[0][0] <= self.position:
            _, question, answer = self.story_due.pop(0)
            return self.turn(finish(self.rng, question, "?"), answer)
        ready = [d for d in self.due if d[0] <= self.position]
        if ready and self.rng.random() < 0.85:
            self.due.remove(ready[0])
            return self.ask_turn(ready[0][1])
        room = self.length - self.position > PAIR + len(self.due) * PAIR / 2
        if self.rng.random() < (0.12 if self.facts else 0.05):
            return self.never_told_turn()
        roll = self.rng.random()
        if roll < 0.035 and self.facts:
            self.update_turn()
        elif roll < 0.07 and self.facts:
            self.tell_and_ask_turn()
        elif roll < 0.115:
            self.assistant_turn()
        elif roll < 0.15 and self.length > 200:
            self.story_turn()
        elif roll < 0.8 and room:
            self.tell_turn()
        else:
            self.filler_turn()


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
