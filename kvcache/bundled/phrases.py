"""Ways to tell and to ask every kind of fact. `$v` is the value, `$k` the thing it belongs to, `$a` is "a" or "an" before the value.

Templates are for `grammar.expand`. Asks come in three forms: questions, clauses ("do you know" + clause) and noun phrases ("remind me of" +
phrase), so that `dialogues` can wrap them in many more ways. `held_out_way` keeps one way of speaking in ten from training.
"""

import zlib
from dataclasses import dataclass
from random import Random

from . import grammar

HELD_OUT_ONE_IN = 10


@dataclass(frozen=True)
class Kind:
    """One kind of fact: where its values come from, and how it is told, asked and answered."""

    values: str
    tells: tuple[str, ...]
    questions: tuple[str, ...]
    clauses: tuple[str, ...]
    phrase: str  # in the first person: "my $k code"
    answer: str
    keys: tuple[str, ...] = ("",)  # "@name" stands for any name
    weight: float = 1.0
    echo: tuple[str, ...] = ()  # ways to answer a telling with its value, beside "Got it, " + answer


def held_out_way(way: str) -> bool:
    """True for the fixed tenth of all readings that training never uses."""
    return zlib.crc32(way.lower().encode()) % HELD_OUT_ONE_IN == 0


def choose(rng: Random, ways: tuple[str, ...], held: bool | None = False) -> str:
    """A reading of one of the templates on the wanted side of the split (any side when a hundred tries find none)."""
    for _ in range(100):
        way = grammar.expand(rng, rng.choice(ways)).strip()
        if held is None or held_out_way(way) == held:
            break
    return way


IS = "{'s| is}"
FAV = "{favourite|favorite|fave|fav}"
FAVOURITE = "{favourite|favorite}"

LOCKS = """locker|bike lock|front door|back door|garden gate|gate|safe|suitcase|phone|alarm|garage|mailbox|gym locker|tablet|laptop|shed|office|
building|school locker|briefcase|bank card|house|barn|cabin|box|drawer|cellar|lift|car park|cupboard|trunk|workshop|studio|padlock|storage room|
bike|boat|apartment|credit card|computer|toolbox|treasure chest|diary|cash box|basement|lab|bike shed|flat|car|van|attic|swimming pool locker""".replace("\n", "").split("|")
ACCOUNTS = "wifi|email|laptop|computer|account|router|phone|club|bank|game|library|website|tablet|guest network|server|chat|secret|cloud|printer|shop".split("|")
RELATIONS = """sister|brother|mother|father|mum|dad|boss|teacher|doctor|dentist|neighbour|friend|best friend|coach|cousin|uncle|aunt|grandmother|grandfather|
daughter|son|wife|husband|partner|girlfriend|boyfriend|flatmate|colleague|manager|hairdresser|landlord|piano teacher|nephew|niece|roommate|lawyer|plumber|
neighbor|grandma|grandpa|little sister|big brother|older brother|younger sister|baby|twin|stepdad|math teacher|trainer|student|assistant|baby sister""".replace("\n", "").split("|")
SPECIES = """dog|cat|horse|rabbit|parrot|hamster|goldfish|turtle|pony|puppy|kitten|snake|guinea pig|canary|tortoise|goat|duck|hen|lizard|budgie|mouse|
sheep|donkey|ferret|cow|pig|fish|rat|spider|pet""".replace("\n", "").split("|")
NUMBERED = """room number|shoe size|bus|seat|flat number|lucky number|parking spot|table number|order number|gate|flight number|house number|hotel room|train platform|
ticket number|jersey number|desk number|floor|student number|membership number|apartment number|bib number|queue number|extension|customer number|case number|
locker number|phone number|height in centimetres|favourite number|platform|booking number|invoice number|pew number|chapter|page""".replace("\n", "").split("|")
THINGS = """keys|wallet|phone|glasses|umbrella|passport|book|hat|scarf|charger|camera|ring|watch|laptop|headphones|bike|gloves|notebook|remote|purse|bag|shoes|
medicine|ticket|guitar|football|torch|scissors|coat|spare key|letter|present|lunch|helmet|backpack|map|diary|pen|tablet|socks""".replace("\n", "").split("|")
COLOURED = """car|bike|house|front door|coat|sofa|bag|umbrella|hat|scarf|kitchen|bedroom|boat|dress|jacket|phone|mug|suitcase|tent|carpet|guitar|helmet|
roof|backpack|jumper|desk|wallet|notebook|kite|van|fence|hair|blanket""".replace("\n", "").split("|")
EVENTS = """meeting|dentist appointment|train|flight|party|exam|interview|concert|wedding|lesson|piano lesson|doctor's appointment|birthday party|haircut|match|
class|dinner|driving test|trip|race|holiday|rehearsal|deadline|graduation|game|move|picnic|bus|ferry|show|visit|checkup|presentation|lunch|course""".replace("\n", "").split("|")
NAMED = """team|boat|school|band|company|street|village|project|car|robot|house|club|shop|restaurant|hotel|book|song|café|ship|computer|plant|blog|
choir|farm|bike|doll|teddy bear|guitar|poem|podcast|secret island|football club|theatre|cabin|gym|bakery|pub|dance school|garden gnome|class""".replace("\n", "").split("|")
SECRETS = """secret word|magic word|code word|password|safe word|project name|passphrase|keyword|word of the day|mystery word|clue|answer to the riddle|
theme of the party|first clue|winning word|watchword|secret ingredient|signal|nickname of the ship""".replace("\n", "").split("|")
NUMBERS_OF = {"number of $k": """chairs|guests|eggs|children|books|apples|tickets|cats|students|plates|rooms|windows|bikes|stamps|coins|sheep|trees|lamps|cups|
players|cousins|plants|boxes|hats""".replace("\n", "").split("|")}

