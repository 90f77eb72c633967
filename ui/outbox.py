"""A message on its way: taken out of its box at once, so that what is typed meanwhile stays, and given back where it can't be sent."""
from __future__ import annotations


class Outbox:
    """One box's message that waits for its turn or is being answered, and the one to be given back."""

    def __init__(self) -> None:
        self.waiting: str | None = None
        self.note = ""  # to be said with its answer
        self.answering = False
        self.returned = ""

    def take(self, text: str, note: str = "") -> bool:
        """Have the text wait for its turn; False where another one does, or is being answered."""
        if self.waiting is not None or self.answering:
            return False
        self.waiting, self.note = text, note
        return True

    def next(self) -> str | None:
        """The text whose turn it is, or None. `done` when it is answered."""
        text, self.waiting = self.waiting, None
        self.answering = text is not None
        return text

    def done(self) -> None:
        """Another one may be taken."""
        self.waiting, self.answering = None, False

    def into(self, draft: str) -> str | None:
        """What the box is to hold now: what is given back, before what was typed since; None to leave it."""
        text, self.returned = self.returned, ""
        return "\n".join(part for part in (text, draft) if part.strip()) if text.strip() else None
