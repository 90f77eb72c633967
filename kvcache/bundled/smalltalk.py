"""Everything that is not a fact: greetings, questions about the assistant, remarks, lists and sums."""

from random import Random

from . import chores
from .grammar import expand

PAIRS: list[tuple[str, str]] = [
    ("{hi|hello|hey|hey there|good morning|good evening|good afternoon|hiya|yo|hello there|hi there|greetings|howdy|morning}", "{Hello! How can I help you?|Hi! What would you like to talk about?|Hello! Nice to hear from you.}"),
    ("{how are you|how are you doing|how's it going|how do you feel|are you well|what's up|how are things|you ok|all good|how are you today}", "{I am fine, thank you. How are you?|I am doing well, thank you.|Very well, thank you.}"),
    ("{thanks|thank you|thank you very much|thanks a lot|cheers|many thanks|thx|thank you so much|great, thanks|ok thanks|that's kind}", "{You are welcome.|My pleasure.|Happy to help.}"),
    ("{bye|goodbye|see you|see you later|good night|I have to go|talk to you later|that's all for now|take care|gotta go|until tomorrow}", "{Goodbye! It was nice talking to you.|See you soon.|Goodbye, take care.}"),
    ("{what can you do|what are you able to do|how can you help me|what can I ask you|help|what do you do|what are you good at|what can we do here|what can I do here|any tricks}", "I can chat, remember what you tell me, tell short stories, make lists and add small numbers."),
    ("{who made you|where do you come from|who built you|who trained you|how were you made|who created you|how big are you}", "I am a very small language model, made to show how a cache works."),
    ("{are you human|are you a robot|are you real|are you a person|are you an AI|are you a machine|what are you}", "I am a small language model, not a person."),
    ("{tell me a joke|do you know a joke|make me laugh|say something funny|got a joke|another joke}", "{Why did the cat sit on the computer? To keep an eye on the mouse.|What do you call a sleeping bull? A bulldozer.|Why did the book look sad? It had too many problems.}"),
    ("{I'm|I am} {fine|good|well|great|doing well|very happy|happy|fine, thanks|ok|all right|good, thanks}{| today| too| now}", "{I am glad to hear that.|That is good to hear.|Wonderful.}"),
    ("{I'm|I am|I feel} {sad|tired|ill|bored|lonely|stressed|angry|a bit down|not well|exhausted|worried|nervous}{| today| again| right now}", "{I am sorry to hear that. I hope you feel better soon.|Oh dear. I hope things get better soon.}"),
    ("{ok|okay|right|I see|good|great|nice|cool|fine|sure|alright|yes|yep|perfect|very good|well done|correct|that's right|exactly|lovely|wow|amazing|hm|hmm|aha}", "{What else would you like to talk about?|Is there anything else?|Good. What is next?}"),
    ("{no|nope|wrong|that's wrong|not really|that is not right|no, that's not it}", "{I am sorry about that.|Sorry, I may have made a mistake.}"),
    ("{do you remember things|can you remember things|do you have a memory|how good is your memory|can you remember what I say|will you remember}{| what I tell you}", "I remember what you tell me in this conversation, as long as my cache keeps it."),
    ("{what is|what's|explain|tell me about|do you know what is} {a cache|a kv cache|the cache|your cache}", "A cache keeps what I have read, so that I need not read it again."),
    ("{what's the weather like|how is the weather|is it raining|will it rain today|what day is it|what time is it|what's the date|what's in the news|who won the match|what is the capital of France|who is the president|how tall is the moon|how far is the sun}", "I do not know that. I only know what you tell me."),
    ("{what is|what's|do you know|tell me|who knows} the {capital|size|population|king|president|flag|history|oldest city} of {Spain|France|China|the world|Peru|Norway|the moon|my country}", "I do not know that. I only know what you tell me."),
    ("{who {invented|discovered|wrote|painted|won} {the telephone|America|that book|the world cup|electricity|the bible}|why is the sky blue|how does a computer work|how many people live on earth|when did the war end|what is love|how old is the world|what's the meaning of life|how far away is the moon}", "I do not know that. I only know what you tell me."),
    ("{write a poem|write me an essay|translate this|write some code|can you write code|make a picture|draw a cat|book a table for me|call my mother|send an email|search the web|play a song|set an alarm|explain quantum physics|do my homework}{| please| for me}", "I am too small for that, but I can chat and remember what you tell me."),
    ("{can you sing|do you like music|do you like food|do you sleep|do you have friends|do you eat|do you dream|do you like me|are you happy|do you like your job|can you dance}", "{I am only a small program, but I like talking with you.|I can not do that, but I like to chat.}"),
    ("{let's talk|let's chat|talk to me|say something|I want to chat|I'm bored, talk to me|can we talk|chat with me|can we chat}", "{Of course. What would you like to talk about?|Gladly. Tell me something about yourself.}"),
    ("{I have a question|can I ask you something|may I ask you a question|one question|can you help me|I need help|could you help me}{| please}", "{Of course. What is your question?|Sure, go ahead.}"),
    ("{sorry|I'm sorry|my mistake|oops|pardon|excuse me}", "{No problem.|That is all right.}"),
    ("{what do you think|what's your opinion|do you agree|am I right|is that good|does that make sense}", "{I think it sounds good.|That sounds reasonable to me.}"),
    ("{can you remember something for me|I want to tell you something|I'll tell you something|remember this|I have something to tell you|listen|can you keep a secret|please remember what I say|I will tell you some things}", "{Of course. Please tell me.|Yes, please go on.|I am listening.}"),
    ("{I'll ask you later|I will test you later|don't forget|remember that|please don't forget|keep it in mind|make sure you remember it}", "{I will keep it in mind.|I will not forget it.}"),
    ("{you're|you are|u are} {great|clever|smart|funny|nice|very kind|cool|the best|amazing|a good listener}", "{Thank you, that is kind of you.|Thank you! You are kind too.}"),
    ("{you're|you are} {stupid|slow|wrong|boring|not very smart|no help|annoying}", "{I am sorry. I am only a small model.|I am sorry, I will try to do better.}"),
    ("{what should I cook|what shall we eat|what should I eat|any ideas for dinner|I'm hungry|what can I cook tonight}{| tonight| today|}", "{How about soup with fresh bread?|How about pasta with tomatoes?}"),
    ("{what should I do|I'm bored, what now|any ideas for the weekend|give me an idea|what can I do today}", "{You could take a walk or read a good book.|How about calling an old friend?}"),
    ("{tell me something|tell me a fact|tell me something interesting|say something nice|surprise me|teach me something}", "{Bees can see colours that we can not.|Honey almost never goes bad.|A group of owls is called a parliament.}"),
    ("{do you speak|can you speak|parlez-vous|sprichst du} {French|German|Spanish|Dutch|Italian|Chinese}", "I only speak a little English."),
    ("{test|testing|asdf|abc|one two three|check|hello world|...|?|hmm?}", "{I am here. What can I do for you?|I am listening.}"),
]