KINDS: dict[str, Kind] = {}

KINDS["name"] = Kind(
    "name",
    ("my name{'s| is} $v", "{I'm|I am|Im} $v", "{I'm|I am} called $v", "{people|they|friends|my friends|all my friends|folks|everyone|everybody} {call|calls} me $v",
     "{you can|you may|please|just|} call me $v", "{this is|it's|it is} $v {here|speaking|}", "$v {here|is my name|is what they call me|is the name|speaking|is who I am}",
     "the name{'s| is} $v", "I go by {the name of |the name |}$v", "I go by $v", "I was {named|christened|baptised} $v", "my {parents|mother|father|mum|dad|family} {named|called} me $v",
     "{I'm|I am} known as $v", "my {friends|mates|colleagues|neighbours} know me as $v", "{my first name|my full name|my given name|my nickname}{'s| is} $v",
     "$v is {my first name|what I go by|how people know me|the name I go by|my nickname}", "I {answer|listen} to {the name |}$v", "the name I {use|go by|got|was given} is $v",
     "you're {talking|chatting|speaking} {to|with} $v", "{at work|at home|at school|here} {they|people|they all} call me $v", "I introduce myself as $v", "name: $v", "name{'s|} $v",
     "{I'm|I am} $v, {nice to meet you|pleased to meet you|who are you|a new user|and you|by the way}", "I'd like {you to call me|to be called} $v", "{they named me|I got the name} $v",
     "{my|the} name on my {passport|badge|birth certificate|card} is $v", "{the one|the person} {typing|talking to you|writing this} is $v", "people usually say $v to me", "{I'm|I am|my name is|my name's|I'm called} $v and I {am new here|like to chat|have a question|work nights|just woke up|would like to try this|am from the north|am a bit tired|am $v, remember|need some help|want to talk}",
     "the person you are talking to is $v", "you can refer to me as $v", "I'm the famous $v", "{call|name} me $v from now on", "I'd be $v", "{I'm|I am} your friend $v", "it is $v who writes this", "among friends I'm $v", "for you I'm $v", "they usually shout $v when they want me",
     "I got my name from my grandparent: $v", "I sign my letters with $v", "you may know me as $v", "my username is $v", "signed, $v", "my mates say $v"),
    ("{what's|what is|whats|what was} my name", "who am I", "what am I called", "what do {people|they|my friends|you|others} call me", "what name do I {go by|have|use}",
     "{which|what} name do I {go by|have|use}", "what do I go by", "how {am I called|do people call me|should you call me}", "what {should|would|will|do|can} you call me",
     "what did I say my name {is|was}", "who are you {talking|chatting|speaking} {to|with}", "who is {talking|chatting|speaking|writing} to you", "what is the name I {gave|told} you",
     "what is it that people call me", "what name did I {give|tell} you", "what's my {first name|nickname|full name}", "by what name {am I known|do people know me}",
     "how did I introduce myself", "whom are you talking to", "how do I sign my letters", "can you say my name", "do you remember me", "do you know me", "have I told you my name", "did you catch my name", "do you have my name", "which name did I tell you", "who am I again", "what do I call myself", "what's my name", "what is my name", "what is my name", "whats my name", "how was I called", "what do my friends say when they call me", "what's the name I go by", "what did my parents name me"),
    ("what my name is", "who I am", "what I'm called", "what people call me", "what to call me", "my name", "what name I go by", "the name I gave you", "how I'm called",
     "who you are talking to", "what I go by", "what I said my name was", "who is talking to you", "what they call me", "how I introduced myself"),
    "my name", "Your name is $v.", weight=9,
    echo=("Nice to meet you, $v.", "Hello $v.", "Hi $v, nice to meet you.", "Welcome, $v."))

