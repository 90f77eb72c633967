"""Open facts: any sentence about who did what, where and when, with the question that English grammar makes of it.

No list of kinds here: verbs, subjects, objects, places and times combine freely, so only reading the sentence helps. The answer is
always "You said" and the words themselves.
"""

from random import Random

from . import values
from .grammar import article, expand
from .phrases import ASK_CLAUSE, Kind

# base, third person, past, -ing form : things it is done to
_DO = """
paint paints painted painting: the fence|the kitchen|my portrait|the boat|our door|the old shed|the ceiling
repair repairs repaired repairing: my bike|the sink|the roof|our car|the radio|the lift|my shoes|the fence
feed feeds fed feeding: the cat|the ducks|our dog|the fish|the chickens|the baby|the birds
clean cleans cleaned cleaning: the house|the windows|the stairs|my room|the pool|the office|the stove
drive drives drove driving: the bus|the truck|me to work|the kids to school|the van|us home|the tractor
teach teaches taught teaching: me to swim|the class|my son|us the rules|dancing|the children|me Spanish
bake bakes baked baking: the bread|the cake|the cookies|a pie for us|the pizza
own owns owned owning: the shop|the hotel|the farm|that red car|the bakery|half the street
win wins won winning: the race|the lottery|the quiz|the match|the prize|the election|the bet
lose loses lost losing: the game|the map|my umbrella|a tooth|the ball|the bet
find finds found finding: my purse|the ring|the treasure|the cat|the way|the lost dog
write writes wrote writing: the letter|that song|the report|the play|the poem|the invitation|the book
sing sings sang singing: in the choir|the first song|at the wedding|on stage|under the shower
play plays played playing: the drums|the king in the play|chess with me|the organ|in goal|the flute at night
help helps helped helping: me with the move|in the shop|my mother|with the homework|me every day|in the kitchen
call calls called calling: me last night|the police|the doctor|every morning|about the car|the landlord
visit visits visited visiting: us on Sunday|my uncle|the museum with me|me in hospital|the school
bring brings brought bringing: the wine|the post|the newspaper|flowers|the salad|the children|the chairs
cut cuts cut cutting: the grass|the hedge|the cake|the wood|my nails
carry carries carried carrying: the box|my bags|the piano|the ladder|the flag
break breaks broke breaking: the vase|my glasses|the window|his leg|the record|the mug
steal steals stole stealing: my bike|the cookies|the painting|the show|an apple
cook cooks cooked cooking: dinner tonight|for the party|the soup|on Mondays|the best stew
lead leads led leading: the team|the meeting|the choir|the walk|the project|the band
build builds built building: the bridge|the wall|our house|a tree house|the shed|the table|a sandcastle
sell sells sold selling: the tickets|fresh fish|ice cream|old books|the flat|shoes at the market
wear wears wore wearing: the red hat|a yellow coat|odd socks|the crown|a wig
sleep sleeps slept sleeping: on the sofa|in the attic|all day|in the tent|till noon
run runs ran running: the cafe|the marathon|the farm|the club|ten miles every day
keep keeps kept keeping: bees|the keys|the score|the secret|snakes|the money
love loves loved loving: old trains|dancing|the sea|spicy food|the mountains
know knows knew knowing: the answer|the way|everyone|the owner|all the rules
send sends sent sending: the card|the parcel|me a photo|the invitations|roses
open opens opened opening: the shop|the door|the new school|the letter|the party
speak speaks spoke speaking: six languages|at the meeting|for the group|with the mayor
lend lends lent lending: me a tent|me some money|us the van|me her ladder
stay stays stayed staying: with us|in the guest room|for dinner|at home|till Friday
"""
# base, past : kinds of things as "a ..." or plain words
_GET = """buy bought|sell sold|lose lost|find found|break broke|borrow borrowed|paint painted|build built|order ordered|hide hid|carry carried|wear wore|collect collected|forget forgot|bring brought|steal stole|win won|fix fixed|need needed|want wanted|see saw
catch caught|draw drew|make made|drop dropped|clean cleaned|return returned|rent rented|pack packed|choose chose|hear heard|smell smelled|sketch sketched|repair repaired|buy bought|receive received|lend lent|wash washed|wrap wrapped|invent invented|burn burned|send sent|pick picked|study studied|show showed|mention mentioned|promise promised|taste tasted|eat ate|cook cooked|order ordered|try tried|share shared|dream of dreamed of|ask for asked for|look for looked for|pay for paid for|wait for waited for|talk about talked about|think about thought about|write about wrote about"""
_FEEL = """afraid of|scared of|proud of|tired of|fond of|waiting for|looking for|thinking about|dreaming of|saving for|good at|bad at|made of|interested in|worried about|working on|reading about|writing about|famous for|known for|short of|obsessed with|bored with|happy with|jealous of|used to|tied to|thankful for|full of|in need of|in charge of|responsible for|sorry about|excited about|surprised by|covered in"""
_AT = "leave left|park parked|meet met|sleep slept|eat ate|wait waited|work worked|study studied|dance danced|stop stopped|get married got married|learn to swim learned to swim|fall fell|have lunch had lunch|play played|stay stayed|hide hid|go went|travel travelled|win the prize won the prize|lose my hat lost my hat|buy the ring bought the ring|find the cat found the cat|see the fox saw the fox|bury the box buried the box|park the van parked the van|leave the bag left the bag|put the money put the money|hang the picture hung the picture|plant the tree planted the tree|keep the tools kept the tools|spend the night spent the night|spend the summer spent the summer|drop the ring dropped the ring|hide the gift hid the gift|pitch the tent pitched the tent|land landed|celebrate celebrated"
_STARTS = "leave leaves|start starts|begin begins|open opens|close closes|end ends|arrive arrives|finish finishes|come comes|stop stops|happen happens|return returns"
_TIMED = "my boat|the bus|the ferry|the shop|the film|my class|the game|the course|the museum|the pool|the concert|my shift|the show|the market|the school year|the sale|the tour|my holiday|the library|the next train|our plane|the parade|the bakery|the race|the festival|my night shift|the delivery|the plumber|my guest|the painter"
_ROLES = "captain|owner|winner|king|queen|mayor|head|author|leader|manager|director|boss|singer|drummer|guard|coach|founder|keeper|driver|painter|chef|hero|star|chairman|builder|judge|champion|secretary|hostess|loser|star player|face|voice"
_GROUPS = "ship|shop|race|village|town|school|club|book|band|team|choir|hotel|project|farm|museum|train|film|bakery|company|castle|contest|play|zoo|library|quiz|garden|festival|factory|party|group|street|class|family|show|pub|orchestra"
_FEATURES = {"colour": "the colour|the color", "number": "the number|the size|the year|the weight|the length|the page|the score", "title": "the name|the title|the brand", "code": "the code|the serial number|the key number|the licence plate|the reference", "word": "the symbol|the theme|the subject|the motto|the emblem|the shape", "city": "the home town|the origin|the destination|the location"}
_OWNED = "my boat|the new van|our tent|the old clock|my printer|the lamp|the rug|the horse|the painting|the statue|the parcel|my ticket|the machine|our caravan|the train|the book I read|my next trip|the poster|the big box|our flag|the second key|my locker room|the recipe|the kite|our garden party|the yellow folder|the tower|the invoice|my guitar case|the meeting"
_PLACES = "station|harbour|library|market|school|beach|park|museum|airport|old mill|zoo|stadium|hotel|bakery|church|bridge|river|farm|lake|square|lighthouse|town hall|swimming pool|hospital|cinema|forest|fountain|pharmacy|factory|campsite"
_WHO_IS = ("my best man", "my roommate", "my dance partner", "my rival", "our guest", "my driver", "the girl next door", "the man upstairs", "my tennis partner", "the new guy", "my godmother", "the woman at the desk", "my pen pal", "our babysitter", "the birthday boy", "my oldest friend", "our cleaner", "the tall one", "my first love", "the lady downstairs", "my chess partner", "our guide", "the bride", "my running mate", "our postman", "the night nurse", "my gardener", "the youngest of us")

