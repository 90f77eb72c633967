"""The lists that language models wrote: blocks of lines, an empty line between two, in the text files of a folder. A fixed tenth of all blocks is held out from training."""

import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from .phrases import HELD_OUT_ONE_IN

AGAIN = 4  # times that a block of the newest lists is drawn for each time of another: the others have been read for long


def blocks(folder: Path) -> Iterator[str]:
    """Every block of every list in a folder."""
    for path in sorted(folder.glob("*.txt")):
        yield from _blocks_in(path)


def weighed(folder: Path, newest: Collection[str]) -> Iterator[str]:
    """The blocks of training, those of the newest lists AGAIN times."""
    for path in sorted(folder.glob("*.txt")):
        again = AGAIN if path.stem in newest else 1
        yield from [block for block in _blocks_in(path) if not held_out(block)] * again


def _blocks_in(path: Path) -> list[str]:
    return path.read_text().strip().split("\n\n")


def held_out(text: str) -> bool:
    """True for a fixed tenth of all texts."""
    return zlib.crc32(text.encode()) % HELD_OUT_ONE_IN == 0
