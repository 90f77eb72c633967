"""What a server is given by its environment, checked as it starts: a value that will not do ends it with a sentence. docs/playground.md lists them."""
from __future__ import annotations

import os


def whole(name: str, default: int, minimum: int = 1) -> int:
    """The whole number in that variable. Ends the program, with the name, for anything else."""
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal() and int(text) >= minimum):
        raise SystemExit(f"{name} must be a whole number from {minimum} on, got {text!r}")
    return int(text) if text else default