SEEN_ANSWER = "You said $v."


def _lines(text: str) -> list[tuple[list[str], list[str]]]:
    return [(forms.split(), things.strip().split("|")) for forms, things in (line.split(":") for line in text.strip().split("\n"))]


_DOING = _lines(_DO)
_GETTING = [tuple(x.split(" ")) if " " in x and len(x.split(" ")) == 2 else (" ".join(x.split(" ")[:2]), " ".join(x.split(" ")[2:])) for x in _GET.replace("\n", "|").split("|")]
_BEING = [(" ".join(w[:len(w) // 2]), " ".join(w[len(w) // 2:])) for w in (x.split(" ") for x in _AT.split("|"))]


def _subject(rng: Random, held: bool) -> tuple[str, str, str, str]:
    """A subject with its "be" and "do": (words, is, does, was)."""
    roll = rng.random()
    if roll < 0.5:
        return "I", "am", "do", "was"
    if roll < 0.62:
        return "we", "are", "do", "were"
    if roll < 0.8:
        return values.make(rng, "name", held), "is", "does", "was"
    return expand(rng, "my {sister|brother|friend|neighbour|uncle|aunt|boss|wife|husband|son|daughter|teacher|cousin|father|mother|grandma}"), "is", "does", "was"


def _time(rng: Random) -> str:
    return expand(rng, "{||||yesterday|last week|this morning|last summer|today|on Monday|a year ago|in the holidays|two days ago|last night|once}")


def _object(rng: Random, held: bool) -> str:
    """"a red kettle", "some soup", "two lemons"."""
    roll = rng.random()
    if roll < 0.45:
        noun = values.make(rng, rng.choice(("word", "gift")), held)
        return f"{article(noun)} {noun}"
    if roll < 0.6:
        return f"the {values.make(rng, 'word', held)}"
    if roll < 0.8:
        return values.make(rng, rng.choice(("food", "fruit", "drink", "animal")), held)
    return f"{rng.choice(('two', 'three', 'some', 'many', 'five'))} {values.make(rng, rng.choice(('fruit', 'animal')), held)}"


def _the_thing(rng: Random) -> str:
    """"my old kettle", "the lantern of the castle"."""
    first = rng.choice(values.NOUNS) if rng.random() < 0.8 else values.syllables(rng, 1, 3)
    return expand(rng, f"{{the|my|our|the {rng.choice(values.ADJECTIVES)}|my {rng.choice(values.ADJECTIVES)}|every|that|all the|his}} {first}{{|||| of the {rng.choice(values.NOUNS)}| in the {rng.choice(values.CONTAINERS)}| at the {rng.choice(_PLACES.split('|'))}}}")


def _place(rng: Random, held: bool) -> str:
    roll = rng.random()
    if roll < 0.3:
        return f"in {values.make(rng, 'city', held)}"
    if roll < 0.55:
        return values.make(rng, "spot", held)
    if roll < 0.65:
        return f"{rng.choice(('in', 'on'))} {values.make(rng, 'street', held)}"
    spot = rng.choice(_PLACES.split("|")) if roll < 0.85 else f"{rng.choice(values.ADJECTIVES)} {values.make(rng, 'word', held).split()[-1]}"
    return f"{rng.choice(('at', 'near', 'behind', 'in front of', 'next to', 'in', 'on'))} the {spot}"


def _asks(rng: Random, direct: list[str], clause: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (*direct, rng.choice(ASK_CLAUSE).replace("$c", clause)), (clause,)


def who(rng: Random, held: bool) -> tuple[str, Kind]:
    """Somebody does something; who?"""
    (base, third, past, ing), things = rng.choice(_DOING)
    thing = rng.choice(things) if rng.random() < 0.6 else _the_thing(rng)
    if rng.random() < 0.1:
        base = values.syllables(rng, 1, 2) + rng.choice("kmpt")
        third, past, ing = base + "s", base + "ed", base + "ing"
    name = values.make(rng, "name", held)
    shown = expand(rng, "{$v|$v|$v|$v|my friend $v|$v from work|$v next door|my neighbour $v|a man called $v|a woman named $v|$v, my cousin,|a certain $v|old $v|my pal $v|$v from school|Mr. $v|Mrs. $v|Doctor $v|little $v}")
    if rng.random() < 0.5:
        tells = (f"{shown} {third} {thing}", f"the one who {third} {thing} is {shown}", f"it's {shown} who {third} {thing}", f"{shown} always {third} {thing}", f"we have {shown}, who {third} {thing}", f"{shown} is {ing} {thing}")
        asks, clause = [f"who {third} {thing}", f"who is it that {third} {thing}", f"who did I say {third} {thing}", f"which person {third} {thing}", f"who is {ing} {thing}", f"what's the name of the one who {third} {thing}"], f"who {third} {thing}"
    else:
        tells = (f"{shown} {past} {thing}", f"it was {shown} who {past} {thing}", f"the one who {past} {thing} was {shown}", f"I heard that {shown} {past} {thing}", f"{shown} will {base} {thing}", f"I saw {shown} {ing} {thing}")
        asks, clause = [f"who {past} {thing}", f"who was it that {past} {thing}", f"who did I say {past} {thing}", f"who will {base} {thing}", f"what's the name of the person who {past} {thing}", f"by whom was it, who {past} {thing}"], f"who {past} {thing}"
    return name, Kind("name", tells, *_asks(rng, asks, clause), "that", SEEN_ANSWER)


def what(rng: Random, held: bool) -> tuple[str, Kind]:
    """Somebody got or did something; what?"""
    base, past = rng.choice(_GETTING)
    who, _, _, _ = _subject(rng, held)
    thing = _object(rng, held)
    extra, when = "", _time(rng)
    if rng.random() < 0.25:
        extra = " " + rng.choice((f"for {values.make(rng, 'name', held)}", f"at the {rng.choice(_PLACES.split('|'))}", f"from {values.make(rng, 'name', held)}", f"with {values.make(rng, 'name', held)}"))
    if who != "I" or base not in ("need", "want") or rng.random() < 0.5:
        tells = (f"{who} {past} $v{extra} {when}", f"{when} {who} {past} $v{extra}", f"what {who} {past}{extra} was $v", f"it was $v that {who} {past}{extra}", f"{who} just {past} $v{extra}", f"in the end {who} {past} $v{extra}")
        asks = [f"what did {who} {base}{extra}", f"what did {who} {base}{extra} {when}", f"what was it that {who} {past}{extra}", f"which thing did {who} {base}{extra}", f"what did I say {who} {past}{extra}"]
        clause = f"what {who} {past}{extra}"
    else:
        tells = (f"I {base} $v{extra}", f"I really {base} $v{extra}", f"what I {base}{extra} is $v", f"there's one thing I {base}{extra}: $v")
        asks, clause = [f"what do I {base}{extra}", f"what is it that I {base}{extra}", f"what was it I {base}{extra}"], f"what I {base}{extra}"
    return thing, Kind("word", tells, *_asks(rng, asks, clause), "that", SEEN_ANSWER)


def feeling(rng: Random, held: bool) -> tuple[str, Kind]:
    """Somebody is afraid of something; of what?"""
    state = rng.choice(_FEEL.split("|"))
    who, be, _, _ = _subject(rng, held)
    thing = _object(rng, held)
    tells = (f"{who} {be} {state} $v", f"{who} {be} really {state} $v", f"{who} {be} always {state} $v", f"what {who} {be} {state} is $v", f"{who} {be} {state} $v these days", f"{who} {be} a bit {state} $v")
    asks = [f"what {be} {who} {state}", f"what is it {who} {be} {state}", f"what did I say {who} {be} {state}", f"what {be} {who} always {state}"]
    return thing, Kind("word", tells, *_asks(rng, asks, f"what {who} {be} {state}"), "that", SEEN_ANSWER)


def where(rng: Random, held: bool) -> tuple[str, Kind]:
    """Somebody did something somewhere; where?"""
    base, past = rng.choice(_BEING)
    who, _, _, _ = _subject(rng, held)
    place, when = _place(rng, held), _time(rng)
    tells = (f"{who} {past} $v {when}", f"{when} {who} {past} $v", f"{who} usually {past} $v", f"the place where {who} {past} is $v", f"it was $v that {who} {past}", f"$v, that's where {who} {past}", f"{who} {past} $v {when}")
    asks = [f"where did {who} {base}", f"where did {who} {base} {when}", f"where was it that {who} {past}", f"in what place did {who} {base}", f"where did I say {who} {past}", f"what's the place where {who} {past}"]
    return place, Kind("city", tells, *_asks(rng, asks, f"where {who} {past}"), "that", SEEN_ANSWER)


def when(rng: Random, held: bool) -> tuple[str, Kind]:
    """Something starts or ends; when?"""
    base, third = rng.choice(_STARTS.split("|")).split(" ")
    thing = rng.choice(_TIMED.split("|"))
    moment = values.make(rng, "event_time", held)
    tells = (f"{thing} {third} $v", f"{thing} will {base} $v", f"they say {thing} {third} $v", f"{thing} always {third} $v", f"$v {thing} {third}", f"it's $v that {thing} {third}")
    asks = [f"when does {thing} {base}", f"when will {thing} {base}", f"at what time does {thing} {base}", f"what time does {thing} {base}", f"when did I say {thing} {third}", f"on what day does {thing} {base}"]
    return moment, Kind("event_time", tells, *_asks(rng, asks, f"when {thing} {third}"), "that", SEEN_ANSWER)


def _group(rng: Random) -> str:
    return f"the {rng.choice(_GROUPS.split('|'))}" if rng.random() < 0.7 else _the_thing(rng)


def role(rng: Random, held: bool) -> tuple[str, Kind]:
    """Somebody is the captain of the ship, or just my rival; who?"""
    key = f"the {rng.choice(_ROLES.split('|'))} of {_group(rng)}" if rng.random() < 0.65 else rng.choice(_WHO_IS)
    tells = (f"{key} is $v", f"$v is {key}", f"{key} is called $v", f"I met {key}, $v", f"they made $v {key}", f"{key}, $v, is nice", f"we had a visit from $v, {key}", f"{key} is a person called $v", f"$v, who is {key}, said hello", f"do you know $v, {key}")
    asks = [f"who is {key}", f"who's {key}", f"what's the name of {key}", f"what is {key} called", f"who did I say is {key}", f"who was {key}", f"what do they call {key}"]
    return values.make(rng, "name", held), Kind("name", tells, *_asks(rng, asks, f"who {key} is"), "that", SEEN_ANSWER)


def feature(rng: Random, held: bool) -> tuple[str, Kind]:
    """The colour, number, title or code of anything; what is it?"""
    kind = rng.choice(list(_FEATURES))
    name = rng.choice(_FEATURES[kind].split("|"))
    thing = rng.choice(_OWNED.split("|")) if rng.random() < 0.6 else _the_thing(rng)
    key, bare = f"{name} of {thing}", name[4:]
    tells = (f"{key} is $v", f"$v is {key}", f"{thing} has $v as {bare}", f"as {bare} of {thing} we have $v", f"{key} turned out to be $v", f"for {thing} {name} is $v", f"{name} on {thing} says $v", f"they gave {thing} {name} $v", f"{name} I have for {thing} is $v")
    asks = [f"what is {key}", f"what's {key}", f"what {bare} does {thing} have", f"which {bare} does {thing} have", f"what {bare} is {thing}", f"what did I say {key} is", f"what is {name} for {thing}", f"what's {name} on {thing}", f"{key}"]
    return values.make(rng, kind, held), Kind(kind, tells, *_asks(rng, asks, f"what {key} is"), "that", SEEN_ANSWER)


_HABITS = """eat|drink|play|study|hate|like|sell|grow|prefer|make|collect|repair|practise|buy|read about|write about|dislike|enjoy|miss|avoid|wear|cook|bake|draw|paint|watch|follow|use|hunt|train|breed|import|design|recommend|feed|fear|trust|carry"""
_FREQUENCY = "{|||every morning|every day|on {Monday|Tuesday|Friday|Saturday|Sunday}s|in the evening|at night|for breakfast|at work|in winter|all the time|at the weekend|after school|before bed|in my free time|when it rains|on holiday}"
_SAYERS = "the sign|the label|the note|the poster|the man at the door|the old book|the screen|the tattoo|the stamp|the message|the riddle|the fortune teller|the map|the last page|the button|the tag on my bag|the back of the card|the robot|the parrot|the writing on the wall|the email|the headline|the flag|the banner|the t-shirt"
_SAYS = (("say", "says", "said"), ("say", "says", "said"), ("read", "reads", "read"), ("show", "shows", "showed"), ("tell us", "tells us", "told us"), ("spell", "spells", "spelled"))
_ROWS = "row|level|floor|page|line|lane|chapter|room|gate|track|block|section|shelf|box|seat|channel|stage|round|exit|stop|bench|tent|hall|team|group|part|season|episode|deck|cabin|counter|desk|question|verse"
_SITS = "sit in sat in|live on lived on|am at was at|stay in stayed in|wait at waited at|park on parked on|stopped at stopped at|got to got to|work on worked on|start at started at|belong to belonged to|sleep in slept in|play in played in|moved to moved to"
_COUNTED = "children|brothers|sisters|dogs|cats|bikes|cars|books|plants|chairs|cousins|tickets|coins|stamps|cakes|lamps|guitars|jobs|houses|keys|shoes|hats|friends|meetings|bottles|eggs|sheep|horses|rooms|windows|teeth|medals|students|guests"
_HAVE = "have have had|own own owned|need need needed|want want wanted|bought buy bought|found find found|see see saw|ordered order ordered|keep keep kept|invited invite invited|sold sell sold|lost lose lost|counted count counted|won win won|planted plant planted"
_MEASURES = {"weigh weighs": ("how much does {} weigh", "kilos|grams|pounds|tons"), "cost costs": ("how much does {} cost", "euros|dollars|pounds|cents"), "last lasts": ("how long does {} last", "minutes|hours|days|weeks"),
             "take takes": ("how long does {} take", "minutes|hours|days|weeks"), "measure measures": ("how long is {}", "metres|inches|feet|centimetres")}
_MEASURED = "the walk to work|the trip|my suitcase|the film|the recipe|the pill|the fence|the drive to my parents|the new desk|the exam|my dog|the repair|a ticket|the ring|the battery|the course|the snake|the stone|the flight home|the parking|the sofa|the lesson|our break|the ladder|a coffee here|the rope|the climb"
_WITH = "travel travelled|live live|dance danced|go to the gym went to the gym|share a room shared a room|play cards played cards|have lunch had lunch|work worked|study studied|sing sang|share an office shared an office|go fishing went fishing|play tennis played tennis|watch films watched films|run ran|start a band started a band|split the bill split the bill|build a raft built a raft|argue argued|drive to work drove to work|cook cooked|write a book wrote a book|take the train took the train|sit sat|speak spoke|practise practised|go on holiday went on holiday"
_BECAUSE = "{the bus was late|it rained too much|my alarm did not ring|I lost my key|the road was closed|I have a cold|the shop was closed|my bike broke|I forgot the date|the cat was ill|I slept badly|we won the match|I got a new job|the lift is broken|I missed the train|the boiler is leaking|I ate too much cake|my tooth hurts|I passed the test|the phone was dead}"
_STATES = "late|tired|happy|at home|sad|not at work|angry|awake|hungry|in town|in a hurry|nervous|proud|wet|in bed|so cheerful|upset|here"


def habit(rng: Random, held: bool) -> tuple[str, Kind]:
    """What somebody likes, eats or collects, now and then."""
    verb, often = rng.choice(_HABITS.split("|")), expand(rng, _FREQUENCY)
    who = rng.choice(("I", "I", "we", "my parents", "my friends", "the neighbours"))
    thing = values.make(rng, rng.choice(("food", "fruit", "drink", "animal", "food")), held) if rng.random() < 0.7 else values.make(rng, "word", held) + "s"
    tells = (f"{who} {verb} $v {often}", f"{who} always {verb} $v {often}", f"{who} mostly {verb} $v {often}", f"{who} {verb} only $v {often}", f"{often} {who} {verb} $v", f"{who} really {verb} $v {often}", f"{who} {verb} $v a lot", f"{who} {verb} a lot of $v {often}", f"$v, that's what {who} {verb} {often}")
    asks = [f"what do {who} {verb} {often}", f"what do {who} {verb}", f"what is it {who} {verb} {often}", f"what did I say {who} {verb} {often}", f"what do {who} always {verb} {often}"]
    return thing, Kind("food", tells, *_asks(rng, asks, f"what {who} {verb} {often}"), "that", SEEN_ANSWER)


def says(rng: Random, held: bool) -> tuple[str, Kind]:
    """What is written or said somewhere."""
    base, third, past = rng.choice(_SAYS)
    sayer = rng.choice(_SAYERS.split("|"))
    kind = rng.choice(("word", "title", "code", "number", "name", "city"))
    tells = (f"{sayer} {third} $v", f"{sayer} {past} $v", f"{sayer} {third}: $v", f"there is $v on {sayer}", f"what {sayer} {third} is $v", f"{sayer} {third} \"$v\"")
    asks = [f"what does {sayer} {base}", f"what did {sayer} {base}", f"what is on {sayer}", f"which word is on {sayer}", f"what was it {sayer} {past}"]
    return values.make(rng, kind, held), Kind(kind, tells, *_asks(rng, asks, f"what {sayer} {third}"), "that", SEEN_ANSWER)


def row(rng: Random, held: bool) -> tuple[str, Kind]:
    """In row 7, on page 33: which row, which page?"""
    words = rng.choice(_SITS.split("|")).split(" ")
    (base, prep), past = words[:2], words[2]
    noun, kind = rng.choice(_ROWS.split("|")), rng.choice(("number", "number", "code"))
    value = values.make(rng, kind, held)
    tells = (f"I {base} {prep} {noun} $v", f"I {past} {prep} {noun} $v", f"it's {noun} $v where I {base}", f"{noun} $v is mine", f"they put me {prep} {noun} $v", f"look for me {prep} {noun} $v", f"my {noun} is $v", f"I'm in {noun} $v", f"find {noun} $v, I {base} there", f"we have {noun} $v", f"I got {noun} $v")
    asks = [f"{{which|what}} {noun} do I {base} {prep}", f"{{which|what}} {noun} did I {base} {prep}", f"{prep} {{which|what}} {noun} do I {base}", f"{{which|what}} {noun} is mine", f"what's my {noun}", f"{{which|what}} {noun} was it", f"{{which|what}} {noun} did I say", f"{{which|what}} {noun} am I in", f"what's the number of my {noun}", f"{{which|what}} {noun} did they give me"]
    return value, Kind(kind, tells, *_asks(rng, asks, f"{{which|what}} {noun} I {base} {prep}"), "that", SEEN_ANSWER)


def count(rng: Random, held: bool) -> tuple[str, Kind]:
    """How many?"""
    present, base, past = rng.choice(_HAVE.split("|")).split(" ")
    thing = rng.choice(_COUNTED.split("|"))
    number = rng.choice(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty", "a hundred", "no", "a few", str(rng.randint(2, 99)), str(rng.randint(2, 99)), str(rng.randint(100, 999))))
    tells = (f"I {present} $v {thing}", f"we {present} $v {thing}", f"there are $v {thing} that I {present}", f"I {present} exactly $v {thing}", f"I {present} $v {thing} now", f"it's $v {thing} that we {present}", f"all in all I {present} $v {thing}")
    do = "do" if present == base else "did"
    asks = [f"how many {thing} {do} I {base}", f"how many {thing} {do} we {base}", f"how many {thing} are there", f"what's the number of {thing} I {present}", f"how many {thing} did I say", f"how many {thing} was it"]
    return number, Kind("age", tells, *_asks(rng, asks, f"how many {thing} I {present}"), "that", SEEN_ANSWER)


def measure(rng: Random, held: bool) -> tuple[str, Kind]:
    """How long, how heavy, how much?"""
    verbs = rng.choice(list(_MEASURES))
    (question, units), (base, third) = _MEASURES[verbs], verbs.split(" ")
    thing = rng.choice(_MEASURED.split("|")) if rng.random() < 0.7 else _the_thing(rng)
    value = f"{rng.choice((str(rng.randint(2, 99)), str(rng.randint(100, 900)), 'two', 'three', 'ten', 'twenty', 'half a dozen'))} {rng.choice(units.split('|'))}"
    tells = (f"{thing} {third} $v", f"{thing} will {base} $v", f"it's $v that {thing} {third}", f"{thing} {third} about $v", f"$v is what {thing} {third}", f"I heard {thing} {third} $v", f"{thing} {third} exactly $v")
    asks = [question.format(thing), f"what does {thing} {base}", f"how much does {thing} {base}" if base in ("weigh", "cost") else f"how long does {thing} {base}", f"what did I say {thing} {third}"]
    return value, Kind("age", tells, *_asks(rng, asks, f"what {thing} {third}"), "that", SEEN_ANSWER)


def together(rng: Random, held: bool) -> tuple[str, Kind]:
    """With whom, for whom, from whom?"""
    name = values.make(rng, "name", held)
    if rng.random() < 0.55:
        words = rng.choice(_WITH.split("|")).split(" ")
        base, past = " ".join(words[:len(words) // 2]), " ".join(words[len(words) // 2:])
        when = _time(rng)
        tells = (f"I {base} with $v", f"I {past} with $v {when}", f"{when} I {past} with my friend $v", f"we {base} with $v", f"it's $v I {base} with", f"$v and I {base} together", f"I {base} with a guy named $v", f"I {base} with a girl called $v", f"me and $v {base} together", f"the one I {base} with is $v")
        asks = [f"who do I {base} with", f"who did I {base} with", f"with whom do I {base}", f"who is it that I {base} with", f"who did I say I {base} with", f"what's the name of the person I {base} with", f"who {past} with me"]
        clause = f"who I {base} with"
    else:
        thing, prep = _the_thing(rng), rng.choice(("for", "from", "by", "about"))
        tells = (f"{thing} is {prep} $v", f"I got {thing} {prep} $v", f"this is {thing} {prep} $v", f"{thing} must be {prep} $v", f"{thing}, that's {prep} $v")
        asks = [f"who is {thing} {prep}", f"who was {thing} {prep}", f"{prep} whom is {thing}", f"who did I say {thing} is {prep}"]
        clause = f"who {thing} is {prep}"
    return name, Kind("name", tells, *_asks(rng, asks, clause), "that", SEEN_ANSWER)


def reason(rng: Random, held: bool) -> tuple[str, Kind]:
    """Why?"""
    state, cause = rng.choice(_STATES.split("|")), expand(rng, _BECAUSE)
    tells = (f"I am {state} $v", f"I was {state} $v", f"I'm {state}, $v", f"I am so {state} $v", f"if I'm {state} it is $v")
    asks = [f"why am I {state}", f"why was I {state}", f"what's the reason that I'm {state}", f"how come I am {state}", f"what made me {state}", f"why did I say I'm {state}"]
    return "because " + cause, Kind("event_time", tells, *_asks(rng, asks, f"why I am {state}"), "that", SEEN_ANSWER)


def belonging(rng: Random, held: bool) -> tuple[str, Kind]:
    """Two keys: somebody's something."""
    owner = rng.choice((values.make(rng, "name", held), values.make(rng, "name", held), expand(rng, "my {sister|brother|friend|neighbour|uncle|aunt|boss|wife|husband|son|daughter|teacher|cousin|father|mother|grandma|best friend}")))
    kind, thing = rng.choice((("colour", expand(rng, "{car|bike|house|coat|hair|door|hat|boat|cat|kitchen}")), ("name", expand(rng, "{brother|sister|wife|husband|boss|dog|cat|son|daughter|horse|teacher|baby|friend}")), ("city", expand(rng, "{home town|new home|birthplace}")),
                              ("code", expand(rng, "{locker|phone|gate|safe|bike lock|house|door} {code|pin|number}")), ("title", expand(rng, "{team|band|boat|shop|favourite book|school|street|company}")), ("word", expand(rng, "{password|nickname|secret|symbol|present}")), ("food", expand(rng, "{favourite food|favourite dish|breakfast}")), ("job", expand(rng, "{job|profession|first job}"))))
    key, back = f"{owner}'s {thing}", f"the {thing} of {owner}"
    tells = (f"{key} is $v", f"$v is {key}", f"{back} is $v", f"{key} would be $v", f"as for {key}, it's $v", f"{owner} has $v as {thing}", f"{key}? $v", f"I know {key}: $v", f"they say {key} is $v", f"{key} is now $v")
    asks = [f"what is {key}", f"what's {key}", f"what is {back}", f"{key}", f"what did I say {key} is", f"{{which|what}} {thing} does {owner} have", f"what do you know about {key}"]
    if kind == "colour":
        asks += [f"what colour is {key}", f"which colour does {key} have"]
    if kind in ("name", "title"):
        asks += [f"what is {key} called", f"what's the name of {key}", f"who is {key}" if kind == "name" else f"how is {key} called"]
    return values.make(rng, kind, held), Kind(kind, tells, *_asks(rng, asks, f"what {key} is"), "that", SEEN_ANSWER)


def called(rng: Random, held: bool) -> tuple[str, Kind]:
    """Anything at all has a name."""
    thing = _the_thing(rng) if rng.random() < 0.6 else expand(rng, "{the baby|the ship|our tent|the new machine|the statue|the snowman|my bicycle|the storm|the island|my cactus|our first album|the comet|the cow|the twins' doll|the bridge|the mountain}")
    kind = rng.choice(("name", "title", "pet_name", "word"))
    tells = (f"{thing} is called $v", f"we called {thing} $v", f"they named {thing} $v", f"we named {thing} $v", f"$v is what we call {thing}", f"{thing} goes by $v", f"{thing} has the name $v", f"{thing} got the name $v", f"I call {thing} $v", f"people call {thing} $v", f"{thing} is known as $v", f"{thing}, $v, is here", f"{thing} is $v")
    asks = [f"what is {thing} called", f"what did we call {thing}", f"what did we name {thing}", f"what's the name of {thing}", f"how is {thing} called", f"what do I call {thing}", f"what name does {thing} have", f"how do people call {thing}", f"what is {thing} known as"]
    return values.make(rng, kind, held), Kind(kind, tells, *_asks(rng, asks, f"what {thing} is called"), "that", SEEN_ANSWER)


MAKERS = (who, who, who, what, what, what, feeling, where, where, when, role, role, feature, feature, habit, habit, says, row, count, measure, together, together, reason, belonging, belonging, called)


def make(rng: Random, held: bool = False) -> tuple[str, Kind]:
    """A value and the ways to tell it and ask for it."""
    value, kind = rng.choice(MAKERS)(rng, held)
    return value, kind
