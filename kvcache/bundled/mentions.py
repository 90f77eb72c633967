"""Somebody or something told about in a few sentences and then spoken of as she, he, it or there.

A subject has traits, each a fact of its own, so that it can also be asked for by name later. Slots of the templates: `$p` she, `$o` her,
`$h` her (car), `$v` the value and `$a` its article.
"""

import re
from dataclasses import dataclass, field
from random import Random

from . import grammar, phrases, values
from .facts import Fact

PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his"), "it": ("it", "it", "its"), "there": ("there", "there", "there")}
OPPOSITES = {a: b for pairs in (values.QUALITIES, values.CHARACTERS, values.MOODS) for x, y in pairs for a, b in ((x, y), (y, x))}

HER_RELATIONS = "sister|mother|mum|aunt|grandmother|grandma|daughter|wife|girlfriend|niece|little sister|younger sister|landlady|godmother".split("|")
HIS_RELATIONS = "brother|father|dad|uncle|grandfather|grandpa|son|husband|boyfriend|nephew|big brother|older brother|stepdad|godfather".split("|")
RELATIONS = "friend|best friend|boss|teacher|doctor|dentist|neighbour|coach|cousin|partner|flatmate|colleague|manager|roommate|trainer|assistant".split("|")
SPECIES = "dog cat horse rabbit parrot hamster turtle pony puppy kitten snake goat duck lizard mouse donkey pig fish rat".split()
THINGS = "car bike house boat phone guitar tent sofa desk van camera watch lamp piano radio bag coat hat umbrella kite mug clock table carpet laptop tablet".split()
EVENTS = "meeting|exam|interview|concert|party|wedding|lesson|match|dinner|trip|race|show|game|picnic|class|course|lunch|rehearsal".split("|")

WOMEN = frozenset("""Anna Clara Emma Greta Iris Kate Mia Olga Rosa Tina Uma Wendy Yara Zoe Lotte Sanne Femke Fatima Layla Aisha Yuki Sakura Mei Ling Priya
Anika Maria Lucia Elena Giulia Chiara Claire Amelie Ingrid Astrid Freya Natasha Katya Jana Eva Zsofia Eleni Ama Zuri Thandi Leilani Aroha Siobhan Megan
Isla Moira Ruby Daisy Poppy Ivy Nora Ella Alice Laura Julia Sarah Ruth Leah Miriam Esther Hannah Rachel Lucy Sophie Grace Helen Edith Mabel Olive Mary
Linda Susan Karen Nancy Betty Sandra Ashley Donna Carol Amy Pam Lisa Angela Beth Jen Jess Meg Sue Ann Tess Nadia""".split())
MEN = frozenset("""Ben David Felix Henry Jack Liam Noah Paul Victor Xander Bram Pieter Joris Ahmed Omar Yusuf Hiro Kenji Raj Arjun Carlos Diego Pablo Marco
Luca Pierre Louis Hans Lars Sven Bjorn Olaf Ivan Boris Dmitri Milan Tomas Laszlo Nikos Kofi Kwame Sipho Keanu Tane Connor Rhys Callum Fergus Oscar Alfie
Archie Leo Max Hugo Theo Simon Peter Martin Daniel Adam Jonas Elias Jacob Aaron Tom Harry George Frank Walter Arthur Ralph Robert James Michael William
Richard Joseph Thomas Mark Steven Kevin Brian Jason Jeff Gary Eric Dave Mike Bob Jim Joe Nick Matt Andy Tim Greg Abdul Samir""".split())


@dataclass(frozen=True)
class Trait:
    """One thing to know about a subject."""

    kind: str
    values: str
    tells: str
    asks: str
    clause: str  # what it is, with a pronoun: "how old $p is"
    answer: str

    def rule(self) -> phrases.Kind:
        """The same with the subject named instead of a pronoun."""
        asks, clause, answer = (_named(text) for text in (self.asks, self.clause, self.answer))
        return phrases.Kind(self.values, (), (asks,), (clause,), clause, answer)


def _named(text: str) -> str:
    text = text.replace("$h", "$k's").replace(" there", " in $k").replace(" that", " $k")
    return re.sub(r"\$[po]\b", "$k", text)


def _traits(*rows: tuple[str, str, str, str, str, str]) -> dict[str, Trait]:
    return {row[0]: Trait(*row) for row in rows}


