"""Small things to do on request that have one right answer: lists of so many, the next of a list, counting, days, months, letters, sums, jokes.

Everything goes through fixed orders, from their beginning. A model of this size picks the likeliest next word; were the orders free, it would say an item twice,
and while lists began anywhere it learnt what follows on what better than what is a list of what: ducks, penguins and frogs on a farm.
Beside the lists here are those that a language model wrote, in `kind_lists`: a line `name | other wording || item; item` each.
"""

from functools import cache
from pathlib import Path
from random import Random

from . import values
from .grammar import article, expand
from .sums import NUMBERS, large, more, numbered, total

LISTS: dict[str, list[str]] = {
    "fruits": "apples pears plums cherries grapes bananas oranges lemons berries melons figs peaches".split(),
    "vegetables": "potatoes beans tomatoes onions carrots peas cabbage corn mushrooms spinach".split(),
    "animals": "cats dogs horses rabbits bears lions tigers wolves cows sheep goats elephants".split(),
    "animals that fly": "owls bees eagles ducks parrots butterflies bats geese".split(),
    "animals that swim": "whales dolphins seals otters ducks penguins frogs turtles".split(),
    "farm animals": "cows sheep goats pigs horses ducks hens donkeys".split(),
    "wild animals": "bears wolves lions tigers foxes elephants snakes giraffes".split(),
    "small animals": "mice ants bees frogs spiders snails rats hamsters".split(),
    "pets": "cats dogs rabbits hamsters parrots fish turtles mice".split(),
    "birds": "owls eagles ducks parrots hens swans geese robins".split(),
    "colours": "red blue green yellow orange purple pink brown black white grey".split(),
    "colors": "red blue green yellow orange purple pink brown black white gray".split(),
    "dark colours": "black brown navy purple maroon grey".split(),
    "sports": "football tennis hockey golf rugby cricket basketball swimming running boxing".split(),
    "games": "chess cards football tennis darts hockey golf bowling".split(),
    "instruments": "piano violin guitar flute drums trumpet harp organ banjo".split(),
    "countries": "France Spain Italy Germany Poland Norway Sweden Greece Turkey Japan China Brazil".split(),
    "cities": "Paris London Berlin Madrid Rome Vienna Oslo Dublin Tokyo Boston".split(),
    "drinks": "tea coffee milk water juice beer wine cola lemonade cocoa".split(),
    "hot drinks": "tea coffee cocoa soup".split(),
    "jobs": "baker teacher nurse doctor painter farmer pilot writer singer cook driver".split(),
    "languages": "French Spanish Italian German Polish Dutch Greek Turkish Chinese Japanese".split(),
    "hobbies": "painting cooking reading fishing dancing drawing singing gardening baking hiking".split(),
    "foods": "pizza pasta soup rice bread cheese salad curry pancakes potatoes".split(),
    "things to eat": "bread cheese soup pasta rice eggs pizza salad apples".split(),
    "things in a kitchen": "a stove|a fridge|a table|a kettle|a cup|a pan|a knife|a spoon".split("|"),
    "things in a house": "a door|a window|a table|a chair|a bed|a lamp|a sofa|a clock".split("|"),
    "things in a garden": "a tree|a fence|a bench|a hedge|a shed|a pond|a flower|a path".split("|"),
    "things with wheels": "a car|a bus|a bike|a train|a van|a truck|a tractor".split("|"),
    "things you wear": "a hat|a coat|a scarf|shoes|socks|gloves|a shirt|a dress".split("|"),
    "red things": "a rose|a cherry|a tomato|blood|fire|a strawberry".split("|"),
    "round things": "a ball|a coin|a ring|a wheel|an orange|the moon|a plate".split("|"),
    "names": "Anna Tom Mia Ben Lucy Paul Kate Sam Rosa Max".split(),
    "names for a cat": "Luna Milo Tiger Misty Shadow Ginger Socks Oreo".split(),
    "names for a dog": "Rex Rover Buddy Bruno Bella Rocky Duke Spot".split(),
    "numbers": "one two three four five six seven eight nine ten".split(),
    "letters": "A B C D E F G H I J".split(),
    "days": values.DAYS,
    "days of the week": values.DAYS,
    "months": values.MONTHS,
    "seasons": values.SEASONS,
    "rooms": "kitchen bedroom bathroom hall attic cellar office garage".split(),
    "parts of the body": "head arm leg hand foot nose eye ear mouth".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "flowers": "roses lilies tulips daisies violets sunflowers".split(),
    "trees": "oak maple birch pine willow apple cherry".split(),
    "tools": "a hammer|a saw|a drill|a ladder|a brush|a knife".split("|"),
}
FOLDER = Path(__file__).parent / "kind_lists"
WRITTEN = 0.6  # of lists that are asked for, those a language model wrote
ASK_LIST = "{{please |can you |could you |}{name|list|give me|tell me|write down|think of|say} $n|I {need|want|would like} $n|{do you know|can you think of} $n|what are $n|$n|$n, {quick|go|now}}{{| please| for me}|}"
SOME = ("a list of", "some", "some", "any", "a few", "a short list of")
MORE_LIST = "{another one|one more|and another|give me {another one|one more}|another one please|one more please|name another|name one more|can you name {another|one more}|tell me one more|and one more|another|more{| please}|can I have another one|next|next one please}"
MORE_TWO = "{two more|two more please|and two more|give me two more|name two more|can you name two more|another two|I need two more}"
MORE_OF = {1: "Another one", 2: "Two more"}  # how a reply begins that goes on with a list
AGAIN = "{what did you say|what was that|say that again|say it again|can you repeat that|repeat that|repeat that please|could you repeat that|can you say that again|again please|once more please|pardon|come again|one more time please|I did not get that|I missed that, say it again|sorry, what did you say|what|repeat your last message|repeat please|I didn't hear you|what did you just say}"