KINDS["code"] = Kind(
    "code",
    ("my $k code{'s| is} $v", "the code {for|to|of|on} {my|the} $k {is|'s} $v", "$v {opens|unlocks|is for|gets you into} {my|the} $k", "{my|the} $k {opens|unlocks} with $v",
     "I {set|changed|reset} {my|the} $k code to $v", "I {set|changed} the {code|combination|pin|number} {of|on|for} {my|the} $k to $v", "to {open|unlock|get into} {my|the} $k {you need|use|type|enter|dial|punch in|press|you type|I type|I use} $v",
     "$k code: $v", "I use $v {for|to open|to unlock|on} {my|the} $k", "{my|the} $k{'s| has the} {code|combination|pin|number|PIN} {is |} $v", "the {combination|pin|PIN|number|digits} {for|of|to} {my|the} $k {is|are} $v",
     "my $k {pin|combination|number|PIN|key code}{'s| is} $v", "$v is {the code|the combination|the pin|the number} {for|of|to} {my|the} $k", "$v is my $k code", "{my|the} $k needs {the code|code|} $v",
     "the {number|code|thing} that {opens|unlocks} {my|the} $k is $v", "{type|enter|use|press|dial} $v {to open|to unlock|to get into} {my|the} $k", "my code for the $k is $v", "{my|the} $k is locked with {code|} $v",
     "they gave me {code|the code|} $v for {my|the} $k", "my new $k code is $v", "{my|the} $k only opens {with|if you type|when you enter} $v", "{I have|I've got|I've} {written down|memorised|picked|chosen} $v {for|as the code for} {my|the} $k",
     "$k: $v", "the lock on my $k {is set to|takes|opens at|has} $v", "you get into my $k with $v", "my $k has a new code, {it's|it is|namely} $v", "I have a $k, {its code is|the code is|code} $v", "there's a lock on my $k, $v opens it", "my $k, {code|number|that's|it's} $v", "remember $v, it {opens|unlocks|is for} my $k", "$v gets my $k open", "my $k listens to $v",
     "the digits for {my|the} $k {are|would be} $v", "we have a $k with {the code|code|number} $v", "for {my|the} $k {it's|you need|use|take|try|dial|I use|remember} $v", "I locked my $k with $v", "{my|the} $k is protected {by|with} $v", "without $v you can't open my $k"),
    ("{what's|what is|whats|what was} my $k code", "what{'s| is} the {code|combination|pin|number|PIN} {for|of|to|on} {my|the} $k", "{which|what} {number|code|combination|digits|pin} {opens|unlocks} {my|the} $k",
     "how do I {open|unlock|get into} {my|the} $k", "what opens my $k", "{what|which} code did I {set|give you|tell you|mention|choose} for my $k", "what do I {type|enter|dial|press|use|punch in|need} to {open|unlock|get into} my $k",
     "what{'s| is} my $k {pin|combination|number|PIN}", "what{'s| are} the {digits|numbers} {for|of} my $k", "what is my code for the $k", "what code {opens|does} my $k {|need|have|}", "$k code",
     "what did I say {my|the} $k code was", "with {what|which} {code|number} does my $k open", "{which|what} {code|number} do I need for {my|the} $k", "what was {the code|the number|it} for my $k", "what did I set my $k to", "I {want|need|have|forgot how} to {open|get into|unlock} my $k, {what's|what is|which is|what was} {it|the code|the number|the combination|the pin}", "my $k is locked, {how do I open it|what's the code|which code do I need}", "{what do you know|what can you tell me} about my $k",
     "my $k {asks for|wants|needs} {a code|a number|a pin}, which one", "{which|what} digits does my $k {take|need|want}", "what makes my $k open", "what's the secret of my $k", "how can I get my $k open", "what's the key to my $k", "do you have my $k code", "have I told you the code of my $k"),
    ("{what |}my $k code {is|was}", "the {code|combination|pin|number} {for|of|to} my $k", "how to {open|unlock|get into} my $k", "what the code {for|of|to} my $k {is|was}", "{what|which} {code|number} {opens|unlocks} my $k",
     "what opens my $k", "what to {type|enter|dial|press} {for|at} my $k", "how my $k opens"),
    "my $k code", "Your $k code is $v.", tuple(LOCKS), weight=9)

KINDS["password"] = Kind(
    "word",
    ("my $k password{'s| is} $v", "the password {for|to|of} {my|the} $k {is|'s} $v", "I {set|changed} my $k password to $v", "$v is {my|the} $k password", "$k password: $v", "{you can |}log into my $k with $v",
     "I use $v {as the password for|as my password for|to log into} {my|the} $k", "my $k password is the word $v", "to {log into|get on|use} {my|the} $k {type|use|enter|you need} $v", "my password for the $k is $v",
     "my $k login is $v", "for {my|the} $k {I picked|I chose|we picked|use} the {password|word} $v", "{my|the} $k lets you in with $v", "my new $k password is \"$v\"", "the $k asks for {a password, it's|the password} $v"),
    ("{what's|what is|whats|what was} {my|the} $k password", "what{'s| is} the password {for|to|of} {my|the} $k", "how do I {log into|get on|get into|sign in to} {my|the} $k", "{which|what} {word|password} did I {set|choose|pick} for my $k",
     "what do I type to {log into|get on} {my|the} $k", "$k password", "{which|what} password {goes with|do I need for|did I give for} {my|the} $k", "what's my password for the $k", "what did I say the $k password was"),
    ("{what |}my $k password {is|was}", "the password {for|to|of} my $k", "how to {log into|get on} my $k", "which password {I chose|goes with|I use} for my $k", "what the $k password {is|was}"),
    "my $k password", "Your $k password is $v.", tuple(ACCOUNTS), weight=3)

KINDS["secret"] = Kind(
    "word",
    ("the $k{'s| is} $v", "$v is the $k", "our $k is $v", "{today's|the new|this week's} $k is $v", "the $k {for today|I chose|we picked|they gave me|they told me} is $v", "$k: $v", "we {chose|picked|agreed on} $v as the $k",
     "I'm using $v as the $k", "the $k is the word $v", "the $k is \"$v\"", "if anyone asks, the $k is $v", "they made $v the $k", "let $v be the $k", "as {the|a} $k we have $v"),
    ("{what's|what is|whats|what was} the $k", "{which|what} {word |}did I {choose|tell you|give you|mention} {as|for} the $k", "what's {our|today's} $k", "the $k", "what did I say the $k was", "{which|what} one is the $k", "what was that $k"),
    ("{what |}the $k {is|was}", "the $k", "what I said the $k was", "what our $k is"), "the $k", "The $k is $v.", tuple(SECRETS), weight=2.5)

