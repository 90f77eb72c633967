"""The things a visitor may tell: names, codes, words, places and so on, in every shape, split into seen and held out.

`held_out(value)` is a fixed hash, so training and tests never share an open value. Closed sets (days, hours, ages) are not split.
"""

import zlib
from collections.abc import Callable
from random import Random

HELD_OUT_ONE_IN = 6

NAMES = """Anna Ben Clara David Emma Felix Greta Henry Iris Jack Kate Liam Mia Noah Olga Paul Quinn Rosa Sam Tina Uma Victor Wendy Xander
Yara Zoe Bram Lotte Pieter Sanne Joris Femke Ahmed Fatima Omar Layla Yusuf Aisha Hiro Yuki Kenji Sakura Mei Wei Ling Chen Raj Priya Arjun Anika
Carlos Maria Diego Lucia Pablo Elena Marco Giulia Luca Chiara Pierre Claire Louis Amelie Hans Ingrid Lars Astrid Sven Freya Bjorn Olaf Ivan Natasha
Boris Katya Dmitri Milan Jana Tomas Eva Zsofia Laszlo Nikos Eleni Kofi Ama Kwame Zuri Thandi Sipho Keanu Leilani Aroha Tane Connor Siobhan Rhys Megan
Callum Isla Fergus Moira Oscar Ruby Alfie Daisy Archie Poppy Leo Ivy Max Nora Hugo Ella Theo Alice Simon Laura Peter Julia Martin Sarah Daniel Ruth
Adam Leah Jonas Miriam Elias Hannah Jacob Rachel Aaron Esther Tom Lucy Harry Sophie George Grace Frank Helen Walter Edith Arthur Mabel Ralph Olive
Robert Mary James Linda Michael Susan William Karen Richard Nancy Joseph Betty Thomas Sandra Mark Ashley Steven Kim Kevin Donna Brian Carol Jason Amy
Jeff Pam Gary Lisa Eric Angela Dave Mike Bob Jim Joe Nick Matt Chris Alex Andy Tim Greg Beth Jen Jess Meg Sue Ann Jo Tess Val Lou Abdul Samir Nadia""".split()
LAST = "Smith Jones Baker Miller Garcia Rossi Novak Jansen Berg Holm Tanaka Singh Khan Silva Costa Meyer Weber Dubois Walker Young Hill Stone Wood Fox".split()
PETS = """Rex Bella Luna Milo Coco Biscuit Pepper Ginger Shadow Fluffy Spot Rover Tiger Smokey Patch Bandit Muffin Waffles Pickle Nibbles Mittens
Snowball Cookie Peanut Toffee Hazel Willow Ziggy Bruno Rocky Buddy Duke Lady Misty Oreo Pebbles Socks Whiskers Domino Mango Truffle Pixel Noodle""".split()
CITIES = """Paris London Berlin Madrid Rome Vienna Prague Oslo Lisbon Dublin Athens Cairo Lagos Nairobi Tokyo Osaka Delhi Mumbai Sydney Perth Toronto
Boston Chicago Denver Dallas Seattle Austin Miami Lima Quito Bogota Santiago Havana Utrecht Leiden Ghent Bruges Antwerp Cologne Hamburg Munich Leipzig
Zurich Geneva Basel Milan Turin Naples Florence Venice Porto Seville Valencia Bilbao Lyon Nantes Lille Leeds York Bristol Cardiff Glasgow Galway Cork
Bergen Turku Riga Vilnius Warsaw Krakow Sofia Zagreb Split Tunis Rabat Accra Dakar Hanoi Manila Jakarta Seoul Busan Kyoto Auckland Hobart Calgary
Amsterdam Brussels Budapest Stockholm Helsinki Copenhagen Istanbul Moscow Kiev Bangkok Singapore Portland Phoenix Houston Atlanta Montreal Vancouver""".split()
COUNTRIES = """France Spain Italy Germany Poland Norway Sweden Finland Denmark Iceland Ireland Scotland Wales England Portugal Greece Turkey Egypt
Morocco Kenya Ghana Nigeria India China Japan Korea Vietnam Thailand Brazil Chile Peru Mexico Canada Cuba Australia Austria Belgium Hungary""".split()
COLOURS = "red blue green yellow orange purple pink brown black white grey silver gold turquoise violet beige crimson navy teal olive maroon lilac cream".split()
NOUNS = """kettle marble lantern anchor ribbon saddle pebble walnut thunder meadow falcon candle velvet copper button garden whistle hammer
pumpkin dragon feather harbour island jungle ladder magnet napkin ocean parrot quartz rocket sunset tunnel umbrella violin window yogurt zebra acorn bridge
castle desert engine forest guitar helmet igloo jacket kitten lemon mirror needle orchid pepper rabbit shadow teapot valley wizard arrow basket cactus
dolphin ember fountain glacier hazel ivory jasmine kiwi lagoon mango nectar onyx puzzle river spider tiger cobalt maple raven comet breeze biscuit cherry
monkey planet silver winter summer coffee cheese butter potato tomato purple banana apple orange pencil bottle carpet pillow blanket cushion hedgehog""".split()
ADJECTIVES = "blue red happy quiet wild tiny big golden rusty brave lazy soft sweet broken frozen secret lucky hungry purple old new dark bright".split()
JOBS = """baker teacher nurse doctor plumber painter farmer pilot lawyer writer singer dancer driver barber butcher carpenter cook chef dentist designer
electrician engineer gardener journalist librarian mechanic miner musician officer optician photographer pharmacist potter programmer scientist sailor
soldier surgeon tailor translator vet waiter welder architect actor accountant analyst artist astronomer banker biologist builder cleaner clerk coach
editor florist geologist guide historian janitor judge locksmith magician postman professor ranger receptionist roofer tutor student lifeguard firefighter""".split()
FOODS = """pizza pasta soup curry rice sushi bread cheese noodles pancakes waffles salad tacos burgers lasagna risotto dumplings ramen stew chili
omelette toast porridge chocolate cake pie ice-cream honey yogurt popcorn chips salmon tuna chicken tofu beans lentils mushrooms spinach couscous paella
falafel hummus goulash kebab ravioli pierogi fondue meatballs potatoes""".split()
FRUITS = "apples pears plums cherries grapes mangos bananas kiwis peaches figs melons lemons oranges berries apricots papayas dates coconuts".split()
DRINKS = "tea coffee milk water juice lemonade cocoa cider beer wine cola espresso smoothies rooibos kombucha latte ginger-beer buttermilk".split()
ANIMALS = """cats dogs horses rabbits otters foxes wolves bears owls eagles dolphins whales tigers lions elephants giraffes pandas koalas penguins seals
turtles frogs snakes lizards spiders bees ants butterflies hedgehogs squirrels badgers goats sheep cows ducks parrots""".split()
SPORTS = "football tennis hockey golf rugby cricket basketball volleyball swimming rowing running cycling skiing judo boxing fencing climbing surfing badminton squash".split()
INSTRUMENTS = "piano violin guitar cello flute drums trumpet harp saxophone clarinet banjo accordion ukulele oboe trombone organ viola tuba".split()
HOBBIES = """painting knitting gardening cooking baking fishing hiking reading chess pottery photography sailing birdwatching sewing juggling dancing
skating camping drawing writing singing woodworking origami astronomy yoga archery calligraphy geocaching karaoke""".split()
LANGUAGES = "French Spanish Italian German Polish Dutch Danish Greek Turkish Arabic Swahili Hindi Chinese Japanese Korean Thai Welsh Latin Russian Hebrew".split()
SUBJECTS = "history maths physics chemistry biology music art law medicine geography economics philosophy botany geology astronomy grammar poetry".split()
CARS = "Volvo Toyota Honda Ford Fiat Skoda Seat Mazda Tesla Audi Opel Renault Peugeot Kia Nissan Subaru Jeep Mini Lada Saab".split()
SEASONS = "spring summer autumn winter".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
GIFTS = """book scarf watch kite teapot lamp hat puzzle camera bike necklace jumper plant mug board-game guitar drone blanket wallet telescope
notebook candle vase umbrella backpack toaster""".split()
ALLERGIES = "nuts peanuts milk eggs cats dogs pollen wheat shellfish strawberries dust bees soy fish gluten penicillin latex".split()
CONTAINERS = """drawer cupboard wardrobe fridge kitchen garage cellar attic bathroom bedroom hallway car basket box backpack suitcase desk safe garden shed
laundry oven freezer cabinet closet chest bucket office""".split()
SURFACES = "table desk shelf sofa bed chair piano fridge windowsill counter bookcase cupboard bench carpet stove radiator doormat nightstand".split()
WORKPLACES = """bakery school bank library hotel hospital museum factory cafe shop zoo farm bookshop restaurant theatre garage hostel bar pharmacy prison
laboratory studio circus cinema brewery gym court castle nursery clinic kitchen warehouse station harbour greenhouse mill""".split()
QUALITIES = [("big", "small"), ("old", "new"), ("fast", "slow"), ("heavy", "light"), ("loud", "quiet"), ("clean", "dirty"), ("cheap", "expensive")]
CHARACTERS = [("tall", "short"), ("shy", "funny"), ("strict", "kind"), ("married", "single"), ("rich", "poor"), ("lazy", "busy")]
MOODS = [("big", "small"), ("lazy", "wild"), ("shy", "brave"), ("fat", "thin"), ("loud", "quiet"), ("young", "old")]
ONSETS = "b br c ch d dr f fl g gr h j k kr l m n p pr qu r s sh st t tr v w y z bl th".split()
VOWELS = "a e i o u a e i o ai ea ee ou oo ia".split()
CODAS = " |n|l|r|s|m|k|d|t|x|nd|rk|ll|th|ss".replace(" ", "").split("|")


