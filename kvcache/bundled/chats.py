"""Short chats about everything and nothing, written one by one by language models, read from the lists in `chat_lists`: how a reply fits its turn.

A chat in the lists is a block of lines, in turn `> message | the same in other words` and `< reply | another`; every reply fits every
wording of the line before it. A last reply `=good` stands for a family
of `STOCK`. One chat in ten is held out from training as a whole.
"""

import re
from functools import cache
from pathlib import Path
from random import Random

from . import lists

FOLDER = Path(__file__).parent / "chat_lists"
MARKS = ("> ", "< ")
STOCK_SHARE = 0.8  # of replies where a stock one fits: for a message unlike any learnt these few are the likeliest, and fit; replies about the thing alone came out as word salad
STOCK = {
    "greet": ("Hello! Nice to hear from you.",),
    "bye": ("Goodbye, take care.", "See you soon."),
    "thanks": ("You are welcome.",),
    "kind": ("Thank you! You are kind too.",),
    "complaint": ("I am sorry. I am only a small program.",),
    "laugh": ("I am glad you liked it.",),
    "proud": ("Congratulations!", "Well done! I am happy for you."),
    "hope": ("I hope so.", "Let us hope for the best."),
    "note": ("Okay, I will remember that.", "Got it."),
    "sure": ("Of course. Go ahead.",),
    "taste": ("I have no taste of my own, but I would like to hear about yours.",),
    "good": ("How nice! Tell me more about it.", "That sounds good."),
    "bad": ("I am sorry to hear that.", "That is a pity. I hope it gets better."),
    "plan": ("That sounds like a plan. I hope it goes well.", "I hope it goes well."),
    "said": ("I see. Tell me more about it.", "I see. Thank you for telling me."),
    "advice": ("I am not sure. What do you think?", "I can not say what is best. What would you like?"),
    "unknown": ("I do not know that. I only know what you tell me.",),
    "self": ("I am only a small program, but I like talking with you.",),
    "outside": ("I can not do that, but we can talk about it.",),
}
Chat = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # for each turn, the wordings of a message and its replies


@cache
def chats(held: bool) -> tuple[Chat, ...]:
    """The chats of training, or those held out from it."""
    return tuple(read(block) for block in lists.blocks(FOLDER) if held_out(block) == held)


def held_out(block: str) -> bool:
    """True for a fixed tenth of all chats."""
    return lists.held_out(re.sub(r" \| =\w+", "", block))


def read(block: str) -> Chat:
    """A chat of its lines. Raises ValueError naming the line that is none."""
    lines = block.strip().split("\n")
    odd = [line for number, line in enumerate(lines) if not line.startswith(MARKS[number % 2])]
    if odd or len(lines) % 2:
        raise ValueError(f"a chat is lines '> message | another wording' and '< reply | another' in turn; {(odd or lines[-1:])[0]!r} is out of place")
    said = [tuple(part.strip() for part in line[2:].split(" | ")) for line in lines]
    return tuple(zip(said[::2], said[1::2]))


def chat(rng: Random, held: bool = False) -> list[tuple[str, str]]:
    """The turns of a chat: messages and replies."""
    return [(rng.choice(messages), reply(rng, replies)) for messages, replies in rng.choice(chats(held))]


def reply(rng: Random, replies: tuple[str, ...]) -> str:
    """One of its own, or a stock one that fits."""
    *own, last = replies
    if not last.startswith("="):
        return rng.choice(replies)
    return rng.choice(STOCK[last[1:]] if rng.random() < STOCK_SHARE else own)