JOKES = """Why did the cat sit on the computer? To keep an eye on the mouse.
What do you call a sleeping bull? A bulldozer.
Why did the book look sad? It had too many problems.
What is brown and sticky? A stick.
Why did the clock go to school? To learn to tell the time.
What do you call a bear with no teeth? A gummy bear.
Why was the broom late? It slept in.
What has four legs and can not walk? A table.
Why do bees hum? They do not know the words.
What goes up and never comes down? Your age.
Why did the bike fall over? It was two tired.
What do you call cheese that is not yours? Nacho cheese.""".split("\n")
FACTS = """Bees can see colours that we can not.
Honey almost never goes bad.
A group of owls is called a parliament.
Cats sleep for most of the day.
Snails can sleep for a very long time.
The heart of a whale is as big as a small car.
A day on Venus is longer than its year.
Horses can sleep on their feet.
Bananas are berries, but strawberries are not.
Frogs drink through their skin.
Ants can carry much more than they weigh.
Butterflies taste with their feet.""".split("\n")
NICE = """You are doing well.
I am glad that you are here.
You have a good way with words.
Today is a good day to try something new.
You ask good questions.
It is nice to talk with you.""".split("\n")
PIECES = Path(__file__).parent / "piece_lists"  # jokes and facts that a language model wrote: a line `subject, other word for it || joke` each