def held_out(value: str) -> bool:
    """True for the fixed sixth of all values that training never tells."""
    return zlib.crc32(value.lower().encode()) % HELD_OUT_ONE_IN == 0


def syllables(rng: Random, low: int, high: int) -> str:
    """A made-up word of low to high syllables."""
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.randint(low, high))) + rng.choice(CODAS)


def _name(rng: Random) -> str:
    first = rng.choice(NAMES) if rng.random() < 0.5 else syllables(rng, 1, 3).capitalize()
    if rng.random() < 0.08:
        return f"{first} {rng.choice(LAST) if rng.random() < 0.6 else syllables(rng, 1, 2).capitalize()}"
    return first


def _pet_name(rng: Random) -> str:
    return rng.choice(PETS) if rng.random() < 0.4 else _name(rng).split()[0]


def _digits(rng: Random, n: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(n))


def _code(rng: Random) -> str:
    d, letter = lambda n: _digits(rng, n), lambda: rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ")
    shape = rng.randrange(13)
    if shape == 12:
        return rng.choice((letter() + letter() + letter() + " " + d(3), letter() + letter() + d(1) + letter() + letter() + letter(), "555-" + d(4), letter() + letter() + d(1) + " " + d(1) + letter() + letter(), d(rng.choice((7, 8)))))
    if shape < 3:
        return "-".join(d(rng.choice((3, 3, 3, 4))))
    if shape < 5:
        return d(rng.choice((3, 3, 4, 5, 6)))
    if shape < 7:
        return d(4)
    if shape == 7:
        return " ".join(d(rng.choice((3, 3, 4))))
    if shape == 8:
        return letter() + d(1) + letter() if rng.random() < 0.5 else letter() + d(rng.choice((2, 3)))
    if shape == 9:
        return rng.choice((letter() + letter() + "-" + d(rng.choice((2, 3))), letter() + "-" + d(2), letter() + letter() + d(rng.choice((2, 4)))))
    if shape == 10:
        return rng.choice((d(2) + "-" + d(2), d(2) + " " + d(2), d(2) + "-" + d(2) + "-" + d(2), d(3) + "-" + d(3)))
    return rng.choice(NOUNS) + d(rng.choice((1, 2, 3)))