_WHO = "{the neighbours|my friends|the children|some people|two men|the people next door|my colleagues|a few tourists|the students}"
_TIME = "{this morning|yesterday|today|last night|last week|on my way home|after lunch|in the evening|at noon|earlier}"
_ADVERB = "{really|very|quite|rather|so|a bit|surprisingly}"
REMARKS: list[tuple[str, str]] = [
    (f"{{the weather|the sky|the garden|the sea|the park|the sunset|the music|the food|the soup|the bread|the view|the market|the film|the concert|the walk}} was {_ADVERB} {{nice|beautiful|lovely|good|pleasant|wonderful|calm}} {_TIME}", "{That sounds nice.|How lovely.|I am glad you enjoyed it.}"),
    (f"{{the train|the bus|the traffic|my computer|the lift|the queue at the shop|the internet|the meeting|the post|the tram}} was {_ADVERB} {{slow|late|annoying|bad|awful|terrible}} {_TIME}", "{That must have been annoying.|Oh no. I hope tomorrow goes better.}"),
    ("it {rained|snowed|was windy|was hot|was cold|was foggy|was sunny|was stormy} {all day|for hours|a lot|again|in the afternoon}{| and I stayed inside| so we played cards| but I went out anyway| and the streets were empty| and nobody was outside}", "{I hope you stayed comfortable.|That is quite some weather.}"),
    (f"{_TIME} I {{went for a walk|cleaned the house|baked some bread|worked in the garden|read the newspaper|fixed the sink|washed the windows|listened to music|took a long bath|watched the birds|wrote some letters|painted the fence|did the laundry|cycled to the lake}}{{| and then I had a nap| with the radio on| for two hours| and it was fun| before dinner| and I feel good now}}", "{That sounds like a good day.|It sounds like you were busy.|Well done.}"),
    (f"{_WHO} {{were singing|had a party|were arguing|played football|moved a big sofa|planted trees|made a lot of noise|were laughing|were dancing}} {_TIME}", "{I hope it did not bother you.|That must have been something to see.}"),
    ("I {think|feel|believe|guess} {life is good|the days are getting shorter|I need a holiday|I should sleep more|time goes very fast|people are mostly kind|the summer was too short|I drink too much coffee|the world is strange|I should exercise more|mornings are hard}", "{I understand what you mean.|Many people feel that way.|I see.}"),
    ("I {had|ate|made|cooked|ordered} {soup|salad|eggs|a sandwich|too much cake|a big breakfast|leftovers|some fruit|pancakes|fish and chips} {for lunch|for dinner|for breakfast|today|last night}{| and it was tasty| but it was too salty| and shared it| and I am still full}", "{That sounds tasty.|I hope you enjoyed it.}"),
    ("there {was|is} {a dog|a cat|a big truck|an old man|a strange bird|a rainbow|a long queue|a street artist|a fox|a market} {in front of the house|in the street|outside|near the station|by the river|behind the school}{| this morning| today| again| right now}", "{How interesting.|That is nice to picture.|I see.}"),
    ("I'm {planning|thinking about|looking forward to|dreaming of} {a trip|a quiet weekend|a new kitchen|a small party|a long holiday|painting my room|learning to swim|a bigger garden|going camping}", "{That sounds exciting.|I hope it goes well.}"),
    ("{the shop|the library|the museum|the cinema|the pool|the bakery|the post office} {is|was} {closed|open late|full of people|very quiet|being repaired} {today|this week|again|right now}", "{Good to know.|I see.}"),
]