KINDS["relation"] = Kind(
    "name",
    ("my $k{'s| is} {called|named} $v", "my $k's name{'s| is} $v", "$v is my $k", "I have a $k {called|named|whose name is} $v", "my $k {goes by|answers to} $v", "my $k is $v", "the name of my $k is $v",
     "my $k $v {came by yesterday|called me today|is very kind|says hello|is coming for dinner|was here this morning|just left|is on holiday|made me laugh|helped me a lot|is ill today|cooks very well}",
     "I {visited|met|saw|called|talked to|had lunch with} my $k $v {today|yesterday|this morning|last week|}", "my $k, $v, {is great|is very tall|works a lot|lives nearby|loves to talk|just called}",
     "{we call|everyone calls|I call|people call} my $k $v", "$v is {the name of my $k|what my $k is called|how we call my $k|my $k's name}", "you should meet $v, my $k", "that was $v, my $k", "my $k was {named|christened} $v", "$k: $v",
     "I'm {going to see|staying with|waiting for} $v, {who is |}my $k", "my new $k is {called|named} $v", "there is my $k, $v {is the name|by name}", "I have a $k {and|,} {his|her|the} name is $v", "I've got a $k, {he|she} is called $v", "my $k is a {man|woman|person} {called|named} $v", "$v, that's my $k", "you know my $k? {It's|That's} $v", "$v is {a|the} name my $k {has|got}", "my $k's {first |}name would be $v",
     "one of my family, my $k, is $v", "as a $k I have $v", "$v has been my $k for {years|a while|ages}", "my dear $k $v {sends greetings|told me about you|turns fifty soon|loves books|is a genius|lives with me}", "I was with $v, my $k, {today|last night|in town}"),
    ("{what's|what is|whats|what was} my $k's name", "who{'s| is} my $k", "what is my $k {called|named}", "what's the name of my $k", "{which|what} name does my $k have", "how is my $k called", "what do {I|we|people} call my $k", "my $k's name",
     "what did I say my $k {was|is} called", "what name did I {give|tell you|mention} for my $k", "who did I say my $k {is|was}", "what does my $k go by", "what was my $k called", "{what do you know|what can you tell me} about my $k", "I forgot my $k's name, what is it", "do you know my $k", "by what name do I know my $k", "who would my $k be", "do you remember my $k's name", "have I told you about my $k", "name my $k", "which person is my $k", "who is it that is my $k"),
    ("what my $k's name is", "who my $k is", "what my $k is called", "my $k's name", "the name of my $k", "how my $k is called", "what my $k was called"),
    "my $k's name", "Your $k is called $v.", tuple(RELATIONS), weight=5)

KINDS["pet"] = Kind(
    "pet_name",
    ("my $k{'s| is} {called|named} $v", "my $k's name{'s| is} $v", "$v is {my $k|our $k|the name of my $k|what we called our $k|my $k's name}", "I have a $k {called|named|whose name is} $v", "{we|I} {just |}{got|adopted|bought|found|own|keep|rescued} a $k {called|named|and called it|and named him|and named her} $v",
     "my $k $v {sleeps all day|is so funny|ate my shoe|is getting old|loves to play|is very lazy|ran away once|is sick|is hungry|made a mess|likes the sun|barely moves}", "our $k is {called|named} $v", "my $k, $v, {is adorable|sleeps a lot|eats too much|is two years old}",
     "I {walked|fed|brushed|washed|took} {my $k $v|$v, my $k,} {to the vet |}{this morning|today|yesterday|}", "the $k is called $v", "{we call|everyone calls|I call|the kids call} {my|our} $k $v", "$k: $v", "{we|I|the kids} {named|called} {our|my|the} $k $v", "my $k {answers|listens|comes} to $v",
     "at home I have $v, {a|my} $k", "say hi to $v, my $k", "I have a $k {and|,} {his|her|its|the} name is $v", "I've got a $k, {he|she|it} is called $v", "{this is|meet|look at} $v, {my|our} $k", "my $k? {Its name is|That's|It is} $v", "we share our home with a $k named $v", "our new $k got the name $v", "the name we gave the $k is $v", "$v the $k {lives with us|is my best friend|follows me everywhere}", "I chose the name $v for my $k"),
    ("{what's|what is|whats|what was} my $k's name", "what is my $k {called|named}", "what's the name of my $k", "who is my $k", "how is my $k called", "what did I {call|name} my $k", "{which|what} name did I give my $k", "what do {I|we} call my $k", "my $k's name",
     "what's our $k called", "what name does my $k {have|answer to|listen to}", "what did I say my $k is called", "{what do you know|what can you tell me} about my $k", "I forgot my $k's name, what is it", "do you know my $k", "do you remember the name of my $k", "have I told you about my $k", "what do the kids call our $k", "which name did we pick for the $k", "who is the $k at home"),
    ("what my $k's name is", "what my $k is called", "my $k's name", "the name of my $k", "how my $k is called", "what I {called|named} my $k", "which name I gave my $k"),
    "my $k's name", "Your $k is called $v.", tuple(SPECIES), weight=4)

KINDS["home"] = Kind(
    "city",
    ("I live in $v", "{I'm|I am} living in $v", "{I've|I} {just |}moved to $v", "my {home|house|flat|apartment} is in $v", "I {have|own|rent} a {house|flat|room|small apartment} in $v", "I {stay|reside} in $v", "my home is $v", "$v is {where I live|my home|my home town now|the city I live in|where my house is}",
     "I've lived in $v {for years|all my life|since last year|for a while|}", "home is $v for me", "we live in $v", "I settled {down |}in $v", "the {city|town|place} I live in is $v", "my city is $v", "I live {near|just outside|close to} $v", "these days I live in $v", "my address is in $v", "I'm based in $v"),
    ("where do I live", "{what|which} {city|town|place} do I live in", "where{'s| is} my {home|house|flat|apartment}", "in {which|what} {city|town|place} do I live", "where am I living", "where did I {say I live|move to|settle}", "what's my {home town|city}", "which city is my home", "where am I based", "where is it I live", "where do I have my home"),
    ("where I live", "where my {home|house} is", "{which|what} {city|town} I live in", "where I moved to", "my city", "where I'm based"),
    "where you live", "You live in $v.", weight=3)