def _number(rng: Random) -> str:
    return _digits(rng, 1) if rng.random() < 0.15 else str(rng.randint(10, 999)) if rng.random() < 0.8 else _digits(rng, 4)


def _count(rng: Random) -> str:
    return str(rng.randint(2, 60)) if rng.random() < 0.5 else rng.choice("two three four five six seven eight nine ten eleven twelve fifteen twenty".split())


def _word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NOUNS)
    if kind < 0.7:
        return syllables(rng, 2, 3)
    return f"{rng.choice(ADJECTIVES if kind < 0.85 else NOUNS)} {rng.choice(NOUNS)}"


def _title(rng: Random) -> str:
    a, n, other = (rng.choice(words).capitalize() for words in (ADJECTIVES, NOUNS, NOUNS))
    stranger = syllables(rng, 2, 3).capitalize()
    return rng.choice((f"The {a} {n}", f"{a} {n}", f"{n} Club", f"The {n}", stranger, f"{n} of {rng.choice((stranger, other))}", f"{n} and {other}", f"{n} {rng.randint(2, 9)}", f"The {n} of {stranger}", f"{stranger} {n}"))


def _city(rng: Random) -> str:
    ends = "ton ville burg ford ham wick dorp stad field mouth by".split()
    return rng.choice(CITIES) if rng.random() < 0.55 else (syllables(rng, 1, 2) + rng.choice(ends)).capitalize()


def _street(rng: Random) -> str:
    kind = rng.choice(("Street", "Road", "Lane", "Avenue", "Close", "Square", "Drive"))
    number = f"{rng.randint(1, 199)}{rng.choice(('', '', '', 'a', 'B'))} " if rng.random() < 0.15 else ""
    return f"{number}{rng.choice(NOUNS + LAST).capitalize() if rng.random() < 0.6 else syllables(rng, 1, 2).capitalize()} {kind}"


