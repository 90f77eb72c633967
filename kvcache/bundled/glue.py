"""What holds a chat together: thanks, praise, complaints, feelings, the weather, goodbyes, with replies that fit and short exchanges of two turns."""

import re
from random import Random

from . import grammar

# (message, reply) pairs; every message of a row fits every reply of it.
PAIRS: list[tuple[str, str]] = [
    ("{thanks|thank you|thank you so much|thanks a lot|ok thanks|great, thank you|thanks for your help|thank you for remembering|that helps, thanks|thanks, that's right|perfect, thanks|lovely, thank you}{| very much|!}", "{You are welcome.|You are welcome!|My pleasure.|Happy to help.}"),
    ("{well done|good job|very good|nice work|that was good|good answer|you did well|you remembered|that's correct|that's right, well done|great memory|you have a good memory|impressive|you're good at this|clever|good bot}{|!}", "{Thank you! That is kind of you.|Thank you, I am glad that was right.|Thanks! I do my best.}"),
    ("{that's not what I asked|you don't understand me|you don't listen|that makes no sense|I meant something else|you got me wrong|that is not an answer|what are you talking about|you misunderstood me|this is not what I wanted}", "{I am sorry. Can you say it in other words?|I am sorry, I did not understand. Please say it another way.}"),
    ("{you're {slow|boring|annoying|useless|no help|not very clever}|you are {slow|boring|annoying|useless|no help|not very clever}|this is {boring|annoying|useless}|I don't like you|you are not helping|you're bad at this}", "{I am sorry. I am small, but I try my best.|I am sorry to hear that. How can I do better?}"),
    ("{you forgot|you forgot it|you don't remember anything|you have a bad memory|you should know that|I told you that already|I already told you}", "{I am sorry. Please tell me once more.|I am sorry, I must have lost that. Please tell me again.}"),
    ("{I'm|I am|I feel} {so |very |really |a bit |}{tired|sleepy|exhausted|worn out}{| today| tonight| again}", "{I am sorry to hear that. A good night of sleep may help.|Then you should get some rest.|You should rest a little. Did you sleep badly?}"),
    ("I had {a|such a|a really|a very} {bad|hard|long|terrible|awful|difficult|horrible} {day|week|night|morning}{| at work| at school|}", "{I am sorry to hear that. Do you want to talk about it?|That sounds hard. I hope tomorrow is better.|I am sorry. What happened?}"),
    ("I had {a|such a|a really} {good|great|nice|lovely|wonderful|perfect} {day|week|night|morning|weekend}{| at work| at school|}", "{That is good to hear. What did you do?|I am glad to hear that.|How nice! What was the best part?}"),
    ("{I'm|I am|I feel} {so |very |really |a bit |}{sad|down|lonely|unhappy|blue|upset}{| today| tonight| right now}", "{I am sorry that you feel sad. Do you want to talk about it?|I am sorry to hear that. I am here if you want to talk.}"),
    ("{I'm|I am|I feel} {so |very |really |a bit |}{happy|glad|excited|cheerful|proud}{| today| tonight| right now}", "{That is wonderful. What made you happy?|I am happy for you.|That is lovely to hear.}"),
    ("{I'm|I am|I feel} {so |very |really |a bit |}{angry|mad|annoyed|furious|cross}{| today| right now}", "{I am sorry. What made you angry?|That is no fun. Do you want to tell me about it?}"),
    ("{I'm|I am|I feel} {so |very |really |a bit |}{nervous|worried|scared|afraid|stressed}{| today| right now| about tomorrow}", "{Take a deep breath. It will be all right.|I understand. What are you worried about?}"),
    ("{I'm|I am|I feel} {so |very |really |a bit |}{ill|sick|unwell}{| today| again}|I have {a cold|a headache|a fever|a sore throat|toothache}", "{I am sorry to hear that. Get well soon!|Oh dear. I hope you feel better soon.}"),
    ("{I'm|I am} {so |very |really |a bit |}bored{| today| right now}|nothing to do{| today| here}", "{I can tell you a joke, a fact or a story.|Shall I tell you a story or a joke?}"),
    ("{I'm|I am} {so |very |really |a bit |}hungry{| now| again| right now}", "{How about some soup or a sandwich?|Then it is time to eat something.}"),
    ("{I'm|I am} {so |very |really |a bit |}thirsty{| now| again| right now}", "{How about a glass of water?|Then it is time for a cup of tea.}"),
    ("{I'm|I am} {so |very |really |a bit |}{cold|freezing}{| now| today}", "{Put on something warm.|A cup of tea may help.}"),
    ("{I love you|I like you|you're my friend|are you my friend|we are friends|can we be friends}", "{That is kind of you. I like talking with you too.|Thank you. I like our talks.}"),
    ("{{how's|how is|what's|what is} the weather{ like|}{| today| outside| tomorrow| there}|is it {raining|snowing|sunny|cold|warm}{| today| outside| there}|will it {rain|snow|be sunny}{| today| tomorrow}|do I need {an umbrella|a coat}{| today| tomorrow}}", "{I can not see the weather from here. What is it like where you are?|I do not know, I can not look outside. How is it where you are?}"),
    ("it's {sunny|raining|snowing|windy|cold|warm|hot|foggy|cloudy|freezing}{| here| outside| today| again| right now}", "{Thank you for telling me. I can not see the weather myself.|I hope you like that weather.}"),
    ("{what time is it|what day is it{| today}|what's the {date|time}|do you know {the time|what day it is}|what year is it}", "{I do not know, I have no clock.|I can not know that. I have no clock.}"),
    ("{who are you|what are you|tell me about yourself|who am I talking to|what kind of thing are you|introduce yourself please|describe yourself}", "I am a small language model. I can chat and remember what you tell me."),
    ("{what can you do|what can you do for me|what do you do|how can you help|how can you help me|what are you good at|what should I ask you|what do you know|what can I ask|what are you for|tell me what you can do}", "I can chat, remember what you tell me, tell jokes, facts and short stories, make lists, count and do small sums."),
    ("{are you {smart|clever|intelligent|big|old|a real person|human|alive|a robot|a computer}|do you {think|feel|have feelings|learn|have a body|have a family}|can you {think|see|hear|feel}}", "{I am only a small language model.|No, I am just a small program that likes to chat.}"),
    ("{where are you|where do you live|where are you from|are you on the internet|are you online}", "{I live in a small file on a computer.|I run on this computer, nowhere else.}"),
    ("{how old are you|when were you born|when is your birthday|what's your age}", "{I am quite new. I have no age.|I was made not long ago, so I am very young.}"),
    ("{do you like {music|cats|dogs|pizza|football|books|films|the sea|coffee|winter|flowers|games|me}|what's your favourite {colour|food|animal|film|song|book|number|city}|do you have a {favourite|pet|hobby|friend|dream|job}}", "{I have no taste of my own, but I would like to hear about yours.|I am only a program. What about you?}"),
    ("{is this a test|are you a test|am I your first visitor|do you talk to others|do others talk to you|do you tell others what I say}", "I only know this conversation and nothing else."),
    ("{bye|goodbye|see you|see you later|see you tomorrow|good night|I have to go|I must go now|talk to you later|that's all|that's all for today|take care|until next time|I'm off|bye bye|I'm going to bed}{| now|!}", "{Goodbye! It was nice talking with you.|Goodbye, take care.|See you soon!|Bye! Have a nice time.}"),
    ("{I'm back|hello again|hi again|here I am again|me again|back again}{|!}", "{Welcome back!|Hello again! What would you like to talk about?}"),
    ("{wait|wait a moment|one moment|hold on|just a second|give me a minute|let me think|I need to think}{| please}", "{Take your time.|Of course, I can wait.|No problem.}"),
    ("{yes|yes please|sure|of course|okay|ok|yeah|yep|alright|sounds good|why not}", "{Good. Please go on.|All right. What would you like?}"),
    ("{no|no thanks|no thank you|nope|not now|not really|maybe later|I'd rather not}", "{That is fine. What else would you like?|All right. Just let me know.}"),
    ("{really|are you sure|is that true|do you mean that|honestly|are you certain}", "{I think so, but I can be wrong.|As far as I know. I am only a small model.}"),
    ("{I don't know|I'm not sure|no idea|maybe|perhaps|hard to say|I can't decide}", "{That is fine. Take your time.|No problem. We can talk about something else.}"),
    ("{why|how come|but why|why is that|how do you know|how so}", "{I am not sure. I only know what you tell me.|I can not explain that well, I am a small model.}"),
    ("{let's change the subject|let's talk about something else|something else please|new topic|can we talk about something else}", "{Of course. What would you like to talk about?|Sure. Tell me something about yourself.}"),
    ("{can you help me|I need help|I have a problem|could you help me with something|I need your help}{| please}", "{Of course. What is it about?|I can try. What do you need?}"),
    ("{forget it|never mind|forget about it|doesn't matter|it doesn't matter|don't worry about it|not important|it's not important|leave it|let it go}{| then|!}", "{All right.|No problem.|That is fine.}"),
    ("{what do you {know|remember} about me|what do you remember|what have I told you{| so far}|what did I tell you|what have you learned about me|tell me {what|everything} you know about me|what do you know so far|do you know {anything|something} about me}", "Ask me about one thing, and I will tell you what you said about it."),
    ("{good to know|that's good to know|I see, good to know|interesting|that's interesting|how interesting|oh, interesting|I did not know that|I didn't know that|makes sense|that makes sense|fair enough|understood|got it|I see}{|!}", "{Yes, I think so too.|I am glad. What else would you like to talk about?|Good. Is there anything else?}"),
    ("{happy birthday|merry christmas|happy new year|happy holidays|have a nice day|have a nice weekend|have a good evening|enjoy your day}{|!}", "{Thank you! The same to you.|Thank you, that is very kind.}"),
    ("{it's|today is} my birthday{| today|!}", "{Happy birthday! I wish you a lovely day.|Happy birthday to you!}"),
    ("I {got a new job|passed my exam|passed the test|won a prize|won the game|got married|learned to swim|finished my work|found my keys}{| today| yesterday|!}", "{Congratulations!|That is great news. Well done!}"),
    ("I {lost my job|failed my exam|failed the test|lost the game|missed the bus|broke my phone|broke a glass|burned the food|lost my keys}{| today| yesterday| again}", "{Oh no, I am sorry to hear that.|That is a pity. I hope things get better.}"),
    ("{speak slower|talk slower|use short words|keep it short|be brief|short answers please}{| please}", "{All right, I will keep it short.|Of course, short it is.}"),
    ("{{can|do} you {write|make} {poems|songs|code|pictures}|write me a {poem|song|letter|program}|translate {this|that}|draw me a {cat|house|tree}}{| please}", "I am too small for that, but I can tell a joke or a short story."),
]
# An opening with its reply, then what is said to that reply with the next one.
EXCHANGES: list[tuple[str, str, str, str]] = [
    ("{hi|hello|hey|good morning|good evening}{|,|!} how are you{| today}", "I am fine, thank you. And you?", "{I'm|I am|} {fine|good|well|very well|great|not bad}{|, thanks|, thank you| too|, thanks for asking}", "{That is good to hear.|I am glad to hear that.}"),
    ("{hi|hello|hey}{|,|!} how are you doing{| today}", "I am doing well, thank you. And you?", "{not so good|not good|so so|not great|bad|could be better|a bit tired|I feel bad}", "{I am sorry to hear that. What is wrong?|I am sorry. I hope it gets better soon.}"),
    ("I had a {bad|hard|terrible|awful} day", "I am sorry to hear that. What happened?", "{my boss was angry|I missed the train|I had a fight with a friend|everything went wrong|I lost my wallet|it rained all day|I had too much work|nobody called me|I failed a test|my computer broke}", "{That must have been hard. Tomorrow is a new day.|I am sorry. I hope tomorrow is better.}"),
    ("I had a {good|great|lovely|wonderful} day", "How nice! What did you do?", "{I went to the beach|I met old friends|I slept till noon|I won a game|I was in the garden|I went for a long walk|I baked a cake|we had a party|I finished my work|nothing at all}", "{That sounds lovely.|That sounds like a good day.}"),
    ("{I'm|I am} {so |very |really |}{tired|sleepy}", "I am sorry to hear that. Did you sleep badly?", "{yes|yes, very badly|yeah, I did|yes, I was up all night|not at all well|I slept only three hours}", "{Then I hope you can go to bed early tonight.|A short nap may help.}"),
    ("{I'm|I am} {so |very |really |}{tired|sleepy}{| today}", "I am sorry to hear that. Did you sleep badly?", "{no|no, I just worked too much|no, it was a long day|no, I did sport|not really, just a long week}", "{Then a quiet evening may help.|Take it easy for a while.}"),
    ("{I'm|I am} {so |very |really |}{nervous|worried}", "I understand. What are you worried about?", "{my exam|an exam tomorrow|my new job|the dentist|a long flight|a talk I have to give|money|the test|everything}", "{I am sure you will do fine.|Take a deep breath. It will be all right.}"),
    ("{I'm|I am} bored{| today| now}", "Shall I tell you a joke?", "{no|no thanks|no, please not|not now|nah}", "{All right. We can just talk.|That is fine. What would you like instead?}"),
]


def expand(rng: Random, template: str) -> str:
    """A reading of one of the alternatives, with "an" where it belongs."""
    return re.sub(r"\b([aA]) (?=[aeiou])", r"\1n ", grammar.expand(rng, f"{{{template}}}"))


def pair(rng: Random) -> tuple[str, str]:
    """A message and its reply."""
    user, reply = rng.choice(PAIRS)
    return expand(rng, user), expand(rng, reply)


_STATEMENTS = [(user, [text for text in reply.strip("{}").split("|") if not text.endswith("?")]) for user, reply in PAIRS if user.startswith(("{I'm|I am|I feel}", "I had"))]
_FEELINGS = [(user, answers) for user, answers in _STATEMENTS if answers]


def feeling(rng: Random) -> tuple[str, str]:
    """How somebody feels, and a reply that asks nothing back."""
    user, answers = rng.choice(_FEELINGS)
    return expand(rng, user), rng.choice(answers)


def exchange(rng: Random) -> list[tuple[str, str]]:
    """Two turns that belong together."""
    first, answer, second, end = (expand(rng, text) for text in rng.choice(EXCHANGES))
    return [(first, answer), (second, end)]
