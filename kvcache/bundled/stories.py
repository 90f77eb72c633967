"""Little stories, written one by one by language models to be learnt by heart, read from the lists in `story_lists`.

A story in the lists is a block: `hero | name`, the story in a line, then questions about it, each `? question | other wording` with its answer
`= $n found a button.`, $n for the hero's name. They have one order, as jokes do: who asks for a story hears the first that was not told,
who asks for one of a fox hears the fox's, with its own name. While stories were drawn from words, a model told of a falcon in every one of them.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from . import lists, values
from .chores import STRANGE
from .facts import finish
from .grammar import article, expand
from .marks import recalled, strip

FOLDER = Path(__file__).parent / "story_lists"
NO_HERO, UNKNOWN, NAMED, DESCRIBED, DOING = 0.25, 0.25, 0.12, 0.2, 0.25  # chances that a wish says not whom it should be about, is about something of which there is no story, gives a name to a hero of whom there is one, says more of the hero before or after it
SHORTER = 0.35  # chance that it is asked for in one sentence
PLAIN = "{tell me a {short |little |}story|can you tell {me |}a story|do you know {a|any} {story|stories}|a {short |}story{| please}|I {want|would like} to hear a story|make up a story|tell a story|got a story for me|a {bedtime |}story for my {son|daughter|little one}}{| please}"
ABOUT = "{tell me|can you tell me|I want|write|I'd like|make up|tell|give me|do you know|} a {short |little |bedtime |}story {about|of|with} $h{| please}"
OTHER_NAME = "I only know one with another name: "  # told with a name of its own, a story learnt by heart ended in word salad
LIKE = "little brave clever kind funny big sad happy small lazy old young shy hungry".split()
DOES = """who is scared of the dark|who can not sleep|who loves cake|who wants to fly|who gets lost|who finds a friend|who is always late|who lives in the forest|who goes to school|who is very hungry
that can talk|that is afraid of water|that wants to be big|that lives on the moon|that learns to swim|that eats too much|that lost its way|that nobody likes|that likes to sing|that saves the day
and a mouse|and his best friend|and her mother|and a boy called Ben|in the snow|in the big city|on a boat|in the woods|at the beach|with a happy end|with a funny end|for my son|for a child of five|to help me sleep""".replace("\n", "|").split("|")
UNCOUNTED = "thunder velvet copper ocean quartz jungle desert ivory jasmine nectar cobalt breeze silver winter summer coffee cheese butter purple yogurt ember onyx glacier harbour".split()
IN_SHORT = "{shorter please|make it shorter|a shorter story please|can you make that shorter|tell it in one sentence|the short version please|in short|shorter|that was too long, shorter please|tell it again but shorter|can you say that in one sentence}"


@dataclass(frozen=True)
class Story:
    """Its hero, the hero's name, the text with $n for the name, and (wordings of a question, answer)."""

    hero: str
    name: str
    text: str
    questions: tuple[tuple[tuple[str, ...], str], ...]

    @property
    def whole(self) -> str:
        """The text with the hero's name."""
        return self.text.replace("$n", self.name)


@dataclass(frozen=True)
class Told:
    """A wish for a story, the story, its number in the lists, and questions with their answers."""

    wish: str
    text: str
    number: int
    questions: list[tuple[str, str]]


@cache
def stories() -> tuple[Story, ...]:
    """All of them, in order."""
    return tuple(read(block) for block in lists.blocks(FOLDER))


def read(block: str) -> Story:
    """A story of its lines. Raises ValueError naming what is wrong with it."""
    first, text, *rest = block.strip().split("\n")
    hero, _, name = first.partition(" | ")
    told = re.sub(rf"\b{re.escape(name)}\b", "$n", text) if name else text
    asked, answers = rest[::2], rest[1::2]
    if not name or "$n" not in told or len(asked) != len(answers) or not asked or not all(q.startswith("? ") and a.startswith("= ") for q, a in zip(asked, answers)):
        raise ValueError(f"a story is 'hero | name', a line in which the name occurs, and lines '? question' and '= answer' in turn; {first!r} is none")
    return Story(hero, name, told, tuple((tuple(q[2:].split(" | ")), a[2:]) for q, a in zip(asked, answers)))


def wished(rng: Random, held: bool = False, taken: set[str] = frozenset(), first: int | None = None) -> Told:
    """A wish for a story and the story; `first` is the one to tell where no hero of one is named; without it one always is. Nobody in it has a name that is `taken`."""
    roll = rng.random()
    if first is not None and roll < NO_HERO:
        return _told(rng, expand(rng, PLAIN), first, taken)
    if first is not None and roll < NO_HERO + UNKNOWN:
        return _told(rng, wish(rng, strange(rng)), first, taken, STRANGE)
    number = rng.randrange(len(stories()))
    hero = stories()[number].hero
    number = next(at for at, story in enumerate(stories()) if story.hero == hero)
    name = values.make(rng, "pet_name", held) if rng.random() < NAMED else ""
    return _told(rng, wish(rng, hero, name), number, taken, OTHER_NAME if name else "")


def wish(rng: Random, hero: str, name: str = "") -> str:
    """A wish for a story about a hero (with a name), of whom it may say more."""
    described = f"{rng.choice(LIKE)} {hero}" if rng.random() < DESCRIBED else hero
    about = f"{article(described)} {described}" + (f" {rng.choice(('called', 'named'))} {name}" if name else "")
    return expand(rng, ABOUT).replace("$h", about + (f" {rng.choice(DOES)}" if rng.random() < DOING else ""))


def after(number: int, taken: set[str] = frozenset()) -> int:
    """The number of the first story after this one whose hero's name isn't taken."""
    number = (number + 1) % len(stories())
    return after(number, taken) if stories()[number].name in taken else number


def strange(rng: Random) -> str:
    """Something of which there is no story."""
    heroes = {story.hero for story in stories()}
    return rng.choice([noun for noun in values.NOUNS if noun not in heroes and noun not in UNCOUNTED])


def _told(rng: Random, wish: str, number: int, taken: set[str], before: str = "") -> Told:
    number = after(number - 1, taken)
    story = stories()[number]
    questions = [(rng.choice(wordings), answer) for wordings, answer in (*story.questions, ((f"what was the {story.hero} called",), f"The {story.hero} was called {recalled('$n')}."))]
    questions = [(question.replace("$n", story.name), answer.replace("$n", story.name)) for question, answer in questions]
    picked = rng.sample(questions, rng.randint(0, len(questions) - 1))
    if rng.random() < SHORTER:
        picked.insert(0, (expand(rng, IN_SHORT), strip(questions[0][1])))
    return Told(finish(rng, wish.strip()), before + story.whole, number, picked)
