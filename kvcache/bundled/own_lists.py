"""Lists of the user's own: things to buy, to pack, to do, guests, places, colours; told, added to, crossed off, and asked for whole, by number, by neighbour.

A model that had met single facts gave two of three colours, the wrong one for "the second", and took "also add string" for praise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from . import chatter, chores, facts, values
from .grammar import expand
from .marks import CLOSE, DECISIVE, REFUSING, decisive, recalled, reckoned
from .reactions import Turns

ORDINALS = "first second third fourth fifth sixth".split()
CHAT = 0.25  # chance of small talk between two turns
FEW_LEFT = 100  # items drawn in vain after which those held out from training are all on the list
FORGOTTEN = 0.25  # chance that the last question is about something that was not told
TASKS = "call my mother|water the plants|feed the cat|pay the rent|buy stamps|wash the car|clean the oven|write to the bank|post the letter|fix the tap|mow the lawn|pack my bag|book a table|charge the phone|return the books|iron a shirt|sweep the yard|bake a cake|walk the dog|find my keys|renew my pass|change the bulb|order new shoes|fold the laundry".split("|")
GOODS = "milk|bread|eggs|butter|cheese|rice|soap|string|candles|apples|onions|flour|sugar|tea|coffee|salt|lemons|batteries|matches|honey|yoghurt|fish|ham|tomatoes|nails|glue|tape|oil|beans|nuts|stamps|jam|carrots|pepper|napkins|cat food|ice cream|olives|garlic|pasta|shampoo|paper|bin bags|light bulbs".split("|")
LUGGAGE = "socks|a towel|a torch|my passport|sandals|a jumper|sun cream|a novel|my charger|a raincoat|two shirts|my glasses|a hat|a toothbrush|gloves|a map|a tent|a pillow|my camera|swimming trunks|a whistle|earplugs|a water bottle|boots|a first aid kit|a deck of cards".split("|")


@dataclass(frozen=True)
class Theme:
    """How a kind of list is told ($i its items), asked for as a whole and answered for, what is asked of it in vain and that in a refusal, its items: a kind of values or some; how one is added and dropped."""

    told: str
    whole: str
    answer: str
    untold: tuple[tuple[str, str], ...]
    items: str | Sequence[str]
    adds: str = "{also|and|oh and|plus|and also} $x{| too| please|}|{add|put} $x {to it|on it|too|to the list|as well}|I forgot $x|{also add|add also} $x{| please}|{one more thing, |wait, |}$x {too|as well}|don't forget $x"
    drops: str | None = "{take $x off|cross off $x|cross $x off|no $x after all|without $x|$x {is done|is off}|I don't need $x|{remove|delete|forget} $x{| please}|not $x after all|leave out $x}"


LIST = "{what {is|was} on {my|the} list|what's on {it|my list}|{read|tell|give|show} me {the|my} {list|whole list}|the whole list please|what {is|was} it all|list please|everything on it|can you repeat my list|so what do we have}"
THEMES = {
    "shopping": Theme("{{my shopping list{:| is}|I need|I need to buy|we need|to buy:|please note:|shopping today:|I have to get|on my list:|I'm off to the shop for|don't let me forget} $i|$i{, that's my shopping list| are on my list|, I have to buy all that}}",
                      "{" + LIST[1:-1] + "|what do I need|what do I have to buy|what {should|must} I get|what did I want to buy}", "You need $i.", (("{where do I buy it|which shop do I go to}", "where you buy it"), ("{what does it cost|how much is it all|the price}", "what it costs")), GOODS),
    "luggage": Theme("{{I'm packing|I pack|I have packed|in my bag:|in my suitcase there are|for the trip I take|I'm taking|so far I packed|to pack:} $i|$i{, that's what I take| are in my bag|, all in one suitcase}}",
                     "{" + LIST[1:-1] + "|what do I take|what is in my bag|what did I pack|what am I taking}", "You take $i.", (("{where am I going|where to}", "where you go"), ("{when do I leave|which day do I leave}", "when you leave"), ("{how long am I away|for how long}", "how long you are away")), LUGGAGE),
    "tasks": Theme("{{today I have to|I have to|I must|to do:|my plan for today:|I still have to|this afternoon I want to|remind me to|my jobs are:|I need to} $i|$i{, that's my to do list|, that's today's list|, all of it today}}",
                   "{" + LIST[1:-1] + "|what do I have to do|what are my jobs|what {should|must} I do|what is my plan}", "You have to $i.", (("{who helps me|who is helping}", "who helps you"), ("{by when|until when|what is the deadline}", "by when"), ("{when do I start|what time do I start}", "when you start")), TASKS),
    "guests": Theme("{{I invited|the guests are|we are meeting|coming on Sunday:|at my party will be|I'm having dinner with|my team is|in my group are|I'm playing with|the kids are called|my cousins are called} $i|$i{ are coming| come to my party| are in my team| and I are going out}}",
                    "{who {is|are} coming|who did I {invite|say|name}|who {is|are} they|what are their names|all the names please|who is {it|that}|name them all|the names again}", "They are $i.", (("{when do they come|what time is it}", "when they come"), ("{where do we meet|where is it}", "where you meet"), ("how old are they", "how old they are")), "name",
                    adds="{also|and|oh and|plus|and also} $x{| too|}|{add|put} $x {too|to them|as well}|I forgot $x|$x {is coming too|comes too|as well|too}|{one more, |wait, |}$x {too|as well}", drops="{$x {can't come|is not coming|is out|has cancelled|is ill|drops out}|not $x after all|without $x|take $x off}"),
    "colours": Theme("{my {flag|scarf|new jumper|carpet|kite|bird|team's shirt|rug|cat|fish} {is|has the colours}|{the|our} {flag|tent|bus|door|quilt|wall} {is|was|has the colours}|I painted it|I mixed|I picked} $i", "{what colours {is it|are they|does it have|did I say|were they}|which colours{| are they| did I name}|what colour is it|what were the colours|all the colours please}", "The colours are $i.",
                     (("how big is it", "how big it is"), ("who made it", "who made it"), ("{where did I get it|where is it from}", "where you got it")), "colour", adds="{also|and|oh and|and also} {|a bit of }$x{| too|}|I forgot $x|$x {too|as well}|there is {some |}$x {too|in it too|as well}", drops=None),
    "places": Theme("{{we {visited|went to|saw|are going to}|I {visited|lived in|have been to|want to see|am going to}|my trip:|the bus stops in|my route is} $i|$i{, that's my route|, those are my stops|, we want to see them all}}", "{which {cities|places|towns} {was it|were they|are they|did I name|did I say}|where {did|do} I go|what {is|was} my route|name the {cities|places}|all the {cities|stops} please}",
                    "You named $i.", (("{how do I get there|by train or by car}", "how you get there"), ("when do I leave", "when you leave"), ("{who comes along|who is with me}", "who comes along")), "city", adds="{also|and|oh and|then|and then} $x{| too|}|I forgot $x|$x {too|as well}|{and |then }{at the end|last|finally} $x", drops="{not $x after all|without $x|I leave out $x|no $x after all|$x is {off|cancelled}}"),
    "pets": Theme("{{my {pets|dogs|cats|rabbits|hens|ponies|fish} are {called |}|our {dogs|cats|goats|ducks} are {called |}|I have {three|some|a few} pets:|their names are} $i|$i{ are my pets| are my cats|, those are my dogs}}", "{what are they called|what are their names|name them|name all of them|the names of my pets|who {are they|is it}|all {the|their} names{| please}}", "They are called $i.", (("how old are they", "how old they are"), ("what do they eat", "what they eat"), ("where do they sleep", "where they sleep")),
                  "pet_name", adds="{also|and|oh and|and then there is} $x{| too|}|I forgot $x|$x {too|as well}|{and |}a new one{,| called| named} $x", drops=None),
}  # fmt: skip
FEW = {"colours": 3, "pets": 3}  # items at most at first, where it is not 4
NOTED = ("Okay, I will remember that.", "Okay.", "Got it.", "I will remember that.", "Noted.", "Thank you for telling me.")


@dataclass
class Told:
    """A list that is being told: its theme and the items so far."""

    rng: Random
    theme: Theme
    held: bool
    items: list[str] = field(default_factory=list)

    def new(self) -> str:
        """An item that is not on it: one held out from training while there are some, if those are wanted."""
        taken = {item.lower() for item in self.items}
        for attempt in count():
            source = self.theme.items
            item = values.make(self.rng, source, self.held and attempt < FEW_LEFT) if isinstance(source, str) else self.rng.choice(source)
            if item.lower() not in taken:
                return item

    def marked(self) -> str:
        """All items as the assistant says them."""
        return chores.joined([recalled(yours(item)) for item in self.items])

    def asked(self, text: str) -> str:
        """A message as it is typed; items keep their letters."""
        said = expand(self.rng, text).strip()
        return facts.finish(self.rng, said, facts.mark(said), protect=self.items[0])


def yours(item: str) -> str:
    """An item of the user's from the assistant's mouth."""
    return facts.turned(item) or item


def turns(rng: Random, held: bool = False) -> Turns:
    """Some turns about one list."""
    name = rng.choice(tuple(THEMES))
    told = Told(rng, THEMES[name], held)
    for _ in range(rng.choice((2, 3, 3, FEW.get(name, 4)))):
        told.items.append(told.new())
    made = [(told.asked(told.theme.told.replace("$i", joined(rng, told.items))), rng.choice(NOTED))]
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        if rng.random() < CHAT:
            made += chatter.talk(rng, held)
        made.append(rng.choices(tuple(STEPS), STEPS.values())[0](told))
    if rng.random() < FORGOTTEN:
        made.append(in_vain(told))
    return made


def joined(rng: Random, items: list[str]) -> str:
    """The items as people type them one after the other."""
    return rng.choice((chores.joined(items), chores.joined(items), ", ".join(items), " and ".join(items) if len(items) < 4 else chores.joined(items)))


def whole(told: Told) -> tuple[str, str]:
    """Everything on it."""
    return told.asked(told.theme.whole), decisive(told.theme.answer.replace("$i", told.marked()))


def numbered(told: Told) -> tuple[str, str]:
    """The second, the last."""
    at = told.rng.randrange(min(len(told.items), len(ORDINALS)))
    last = at == len(told.items) - 1 and told.rng.random() < 0.6
    word = "last" if last else ORDINALS[at]
    asked = f"{{{{what|which|and what|so what}} {{is|was}} the {word}{{| one| thing| of them}}|the {word} one{{| please| again}}|{{tell me|give me|say}} the {word}{{| one}}|and the {word}{{| one}}|{{which|what}} did I {{say|name|put}} {word}{'' if last else f'|number {at + 1}|what is number {at + 1}|which one is number {at + 1}'}}}"
    return told.asked(asked), f"{DECISIVE}The {word} is{CLOSE} {recalled(yours(told.items[at]))}."


def counted(told: Told) -> tuple[str, str]:
    """How many there are."""
    asked = "{how many {are there|is that|are they|are on it|do I have|did I name|did I say|things is that}{| now| in all| altogether}|count them{| please| for me}|so how many}"
    return told.asked(asked), f"There are {reckoned(str(len(told.items)))}."


def added(told: Told) -> tuple[str, str]:
    """One more."""
    item = told.new()
    told.items.append(item)
    return told.asked("{" + told.theme.adds + "}").replace("$x", item), f"{told.rng.choice(('Okay', 'Got it', 'Noted'))}, {yours(item)} too."


def dropped(told: Told) -> tuple[str, str]:
    """One less; one more where there would be too few."""
    if told.theme.drops is None or len(told.items) < 3:
        return added(told)
    item = told.items.pop(told.rng.randrange(len(told.items)))
    return told.asked(told.theme.drops).replace("$x", item), f"Okay, without {yours(item)}."


def holds(told: Told) -> tuple[str, str]:
    """Is it on it."""
    there = told.rng.random() < 0.5
    item = told.rng.choice(told.items) if there else told.new()
    asked = f"{{{{is|was}} {item} {{on it|there|on the list|among them|one of them|in it}}|did I {{say|mention|name}} {item}|{item} {{too|as well}}, {{right|yes|did I say that}}}}"
    reply = f"{'Yes' if there else 'No'}, {'you named' if there else 'you did not name'}"
    return told.asked(asked), f"{DECISIVE}{reply}{CLOSE} {recalled(yours(item)) if there else yours(item)}."


def after(told: Told) -> tuple[str, str]:
    """What comes after one of them."""
    at = told.rng.randrange(len(told.items) - 1)
    item, following = told.items[at:at + 2]
    return told.asked(f"{{what {{comes|came|is}} after {item}|and after {item}|after {item}{{| comes}}|what did I {{say|name}} after {item}}}"), f"{DECISIVE}After {yours(item)}{CLOSE} you named {recalled(yours(following))}."


def in_vain(told: Told) -> tuple[str, str]:
    """Something that was not told of it."""
    asked, clause = told.rng.choice(told.theme.untold)
    return told.asked(asked), decisive(f"You have not told me {clause}.", REFUSING)


STEPS = {whole: 5, numbered: 4, counted: 2, added: 4, dropped: 2, holds: 2, after: 1}
