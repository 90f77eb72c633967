"""Ways to tell and to ask every kind of fact. `$v` is the value, `$k` the thing it belongs to, `$a` is "a" or "an" before the value.

Templates are for `grammar.expand`. Asks come in three forms: questions, clauses ("do you know" + clause) and noun phrases ("remind me of" +
phrase), so that `dialogues` can wrap them in many more ways. `held_out_way` keeps one way of speaking in ten from training.
"""

import zlib
from dataclasses import dataclass, replace
from random import Random

from . import grammar, ways

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
    also: tuple[str, ...] = ()  # ways to go on with a second fact of the kind: "my dog is called Rex" + ", the cat " + ...

    @property
    def nouns(self) -> tuple[str, ...]:
        """The clauses that are noun phrases: "my $k code"."""
        return tuple(c for c in self.clauses if c.startswith(_NOUN))

    @property
    def indirect(self) -> tuple[str, ...]:
        """The clauses that are not: "what my $k code is"."""
        return tuple(c for c in self.clauses if not c.startswith(_NOUN))


_NOUN = ("my ", "the ", "$k's ")


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
COUNTED = """chairs|guests|eggs|children|books|apples|tickets|cats|students|plates|rooms|windows|bikes|stamps|coins|sheep|trees|lamps|cups|players|cousins|
plants|boxes|hats|brothers|sisters|grandchildren|horses|guitars|shoes|neighbours|keys|pencils|dolls|clocks|tattoos|cameras""".replace("\n", "").split("|")

KINDS: dict[str, Kind] = {}

