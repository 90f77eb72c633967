"""Sums: small ones asked bare, one after the other from the result before, as little stories of what gets more or fewer, or as which is more.

Plus and minus go up to 20 as a rule, and up to 100; times and divided by through the table of ten; what is larger is declined. While sums were turns among others, the
model got 81 of the hundred sums of single digits right; after rows of nothing else (`drills.reckoning`) it got all.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from . import lists
from .grammar import expand
from .marks import reckoned, strip

FOLDER = Path(__file__).parent / "sum_lists"  # ways of asking that language models wrote: $a and $b, or $n that is added to a result or taken from it
LISTS = ("plus", "minus", "times", "and", "less")
WRITTEN = 0.5  # of sums asked for and gone on with, those in such words
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
COUNTED = "apples eggs books coins pens cups chairs cookies tickets balls shirts plants pears cards stamps oranges socks keys letters boxes sweets photos plates roses".split()
SIGNS = {
    "plus": (" plus ", "+", " + ", " and "),
    "minus": (" minus ", "-", " - ", " take away "),
    "times": (" times ", " x ", " * ", "*", " multiplied by "),
    "divided by": (" divided by ", " / ", "/"),
}
ASK = "{what is|what's|how much is|calculate|can you work out|tell me|}"
LARGE = "I can only do small sums."
MOST = 100  # that a sum comes to
TWO_DIGITS = 0.22  # of plus and minus, those beyond 20

QUIZ = tuple((f"What is {a} plus {b}?", a, b) for a, b in ((4, 3), (6, 2), (5, 5), (7, 4), (9, 3), (8, 8), (6, 7), (10, 6), (3, 9), (12, 5)))  # sums that the assistant asks for, in this order
RESULTS = "{$n|$n|it's $n|is it $n|I think $n|$n?|that is $n|$n!|easy, $n|$n, right}"
GIVEN_UP = "{I don't know|no idea|just tell me the answer|tell me|too hard, what is it|I give up|pass|what is it}"
NEXT_ONE = "{another one|next one|one more|another one please|next|one more please|ask me another one|again}"

# What is told of x and y things w, what is asked, what is said after the sum; z is the result.
STORIES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "plus": (
        ("{I have|I've got|there are|I had} $x $w{ and|, and then|, then| and then|. Then} {my {friend|sister|mother|neighbour} gives me|I {buy|get|find}|I add} $y more", "{how many {$w |}{do I have|have I got|are there}{| now| in all| in the end}|so how many{| $w}{| is that| now}|how many $w is that}", "That makes $z $w."),
        ("{there are|we are} $x {people|children|guests} {at the party|on the bus|in the room|at the table} and $y more come", "how many {of us |people |}{are there|are we|is that}{| now}", "That makes $z people."),
        ("my {brother|sister|cousin|friend} has $x $w and I have $y", "{how many {do we have|have we got|$w do we have} together|how many $w is that{| together}|and together}", "That makes $z $w."),
        ("{I {read|wrote} $x pages|we drove $x miles|I sold $x cards} {yesterday|in the morning} and $y {today|in the evening}", "how many {is that|are that|in all|together}", "That makes $z."),
        ("{a|the} {pen|cup|cake|ticket|toy} costs $x dollars and {a|the} {book|coffee|card|lamp} costs $y", "{how much {are both|do both cost|is that|is it} {together|in all|}|what do I pay}", "That makes $z dollars."),
        ("I {put|have} $x $w in one box and $y in the other", "how many {$w |}are {there in all|in both|in the boxes}", "That makes $z $w."),
        ("{I am|I'm} $x years old", "how old {will I be|am I} in $y years", "You will be $z."),
        ("my {brother|sister|cousin} is $x{ and|, and} I am $y years older", "how old am I", "You are $z."),
        ("I {slept|worked|waited} $x hours and then $y more", "how {long|many hours} is that", "That makes $z hours."),
    ),
    "minus": (
        ("{I have|I've got|there are|I had} $x $w{ and|, and then|, then| and then|. Then} {I {lose|sell|use} $y of them|I give $y {away|to a friend|to my brother}|my {sister|brother|friend} takes $y of them}", "{how many {$w |}{do I have|have I got|are there}{| left| now| in the end}|{so |}how many {$w |}{are left|remain|is that}}", "That leaves $z $w."),
        ("{there were|there are|I saw} $x {birds|crows|doves|owls} {on the roof|in the tree|on the wire|in the garden} and $y {flew|fly} away", "how many {birds |}{are left|stayed|are still there|remain}", "That leaves $z birds."),
        ("{I had|I have|there were} $x dollars and {I |}{spent|paid|lost} $y", "{how much {money |}{do I have left|is left|do I still have}|what is left}", "That leaves $z dollars."),
        ("{I pay with|I gave the man|I hand over} $x dollars{ and| but|.} it costs $y", "{how much {do I get back|change do I get}|what's my change}", "You get $z dollars back."),
        ("there {are|were} $x {people|children} {on the bus|in the room|in my class} and $y {get off|leave|went home}", "how many {people |}{are left|stay|are still there}", "That leaves $z people."),
        ("I {bake|baked|made|bought} $x {cakes|buns|cookies|rolls} and we {eat|ate} $y", "how many {of them |}{are left|do we have left|are there now}", "That leaves $z."),
        ("my book has $x {pages|chapters} and I have read $y", "how many {are left|do I still have to read|to go}", "That leaves $z."),
        ("I need $x $w {but|and} {I only have|I have only|so far I have} $y", "how many {more |}{do I need|are missing|must I get}", "You need $z more."),
        ("I am $x and my {brother|nephew|husband} is $y years younger", "how old is he", "He is $z."),
        ("I am $x and my {sister|niece|wife} is $y years younger", "how old is she", "She is $z."),
        ("the {film|trip|meeting|walk} takes $x hours and $y are over", "how {many hours|long} {are left|is left|does it still take}", "That leaves $z hours."),
    ),
    "times": (
        ("{I have|I buy|there are|we get} $x {bags|boxes|packs|baskets} {with $y $w {each|in each|in every one}|of $y $w each}", "how many {$w |}{is that|are there|do I have}{| in all| together}", "That makes $z $w."),
        ("{a|one} {ticket|cake|book|pen} costs $y dollars and I {buy|need|want} $x", "{how much is that|what do I pay|what does it cost{| in all}}", "That makes $z dollars."),
        ("I {run|walk|read|work} $y {miles|pages|hours} a day for $x days", "how {many|much} is that{| in all}", "That makes $z."),
        ("there are $x tables with $y chairs each", "how many chairs are {there|that|needed}", "That makes $z chairs."),
        ("$x {friends|children} get $y $w each", "how many {$w |}{do I need|is that|are that}", "That makes $z $w."),
    ),
    "divided by": (
        ("{I have|there are|we have} $x $w {for|and share them between|to share among} $y {children|friends|people}", "how many {$w |}{does each get|for each|does everyone get}", "Each gets $z."),
        ("I {put|pack} $x $w into $y {boxes|bags}, the same in each", "how many {go|are} in {each|one}", "That makes $z in each."),
        ("$y of us pay $x dollars together", "how much {does each pay|is that each|for each}", "Each pays $z dollars."),
        ("{I {share|split|divide}|we {share|split}|share|split} $x $w {among|between} $y{| of us| kids| friends| people}", "how many {each|for each|does each get|do I get|does everybody get}", "Each gets $z."),
        ("$x $w{ and| for} $y {kids|friends|guests|of us}", "how many {each|for each|per child|does each get|can each have}", "Each gets $z."),
        ("{I walk|I read|we drive} $x {miles|pages|kilometres} in $y {days|hours}, the same every {day|hour}", "how many {is that each|a day|an hour|each time}", "That makes $z each."),
    ),
}  # fmt: skip
GOES_ON = 0.5  # chance that such a story goes on
THEN = {  # in which there are $n more, or fewer
    "plus": "{{and |but |ok |}if {I|we|they} {buy|get|find|add|bring|make} $n more|{and |}what if {I|somebody|my {mum|sister|brother}} {gives me|brings|finds|adds} $n more|{then|and then|now} {I|we} {get|buy|find} $n more{, how many then| so how many|}|and with $n more|{and|so} if there were $n more|and $n more make how many|and suppose $n more come}",
    "minus": "{{and |but |ok |}if {{I|we|they} {eat|lose|take|sell|break|use}|somebody {eats|takes}} $n{| of them| of those}|{and |}what if {I|we|they} {give $n away|lose $n|eat $n|drop $n|throw $n away}|{then|and then|now} {I|we} {lose|sell|give away|eat|break} $n{, how many then|, what is left|}|and if $n {are gone|get lost|go missing|go}|and without $n of them|and after $n are gone|and suppose I {eat|lose|sell} $n}",
}  # fmt: skip


def numbered(n: int, rng: Random) -> str:
    """The number as a word or in digits; in digits above twelve as a rule."""
    return NUMBERS[n] if n < 13 and rng.random() < 0.5 or n < len(NUMBERS) and rng.random() < 0.15 else str(n)


def drawn(rng: Random, least: int = 0) -> tuple[int, str, int, int]:
    """Two numbers, the sign between them and the result, none of them below `least`."""
    while True:
        sign = rng.choices(tuple(SIGNS), (5, 3, 1.5, 0.8))[0]
        top = 10 if sign in ("times", "divided by") or rng.random() < 0.6 else 20
        a, b = rng.randint(least, top), rng.randint(least, top)
        if sign in ("plus", "minus") and rng.random() < TWO_DIGITS:
            a, b = rng.randint(least, MOST), rng.randint(least, rng.choice((9, 30, MOST)))
        if sign == "minus":
            a, b = max(a, b), min(a, b)
        elif sign == "divided by":
            a, b = a * b, max(b, 1)
        result = result_of(a, sign, b)
        if min(a, b, result) >= least and result <= MOST:
            return a, sign, b, result


def result_of(a: int, sign: str, b: int) -> int:
    """What it comes to."""
    return {"plus": a + b, "minus": a - b, "times": a * b, "divided by": a // b if b else 0}[sign]


def worked(a: int, sign: str, b: int) -> str:
    """"3 plus 4 is 7.", with its marks."""
    return f"{reckoned(str(a))} {sign} {b} is {reckoned(str(result_of(a, sign, b)))}."


def total(rng: Random, ask: str = ASK) -> tuple[str, str]:
    """One sum, asked bare."""
    a, sign, b, _ = drawn(rng)
    words = rng.random() < 0.3 and max(a, b) < len(NUMBERS)
    x, y = (NUMBERS[a], NUMBERS[b]) if words else (str(a), str(b))
    between = rng.choice(SIGNS[sign])
    if ask == ASK and sign == "times" and a == 2 and rng.random() < 0.4:
        x, between = "", "twice "
    return f"{ask} {x}{between if between.strip() != between or not words else f' {sign} '}{y}", worked(a, sign, b)


@cache
def written(what: str, held: bool = False) -> tuple[str, ...]:
    """The lines of one of the LISTS, those of training or those held out from it."""
    return tuple(line for line in (FOLDER / f"{what}.txt").read_text().strip().split("\n") if lists.held_out(line) == held)


def casual(rng: Random, held: bool = False) -> tuple[str, str]:
    """A sum as somebody asks it by the way."""
    a, sign, b, _ = drawn(rng)
    while sign == "divided by":
        a, sign, b, _ = drawn(rng)
    return _filled(rng.choice(written(sign, held)), {"$a": shown(a, rng), "$b": shown(b, rng)}), worked(a, sign, b)


def shown(n: int, rng: Random) -> str:
    """In digits as a rule."""
    return numbered(n, rng) if rng.random() < 0.3 else str(n)


def three(rng: Random, ask: str = ASK) -> tuple[str, str]:
    """Three numbers one after the other, up to 20, worked out in two steps."""
    a, b, c = (rng.randint(1, 7) for _ in range(3))
    first, second = ("plus" if rng.random() < 0.75 else "minus" for _ in range(2))
    between = result_of(a, first, b)
    if between < 0 or result_of(between, second, c) < 0:
        return three(rng, ask)
    style = rng.randrange(3)
    return f"{ask} {a}{SIGNS[first][style]}{b}{SIGNS[second][style]}{c}", f"{worked(a, first, b)} {worked(between, second, c)}"


def more(rng: Random) -> tuple[str, str]:
    """Which of two numbers is more."""
    a, b = rng.sample(range(rng.choice((21, 100))), 2)
    x, y = numbered(a, rng), numbered(b, rng)
    return f"{{{{which|what}} {{number |}}is {{more|bigger|larger|greater}}{{,|:|}} {x} or {y}|{{is|what is}} more{{,|:}} {x} or {y}|is {x} {{more|bigger|larger}} than {y}}}", f"{reckoned(str(max(a, b)))} is more than {min(a, b)}."


def large(rng: Random) -> tuple[str, str]:
    """A sum that is too much for it."""
    sign = rng.choice(tuple(SIGNS))
    a, b = rng.randint(MOST + 1, 9999), rng.randint(11, 999)
    return f"{ASK} {a}{rng.choice(SIGNS[sign])}{b}", LARGE


def run(rng: Random) -> list[tuple[str, str]]:
    """A sum and some more, which begin anew or go on from the result."""
    turns = [three(rng) if rng.random() < 0.15 else casual(rng) if rng.random() < WRITTEN else total(rng)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        result = int(strip(turns[-1][1]).rstrip(".").rsplit(" ", 1)[1])
        anew = result > MOST or rng.random() < 0.35
        turns.append(total(rng, "{and|and what is|what about|now|and now|ok and}") if anew else further(rng, result))
    return turns


def further(rng: Random, result: int) -> tuple[str, str]:
    """Something added to a result or taken away from it, its double, or a part of it."""
    if 1 < result < 11 and rng.random() < 0.15:
        return "{{and |now |}times {2|two}|{and |now |}double that|{what is|and} that times {2|two}|twice that}", worked(result, "times", 2)
    parts = [n for n in range(2, 11) if result % n == 0 and 1 < result // n <= 10]
    if parts and rng.random() < 0.3:
        n = rng.choice(parts)
        half = "|{and |now |}half of {that|it}|{and |now |}halve it" if n == 2 else ""
        return f"{{{{and |now |}}divided by {n}|{{and |now |}}share {{that|it|them}} {{between|among|by}} {numbered(n, rng)}{{| of us| people| children| friends}}|split {{that|it|them}} {{{numbered(n, rng)} ways|between {n}}}|for {numbered(n, rng)} of us, how many each|{{what is|how much is}} that divided by {n}{half}}}", worked(result, "divided by", n)
    sign = "plus" if result < 2 or result < MOST - 1 and rng.random() < 0.6 else "minus"
    b = rng.randint(1, min(10, MOST - result if sign == "plus" else result))
    n = numbered(b, rng)
    if rng.random() < WRITTEN:
        return rng.choice(written("and" if sign == "plus" else "less")).replace("$n", n), worked(result, sign, b)
    ways = {"plus": f"{{{{|and |now |then }}add {n}{{| to that| to it}}|{{|and }}plus {n}|and {n} more|{{what is|how much is|and}} that plus {n}}}",
            "minus": f"{{{{|and |now |then }}take {n} {{away|off}}{{| from that}}|{{|and }}minus {n}|{{what is|how much is|and}} that minus {n}}}"}  # fmt: skip
    return ways[sign], worked(result, sign, b)


def story(rng: Random) -> list[tuple[str, str]]:
    """Things of which there are more or fewer in the end: told and asked at once, or one after the other."""
    a, sign, b, result = drawn(rng, least=2)
    told, asked, after = rng.choice(STORIES[sign])
    slots = {"$x": numbered(a, rng), "$y": numbered(b, rng), "$z": reckoned(str(result)), "$w": rng.choice(COUNTED)}
    told, asked, after = (_filled(text, slots) for text in (told, asked, after))
    reply = f"{worked(a, sign, b)} {after}"
    if rng.random() < 0.3:
        return [(told, "{Okay.|I see.|Got it.}"), (asked, reply)]
    return [(f"{told}{{. | |, }}{asked}{{?|}}", reply)]


def story_and_more(rng: Random) -> list[tuple[str, str]]:
    """A story; one of things goes on now and then: some more of them, or fewer, than came out."""
    turns = story(rng)
    *_, result, thing = strip(turns[-1][1]).rstrip(".").split(" ")
    if thing not in COUNTED or not 1 < int(result) < 20 or rng.random() >= GOES_ON:
        return turns
    result, sign = int(result), rng.choice(tuple(THEN))
    b = rng.randint(1, min(9, 20 - result if sign == "plus" else result))
    return [*turns, (THEN[sign].replace("$n", numbered(b, rng)), worked(result, sign, b))]


def _filled(text: str, slots: dict[str, str]) -> str:
    for name, value in slots.items():
        text = text.replace(name, value)
    return text


def some(rng: Random) -> list[tuple[str, str]]:
    """A sum, some of them, or a story."""
    return rng.choices((run, story_and_more, _one(total), _one(casual), _one(three), _one(more), _one(large)), (4, 4, 1, 2, 1, 0.5, 0.5))[0](rng)


def _one(make: Callable[[Random], tuple[str, str]]) -> Callable[[Random], list[tuple[str, str]]]:
    return lambda rng: [make(rng)]


def quizzed(rng: Random) -> list[tuple[str, str]]:
    """The user's answers to the assistant's sums, beginning with the first: right, wrong or given up, and now and then the wish for the next."""
    turns = []
    for number in range(rng.choice((1, 1, 2, 3))):
        if number:
            turns.append((expand(rng, NEXT_ONE), QUIZ[number][0]))
        _, a, b = QUIZ[number]
        roll, result = rng.random(), worked(a, "plus", b)
        if roll < 0.15:
            turns.append((expand(rng, GIVEN_UP), result))
        else:
            right = roll < 0.7
            n = a + b if right else a + b + rng.choice((-2, -1, 1, 2, 3))
            turns.append((expand(rng, RESULTS).replace("$n", numbered(n, rng)), f"{'Yes' if right else 'No'}, {result}"))
    return turns