KINDS["origin"] = Kind(
    "city",
    ("{I'm|I am} from $v", "I come from $v", "I was born in $v", "I grew up in $v", "I {originally |}come from $v", "my birthplace is $v", "{I'm|I am} originally from $v", "$v is {where I was born|where I come from|where I grew up|my birthplace|where I'm from}", "I was raised in $v", "I spent my childhood in $v"),
    ("where am I from", "where do I come from", "where was I born", "where did I grow up", "{which|what} {city|town|place} {am I from|do I come from|did I grow up in|was I born in}", "what's my {birthplace|origin|place of birth}", "where was I raised", "where am I from originally"),
    ("where I'm from", "where I come from", "where I was born", "where I grew up", "what my birthplace is"), "where you are from", "You are from $v.", weight=1.5)

KINDS["job"] = Kind(
    "job",
    ("I work as $a $v", "{I'm|I am} $a $v", "my job is {being |}$a $v", "I {earn|make} my living as $a $v", "I'm employed as $a $v", "I'm $a $v {by profession|by trade|at a small firm|for ten years now}", "I {became|am training to be|want to stay} $a $v", "for a living {I'm|I work as} $a $v", "being $a $v is my job", "my profession is $v", "I've been $a $v for {years|ages|a long time|two years}", "job: $v", "by day I'm $a $v"),
    ("what do I do for {a living|work}", "what{'s| is} my {job|profession|occupation|work}", "what do I work as", "{which|what} job do I have", "how do I {earn|make} my {living|money}", "what kind of work do I do", "what am I by {profession|trade}", "what did I say I work as", "what do I do all day"),
    ("what my {job|profession|work} is", "what I do for {a living|work}", "what I work as", "my job", "how I earn my money"), "my job", "You work as $a $v.", weight=2)

KINDS["age"] = Kind(
    "age",
    ("{I'm|I am} $v years old", "{I'm|I am} $v", "I {just |}turned $v", "my age is $v", "I'm aged $v", "I'll be $v {soon|this year|next week}", "I became $v {yesterday|last week|in spring}", "I have been on this earth for $v years", "age: $v"),
    ("how old am I", "what{'s| is} my age", "how many years old am I", "what age am I", "how old did I say I am", "how old have I turned"), ("how old I am", "my age", "what age I am"), "my age", "You are $v years old.", weight=1)

KINDS["birthday"] = Kind(
    "date",
    ("my birthday is {on |}$v", "I was born on $v", "I {have|celebrate} my birthday on $v", "{on|every} $v {is my birthday|I have my birthday|I get older}", "my birthday falls on $v", "$v is my birthday"),
    ("when is my birthday", "when was I born", "what{'s| is} my {birthday|birth date|date of birth}", "on {which|what} {day|date} is my birthday", "when do I celebrate my birthday"), ("when my birthday is", "my birthday", "when I was born"), "my birthday", "Your birthday is on $v.", weight=1)

_FAVOURITE = (
    f"my {FAV} $k{{'s| is}} $v", f"$v {{is|are}} my {FAV} $k", "the $k I {like|love} {best|most} is $v", "I {like|love} $v {best|more than any other $k|the most of any $k}", "nothing beats $v {as $k goes|when it comes to $k|as a $k}",
    f"{FAV} $k: $v", "of {all $k|every $k} I {like|love} $v {best|most}", "when it comes to $k I {always |}{choose|pick|go for|prefer} $v", "my top $k is $v", "as for $k, {it's|give me|I love} $v", f"if I had to {{choose|pick}} a {FAV} $k it would be $v",
    f"my {FAV} $k has always been $v", "the best $k {of all|for me|ever|in the world} is $v", "for me the best $k is $v", "my $k of choice is $v", f"{{people know|everyone knows}} my {FAV} $k is $v", "I'm {crazy|mad} about $v, {the best $k there is|no better $k}", "the $k for me is $v", "there's no better $k than $v")
_FAVOURITE_Q = (
    f"{{what's|what is|whats|what was}} my {FAV} $k", "{which|what} $k do I {like|love} {best|most|the most}", f"{{which|what}} $k is my {FAV}", "{which|what} $k do I prefer", f"what did I say my {FAV} $k {{was|is}}", "what's the $k I like {best|most}", f"my {FAV} $k",
    "{which|what} $k would I {choose|pick}", "{which|what} $k is the best for me", f"what would I say is my {FAV} $k", "what's my top $k", "what $k am I crazy about")
_FAVOURITE_C = (f"what my {FAV} $k is", "{which|what} $k I {like|love} {best|most}", f"my {FAV} $k", "{which|what} $k I prefer", "which $k is the best for me")
for _k, _values, _weight in (("colour", "colour", 2), ("color", "colour", 1), ("food", "food", 1.5), ("dish", "food", .6), ("meal", "food", .4), ("snack", "food", .3), ("fruit", "fruit", .8), ("drink", "drink", 1), ("animal", "animal", 1), ("sport", "sport", 1),
                             ("season", "season", .3), ("day", "day", .3), ("month", "month", .3), ("hobby", "hobby", .7), ("instrument", "instrument", .6), ("city", "city", .7), ("country", "country", .7), ("number", "number", .7), ("word", "word", .7),
                             ("book", "title", .7), ("film", "title", .7), ("movie", "title", .4), ("song", "title", .5), ("band", "title", .5), ("game", "title", .5), ("subject", "subject", .5), ("language", "language", .4), ("singer", "name", .4), ("writer", "name", .4), ("car", "car", .3), ("pub", "title", .2), ("player", "name", .3)):
    KINDS[f"favourite {_k}"] = Kind(_values, _FAVOURITE, _FAVOURITE_Q, _FAVOURITE_C, "my favourite $k", "Your favourite $k is $v.", (_k,), _weight * .45)