_AGE = ("their age", "age", "{$p is|$p's|$p just turned} $v{ years old|}", "{how old is $p|what age is $p|what's $h age|do you know $h age|$h age}", "how old $p is", "$p is $v years old.")
PERSON = _traits(
    ("their home", "city", "$p {lives|has a flat|has a house|is living|lives with friends} in $v{| now| these days}", "{where {does $p live|is $p living|is $h home}|{what|which} {city|town} does $p live in|in {what|which} town does $p live|where's $h home}", "where $p lives", "$p lives in $v."),
    ("their job", "job", "$p {works as|is|is working as|earns a living as} $a $v", "{what {does $p do{| for a living| for work}|is $h job|does $p work as}|what's $h job|what job does $p have}", "$h job", "$p works as $a $v."),
    ("their workplace", "workplace", "$p works {in|at} $a $v{| in town| at night}", "{where does $p work|where is $p working|in what place does $p work|what kind of place does $p work in|where's $h job}", "where $p works", "$p works in $a $v."),
    _AGE,
    ("their food", "food", "$p {likes|loves|really likes} $v{| a lot}", "{what {does $p like{| to eat}|food does $p like|does $p love}}", "what $p likes", "$p likes $v."),
    ("their hobby", "hobby", "{$h hobby is $v|$p {spends {the weekend|all day} on|enjoys|has a new hobby:} $v|for fun $p does $v}", "{what's $h hobby|what is $h hobby|what does $p {do for fun|enjoy|do in $h free time}|which hobby does $p have}", "$h hobby", "$h hobby is $v."),
    ("their colour", "colour", "{$h favourite colour is $v|$p {always wears|only wears|loves the colour} $v}", "{{what's|what is} $h favourite colour|which colour does $p {like|love|like best}}", "$h favourite colour", "$h favourite colour is $v."),
    ("their instrument", "instrument", "$p {plays|is learning|practises|wants to learn} the $v", "{{what|which} instrument {does $p play|is it $p plays}|what does $p play|what's $h instrument}", "what $p plays", "$p plays the $v."),
    ("their language", "language", "$p {speaks|is learning|talks to me in|knows} $v", "{{what|which} language does $p speak|what does $p speak|what's $h language}", "$h language", "$p speaks $v."),
    ("their car", "car", "$p {drives|has|just bought} $a $v", "{what {car |}does $p drive|which car does $p have|what's $h car}", "what $p drives", "$p drives $a $v."),
    ("their phone", "code", "$h number is $v", "{what's $h number|what is $h {phone |}number|how can I {reach|call|phone} $o|what number does $p have|$h number}", "$h number", "$h number is $v."),
    ("their birthday", "date", "{$h birthday is on|$p was born on|$p has a birthday on} $v", "{when is $h birthday|when's $h birthday|when was $p born|what day is $h birthday}", "$h birthday", "$h birthday is on $v."),
    ("their drink", "drink", "$p {drinks a lot of|only drinks|always orders|loves to drink} $v", "{what does $p {drink|like to drink|always order|love to drink}}", "what $p drinks", "$p drinks $v."),
    ("their gift", "gift", "{I {bought|have|got} $a $v for $o|$p gets $a $v from me|my gift for $o is $a $v}", "{what {did I buy|do I have|is my gift|is the gift} for $o|what does $p get from me|what am I giving $o}", "the gift for $o", "The gift for $o is $a $v."),
    ("their character", "character", "$p is {very |so |really |rather |quite |}$v", "{what is $p like|how is $p|how would you describe $o|what did I say about $o}", "what $p is like", "$p is $v."),
)
PET = _traits(
    _AGE,
    ("pet colour", "colour", "{$p is $v|$p's all $v|$h fur is $v|$p is completely $v}", "{what colour is $p|which colour is $p|what's $h colour}", "what colour $p is", "$p is $v."),
    ("their food", "food", "$p {likes|loves|eats|only eats} $v", "{what {does $p {eat|like|love}|do I feed $o|food does $p like}}", "what $p likes", "$p likes $v."),
    ("pet bed", "spot", "$p {sleeps|always sleeps|likes to sleep|hides|lies} $v", "{where does $p {sleep|like to sleep|always sleep|hide|lie}|where is $p|where is $h bed}", "where $p sleeps", "$p sleeps $v."),
    ("pet toy", "gift", "{$h toy is|$p plays with|$p loves} $a $v", "{what does $p play with|what's $h toy|what is $h toy}", "$h toy", "$p plays with $a $v."),
    ("pet origin", "city", "$p {comes from|is from|was born in} $v", "{where {does $p come|is $p} from|where was $p born|where did I get $o}", "where $p comes from", "$p comes from $v."),
    ("their mood", "mood", "$p is {very |so |really |rather |quite |}$v", "{what is $p like|how is $p|how would you describe $o}", "what $p is like", "$p is $v."),
)
THING = _traits(
    ("coloured", "colour", "{it's|it is|the colour is|it's painted|I have it in} $v", "{what colour is $p|which colour is $p|what's $h colour|what colour does $p have|$h colour}", "what colour $p is", "$p is $v."),
    ("price", "price", "{it cost {me |}|I paid |the price was |it was |I got it for }$v", "{how much {was $p|did $p cost|did I pay for $p}|what did $p cost|what was the price|what did I pay}", "how much $p cost", "$p cost $v."),
    ("spot", "spot", "{it's|it is|I keep it|it stands|I left it|I put it} $v{| now| right now}", "{where is $p|where's $p|where did I {put|leave} $p|where do I keep $p|where can I find $p}", "where $p is", "$p is $v."),
    ("thing age", "duration", "{it's $v old|it is $v old|I've had it for $v|I bought it $v ago}", "{how old is $p|how long have I had $p|what's $h age|how old would $p be}", "how old $p is", "$p is $v old."),
    ("thing shop", "city", "{I bought it in|it's from|I got it in|it was made in|it comes from} $v", "{where {is $p from|did I {buy|get} $p|does $p come from|was $p made}|what city is $p from}", "where $p is from", "$p is from $v."),
    ("thing giver", "name", "{{I got it from|it was a gift from|it used to belong to|it's a present from} $v|$v gave it to me}", "{who gave $p to me|who did I get $p from|who is $p from|from whom did I get $p}", "who I got $p from", "You got $p from $v."),
    ("thing maker", "title", "{it's called|the brand is|its name is|I call it} $v", "{what is $p called|what's {$p called|$h name}|what do I call $p}", "what $p is called", "$p is called $v."),
    ("thing quality", "quality", "{it is|it's} {very |so |really |rather |quite |a bit |}$v", "{what is $p like|how is $p|how would you describe $p}", "what $p is like", "$p is $v."),
)
EVENT = _traits(
    ("event", "event_time", "{it's|it is|it will be|it takes place|they put it} $v", "{when is $p|when's $p|when does $p start|when will $p be|what time is $p planned|when does $p take place|when exactly is that|when is that}", "when $p is", "$p is $v."),
    ("event place", "city", "{it's|it is|it will be|they hold it|it takes place} in $v", "{where is $p|where does $p take place|what city is $p in|where's that|where will $p be|where is that}", "where $p is", "$p is in $v."),
    ("event guest", "name", "{{it's with|I'm going with|I'm doing it with} $v|$v comes along}", "{who is $p with|who am I going to $p with|who comes along to $p|with whom is $p|who is going to $p with me}", "who $p is with", "$p is with $v."),
    ("event room", "number", "{it's in|we meet in|it will be in} room $v", "{{which|what} room is $p in|in {which|what} room is $p|what's the room|what room is that}", "which room $p is in", "$p is in room $v."),
    ("event length", "duration", "{it lasts|it takes|it goes on for|it will last} $v", "{how long does $p {last|take}|how long is $p|how long will $p be|how long is that}", "how long $p lasts", "$p lasts $v."),
)
PLACE = _traits(
    ("stay length", "duration", "{I {stayed|was} there {for |}$v|I spent $v there}", "{how long {was I|did I stay} there|how much time did I spend there|how long did I spend there}", "how long I stayed there", "You were there for $v."),
    ("stay friend", "name", "{I {met|saw|visited} $v there|$v showed me around there}", "{who{m|} did I {meet|see|visit} there|who was it I met there|who showed me around there}", "who I met there", "You met $v there."),
    ("stay food", "food", "{I {ate|had|tried} {great |the best |}$v there|the $v there was great}", "{what did I {eat|have|try} there|what food did I try there|what was it I ate there}", "what I ate there", "You ate $v there."),
    ("stay gift", "gift", "I {bought|found|got} $a $v there", "{what did I {buy|find|get} there|what was it I bought there}", "what I bought there", "You bought $a $v there."),
    ("stay street", "street", "{I {stayed|slept|lived} in $v there|my hotel there was in $v}", "{{what|which} street did I {stay|sleep|live} in there|where did I {stay|sleep} there|where was my hotel there}", "where I stayed there", "You stayed in $v there."),
)
_INTRO = {
    "named": "{I have {a|one} $r {called|named}|my $r is called|this is about my $r|my $r's name is|I want to tell you about my $r|meet my $r|do you know my $r|you should meet my $r|I live with my $r|I just talked to my $r|I was at dinner with my $r} $v",
    "bare": "{I have {a|one} $r|I was with my $r today|my $r is coming to visit|I should tell you about my $r|I miss my $r|I just saw my $r|I have to call my $r|my $r is here|I had lunch with my $r}",
    "woman": "{I {met|know|like|just met|work with} a woman called|I have a new friend, she's called|there's a girl in my class called} $v",
    "man": "{I {met|know|like|just met|work with} a man called|I have a new friend, he's called|there's a boy in my class called} $v",
    "pet": "{{I|we} have a {new |}$r {called|named}|{my|our} $r is called|{I|we} got a $r called|my $r's name is|I should tell you about my $r|I'm here with my $r} $v",
    "thing": "{I {have|bought|got} a {new |nice |}$r|my $r is here|let me tell you about my $r|I really like my $r|I like my {new |old |}$r|we have a {new |}$r{ at home|}}",
    "event": "{I have {a|my} $r{ soon| coming up|}|there's a $r coming up|I'm nervous about my $r|I'm looking forward to my $r|let me tell you about my $r|don't forget my $r}",
    "place": "{I {was in|went to|visited|travelled to|have been to|came back from|had a holiday in} $v{| last summer| last year| last week| in the holidays}|last {summer|year|month|week} I {was in|went to|visited} $v}",
}
_TABLES = {"person": PERSON, "pet": PET, "thing": THING, "event": EVENT, "place": PLACE}


