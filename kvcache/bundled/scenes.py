"""Scenes: small facts of a life, each with its own ways of telling and asking, read from the lists in `scene_lists`.

A scene in the lists is a block of lines: `# clause | values`, ways of telling (`- `), ways of asking (`? `). The values are a kind of
`values.MAKERS`, or `: one; two; three`. One scene in ten is held out from training as a whole.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from . import values
from .phrases import ASK_CLAUSE, HELD_OUT_ONE_IN, Kind
from .sentences import SEEN_ANSWER

FOLDER = Path(__file__).parent / "scene_lists"


@dataclass(frozen=True)
class Scene:
    """What is asked for ("when the plumber comes"), where its values come from, and how it is told and asked."""

    clause: str
    make: Callable[[Random, bool], str]
    kind: str
    tells: tuple[str, ...]
    questions: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """True for the fixed tenth of all scenes that training never uses."""
        return zlib.crc32(self.clause.encode()) % HELD_OUT_ONE_IN == 0


@cache
def scenes(held: bool) -> tuple[Scene, ...]:
    """The scenes of training, or those held out from it."""
    blocks = (block for path in sorted(FOLDER.glob("*.txt")) for block in path.read_text().strip().split("\n\n"))
    return tuple(scene for scene in map(read, blocks) if scene.held_out == held)


def read(block: str) -> Scene:
    """A scene of its lines. Raises ValueError naming the line that is none."""
    first, *lines = block.strip().split("\n")
    clause, _, source = first.removeprefix("# ").partition(" | ")
    odd = [line for line in lines if line[:2] not in ("- ", "? ")]
    if not first.startswith("# ") or not source or odd:
        raise ValueError(f"a scene is a line '# clause | values' and lines '- tell' and '? ask'; {(odd or [first])[0]!r} is none of them")
    tells, asks = (tuple(line[2:] for line in lines if line.startswith(mark)) for mark in ("- ", "? "))
    return Scene(clause, *_source(source), tells, asks)


def _source(source: str) -> tuple[Callable[[Random, bool], str], str]:
    """A maker of values, and the name of their kind ("listed" for a list of the scene's own)."""
    if not source.startswith(":"):
        if source not in values.MAKERS:
            raise ValueError(f"no values are called {source!r}; there are {', '.join(values.MAKERS)}")
        return lambda rng, held: values.make(rng, source, held), source
    listed = [value.strip() for value in source[1:].split(";") if value.strip()]
    sides = {held: [v for v in listed if values.held_out(v) == held] or listed for held in (False, True)}
    return lambda rng, held: rng.choice(sides[held]), "listed"


def make(rng: Random, held: bool = False) -> tuple[str, Kind]:
    """A value and the ways to tell it and ask for it."""
    scene = rng.choice(scenes(held))
    asks = (*scene.questions, rng.choice(ASK_CLAUSE).replace("$c", scene.clause))
    return scene.make(rng, held), Kind(scene.kind, scene.tells, asks, (scene.clause,), "that", SEEN_ANSWER)