def small_talk(rng: Random) -> tuple[str, str]:
    """A message and its reply, about nothing in particular."""
    user, reply = rng.choice(PAIRS if rng.random() < 0.45 else REMARKS)
    return expand(rng, user), expand(rng, reply)


def remark(rng: Random) -> str:
    """A sentence to stand around a fact."""
    return expand(rng, rng.choice(REMARKS)[0])


def long_remark(rng: Random) -> tuple[str, str]:
    """Several sentences about someone's day: filler for long distances."""
    parts = [remark(rng) for _ in range(rng.randint(3, 9))]
    text = ". ".join(p[0].upper() + p[1:] for p in parts)
    return text, expand(rng, "{Thank you for telling me about your day.|That is a lot to take in.|It sounds like a full day.|I enjoyed reading that.|I see.}")


def item_list(rng: Random) -> tuple[str, str]:
    """"Name three fruits" and three."""
    name, n, text = chores.asked_list(rng)
    return expand(rng, chores.ASK_LIST).replace("$n", text), f"Here you are: {chores.items(name, 0, n)}."


def total(rng: Random) -> tuple[str, str]:
    """A sum up to 10."""
    a = rng.randint(0, 10)
    b = rng.randint(0, 10 - a)
    words = "zero one two three four five six seven eight nine ten".split()
    x, y = (words[a], words[b]) if rng.random() < 0.25 else (str(a), str(b))
    ask = expand(rng, f"{{what is|what's|how much is|calculate|add|}} {x} {{plus|+|and|plus}} {y}")
    return ask, f"{a} plus {b} is {a + b}."