@dataclass
class Subject:
    """Who or what is spoken of: the key of its facts, its pronoun, and the traits that were told."""

    kind: str
    noun: str  # "sister", "bike"; "" for a place or somebody without a relation
    key: str  # as the facts have it: "Mia", "my sister", "bike"
    pronoun: str
    intro: str
    facts: list[Fact]  # the first may be its name
    told: list[str] = field(default_factory=list)

    @property
    def traits(self) -> dict[str, Trait]:
        return _TABLES[self.kind]

    @property
    def named(self) -> bool:
        return bool(self.facts) and self.facts[0].kind in ("relation", "pet")

    def words(self, text: str, **slots: str) -> str:
        """The template with the subject's pronouns in it."""
        p, o, h = PRONOUNS[self.pronoun]
        return grammar.fill(text, p=p, o=o, h=h, **slots)

    def slot(self, trait: str) -> str:
        return f"{trait}/{self.fact_key(trait)}"

    def fact_key(self, trait: str) -> str:
        return f"my {self.noun}" if self.kind in ("thing", "event") and trait not in phrases.KINDS else self.key

    def sentence(self, trait: str, fact: Fact, shown: str) -> str:
        """The answer to a question with a pronoun."""
        text = self.words(self.traits[trait].answer, v=shown, a=grammar.article(fact.value))
        return text[:1].upper() + text[1:]

    def phrase(self, trait: str) -> str:
        """What a trait is, as the assistant says it: "how old she is"."""
        return " ".join("you" if w == "I" else w for w in self.words(self.traits[trait].clause).split(" "))

    def tell(self, rng: Random, fact: Fact, held: bool) -> str:
        text = phrases.choose(rng, (self.traits[fact.kind].tells,), held)
        return self.words(text, v=fact.value, a=grammar.article(fact.value))

    def ask(self, rng: Random, trait: str, held: bool) -> str:
        text = phrases.choose(rng, (self.traits[trait].asks,), held)
        return self.words(text)


