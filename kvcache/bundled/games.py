"""Little games and favours: riddles that the user guesses, a name for a kitten or a boat, words said after the user."""

from random import Random

from . import chores, facts, smalltalk, values
from .grammar import article, expand
from .marks import CLOSE, DECISIVE, recalled
from .reactions import Turns

RIDDLES = (  # each with its answer and what else somebody might guess
    ("What has hands but can not clap?", "a clock", ("a doll", "a glove", "a robot", "a statue")),
    ("What gets wetter the more it dries?", "a towel", ("a sponge", "the sun", "a fish", "hair")),
    ("What has keys but opens no door?", "a piano", ("a map", "a thief", "a phone", "a computer")),
    ("What has a neck but no head?", "a bottle", ("a giraffe", "a shirt", "a guitar", "a snake")),
    ("What has teeth but can not bite?", "a comb", ("a saw", "a baby", "a zip", "a fork")),
    ("What goes up when the rain comes down?", "an umbrella", ("a balloon", "the river", "a bird", "steam")),
    ("What has one eye but can not see?", "a needle", ("a pirate", "a potato", "a storm", "a camera")),
    ("What is full of holes but holds water?", "a sponge", ("a bucket", "a cheese", "a net", "a cloud")),
    ("What has legs but can not walk?", "a table", ("a snake", "a doll", "a tree", "a bed")),
    ("What can you catch but not throw?", "a cold", ("a ball", "a bus", "a fish", "fire")),
    ("What runs but never walks?", "water", ("a horse", "a clock", "time", "my nose")),
    ("What has leaves but is no tree?", "a book", ("a flower", "a bush", "a door", "tea")),
)
WISH = "{{tell me|do you know|give me|ask me|how about|I want|got|have you got|can you tell me|know} a riddle{| please| for me}|a riddle{| please}|{any riddles|riddle me something|riddle time|let's do riddles|do you know {any |}riddles|can you do riddles}|{I like|I love} riddles, {tell me one|ask me one}|let me guess something|give me something to guess}"
MORE = "{another {one|riddle}{| please}|one more{| please| riddle}|next{| one}|give me another one|again|more riddles|a harder one}"
GUESS = "{$a|$a|is it $a|$a?|it's $a|I think it's $a|hmm, $a|could it be $a|easy, $a|{that's |it must be |}$a!|$a, right|my guess is $a}"
GIVEN_UP = "{I don't know|no idea|I give up|tell me|just tell me|what is it|what is the answer|I have no clue|pass|too hard|I can't guess it|say it|you tell me}"
NAMED = {"cat": "names for a cat", "kitten": "names for a cat", "dog": "names for a dog", "puppy": "names for a dog", "rabbit": "names for a rabbit", "hamster": "names for a hamster", "parrot": "names for a cat", "pony": "names for a dog", "fish": "names for a cat",
         "baby": "names", "doll": "names", "boat": "names for a boat", "teddy bear": "names for a dog", "hen": "names", "goat": "names for a dog", "hero of my story": "names"}  # what is named, and the list of names for it
NAME_WISH = "{{what should|what shall|what could|how should} I {call|name} $k|{can you |please |}{suggest|think of|give me|find|pick} a name for $k{| please}|{any ideas for|have you got|I need|do you know|help me find} a name {for|of} $k|a name for $k{| please}|$k needs a name{|, any ideas|. Any idea}|{I have|I got|we have} $a new $n, {what should I call it|any ideas for a name|help me name it}|name $k for me}"
NAME_MORE = "{another one{| please}|one more{| please}|not that one|no, another|something else|I don't like that{| one}|hmm, another|next|any others|and another idea}"
SAY = "{say|can you say|please say|repeat after me:|repeat:|say after me:|just say|now say|repeat this:|write|type}"


def turns(rng: Random, held: bool = False) -> Turns:
    """The turns of a game or a favour."""
    return rng.choices((riddles, named, said_after), (3, 2, 2))[0](rng, held)


def riddles(rng: Random, held: bool) -> Turns:
    """Riddles in their order, from the first; guessed, guessed wrong or given up."""
    made = []
    for number, (riddle, answer, others) in enumerate(RIDDLES[:rng.choice((1, 1, 2, 2, 3, 5, 12))]):
        made.append((typed(rng, MORE if number else WISH), riddle))
        roll = rng.random()
        if roll < 0.25:
            made.append((typed(rng, GIVEN_UP), f"It is {answer}."))
        elif roll < 0.6:
            made.append((typed(rng, GUESS.replace("$a", answer), keep=answer), f"{DECISIVE}Yes, it is{CLOSE} {answer}."))
        else:
            guess = rng.choice(others) if rng.random() < 0.5 else f"{article(noun := rng.choice(values.NOUNS))} {noun}"
            made.append((typed(rng, GUESS.replace("$a", guess), keep=guess), f"{DECISIVE}No, it is{CLOSE} {answer}."))
    return made


def named(rng: Random, held: bool) -> Turns:
    """A name for somebody or something, and others where it is not liked."""
    kind = rng.choice(tuple(NAMED))
    names = chores.named(NAMED[kind])
    whose = "the" if kind.startswith("hero") else rng.choice(("my", "my", "our", "my new", "a", "the"))
    wish = NAME_WISH.replace("$k", f"{whose} {kind}").replace("$a", article(kind)).replace("$n", kind)
    made = [(typed(rng, wish), f"How about {names[0]}?")]
    for name in names[1:rng.choice((1, 1, 2, 3, 4))]:
        made.append((typed(rng, NAME_MORE), f"How about {name}?"))
    return made


def said_after(rng: Random, held: bool) -> Turns:
    """Words said after the user."""
    text = rng.choice((a_remark, a_value))(rng, held).rstrip(".!?")
    quote = rng.choice(("", "", '"', "'"))
    if quote == "'" and "'" in text:
        quote = '"'
    return [(f"{facts.finish(rng, expand(rng, SAY), '')} {quote}{text}{quote}", f"{recalled(text[:1].upper() + text[1:])}.")]


def a_remark(rng: Random, held: bool) -> str:
    """A sentence about somebody's day."""
    return smalltalk.remark(rng)


def a_value(rng: Random, held: bool) -> str:
    """A word or two."""
    return values.make(rng, rng.choice(("name", "word", "city", "food", "animal", "colour", "title")), held)


def typed(rng: Random, text: str, keep: str = "") -> str:
    """As people type it; haste leaves `keep` as it is."""
    said = expand(rng, text)
    return facts.informal(rng, facts.finish(rng, said, facts.mark(said)), keep=keep)[0]