KINDS["number"] = Kind(
    "number",
    ("my $k{'s| is} $v", "$v is my $k", "I {have|got|was given} $k $v", "they gave me $k $v", "the $k {is|they gave me is|I got is|for me is} $v", "$k: $v", "for my $k I {have|got|was given} $v", "my $k {turned out to be|happens to be|has changed to|is now} $v", "I'm at $k $v", "the $k says $v", "my $k, that's $v", "you find me at $k $v", "it's $k $v for me"),
    ("{what's|what is|whats|what was} my $k", "{which|what} $k {do I have|did I get|was I given|am I at|is mine}", "what{'s| is} the $k {I have|I got|I gave you|}", "my $k", "what did I say my $k {is|was}", "{which|what} $k did I {mention|tell you|say}", "what number is my $k"),
    ("{what |}my $k {is|was}", "{which|what} $k I {have|got|was given}", "my $k", "what the $k {is|was}"), "my $k", "Your $k is $v.", tuple(NUMBERED), weight=3)

KINDS["named"] = Kind(
    "title",
    ("my $k is {called|named} $v", "the name of my $k is $v", "my $k's name is $v", "$v is the name of my $k", "I {named|called} my $k $v", "we {named|called} our $k $v", "my $k {goes by the name|has the name|bears the name} $v", "I have a $k {called|named} $v", "$v is {my $k|what I call my $k|what my $k is called}", "my $k is $v", "they call my $k $v", "my $k, $v, is {great|not far|famous here|quite old|my pride}"),
    ("what is my $k {called|named}", "what{'s| is} the name of my $k", "what's my $k's name", "what did I {name|call} my $k", "{which|what} name does my $k have", "how is my $k called", "what name did I give my $k", "what is my $k"),
    ("what my $k is called", "the name of my $k", "my $k's name", "what I {named|called} my $k", "how my $k is called"), "the name of my $k", "Your $k is called $v.", tuple(NAMED), weight=2.5)

KINDS["street"] = Kind(
    "street",
    ("I live {on|in|at} $v", "my {street|address} is $v", "my house is on $v", "{we|I} have a {house|flat} on $v", "the street I live on is {called |}$v", "you'll find my house on $v", "my home is on $v"),
    ("{what|which} street do I live {on|in}", "on {which|what} street do I live", "what{'s| is} my {address|street}", "what's the name of my street", "what street is my house on"), ("{what|which} street I live on", "my address", "what my street is called"),
    "my street", "Your street is $v.", weight=1)

KINDS["spot"] = Kind(
    "spot",
    ("my $k {is|are} $v", "I {put|left|hid|keep|kept|placed|dropped|stored|forgot} my $k $v", "you'll find my $k $v", "the $k {is|are} $v", "I left the $k $v", "I {always |}{put|leave|keep} my $k $v", "my $k {lies|lie|sits|is lying|must be|should be|can be found|stays} $v", "I've {put|left|hidden} my $k $v {today|this time|for now|}", "$k: $v"),
    ("where {is|are} my $k", "where did I {put|leave|hide|keep|place|drop} {my|the} $k", "where {can I find|do I find|should I look for|do I keep|have I put|have I left} my $k", "where was my $k", "what did I do with my $k", "where are the $k", "in what place {is|are} my $k", "have you seen my $k"),
    ("where my $k {is|are}", "where I {put|left|hid|keep} my $k", "where to {find|look for} my $k", "the place of my $k"), "where my $k is", "Your $k @is $v.", tuple(THINGS), weight=3)

KINDS["coloured"] = Kind(
    "colour",
    ("my $k is $v", "I {have|own|bought|got} a $v $k", "I painted my $k $v", "the colour of my $k is $v", "my $k is a {nice|bright|deep|lovely} $v", "my {new|old} $k is $v", "mine is the $v $k", "the $v $k is mine", "look for the $v $k, that's mine"),
    ("{what|which} {colour|color} is my $k", "what{'s| is} the {colour|color} of my $k", "what {colour|color} does my $k have", "{what|which} {colour|color} did I say my $k is", "what {colour|color} did I {paint|pick for|choose for} my $k"),
    ("{what|which} {colour|color} my $k is", "the {colour|color} of my $k", "what colour my $k has"), "the colour of my $k", "Your $k is $v.", tuple(COLOURED), weight=2)

KINDS["event"] = Kind(
    "event_time",
    ("my $k is $v", "I have {a|my} $k $v", "the $k is $v", "my $k {starts|begins|takes place|will be|was moved to be} $v", "{there is a|we have a} $k $v", "my next $k is $v", "they {planned|booked|put} my $k $v", "I've got {a|my} $k $v", "I booked {a|my} $k $v"),
    ("when is my $k", "when do I have my $k", "when {does|will} my $k {start|begin|take place|be}", "at what time is my $k", "what {day|time} is my $k", "when's {my|the} $k", "when did I say my $k is", "when do I have to be at my $k", "what day do I have my $k"),
    ("when my $k is", "when I have my $k", "when the $k {is|starts}", "the time of my $k"), "when my $k is", "Your $k is $v.", tuple(EVENTS), weight=2)

KINDS["price"] = Kind(
    "price",
    ("my $k cost {me |}$v", "I paid $v for my $k", "the $k was $v", "I bought my $k for $v", "the price of my $k was $v", "I spent $v on my $k", "they asked $v for my $k"),
    ("{how much|what} did {my $k cost|I pay for my $k|I spend on my $k}", "what was the price of my $k", "how much was my $k", "how expensive was my $k"), ("how much my $k cost", "what I paid for my $k", "the price of my $k"), "the price of my $k", "Your $k cost $v.", tuple(COLOURED + THINGS), weight=.8)