@cache
def written_pieces(kind: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """What a language model wrote of a kind, with the words for its subject. Raises ValueError naming a line that is none."""
    found = []
    for line in (PIECES / f"{kind}s.txt").read_text().splitlines():
        subject, _, text = line.partition(" || ")
        if not text:
            raise ValueError(f"a {kind} is a line 'subject, other word || {kind}'; {line!r} is none")
        found.append((tuple(word.strip() for word in subject.split(",")), text))
    return tuple(found)


def pieces(kind: str, first: list[str]) -> list[str]:
    """All of a kind in their order: those that are told to whom asks for any, and those about more."""
    return first + [text for _, text in written_pieces(kind)]


TELLING = {
    "joke": (pieces("joke", JOKES), "{tell me a joke|do you know a joke|make me laugh|say something funny|got a joke|a joke please|I want to hear a joke|can you tell me a joke|know any jokes|cheer me up with a joke|tell me something funny|I need a laugh}"),
    "fact": (pieces("fact", FACTS), "{tell me something|tell me a fact|tell me something interesting|give me a fact|a fact please|surprise me|teach me something|do you know a fun fact|tell me a fun fact|say something interesting|I want to learn something|did you learn any facts}"),
    "compliment": (NICE, "{say something nice|tell me something nice|say something kind|give me a compliment|be nice to me|I need a kind word|make me feel good|say something friendly}"),
}
LAUGHS = [
    ("{that was funny|haha|hahaha|that's funny|good one|lol|that made me laugh|you are funny|nice joke|very funny|I like that one}", "{I am glad you liked it.|Good to hear that you laughed.}"),
    ("{that was not funny|I don't get it|that's not funny|a bad joke|not very funny|that was silly|terrible joke|I know that one}", "{I am sorry. I know some better ones.|I am sorry. Ask me for another one.}"),
]
SUBJECTS = {  # what each is about, as it is asked for
    "joke": [(subject,) for subject in "a cat|a bull|a book|a stick|a clock|a bear|a broom|a table|bees|age|a bike|cheese".split("|")] + [words for words, _ in written_pieces("joke")],
    "fact": [(subject,) for subject in "bees honey owls cats snails whales Venus horses bananas frogs ants butterflies".split()] + [words for words, _ in written_pieces("fact")],
}
TOPICS = """space school dogs chickens football food music history water trees cars penguins computers winter monkeys birds maths doctors teachers ghosts dinosaurs pirates sharks trains coffee sleep rain elephants
summer Christmas love money work kings queens knights planes ships bikes robots volcanoes rivers mountains islands deserts forests flowers roses gardens farms cows pigs sheep goats rabbits mice foxes wolves lions tigers giraffes zebras
crocodiles turtles dolphins octopuses crabs spiders beetles worms bats parrots eagles swans geese pigeons pizza pasta bread chocolate cake apples potatoes onions tea wine milk salt sugar eggs fire snow ice storms clouds rainbows
stars planets Mars Jupiter astronauts numbers letters languages books films actors singers painters cooks bakers farmers sailors dentists nurses policemen lawyers plumbers neighbours grandmothers babies twins weddings birthdays holidays camping
tennis chess basketball swimming dancing running skiing hair teeth eyes feet brains dreams glass gold silver diamonds paper pencils shoes hats socks clothes phones television clocks bridges castles towers lighthouses Paris London Rome Egypt
Japan Australia""".split()
ABOUT = {
    "joke": "{{tell me |do you know |I want |have you got |can you tell |give me |how about |got |I need |}a {joke|funny joke|short joke|good joke|silly joke} {about|about|with} $s{| in it}{| please}|{any|got any|know any|do you know any|have you any|more} jokes about $s|{joke about|now one about|one about|one with} $s{| please}|make me laugh about $s|do one about $s}",
    "fact": "{{tell me |do you know |I want |give me |can you tell me |how about |I'd like |}{a fact|something|something interesting|a fun fact|something new|one interesting thing|an odd fact} about $s{| please}|{any|got any|know any|do you know any|have you any} {facts|fun facts} about $s|{fun fact|fact|facts|now one|one} about $s{| please}|teach me something about $s|what is interesting about $s|surprise me with something about $s}",
}
SUBJECT = 0.6  # chance that a wish says what the joke or the fact should be about
KNOWN = 0.75  # chance that there is one about it
PLAIN = 12  # of the first that are told to whom asks for any
STRANGE = "I know none about that, but this one: "  # before a joke, a fact or a story that is about something else than what was wished
MORE = {
    "joke": "{another joke|another one|one more|tell me another joke|tell me another one|another one please|one more joke|one more please|do you know another one|more jokes|that was good, another one|haha, another one|haha one more|next joke|a different joke please|a better one please|got another|I know that one, another please}",
    "fact": "{another fact|another one|one more|tell me another one|another one please|one more fact|one more please|tell me more|do you know another one|interesting, another one|next fact|something else|more facts please}",
    "compliment": "{another one|one more|another one please|one more please|say another|thanks, one more|more please}",
}


def piece(rng: Random, kind: str, at: int | None = None) -> tuple[int, str, str]:
    """A wish for a joke, a fact or a kind word, and it: its number (`at`, if given and nothing else is wished), the wish and the reply."""
    told, ways = TELLING[kind]
    at = rng.randrange(min(PLAIN, len(told))) if at is None else at % len(told)
    if kind not in ABOUT or rng.random() >= SUBJECT:
        return at, expand(rng, ways), told[at]
    wish = expand(rng, ABOUT[kind])
    if rng.random() < KNOWN:
        word = wished(rng, rng.choice(SUBJECTS[kind]))
        at = next(number for number, words in enumerate(SUBJECTS[kind]) if word in (*words, *map(wished_one, words)))
        return at, wish.replace("$s", word), told[at]
    return at, wish.replace("$s", rng.choice(unknown_topics(kind))), STRANGE + told[at]


def wished(rng: Random, words: tuple[str, ...]) -> str:
    """One of the words for a subject, as it stands after "about"."""
    word = rng.choice(words)
    return wished_one(word) if f"{word}s" in words else word


def wished_one(word: str) -> str:
    """One of something."""
    return f"{article(word)} {word}"


@cache
def unknown_topics(kind: str) -> tuple[str, ...]:
    """What there is no joke or fact of a kind about."""
    stems = {word.lower().split(" ")[-1][:4] for words in SUBJECTS[kind] for word in words}
    nouns = [*TOPICS, *(wished_one(noun) for noun in values.NOUNS)]
    return tuple(topic for topic in nouns if topic.lower().split(" ")[-1][:4] not in stems)


def joined(items: list[str]) -> str:
    """"a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


@cache
def written() -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """The lists that a language model wrote: for each its wordings, its name among them, and its items. Raises ValueError naming a line that is no list."""
    found = {}
    for line in (line for file in sorted(FOLDER.glob("*.txt")) for line in file.read_text().splitlines()):
        names, _, row = line.partition(" || ")
        if not row:
            raise ValueError(f"a list is a line 'name | other wording || item; item'; {line!r} is none")
        wordings = tuple(names.split(" | "))
        found[wordings[0]] = wordings, row.split("; ")
    return found


def named(name: str) -> list[str]:
    """The items of a list."""
    return LISTS[name] if name in LISTS else written()[name][1]


def asked_list(rng: Random) -> tuple[str, int, str]:
    """The name of a list, how many items are wanted, and how that is asked: "three fruits", "a list of colours"."""
    name = rng.choice(list(written() if rng.random() < WRITTEN else LISTS))
    called = name if name in LISTS else rng.choice(written()[name][0])
    if rng.random() < 0.25:
        return name, min(3, len(named(name))), f"{rng.choice(SOME)} {called}"
    n = min(rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 6)), len(named(name)))
    return name, n, f"{rng.choice((NUMBERS[n], NUMBERS[n], str(n)))} {called}"


def items(name: str, start: int, n: int) -> str:
    """n items of a list in its order, from `start` on."""
    return joined(named(name)[start:start + n])


def count(rng: Random) -> tuple[str, str]:
    """Count up, from somewhere, or down."""
    roll = rng.random()
    if roll < 0.45:
        start, end, ask = 1, rng.choice((3, 4, 5, 5, 5, 6, 7, 8, 9, 10, 10, 12, 15, 20)), "{count|can you count|please count|count up|start counting|count for me} {to|up to} $e{| please| for me}"
    elif roll < 0.75:
        start = rng.randint(1, 10)
        end, ask = start + rng.randint(2, 8), "{count|can you count|please count|count up|say the numbers} from $s {to|up to} $e{| please}"
    else:
        start, end = rng.choice((3, 4, 5, 5, 6, 7, 8, 10, 10)), 1
        ask = "{count {backwards|down|back}|can you count {backwards|down}|please count {backwards|down}} from $s{| please| to one| to 1}"
    numbers = range(start, end + 1) if start < end else range(start, end - 1, -1)
    return ask.replace("$s", numbered(start, rng)).replace("$e", numbered(end, rng)), ", ".join(map(str, numbers)) + "."


def counted(rng: Random) -> list[tuple[str, str]]:
    """Counting, and counting back or on from there."""
    ask, row = count(rng)
    numbers = row.rstrip(".").split(", ")
    if int(numbers[0]) > int(numbers[-1]) or rng.random() < 0.6:
        then, numbers = "{now backwards|and now backwards|backwards|now back|and back|and back again|now the other way|the other way round|can you do it backwards|now count back|in reverse|now down again}", numbers[::-1]
    else:
        last = int(numbers[-1])
        then, numbers = "{go on|keep going|keep counting|count on|and further|further|what comes next|continue|more|and then}", [str(n) for n in range(last + 1, last + 6)]
    return [(expand(rng, ask), row), (expand(rng, then) + expand(rng, "{| please|!!|!}"), ", ".join(numbers) + ".")]


LETTERS = [chr(ord("A") + i) for i in range(26)]
_ORDERS = {"day": values.DAYS, "month": values.MONTHS, "letter": LETTERS}


def order(rng: Random) -> tuple[str, str]:
    """What comes after or before a day, month, letter or number."""
    kind = rng.choice((*_ORDERS, "number"))
    row = _ORDERS.get(kind) or [str(n) for n in range(31)]
    at, step, word = rng.randrange(1, len(row) - 1), *rng.choice(((1, "after"), (1, "after"), (-1, "before")))
    shown = numbered(at, rng) if kind == "number" else row[at]
    ask = f"{{{{what|which}} {kind} {{comes|is}} {word} {shown}|what {{comes|is}} {word} {shown}|tell me {{what|the {kind} that}} comes {word} {shown}|{{do you know |}}which {kind} comes {word} {shown}}}"
    return ask, f"{word.capitalize()} {row[at]} comes {row[at + step]}." if word == "after" else f"{row[at + step]} comes before {row[at]}."


def rows(rng: Random) -> tuple[str, str]:
    """The days, months, seasons or letters, or how many there are."""
    ask_all = "{{what are|name|list|tell me|can you name|say|give me} {all |}the $x|the $x please|can you say the $x|do you know the $x}"
    kind = rng.randrange(6)
    if kind == 0:
        return ask_all.replace("$x", "{days of the week|days|weekdays and the weekend}"), joined(values.DAYS) + "."
    if kind == 1:
        return ask_all.replace("$x", "{months|months of the year|twelve months}"), joined(values.MONTHS) + "."
    if kind == 2:
        return ask_all.replace("$x", "{seasons|four seasons}"), "Here you are: " + joined(values.SEASONS) + "."
    if kind == 3:
        n = rng.randint(3, 8)
        if rng.random() < 0.4:
            return "{say the alphabet|what is the alphabet|the alphabet please|can you say the alphabet|do you know the alphabet|tell me the alphabet|all letters please|the ABC please}", ", ".join(LETTERS) + "."
        return f"{{what are|name|say|tell me|give me}} the first {numbered(n, rng)} letters{{| of the alphabet}}", joined(LETTERS[:n]) + "."
    what, among, n = rng.choice((("days", "a week", 7), ("months", "a year", 12), ("seasons", "a year", 4), ("letters", "the alphabet", 26), ("hours", "a day", 24), ("minutes", "an hour", 60), ("legs", "a spider", 8), ("legs", "a dog", 4)))
    if what == "legs":
        return f"how many legs does {among} have", f"{among.capitalize()} has {n} legs."
    return f"{{how many {what} {{are|are there}} in {among}|how many {what} does {among} have}}", f"There are {n} {what} in {among}."


def first_letter(rng: Random) -> tuple[str, str]:
    """The first letter of a word."""
    word = rng.choice(values.NOUNS)
    return f"{{what letter does {word} start with|which letter does {word} begin with|what is the first letter of {word}}}", f"{word.capitalize()} starts with {word[0].upper()}."


CHORES = (count, count, count, count, order, rows, total, total, more, large, first_letter)