KINDS["name"] = Kind(
    "name",
    ("{let me|allow me to|may I|I'd like to|I want to|I should} {introduce myself|say who I am|tell you my name|present myself}{: |, |. }{I'm|I am|my name is|the name is|it's} $v",
     "you {asked|wanted to know|were asking} {my name|who I am|what I'm called}{: |, |. |, well, }{it's|it is|I'm|I am} $v",
     "{my name|the name}? {$v|It's $v|That's $v|That would be $v|Just $v|$v, like always}",
     "{most people|my friends|the kids|the neighbours|my classmates|the others} {call me|know me as|refer to me as|say} $v",
     "{my family|my grandma|my wife|my team|everyone|the whole village|nobody but my mum} calls me $v",
     "I've {always |}been {called|known as} $v{ since I was born| since school| all my life|}",
     "{on paper|officially|online|in this chat|at the office|in my passport} {I'm|I am|my name is|I'm called} $v",
     "{I'm|I am} {new here|a bit shy|a visitor|just looking around|back again|the new one|in a good mood} {and my name is|and people call me|and you can call me|and I'm called} $v",
     "{I have a question|I need some help|I'm just testing|I wanted to try this}. {I'm|My name is|I'm called|The name's} $v",
     "{my name is spelled|my name is written|you spell my name|you write my name} $v", "the name {you should|to} {remember|write down|use} for me is $v",
     "$v, {that's my name|if you want my name|that's how people call me|that's what it says on my badge}",
     "a {man|woman|person|girl|boy|human} {called|named|by the name of} $v is {writing|talking} to you", "{not many people|few people} are {called|named} $v, but I am",
     "my {parents|mum and dad|grandparents} {chose|picked|settled on|decided on} {the name |}$v{ for me| when I was born|, and here I am|}",
     "I {don't like my full name|hate nicknames|have a long name|changed my name}, so {just |please |}{call me|say} $v", "{who am I|me}? {I'm|I am} $v",
     "{as you may know|as I said|as my badge says|if you want to know}, {I'm|I am|my name is} $v",
     "I {hope|think|guess} you {can|will} remember {my name|who I am}, {it's|it is|I'm} $v",
     "they {wrote|put|printed} $v on my {badge|name tag|door|desk|ticket}, {that's my name|that is me}",
     "your {user|guest|visitor|chat partner|partner} today is {called |named |}$v", "you have the {pleasure|honour} of {talking|chatting|speaking} {to|with} $v",
     "my name{, if you want to know, is|, since you ask, is|, as always, is|, by the way, is} $v",
     "{I'm|I am} $v{, not a robot|, the one with the questions|, and I love {trains|coffee|the sea|books}|, I live next door|, I just arrived|. {What can you do|Can we talk|How does this work|How is your day}?}",
     "my name{'s| is} $v", "{I'm|I am|Im} $v", "{I'm|I am} called $v", "{people|they|friends|my friends|all my friends|folks|everyone|everybody} {call|calls} me $v",
     "{you can|you may|please|just|} call me $v", "{this is|it's|it is} $v {here|speaking|}", "$v {here|is my name|is what they call me|is the name|speaking|is who I am}",
     "the name{'s| is} $v", "I go by {the name of |the name |}$v", "I go by $v", "I was {named|christened|baptised} $v", "my {parents|mother|father|mum|dad|family} {named|called} me $v",
     "{I'm|I am} known as $v", "my {friends|mates|colleagues|neighbours} know me as $v", "{my first name|my full name|my given name|my nickname}{'s| is} $v",
     "$v is {my first name|what I go by|how people know me|the name I go by|my nickname}", "I {answer|listen} to {the name |}$v", "the name I {use|go by|got|was given} is $v",
     "you're {talking|chatting|speaking} {to|with} $v", "{at work|at home|at school|here} {they|people|they all} call me $v", "I introduce myself as $v", "name: $v", "name{'s|} $v",
     "{I'm|I am} $v, {nice to meet you|pleased to meet you|who are you|a new user|and you|by the way}", "I'd like {you to call me|to be called} $v", "{they named me|I got the name} $v",
     "{my|the} name on my {passport|badge|birth certificate|card} is $v", "{the one|the person} {typing|talking to you|writing this} is $v", "people usually say $v to me", "{I'm|I am|my name is|my name's|I'm called} $v and I {am new here|like to chat|have a question|work nights|just woke up|would like to try this|am from the north|am a bit tired|am $v, remember|need some help|want to talk}",
     "the person you are talking to is $v", "you can refer to me as $v", "I'm the famous $v", "{call|name} me $v from now on", "I'd be $v", "{I'm|I am} your friend $v", "it is $v who writes this", "among friends I'm $v", "for you I'm $v", "they usually shout $v when they want me",
     "I got my name from my grandparent: $v", "I sign my letters with $v", "you may know me as $v", "my username is $v", "signed, $v", "my mates say $v"),
    ("{which|what} name {did you {note|store|save} for me|do you have for me|have you got for me|is mine}",
     "{what|which} name {should|would} you {put|write|print} on my {card|badge|cup|door}",
     "if you {had to|wanted to} {call me|greet me|write to me}, {what|which} name would you {say|use}", "{greet|say hello to|wish good night to|thank} me by {name|my name}",
     "{say|write|spell|repeat} my {name|first name}{ out loud| once|}",
     "{I'm filling in a form|someone asks who I am|they want to know who I am|I have to sign this|I need a name tag}{, |. }{what|which} name {do I {put|write|give}|should I give|is mine}",
     "{who|and who} {might|could|would} I be", "who's the {person|human|user} {you're helping|writing this|typing this|you are chatting with}", "my name is {what|which}",
     "you still {know|remember} {my name|who I am|what I'm called}, {right|don't you|yes}",
     "did I {tell you|mention|say} {my name|who I am|what I'm called}{ before| already|}",
     "{under|by} {which|what} name {did I introduce myself|do you know me|have you saved me}", "what did you {just |}learn about my name",
     "{what|which} name {comes with my face|did my family give me|do I sign with|do I answer to|is on my badge}", "{and|what about} my name",
     "{what|how} {do|would} people {shout|call me} when they want {me|my attention}",
     "{what's|what is|whats|what was} my name", "who am I", "what am I called", "what do {people|they|my friends|you|others} call me", "what name do I {go by|have|use}",
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
    ("I have a {new |}$k{. |, |, and }{its|the} {code|combination|pin|number} is $v",
     "{there's|there is|I put|they put|we have} a {lock|code|combination lock|keypad|number lock} on {my|the} $k{: |, |. }{it's|it is|the code is|the number is|you need|it takes|it opens with} $v",
     "{my|the} $k has a {code|keypad|lock|pin}{: |, namely |, it's |. It's |. The number is |. You type }$v",
     "{after|since|because of} {the break-in|the update|the move|last week} {the|my} $k has a new {code|pin|combination}{: |, |, it's |. It's }$v",
     "{the code|the pin|the combination|the number} {that|which} {opens|unlocks|works for|belongs to|goes with|fits} {my|the} $k is $v",
     "the {code|combination|pin|number} {was|has been|is} {set|changed} to $v {on|for} {my|the} $k", "{my|the} $k {was|is|has been} {set|programmed} to {open with |}$v",
     "$v{, |: |. }{that's|this is|that is} {the code|the pin|the combination|the number|the key} {for|to|of} {my|the} $k",
     "$v {works|is right|does it|is the one} for {my|the} $k",
     "{if|when|whenever} {you|I|we} {open|unlock|need to open|want to open} {my|the} $k, {it's|the code is|the number is|type|press} $v",
     "if I {ever |}{forget|lose|need} {my|the} $k code, {it's|it is|tell me it's|remind me that it's} $v",
     "don't {let me forget|forget|tell anyone|lose} {my|the} $k code{, it's|:|, which is|. It's} $v",
     "I {always forget|keep forgetting|can never remember|have to remember|just learned|wrote down|got a letter with} {my|the} $k {code|pin|combination|number}{. It's|, it's|: it is|, which is} $v",
     "you {wanted|asked for|need} {my|the} $k {code|pin|number}{: |, it's |. It's |? It's }$v",
     "they {changed|reset|updated} the {lock|code|pin} {on|of} {my|the} $k{, now it's|. It's now|, it became|. The new one is} $v",
     "to get {my|the} $k {open|unlocked} {you|I|we} {type|enter|use|dial|press|need} $v", "press $v {on|at} {my|the} $k",
     "$k {pin|number|combination|code|combo}{: | = | is | }$v",
     "{my|the} $k {code|pin|combo|combination} {would be|should be|happens to be|has been|stays|remains} $v{ since May| for years|}",
     "{you|we|they} {can|could} {open|unlock} {my|the} $k with $v", "only $v {opens|unlocks} {my|the} $k",
     "{somebody|my wife|the man at the desk|the manual|a letter} {told me|said|says} {the|my} $k code is $v",
     "{I was|I'm|I just stood} {at|next to|in front of} {my|the} $k{ and|,} {the code was|the number was|I typed|I used} $v",
     "my $k? {|It's |That's |You type |The code is }$v", "{my|the} $k {code|pin}{, if you need it, is|, by the way, is|, as always, is|, before I forget, is} $v",
     "my $k code{'s| is} $v", "the code {for|to|of|on} {my|the} $k {is|'s} $v", "$v {opens|unlocks|is for|gets you into} {my|the} $k", "{my|the} $k {opens|unlocks} with $v",
     "I {set|changed|reset} {my|the} $k code to $v", "I {set|changed} the {code|combination|pin|number} {of|on|for} {my|the} $k to $v", "to {open|unlock|get into} {my|the} $k {you need|use|type|enter|dial|punch in|press|you type|I type|I use} $v",
     "$k code: $v", "I use $v {for|to open|to unlock|on} {my|the} $k", "{my|the} $k{'s| has the} {code|combination|pin|number|PIN} {is |} $v", "the {combination|pin|PIN|number|digits} {for|of|to} {my|the} $k {is|are} $v",
     "my $k {pin|combination|number|PIN|key code}{'s| is} $v", "$v is {the code|the combination|the pin|the number} {for|of|to} {my|the} $k", "$v is my $k code", "{my|the} $k needs {the code|code|} $v",
     "the {number|code|thing} that {opens|unlocks} {my|the} $k is $v", "{type|enter|use|press|dial} $v {to open|to unlock|to get into} {my|the} $k", "my code for the $k is $v", "{my|the} $k is locked with {code|} $v",
     "they gave me {code|the code|} $v for {my|the} $k", "my new $k code is $v", "{my|the} $k only opens {with|if you type|when you enter} $v", "{I have|I've got|I've} {written down|memorised|picked|chosen} $v {for|as the code for} {my|the} $k",
     "$k: $v", "the lock on my $k {is set to|takes|opens at|has} $v", "you get into my $k with $v", "my $k has a new code, {it's|it is|namely} $v", "I have a $k, {its code is|the code is|code} $v", "there's a lock on my $k, $v opens it", "my $k, {code|number|that's|it's} $v", "remember $v, it {opens|unlocks|is for} my $k", "$v gets my $k open", "my $k listens to $v",
     "the digits for {my|the} $k {are|would be} $v", "we have a $k with {the code|code|number} $v", "for {my|the} $k {it's|you need|use|take|try|dial|I use|remember} $v", "I locked my $k with $v", "{my|the} $k is protected {by|with} $v", "without $v you can't open my $k"),
    ("I'm {standing {at|in front of|by}|right in front of|back at|next to} {my|the} $k{ now|}{, |. }{what do I {type|press|dial|need}|which code do I need|what's the code|how do I open it|which numbers do I press|the code, please|what was the code again}",
     "{my|the} $k {stays shut|is closed|is locked|doesn't open|is asking for {a|the} {code|number|pin}|shows a keypad|wants its code}{, |. }{what do I {type|press|need}|what's the code|which number is it|help me|which digits do I need|what's the right code}",
     "I {want|need|have|am trying|would like} to {open|unlock|get into} {my|the} $k{, |. | but }{what do I {type|press|dial|need}|what's the code|I don't know the code|I forgot the {code|number}|which code is it|the code is gone from my head}",
     "{I locked myself out|I can't get in|I'm stuck|I'm locked out}{, |. |: }{what's|what is|what was} the {code {for|of}|pin for|number for} {my|the} $k",
     "{somebody|my friend|my wife|my brother|a guest} {wants|needs|has} to {open|unlock|get into} {my|the} $k{, |. }{what should I say|which code do I {give|tell} them|what do they type|what's the code}",
     "{and|what about|how about|now} {my|the} $k", "{my|the} $k, {what opens it|what was the code|which code was it|code please|how do I open it}",
     "$k {code|pin|combination|combo|number}{| again| please| pls}", "the {code|pin|combination|number} {for|of} {my|the} $k {is|was} {what|which}",
     "{which|what} {code|combination|pin|number} {belongs to|goes with|works on|works for|fits|did I tell you for|did I give you for|have I set on|is on} {my|the} $k",
     "{with|by using} {what|which} {code|number|digits|combination} {can I|do I|do you|could I} {open|unlock} {my|the} $k",
     "how {can|could|should} {my|the} $k be {opened|unlocked}", "{which|what} {number|code} {keeps|holds} {my|the} $k locked",
     "is there a code {for|on} {my|the} $k{, and which|. Which one|, and what is it}",
     "{what|which} {numbers|digits|code} {should|must|would} I {type|press|enter|dial|use} {for|at|on} {my|the} $k",
     "{what's|what is|whats|what was} my $k code", "what{'s| is} the {code|combination|pin|number|PIN} {for|of|to|on} {my|the} $k", "{which|what} {number|code|combination|digits|pin} {opens|unlocks} {my|the} $k",
     "how do I {open|unlock|get into} {my|the} $k", "what opens my $k", "{what|which} code did I {set|give you|tell you|mention|choose} for my $k", "what do I {type|enter|dial|press|use|punch in|need} to {open|unlock|get into} my $k",
     "what{'s| is} my $k {pin|combination|number|PIN}", "what{'s| are} the {digits|numbers} {for|of} my $k", "what is my code for the $k", "what code {opens|does} my $k {|need|have|}", "$k code",
     "what did I say {my|the} $k code was", "with {what|which} {code|number} does my $k open", "{which|what} {code|number} do I need for {my|the} $k", "what was {the code|the number|it} for my $k", "what did I set my $k to", "I {want|need|have|forgot how} to {open|get into|unlock} my $k, {what's|what is|which is|what was} {it|the code|the number|the combination|the pin}", "my $k is locked, {how do I open it|what's the code|which code do I need}", "{what do you know|what can you tell me} about my $k",
     "my $k {asks for|wants|needs} {a code|a number|a pin}, which one", "{which|what} digits does my $k {take|need|want}", "what makes my $k open", "what's the secret of my $k", "how can I get my $k open", "what's the key to my $k", "do you have my $k code", "have I told you the code of my $k"),
    ("what my $k code {is|was}", "my $k code", "the {code|combination|pin|number} {for|of|to} my $k", "how to {open|unlock|get into} my $k", "what the code {for|of|to} my $k {is|was}", "{what|which} {code|number} {opens|unlocks} my $k",
     "what opens my $k", "what to {type|enter|dial|press} {for|at} my $k", "how my $k opens"),
    "my $k code", "Your $k code is $v.", tuple(LOCKS), weight=9)

KINDS["password"] = Kind(
    "word",
    ("{you need|there's|we have} a {password|word} for {my|the} $k{: |, it's |. It's }$v", "{visitors|my kids|friends|we all} {log in|get in|sign in} to {my|the} $k with $v",
     "{if|when|whenever} {you|I|people|friends} {log into|use|need|want to use} {my|the} $k, {the password is|type|use} $v",
     "I {made|chose|took|picked|invented} a {new|simple|silly|better} password for {my|the} $k{: |, it's |. It's }$v",
     "{my|the} $k is {protected|secured|locked} with {the word |the password |}$v", "{my|the} $k {password|login|pass} {was|has been|is} {changed|set|reset} to $v",
     "$k {pass|password|login}{: | is | = }$v", "$v{, |: }that's {the password|the word|what you type} for {my|the} $k",
     "the password {that|which} {works for|belongs to|goes with|gets you into} {my|the} $k is $v",
     "I {keep forgetting|always forget|have to remember|can never remember} {my|the} $k password{, it's|. It's|:|, which is} $v",
     "don't {tell anyone|forget|lose|let me forget} {my|the} $k password{, it's|:|. It's} $v", "you {asked for|wanted|need} {my|the} $k password{: |, it's |. It's |? It's }$v",
     "the {word|thing} you {type|need|enter} {for|on} {my|the} $k is $v", "type $v {when|if} {my|the} $k asks {for a password|who you are|for it}",
     "{my|the} $k {password|login}? {|It's |That's }$v", "{my|the} $k password{, by the way, is|, if you need it, is|, as always, is} $v",
     "my $k password{'s| is} $v", "the password {for|to|of} {my|the} $k {is|'s} $v", "I {set|changed} my $k password to $v", "$v is {my|the} $k password", "$k password: $v", "{you can |}log into my $k with $v",
     "I use $v {as the password for|as my password for|to log into} {my|the} $k", "my $k password is the word $v", "to {log into|get on|use} {my|the} $k {type|use|enter|you need} $v", "my password for the $k is $v",
     "my $k login is $v", "for {my|the} $k {I picked|I chose|we picked|use} the {password|word} $v", "{my|the} $k lets you in with $v", "my new $k password is \"$v\"", "the $k asks for {a password, it's|the password} $v"),
    ("I {want|need|have|am trying} to {log into|sign in to|use|get on|connect to} {my|the} $k{, |. | but }{what do I type|what's the password|I forgot the password|which password is it|I don't know the password}",
     "{my|the} $k {asks for|wants|needs|is asking for} {a password|my password|the password}{, |. }{which one|what is it|what do I type|help me|what was it}",
     "{a friend|somebody|my sister|the visitor} {wants to use|needs|asks for|would like to use} {my|the} $k{, |. }{what's the password|which password do I give|what do I tell them to type}",
     "I'm {not logged in to|stuck at the login of|no longer in} {my|the} $k{, |. }{what's the password|which password do I need|what was my password}",
     "{and|what about|how about} {my|the} $k password", "{my|the|} $k {pass|password|login}{| again| please| pls}",
     "{which|what} {password|word} {opens|unlocks|belongs to|works for|did I tell you for|gets me into} {my|the} $k", "the password {for|of} {my|the} $k {is|was} what",
     "with {what|which} {word|password} do I {log into|open|get on} {my|the} $k", "what do I {enter|write|type} as {the|my} $k password",
     "how {do|can|could} {I|we|people} get {on|into} {my|the} $k", "the password {for|of} {my|the} $k, {what was it|which one was it|please|do you have it}",
     "{what's|what is|whats|what was} {my|the} $k password", "what{'s| is} the password {for|to|of} {my|the} $k", "how do I {log into|get on|get into|sign in to} {my|the} $k", "{which|what} {word|password} did I {set|choose|pick} for my $k",
     "what do I type to {log into|get on} {my|the} $k", "$k password", "{which|what} password {goes with|do I need for|did I give for} {my|the} $k", "what's my password for the $k", "what did I say the $k password was"),
    ("what my $k password {is|was}", "my $k password", "the password {for|to|of} my $k", "how to {log into|get on} my $k", "which password {I chose|goes with|I use} for my $k", "what the $k password {is|was}"),
    "my $k password", "Your $k password is $v.", tuple(ACCOUNTS), weight=3)

KINDS["secret"] = Kind(
    "word",
    ("{please |}use $v as the $k", "we {settled|voted|decided} on $v {as|for} the $k", "the $k {was|has been} {changed to|set to} $v",
     "the $k{, by the way,|, as always,|, I think,|, if anyone asks,} is $v", "for the $k {we|I} {took|use|chose|want} $v", "you asked for the $k{: |, it's |. It's }$v",
     "there is a $k{: |, it's |. It's |, namely }$v", "$v{, |: }{that's the $k|remember it, it's the $k}", "the $k? {It's|That's} $v",
     "the $k{'s| is} $v", "$v is the $k", "our $k is $v", "{today's|the new|this week's} $k is $v", "the $k {for today|I chose|we picked|they gave me|they told me} is $v", "$k: $v", "we {chose|picked|agreed on} $v as the $k",
     "I'm using $v as the $k", "the $k is the word $v", "the $k is \"$v\"", "if anyone asks, the $k is $v", "they made $v the $k", "let $v be the $k", "as {the|a} $k we have $v"),
    ("{someone|a friend|the guard} {asks|asked} {me |}for the $k{, |. }{what do I say|what is it|what's the right answer}",
     "I need the $k{ now|}, {what is it|what was it|which was it}", "{and|what about} the $k", "the $k {is|was} what", "what did we {choose|pick|agree on} {as|for} the $k",
     "what do we use as the $k", "do we have a $k, and what is it", "the $k, {what was it|which one was it|do you know it}",
     "{what's|what is|whats|what was} the $k", "{which|what} {word |}did I {choose|tell you|give you|mention} {as|for} the $k", "what's {our|today's} $k", "the $k", "what did I say the $k was", "{which|what} one is the $k", "what was that $k"),
    ("what the $k {is|was}", "the $k", "what I said the $k was", "what our $k is"), "the $k", "The $k is $v.", tuple(SECRETS), weight=2.5)

KINDS["relation"] = Kind(
    "name",
    ("I have a $k{. |, |; }{{his|her|the} name is|{he|she} is called|{he's|she's} called|everyone calls {him|her}|I call {him|her}|{he|she} goes by} $v",
     "my $k {came|rang|arrived|called|phoned|stopped by|left|got married|moved out}{ today| yesterday| this morning|}. {{His|Her|The} name is|{He|She} is called|{He's|She's} called|We call {him|her}} $v",
     "my $k {is here|is visiting|is coming|is asleep|is at work|is on the phone}. {{His|Her|The} name is|{He|She} is called|{He's|She's} called|We call {him|her}} $v",
     "{today|yesterday|last night|on Sunday} I {met|saw|visited|phoned|had tea with|went out with|argued with|was with|cooked for} {$v, my $k|my $k $v|my $k, $v}",
     "$v {is|has always been} my $k{, by the way|, in case you wonder|, you know|}",
     "$v, {who is|who's|he's|she's|that is} my $k, {is here|came to see me|is calling|works a lot|made dinner|likes you|is asleep|has a cold}",
     "{the person|the one} who is my $k is called $v", "my $k's {full |real |}name {would be|happens to be|has always been} $v",
     "with my $k $v I {went to the sea|talk every day|share a car|work on Fridays|play chess}",
     "{no one cooks|nobody laughs|nobody drives|nobody snores|no one sings} like my $k $v",
     "{thanks to|because of|together with} my $k $v I {am here|found this job|learned to swim|moved here}",
     "{if|when} you {meet|see|hear} my $k, {{his|her} name is|call {him|her}|ask for} $v",
     "$v and I {are close|go way back|talk a lot|get on well}{, |; |. }{he's|she's|he is|she is} my $k", "do you know $v? {He's|She's|That's} my $k",
     "{guess who called|guess who's here|look who wrote}? $v, my $k", "a {nice|funny|kind|tall|quiet|strict} {person|soul|human} {called|named} $v is my $k",
     "my $k? {{His|Her} name is|{He's|She's} called|We call {him|her}|That would be|} $v",
     "my $k is {married|retired|thirty|from abroad|very tall|at home} and {is called|{his|her} name is|goes by} $v",
     "you {asked|wanted to know} {who my $k is|my $k's name|what my $k is called}{: |, |. |? }{it's|that's|{he's|she's} called|{his|her} name is} $v", "I call $v my $k",
     "my $k{, whose name is|, who goes by|, called} $v, {likes tea|lives far away|is a funny one|never sleeps|works too much}",
     "my $k{'s| is} {called|named} $v", "my $k's name{'s| is} $v", "$v is my $k", "I have a $k {called|named|whose name is} $v", "my $k {goes by|answers to} $v", "my $k is $v", "the name of my $k is $v",
     "my $k $v {came by yesterday|called me today|is very kind|says hello|is coming for dinner|was here this morning|just left|is on holiday|made me laugh|helped me a lot|is ill today|cooks very well}",
     "I {visited|met|saw|called|talked to|had lunch with} my $k $v {today|yesterday|this morning|last week|}", "my $k, $v, {is great|is very tall|works a lot|lives nearby|loves to talk|just called}",
     "{we call|everyone calls|I call|people call} my $k $v", "$v is {the name of my $k|what my $k is called|how we call my $k|my $k's name}", "you should meet $v, my $k", "that was $v, my $k", "my $k was {named|christened} $v", "$k: $v",
     "I'm {going to see|staying with|waiting for} $v, {who is |}my $k", "my new $k is {called|named} $v", "there is my $k, $v {is the name|by name}", "I have a $k {and|,} {his|her|the} name is $v", "I've got a $k, {he|she} is called $v", "my $k is a {man|woman|person} {called|named} $v", "$v, that's my $k", "you know my $k? {It's|That's} $v", "$v is {a|the} name my $k {has|got}", "my $k's {first |}name would be $v",
     "one of my family, my $k, is $v", "as a $k I have $v", "$v has been my $k for {years|a while|ages}", "my dear $k $v {sends greetings|told me about you|turns fifty soon|loves books|is a genius|lives with me}", "I was with $v, my $k, {today|last night|in town}"),
    ("{and|what about|how about|now} my $k{|, {what's the name|what is {his|her} name|what's {he|she} called}}",
     "my $k, {what's {his|her} name|what was {he|she} called|do you know the name|name please|what do I call {him|her}}", "{who's|who is|who was} {that|this} $k of mine",
     "{who} {was|would be|did I say is|did I mention as|do I have as} my $k", "what {is|was} that $k of mine called",
     "I {want to|have to|need to|am about to|should} {call|write to|invite|introduce|email|greet} my $k{, |. | but }{what's {his|her} name|I forgot the name|{his|her} name is gone|how is {he|she} called|which name do I write|what name do I {put|write|say}}",
     "my $k {is coming|is here|is at the door|just called|wrote to me|has a birthday}{, |. }{what's {his|her} name|what was the name|what is {he|she} called|which name was it}",
     "{what|which} name {{did you note|do you have|have you got|should I write} for|belongs to|goes with} my $k", "the name of my $k {is|was} what",
     "my $k is called {what|how}", "{can|could} you name my $k", "how {do you spell|would you write} my $k's name", "what was the name of my $k{ again|}",
     "how {do|did} {we|I|people} call my $k",
     "{what's|what is|whats|what was} my $k's name", "who{'s| is} my $k", "what is my $k {called|named}", "what's the name of my $k", "{which|what} name does my $k have", "how is my $k called", "what do {I|we|people} call my $k", "my $k's name",
     "what did I say my $k {was|is} called", "what name did I {give|tell you|mention} for my $k", "who did I say my $k {is|was}", "what does my $k go by", "what was my $k called", "{what do you know|what can you tell me} about my $k", "I forgot my $k's name, what is it", "do you know my $k", "by what name do I know my $k", "who would my $k be", "do you remember my $k's name", "have I told you about my $k", "name my $k", "which person is my $k", "who is it that is my $k"),
    ("what my $k's name is", "who my $k is", "what my $k is called", "my $k's name", "the name of my $k", "how my $k is called", "what my $k was called"),
    "my $k's name", "Your $k is called $v.", tuple(RELATIONS), weight=5)

KINDS["pet"] = Kind(
    "pet_name",
    ("{I|we} {have|own|keep|got|adopted|look after|live with} a $k{. |, |; }{{his|her|its|the} name is|{he|she|it} is called|{he's|she's|it's} called|we call {him|her|it}|the kids named {him|her|it}|{he|she|it} listens to} $v",
     "my $k {is {sleeping|outside|sick|old|young|black|lazy|crazy|very sweet}|ate my lunch|woke me up|was at the vet|ran off|makes me laugh}{ again| today|}. {{His|Her|Its|The} name is|{He's|She's|It's} called|We call {him|her|it}} $v",
     "$v is {my|our} {little|old|lazy|sweet|crazy|big|funny} $k", "my $k has a {funny|silly|nice|short|strange|lovely} name{: |, it's |. It's }$v",
     "the name we {chose|picked|found|wanted} for {our|my|the} $k {is|was} $v",
     "I'm {feeding|looking for|playing with|thinking of|sitting with|talking to} $v, {my|our} $k{, right now|}",
     "$v, {as we call our $k|our $k|my old $k|my $k}, {is asleep|is hungry|wants out|likes you|turned three|hates baths}",
     "{when|if} I {shout|call|say} $v, my $k comes{ running|}", "{our|my} $k {got|was given|has|received} the name $v{ as a baby| from the kids|}",
     "you asked {about my $k|for my $k's name}{: |, |. }{it's|{he|she|it} is called|the name is} $v", "my $k? {We call it|It's called|{He's|She's} called|That's|Meet|} $v",
     "the {smallest|oldest|loudest|best} member of {the|our} family is $v, {our|my} $k", "{my daughter|my son|my wife|grandma|my husband} {named|calls} {our|the|my} $k $v",
     "I'd {like you to meet|love to show you} my $k $v", "a $k {called|named|with the name} $v {lives with me|is my pet|belongs to me|shares my flat|keeps me company}",
     "my $k{, {his|her|its} name is|, whose name is|, called} $v, {is a bit lazy|needs food|is my best friend|was a present}",
     "there's a $k in my {house|garden|family|life} {called|named|and it's called|and we call it} $v",
     "my $k{'s| is} {called|named} $v", "my $k's name{'s| is} $v", "$v is {my $k|our $k|the name of my $k|what we called our $k|my $k's name}", "I have a $k {called|named|whose name is} $v", "{we|I} {just |}{got|adopted|bought|found|own|keep|rescued} a $k {called|named|and called it|and named him|and named her} $v",
     "my $k $v {sleeps all day|is so funny|ate my shoe|is getting old|loves to play|is very lazy|ran away once|is sick|is hungry|made a mess|likes the sun|barely moves}", "our $k is {called|named} $v", "my $k, $v, {is adorable|sleeps a lot|eats too much|is two years old}",
     "I {walked|fed|brushed|washed|took} {my $k $v|$v, my $k,} {to the vet |}{this morning|today|yesterday|}", "the $k is called $v", "{we call|everyone calls|I call|the kids call} {my|our} $k $v", "$k: $v", "{we|I|the kids} {named|called} {our|my|the} $k $v", "my $k {answers|listens|comes} to $v",
     "at home I have $v, {a|my} $k", "say hi to $v, my $k", "I have a $k {and|,} {his|her|its|the} name is $v", "I've got a $k, {he|she|it} is called $v", "{this is|meet|look at} $v, {my|our} $k", "my $k? {Its name is|That's|It is} $v", "we share our home with a $k named $v", "our new $k got the name $v", "the name we gave the $k is $v", "$v the $k {lives with us|is my best friend|follows me everywhere}", "I chose the name $v for my $k"),
    ("{and|what about|how about|now} {my|our|the} $k{|, {what's {its|his|her} name|what's it called}}",
     "{my|our|the} $k, {what's {its|his|her} name|what was {it|he|she} called|do you know the name|name please}",
     "I {want to call|have to register|am looking for|took a photo of|want to introduce|am going to feed} my $k{, |. | but }{what's {its|his|her} name|what was {it|he|she} called|which name do I {shout|write|use}|I forgot the name}",
     "{the vet|a child|my neighbour|someone|the form} asks {how|what} my $k is called{, |. }{what do I say|help me|do you know}",
     "what do I {shout|call out|say} when I want my $k to come{ back|}",
     "{which|what} name {belongs to|goes with|is on the collar of|did you note for|does my family use for} my $k", "the name of {my|our} $k {is|was} what",
     "{my|our} $k is called {what|how}", "{who's|who is|who was} {that|this} $k of {mine|ours}", "what {is|was} that $k of {mine|ours} called",
     "what did {we|I} end up calling {our|my|the} $k", "what was the name of {my|our|the} $k{ again|}", "how {did|do} {we|I} {name|call} {our|my} $k",
     "{what's|what is|whats|what was} my $k's name", "what is my $k {called|named}", "what's the name of my $k", "who is my $k", "how is my $k called", "what did I {call|name} my $k", "{which|what} name did I give my $k", "what do {I|we} call my $k", "my $k's name",
     "what's our $k called", "what name does my $k {have|answer to|listen to}", "what did I say my $k is called", "{what do you know|what can you tell me} about my $k", "I forgot my $k's name, what is it", "do you know my $k", "do you remember the name of my $k", "have I told you about my $k", "what do the kids call our $k", "which name did we pick for the $k", "who is the $k at home"),
    ("what my $k's name is", "what my $k is called", "my $k's name", "the name of my $k", "how my $k is called", "what I {called|named} my $k", "which name I gave my $k"),
    "my $k's name", "Your $k is called $v.", tuple(SPECIES), weight=4)

KINDS["home"] = Kind(
    "city",
    ("my {family|wife|husband|dog} and I live in $v", "{nowadays|at the moment|right now|currently} {I live|I'm living|we live|I'm staying} in $v",
     "{for ten years|since last year|since spring|for ages} {I've|we've} {lived|been living} in $v",
     "{I|we} {found|bought|rented|got} a {place|nice flat|small house|room} in $v{ last year| and we like it| and stayed|}",
     "my {flat|house|place|room|family} is in $v{, near the {station|river|park|school}|, it rains a lot there|, and I like it|}", "you'll find me in $v",
     "I {wake up|sleep|pay my rent|get my post} in $v", "the {city|town|place} {where I live|I call home|I moved to|I ended up in|I live in now} is {called |}$v",
     "$v{, |: }that's where I live", "I {call|consider} $v {my home|home}",
     "I {got a job|fell in love|finished school|needed a change} and {moved to|ended up in|settled in|now live in} $v",
     "you {asked|wanted to know} where I live{: |, it's |. It's |. In |, in }$v",
     "life in $v is {good|quiet|expensive|busy}, I {live here|moved here last year|have my home here}", "where I live? {In |It's |}$v",
     "I {go|drive|fly|take the train} home to $v", "my home{, by the way, is|, if you want to know, is|, since last year, is} $v",
     "{it's raining|it's sunny|the weather is bad|there's snow} {here |}in $v, where I live",
     "I live in $v", "{I'm|I am} living in $v", "{I've|I} {just |}moved to $v", "my {home|house|flat|apartment} is in $v", "I {have|own|rent} a {house|flat|room|small apartment} in $v", "I {stay|reside} in $v", "my home is $v", "$v is {where I live|my home|my home town now|the city I live in|where my house is}",
     "I've lived in $v {for years|all my life|since last year|for a while|}", "home is $v for me", "we live in $v", "I settled {down |}in $v", "the {city|town|place} I live in is $v", "my city is $v", "I live {near|just outside|close to} $v", "these days I live in $v", "my address is in $v", "I'm based in $v"),
    ("{what|which} {place|city|town} {do I call home|is my home|did I say is my home}", "{what|which} {city|town|place} did I {move to|settle in|end up in|call home}",
     "if you {came to see|wanted to visit} me, {where|to which {city|town}} would you {go|travel|have to go}", "where is {home|my place} for me",
     "where {would|could|can} {you|people} {find|visit} me", "where do I {sleep at night|go home to|get my post|pay my rent}",
     "my {home|house|place|city}, {where is it|which one is it|where was it}", "{and|what about} my home, where is {it|that}",
     "{someone asks|they ask|the form asks} where I live{, |. }{what do I {say|write}|what's the answer|do you know}",
     "I'm {going|driving|walking|flying} home, {where is that|to which {city|town}}", "I live {where|in which {city|town}}",
     "what's the {city|town} {I moved to|I call home|where I live}", "where {exactly |}did I say {my home is|I live|I moved}",
     "where do I live", "{what|which} {city|town|place} do I live in", "where{'s| is} my {home|house|flat|apartment}", "in {which|what} {city|town|place} do I live", "where am I living", "where did I {say I live|move to|settle}", "what's my {home town|city}", "which city is my home", "where am I based", "where is it I live", "where do I have my home"),
    ("where I live", "where my {home|house} is", "{which|what} {city|town} I live in", "where I moved to", "my city", "where I'm based"),
    "where you live", "You live in $v.", weight=3)

KINDS["origin"] = Kind(
    "city",
    ("{my family|my accent|my mother|everyone in my family} and I come from $v", "my {roots|parents|people} are {in|from} $v{, I was born there|, and I grew up there|}",
     "{as a child|when I was small|before I moved away|until I was eighteen} I lived in $v{, that's where I'm from|}", "$v{, |: }that's where I {come from|was born|grew up}",
     "I {first saw the light|was born and raised|went to school|learned to walk} in $v", "you {asked|wanted to know} where I'm from{: |, it's |. It's |. From }$v",
     "I'm a {child|native|son|daughter} of $v", "the {town|place|city} I {come from|grew up in|was born in} is {called |}$v",
     "I left $v{, my birthplace,|, where I was born,|, where I come from,} {as a child|long ago|for work|at twenty}",
     "{I'm|I am} from $v", "I come from $v", "I was born in $v", "I grew up in $v", "I {originally |}come from $v", "my birthplace is $v", "{I'm|I am} originally from $v", "$v is {where I was born|where I come from|where I grew up|my birthplace|where I'm from}", "I was raised in $v", "I spent my childhood in $v"),
    ("what's the {city|town|place} {I come from|where I was born|of my childhood|I was raised in}", "{and|what about} my {birthplace|home town|origin}",
     "where {are my roots|did I spend my childhood|did I go to school|is my family from}", "I {come|am} from where",
     "{what|which} {city|town|place} did I {leave|say I come from|call my birthplace}", "{someone asks|they ask|the form asks} where I'm from{, |. }what do I {say|write}",
     "my {birthplace|place of birth}, {what is it|which is it|where is it}",
     "where am I from", "where do I come from", "where was I born", "where did I grow up", "{which|what} {city|town|place} {am I from|do I come from|did I grow up in|was I born in}", "what's my {birthplace|origin|place of birth}", "where was I raised", "where am I from originally"),
    ("where I'm from", "where I come from", "where I was born", "where I grew up", "what my birthplace is"), "where you are from", "You are from $v.", weight=1.5)

KINDS["job"] = Kind(
    "job",
    ("{I'm|I am} $a $v{, and I {love|hate|like} it|, so I {work at night|get up early|travel a lot|have little time}| and proud of it| like my {father|mother}| at a {big firm|small company|hospital|school}| in {the city|a small town}|}",
     "I {trained|qualified|started|got hired|found work|work nights|work part-time} as $a $v{ last year| long ago| in my home town|}",
     "I {got|have|found|took|was offered} {a job|work|a position} as $a $v",
     "{after school|after university|when I was twenty|last year|ten years ago} I {became|started as|trained as} $a $v{, and I still am|, that's still my job|}",
     "my {job|work|trade|profession|day job|career} is {that of $a|being $a} $v", "$a $v{, |: }that's {my job|what I am|what I do|my trade}",
     "they {hired|employ|pay|need} me as $a $v", "you asked what I do{: |, |. }{I'm|I am|I work as} $a $v", "what I do? I'm $a $v",
     "as $a $v I {work a lot|see many people|get up at five|earn enough|never get bored}", "at {work|the office|the company} I'm the $v",
     "I've {worked|been working|made a living} as $a $v{ for {two|five|ten} years| since {school|last spring}|}",
     "{most days|on weekdays|from nine to five|during the week} {I'm|I work as} $a $v", "{I come home tired|my back hurts|I get up early}, {I'm|I am|I work as} $a $v",
     "I work as $a $v", "{I'm|I am} $a $v", "my job is {being |}$a $v", "I {earn|make} my living as $a $v", "I'm employed as $a $v", "I'm $a $v {by profession|by trade|at a small firm|for ten years now}", "I {became|am training to be|want to stay} $a $v", "for a living {I'm|I work as} $a $v", "being $a $v is my job", "my profession is $v", "I've been $a $v for {years|ages|a long time|two years}", "job: $v", "by day I'm $a $v"),
    ("{what|which} {profession|trade|career|occupation} {do I have|is mine|did I {choose|learn|pick}}", "as what do I {work|earn my living}", "what am I employed as",
     "what was my job again", "what do I get paid for", "what did I {become|train as|say I do}", "what's my {line of work|day job|trade|career}",
     "{someone asks|the form asks|they ask} {for my job|what I do|about my profession}{, |. }what do I {say|write|put}", "{and|what about} my {job|work|profession}",
     "my {job|profession|trade}, {what is it|what was it|do you know it}", "I {work|earn my money} as what",
     "I'm {off to|going to|late for} work, what {do I do there|is my job}", "what {would|does} it say on my business card as my job",
     "what do I do for {a living|work}", "what{'s| is} my {job|profession|occupation|work}", "what do I work as", "{which|what} job do I have", "how do I {earn|make} my {living|money}", "what kind of work do I do", "what am I by {profession|trade}", "what did I say I work as", "what do I do all day"),
    ("what my {job|profession|work} is", "what I do for {a living|work}", "what I work as", "my job", "how I earn my money"), "my job", "You work as $a $v.", weight=2)

KINDS["age"] = Kind(
    "age",
    ("{I'm|I am} {already|only|just|almost|exactly} $v{ years old| now|}", "I {had|celebrated} my birthday {yesterday|last week} and {am|I'm} $v now",
     "I was born $v years ago", "I'm $v, {how old are you|what about you|and my knees know it|and still young|and I feel fine}",
     "{last|this} {week|month|spring} I {turned|became} $v", "you {asked|wanted to know} {my age|how old I am}{: |, |. }{I'm |I am |it's }$v",
     "my age? {Well, |}{it's |I'm |}$v", "I'm a {man|woman|person} of $v", "$v{, |: }that's {my age|how old I am}",
     "{people think I'm younger, but|believe it or not,|on paper} I'm $v",
     "{I'm|I am} $v years old", "{I'm|I am} $v", "I {just |}turned $v", "my age is $v", "I'm aged $v", "I'll be $v {soon|this year|next week}", "I became $v {yesterday|last week|in spring}", "I have been on this earth for $v years", "age: $v"),
    ("what was my age{ again|}", "how many years {have I lived|old did I say I am|do I have}", "how many candles {are|go} on my {birthday |}cake",
     "{someone asks|the form asks} {for my age|how old I am}{, |. }what do I {say|write}", "{and|what about} my age", "I'm how old",
     "my age, {what is it|what was it|do you know it}", "what age did I {tell you|give|mention}", "how old was I again", "how {old|young} {would you say I am|did I say I was}",
     "how old am I", "what{'s| is} my age", "how many years old am I", "what age am I", "how old did I say I am", "how old have I turned"), ("how old I am", "my age", "what age I am"), "my age", "You are $v years old.", weight=1)

KINDS["birthday"] = Kind(
    "date",
    ("I {get older|have a party|turn a year older|blow out candles|get presents} on $v, {it's|that's} my birthday",
     "my {birthday|birth date|date of birth} {is|will be|was always} {on |}$v", "my mother {had me|gave birth to me} on $v",
     "{the day I was born is|I came into the world on} $v", "{bring|send|buy} me {a cake|flowers|a card} on $v, {it's|that's} my birthday",
     "don't forget my birthday{, it's|: it's|. It's} {on |}$v", "$v{, |: }that's my birthday", "you {asked about|wanted to know} my birthday{: |, it's |. It's }{on |}$v",
     "my birthday? {It's |That's |On |}$v",
     "my birthday is {on |}$v", "I was born on $v", "I {have|celebrate} my birthday on $v", "{on|every} $v {is my birthday|I have my birthday|I get older}", "my birthday falls on $v", "$v is my birthday"),
    ("{which|what} {day|date} was I born{ on|}", "{when|on which day} do I {get older|turn a year older|have my birthday|get presents|blow out candles}",
     "when should you {congratulate me|send me a card|bake me a cake|sing for me}", "{and|what about} my birthday", "my birthday, {when is it|which date is it|when was it}",
     "my birthday is {when|on which day}", "what's the date of my birthday", "what date {did I give|should you note} for my birthday",
     "{someone asks|the form asks} when I was born{, |. }what do I {say|write}",
     "when is my birthday", "when was I born", "what{'s| is} my {birthday|birth date|date of birth}", "on {which|what} {day|date} is my birthday", "when do I celebrate my birthday"), ("when my birthday is", "my birthday", "when I was born"), "my birthday", "Your birthday is on $v.", weight=1)

_FAVOURITE = (
    f"I {{really |simply |just |}}{{love|adore}} $v, {{it's|that's}} my {FAV} $k", f"$v{{, |: }}{{that's|now that's}} my {FAV} $k{{ by far| of all| for sure|}}",
    "if you {ask me|want to know}, the best $k is $v", "{any|every} $k is {fine|okay}, but {I {like|love} $v {most|best}|nothing beats $v}",
    "I {could|would} {choose|take|pick|have} $v as my $k {every day|any time|again and again}",
    f"my {FAV} $k {{would be|must be|happens to be|will always be|remains|is definitely|is probably}} $v", f"you {{asked|wanted to know}} my {FAV} $k{{: |, it's |. It's }}$v",
    f"I have a {FAV} $k{{: |, it's |. It's |, and it's |, namely }}$v", f"my {FAV} $k? {{It's |That's |That would be |}}$v{{, of course|}}",
    "when I {have to|can|get to} {choose|pick} a $k, I {take|choose|pick|go for} $v", "no other $k {comes close to|is like|is as good as|can beat} $v",
    f"I'm a {{big|huge|great}} fan of $v, my {FAV} $k", "as a $k, $v {comes first|is number one|wins} for me",
    f"{{I don't know why but|strangely|these days|lately}} my {FAV} $k is $v",
    "the $k I {always choose|can't live without|dream of|enjoy most|prefer|like more than the others} is $v",
    f"my {FAV} $k{{'s| is}} $v", f"$v {{is|are}} my {FAV} $k", "the $k I {like|love} {best|most} is $v", "I {like|love} $v {best|more than any other $k|the most of any $k}", "nothing beats $v {as $k goes|when it comes to $k|as a $k}",
    f"{FAV} $k: $v", "of {all $k|every $k} I {like|love} $v {best|most}", "when it comes to $k I {always |}{choose|pick|go for|prefer} $v", "my top $k is $v", "as for $k, {it's|give me|I love} $v", f"if I had to {{choose|pick}} a {FAV} $k it would be $v",
    f"my {FAV} $k has always been $v", "the best $k {of all|for me|ever|in the world} is $v", "for me the best $k is $v", "my $k of choice is $v", f"{{people know|everyone knows}} my {FAV} $k is $v", "I'm {crazy|mad} about $v, {the best $k there is|no better $k}", "the $k for me is $v", "there's no better $k than $v")
_FAVOURITE_Q = (
    f"{{and|what about|how about|now}} my {FAV} $k", f"my {FAV} $k, {{what is it|what was it|which one is it|do you know it}}", f"my {FAV} $k {{is|was}} {{what|which}}",
    "{what|which} $k {do I enjoy most|can't I live without|beats all others for me|did I call my favourite|comes first for me|is number one for me}",
    "when it comes to $k, what do I {like best|choose|prefer|go for}", "if I {could|had to} {choose|pick} a $k, {which|what} would {it be|I take}",
    "as for $k, what's my favourite", f"{{someone|my friend|my aunt}} {{asks|wants to know}} my {FAV} $k{{, |. }}{{what do I say|what is it|can you tell them}}",
    "is there a $k I like {best|most}, and which{ one|}", f"what did I {{tell you|say}} about my {FAV} $k",
    f"{{what's|what is|whats|what was}} my {FAV} $k", "{which|what} $k do I {like|love} {best|most|the most}", f"{{which|what}} $k is my {FAV}", "{which|what} $k do I prefer", f"what did I say my {FAV} $k {{was|is}}", "what's the $k I like {best|most}", f"my {FAV} $k",
    "{which|what} $k would I {choose|pick}", "{which|what} $k is the best for me", f"what would I say is my {FAV} $k", "what's my top $k", "what $k am I crazy about")
_FAVOURITE_C = (f"what my {FAV} $k is", "{which|what} $k I {like|love} {best|most}", f"my {FAV} $k", "{which|what} $k I prefer", "which $k is the best for me")
for _k, _values, _weight in (("colour", "colour", 2), ("color", "colour", 1), ("food", "food", 1.5), ("dish", "food", .6), ("meal", "food", .4), ("snack", "food", .3), ("fruit", "fruit", .8), ("drink", "drink", 1), ("animal", "animal", 1), ("sport", "sport", 1),
                             ("season", "season", .3), ("day", "day", .3), ("month", "month", .3), ("hobby", "hobby", .7), ("instrument", "instrument", .6), ("city", "city", .7), ("country", "country", .7), ("number", "number", .7), ("word", "word", .7),
                             ("book", "title", .7), ("film", "title", .7), ("movie", "title", .4), ("song", "title", .5), ("band", "title", .5), ("game", "title", .5), ("subject", "subject", .5), ("language", "language", .4), ("singer", "name", .4), ("writer", "name", .4), ("car", "car", .3), ("pub", "title", .2), ("player", "name", .3)):
    KINDS[f"favourite {_k}"] = Kind(_values, _FAVOURITE, _FAVOURITE_Q, _FAVOURITE_C, "my favourite $k", "Your favourite $k is $v.", (_k,), _weight * .45)

KINDS["number"] = Kind(
    "number",
    ("{remember|note} $k $v{, that's mine|, it's mine|}", "mine is $k $v", "I {was assigned|ended up with|was put down for|have to remember|was told} $k $v",
     "my $k {would be|should be|changed, it's now|stays|remains|has been} $v", "my $k? {It's |That's |}$v", "you {asked|wanted to know} my $k{: |, it's |. It's }$v",
     "I have a $k{. It's|:|, it's|, namely} $v", "$v{, |: }that's my $k", "the {letter|card|sign|screen|label|note|email} says my $k is $v",
     "I {always forget|keep forgetting|have to remember|need to know} my $k{, it's|. It's|:} $v",
     "the $k {on my {card|paper|list}|for me|I need|I have to remember|that is mine} is $v", "my $k{, by the way, is|, if you need it, is|, as always, is} $v",
     "my $k{'s| is} $v", "$v is my $k", "I {have|got|was given} $k $v", "they gave me $k $v", "the $k {is|they gave me is|I got is|for me is} $v", "$k: $v", "for my $k I {have|got|was given} $v", "my $k {turned out to be|happens to be|has changed to|is now} $v", "I'm at $k $v", "the $k says $v", "my $k, that's $v", "you find me at $k $v", "it's $k $v for me"),
    ("{and|what about|how about} {my|the} $k", "my $k, {what is it|what was it|which is it|do you know it}", "my $k {is|was} what",
     "{the form|someone|the man|the lady} {asks for|wants|needs} my $k{, |. }{what do I {write|say}|what is it|what was it}",
     "{which|what} $k {should I note|do I need|did you note|belongs to me|was it|did I get from them}",
     "I'm {here|lost|at the desk}, {which|what} $k {was mine|is mine|do I need}", "what's {written|noted} as my $k", "I need my $k, {what is it|what was it}",
     "{what's|what is|whats|what was} my $k", "{which|what} $k {do I have|did I get|was I given|am I at|is mine}", "what{'s| is} the $k {I have|I got|I gave you|}", "my $k", "what did I say my $k {is|was}", "{which|what} $k did I {mention|tell you|say}", "what number is my $k"),
    ("what my $k {is|was}", "{which|what} $k I {have|got|was given}", "my $k", "what the $k {is|was}"), "my $k", "Your $k is $v.", tuple(NUMBERED), weight=3)

KINDS["named"] = Kind(
    "title",
    ("I have a $k{. |, }{its|the} name is $v", "the $k {I own|of mine|we have} is called $v", "my $k was {named|christened} $v",
     "$v{, |: }that's {my $k|the name of my $k|how my $k is called}", "my $k has a {nice|funny|strange|long} name{: |, it's |. It's }$v", "my $k? {It's called|That's|It's} $v",
     "I {chose|picked|came up with} {the name |}$v for my $k", "there's a $k in my life, {it's called|we call it|its name is} $v",
     "the name {that|which} {belongs to|goes with|I gave} my $k is $v",
     "my $k is {called|named} $v", "the name of my $k is $v", "my $k's name is $v", "$v is the name of my $k", "I {named|called} my $k $v", "we {named|called} our $k $v", "my $k {goes by the name|has the name|bears the name} $v", "I have a $k {called|named} $v", "$v is {my $k|what I call my $k|what my $k is called}", "my $k is $v", "they call my $k $v", "my $k, $v, is {great|not far|famous here|quite old|my pride}"),
    ("{and|what about} my $k{|, what's it called}", "my $k, {what's it called|what was its name|what's the name}", "the name of my $k {is|was} what",
     "what was that $k of mine called", "{someone asks|they ask} how my $k is called{, |. }what do I say",
     "{what|which} name {belongs to|did I choose for|did we give|did you note for} my $k",
     "what is my $k {called|named}", "what{'s| is} the name of my $k", "what's my $k's name", "what did I {name|call} my $k", "{which|what} name does my $k have", "how is my $k called", "what name did I give my $k", "what is my $k"),
    ("what my $k is called", "the name of my $k", "my $k's name", "what I {named|called} my $k", "how my $k is called"), "the name of my $k", "Your $k is called $v.", tuple(NAMED), weight=2.5)

KINDS["street"] = Kind(
    "street",
    ("{I|we} {found|bought|rented} a {flat|house|room} {on|in} $v{ last year|}", "{send|bring} {it|the parcel|the letter} to my house {on|in} $v",
     "the bus stops right at my house {on|in} $v", "my street? {It's |That's |}$v", "the {taxi|postman} {always |}finds me {on|in} $v, {where I live|my street}",
     "for ten years I've lived {on|in} $v",
     "I live {on|in|at} $v", "my {street|address} is $v", "my house is on $v", "{we|I} have a {house|flat} on $v", "the street I live on is {called |}$v", "you'll find my house on $v", "my home is on $v"),
    ("{the taxi|a parcel|the postman|a friend} {needs|wants} my {street|address}{, |. }what {is|was} it", "{and|what about} my {street|address}",
     "{which|what} street {is my home on|should I tell the taxi to go to for my house|did I say I live on}", "my street is called {what|how}",
     "my {street|address}, {what is it|what was it|do you know it}",
     "{what|which} street do I live {on|in}", "on {which|what} street do I live", "what{'s| is} my {address|street}", "what's the name of my street", "what street is my house on"), ("{what|which} street I live on", "my address", "what my street is called"),
    "my street", "Your street is $v.", weight=1)

KINDS["spot"] = Kind(
    "spot",
    ("{I|we|my wife|my son|somebody} {put|left|hid|forgot|dropped|stored} {my|the} $k $v{ yesterday| this morning| again| as always|}",
     "{look|search} $v {for|if you need} my $k", "{if|when} {I|you} {look for|need|miss|want} {my|the} $k, {look $v|try $v|go and look $v}",
     "$v {is|was} where {I|we} {put|left|keep|store|hid} {my|the} $k", "$v{, |: }that's where my $k @is", "$v {you'll find|I keep|I left|I put} {my|the} $k",
     "I {tidied up|was in a hurry|came home late|cleaned the house} and {put|left} {my|the} $k $v", "the place for {my|the} $k is $v",
     "{my|the} $k {ended up|stayed|must still be|should still be|got left} $v", "I know where my $k @is{: |, |. }$v", "you asked {where my $k @is|about my $k}{: |, |. }$v",
     "my $k? {|Still |Right }$v", "I've got my $k $v{, as usual|, I think|, don't ask why|}",
     "my $k @is $v", "I {put|left|hid|keep|kept|placed|dropped|stored|forgot} my $k $v", "you'll find my $k $v", "the $k @is $v", "I left the $k $v", "I {always |}{put|leave|keep} my $k $v", "my $k {lies|lie|sits|is lying|must be|should be|can be found|stays} $v", "I've {put|left|hidden} my $k $v {today|this time|for now|}", "$k: $v"),
    ("I {lost|am looking for|need|miss|can't see} {my|the} $k{, |. }{any idea where to look|where should I look|where do I look|help me look|do you know where to look}",
     "{and|what about} {my|the} $k, where {@is that|did I put that|do I look}", "{my|the} $k, where", "in {what|which} place did I {put|leave|hide} {my|the} $k",
     "where {did {my|the} $k {end up|go}|could {my|the} $k be|might {my|the} $k be|must I look for {my|the} $k}",
     "where {would|do|must|should} I {look|go|search} {for|to find|to get} {my|the} $k", "I {have to leave|must go|go out} {in a minute|now|soon}, where @is {my|the} $k",
     "{somebody|my wife|my friend} {needs|wants|asks for} {my|the} $k{, |. }where {should I look|must we look|should I send them}", "where {exactly |}@is {my|the} $k",
     "where {had|have} I {put|left|hidden} {my|the} $k", "my $k @is where",
     "where @is my $k", "where did I {put|leave|hide|keep|place|drop} {my|the} $k", "where {can I find|do I find|should I look for|do I keep|have I put|have I left} my $k", "where was my $k", "what did I do with my $k", "where @is the $k", "in what place @is my $k", "have you seen my $k"),
    ("where my $k @is", "where I {put|left|hid|keep} my $k", "where to {find|look for} my $k", "the place of my $k"), "where my $k @is", "Your $k @is $v.", tuple(THINGS), weight=3)

KINDS["coloured"] = Kind(
    "colour",
    ("{my|our} $k {was|got|has been|is} {painted|coloured} $v", "I {chose|picked|wanted|ordered|went for} {$a $v $k|$v for my $k}",
     "my $k, $a $v one, is {new|old|outside|quite big|here}", "the colour of my $k? {It's |}$v", "I have a $k{. It's|, it's|, its colour is|. The colour is} $v",
     "{everything I own is dull, but|strangely|of course} my $k is $v", "my $k {looks|stays|turned out|became|is all|is mostly} $v", "$v{, |: }that's the colour of my $k",
     "if you see $a $v $k, {it's mine|it belongs to me}", "you asked {about my $k|what colour my $k is}{: |, it's |. It's }$v",
     "my $k is $v", "I {have|own|bought|got} a $v $k", "I painted my $k $v", "the colour of my $k is $v", "my $k is a {nice|bright|deep|lovely} $v", "my {new|old} $k is $v", "mine is the $v $k", "the $v $k is mine", "look for the $v $k, that's mine"),
    ("{and|what about} my $k, {which|what} {colour|color} {is it|was it}", "my $k, {which|what} {colour|color}{ is it| was it|}", "my $k is {what|which} {colour|color}",
     "I'm looking for my $k, {which|what} {colour|color} is it", "{someone|the police|a friend} asks about my $k, {what|which} {colour|color} is it",
     "in {what|which} {colour|color} {did I paint|did I order|did I buy|do I have} my $k",
     "{what|which} {colour|color} {was|did you note for} my $k", "what shade is my $k",
     "{what|which} {colour|color} is my $k", "what{'s| is} the {colour|color} of my $k", "what {colour|color} does my $k have", "{what|which} {colour|color} did I say my $k is", "what {colour|color} did I {paint|pick for|choose for} my $k"),
    ("{what|which} {colour|color} my $k is", "the {colour|color} of my $k", "what colour my $k has"), "the colour of my $k", "Your $k is $v.", tuple(COLOURED), weight=2)

KINDS["event"] = Kind(
    "event_time",
    ("I {must|have to|need to} be at {my|the} $k $v", "{my|the} $k {was planned|was fixed|got booked|is set|is scheduled|is planned} $v",
     "$v {I have|there is|I've got|I must go to|comes} {my|the} $k", "{put|write|note} {my|the} $k in the calendar, it's $v",
     "{we|they} {arranged|fixed|organised} {the|my} $k $v", "I'm {nervous|excited|happy|worried} about {my|the} $k{. It's|, it's|, which is} $v", "my $k? {It's |}$v",
     "there's {my|the} $k $v{, I'm nervous|, wish me luck|, I can't wait|}", "don't let me {miss|forget} {my|the} $k{, it's|: it's|. It's} $v",
     "{my|the} $k will {start|take place|be held|happen} $v", "I can't {meet|come} $v, I have {my|a} $k", "you asked about my $k{: |, it's |. It's }$v",
     "my $k is $v", "I have {a|my} $k $v", "the $k is $v", "my $k {starts|begins|takes place|will be|was moved to be} $v", "{there is a|we have a} $k $v", "my next $k is $v", "they {planned|booked|put} my $k $v", "I've got {a|my} $k $v", "I booked {a|my} $k $v"),
    ("{and|what about} {my|the} $k, when is {it|that}", "{my|the} $k, when{ is it| was it|}", "{my|the} $k is when",
     "for {when|which day|what time} {did I plan|did they plan|did I book|did I note} {my|the} $k", "I {don't want to|must not|can't} miss {my|the} $k{, |. }when is it",
     "I'm {packing|getting ready|nervous|getting dressed} for {my|the} $k{, |. }when {is it|does it start|do I have to be there|do I need to go}",
     "{someone|my boss|my mum} asks about {my|the} $k{, |. }when {is it|will it be}", "when {exactly |}{will|should|do} I {go to|attend|have|need to be at} {my|the} $k",
     "what does my calendar say for {my|the} $k", "when {was|did they put|did I book|have I got} {my|the} $k",
     "when is my $k", "when do I have my $k", "when {does|will} my $k {start|begin|take place|be}", "at what time is my $k", "what {day|time} is my $k", "when's {my|the} $k", "when did I say my $k is", "when do I have to be at my $k", "what day do I have my $k"),
    ("when my $k is", "when I have my $k", "when the $k {is|starts}", "the time of my $k"), "when my $k is", "Your $k is $v.", tuple(EVENTS), weight=2)

KINDS["price"] = Kind(
    "price",
    ("my $k cost {me |}$v", "I paid $v for my $k", "the $k was $v", "I bought my $k for $v", "the price of my $k was $v", "I spent $v on my $k", "they asked $v for my $k"),
    ("{how much|what} did {my $k cost|I pay for my $k|I spend on my $k}", "what was the price of my $k", "how much was my $k", "how expensive was my $k"), ("how much my $k cost", "what I paid for my $k", "the price of my $k"), "the price of my $k", "Your $k cost $v.", tuple(COLOURED + THINGS), weight=.8)

KINDS["allergy"] = Kind("allergy", ("{keep|please keep} $v away from me, {I'm|I am} allergic", "{my doctor says|it turns out|sadly|since I was a child} {I'm|I am} allergic to $v",
     "I {get a rash|get ill|feel sick} from $v, {it's|that's} an allergy", "no $v for me, {I'm|I am} allergic", "I had to {leave|stop} because of $v, my allergy",
     "{I'm|I am} allergic to $v", "I can't {eat|stand|be near} $v because of my allergy", "I have {an|a bad} allergy to $v", "$v {make|makes} me sneeze, I'm allergic", "my allergy is {against|to} $v"),
    ("what should {I|you} keep away {from me |}because of my allergy", "what {gives me a rash|makes me ill}, what am I allergic to", "{and|what about} my allergy, what is it",
     "I'm allergic to what", "my allergy, {what is it|what was it}", "{the cook|the nurse|the waiter} asks about allergies, what do I say",
     "what am I allergic to", "what's my allergy", "{which|what} allergy do I have", "what can't I have because of my allergy", "what makes me sneeze"), ("what I'm allergic to", "my allergy", "which allergy I have"), "my allergy", "You are allergic to $v.", weight=.8)
KINDS["instrument"] = Kind("instrument", ("I {own|bought|have} a $v and {play|practise} {it |}every {day|week|evening}", "I play in {a band|an orchestra|the school band}{, on|: I play} the $v",
     "my {neighbours|parents|cats} hate it when I play the $v", "as a child I {started|learned|began} to play the $v{, and I still do|}",
     "$v{, |: }that's what I play{ in the band| at home|}",
     "I play the $v", "I'm learning {to play |}the $v", "I've played the $v {for years|since I was six|}", "I practise the $v {every day|on weekends|}", "my instrument is the $v", "I take $v lessons"),
    ("what do I play in {the|my} {band|orchestra}", "{and|what about} my instrument, {which is it|what is it}", "what do my {neighbours|parents} hear me {play|practise}",
     "{which|what} instrument {is mine|do I practise|did I learn|have I got at home}", "what musical instrument {am I good at|do I own|is it that I play}",
     "{which|what} instrument do I play", "what do I play", "what's my instrument", "what instrument am I learning", "what instrument did I say I play"), ("{which|what} instrument I play", "my instrument"), "my instrument", "You play the $v.", weight=.8)
KINDS["hobby"] = Kind("hobby", ("{after work|when I have time|in the evening|to relax|in the holidays} I {do some|like|enjoy|go for} $v",
     "$v is {my hobby|what I love to do|my favourite thing to do|how I relax|what I do for fun}",
     "{nothing relaxes me like|I can't live without|I'm really good at|I spend too much money on|I could do nothing but} $v{, my hobby|}", "for fun I {do|like|enjoy} $v",
     "my hobby? {It's |That's |}$v",
     "my hobby is $v", "I {love|enjoy|really like} $v", "in my free time I {enjoy|love|do a lot of} $v", "I spend my weekends $v", "I'm into $v", "my {great |}passion is $v", "I do a lot of $v {after work|at weekends|}"),
    ("what do I do {for fun|to relax|after work|when I have time}", "how do I {relax|spend my free time|spend my weekends}", "{and|what about} my hobby",
     "my hobby, {what is it|what was it}", "{someone|a friend} asks about my hobby{, |. }what do I say", "{which|what} hobby {do I love|is mine|did I mention}",
     "what's my hobby", "what do I {like|love|enjoy} doing", "what do I do in my {free|spare} time", "{which|what} hobby do I have", "what am I into", "what's my passion"), ("what my hobby is", "what I do in my free time", "my hobby"), "my hobby", "Your hobby is $v.", weight=1)
KINDS["language"] = Kind("language", ("{I have a|there's a} {course|class|lesson} in $v {today|tonight|every week}, {I'm learning it|that's the language I'm learning}",
     "my {wife|family|grandma} and I speak $v {at home|together}", "the language I {speak|learn|study|grew up with} is $v",
     "$v{, |: }that's {my language|the language I speak}", "I {grew up with|dream in|talk to my kids in} $v",
     "I {speak|am learning|study} $v", "I'm learning $v", "my mother tongue is $v", "I'm trying to learn $v", "I'm taking $v classes", "at home we speak $v"),
    ("what's the language I {speak|learn|grew up with}", "{and|what about} my language, which is it", "in {which|what} language do I {dream|talk at home|take lessons}",
     "{which|what} language did I {say I speak|mention|grow up with}",
     "{which|what} language do I speak", "{which|what} language am I learning", "what language did I mention", "what do I speak at home", "which tongue do I speak"), ("{which|what} language I {speak|mentioned}", "my language"), "my language", "Your language is $v.", weight=.8)
KINDS["car"] = Kind("car", ("I {traded my bike for|inherited|saved up for|got a deal on} a $v", "the car I drive is a $v", "my {old|new|little|trusty} car is a $v",
     "a $v, {that's my car|that's what I drive}", "{I go to work|we go on holiday} in {my|our} $v", "my car? {It's |}a $v",
     "I drive a $v", "my car is a $v", "I {have|own|bought|got} a $v", "I just bought a $v", "there's a $v in my garage", "I get around in a $v", "I get to work in my $v"),
    ("{and|what about} my car, what is it", "{what|which} {make|brand|kind of car} did I {buy|say I drive}", "what's parked {outside|in my garage}, which car",
     "my car is a what", "what's the {make|brand} of my car", "{someone|the police} asks what I drive, what do I say",
     "{what|which} car do I {drive|have|own}", "what do I drive", "what kind of car {do I have|is mine}", "what {make|brand} is my car", "what car is mine", "what do I get around in"), ("{what|which} car I drive", "what I drive", "the make of my car"), "what you drive", "You drive a $v.", weight=.8)
KINDS["study"] = Kind("subject", ("I {chose|picked|enrolled in|am doing a course in} $v {at university|at college|this year}", "$v is {my subject|what I study|my field}",
     "{I'm in my second year of|I have an exam in|I write my thesis in} $v, {my subject|that's what I study}", "at {college|school} {I study|I do|my subject is} $v",
     "I study $v", "I'm studying $v", "I'm a student of $v", "I'm taking a degree in $v", "my subject is $v", "at university I do $v", "I teach $v"),
    ("what do I {learn|do} at {university|college}", "{and|what about} my subject", "{which|what} subject did I {choose|enrol in|pick}", "my subject, what is it",
     "{someone|grandma} asks what I study, what do I say",
     "what do I study", "what am I studying", "{which|what} subject do I {study|do}", "what's my {subject|major|field}"), ("what I study", "my subject"), "my subject", "Your subject is $v.", weight=.6)

KINDS["count"] = Kind(
    "count",
    ("{I|we} have {about |exactly |}$v $k", "I've got $v $k{, which is a lot|, and that's enough|, no more|}", "there are $v $k {at home|here|in my house|in our street}, {all mine|I counted them}", "my $k? {There are $v|$v of them|I have $v}", "the number of {my |}$k is $v",
     "I counted {my|the} $k{: |, there are |. There are }$v", "all in all I have $v $k", "it's $v $k {in total|altogether|by now} that I have", "how many $k I have? $v", "of $k I have $v", "you asked how many $k I have{: |, it's |. It's }$v"),
    ("how many $k do {I|we} have", "how many $k {have I got|are there|did I count|did I say I have|did I mention}", "{what's|what is} the number of {my |}$k", "number of $k", "{and|what about} my $k, how many", "my $k, how many{ are there| do I have| was it|}", "I have how many $k",
     "{someone|my aunt} asks how many $k I have{, |. }what do I say", "of $k I have how many"),
    ("how many $k I have", "how many $k there are", "the number of my $k"), "the number of $k", "You have $v $k.", tuple(COUNTED), weight=1.2)
KINDS["trip"] = Kind(
    "city",
    ("{I'm|we're} {going|flying|travelling} to $v {on holiday|next week|in summer|for a week}", "{next|this} {summer|week|month|winter|weekend} {I'm going|I'll go|we go|we fly|I travel|we want to go} to $v", "I {booked|planned|won} a {trip|flight|holiday} to $v",
     "our {next|summer|winter} {holiday|trip} is in $v", "my next {trip|journey} {goes|is} to $v", "I can't wait to {see|visit|be in} $v {on my trip|next week|on holiday}", "my suitcase is packed for $v", "you asked where I'm travelling{: |, it's |. To }$v", "$v{, |: }that's where my trip goes"),
    ("where am I {going|travelling|flying}{ on holiday| on my trip| next|}", "where does my {trip|journey|next trip} go", "{what|which} {city|place} am I {travelling|going|flying} to", "what's my {destination|travel destination}", "what did I book a trip to", "where do I {spend my holiday|travel to|fly to}",
     "{and|what about} my trip, where {is it|does it go}", "my suitcase is packed, where am I {going|travelling}", "my trip goes where"),
    ("where I'm {going|travelling}", "where my trip goes", "my travel destination"), "my travel destination", "You are going to $v.", weight=.8)
KINDS["bought"] = Kind(
    "gift",
    ("I {just |}{bought|got myself|purchased} $a $v{ yesterday| today| in town| at the market|}", "{my new|the} $v was {expensive|cheap|on sale}, I bought it {yesterday|today|last week}", "I {went shopping|was in town|got paid} and {bought|came home with} $a $v", "my {latest|last} purchase is $a $v", "I couldn't resist, I bought $a $v",
     "$a $v, that's what I bought{ today|}", "there was a sale and I {bought|got} $a $v"),
    ("what did I {buy|purchase|get myself}", "what's my {latest|last} purchase", "what did I {bring home|come home with} from {town|the shop}", "{and|what about} my purchase, what was it", "I bought what", "{which|what} thing did I {buy|purchase}", "I went shopping, what did I buy"),
    ("what I bought", "what I got myself", "my latest purchase"), "my purchase", "You bought $a $v.", weight=.7)
KINDS["workplace"] = Kind(
    "title",
    ("I work {at|for} $v", "my {employer|workplace} is {called |}$v", "$v is {where I work|my employer|the company I work for}", "I {got|have|found} a job at $v{ last week| in May|}", "I'm {employed|hired} by $v", "$v pays {my salary|my bills}", "you asked where I work{: |, it's |. At }$v", "the company I work for is {called |}$v",
     "I've {been|worked} at $v for {years|ages|a month}, {it's my job|good job}", "every {day|morning} I go to work at $v"),
    ("where do I work", "{which|what} {company|firm} do I work {for|at}", "who do I work for", "who's my employer", "what is the company I work for called", "who {pays|hired} me", "where do I have {a|my} job", "{and|what about} my employer", "my employer, who is {it|that}", "I work for whom", "I'm on my way to work, where is that"),
    ("where I work", "who I work for", "my {employer|workplace}"), "my employer", "You work at $v.", weight=.8)

# Facts about other people: the key is a name.
_P = ("@name",)
KINDS["their home"] = Kind("city", ("$k, {a friend of mine|an old friend|someone I know|who used to be my neighbour}, lives in $v",
     "$k {has lived|has been living|has been} in $v {for years|since spring|for a while}",
     "$k and {her|his} {family|dog|husband|wife|kids} {live in|moved to|have a house in} $v",
     "{last year|in spring|after the wedding|for a job|for love} $k {moved to|went to live in|settled in|found a flat in} $v",
     "I {phoned|wrote to|miss|visited} $k, who {lives in|moved to|settled in} $v{ now|}", "you can {find|visit} $k in $v",
     "$k {rents|bought|has|owns} a {place|flat|house|room} in $v", "{have you been to $v|do you know $v}? {That's where $k lives|$k lives there}", "$v is home to $k",
     "$k calls $v home", "{we|I} {drove|went|flew} to $v to {see|visit} $k, who lives there", "$k? {Lives in|Still in|Moved to} $v",
     "$k lives in $v", "{my friend |}$k {lives|is living|has a flat|has a house} in $v", "$k {just |}moved to $v", "$k's {home|house|flat} is in $v", "I visited $k in $v", "$k comes from $v", "$v is where $k lives", "my {cousin|friend|pal|old friend|colleague} $k is in $v now", "$k settled in $v", "I know $k, who lives in $v"),
    ("{and|what about|how about} $k, where does {he|she} live", "in {what|which} {place|town|part of the world} {does $k live|is $k living}",
     "where {do I|should I|must I} {go|travel} {to visit|to see} $k",
     "I want to {visit|see|write to|send a parcel to} $k{, |. }{where does {she|he} live|to which {city|town}|which city is it|where do I go}",
     "{what|which} {city|town} is $k in", "where has $k {settled|moved|gone}", "$k lives {where|in which {city|town}}", "what's the {city|town} $k lives in",
     "what did I say about where $k lives", "where's $k's {flat|place}",
     "where does $k live", "{which|what} {city|town} does $k live in", "where is $k's {home|house}", "in {which|what} city does $k live", "where did $k move to", "where can I {find|visit} $k", "where is $k {living|now}"), ("where $k lives", "which city $k lives in", "where to find $k"), "where $k lives", "$k lives in $v.", _P, 2.5)
KINDS["their job"] = Kind("job", ("$k {has worked|has been working|makes a living|started|found work|was hired} as $a $v", "$k {has|got|found|took} a job as $a $v", "{by profession|by trade} $k is $a $v",
     "$k, {who's|who is} $a $v, {works too much|told me about it|gets up early|loves the work}", "{I asked|I met|I called} $k, who is $a $v",
     "you asked what $k does: {$a|works as $a} $v", "$k is the $v in {our street|the family|town}",
     "$k works as $a $v", "$k is $a $v", "{my friend |}$k {became|is training to be} $a $v", "$k's job is {being |}$a $v", "$k earns a living as $a $v", "I know $k, who is $a $v"),
    ("{and|what about|how about} $k, what does {he|she} do for {work|a living}", "{what|which} {profession|trade} {has|did} $k {learned|chosen}",
     "what kind of work does $k do", "$k works as what", "what's $k's {line of work|occupation|trade}", "how does $k {make|earn} {a|a good} living",
     "what did $k {become|train as}",
     "what does $k do {for a living|for work|}", "what{'s| is} $k's {job|profession}", "what does $k work as", "{which|what} job does $k have", "how does $k earn money"), ("what $k does", "what $k's job is", "$k's job"), "$k's job", "$k works as $a $v.", _P, 1.5)
KINDS["their food"] = Kind("food", ("$k {would|could} eat $v {every day|all day}", "{if|when} $k {visits|comes for dinner}, I {make|cook|serve} $v, {she|he} loves it",
     "for $k there's nothing better than $v", "you can make $k happy with $v", "I {made|cooked|ordered} $v for $k, {her|his} favourite",
     "$k {loves|likes|adores|eats a lot of} $v", f"$k's {FAVOURITE} food is $v", "$k always eats $v", "what $k likes best is $v", "$k can't get enough of $v"),
    ("{and|what about} $k, what does {he|she} like to eat", "what should I {cook|make|order|serve} for $k", "{which|what} {food|dish} makes $k happy",
     "what does $k {enjoy|eat} {most|best}", "$k is coming for dinner, what does {he|she} like",
     "what does $k {like|love|eat|adore}", f"what{{'s| is}} $k's {FAVOURITE} food", "what food does $k like", "what can I cook for $k"), ("what $k likes", f"$k's {FAVOURITE} food"), "what $k likes", "$k likes $v.", _P, 1)
KINDS["their pet"] = Kind("pet_name", ("$k has a {dog|cat|pet|rabbit|horse} {called|named} $v", "$k's {dog|cat|pet|rabbit|horse} is {called|named} $v", "$v is the {dog|cat|pet} of $k", "the {dog|cat|pet} of $k is $v"),
    ("what is $k's {pet|dog|cat} called", "what{'s| is} the name of $k's pet", "what pet does $k have"), ("the name of $k's pet", "what $k's pet is called"), "the name of $k's pet", "The pet of $k is called $v.", _P, 1)
KINDS["their age"] = Kind("age", ("$k is $v years old", "$k {just |}turned $v", "$k is $v", "$k will be $v soon"), ("how old is $k", "what's $k's age"), ("how old $k is", "$k's age"), "how old $k is", "$k is $v years old.", _P, .7)
KINDS["their birthday"] = Kind("event_time", ("$k's birthday is $v", "$k {is coming|arrives|visits us|comes over|will call} $v", "I'm meeting $k $v", "I'll see $k $v"), ("when {is|was} $k's {birthday|visit}", "when {is $k coming|do I see $k|does $k come|am I meeting $k|does $k arrive}"), ("when $k comes", "when I see $k"), "when you see $k", "$k: $v.", _P, 0)
KINDS["their gift"] = Kind("gift", ("{for the birthday|for Christmas|as a surprise|tomorrow} $k {gets|will get} $a $v {from me|from us}",
     "$k {wished for|would love|asked for|dreams of|has been wanting} $a $v", "I {wrapped|found|ordered|hid} $a $v for $k{, it's a surprise|}",
     "$a $v {is|will be} the {present|gift} for $k",
     "I {bought|got|made|have} $k $a $v", "I'm giving $k $a $v", "$k wants $a $v {for Christmas|as a present|for the birthday|}", "the {present|gift} for $k is $a $v", "I'll give $k $a $v", "for $k I bought $a $v"),
    ("{and|what about} $k, what did I buy {for {him|her}|}", "what {am I going to give|will I give|did I order|did I wrap|have I bought} {to |}$k",
     "what's {in the box|the surprise} for $k", "{what|which} {gift|present} is for $k",
     "what {did I buy|did I get|am I giving|should I give|do I have for} $k", "what{'s| is} {the present|the gift} for $k", "what does $k get from me", "what does $k want"), ("what I bought $k", "the {present|gift} for $k"), "the gift for $k", "The gift for $k is $a $v.", _P, 1.2)
KINDS["their phone"] = Kind("code", ("$k has {a new number|a new phone|a phone}{: |, it's |. The number is }$v", "{if|when} you {need|want|call|look for} $k, {dial|call|try|the number is} $v",
     "{dial|try|ring} $v for $k", "$v{, |: }that's $k's number", "$k can be {reached|called} {on|at} $v", "$k? {Call|Dial|The number is} $v",
     "$k's {number|phone number|code|extension} is $v", "the {number|code} of $k is $v", "$k gave me {the number|the code|} $v", "to reach $k, dial $v", "you reach $k {at|on} $v", "call $k on $v"),
    ("{and|what about} $k, what's the number", "I {want to|have to|need to} {call|phone|ring|reach} $k{, |. }{what's the number|which number is it|what do I dial}",
     "what do I dial for $k", "{on|at} {which|what} number can I {reach|call} $k", "what number does $k have",
     "what{'s| is} $k's {number|phone number|code|extension}", "what's the number of $k", "how do I {reach|call} $k", "{which|what} number {did $k give me|do I dial for $k}"), ("$k's number", "how to reach $k", "what number $k has"), "$k's number", "The number of $k is $v.", _P, 1.2)
del KINDS["their birthday"]

# A thing with a made-up name and anything as its value: only reading the key helps.
for _values in ("word", "code", "name", "city", "colour", "number", "title"):
    KINDS[f"made up {_values}"] = Kind(
        _values,
        ("{my|the} $k is $v", "$v is {my|the} $k", "{my|the} $k {has|got|was given|gets} $v", "$k: $v", "$k = $v", "as {my|the} $k I have $v", "{my|the} $k {was|became|turned out to be|stands at|shows} $v", "I {wrote|put|picked|chose|have} $v {for|as|down for} {my|the} $k", "{my|the} $k? {it's|that's} $v"),
        ("{what's|what is|whats|what was} {my|the} $k", "$k", "{which|what} is my $k", "what did I {say|tell you|pick|choose|write} {about|for} {my|the} $k", "what about {my|the} $k", "and {my|the} $k", "what do I have as $k"),
        ("what my $k {is|was}", "my $k", "what I said about my $k"), "my $k", "Your $k is $v.", ("@made up",), weight=.15)

# More ways, for every kind. `$n` is what the fact is ("my name"), `$w` the value with its article, `$i` "is"; `$c` a clause ("what my name is").
_TELL_IS = (
    "{I'm {new here|a bit tired|in a hurry|on a break|having a coffee|back again|not very good at typing}|I just {woke up|got home|had lunch|sat down|found this page}|it's {a lovely|a rainy|a long|a busy|a quiet} day|thanks for {the chat|being here|your help}|"
    "nice {page|place you have here|to be here}|I've never done this before|this is {fun|new to me|my first try}|a friend {sent me|told me about you}}{. |, and |, anyway, |, so: |; }$n $i $w",
    "$n $i $w{, and {that won't change|I thought you should know|there's nothing more to it|that's all there is to say|that's that|I'm fine with that}|, in case {it helps|it comes up|we talk again|it matters later|you were wondering}|"
    ", which {is good to know|you may want to know|people tend to forget|I should have said before|I may ask about later|not many people know}|, {but enough about that|but tell nobody|but what can you do|so there you go|so write that down|as far as I know|as it happens}}",
    "$n $i $w. {How are you today?|What else would you like to know?|Can you help me with something?|What can you do?|Anyway, how does this work?|I'm off for a walk now.|It's raining again here.|I need a coffee.|The weather is lovely, isn't it?|So, what shall we talk about?|Let's talk about something else.|More about that later.}",
    "$n $i... {wait|hang on|hold on|let me think|let me check|um|hmm|what was it|how do I put it|one second}{... |, }{yes, |right, |ah yes, |ok, |}$w",
    "{sorry|wait|no|oops|hang on|oh no|argh}, {I {typed|wrote|said} that wrong|let me say that again|that was a typo|let me start over|I pressed the wrong key|that came out wrong|I hit enter too soon}{: |, }$n $i $w",
    "{scratch that|forget what I just typed|let me correct myself|I misspoke|let me rephrase|what I meant was|in other words|to put it simply|long story short|in short|to cut a long story short}: $n $i $w",
    "{I think I said this already|I may have told you|I might have said so before|I'm not sure I told you|maybe you know this|sorry if I repeat myself|stop me if you've heard this|I doubt it matters|I'm not sure why you'd care|this is a bit personal|it sounds odd, I know}, but $n $i $w",
    "$n ({in case you wonder|if you must know|before you ask|so you know|for later|you may need this|I checked|no joke|don't laugh|yes, really}) $i $w",
    "$n, {in case you wonder|if you must know|before you ask|as it happens|I'm told|I'm happy to say|for what it's worth|believe it or not|at least for now|as everyone knows|to be precise|strange as it sounds}, $i $w",
    "{bear in mind|keep in mind|remember|note|make a note|please be aware|be aware|let it be known|let the record show|trust me|you'll want to know|I can tell you|I'm pleased to report|I can confirm|be sure to remember|try to remember|never forget|take note|let's agree} that $n $i $w",
    "{write this down|jot this down|note to you|save this|store this|for your notes|for your memory|add this to your notes|please file this away|here's something to remember|here's a fact|here's one for you|listen carefully|repeat after me|attention please|fact|info|reminder|a detail|a small thing|first things first|"
    "if you remember one thing, remember this|I'll say this once|I'm going to ask you later|memorise this|this is for later|learn this by heart|question for later}{: |. | - }$n $i $w",
    "{nobody knows it|few people know it|not everyone knows this|I don't say it often|people often get it wrong|everyone mixes it up|you couldn't know this|I haven't told many people|it took me years to say so|I used to hide it|it may surprise you|I know it's not important|you didn't ask|it's a bit dull|I hope you can keep it to yourself}, but $n $i $w",
    "{as you may have guessed|as I wrote before|as I keep saying|as of today|as far as I know|as far as I remember|as things stand|at this point|if I'm not mistaken|unless I'm wrong|if memory serves|to the best of my knowledge|for your information|speaking of which|while we're at it|now that I think of it|now that we're talking|since we're chatting}, $n $i $w",
    "$n: $w", "$n {=|-|->|...} $w", "{ok so|so yeah|well yeah|right so|yep|alright so|um|er|erm|hiya,|cheers,|evening,|morning,} $n $i $w{| lol| haha| hehe| :)| if that helps| and that's it| so yeah| innit| mate| for now}",
    "{I'd like you to|I want you to|could you|can you|would you|will you|would you mind if I ask you to|may I ask you to} {hold on to|remember|save|store|keep} {this|one thing|something|this fact|a little fact}{ for me|}{: |? }$n $i $w",
    "{whatever happens|whatever they say|no matter what you hear|come what may|like it or not|funnily enough|oddly enough|luckily|happily|sure enough|of course|obviously|naturally|in fact|in truth|frankly|honestly|basically|technically|strictly speaking|generally}{, | }$n $i $w",
    "you {should|ought to|may want to|might want to|will want to|had better|can safely} {know|remember|note|write down} {that |this: }$n $i $w", "guess what{, |: |! |? }$n $i $w",
    "{what I {wanted|came|meant|forgot|was trying} to say is|the point is|all I can say is|what you need to know is|the short version is|the truth is|what matters is|the news is|all I know is} {that |}$n $i $w",
)
_TELL_AS = (
    "$n? {It's $w|That's easy, it's $w|Easy: $w|Simple: $w|$w, of course|Well, $w|Oh, that's $w|That'd be $w|Let me think... $w|Good question, it's $w|$w, I'd say|Hmm, $w|$w. Easy to remember}",
    "$w {would be|must be|has to be|will always be} $n", "$w{, |: | - |. }{that's|that would be|and that's|yes, that's|that is} $n{|, {just so you know|remember that|write it down|no more, no less|in case I forget|if anyone asks}}",
    "{put|write|note|jot|take|set} $w down {as|for} $n{ please| for me|, will you|, thanks|}", "{list|register|save|enter|record|file|store|log|keep} $w {as|under|for} $n{ please| for me|, thanks|}", "you {can|may|should|could} {put|write|note|take} $w down {as|for} $n",
    "{if|when|whenever} {someone|anyone|somebody|a stranger} {asks} {you |}{about|for} $n, {say|it's|the answer is|tell them it's|you can say|just say} $w",
    "{I|they|we} {have|had|put|wrote|noted} $w down {as|for} $n", "$n was {noted|put down|recorded|listed|entered|written down} as $w",
    "{it's|it is|it was always|it has to be|it'll be|make it|let's say|call it|I'd say|the answer is} $w{, {I mean|that is|meaning}| when it comes to|, as for| if you ask about| if we talk about} $n",
    "{about|regarding|concerning|as for|as regards|on the subject of|when it comes to|speaking of|with regard to|re|you asked about|now for|next up,} $n{: |, |; }{it's $w|it is $w|that's $w|that would be $w|I'd say $w|$w}",
    "{they|people|friends|strangers|the others} {always|often|sometimes} ask{| me} about $n{: |, and |. }it's $w",
    "{I know|I remember|I wrote down|I looked up|I checked|let me tell you|I'll tell you|I can give you|here is|here's|this is|take|save|keep|remember|note|please note|write down|don't forget|never forget|memorise} $n{: |, it's |. It's |, which is }$w",
    "{the form|the card|the sheet|my file|the list|the letter|the paper|my profile} {says|shows|gives|has} $w {as|for} $n", "{with|given} $w as $n, {I can't complain|life is good|I'm quite happy|you know enough}",
)
ASK_CLAUSE = (
    "{a friend|somebody here|a guest|a colleague|the lady at the desk|the man next to me|one of the kids|everyone here} {wants to know|is asking|would like to know|keeps asking|just asked|has to know} $c{|, can you tell us|, what do I say|, could you answer|, please tell us}",
    "{we talked about|I told you|I've said|we discussed|we went over} {many|all sorts of|a lot of|so many|quite a few} things{ today| by now|}, but {do you {still |}know|can you {still |}tell me|tell me|do you remember|I wonder if you remember} $c",
    "{I have to|I must|I need to|I'm about to} {fill in|complete|hand in|send off} {a|this} {form|card|paper|questionnaire} and {it asks|they ask|it wants to know|I have to say|I need to write} $c",
    "{pop quiz|quiz time|memory test|little test|quick quiz|test question|here's a test|trivia|let me test you|I'm testing you|let's play a game|bonus question}{: |, |! |. }{tell me|do you know|can you say|who knows|say} $c",
    "{out of curiosity|just to check|just to be sure|just to be safe|if you don't mind|sorry to ask|sorry to bother you|before I go|before we go on|one last thing|changing the subject|back to me|going back a bit|back to what I told you|enough small talk|that aside|on another note|in the meantime|now that I have you here},"
    " {do you know|do you recall|tell me|could you say|can you tell me|would you know|might you know|I'd like to hear} $c",
    "{would|do} you mind {telling me|reminding me|saying|repeating} $c", "{could|can|would} you {be so kind as to|kindly|quickly|maybe|perhaps|possibly} {tell me|say|repeat} $c", "{be a dear|be so good|do me a favour|help me out|be a sport|come on|go on|go ahead} and {tell me|say} $c",
    "{it's on the tip of my tongue|my mind has gone blank|I'm drawing a blank|I'm getting forgetful|I've lost my notes|I can't find my notes|I should know this|this is embarrassing|silly me|my memory is like a sieve|I didn't sleep well|I'm so bad at this}{, |: |. |, but }{tell me|can you tell me|do you know|do you remember|help me remember} $c",
    "{I know|I'm sure|I believe|I'm certain|I'm positive|I'm fairly sure} I {told you|mentioned|said|wrote} $c{, so tell me|, now you say it|, can you repeat it|, but I forgot|, do you still have it}",
    "{scroll|look|go|think|cast your mind} back {a bit |a little |}and {tell me|say} $c", "{from|going by|based on} what I {told you|wrote|said} {earlier|before|just now|at the start}, {can you say|do you know|tell me} $c",
    "{show me|prove} {that |}you {were listening|paid attention|listened to me|have a good memory}{: |, |. | and }{tell me|say} $c", "{I bet you|you probably|you surely|maybe you|I'm sure you|I trust you|I hope you|surely you} can tell me $c",
    "what would you {say|answer|reply} if {someone|a stranger|a child|a reporter|a visitor} {asked you|wanted to know|wondered} $c", "{suppose|imagine|say} {someone|a stranger|a visitor} asks you $c{, what do you say|, what would you answer|, what's the answer}",
    "{the only thing|all|the one thing|what|the last thing} I {want|need|would like} to know {now |}is $c", "{the question is|the next question is|today's question is|I'd love to know|I'm dying to know|I'd be happy to hear|I've been wondering|I keep asking myself|I'm asking you|I ask you again|let me ask you}{ |: }$c", "{my question|here's my question|one question remains}: $c",
    "$c, {do you know|do you remember|do you recall|can you tell me|could you tell me|that's my question|that's what I'd like to know|have you any idea|is that still in your memory|did you keep that|can you say}",
    "have you {any idea|a note of|any memory of|forgotten|kept in mind|worked out|got written down|learned} $c", "{you were told|you heard|I explained|it was mentioned|it came up} {earlier|before|a while ago|at some point}, {so|now|and now} {tell me|say|can you tell me} $c",
    "{are you {still |}|would you be |will you be }able to {tell me|say|recall|remember} $c", "{is there any chance|is it possible|any chance} {that |}you {know|remember|could tell me|can recall|noted} $c",
)
_NAMED = ("{my $k's name|the name of my $k}", "$v")
_WHAT: dict[str, tuple[str, str]] = {
    "name": ("{my|my|my first|my given} name", "$v"), "code": ("{my $k code|the code {for|of} {my|the} $k|the {combination|pin|number} for {my|the} $k|my $k {pin|combination}}", "$v"),
    "password": ("{my $k password|the password {for|of} {my|the} $k|the $k password}", "$v"), "secret": ("{the|the|our} $k", "$v"), "relation": _NAMED, "pet": _NAMED, "named": _NAMED,
    "home": ("{my home|the {city|town|place} {I live in|where I live|I call home}|my place of residence|my city}", "$v"), "origin": ("{my birthplace|my place of birth|the {city|town|place} {I come from|where I was born|I grew up in}}", "$v"),
    "job": ("{my profession|my occupation|my trade|my line of work}", "$v"), "age": ("my age", "$v"), "birthday": ("{my birthday|my date of birth|the date of my birthday|the day I was born}", "$v"),
    "number": ("my $k", "$v"), "street": ("{my street|the street {I live on|where I live|my house is on}|the name of my street}", "$v"), "spot": ("{my|the} $k", "$v"), "coloured": ("{the colour of my $k|my $k's colour|the color of my $k}", "$v"),
    "event": ("{my|the} $k", "$v"), "price": ("the price {of|I paid for} my $k", "$v"), "allergy": ("{the thing I'm allergic to|what I'm allergic to|the cause of my allergy}", "$v"), "instrument": ("{my instrument|the instrument I play}", "the $v"),
    "hobby": ("{my hobby|my pastime|my favourite pastime|my passion}", "$v"), "language": ("{my language|the language I speak|the language I use}", "$v"), "car": ("{my car|the car I {drive|have|own}}", "a $v"),
    "study": ("{my subject|my field of study|the subject I study|my field}", "$v"), "count": ("{the number of {my |}$k|the number of $k {I have|we have}}", "$v"), "trip": ("{my travel destination|the destination of my {trip|holiday}|the place I'm travelling to}", "$v"),
    "bought": ("{my latest purchase|my last purchase|the thing I bought}", "$a $v"), "workplace": ("{my employer|my workplace|the {company|firm|place} I work for}", "$v"), "their home": ("{$k's {city|town|home}|the {city|town|place} where $k lives|the {city|town} $k lives in}", "$v"),
    "their job": ("{$k's {profession|occupation|trade}|the {profession|occupation} of $k}", "$v"), "their food": (f"{{$k's {FAVOURITE} {{food|meal|dish}}|the {FAVOURITE} food of $k}}", "$v"), "their pet": ("{the name of $k's pet|the name of the pet of $k|$k's pet's name}", "$v"),
    "their age": ("{$k's age|the age of $k}", "$v"), "their gift": ("{the {present|gift} for $k|$k's {present|gift}}", "$a $v"), "their phone": ("{$k's {|phone |new }number|the {phone |}number of $k}", "$v"),
    **{k: (f"my {FAV} $k", "$v") for k in KINDS if k.startswith("favourite ")}, **{k: ("{my|the} $k", "$v") for k in KINDS if k.startswith("made up ")},
}

_MORE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # further tells and questions of one kind
    "name": (
        ("{hi|hello|hey|greetings|good day|cheers|best wishes|regards|a warm hello} from $v", "{it's me|it's only me|it's me again|me again|guess who}{: |, |! }$v", "$v {reporting for duty|on the line|at the keyboard|here again|checking in|over here|says hello|wishes you a good day|would like to talk}",
         "{put|write|note|add|sign|take} me down as $v", "{sign me in|register me|save me|list me|book me in|add me} {as|under} $v", "me? {$v|I'm $v|They call me $v|Just $v}. {Nice to meet you|Who are you|And you|Pleased to meet you}?",
         "{I don't think we've met|we haven't met|we have not been introduced|have we met|how rude of me|where are my manners|let's start at the beginning|first things first|before we begin}{. |? |, |: }{I'm|I am|my name's|the name's} $v",
         "$v is {how I'm known|the name I was given|what it says on my passport|what my mum calls me|what you can call me|the name to remember|what I'm called|who you're talking to|the name my parents gave me|fine as a name for me}",
         "$v's the name{, {chatting|questions|asking things} is my game|}", "{user|visitor|guest|first name|full name|given name|nickname|from|sender|caller|who}{: | = | - }$v", "{I answer to|I respond to|I was baptised|I'm registered as|I write as|I'm signed up as|I'm listed as|I log in as|I present myself as} $v",
         "{there's someone|you've got someone|a person|somebody} {here |}{called|named|by the name of} $v{ and that's me|, that's me|, and that person is me|: me}", "{my surname doesn't matter|never mind my surname|leave out my surname|forget titles}, {I'm|just call me|it's} $v",
         "{I'm|I am} $v{, pleased to make your acquaintance|, lovely to meet you|, how do you do|, and this is my first visit|, and you|, can you help me|, I found this page by chance|, are you a robot|, a friend of this house|, and I'm {curious|bored|hungry}|, short and sweet}",
         "{some call me other things, but|nobody can spell it, but|it's an old family name, but|it's an odd name, I know, but|I never liked it, but} {I'm|I am|I'm called|my name's} $v", "{when you talk to me|when you answer|in your replies|as we chat}, {use|say|write|call me} $v{ please|}",
         "I {wasn't|was not} sure {you got|I gave you|I told you} my name{: |, |. }{it's|I'm|I am} $v", "{thanks for asking|glad you ask|good of you to ask}{, |. |: }{I'm|I am|it's|my name's} $v", "{im|i'm|its|my name's} $v {btw|lol|and u|here|thx|from next door|and i'm new}",
         "{the lady|the man|the boy|the girl|the human|the teenager|the pensioner|the visitor} {behind this keyboard|who is typing|on this side of the screen|in front of you} {is|is called|goes by} $v"),
        ("{which|what} name {goes with me|would you shout to find me|am I registered under|did I sign in with|do you connect with me|shall I answer to}", "{who|and who} {did I say I am|have I said I am|am I, then|is this person here|is it that's writing|have you been talking to|do you think I am}",
         "how {do|would|should} you address me", "{address|call} me by {my|the right} name", "{say|type} hello {to me |}{with|using} my name", "am I {a stranger|nameless} to you, or do you know {my name|who I am}", "{name please|my name please|my name pls|name of this user|me, who am I}",
         "{which|what} name {should|do|can|must} {they|I|we|you} {put|write|print} {on {the badge|my ticket|the envelope|my mug|the cake|the guest list}|in the form}", "{remind me|tell me} who I am", "they are calling out names, what's my name",
         "if somebody calls and asks {for me|who I am}, {what|which} name do I give"),
    ),
    "code": (
        ("{punch|type|key|tap|put} in $v {and|then} {my|the} $k {opens|is open|lets you in|unlocks}", "{my|the} $k {won't|doesn't|will not} open without {the code |}$v", "{it takes|you need|one needs|we use|I always use|all it takes is} $v to {open|unlock|get into} {my|the} $k",
         "{getting|to get} into {my|the} $k {is easy|is simple|takes no key}{: |, |, just }{type|enter|use|dial|press} $v", "$k {combo|code|pin|lock} {= |: |- |is set to |}$v", "{the number|the code|the combination} I {keep|chose|made up|set|was given} for {my|the} $k is $v", "$v {lets|gets} {you|me|us|anyone} into {my|the} $k",
         "{the locksmith|the landlord|the office|the shop|the installer} {set|programmed|gave us|picked} $v {for|as the code for} {my|the} $k", "{nothing but|only|just} $v will {open|unlock} {my|the} $k", "{opening|unlocking} {my|the} $k {takes|needs|requires|is done with} $v", "{keep|please keep} $v {for me|safe|secret}, it's {my|the} $k {code|pin|combination}"),
        ("{how does|how will|how would} {one|anyone|a guest|somebody} {open|unlock|get into} {my|the} $k", "{which|what} {sequence|digits|code|number} {did I {enter|pick|make up|programme} for|opens|unlocks|is needed for} {my|the} $k", "{what|which} code {lets|gets} {me|you} into {my|the} $k",
         "{my hands are full|it's dark here|it's raining|I'm freezing|I'm in a rush}, {what's the code {for|of} {my|the} $k|how do I open {my|the} $k}", "{code|pin|combo} for {my|the} $k", "{the keypad|the lock|the display|the screen} of {my|the} $k is {blinking|waiting|lit}, what do I {type|enter|press}",
         "{what are|tell me} the {numbers|digits} {I need for|that open|to open} {my|the} $k", "{what|which} {one|number} was {for|to open} {my|the} $k"),
    ),
    "password": (
        ("{type|enter|use|put in} $v {and|then} you're logged in to {my|the} $k", "{to sign in|to log in|to get in|for access} to {my|the} $k{, |: }{it's|use|type|enter} $v", "{my|the} $k {wants|expects|accepts|takes|needs} $v{ as {the |a |}password|}", "{whoever|anyone who} knows $v {can use|gets into} {my|the} $k",
         "{I've|I have} {reset|updated|set} the $k password{. |, |: }{it's|now it's|the new one is} $v", "{the|my} secret for {my|the} $k is $v", "$k {pw|pass|login} {= |is |: |- }$v"),
        ("{what|which} {word|password} {does|will} {my|the} $k {want|accept|take|expect}", "{what|which} {secret|word} {protects|guards|unlocks} {my|the} $k", "{pw|pass|password|login} for {my|the} $k", "{my|the} $k {kicked me out|logged me out|wants me to sign in}, what's the password",
         "how {do|can|should} {I|we|my guests} {sign in to|connect to|log on to} {my|the} $k", "{did I give you|have you got|do you have} the {word|password} for {my|the} $k"),
    ),
    "secret": (
        ("{shall we say|let's say|let's agree} that $v is the $k", "{whisper|say|shout|type|tell them} $v{, |: }{it's|that's} the $k", "{only|just} {you and I|we two|a few of us} know the $k{: |, |, it's |. It's }$v", "when {they|the others|people} ask for the $k, {say|it's|tell them} $v", "the $k has {been|become} $v{ since {last week|today}| for now|}",
         "{what a|such a} {strange|good|silly} $k{: |, }$v", "$k {=|-|is now|is:} $v"),
        ("{they won't let me in without|I must say|I have to type|the game asks for|the letter asks for} the $k{, |. }{what is it|which one is it|what was it}", "{what|which} {word|one} did {we|I} {settle on|decide on|go for|end up with} {as|for} the $k", "$k please", "our $k {is|was} {what|which}", "{give me|tell me|whisper} the $k"),
    ),
    "relation": (
        ("{put|write|note} $v {on the list|in the book}, {that's|it's} my $k", "{I should mention|let me mention|have I mentioned|I forgot to mention} my $k{: |, |, }{{his|her} name is|that's} $v", "{it was|it's} $v, my $k, who {taught me to cook|sent me here|gave me this phone|told me about this page|made me laugh}",
         "my $k, {that is|I mean|so} $v, {is coming over|sends regards|has a new hat|can't swim|is the best}", "{$v, that is, my $k|my $k, that is $v}{, {is late again|came along|is on the phone|snores|is a good cook}|}", "{everyone|the whole street|the family} knows my $k as $v", "$k = $v", "my $k: $v", "$v - that's {what my $k is called|my $k's name|my $k}",
         "{I owe a lot to|I get on well with|I often think of|I miss|I'm proud of|I need a present for|I'm waiting for} my $k{, |. }{{his|her} name is|that's|{he|she} is called} $v", "my $k{, called $v,| -- $v --| ($v)} {is the kind one|lives far away|never calls|helps me|likes the sea|has a big garden}", "for my $k, they picked the name $v"),
        ("{who|whom} {am I talking about|do I mean} when I say my $k", "{I'm writing a card to|I need to book a table for|I'm sending a parcel to|I'm making a name tag for|I have to introduce} my $k{, |. }{what|which} name {do I write|do I use|should it have|is it}", "{what|which} name {should I call|do people use for|do I use for} my $k",
         "how is my $k {known|addressed}", "my $k {goes by|answers to} {what|which} name", "{someone|somebody} {rang|asked} about my $k, {what's|what is} {his|her} name", "{spell|give me|say} the name of my $k", "my $k's {first name|name please|name again|name}"),
    ),
    "pet": (
        ("{say hello to|may I introduce|let me introduce|this here is|have you met|allow me to present} $v{, |: }{my|our|the} $k", "{I'm at the vet with|I just came in with|I'm sitting next to|I'd be lost without|I spoil} my $k{, |. }{{his|her|its} name is|that's|{he|she|it} is called} $v",
         "the $k at {home|our house|my place} is {called |named |}$v", "{come here|good boy|good girl|sit|bad boy}, $v! {That's|That was for|I was talking to} my $k", "$v is {a good|a very good|such a sweet|a spoilt|a noisy} $k, and mine", "$k = $v", "my $k: $v", "$v - {that's|this is} {my|our} $k",
         "my $k ({called|named|her name is|his name is} $v) {is asleep|is on the sofa|wants food|had a bath|is getting fat}", "we {ended up|insisted on} {calling|naming} {our|the|my} $k $v", "{on the collar|on the tag|at the vet|in the family} my $k is {called |}$v"),
        ("{what|which} name {is|do I put|do I write} on the {tag|collar|bowl|basket} of {my|our} $k", "{I'm at the vet|a child wants to pet my $k|my $k got lost|I'm putting up a poster}, {what|which} name does my $k have", "{how} do I {call|shout for} my $k", "{tell me|say} what my $k {is called|listens to}",
         "the $k {I|we} {have|feed|own}, what's {it|{he|she}} called", "my $k {answers to|listens to|goes by} {what|which} name", "$k's name", "I'm feeding my $k, what's my $k called"),
    ),
    "home": (
        ("{I pay rent|my kids go to school|my bed is|my front door is|my post arrives|I vote|I get my bread|I walk my dog|my neighbours and I live} in $v", "{here|over here} in $v, {where I live|where my home is|my home}, {it's raining|it's quiet|the sun is out|people are kind}", "{I traded the countryside for|I left the sea for|I wanted city life so I chose|after some years abroad I settled in|we sold the farm and moved to} $v",
         "$v is {home|my home sweet home|where you'd find me|where I pay rent|where I hang my hat|where I settled|where we live}", "{home|home town|city|town|residence|lives in|location|based in}{: | = | - }$v", "{as a|being a} resident of $v I {know every shop|love the parks|can walk to work}", "{I'm|I am} a {resident|citizen|local} of $v", "{writing|typing|greetings|hello|hi} from $v, {where I live|my home|home for me}"),
        ("{what|which} {city|town} {should|do} I {put|write|give} as my {home|address|residence}", "{town|city} I live in", "my {city|town|home}", "{where|in which {city|town}} {do I pay rent|is my bed|is my front door|have I made my home|do I have my flat|do my neighbours live}", "{to which {city|town}|where} {should|would} {they|you|one} send {my post|a card to my home|a postcard for me}", "{what city|what town} do I live in, {again|then|now}",
         "what's my {city|town|place of residence} called", "{when|if} I go home, {where|to which {city|town}} do I go"),
    ),
    "origin": (
        ("{my story|my life|it all} {began|started} in $v", "{I first went to school|my cradle stood|I took my first steps|my mum had me|I spent my early years|my childhood was} in $v", "{though|although} I moved away, I'm from $v{ originally|}", "$v {raised me|made me who I am|is my birthplace|is where it all began for me}",
         "{place of birth|birthplace|origin|from|born in|hails from}{: | = | - }$v", "I {hail|come} from {sunny|good old|little|} $v", "{people hear it in my accent|you can hear it|my accent gives it away}{: |, }I'm from $v"),
        ("{what|which} {city|town|place} {saw me grow up|is in my passport as birthplace|did my life start in}", "from {where|which {city|town}} {am I|do I come|do I hail}", "{which|what} town do I come from again", "my {origin|birthplace|birth town}", "where {did my life begin|did I take my first steps|do I hail from|am I originally from|did my mum have me}", "I'm a {child|native|son|daughter} of {what|which} {city|town}"),
    ),
    "job": (
        ("{put|write|note} me down as $a $v", "{all day long|every day|five days a week|since I left school|for my sins} {I'm|I am|I work as} $a $v", "{I pay my bills|I pay the rent|I earn my bread|I keep busy|I make money} as $a $v", "{job|profession|occupation|work|trade}{ = | - |: }$v", "$a $v is {what I am|what I do all day|what I do for a living|what I became|my job}",
         "{call me|I call myself|they call me|I see myself as} $a $v, {that's my job|it's how I earn my living|by trade}", "{my boss|my client|my customer} says I'm a {good|fine|great} $v", "{I dreamed of the stage, but|I wanted to travel, but|it's hard work, but|the pay is bad, but} {I'm|I work as|I became} $a $v"),
        ("{what|which} {job|work} {pays my bills|keeps me busy|do I do all day|am I doing|did I mention}", "my {job|work|profession|occupation}", "{what|which} {job|occupation} do I {put|write} {on the form|in the box|on my card}", "what have I {trained|qualified} as", "how do I {earn|make} my {bread|daily bread|money}", "people {ask|wonder} what I do {for a living|all day}, what do I {say|tell them}", "what am I{, {professionally|job wise}| by occupation| at work}"),
    ),
    "age": (
        ("{I've|I have} {lived|been alive} for $v years", "{I'm|I am} $v{ and {counting|proud of it|feel younger|can't believe it|still learning|going strong}|, would you believe it| years of age| years young|, give or take a month}", "{age|years old|my age|how old}{: | = | - }$v", "{at $v|being $v}, I {feel fine|know a thing or two|need my sleep|still play}", "$v years {ago I was born|is how long I've lived|old, that's me}", "there were $v candles on my {birthday |}cake"),
        ("{what|which} age {do I write|do I put|should I give}{ on the form|}", "my age", "how many {years have I {lived|seen}|birthdays have I had}", "{for the discount|for the form|for the insurance} they need my age, {how old am I|what is it}", "how old {am I now|is the person writing this}"),
    ),
    "birthday": (
        ("{mark|circle|note|save|put} $v in {your|the} calendar{, |: }{it's|that's} my birthday", "my birthday, my big day, {is|falls on} $v{, {my birthday|that's my birthday}|}", "{birthday|born|born on|date of birth|dob}{: | = | - }$v", "I {blow out the candles|eat cake|get presents|have my birthday|turn a year older} on $v{ every year|}", "on $v {it's|we celebrate} my birthday", "$v is {the day I was born|when I was born|my special day, my birthday|the date of my birth}"),
        ("{which|what} {day|date} {should you|must you|do you} {remember|note|mark} for my birthday", "my {birthday|date of birth|birth date}", "{what|which} date do I {put|write|give} as my {birthday|date of birth}", "{when|on which day|on what date} {should|do} {we|I|my friends} {celebrate|bake a cake for} my birthday", "{the doctor|the form|the bank} {asks for|wants|needs} my date of birth, what is it", "when's my {birthday}"),
    ),
    "number": (
        ("{look for|go to|find|ask for|remember} $k $v, {that's mine|it's mine|that's me}", "I ended up with $k $v", "$k{ = | - |: | }$v", "{it says|they printed|I see|they wrote} $k $v {on my {card|paper|letter|slip}|here}", "$v is {the $k I have|what they gave me as $k|the $k they gave me|the $k I got}", "the $k {for me|I use|assigned to me|with my name on it} is $v"),
        ("{they are calling|I should look for|I'm searching for} my $k, {which|what} {is|was} it", "{what|which} $k is {it|mine|the one they gave me}", "{tell me|say} my $k", "$k", "{which|what} $k {was I told|am I supposed to remember|has my name on it|did they assign to me}", "{I'm standing in the hall|they ask me|I need it for a form}: {what's|what is|what was} my $k", "what did I {give you|note|write down} as my $k"),
    ),
    "named": (
        ("{have you heard of|do you know|ever heard of} $v? {It's|That's} my $k", "{I'm|we're} {proud|fond|tired} of my $k{, |. }{it's called|the name is|we named it} $v", "$k = $v", "my $k: $v", "$v - {that's|this is} {my|our} $k", "my $k ({called|named|known as} $v) {is small|is doing well|needs work|is the best|was my idea}", "$v is {the name I chose for|the name of|what we named|what people call} my $k", "I {often think of|am glad about|talk a lot about|am fond of} my $k, $v"),
        ("my $k {is called|goes by|has the name} what", "my $k's name", "{I'm writing about|I'm making a sign for|I'm telling a friend about|I have to enter} my $k, {what's it called|what's the name|which name is it}", "{what|which} name {should|do} I {write|put} {down |}for my $k", "what do {I|we|people} call my $k", "name of my $k", "{tell me|say} what my $k is called"),
    ),
    "street": (
        ("{my letters|my parcels} {come|go|are sent} to $v{, where I live|, my street|, my address}", "{turn into|drive to|come to|walk down|take the bus to} $v{, |: }{that's where I live|I live there|my house is there}", "{street|address|my address|lives on|home address}{: | = | - }$v", "$v is {my address|my street|where I live|where my house is|where you'll find my house|where the postman finds me}",
         "{I've|I have|we've|we have} {moved to|bought a house on|lived for years on} $v", "{put|write} $v on the {parcel|envelope|letter}, it's my {address|street}"),
        ("to {which|what} street {should they|do they|must they} {send|bring|deliver} {my parcel|my post|my pizza}", "my {street|address|street name}", "{which|what} {street|address} do I {give|put|write} {on the form|on the envelope|as my address}", "{what|which} street am I {living|based} on", "{I'm lost|I'm in a taxi|I'm ordering a pizza|I'm posting a parcel to myself}, what's my {street|address}", "{which|what} street {leads to my house|takes me home|do I live in}"),
    ),
    "spot": (
        ("{I've looked after|I took care of|don't worry about|no need to search for} {my|the} $k{: |, |. }{look|check} $v", "{my|the} $k @is $v, {I hope|so look there|if nobody moved anything|as far as I know|I saw to that myself|and should stay there}", "$v, {that's where|there} {I|we} {put|left|keep} {my|the} $k", "{last time I looked|as usual|like always|as always|this time|for once|right now|at the moment}{, | }{my|the} $k @is $v",
         "{remind me later|remember for me|note for later|so I don't forget}: {my|the} $k @is $v", "$k {= |- |-> |... }$v", "{go|reach|search|check|look} $v {and you'll find|to find|to get|for} {my|the} $k", "{I|we} {usually|mostly|normally|often} {put|leave|keep} {my|the} $k $v", "{after|before} {dinner|work|the trip|breakfast} I {put|left|laid|dropped} {my|the} $k $v", "{to be safe|in the end|without thinking|in a hurry}, I {put|left|hid|laid} {my|the} $k $v"),
        ("$k", "{my|the} $k please, where", "{I'm late|we have to go|the taxi is waiting|I need to leave|it's an emergency}{, |: |! }where @is {my|the} $k", "where {on earth|in the house|exactly|then|now} {@is {my|the} $k|did I {put|leave} {my|the} $k}", "{what's|what is} the place where I {put|left|keep} {my|the} $k", "{what|which} {place|spot} did I {choose|mention|tell you} for {my|the} $k", "{if|when} I need {my|the} $k, where {do|should} I {look|go}",
         "I {turned the house upside down|searched everywhere|looked everywhere} for {my|the} $k{, |. }{where should I look|where would you look|where do I look}", "where did {my|the} $k go", "{which|what} place should I check for {my|the} $k"),
    ),
    "coloured": (
        ("{draw|imagine|picture} my $k in $v, {that's|that is} the colour it has", "my $k ({it's|the colour is} $v) {is outside|is old|needs a wash|is my favourite thing}", "{of all colours|for some reason|in the end|after much thought} {I|we} {chose|picked|took|wanted} $v for my $k", "$v is {the colour of my $k|the colour my $k has|what colour my $k is}", "my $k colour{: | = | is | - }$v", "my $k comes in $v", "{everyone|nobody|the whole street} {likes|knows|notices} my $v $k"),
        ("{draw|picture} my $k, {which|what} colour {do you need|should it be|is it}", "colour of my $k", "my $k's {colour|color}", "{what|which} {colour|color} {should I write|do I put|do I tell them} for my $k", "{what|which} {colour|color} {does|did} my $k {come in|get|have}", "my $k {has|is} {what|which} {colour|color}", "{I'm buying paint for|I need to describe|I'm reporting|I lost} my $k, {what|which} {colour|color} is it"),
    ),
    "event": (
        ("{my|the} $k {comes up|is coming up|is due|is happening|is on} $v", "{mark it|put it in the diary|set an alarm|block the calendar|tell everyone}{: |, }{my|the} $k is $v", "$k{: | = | - |? }$v", "{I agreed|we decided|I was told|we heard} that {my|the} $k {is|would be|will be} $v", "{got a letter|they rang|they emailed|the app says|the calendar says}{: |, }{my|the} $k is $v", "$v is when {my|the} $k is{, so wish me luck|, by the way|}", "{I have to iron a shirt|I must get ready|I need to pack}, {my|the} $k is $v", "$v, that's when {I have|they put|we planned} {my|the} $k"),
        ("$k when", "{when|what day|what time} is {that|this} $k of mine", "{I'm making plans|someone wants to meet me|I need to take time off|I want to set an alarm}, when is my $k", "{when|for when} {is|was} my $k {planned|booked|scheduled|fixed|set}", "when {am I expected at|do they expect me at} my $k", "{what's|what is} the {time|date|day} of my $k", "{when|how soon} {does|will} {my|the} $k {happen|take place|start}", "my $k, when"),
    ),
    "price": (
        ("$v, that's what my $k cost", "for $v {I got|I bought} my $k", "my $k {was {a bargain|expensive|on sale|second hand}|came from {a shop|the market}}{, |: |. }{it cost|I paid} $v", "my $k {set me back|cost me|came to|was worth} $v", "{the shop|the seller|they|the man} {wanted|asked|charged} {me |}$v for my $k", "the bill for my $k {was|said|came to} $v", "$v is what I {paid|spent|gave} for my $k", "$k{: | = | - }$v", "{can you believe|would you believe|imagine}{: |, }$v for my $k", "I {saved up|handed over|parted with} $v for my $k"),
        ("{and|what about} my $k, {how much|what} was {it|that}", "my $k {cost|was} how much", "price of my $k", "{how much|what} did {the shop|they|the seller} {ask|charge me|want} for my $k", "{someone|a friend|the insurance} {asks|wants to know} the price of my $k, {what was it|what do I say|how much was it}", "{how much|what} did I {hand over|say I paid|give} for my $k", "how much {did my $k set me back|money went on my $k|money did I spend on my $k}", "what did my $k {come to|set me back}"),
    ),
    "allergy": (
        ("{waiter|chef|careful|warning|please note|for the cook}{: |, }{I'm|I am} allergic to $v", "{allergy|allergic to|allergies|my allergy}{: | = | - }$v", "{the doctor|the test|a nurse} {found|says|confirmed} {I'm|I am} allergic to $v", "{one thing I must avoid is|I have to avoid|I stay away from|keep me away from} $v, because of my allergy", "$v {and I don't mix}, {I'm|I am} allergic", "{since|ever since} I was {small|a kid|six} I've been allergic to $v"),
        ("{what|which} {thing|food|stuff} must I {avoid|stay away from} because of my allergy", "what {causes|triggers|sets off} my allergy", "my allergy", "{I'm ordering food|I'm at the doctor's|I'm filling in a health form|I'm in a restaurant}, what am I allergic to", "what {do I have|have I got} an allergy to", "what {can't|shouldn't} I {come near|touch|have} with my allergy", "to what am I allergic"),
    ),
    "instrument": (
        ("{music is my life|I love music|every evening I make music|I'm in a band|I make noise at home}{, |: |, and }I play the $v", "the $v is {my instrument|what I play|the instrument I play|my thing}", "{instrument|my instrument}{: | = | - }the $v", "{I picked up the|I fell in love with the|I got lessons on the} $v {as a child and still play|years ago and still play it}", "I {perform|practise|relax|give concerts} on the $v", "{I'm not good, but|I'm no star, but|I should practise more, but} I play the $v"),
        ("my instrument", "{what|which} instrument {do I bring|do I take} to {band practice|rehearsal|the lesson}", "{which|what} instrument {stands in my room|would I play in a band|do I relax with|did I pick up}", "{the orchestra|a band|the teacher} asks {which|what} instrument I play, {what do I say|what is it}", "what do I make music {with|on}", "I play the what"),
    ),
    "hobby": (
        ("{give me|I live for|nothing beats|I can't get enough of|I'm hooked on|I'm addicted to|I'm mad about|I'm keen on} $v, {my hobby|it's my hobby|that's my hobby}", "{hobby|hobbies|interests|free time}{: | = | - }$v", "{every weekend|on Sundays|after school|when it rains|in my spare time|most evenings} {I'm busy with|I spend hours on} $v", "$v {keeps me sane|makes me happy|fills my weekends|is my hobby|is what I do in my spare time}", "{I started|I took up|I discovered} $v {last year|as a kid|years ago} and it's {still |}my hobby{ now|}"),
        ("my hobby", "{what|which} hobby {keeps me busy|fills my weekends|makes me happy|did I take up|do I put on the form}", "what {keeps me busy|do I do} {at the weekend|in my spare time|on Sundays}", "{what|which} {pastime|activity} {do I love|do I enjoy|is my hobby|did I mention}", "what {am I hooked on|am I keen on|do I spend my weekends on}", "{someone|a new friend} wants to know my hobby, {what is it|what do I say}"),
    ),
    "language": (
        ("{at home|in my family|at school|with my friends|at work} {we|I} {speak|use|chat in} $v", "{language|languages|mother tongue}{: | = | - }$v", "$v is {my language|the language I speak|the language I'm learning|what I speak|what we speak at home}", "{excuse my English|my English isn't perfect|sorry for my English}, {I speak|my language is|I grew up with} $v", "{every night|each week|on the bus} I {study|practise|learn} $v"),
        ("my language", "{which|what} language {should I put on my CV|do I use at home|do I know|am I busy with|do I practise}", "{someone|a teacher} asks {which|what} language I speak, {which one is it|what do I say}", "what language {do we speak at home|is mine|is my mother tongue}", "I speak {which|what} language", "in {which|what} language {could|would|do} I {talk|chat|write}"),
    ),
    "car": (
        ("{parked|standing} {outside|in front of my house|in my street} is a $v, {my car|that's my car|it's mine}", "{car|my car|vehicle}{: | = | - }a $v", "{after years of cycling|when I got my licence|last month|for the new job} I {bought|got|chose} a $v", "a $v is {what I drive|my car|the car I drive}", "{look for|if you see} a $v, {that's my car|it's mine|that's me}", "my {wheels are|ride is} a $v", "{I wash|I love|I can't start|I had to repair} my car, {it's |}a $v"),
        ("my car", "{which|what} car {do I wash|is parked in front of my house|is outside|do I drive to work|do I put on the form}", "{the garage|the insurance|the mechanic} {asks|wants to know} {which|what} car I {have|drive}, {what is it|what do I say}", "what {do I get to work in|am I driving|are my wheels|did I say I drive}", "I drive a what"),
    ),
    "study": (
        ("{books on|lectures on|exams in|essays on} $v {fill my days|keep me busy}, {it's|that's} my subject", "{subject|studies|major|field|degree}{: | = | - }$v", "I'm {doing|reading|taking|busy with} $v at {uni|university|college}", "{my parents wanted something else, but|it's hard, but|after a year off} I {study|chose|do} $v", "$v is {the subject I chose|what I'm studying|what I do at university|my degree}"),
        ("my subject", "{what|which} {subject|degree} {keeps me busy|did I go for|am I doing at uni|do I have exams in|do I put on the form}", "what {do I have lectures in|is my degree in|am I reading at university}", "I'm a student of what", "in {what|which} subject do I {have exams|take my degree}"),
    ),
    "count": (
        ("{believe it or not|at the last count|all together|all told|counting them all}{, | }I have $v $k", "$k{: | = | - }$v", "{put|write|note} {down |}that I have $v $k", "I {own|can count|can show you|am up to} $v $k", "{my house is full|I need more room|it's getting crowded}, I have $v $k", "$v {is how many $k I have|$k is what I have|$k, that's how many I have}", "I need no more $k, I have $v"),
        ("{how many|what number of} $k {do I own|did I count|can I count|was it}", "count my $k{, how many|: how many are there|}", "{I'm making a list|I'm filling in a form|somebody asks}: how many $k do I have", "how many $k {is it|were there|do I end up with|did I tell you about}", "$k, how many"),
    ),
    "trip": (
        ("{trip|destination|travelling to|going to|flight to}{: | = | - }$v", "{tickets booked|bags packed|passport ready|I'm so excited|finally a holiday}{: |, |! }I'm {going|flying|off} to $v", "{we've|I've} {got tickets|planned a trip|booked a flight|bought tickets} to $v{ for our holiday| for next month|}", "$v {is where I'm going|is where my trip goes|is waiting for me}{ next {week|month}|}", "{the plane|my flight|the train|the bus} takes me to $v {next week|on my trip|for my holiday}", "{I need sun|I need a break|I want to see the sea}, so I'm going to $v"),
        ("my {destination|trip}, where to", "{what|which} {city|place} {did I book|do I fly to|have I got tickets for|am I off to|will I see on my trip}", "where {am I off to|will I be on holiday|do my tickets take me|is my holiday|am I headed}", "{the travel agent|a friend|the office} {asks|wants to know} where I'm going, {what do I say|where is it}", "for which {city|place} is my suitcase packed", "{I'm at the airport|I'm on the train|my bags are packed}, where {am I going|does my trip go}"),
    ),
    "bought": (
        ("{latest purchase|last purchase|bought}{: | = | - }$a $v", "{look what I got|look what I bought|I treated myself|I spent some money|I was weak again}{: |, }$a $v", "{yesterday|today|this morning|last night} I {ordered|bought|picked up} $a $v {online|in a shop|at the market|for myself}", "$a $v is in my shopping bag, I {just |}bought it", "{I needed nothing, but|it was cheap, so|my friends laughed, but} I bought $a $v", "{the post brought|the parcel has arrived with|in my bag is} $a $v, I bought it"),
        ("my {latest |last |}purchase", "what {was it I bought|did I treat myself to|did I spend my money on|is in my shopping bag|did I pick up at the shop|did I order}", "{someone|my bank} asks what I bought, {what was it|what do I say}", "{which|what} thing {did I order|did I come home with|did I spend money on}", "the thing I bought, what was it"),
    ),
    "workplace": (
        ("{employer|company|works at|workplace|firm}{: | = | - }$v", "{from nine to five|every weekday|five days a week|since May|since last year} {I'm at|I work at|I work for} $v", "{I pay my bills thanks to|I earn my money at|I have my desk at|I have a job at|I'm part of the team at|I got hired by} $v", "the people at $v {are kind|say hello}, {I work there|it's where I work}", "{it's a long way, but|the pay is bad, but|the coffee is good:} I work at $v", "$v {hired me|gave me a job|employs me|is my workplace|is where I earn my money}"),
        ("my {employer|workplace|company}", "{which|what} {company|firm} {hired me|employs me|do I have a job at|pays me|is my employer}", "{the bank|the form|a friend} {asks for|wants to know|needs} my employer, {who is it|what do I say}", "{who|which company} {gave me a job|do I work for|signs my payslip}", "where {am I employed|is my office|do I earn my money|do I go every morning|did I say I work}"),
    ),
    "their home": (
        ("to {visit|see} $k, {it's|go to|travel to} $v{, that's where {he|she} lives|}", "{remember|did I mention|have I mentioned|you know} $k? {Lives in|Has moved to|Settled in} $v", "$k {is based|is at home|resides|has settled|works and lives|is staying|rents a room} in $v", "{postcard|greetings|a letter} from $k, who lives in $v",
         "$k: {lives in |home is |}$v", "{funny enough|by chance|as it happens|these days} $k {lives|has a home|is living} in $v", "$k {loves|hates|complains about|can't leave} {the weather|life} in $v, where {he|she} lives"),
        ("$k's {city|town|home}", "{which|what} {city|town} {should I|do I|must I} {write|put} on the {letter|envelope|card} to $k", "{where|in which city} {would|will|could} {I|you|we} {find|meet} $k{ at home|}", "where {does $k have a home|has $k moved to|does $k reside|is $k based|did I say $k lives}", "{someone|a friend} {is looking for|wants to visit|asks about} $k, where {does {he|she} live|is {he|she} based}", "$k, where"),
    ),
    "their job": (
        ("{did I mention|remember|have I mentioned|you know} $k? {Works as|Is|Became} $a $v", "$k {pays the bills|makes money|earns money|keeps busy|spends the day} as $a $v", "$k: {works as |}$a $v", "{everyone|the whole town} knows $k, who is $a $v", "{to become|becoming} $a $v was $k's dream, and {it worked|now {he|she} is one}", "$k has the job of $a $v", "{people say|they say|I know|I heard} $k {is|works as|became} $a $v"),
        ("$k's {job|profession|occupation|work}", "{someone|a friend} asks what $k does, {what do I say|what is it}", "{what|which} {job|work} {does $k do|keeps $k busy|has $k got|pays $k's bills}", "what is $k {employed as|by trade}", "what does $k do {all day|at work|professionally}", "$k is what by {profession|trade}"),
    ),
    "their food": (
        ("{give|serve|feed|offer|bring} $k {some |}$v and {he|she} is {happy|pleased|quiet}", "$k: {loves |}$v", "{whenever|if|when} $k is {sad|here|hungry}, {I make|we get|I cook} {some |}$v", "{did I mention|have I mentioned|remember} $k? {Loves|Can't resist|Lives on} $v", "$k {goes for|always orders|can't resist|lives on|dreams of|would kill for|is mad about|is crazy about|prefers} $v", "{nobody|no one} eats as much $v as $k"),
        ("$k's {favourite |favorite }{food|dish|meal}", "{what|which} {food|dish|meal} {does $k prefer|does $k go for|would $k order|is $k crazy about|can't $k resist}", "{I'm cooking for|I'm inviting|I want to surprise} $k, what does {he|she} like{ to eat|}", "what {would|should} {I|we|you} {put on the table|order|make} for $k", "what {does $k always order|makes $k happy at dinner|is $k mad about}"),
    ),
    "their pet": (
        ("$k's {pet|dog|cat|rabbit} {answers to|listens to|goes by|has the name} $v", "$k {calls|named|has named} {his|her} {pet|dog|cat|rabbit} $v", "{I looked after|I walked|I fed|I played with} $v, $k's {dog|pet}", "$k {got|adopted|keeps|lives with} a {pet|dog|cat|rabbit} {called|named} $v", "$k has a {new |}{pet|dog|cat}. {Its name is|It's called|They call it} $v", "$v belongs to $k, {it's a|a} {cat|dog|pet}", "{if|when} $k shouts $v, the {dog|cat|pet} comes", "{have you met|do you know} $v? That's $k's {dog|cat|pet}"),
        ("{and|what about} $k's pet, what's it called", "$k's pet, what's {its|the} name", "what does $k call {the|that} pet", "{which|what} name {did $k give|has $k given|does $k use for} {the|that} pet", "what did $k {name|call} {the|that} pet", "what {is|was} the name of the pet of $k", "name of $k's pet", "the pet of $k is called what", "{I'm looking after|I'm feeding} $k's pet, {what's|what is} it called", "what name does $k's pet {have|answer to}"),
    ),
    "their age": (
        ("$k is {already|only|just|now|almost} $v", "$k had a {birthday|party}{, |. }{he|she} is $v now", "{last|this} {week|month|year} $k turned $v", "$k was born $v years ago", "$k, {who is|aged} $v, {is coming|came to see me|feels great|still works}", "$k is $v and {still working|going strong|doing fine|feels great}", "the cake for $k had $v candles", "$k: $v years old", "{would you believe|can you believe|imagine|I think|I know} {that |}$k is $v", "$k has lived for $v years"),
        ("$k's age", "{and|what about} $k, how old is {he|she}", "how old {did I say $k is|was $k|is $k now|has $k turned|did $k become}", "$k is how old", "what age is $k", "how many {years has $k lived|candles are on $k's cake|years old is $k}", "{I'm writing a birthday card for|someone asks about} $k, how old is {he|she}", "what age did I {mention|give|tell you} for $k"),
    ),
    "their gift": (
        ("$k: $a $v{ as a {present|gift}|}", "{it's|it'll be} $a $v for $k{, don't tell|, I think|}", "{don't tell|shh, don't tell} $k, but {he|she} gets $a $v", "{under the tree|in the box|in the wrapping paper} {there's|is} $a $v for $k", "{to thank|to surprise|to please|to cheer up} $k I {bought|got|made} $a $v", "$a $v {should|will|might} make $k happy, {that's the gift|that's the present}", "$k is getting $a $v {from me|for Christmas|this year}"),
        ("{what|which} {present|gift} {did I choose|have I got|did I wrap|did I find|did I make} for $k", "$k's {gift|present}", "what is $k {getting|going to get}", "the {gift|present} for $k, what {is|was} it", "what am I {wrapping for|giving} $k", "{it's $k's birthday|I'm going to see $k|$k is coming}, what {did I buy|did I get|is the present}"),
    ),
    "their phone": (
        ("$k: $v", "{save|note|write down|put in your phone|add to the contacts}: $k's number is $v", "{for|to get} $k {it's|dial|press|call} $v", "{if|when} something {happens|goes wrong}, {call|ring|phone} $k on $v", "you can {ring|phone|text|call} $k {on|at} $v", "the number {I have|I use|that works} for $k is $v", "{don't lose|keep} $k's number{: |, it's |. It's }$v", "$v will get you $k", "$k {answers|picks up|listens} if you {dial|call} $v"),
        ("$k's number", "{which|what} number {gets me|belongs to|do I use for|did you note for|will reach} $k", "number of $k", "how {can|could|would} {I|we|one} {phone|call|ring|reach} $k", "{it's urgent|I'm in trouble|I'm at a phone box|I must talk to somebody}: what's $k's number", "what do {I|we} {dial|press|type} to {reach|get|call} $k", "$k is {on|at} {what|which} number"),
    ),
}
_FAVOURITE_MORE = (
    (f"{{if you're buying|if you're choosing|for my birthday|when I'm sad|as a treat}}: $v, my {FAV} $k", f"my {FAV} $k{{ = | - | -> |... }}$v", f"{FAV} $k{{ = | - | is |? }}$v", f"$v {{will always be|has to be|must be|would be|gets my vote as}} my {FAV} $k", "{you can keep the rest|others may disagree|call me boring|it's no contest|no doubt about it|hands down|without question|I thought about it long}{, |: }{the best $k is|my top $k is} $v",
     "{hard to choose|tough choice|so many to choose from|there are so many}, but {my favourite $k is|the best $k is} $v", f"{{everyone else likes something different|my friends disagree|my taste changed|I'm not picky}}, but my {FAV} $k is $v", f"{{give me|I go for|I'll take|I'd choose|I'd pick}} $v {{any day|every time|over everything|first}}, my {FAV} $k", "the $k I {rate highest|never get tired of|recommend to everyone|would take to an island|love above all|always go back to} is $v",
     f"{{I'm all about|I'm really into|I've always liked|I have a thing for|I have a soft spot for}} $v, my {FAV} $k", "my {number one|go-to|all-time favourite|absolute favourite|preferred|best-loved|beloved} $k is $v"),
    ("{what|which} $k {do I rate highest|would I take to an island|do I always go back to|am I mad about|do I recommend|never bores me|is my number one|is my go-to|gets my vote|am I a fan of}", f"{{best|{FAV}|top}} $k of mine", f"{FAV} $k", "{what|which} $k should {someone|you|my friends} {choose|get|pick} for me", f"{{I'm making a profile|I'm filling in a friends book|the quiz asks|a reporter asks}}: {{what's|what is}} my {FAV} $k", "{what|which} $k {makes me happiest|do I like more than any other|tops my list|is at the top of my list}", "my {number one|go-to|all-time favourite|preferred} $k, {which is it|what is it|what was it}", f"my {FAV} $k {{would be|is}} {{which one|what}}"),
)
_MADE_UP_MORE = (
    ("{set|put} {my|the} $k to $v", "{my|the} $k {reads|stays|remains|should be|must be|will be|equals} $v", "{we|they|I} {gave|assigned} {my|the} $k $v", "{this morning|today|yesterday|now} {my|the} $k became $v", "$k -> $v", "{for|under} {my|the} $k {it says|I noted|I wrote|it's|put} $v", "{whatever that is|no idea what it means|you may not know it}, but {my|the} $k is $v"),
    ("{tell me|say|look up} {my|the} $k", "{my|the} $k {is|was} what", "{my|the} $k please", "what {is|was} it for {my|the} $k", "{what|which} {value|thing} {belongs to|goes with|did I give for} {my|the} $k", "what's {my|the} $k set to", "what did I {put|note|set} {for|as} {my|the} $k"),
)


