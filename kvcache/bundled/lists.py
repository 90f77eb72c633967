"""The lists that language models wrote: blocks of lines, an empty line between two, in the text files of a folder. A fixed tenth of all blocks is held out from training."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from .phrases import HELD_OUT_ONE_IN


def blocks(folder: Path) -> Iterator[str]:
    """Every block of every list in a folder."""
    for path in sorted(folder.glob("*.txt")):
        yield from path.read_text().strip().split("\n\n")


def held_out(text: str) -> bool:
    """True for a fixed tenth of all texts."""
    return zlib.crc32(text.encode()) % HELD_OUT_ONE_IN == 0
