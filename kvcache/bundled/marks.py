"""Marks inside replies: which characters were recalled from earlier, and which nobody could guess.

They are control characters that no text contains; `strip` removes them, `spans` turns them into a class per character.
"""

RECALLED, UNGUESSABLE, CLOSE = "\x02", "\x03", "\x04"


def recalled(text: str) -> str:
    """Mark a value that was told earlier."""
    return RECALLED + text + CLOSE


def unguessable(text: str) -> str:
    """Mark something invented on the spot."""
    return UNGUESSABLE + text + CLOSE


def strip(text: str) -> str:
    """The text without marks."""
    return text.replace(RECALLED, "").replace(UNGUESSABLE, "").replace(CLOSE, "")


def spans(text: str) -> tuple[str, list[str]]:
    """The text without marks, and for each of its characters the mark it stood under ("" for none)."""
    kept, under, current = [], [], ""
    for char in text:
        if char in (RECALLED, UNGUESSABLE):
            current = char
        elif char == CLOSE:
            current = ""
        else:
            kept.append(char)
            under.append(current)
    return "".join(kept), under
