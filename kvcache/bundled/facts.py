"""A fact somebody tells: what kind it is, how it is told, asked for, answered and acknowledged, and how people type."""

import re
from dataclasses import dataclass, replace
from random import Random

from . import chores, grammar, phrases, scenes, sentences, values
from .marks import recalled

OPEN, SCENES = 0.08, 0.58  # shares of facts made by grammar and of facts from the lists of scenes
NAMED, RESTATED = 0.2, 0.3  # shares of replies to tellings and to questions that say which fact it is about: what the model is taught by them it needs for the others too
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
QUESTION = re.compile(r"((and|but|so|ok|now) )?(who|what|where|when|why|how|which|is|are|am|do|does|did|can|could|may|will|shall|have|has|really)\b", re.IGNORECASE)
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
        return self.sentence(self.marked)

    @property
    def marked(self) -> str:
        """The value marked as recalled; of a time without its preposition, which a correction may leave out: "no wait, Tuesday"."""
        before, value = self.split
        return before + recalled(value)

    @property
    def split(self) -> tuple[str, str]:
        """The preposition of a time, and the rest: ("on ", "Tuesday"); of any other value ("", value)."""
        found = re.match("(on|at|in) ", self.value, re.IGNORECASE) if self.rule.values == "event_time" else None
        return (found[0], self.value[found.end():]) if found else ("", self.value)

    def sentence(self, shown: str) -> str:
        """The answer around a value shown in some way."""
        key = self.key.replace("my ", "your ", 1) if self.key.startswith("my ") else self.key
        text = fill_key(self.rule.answer, key, self.value, shown)
        return text[:1].upper() + text[1:]

    @property
    def restated(self) -> str:
        """An open fact's clause as the assistant says it: "when your sister arrives"; "" of any other."""
        return turned(grammar.expand(Random(self.key), self.key)) if self.open else ""

    @property
    def phrase(self) -> str:
        """What it is, as the assistant says it: "your locker code"."""
        words = fill_key(self.rule.phrase, self.key, self.value, self.value)
        return " ".join({"my": "your", "I": "you"}.get(w, w) for w in words.split(" "))


_TURNED = {"I": "you", "my": "your", "me": "you", "we": "you", "our": "your", "us": "you", "am": "are", "ours": "yours", "ourselves": "yourselves"}


def turned(clause: str) -> str:
    """A clause of the user's from the assistant's mouth: "where my sister and I met" becomes "where your sister and you met"; "" where it speaks of the assistant."""
    if re.search(r"\b(you|your|yours)\b", clause):
        return ""
    clause = re.sub(r"\bI was\b", "you were", clause)
    return re.sub(r"\b[A-Za-z]+\b", lambda m: _TURNED.get(m[0], m[0]), clause)


def restating(rng: Random, fact: Fact) -> str:
    """What an answer begins with now and then: "You asked when your sister arrives. "."""
    return f"You asked {fact.restated}. " if fact.restated and rng.random() < RESTATED else ""


def fill_key(text: str, key: str, value: str, shown: str) -> str:
    """The template about a key, with its verb and articles put right and the value shown in some way."""
    verb = "are" if key in PLURAL else "is"
    text = re.sub(r"(?<!\$)\b([aA]) (?=\$[kv]\b)", lambda m: (m[1]) + "n" * _vowel(key if text[m.end() + 1] == "k" else value) + " ", text)
    if key.startswith("my "):  # "my friend $k" is for names
        text = re.sub(r"\bmy (?:old )?(?:[a-z]+ )?(?=\$k)", "", text)
    return grammar.fill(text.replace("@is", verb), k=key, v=shown, a=grammar.article(value))


def _vowel(word: str) -> bool:
    return grammar.article(word) == "an"


def new_fact(rng: Random, taken: set[str], held: bool = False, kind: str | None = None, near: str | None = None) -> Fact:
    """A fact whose key is not in `taken` (names of people may come back for another kind of fact); one of a scene related to that of the clause `near`, where one is. `kind` may be "scene", or "open" for one made by grammar."""
    beside = [scene.clause for scene in scenes.related(near, held) if scene.clause not in taken] if near else []
    if beside:
        value, rule = scenes.make(rng, held, near)
        while rule.clauses[0] in taken:
            value, rule = scenes.make(rng, held, near)
        return Fact("open", rule.clauses[0], value, rule)
    roll = rng.random()
    if kind in ("open", "scene") or kind is None and roll < OPEN + SCENES:
        while True:
            value, rule = (sentences if kind == "open" or kind is None and roll < OPEN else scenes).make(rng, held)
            if rule.clauses[0] not in taken:
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


def mark(text: str) -> str:
    """How a message ends: "?" where it begins as a question."""
    return "?" if QUESTION.match(text) else "."


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
    core = fill_key(plain, fact.key, fact.value, fact.value)
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
    return finish(rng, fill_key(text, fact.key, "", ""), "." if text.endswith(PLEA) else "?")


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
        message = sloppy(rng, message, (fact.value, fact.split[1], fact.key) if fact else (keep,))
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


def named(phrases: list[str]) -> str:
    """What was told, in one phrase: each part by its own, or "both" where one of them has none but "that"."""
    if "that" in phrases and len(phrases) > 1:
        return "both" if len(phrases) == 2 else "all of that"
    return chores.joined(list(dict.fromkeys(phrases)))


def acknowledge(rng: Random, facts: list[Fact]) -> str:
    """The reply to a telling: now and then it repeats the value, often it names what was told, else it says nothing of it.

    Where it names what was told, finding it again is easy (84 % at 512 tokens beside 75 %, with the same weights): half of the replies don't.
    """
    fact, roll = facts[-1], rng.random()
    if fact.restated and len(facts) == 1 and rng.random() < NAMED:
        return f"You told me {fact.restated}."
    if roll < 0.2 and len(facts) == 1:
        echo = fact.rule.echo
        if echo and rng.random() < 0.7:
            return fill_key(rng.choice(echo), fact.key, fact.value, fact.value)
        return rng.choice(("Got it. ", "Okay. ", "Noted. ", "Thank you. ")) + fact.sentence(fact.value)
    if roll < 0.5:
        return rng.choice(("Okay, I will remember {}.", "Okay, I will remember {}.", "I will remember {}.", "Thank you for telling me {}.", "Noted, I will remember {}.")).format(named([f.phrase for f in facts]))
    return rng.choice(("Okay.", "Okay.", "Got it.", "Noted.", "I will remember that.", "Thank you for telling me.", "Good to know.", "Okay, I will keep that in mind."))