def _spot(rng: Random) -> str:
    more = f"{rng.choice((*ADJECTIVES, *COLOURS, *NOUNS))} " if rng.random() < 0.2 else ""
    if rng.random() < 0.5:
        return f"in the {more}{rng.choice(CONTAINERS)}"
    return f"{rng.choice(('on', 'under', 'behind', 'next to', 'on top of', 'near'))} the {more}{rng.choice(SURFACES)}"


def _clock(rng: Random) -> str:
    hour = str(rng.randint(1, 12))
    words = "two three four five six seven eight nine ten eleven".split()
    name = rng.choice((hour, rng.choice(words)))
    forms = (hour, f"{hour}:{rng.choice(('00', '15', '30', '45'))}", f"{hour} {rng.choice(('am', 'pm'))}", f"{name} o'clock", f"half past {name}",
             f"quarter {rng.choice(('to', 'past'))} {name}", f"{hour}{rng.choice(('am', 'pm'))}", rng.choice((*words, "noon", "midnight")),
             f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}", f"{hour}.{rng.choice(('15', '30', '45'))}")
    return rng.choice(forms)


def _date(rng: Random) -> str:
    month, day = rng.choice(MONTHS), rng.randint(1, 31 if rng.random() < 0.5 else 28)
    month = month.lower() if rng.random() < 0.2 else month
    ordinal = f"{day}{'th' if 10 < day < 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"
    return rng.choice((f"{month} {day}", f"{day} {month}", f"the {ordinal} of {month}", f"{month} {ordinal}", f"{ordinal} {month}", f"{month} the {ordinal}", f"the {ordinal}"))


def _event_time(rng: Random) -> str:
    day = f"on {rng.choice(DAYS)}"
    return rng.choice((day, day, f"at {_clock(rng)}", f"{day} at {_clock(rng)}", "tomorrow", f"on {_date(rng)}", f"in {rng.choice(MONTHS)}"))


def _duration(rng: Random) -> str:
    many = rng.choice("two three four five six seven ten twelve fifteen twenty thirty ninety 2 3 6 12 14 20 25 40 45 90".split())
    return f"{many} {rng.choice(('minutes', 'hours', 'days', 'weeks', 'months', 'years'))}"


def _price(rng: Random) -> str:
    amount = str(rng.randint(2, 999)) if rng.random() < 0.7 else f"{rng.randint(1, 99)}.{_digits(rng, 2)}"
    return rng.choice((f"{amount} {rng.choice(('euros', 'dollars', 'pounds', 'bucks', 'quid'))}",) * 3 + (f"${amount}", f"{rng.randint(1, 9)}{_digits(rng, 3)} {rng.choice(('euros', 'dollars', 'pounds'))}"))


def _pool(words: list[str]) -> Callable[[Random], str]:
    return lambda rng: rng.choice(words)


LISTED: dict[str, list[str]] = dict(
    country=COUNTRIES, colour=COLOURS, job=JOBS, food=FOODS, fruit=FRUITS, drink=DRINKS, animal=ANIMALS, sport=SPORTS, instrument=INSTRUMENTS,
    hobby=HOBBIES, language=LANGUAGES, subject=SUBJECTS, car=CARS, season=SEASONS, day=DAYS, month=MONTHS, gift=GIFTS, allergy=ALLERGIES,
    workplace=WORKPLACES,
)
STRANGERS = 0.35  # share of values of a listed kind that are not on its list, in training

MAKERS: dict[str, Callable[[Random], str]] = {
    "name": _name, "pet_name": _pet_name, "code": _code, "number": _number, "count": _count, "word": _word, "title": _title, "city": _city, "street": _street,
    "spot": _spot, "clock": _clock, "date": _date, "event_time": _event_time, "price": _price, "duration": _duration, "age": lambda rng: str(rng.randint(4, 99)),
    **{k: _pool([word for pair in pairs for word in pair]) for k, pairs in (("quality", QUALITIES), ("character", CHARACTERS), ("mood", MOODS))},
    **{k: _pool(v) for k, v in LISTED.items()},
}
CLOSED = frozenset("clock count date event_time age season day month duration quality character mood".split())


def _stranger(rng: Random, kind: str) -> str:
    """A word that is none of its kind. With the listed ones alone a model learns the list, and half of its errors are unlisted colours and the like."""
    word = syllables(rng, 1, 3) if rng.random() < 0.6 else rng.choice(NOUNS)
    return word.capitalize() if LISTED[kind][0][0].isupper() else word


def make(rng: Random, kind: str, held: bool | None = False) -> str:
    """One value of a kind; held=False never returns a held-out value, True only held-out ones, None any."""
    while True:
        value = _stranger(rng, kind) if held is False and kind in LISTED and kind not in CLOSED and rng.random() < STRANGERS else MAKERS[kind](rng)
        if kind in CLOSED or held is None or held_out(value) == held:
            return value
