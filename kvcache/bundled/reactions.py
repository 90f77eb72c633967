"""Reactions: what people type right after a joke, a refusal, a word of comfort, written by language models by what it follows and what it means, read from the lists in `reaction_lists`.

A remark can stand by itself; "aw ok" can not. With remarks and chats alone a model answered "lol" after a joke rightly, and "I shall tell it to
my husband" as if it were news. A list is called after what goes before and what is meant by it: `joke_liked`. One line in ten is held out from training.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from . import chores, facts, lists, remarks, stories, sums
from .grammar import expand
from .marks import REFUSING, decisive, strip

FOLDER = Path(__file__).parent / "reaction_lists"
ONCE_MORE = 0.3  # chance that a reaction to a joke, a story or a fact is followed by a wish for another one
AT_ONCE = "="  # a reply that follows from what was said before: the next joke, the sum once more
ABOUT_FACTS = ("noted", "answered", "untold")
_FINE = "{All right. What else would you like to talk about?|That is fine. What would you like to talk about?|All right.}"
_NEXT = "{All right. What would you like to talk about?|That is fine. What would you like to talk about?}"
_SMALL = "I am sorry. I am only a small program."
_TOLD = "{I see. Tell me more about it.|I see. Thank you for telling me.}"
REPLIES = {
    "joke_liked": "{I am glad you liked it.|Good to hear that you laughed.}",
    "joke_disliked": "{I am sorry. I know some better ones.|I am sorry. Ask me for another one.}",
    "joke_puzzled": "It is only a silly joke. Shall I tell you another one?",
    "joke_another": AT_ONCE,
    "story_liked": "{I am glad you liked it.|Thank you. I like that story too.}",
    "story_disliked": f"{{{_SMALL}|I am sorry. I only know short ones.}}",
    "story_next": "{That is all I know of it.|I do not know more about it.}",
    "story_another": AT_ONCE,
    "fact_liked": "{I am glad you liked it.|Yes, I like that one too.}",
    "fact_doubted": "{I think so, but I can be wrong.|As far as I know. I am only a small model.}",
    "fact_another": AT_ONCE,
    "refused_accepted": _FINE,
    "refused_why": "I am only a small program. I can chat and remember what you tell me.",
    "refused_insisted": f"{{{_SMALL}|I am sorry, that is more than I can do.}}",
    "refused_then": "I can chat, remember what you tell me, tell jokes, facts and short stories, make lists, count and do small sums.",
    "unknown_accepted": _FINE,
    "unknown_doubted": f"{{Yes, that is all. I only know what you tell me.|{_SMALL}}}",
    "unknown_told": "{Thank you, I will remember that.|Okay, I will remember that.}",
    "self_liked": "{I am glad that you are here.|I like our talks.}",
    "self_accepted": _NEXT,
    "self_pitied": "{It is not so bad. I like to chat.|That is kind of you, but I am fine.}",
    "self_doubted": "{Yes, I am only a small program.|Yes, I am a program, not a person.}",
    "taste_told": _TOLD,
    "taste_accepted": _NEXT,
    "advice_decided": "{That sounds good.|That sounds like a plan. I hope it goes well.}",
    "advice_undecided": "{That is fine. Take your time.|No problem. Take your time.}",
    "comfort_thanked": "{You are welcome. I am here if you want to talk.|You are welcome.}",
    "comfort_shrugged": "{I hope it gets better.|I am here if you want to talk.}",
    "praise_thanked": "{You are welcome.|You are welcome. Enjoy it!}",
    "hope_answered": "{Good luck!|I wish you good luck.}",
    "more_declined": _NEXT,
    "why_declined": "{I see.|I see what you mean.}",
    "greeted_idle": _NEXT,
    "noted_answered": "{I will keep it in mind.|I will not forget it.}",
    "answered_praised": "{Thank you, I am glad that was right.|I am glad that I remembered it.}",
    "untold_admitted": "{No problem. You can tell me now.|That is fine. You can tell me now.}",
    "untold_guess": "{I can not guess it. Please tell me.|I am sorry, I do not know it. Please tell me.}",
    "sum_right": "{I am glad that was right.|Good. Do you have another one?}",
    "sum_doubted": AT_ONCE,
    "list_more": AT_ONCE,
    "list_two": AT_ONCE,
    "list_liked": "{I am glad they help.|You are welcome.}",
    "list_own": _TOLD,
    "list_best": "I like them all. Which one do you like?",
    "list_wrong": "{I am sorry, I made a mistake.|I am sorry. I am only a small model.}",
    "joke_mine": "{Please tell me.|I would like to hear it.}",
    "offer_declined": _NEXT,
    "more_told": "{I see. Thank you for telling me.|That sounds nice.}",
    "comfort_detailed": "I see. Thank you for telling me.",
    "comfort_worsened": "{That must be hard.|I am so sorry.}",
    "praise_detailed": "{I am happy for you.|That sounds good.}",
    "self_why": "I am a program. I only work with words.",
    "any_confused": "I am sorry, that was not clear. I am only a small model.",
}
WEIGHTS = {kind: 2 for kind in ("joke_another", "story_another", "refused_accepted", "hope_answered", "taste_told", "joke_liked", "more_told")}  # others 1
Turns = list[tuple[str, str]]


@cache
def lines(kind: str, held: bool) -> tuple[str, ...]:
    """The reactions of a kind, those of training or those held out from it."""
    return tuple(line for line in dict.fromkeys((FOLDER / f"{kind}.txt").read_text().strip().split("\n")) if lists.held_out(line) == held)


def every(held: bool) -> list[str]:
    """The reactions of all kinds, those of training or those held out from it."""
    return [line for kind in REPLIES for line in lines(kind, held)]


def any_kind(rng: Random, told: bool = False) -> str:
    """Any kind, by its weight."""
    kinds = [kind for kind in REPLIES if told or not kind.startswith(ABOUT_FACTS)]
    return rng.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])[0]


def turns(rng: Random, kind: str, held: bool = False, alone: bool = False) -> Turns:
    """A reaction of a kind, after what it goes with; now and then a wish for another one follows, unless it should be `alone`."""
    before, means = kind.split("_")
    made, following = BEFORE[before](rng, means)
    made.append((typed(rng, rng.choice(lines(kind, held))), next(following) if REPLIES[kind] == AT_ONCE else expand(rng, REPLIES[kind])))
    if f"{before}_another" in REPLIES and means != "another" and not alone and rng.random() < ONCE_MORE:
        made.append((typed(rng, rng.choice(lines(f"{before}_another", held))), next(following)))
    if kind == "joke_mine" and not alone:
        made += remarks.exchange(rng, "jest", held)
    return made


def typed(rng: Random, text: str) -> str:
    """As people type it."""
    return facts.informal(rng, facts.finish(rng, text, facts.mark(text)))[0]


# What goes before, each with what comes next if it is asked for: (random numbers, what the reaction means) -> turns, replies


def piece(kind: str) -> Callable:
    """A joke or a fact; then the next ones."""
    pieces, _ = chores.TELLING[kind]

    def made(rng: Random, means: str):
        at, wish, told = chores.piece(rng, kind)
        return [(typed(rng, wish), told)], (pieces[(at + step) % len(pieces)] for step in range(1, len(pieces)))

    return made


def story(rng: Random, means: str):
    """A story; then the next ones."""
    told = stories.wished(rng)

    def following(number=told.number):
        while True:
            number = stories.after(number)
            yield stories.stories()[number].whole

    return [(facts.informal(rng, told.wish)[0], told.text)], following()


def remark(*kinds: str, ends: str = "") -> Callable:
    """A remark of one of these kinds, whose reply has `ends` in it."""

    def made(rng: Random, means: str):
        while True:
            kind = rng.choice(kinds)
            text, reply = remarks.one(rng, kind)
            if ends in reply:
                return [(remarks.typed(rng, text, kind), reply)], iter(())

    return made


def total(rng: Random, means: str):
    """A sum; then the same once more."""
    asked, result = rng.choice((sums.total, sums.casual))(rng)
    return [(typed(rng, expand(rng, asked).strip()), result)], iter((f"Yes, {result}",))


def items(rng: Random, means: str):
    """A list; then more of it."""
    while True:
        name, n, text = chores.asked_list(rng)
        if n + 2 <= len(chores.named(name)):
            break
    wish = typed(rng, expand(rng, chores.ASK_LIST).replace("$n", text))
    more = 2 if means == "two" else 1
    return [(wish, f"Here you are: {chores.items(name, 0, n)}.")], iter((f"{chores.MORE_OF[more]}: {chores.items(name, n, more)}.",))


def noted(rng: Random, means: str):
    """Something told, and kept."""
    return [_telling(rng)[:2]], iter(())


def answered(rng: Random, means: str):
    """Something told and asked for."""
    message, reply, fact = _telling(rng)
    return [(message, reply), (facts.informal(rng, facts.ask(rng, fact, False), keep=fact.key)[0], decisive(fact.answer))], iter(())


def untold(rng: Random, means: str):
    """Something asked for that nobody told."""
    fact = facts.new_fact(rng, set())
    return [(facts.informal(rng, facts.ask(rng, fact, False), keep=fact.key)[0], decisive(f"You have not told me {fact.phrase}.", REFUSING))], iter(())


def _telling(rng: Random) -> tuple[str, str, facts.Fact]:
    fact = facts.new_fact(rng, set())
    message, fact = facts.informal(rng, facts.tell(rng, fact), fact)
    return message, rng.choice(("I will remember that.", "Okay, I will remember that.")), fact


BEFORE: dict[str, Callable] = {
    "joke": piece("joke"), "fact": piece("fact"), "story": story, "sum": total, "list": items, "noted": noted, "answered": answered, "untold": untold,
    "offer": remark("bored", ends="joke"), "any": remark(*remarks.KINDS), "refused": remark("outside"), "unknown": remark("unknown"), "self": remark("self", "taste", "feels"), "taste": remark("taste"), "advice": remark("advice"),
    "comfort": remark("annoyed", "hurt", ends="sorry"), "praise": remark("proud", ends="!"), "hope": remark("plan", "worried", ends="hope"),
    "more": remark("good", "said", "fun", "memory", "opinion", "proud", ends="ell me more"), "why": remark("opinion", ends="?"), "greeted": remark("greet"),
}  # fmt: skip


def fitting(kind: str, asked: Turns) -> set[str]:
    """The replies that fit a reaction of a kind, the last of the turns `asked`."""
    return {strip(asked[-1][1])} if REPLIES[kind] == AT_ONCE else set(REPLIES[kind].strip("{}").split("|"))
