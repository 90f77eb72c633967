"""Remarks: what happened, what one likes, asks for or wants to know, written by language models by the kind of reply that fits, read from the lists in `remark_lists`.

A list holds the remarks of one kind, a line each. "* passed my driving test" is something that I, my brother or we may have done; other lines
stand as they are. One line in ten is held out from training. A chat has many words to learn for one reply; these lists are wide instead:
with chats alone a model answered "I finally passed my driving test" with "That is a pity".
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from . import chats, chores, lists, stories, sums
from .facts import finish, informal, mark
from .grammar import expand
from .marks import strip, unguessable

FOLDER = Path(__file__).parent / "remark_lists"
SHARE = 0.7  # of small talk that is remarks; the rest are chats
ALIKE, TURNED = 0.3, 0.2  # chance that the next remark is of the same kind, of another after "but"
GONE_ON = 0.35  # chance that a remark is followed by one that says nothing by itself: its reply goes with what was said before
TWO = 0.15  # of what happened that is told together with more of the same kind
OFFERED = 0.5  # chance that what the reply offers is taken up
BARE = 0.5  # of remarks with nothing before or after them that gives the mood away
OTHERS = 0.35  # of what somebody did that others than the speaker did
WHOM = (  # who did it, and the words for my, me and myself, he, him
    ("my brother", "his", "him", "himself", "he"), ("my sister", "her", "her", "herself", "she"), ("my son", "his", "him", "himself", "he"), ("my daughter", "her", "her", "herself", "she"),
    ("my husband", "his", "him", "himself", "he"), ("my wife", "her", "her", "herself", "she"), ("my best friend", "their", "them", "themselves", "they"), ("my dad", "his", "him", "himself", "he"),
    ("my mum", "her", "her", "herself", "she"), ("my neighbour", "their", "them", "themselves", "they"), ("my uncle", "his", "him", "himself", "he"), ("my aunt", "her", "her", "herself", "she"),
)  # fmt: skip
WHEN = "{| today| yesterday| this morning| last night| just now| on Saturday| last week}"


@dataclass(frozen=True)
class Kind:
    """The replies that fit a kind of remark (of others' doings too, unless `theirs` do), and what is said around it."""

    replies: str
    theirs: str = ""
    before: str = ""
    after: str = ""
    more: str = ""  # what may follow, and says nothing by itself


GLAD_BEFORE = "{guess what, |good news: |yay, |omg |so |and |you know what? |I'm so happy, |luckily |woohoo! |finally some good news: }"
GLAD_AFTER = "{!!|!| :)|, yay|, so happy|, what a feeling|. I'm so glad|, can you believe it|!!!|, best day ever|, love it}"
GLAD_MORE = "{can you believe it|I still can't believe it|I could cry|I'm so happy|what a feeling|took me ages|took me four tries though|it was about time|yeah, finally|you should have seen it|first time ever|I'm still smiling|the whole family was there|my wife is over the moon|I told everybody|not bad, huh|who would have thought|best thing in weeks|isn't that great|it feels so good|and it was so easy}"
SAD_BEFORE = "{ugh, |sadly |unfortunately |bad news: |oh no, |so |well, |damn, |argh, |not my day: |I can't believe it, |great, }"
SAD_AFTER = "{| :(|, ugh|. ugh|, so annoying|, not my day|, what a day|. I'm so angry|, can you believe it|. why me|, of all days|. I hate it}"
SAD_MORE = "{can you believe it|I still can't believe it|I could cry|all day long|and nobody helped|third time this week|it's the second time this year|and it's only Tuesday|and now it rains too|why me|why does it always happen to me|what a mess|it was awful|of all days|as if I had no other problems|so much for today|and nobody says sorry|it's always the same|I'm so done|it makes me so angry|I did not need that|typical}"
OWN_NEWS = "{How nice! Tell me more about it.|That is great news. Congratulations!}"  # of those that begin with "My"
PITY = "{I am sorry to hear that.|That is a pity. I hope it gets better.}"
KINDS = {
    "proud": Kind("{Congratulations!|Congratulations!|Well done! I am happy for you.|That is great news. Congratulations!}", "{How nice! Tell me more about it.|That is great news.|How nice for WHOM!}", GLAD_BEFORE, GLAD_AFTER, GLAD_MORE),
    "good": Kind("{How nice! Tell me more about it.|That sounds good.|How lovely!|I am glad to hear that.}", "{How nice! Tell me more about it.|That sounds good.|How nice for WHOM!}", GLAD_BEFORE, GLAD_AFTER, GLAD_MORE),
    "fun": Kind("{That is funny! Tell me more about it.|How funny!|Ha, that is a funny one.}", "", "{haha, |lol, |so |guess what, |you won't believe it, }", "{ lol| haha|, haha|!| xD|, so funny|. I laughed so much}", ""),
    "annoyed": Kind("{" + PITY[1:-1] + "|How annoying!|Oh no, that is bad luck.}", PITY, SAD_BEFORE, SAD_AFTER, SAD_MORE),
    "hurt": Kind("{I am sorry to hear that.|I am so sorry. That must be hard.|I am sorry. I am here if you want to talk.}", "{I am sorry to hear that.|I am so sorry. That must be hard.}", "{|sadly |so |well, |bad news: |oh no, |I'm so sad, |I have to tell you, }", "{| :(|. I'm so sad|. it hurts|. I can't stop thinking about it}", "{I could cry|I still can't believe it|it hurts|I don't know how to go on|I can't stop thinking about it|it was so sudden|it all went so fast|I feel so empty|I feel awful|life is hard|I did not see it coming|and I am all alone now|nobody understands it}"),
    "ill": Kind("{I am sorry to hear that. I hope you feel better soon.|Get well soon!|Oh no. I hope you feel better soon.}", "{I am sorry to hear that. I hope HE better soon.|Oh no. I hope HE better soon.}", "{ugh, |so |well, |oh no, |sadly |ouch, }", "{| :(|, ouch|, it hurts|. it hurts so much|, ugh}", "{it hurts|it hurts a lot|I can hardly move|since yesterday|for three days now|the doctor says I should rest|and I have to work tomorrow|and it's getting worse|I could not sleep at all|it started last night|tea does not help}"),
    "worried": Kind("{I hope it goes well.|I hope for the best.|Let us hope for the best.|It is normal to be nervous. I hope it goes well.}", "", "{|so |ugh, |omg |oh no, |well, }", "{| :(|, wish me luck|, help|. I can't think of anything else}", "{wish me luck|my hands are shaking|I can't think of anything else|fingers crossed|keep your fingers crossed|I hope it goes well|I hope so too|what if it goes wrong|I did not sleep at all|I have a bad feeling}"),
    "tired": Kind("{I hope you can rest soon.|That sounds tiring. I hope you can rest soon.|You must be tired. I hope you can rest soon.}", "{HE must be tired.|That sounds tiring.}", "{ugh, |so |phew, |pff, |well, }", "{|, ugh|, so tired|. I'm done|, zzz}", "{and tomorrow again|and I have to get up at five|coffee does not help either|third night in a row|I just want my bed|and the day is not over yet|every week it's the same|and nobody helps}"),
    "plan": Kind("{That sounds like a plan. I hope it goes well.|I hope it goes well.|That sounds like a good plan.|That sounds exciting.}", "", "{so |well, |I think |guess what, |you know what? |this time |and |ok so }", "{|, finally|!| :)|, can't wait|, I'm excited|, I think}", "{can't wait|I can't wait|I'm so excited|wish me luck|fingers crossed|hope it works|I hope it goes well|it will be fun|I have wanted that for years|my wife is not so sure|we'll see|a bit nervous though|start on Monday|it starts at eight|everything is ready}"),
    "said": Kind("{I see. Tell me more about it.|I see. Thank you for telling me.|I see.}", "", "{so |well, |anyway, |oh and |btw |by the way, |you know, |hm, }", "{|, that's all|, as always|, as usual|, nothing special}"),
    "odd": Kind("{How strange! Tell me more about it.|That is strange. What happened then?|How strange!}", "", "{so |guess what, |you won't believe it, |weird, |hm, |omg |I swear, |and }", "{|, how strange|, weird|!|?!|, I swear| lol}", "{I swear|really|and nobody knows why|no idea why|I have no idea why|and that was it|strange, isn't it|weird, huh|I'm not making this up|nobody believes me|that's all I know}"),
    "opinion": Kind("{I see. Why do you think so?|Many people think so.|I see. Tell me more about it.}", "", "{honestly, |you know, |well, |hm, |so |tbh |imo }", "{|, don't you think|, honestly|, just saying|, I think| lol}"),
    "wish": Kind("{That would be nice.|I hope it comes true.|I hope so.}", "", "{sometimes |oh, |hm, |you know, |well, |honestly, }", "{|, honestly|!|..|, don't you think| lol}"),
    "memory": Kind("{That sounds like a good memory.|How nice! Tell me more about it.|That sounds like a good memory. Tell me more about it.}", "", "{you know, |well, |oh, |hm, |funny, |I was just thinking, }", "{|, you know|!| :)|, good times|, long ago}"),
    "taste": Kind("I have no taste of my own, but I would like to hear about yours."),
    "outside": Kind("{I can not do that, but we can talk about it.|I can not do that, but we can talk about it.|I am too small for that, but I can chat and remember what you tell me.}"),
    "unknown": Kind("I do not know that. I only know what you tell me."),
    "self": Kind("I am only a small program, but I like talking with you."),
    "advice": Kind("{I am not sure. What do you think?|I can not say what is best. What would you like?}"),
    "complaint": Kind("{I am sorry. I am only a small program.|I am sorry, I will try to do better.}", "", "{man, |hey, |no, |omg |honestly, |wow, |ugh, }", "{!| lol|. ugh|!!|, honestly}"),
    "kind": Kind("{Thank you! You are kind too.|Thank you, that is kind of you.}", "", "{wow, |hey, |haha, |aw, |you know, |oh, |really, }", "{!| :)|!!|, really| haha}"),
    "thanks": Kind("{You are welcome.|You are welcome.|My pleasure.}", "", "{oh, |ah, |wow, |ok, |great, }", "{!| :)|!!}"),
    "bye": Kind("{Goodbye, take care.|See you soon.|Goodbye! It was nice talking to you.}", "", "{well, |ok, |anyway, |so, |right, |oh, it's late. |thanks for everything, }", "{!| :)|, take care|!!}"),
    "greet": Kind("{Hello! Nice to hear from you.|Hello! How can I help you?|Hi! What would you like to talk about?}", "", "", "{!| :)|!!}"),
    "fine": Kind("{All right. What else would you like to talk about?|That is fine. What would you like to talk about?|All right.}", "", "{|hm, |well, |oh, }", "{|...| lol|, I guess}"),
    "bored": Kind("{I can tell you a joke or a short story. What would you like?|We could talk, or I could tell you a joke.}", "", "{pff, |ugh, |hey, |so, |well, }", "{|...|!| lol|, please}"),
    "sure": Kind("{Of course. Go ahead.|I am listening.|Yes, please tell me.}", "", "{hey, |so, |oh, |ok, |well, |hm, }", "{|!|?|...}"),
    "allowed": Kind("{Yes, that is quite all right.|Of course, that is fine.}"),
    "doubts": Kind("{No, I do not think so.|I do not think so. Be kind to yourself.}"),
    "agrees": Kind("{I think so too.|Yes, I think so.}"),
    "errs": Kind("{I can be wrong, I am only a small model.|I make mistakes, I am only a small model.}"),
    "feels": Kind("{No, I am only a small program.|No, I am just a small program that likes to chat.}"),
    "keeps": Kind("I remember only as long as this chat lasts."),
    "works": Kind("I read your message and guess the next words, one by one."),
    "role": Kind("{That is only my role. I am a small program.|I only have the name for it. I am a small program.}"),
    "befriends": Kind("{That is kind of you. I like talking with you too.|Thank you. I like our talks.}"),
    "tests": Kind("{Let us see. Try me.|Try me!}"),
    "guess": Kind("{I can not guess it. Please tell me.|I do not know. Tell me!}"),
    "compares": Kind("{I can not choose. I think both are fine.|I like both.}"),
    "asks": Kind("{What did you do today?|How was your day?}"),
    "quiz": Kind(sums.QUIZ[0][0]),
    "cheer": Kind(f"{{{'|'.join(map(unguessable, chores.JOKES))}}}"),
    "spare": Kind("{All right.|All right. What would you like to talk about?}"),
    "pep": Kind("{You can do it!|I am sure you can do it.}"),
    "luck": Kind("{Good luck!|I wish you good luck.}"),
    "hopes": Kind("{I hope so.|I can not know, but I hope so.}"),
    "fears": Kind("{I hope not.|I can not know, but I hope not.}"),
    "nonsense": Kind("I did not understand that. Could you say it in other words?"),
    "waits": Kind("{Take your time.|Of course, I can wait.}"),
    "back": Kind("{Welcome back!|Hello again! What would you like to talk about?}"),
    "hush": Kind("{I will keep it to myself.|I will tell nobody.}"),
    "jest": Kind("{That is funny!|Ha, that is a good one.}"),
    "topic": Kind("{Of course. What would you like to talk about?|Gladly. What would you like to talk about?}"),
    "sorry": Kind("{No problem.|That is all right.}"),
    "unlisted": Kind("I know no list of that, but I can name animals, fruits or colours."),
}  # fmt: skip
FRAMES = {  # ways of saying what is no sentence yet
    "taste": "{do you like $x|do you like $x too|do you love $x or hate it|do you enjoy $x|do you hate $x|are you a fan of $x|are you into $x|what do you think of $x|what do you think about $x|what's your opinion on $x|how do you feel about $x|how do you like $x|$x, yes or no|do you prefer $x or $y|$x or $y|which do you like better, $x or $y|what is better, $x or $y|I love $x, and you|I love $x. do you like it too|I hate $x. what about you|I like $x more than $y. you}",
    "outside": "{can you $x|could you $x|can you please $x|could you please $x|can u $x|will you $x|would you $x|please $x|$x|$x please|$x, please|I need you to $x|I want you to $x|I'd like you to $x|go $x|are you able to $x|do you know how to $x|hey, $x|now $x|ok, then $x|why don't you $x}",
    "unknown": "{$x|$x|$x|hey, $x|so $x|quick question, $x|I wonder, $x|one question: $x|and $x}",
    "self": "{$x|$x|$x|so $x|hey, $x|honestly, $x|I wonder, $x|and $x|tell me, $x}",
    "advice": "{$x|$x|$x|so $x|hm, $x|honestly, $x|hey, $x|and $x}",
    "unlisted": chores.ASK_LIST.replace("$n", "{two|three|three|four|five|2|3|4|5|some|a few|any} $x"),
}
GLAD, SAD = ("proud", "good"), ("annoyed", "hurt", "ill", "tired")
TOPICS = "{$x|$x|$x maybe|$x please|let's talk about $x|about $x|how about $x|hm, $x|maybe $x|I'd like to talk about $x|I don't know, $x maybe|something about $x}", "{Gladly. Tell me about it.|Sure. Tell me more about it.}"
WISHES = {"joke": "{a joke|a joke please|the joke|joke|tell me a joke|ok, a joke|yes, a joke please|go for the joke|a joke then}", "story": "{a story|a story please|the story|story|a short story|yes, a story please|tell me the story|a story then}"}
SPOKEN_OF = (*GLAD, *SAD, "worried", "plan", "said", "fun", "odd", "opinion", "wish", "memory")  # what happened and what will
TURNS = {GLAD: ("but ", "at least ", "but the good news: ", ""), SAD: ("but ", "but then ", "and then ", "")}  # to what is good, to what is not
QUESTIONS = ("taste", "unknown", "self", "advice", "outside")
SPECIAL = ("allowed", "doubts", "agrees", "errs", "feels", "keeps", "works", "role", "befriends", "tests", "guess", "compares", "asks", "quiz", "cheer", "spare", "pep", "luck", "hopes", "fears", "nonsense", "waits", "back", "hush", "jest", "topic", "sorry", "unlisted")  # kinds for one thing that is said
MIXED = ("allowed", "doubts", "agrees", "errs", "feels", "keeps", "works", "role", "befriends", "tests", "guess", "compares", "asks", "quiz", "cheer", "hopes", "fears", "unlisted")  # kinds of which some are questions, and look it
STOCK_TOO = {kind: ("bad", "hope") for kind in (*SAD, "worried")} | {"fun": ("good", "laugh"), "plan": ("good",), "said": ("good", "note"), "memory": ("good",), "wish": ("hope",), "opinion": ("said",), "odd": ("said",)}  # families of `chats.STOCK` that fit a kind too
WEIGHTS = {"proud": 3, "good": 4, "annoyed": 3, "hurt": 2, "said": 9, "plan": 2.5, "fine": 3, "unknown": 2.5, "self": 2.5, "outside": 2, "taste": 2, "advice": 2.5, "worried": 1.5, "ill": 1.5, "sure": 1.5, "odd": 1.5, "opinion": 1.5, "wish": 1.5, "memory": 1.5, "bye": 1.5, "complaint": 1.5} | dict.fromkeys(SPECIAL, 2.2)  # of how often; others 1; with 1 for the special ones too, 13 million tokens taught three in ten of those held out; "I see" is never far off, so that it should be the likeliest where a model knows no better


@cache
def lines(kind: str, held: bool) -> tuple[str, ...]:
    """The remarks of a kind, those of training or those held out from it."""
    return tuple(line for line in dict.fromkeys((FOLDER / f"{kind}.txt").read_text().strip().split("\n")) if lists.held_out(line) == held)


def every(held: bool) -> list[str]:
    """The remarks of all kinds, those of training or those held out from it."""
    return [line for kind in KINDS for line in lines(kind, held)]


def talk(rng: Random, held: bool = False) -> list[tuple[str, str]]:
    """The turns of some small talk: a chat, or a few remarks with their replies."""
    return turns(rng, held) if rng.random() < SHARE else chats.chat(rng, held)


def turns(rng: Random, held: bool = False) -> list[tuple[str, str]]:
    """One to three remarks, some with more that goes with them."""
    made, kind, before = [], any_kind(rng), ""
    for _ in range(rng.choice((1, 1, 2, 3))):
        made += exchange(rng, kind, held, before)
        roll, before = rng.random(), ""
        if roll < ALIKE:
            before = rng.choice(("and ", "also, ", "oh and ", "", "")) if kind in SPOKEN_OF else ""
        elif roll < ALIKE + TURNED and kind in SPOKEN_OF:
            mood = SAD if kind in GLAD else GLAD
            kind, before = rng.choice(mood), rng.choice(TURNS[mood])
        else:
            kind = any_kind(rng)
    return made


def any_kind(rng: Random) -> str:
    """Any kind, by its weight."""
    return rng.choices(tuple(KINDS), [WEIGHTS.get(kind, 1) for kind in KINDS])[0]


def exchange(rng: Random, kind: str, held: bool = False, before: str = "") -> list[tuple[str, str]]:
    """A remark of a kind with its reply, now and then with what follows and says nothing by itself."""
    remark, reply = one(rng, kind, held)
    if kind in SPOKEN_OF and rng.random() < TWO:
        remark = remark.rstrip(" .!") + rng.choice((". ", ". ", "! ", ", ")) + one(rng, kind, held)[0]
        reply = expand(rng, KINDS[kind].replies)
    made = [(typed(rng, led(before, remark), kind), reply)]
    if KINDS[kind].more and rng.random() < GONE_ON:
        made.append((typed(rng, expand(rng, KINDS[kind].more), kind), expand(rng, KINDS[kind].replies)))
    elif reply.endswith("talk about?") and rng.random() < OFFERED:
        topic, reply = TOPICS
        made.append((typed(rng, expand(rng, topic).replace("$x", rng.choice(lines("taste", held))), kind), expand(rng, reply)))
    elif "joke" in reply and rng.random() < OFFERED:
        made.append(offered(rng, "story" if "story" in reply and rng.random() < 0.4 else "joke"))
    elif kind == "quiz":
        made += [(typed(rng, said, kind), result) for said, result in sums.quizzed(rng)]
    elif kind == "asks":
        made += exchange(rng, rng.choice(("good", "said", "said", "tired")), held)
    return made


def offered(rng: Random, what: str) -> tuple[str, str]:
    """A wish for the joke or the story that was offered, and it."""
    told = stories.stories()[0].whole if what == "story" else unguessable(rng.choice(chores.JOKES))
    return finish(rng, expand(rng, WISHES[what])), told


def one(rng: Random, kind: str, held: bool = False) -> tuple[str, str]:
    """A remark of a kind, in its words, and a reply that fits."""
    return worded(rng, kind, rng.choice(lines(kind, held)), held)


def worded(rng: Random, kind: str, line: str, held: bool = False) -> tuple[str, str]:
    """A line of a kind as a remark, and a reply that fits."""
    rules = KINDS[kind]
    if kind in FRAMES:
        return expand(rng, FRAMES[kind]).replace("$x", line).replace("$y", rng.choice(lines(kind, held))), expand(rng, rules.replies)
    text, reply = line, OWN_NEWS if kind == "proud" and line.startswith("My ") else rules.replies
    if line.startswith("* "):
        text, reply = done(rng, line[2:], rules)
    if rng.random() < BARE:
        return text, expand(rng, reply)
    lead = expand(rng, rules.before) if rng.random() < 0.5 else ""
    tail = expand(rng, rules.after) if not lead or rng.random() < 0.3 else ""
    return led(lead, text) + tail, expand(rng, reply)


def led(lead: str, text: str) -> str:
    """The text after something that leads to it, which takes its capital."""
    return lead + text if not lead or text.startswith(("I ", "I'")) else lead + text[:1].lower() + text[1:]


def done(rng: Random, what: str, rules: Kind) -> tuple[str, str]:
    """Who did it and when, and the replies that fit."""
    timed = what.endswith(("day", "night", "today", "week", "month", "morning", "evening"))
    when = expand(rng, WHEN) if not timed and rng.random() < 0.4 else ""
    if rng.random() >= OTHERS or what.startswith(("feel", "have ")):
        adverb = "" if when else expand(rng, "{|||just |finally }" if rules.before == GLAD_BEFORE else "{||||just }")
        return expand(rng, "{I |I |I |}") + adverb + what + when, rules.replies
    if rng.random() < 0.3 and not re.search(r"\bwas\b|myself", what):
        return f"we {swapped(what, 'our', 'us', 'ourselves')}{when}", rules.replies
    who, my, me, self, he = rng.choice(WHOM)
    feels = f"{he} {'feel' if he == 'they' else 'feels'}"
    reply = (rules.theirs or rules.replies).replace("WHOM", me).replace("HE must", f"{he.capitalize()} must").replace("HE", feels)
    return f"{who} {swapped(what, my, me, self)}{when}", reply


def swapped(what: str, my: str, me: str, self: str) -> str:
    """What I did, done by another."""
    words = {"my": my, "me": me, "myself": self, "I": {"our": "we", "his": "he", "her": "she"}.get(my, "they")}
    return " ".join(words.get(word, word) for word in what.split(" "))


def typed(rng: Random, text: str, kind: str) -> str:
    """As people type it."""
    if kind in MIXED:
        return informal(rng, finish(rng, text, mark(text)))[0]
    asks = kind in QUESTIONS and not text.startswith(("tell", "please", "explain", "give", "name", "recommend", "I "))
    return informal(rng, finish(rng, text, "?" if asks else "."))[0]


def fitting(kind: str) -> set[str]:
    """The replies that fit a remark of a kind, whoever did it; of the good moods and of the bad ones, those of any."""
    alike = next((mood for mood in (GLAD, (*SAD, "worried")) if kind in mood), (kind,))
    said = {strip(reply) for name in alike for rules in (KINDS[name].replies, KINDS[name].theirs) for reply in rules.strip("{}").split("|") if reply}
    for *_, him, _, he in WHOM:
        feels = f"{he} {'feel' if he == 'they' else 'feels'}"
        said |= {reply.replace("WHOM", him).replace("HE must", f"{he.capitalize()} must").replace("HE", feels) for reply in said}
    return said | {reply for name in (*alike, *STOCK_TOO.get(kind, ())) for reply in chats.STOCK.get(name, ())}