def make(rng: Random, held: bool, taken: set[str], names: set[str]) -> Subject | None:
    """A subject with one to four facts; `taken` are keys in use, `names` what is already somebody's name. None where chance hit one of them."""
    kind = rng.choice(("person", "person", "person", "pet", "thing", "thing", "event", "place"))
    pronoun = rng.choice(("she", "he"))
    noun = rng.choice({"person": (HER_RELATIONS if pronoun == "she" else HIS_RELATIONS) + RELATIONS, "pet": SPECIES, "thing": THINGS, "event": EVENTS, "place": [""]}[kind])
    name = values.make(rng, {"pet": "pet_name", "place": "city"}.get(kind, "name"), held)
    if not {noun, f"my {noun}", name}.isdisjoint(taken) or name in names or kind == "person" and name.split()[0] in (MEN if pronoun == "she" else WOMEN):
        return None
    intro, key, facts = kind, name, []
    if kind == "person":
        intro = rng.choice(("named", "named", "bare", "woman" if pronoun == "she" else "man"))
        if intro == "named":
            facts = [Fact("relation", noun, name)]
        elif intro == "bare":
            key = f"my {noun}"
        else:
            noun = ""
    elif kind == "pet":
        facts = [Fact("pet", noun, name)]
    elif kind == "place":
        pronoun = "there"
    else:
        key, pronoun = noun, "it"
    text = re.sub(r"\b([aA]) (?=\$r)", lambda m: grammar.article(noun) + " ", phrases.choose(rng, (_INTRO[intro],), held))
    subject = Subject(kind, noun, key, pronoun, grammar.fill(text, r=noun, v=name), facts)
    for trait in rng.sample(list(subject.traits.values()), rng.choice((1, 1, 2, 2, 3))):
        value = values.make(rng, trait.values, held)
        if value == key or value in names or value == name:
            continue
        subject.facts.append(Fact(trait.kind, subject.fact_key(trait.kind), value, None if trait.kind in phrases.KINDS else trait.rule()))
        subject.told.append(trait.kind)
    return subject if subject.told else None
