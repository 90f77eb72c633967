"""`python -m kvcache.measure replay FILE`: say a recorded conversation again and tell whether every token is the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import saving
from ..chat import models, record
from ..chat.conversation import Conversation, Turn
from ..chat.models import LoadedModel
from .drift import first_divergence


@dataclass(frozen=True)
class Replayed:
    """One turn said again. `differs`: the first token that is another one, of the prompt where `in_prompt`; None where all are the same."""

    number: int
    recorded: Turn
    now: Turn
    differs: int | None = None
    in_prompt: bool = False

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the cache after this turn, as recorded and now."""
        return self.recorded.stats.cache_nbytes if self.recorded.stats else 0, self.now.stats.cache_nbytes


def replay(found: Mapping[str, Any], loaded: LoadedModel) -> Iterator[Replayed]:
    """Say the turns of a record again, each message with its own sampling and seed, on a fresh cache; ends behind the first turn that differs.

    Turns that have come from text alone, without ids, are the beginning that the others go on from. Raises RecordError.
    """
    turns = record.turns_of(found, loaded)
    told = next((number for number, turn in enumerate(turns) if turn.reply_ids), len(turns))
    talk = record.restore({**found, "turns": []}, loaded).with_turns(turns[:told], "")
    for number, turn in enumerate(turns[told:], told + 1):
        again = _said_again(number, turn, talk)
        yield again
        if again.differs is not None:
            return


def _said_again(number: int, turn: Turn, talk: Conversation) -> Replayed:
    talk.sampling = replace(turn.sampling or talk.sampling, seed=turn.seed, max_new_tokens=len(turn.reply_ids))  # one that was stopped ends there
    for _ in talk.send(turn.user):
        pass
    now = talk.turns[-1]
    in_prompt = first_divergence(turn.prompt_ids, now.prompt_ids)
    differs = first_divergence(turn.reply_ids, now.reply_ids) if in_prompt is None else in_prompt
    return Replayed(number, turn, now, differs, in_prompt is not None)


def words(again: Replayed, tokenizer: Any) -> str:
    """What came of one turn, in a line."""
    recorded, now = again.nbytes
    nbytes = f"{now:,} bytes" if recorded == now else f"{now:,} bytes, recorded {recorded:,}"
    if again.differs is None:
        return f"turn {again.number}: the same {len(again.now.reply_ids)} tokens, {nbytes}"
    sides = [(turn.prompt_ids if again.in_prompt else turn.reply_ids)[again.differs :][:1] for turn in (again.recorded, again.now)]
    before, after = (repr(tokenizer.decode(list(side))) if side else "the end" for side in sides)
    return f"turn {again.number} differs at token {again.differs + 1} of its {'prompt' if again.in_prompt else 'reply'}: recorded {before}, now {after}"


def read(path: str | Path) -> dict[str, Any]:
    """The record in a file, be it JSON or in a cache's file. Raises RecordError, CacheFileError and OSError."""
    if Path(path).suffix == ".safetensors":
        return record.check(saving.read(path).header.get("conversation"))
    return record.parse(Path(path).read_text(encoding="utf-8", errors="replace"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay a file. Exits with 1 where a token differs, with 2 where the file or its model cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m kvcache.measure replay", description=__doc__)
    parser.add_argument("file", help="a run's file, as the playground's Chat tab gives it: .json, or .safetensors with the cache")
    parser.add_argument("--model", help="another model, by name, hub id or folder, than the one the file names")
    given = parser.parse_args(arguments)
    try:
        found = read(given.file)
        loaded = models.load(given.model or found["model"])
        _say(f"{found['model']} on {found['cache']}, written with {_versions(found)}; here {_versions({'versions': saving.versions()})}")
        same = all([_reported(again, loaded) for again in replay(found, loaded)])
    except (ValueError, OSError) as error:
        print(f"replay: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    _say("every token is the same" if same else "stopped at the first turn that differs")
    raise SystemExit(0 if same else 1)


def _reported(again: Replayed, loaded: LoadedModel) -> bool:
    _say(words(again, loaded.tokenizer))
    return again.differs is None


def _versions(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in dict(found.get("versions") or {}).items())


def _say(line: str) -> None:
    print(line, flush=True)