KINDS["allergy"] = Kind("allergy", ("{I'm|I am} allergic to $v", "I can't {eat|stand|be near} $v because of my allergy", "I have {an|a bad} allergy to $v", "$v {make|makes} me sneeze, I'm allergic", "my allergy is {against|to} $v"),
    ("what am I allergic to", "what's my allergy", "{which|what} allergy do I have", "what can't I have because of my allergy", "what makes me sneeze"), ("what I'm allergic to", "my allergy", "which allergy I have"), "my allergy", "You are allergic to $v.", weight=.8)
KINDS["instrument"] = Kind("instrument", ("I play the $v", "I'm learning {to play |}the $v", "I've played the $v {for years|since I was six|}", "I practise the $v {every day|on weekends|}", "my instrument is the $v", "I take $v lessons"),
    ("{which|what} instrument do I play", "what do I play", "what's my instrument", "what instrument am I learning", "what instrument did I say I play"), ("{which|what} instrument I play", "my instrument"), "my instrument", "You play the $v.", weight=.8)
KINDS["hobby"] = Kind("hobby", ("my hobby is $v", "I {love|enjoy|really like} $v", "in my free time I {enjoy|love|do a lot of} $v", "I spend my weekends $v", "I'm into $v", "my {great |}passion is $v", "I do a lot of $v {after work|at weekends|}"),
    ("what's my hobby", "what do I {like|love|enjoy} doing", "what do I do in my {free|spare} time", "{which|what} hobby do I have", "what am I into", "what's my passion"), ("what my hobby is", "what I do in my free time", "my hobby"), "my hobby", "Your hobby is $v.", weight=1)
KINDS["language"] = Kind("language", ("I {speak|am learning|study} $v", "I'm learning $v", "my mother tongue is $v", "I'm trying to learn $v", "I'm taking $v classes", "at home we speak $v"),
    ("{which|what} language do I speak", "{which|what} language am I learning", "what language did I mention", "what do I speak at home", "which tongue do I speak"), ("{which|what} language I {speak|mentioned}", "my language"), "my language", "Your language is $v.", weight=.8)
KINDS["car"] = Kind("car", ("I drive a $v", "my car is a $v", "I {have|own|bought|got} a $v", "I just bought a $v", "there's a $v in my garage", "I get around in a $v", "I get to work in my $v"),
    ("{what|which} car do I {drive|have|own}", "what do I drive", "what kind of car {do I have|is mine}", "what {make|brand} is my car", "what car is mine", "what do I get around in"), ("{what|which} car I drive", "what I drive", "the make of my car"), "what you drive", "You drive a $v.", weight=.8)
KINDS["study"] = Kind("subject", ("I study $v", "I'm studying $v", "I'm a student of $v", "I'm taking a degree in $v", "my subject is $v", "at university I do $v", "I teach $v"),
    ("what do I study", "what am I studying", "{which|what} subject do I {study|do}", "what's my {subject|major|field}"), ("what I study", "my subject"), "my subject", "Your subject is $v.", weight=.6)

# Facts about other people: the key is a name.
_P = ("@name",)
KINDS["their home"] = Kind("city", ("$k lives in $v", "{my friend |}$k {lives|is living|has a flat|has a house} in $v", "$k {just |}moved to $v", "$k's {home|house|flat} is in $v", "I visited $k in $v", "$k comes from $v", "$v is where $k lives", "my {cousin|friend|pal|old friend|colleague} $k is in $v now", "$k settled in $v", "I know $k, who lives in $v"),
    ("where does $k live", "{which|what} {city|town} does $k live in", "where is $k's {home|house}", "in {which|what} city does $k live", "where did $k move to", "where can I {find|visit} $k", "where is $k {living|now}"), ("where $k lives", "which city $k lives in", "where to find $k"), "where $k lives", "$k lives in $v.", _P, 2.5)
KINDS["their job"] = Kind("job", ("$k works as $a $v", "$k is $a $v", "{my friend |}$k {became|is training to be} $a $v", "$k's job is {being |}$a $v", "$k earns a living as $a $v", "I know $k, who is $a $v"),
    ("what does $k do {for a living|for work|}", "what{'s| is} $k's {job|profession}", "what does $k work as", "{which|what} job does $k have", "how does $k earn money"), ("what $k does", "what $k's job is", "$k's job"), "$k's job", "$k works as $a $v.", _P, 1.5)
KINDS["their food"] = Kind("food", ("$k {loves|likes|adores|eats a lot of} $v", f"$k's {FAVOURITE} food is $v", "$k always eats $v", "what $k likes best is $v", "$k can't get enough of $v"),
    ("what does $k {like|love|eat|adore}", f"what{{'s| is}} $k's {FAVOURITE} food", "what food does $k like", "what can I cook for $k"), ("what $k likes", f"$k's {FAVOURITE} food"), "what $k likes", "$k likes $v.", _P, 1)
KINDS["their pet"] = Kind("pet_name", ("$k has a {dog|cat|pet|rabbit|horse} {called|named} $v", "$k's {dog|cat|pet|rabbit|horse} is {called|named} $v", "$v is the {dog|cat|pet} of $k", "the {dog|cat|pet} of $k is $v"),
    ("what is $k's {pet|dog|cat} called", "what{'s| is} the name of $k's pet", "what pet does $k have"), ("the name of $k's pet", "what $k's pet is called"), "the name of $k's pet", "The pet of $k is called $v.", _P, 1)
