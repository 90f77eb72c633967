"""A message on its way: taken out of its box at once, so that what is typed meanwhile stays, and given back where it can't be sent."""
from __future__ import annotations

import threading
import time
from typing import Any

AGAIN, MORE = object(), object()  # what waits in place of a text where a button was pressed: Regenerate, or Continue


def shown(text: str) -> str:
    """The text with � for half a character (a surrogate without the other half), which no answer to a browser can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Outbox:
    """One tab's job: what waits for its turn or is being answered, the switch that stops it, and the message to be given back."""

    def __init__(self) -> None:
        self.waiting: Any = None  # a text, AGAIN or MORE
        self.note = ""  # to be said with its answer
        self.ticket = 0  # of what was taken last: the event that was begun for another has not its turn
        self.answering = False
        self.returned = ""
        self.undone = self.outdated = ""  # what the latest undo gave back, and the one before it
        self.stop = threading.Event()  # of this job; the next one has its own

    @property
    def occupied(self) -> bool:
        """Is something waiting, or being answered?"""
        return self.waiting is not None or self.answering

    def take(self, wanted: Any, note: str = "") -> bool:
        """Have it wait for its turn; False where something else does, or is being answered."""
        if self.occupied:
            return False
        self.waiting, self.note, self.stop = shown(wanted) if isinstance(wanted, str) else wanted, note, threading.Event()
        self.ticket += 1
        return True

    def next(self, ticket: int | None = None) -> Any:
        """What has its turn, or None; with a ticket, only what it was given for. `done` when it is answered."""
        if ticket is not None and ticket != self.ticket:
            return None
        wanted, self.waiting = self.waiting, None
        self.answering = wanted is not None
        return wanted

    def done(self) -> None:
        """Another one may be taken."""
        self.answering = False

    def give_back(self, wanted: Any) -> None:
        """Put a text aside, to be typed into its widget again."""
        if isinstance(wanted, str):
            self.returned = wanted

    def undo(self, text: str) -> None:
        """Put a message aside that was taken back. It takes the place of the one taken back before, where nobody has touched that."""
        self.returned, self.undone, self.outdated = text, text, self.undone

    def settle(self, patience: float = 10.0) -> bool:
        """Take back what waits and stop what is being answered; False where that has not ended within `patience` seconds."""
        self.stop.set()
        wanted, self.waiting = self.waiting, None
        self.give_back(wanted)
        end = time.monotonic() + patience
        while self.answering and time.monotonic() < end:
            time.sleep(0.02)
        return not self.answering

    def into(self, draft: str) -> str | None:
        """What the box is to hold now: what is given back, before what was typed since; None to leave it."""
        text, self.returned = self.returned, ""
        draft, self.outdated = "" if draft == self.outdated else draft, ""
        return shown("\n".join(part for part in (text, draft) if part.strip())) if text.strip() else None
