"""Numbers told of two or three people or things at once, then asked for singly, compared, taken from one another or added up: ages, points, prices, how many somebody has."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import chatter, chores, facts, phrases, sums, values
from .grammar import expand
from .marks import recalled
from .reactions import Turns

CHAT = 0.2  # chance of small talk between two turns
ME = 0.35  # chance that the user is one of those told of
NOTED = ("I see. Thank you for telling me.", "I see.", "Okay.", "Got it.", "Okay, I will remember that.")


@dataclass(frozen=True)
class Kind:
    """How it is told ($a who, "$be" is or am, $x the number, $w what is counted) and which numbers there are; how one is asked for; how most and least are asked for, each with the word for it that
    `answered` takes, of three and of two; how the difference and the sum are asked for and answered ($z); who or what is told of; and how one number is answered."""

    told: str
    numbers: range
    one: str
    most: tuple[str, str]
    least: tuple[str, str]
    answered: tuple[str, str]
    difference: tuple[str, str]
    sum: tuple[str, str]
    who: Callable[[Random, bool], str]
    value: str


def person(rng: Random, held: bool) -> str:
    """A name, or kin."""
    return values.make(rng, "name", held).split(" ")[0] if rng.random() < 0.6 else f"my {rng.choice(phrases.RELATIONS)}"


def thing(rng: Random, held: bool) -> str:
    """Something for sale."""
    return f"the {rng.choice(values.NOUNS)}"


KINDS = {
    "age": Kind("$a {$be|$be|$be already|$be only} $x{| years old}", range(2, 90), "how old $be $a", ("{who is {the oldest|older}|which {of them |of us |}is {the oldest|older}|who's older}", "old"), ("{who is {the youngest|younger}|who's younger|which {of them |}is {the youngest|younger}}", "young"),
                ("$a $be the {}est.", "$a $be {}er."), ("{how {much|many years} older is that|what's the {difference|age difference}|how many years {are|is} between them|how many years apart are they|by how {much|many years}}", "That makes $z years."),
                ("how old are they {together|in all|altogether}", "That makes $z."), person, "$a $be $x."),
    "points": Kind("$a {got|has|scored|made} $x{ points|}", range(2, 40), "how {many points|many} {did $a get|has $a got|for $a}", ("{who {won|has more|has the most|is ahead|came first|was best}|and the winner is|so who won}", "won"), ("{who {lost|has the fewest|was last|has less|came last}|so who lost}", "lost"),
                   ("$a {}.", "$a {}."), ("{by how {many|much|many points}|what's the difference|how many {points |}{ahead|more} is that|how close was it}", "That makes $z points."), ("{how many {points |}{is that together|in all|altogether}|{and |}together|all in all}", "That makes $z points."), person, "$a got $x."),
    "price": Kind("$a {costs|is|was} $x{ dollars| euros|}", range(2, 60), "{how much {is|was} $a|how much does $a cost|what {is|was} the price of $a|what does $a cost}", ("{which {one |}is {more expensive|the most expensive|dearer}|what costs {more|the most}}", "most"), ("{which {one |}is {cheaper|the cheapest}|what costs {less|the least}|the cheaper one{| again}}", "least"),
                  ("$a costs {}.", "$a costs {}."), ("{what's the difference|how much {more|cheaper} is that|by how much|how much do I save}", "That makes $z."), ("{how much {is that|do I pay|is it} {together|in all|altogether|for both}|what do I pay{| in all}|{and |}together|the total please}", "That makes $z."), thing, "$a costs $x."),
    "count": Kind("$a {has|has got|owns|brought} $x $w", range(2, 30), "how many {$w |}{has $a got|does $a have|did $a bring|for $a}", ("{who has {more|the most}|and who has {more|the most}}", "most"), ("{who has {fewer|less|the fewest|the least}}", "fewest"),
                  ("$a has the {}.", "$a has the {}."), ("{how many more is that|by how many|what's the difference|how many {more |}are {missing|between them}}", "That makes $z."), ("{how many {are|is} {that|there} {together|in all|altogether}|{and |}together|all in all|how many {$w |}{in all|have they together}}", "That makes $z $w."), person, "$a has $x."),
}  # fmt: skip


def turns(rng: Random, held: bool = False) -> Turns:
    """Some turns about two or three numbers."""
    name = rng.choice(tuple(KINDS))
    kind, told = KINDS[name], {}
    while len(told) < rng.choice((2, 2, 3)):
        who = "I" if not told and name != "price" and rng.random() < ME else kind.who(rng, held)
        if who.lower() not in (other.lower() for other in told):
            told[who] = rng.choice([n for n in kind.numbers if n not in told.values()])
    owned = rng.choice(sums.COUNTED)
    say = lambda text: facts.finish(rng, (said := expand(rng, text).replace("$w", owned).strip()), facts.mark(said))
    parts = [about(rng, kind.told, who).replace("$x", str(n)) for who, n in told.items()]
    message = joined(rng, parts)
    made, asked = [], rng.sample(tuple(STEPS), rng.choice((1, 2, 2, 3)))
    replies = [(say(question), answer.replace("$w", owned)) for question, answer in (STEPS[step](rng, kind, told) for step in asked)]
    if rng.random() < 0.35:  # told and asked at once
        (question, answer), *replies = replies
        made.append((f"{say(message).rstrip('?!. ')}{rng.choice(('. ', ', ', '. ', ' '))}{question}", answer))
    else:
        made.append((say(message), rng.choice(NOTED)))
    for turn in replies:
        if rng.random() < CHAT:
            made += chatter.talk(rng, held)
        made.append(turn)
    return made


def joined(rng: Random, parts: list[str]) -> str:
    """What is told of each, in one message."""
    return rng.choice((chores.joined(parts), ", ".join(parts), " and ".join(parts), ". ".join(part[:1].upper() + part[1:] for part in parts)))


def about(rng: Random, text: str, who: str) -> str:
    """A text of somebody, its verb put right: "I am", "my aunt is"."""
    text = expand(rng, text)
    if who == "I":
        for theirs, mine in (("has got", "have got"), ("has", "have"), ("owns", "own"), ("does", "do")):
            text = text.replace(theirs, mine)
        return text.replace("$be", "am").replace("$a", "I")
    return text.replace("$be", "is").replace("$a", who)


def answer(text: str, who: str) -> str:
    """A reply of somebody: "You are", "Your aunt is"."""
    if who == "I":
        for theirs, yours in (("has", "have"), ("costs", "cost")):
            text = text.replace(theirs, yours)
    shown = "you" if who == "I" else recalled(facts.turned(who) or who)
    text = text.replace("$be", "are" if who == "I" else "is").replace("$a", shown)
    return text[:1].upper() + text[1:] if text[0].isalpha() else text[0] + text[1].upper() + text[2:]


def single(rng: Random, kind: Kind, told: dict[str, int]) -> tuple[str, str]:
    """The number of one of them."""
    who = rng.choice(tuple(told))
    return about(rng, kind.one, who), answer(kind.value.replace("$x", recalled(str(told[who]))), who)


def ranked(most: bool) -> Callable[[Random, Kind, dict[str, int]], tuple[str, str]]:
    """Which of them has most, or least."""

    def asked(rng: Random, kind: Kind, told: dict[str, int]) -> tuple[str, str]:
        question, word = kind.most if most else kind.least
        who = (max if most else min)(told, key=told.get)
        return question, answer(kind.answered[len(told) == 2].format(word), who)

    return asked


def difference(rng: Random, kind: Kind, told: dict[str, int]) -> tuple[str, str]:
    """The largest number less the smallest, worked out."""
    question, end = kind.difference
    large, small = max(told.values()), min(told.values())
    if len(told) > 2:
        return single(rng, kind, told)
    return question, f"{sums.worked(large, 'minus', small)} {end.replace('$z', str(large - small))}"


def total(rng: Random, kind: Kind, told: dict[str, int]) -> tuple[str, str]:
    """All of them, added up."""
    question, end = kind.sum
    first, *others = told.values()
    if sum(told.values()) > sums.MOST:
        return single(rng, kind, told)
    steps = []
    for n in others:
        steps.append(sums.worked(first, "plus", n))
        first += n
    return question, f"{' '.join(steps)} {end.replace('$z', str(first))}"


STEPS = {"single": single, "most": ranked(True), "least": ranked(False), "difference": difference, "total": total}