KINDS["their age"] = Kind("age", ("$k is $v years old", "$k {just |}turned $v", "$k is $v", "$k will be $v soon"), ("how old is $k", "what's $k's age"), ("how old $k is", "$k's age"), "how old $k is", "$k is $v years old.", _P, .7)
KINDS["their birthday"] = Kind("event_time", ("$k's birthday is $v", "$k {is coming|arrives|visits us|comes over|will call} $v", "I'm meeting $k $v", "I'll see $k $v"), ("when {is|was} $k's {birthday|visit}", "when {is $k coming|do I see $k|does $k come|am I meeting $k|does $k arrive}"), ("when $k comes", "when I see $k"), "when you see $k", "$k: $v.", _P, 0)
KINDS["their gift"] = Kind("gift", ("I {bought|got|made|have} $k $a $v", "I'm giving $k $a $v", "$k wants $a $v {for Christmas|as a present|for the birthday|}", "the {present|gift} for $k is $a $v", "I'll give $k $a $v", "for $k I bought $a $v"),
    ("what {did I buy|did I get|am I giving|should I give|do I have for} $k", "what{'s| is} {the present|the gift|my present|my gift} for $k", "what does $k get from me", "what does $k want"), ("what I bought $k", "the {present|gift} for $k"), "the gift for $k", "The gift for $k is $a $v.", _P, 1.2)
KINDS["their phone"] = Kind("code", ("$k's {number|phone number|code|extension} is $v", "the {number|code} of $k is $v", "$k gave me {the number|the code|} $v", "to reach $k, dial $v", "you reach $k {at|on} $v", "call $k on $v"),
    ("what{'s| is} $k's {number|phone number|code|extension}", "what's the number of $k", "how do I {reach|call} $k", "{which|what} number {did $k give me|do I dial for $k}"), ("$k's number", "how to reach $k", "what number $k has"), "$k's number", "The number of $k is $v.", _P, 1.2)
del KINDS["their birthday"]

# A thing with a made-up name and anything as its value: only reading the key helps.
for _values in ("word", "code", "name", "city", "colour", "number", "title"):
    KINDS[f"made up {_values}"] = Kind(
        _values,
        ("{my|the} $k is $v", "$v is {my|the} $k", "{my|the} $k {has|got|was given|gets} $v", "$k: $v", "$k = $v", "as {my|the} $k I have $v", "{my|the} $k {was|became|turned out to be|stands at|shows} $v", "I {wrote|put|picked|chose|have} $v {for|as|down for} {my|the} $k", "{my|the} $k? {it's|that's} $v"),
        ("{what's|what is|whats|what was} {my|the} $k", "$k", "{which|what} is my $k", "what did I {say|tell you|pick|choose|write} {about|for} {my|the} $k", "what about {my|the} $k", "and {my|the} $k", "what do I have as $k"),
        ("{what |}my $k {is|was}", "my $k", "what I said about my $k"), "my $k", "Your $k is $v.", ("@made up",), weight=.15)

# Wrappings around tells and asks.
BEFORE_TELL = """|||||||hi, |hello, |hey, |hey there, |good morning, |by the way, |btw |oh, |oh and |also, |and |well, |so, |ok so |just so you know, |just so you know: |please remember: |remember: |
remember that |please remember that |note that |fyi |for your information: |you should know that |I should mention that |I should tell you that |did I tell you that |did you know that |listen, |look, |don't forget: |
keep in mind that |something else: |one more thing: |I want you to know that |let me tell you: |let me tell you that |for the record, |to be honest, |actually, |important: |note to self: |before I forget: |before I forget, |I guess I forgot to say that |
another thing: |in case you wonder, |you know, |I think I said that |please note: |write this down: |can you remember that |could you keep in mind that |can you remember this: |I need you to remember that |a secret: |make a note: |yes, |yeah, |right, |hmm, |haha, """.replace("\n", "").split("|")
AFTER_TELL = """||||||||, don't forget|, please remember|, ok?|, okay?|, keep that in mind|, just so you know|, got it?|, remember that|, thanks|, by the way|, you know|, I think|, please don't forget it|, so remember it| by the way| btw|
, can you remember that?|, please keep it in mind|, that's important|, don't tell anyone|, in case you need it|, as you know|, will you remember?|, if you must know|, for what it's worth| :)|, don't lose it|, try to remember|, I'll ask you later|, haha|, lol| please remember| ok|, and that's that|, I'm sure""".replace("\n", "").split("|")
BEFORE_QUESTION = """||||||||hey, |so, |ok, |okay, |quick question: |question: |and |now, |sorry, |by the way, |please, |I forgot, |I forget, |I can't remember, |help me out: |tell me, |tell me: |say, |well, |hmm, |one question: |
now tell me, |remind me, |remind me: |can you tell me, |do you remember, |just checking: |let's see, |test: |I wonder, |be honest, |umm, |uh, |oh, |hi, |hello, |thanks, |great, |my memory is bad, |come on, |wait, |once more: |ok now, """.replace("\n", "").split("|")
AFTER_QUESTION = "||||||||||| again|, again| please|, please| by the way|, do you know|, do you remember| now|, I forgot|, can you tell me| then|, if you remember|, do you still know| exactly|, any idea|, I can't remember|, remind me".split("|")
BEFORE_CLAUSE = """do you know |do you remember |do you know |do you remember |do you recall |do you still know |do you still remember |can you tell me |can you remember |can you remind me |can you say |can you recall |could you tell me |could you remind me |tell me |tell me |please tell me |I forgot |I forget |I can't remember |I don't remember |remind me |remind me please |
I want to know |I'd like to know |I need to know |I wonder |would you tell me |have I told you |did I tell you |did I mention |any idea |do you happen to know |I've forgotten |are you able to tell me |let me hear |I would like to hear |say |quick, tell me |you know |you remember |
I'm trying to remember |please remind me |let's see if you remember |let's see if you know |I hope you remember |I bet you don't remember |can you still tell me |what do you know about |give me """.replace("\n", "").split("|")