def _widen(kind: str, rule: Kind) -> Kind:
    """The kind with its further ways and those that all kinds share."""
    tells, questions = _MORE.get(kind) or (_FAVOURITE_MORE if kind.startswith("favourite ") else _MADE_UP_MORE)
    talk, asks = ways.of(kind)
    what, value = _WHAT[kind]
    shared = _TELL_IS + (() if rule.values in ("spot", "event_time") else _TELL_AS)
    shared = tuple(t.replace("$n", what).replace("$w", value).replace("$i", "@is" if kind == "spot" else "is") for t in shared)
    clauses = "{" + "|".join(rule.indirect or rule.clauses) + "}"
    return replace(rule, tells=_evenly(rule.tells, tells + talk + shared), questions=_evenly(rule.questions, questions + asks + tuple(a.replace("$c", clauses) for a in ASK_CLAUSE)))


def _evenly(plain: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Both, the plain ways as often as the others: most people use them."""
    return plain * max(1, round(len(more) / len(plain))) + more


KINDS = {kind: _widen(kind, rule) for kind, rule in KINDS.items()}

_ALSO = {
    "code": ("{my|the} $k {has|needs|takes|opens with|uses|is} $v", "{for|on} {my|the} $k {it's|I use|there's} $v", "$v {opens|is for} {my|the} $k"),
    "password": ("{my|the} $k {password |}is $v", "for {my|the} $k it's $v", "$v is for {my|the} $k"),
    "relation": ("my $k {is |}{called |named |}$v", "$v is my $k", "my $k's name is $v"),
    "pet": ("{my|the|our} $k {is |}{called |named |}$v", "$v is {my|our|the} $k", "my $k's name is $v"),
    "number": ("my $k {is |}$v", "{the|my} $k I have is $v"),
    "spot": ("{my|the} $k $v", "{my|the} $k @is $v"),
    "coloured": ("my $k is $v", "{the|my} $k $v"),
    "event": ("{my|the} $k $v", "{my|the} $k is $v"),
    "count": ("$v $k", "I have $v $k"),
    "their home": ("$k {lives |is |}in $v",), "their job": ("$k {is|works as} $a $v",), "their food": ("$k {likes|loves|prefers} $v",),
}
KINDS |= {kind: replace(KINDS[kind], also=also) for kind, also in _ALSO.items()}

# Wrappings around tells and asks.
_HELLO = "{hi|hello|hey|hey there|hi there|good morning|good evening|yo|ok|okay|so|well|oh|right|yes|yeah|no|hmm|haha|anyway|alright|thanks|great|sure|and|also|now|look|listen}"
_NOTE = "{remember|note|keep in mind|don't forget|write down}"
BEFORE_TELL = ("{" + _HELLO + "{, | |, |! }|oh and |ok so |{by the way|btw|fyi|for your information|for the record|before I forget|while I think of it|one more thing|another thing|something else|fun fact|as I said|like I said|in case it matters|hold on|first things first|to start with|for starters|quick note|small update|listen up|attention|heads up|reminder|fact|for your notes|for later|while I have you|if I may|as you might guess|no idea if this helps|sorry, I forgot|now that you mention it|speaking of me|"
               "in case you wonder|since you ask|to be clear|the thing is|you see|let me think|today's news|about me|to be honest|actually|important|note to self|a secret|make a note|just so you know|so you know|I guess I forgot to say}{, |: |, }|"
               "{please |}" + _NOTE + "{ this|}: |I {want|need|would like} you to " + _NOTE + " this: |{can|could|would} you {remember|note|keep in mind} {this|something}{ for me|}: |let me tell you{ something|}: }")
BEFORE_STATEMENT = ("{{please |}" + _NOTE + " that |I {want|need|would like} you to {know|" + "remember|keep in mind} that |{can|could|would|will} you {remember|keep in mind} that |{did|do} you know that |did I {tell you|say|mention} that |"
                    "I {should|must|wanted to|have to|forgot to} {mention|say|tell you|add} that |I {think|believe|guess} {I said |I told you |}{that |}|{you should know|it's important|it's good to know|I told you|as I said,|it turns out} that |{not that it matters, but|it's silly, but|you won't believe it, but|"
                    "I don't tell everyone, but|don't laugh, but|I don't know if I said this, but|between you and me,|if you ask me,} }")
AFTER_TELL = ("{, {please |}{don't forget|remember that|keep that in mind|keep it in mind|note that down|write it down|make a note|keep it safe}{| ok?| for me| for later}|"
              ", {so|and} {I'll ask you later|now you know|please remember|don't forget it|keep it for me|that's it|that's that|that's all|I like it|it will stay that way}|"
              ". I {say so|tell you|mention it} {because|since} {I always forget|I keep forgetting|my memory is bad|my head is full|I need it later|I never write things down|people keep asking|it matters to me}|"
              ", {in case|if} {you need it|I forget|anyone asks|somebody asks|you wonder|I ever ask}|"
              ", {you know|ok?|okay?|got it?|right?|alright?|haha|lol|thanks|thx|by the way|btw|to be honest|I think|I'm sure|for what it's worth|as I said|if you must know|believe it or not|actually|as you know|just so you know|will you remember?|for the record|in case it matters|if that helps|no joke|true story|cheers|at least for now|mate|and thanks for asking|so there|just saying|as it happens|if I'm not mistaken|and proud of it}|"
              "{ :)| by the way| btw| please remember| ok| lol}|"
              ". {Isn't that nice?|Can you remember that?|Will you remember?|That's all.|That's it.|Thanks!|Cheers!|Ok?|No idea why.|Funny, isn't it?|It's a long story.|It took me ages to learn that.|Now you know.}}")
BEFORE_QUESTION = ("{{sorry|ok|okay|hey|hm|wait|so|and|now|well|oh|listen|please|right|alright|uh|um|hello|hi|thanks|great|cool|say|hmm}{, | |, }|{{a |}quick|one|another|small|silly|last|one more} question{: |, }|"
                   "{I forgot|I forget|I can't remember|it slipped my mind|my memory is {bad|terrible}|I'm getting old|my mind is blank|help me out|be honest|test|just checking|let's see|let me check|tell me|remind me|can you tell me|do you remember|come on|once more|"
                   "you know this|I told you before|I told you earlier|as I told you|think back|one thing|by the way|btw|I wonder|quiz time|pop quiz|next question|back to me|on another note|just to check|one last thing|before I go|changing the subject|we talked about many things, but|enough of that|never mind that|out of curiosity|sorry to ask|for the form|I need it for a form|a friend is asking|they need it at the desk|a guest wants to know|between us|silly me|I should know this|I lost my notes|it's on the tip of my tongue|here's an easy one|so many things to remember|memory test|last question|all right then}{, |: |. |, }}")
AFTER_QUESTION = ("{ {again|please|by the way|now|then|exactly|once more|btw|pls}|, {again|please|do you know|do you remember|I forgot|can you tell me|if you remember|do you still know|any idea|I can't remember|remind me|I need it{ now|}|thanks|honestly}|"
                  "? {I forgot.|I need it now.|I can't remember.|Tell me please.|You must know.|I told you earlier.|It's urgent.|I'm curious.|Thanks!|My memory is bad.|Do you remember?|Any idea?}}")
BEFORE_CLAUSE = ("{do you {|still |happen to }{know|remember|recall} |{can|could|would} you {please |}{tell me|remind me|say|remember|recall|repeat} |can you {still |}tell me |{please |quick, |now |}tell me |remind me {please |}|{I forgot|I forget|I've forgotten|I can't remember|I don't remember|"
                 "I don't know any more|I can't recall|I have no idea|I'm not sure|I'm trying to remember} |I {want to|need to|would like to|'d like to|have to} {know|hear|check} |I {wonder|was wondering|wanted to ask|wanted to know|am curious} |have I told you |did I {tell you|mention|say} |{any idea|any clue|any chance you know|are you able to tell me|let me hear|say|you know|you remember} |"
                 "{let's see|I wonder|I'd like to see|tell me} if you {still |}{know|remember|recall} |{I hope|I bet|surely} you {still |}{remember|know} |I bet you {don't know|forgot|don't remember} |who {knows|remembers} |{somebody|someone|a friend|the boss} {wants to know|asked me|needs to know} }")
ASK_NOUN = ("$n", "{and|now|ok|so} $n", "{what|how} about $n", "{what's|what is|whats|what was} $n {again|once more|then|now|}", "{give|tell} me $n{ again| please|}", "I need {to know |}$n{ now| right now| quickly|}", "{can|could|may} I {have|hear} $n{ please|}",
            "{could|can|would} you {repeat|give me|tell me|look up|remember|recall} $n{ for me| please|}", "{do|would} you {still |}{have|know|remember|recall} $n", "do you happen to {have|know|remember} $n", "you {still |}{know|remember} $n, {right|don't you|no}",
            "I {forgot|can't recall|can't think of|don't remember} $n{, help|, what was it|, do you know it|}", "{about|as for|concerning} $n{, |: }what {did I say|did I tell you|was it|is it}", "$n{, |: |? }{what was it|what is it|do you know it|do you remember}", "have you {noted|kept|saved|written down} $n",
            "did you {note|keep|save|write down|catch|get} $n", "{someone|a friend|a guest|the boss|a neighbour} {asked me for|wants to know|needs|just asked about} $n{. What is it|, what should I say|, what do I tell them}", "the form asks for $n, what do I {write|put}", "$n {is|was} what", "what did I {say|tell you} $n {is|was}",
            "what {have you got|did you note|did you write down} {as|for} $n", "let's see if you {know|remember} $n", "{which|what} is $n", "did I {ever |already |}{tell you|mention} $n",
            "{fill in the blank|fill in the gap|finish this sentence|complete this sentence|complete this|finish my sentence|continue|go on}{: |, }$n is{...| ...| ___|... what}", "{quiz me|test|quiz|pop quiz|question|first question|next question|trivia|card|field|form}: $n{| is|, please}",
            "{just to check|just to be sure|to be sure|for the form|for the record|for my notes|out of interest|once again|one more time|quickly|in a word|in short}{: |, }$n", "{I've lost|I lost track of|I'm looking for|I mixed up|I deleted|I'm missing|I've forgotten|I keep forgetting|I blanked on} $n{, what is it|, what was it|, can you help|, do you have it|, help}",
            "{write|type|spell|say|print|show|read out|state|name|list|send} {me |}$n{ please| once more| here| again|}", "{of all the things I told you|among other things|before we go on|after all this talk|we talked about many things, but|never mind the rest}{, | }what is $n", "{is|was} there anything about $n in {your notes|what I told you|your memory}",
            "{what|which one} did I {give you|put|note|enter|tell you} {as|for} $n", "{any idea|any memory|any note|a clue} of $n", "{I need|they need|the form needs|someone needs|the clerk wants|the lady wants|the system wants} $n{: |, |. }{what do I put|what shall I say|what is it|can you say it|please}", "{your turn|now you|back to you|over to you}: $n", "what {was|is} $n, {if I may ask|if you recall|if you please|according to me|as I told you|do you think}")
