"""A message on its way: taken out of its box at once, so that what is typed meanwhile stays, and given back where it can't be sent."""
from __future__ import annotations


class Outbox:
    """One box's message that waits for its turn, and the one to be given back."""

    def __init__(self) -> None:
        self.waiting: str | None = None
        self.returned = ""

    def take(self, text: str) -> bool:
        """Have the text wait for its turn; False where another one does."""
        if self.waiting is not None:
            return False
        self.waiting = text
        return True

    def next(self) -> str | None:
        """The text whose turn it is, or None."""
        text, self.waiting = self.waiting, None
        return text

    def into(self, draft: str) -> str | None:
        """What the box is to hold now: what is given back, before what was typed since; None to leave it."""
        text, self.returned = self.returned, ""
        return "\n".join(part for part in (text, draft) if part.strip()) if text.strip() else None
