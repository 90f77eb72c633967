"""Marks inside replies: which characters were recalled from earlier, which decide between an answer and a refusal or are the result of a sum, and which nobody could guess.

They are control characters that no text contains; `strip` removes them, `spans` turns them into a class per character.
"""

RECALLED, UNGUESSABLE, CLOSE, DECISIVE, REFUSING = "\x02", "\x03", "\x04", "\x05", "\x06"
OPENING = (RECALLED, UNGUESSABLE, DECISIVE, REFUSING)


def recalled(text: str) -> str:
    """Mark a value that was told earlier."""
    return RECALLED + text + CLOSE


def decisive(text: str, mark: str = DECISIVE) -> str:
    """Mark the first two words of an answer or (REFUSING) a refusal, where they part: "Your name" from "You have not told me"."""
    before, value, rest = text.partition(RECALLED)
    words = before.split(" ", 2)
    if len(words) < 3:
        return text
    return mark + " ".join(words[:2]) + CLOSE + " " + words[2] + value + rest


def reckoned(text: str) -> str:
    """Mark a number worked out: what a sum turns on."""
    return DECISIVE + text + CLOSE


def unguessable(text: str) -> str:
    """Mark something invented on the spot."""
    return UNGUESSABLE + text + CLOSE


def recalls(text: str) -> list[str]:
    """The values marked as recalled."""
    shown, under = spans(text)
    return [value for value in "".join(c if mark == RECALLED else CLOSE for c, mark in zip(shown, under)).split(CLOSE) if value]


def strip(text: str) -> str:
    """The text without marks."""
    return text.translate({ord(mark): None for mark in (*OPENING, CLOSE)})


def spans(text: str) -> tuple[str, list[str]]:
    """The text without marks, and for each of its characters the mark it stood under ("" for none)."""
    kept, under, current = [], [], ""
    for char in text:
        if char in OPENING:
            current = char
        elif char == CLOSE:
            current = ""
        else:
            kept.append(char)
            under.append(current)
    return "".join(kept), under
