"""What a model answers on a cache that has read a prompt with the question in it, or before it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...cache import Cache
from ...chat.engine import Sampling, forward, generate_tokens, prefill_chunks
from ...chat.models import LoadedModel
from ...memory import measure_memory
from .prompts import Prompt
from .spec import Spec

SPARE = 16  # tokens that a reply may take beside twice those of what is expected


@dataclass(frozen=True)
class Answer:
    """A reply, and the bytes that the cache held at its end."""

    reply: str
    nbytes: int


def aware(loaded: LoadedModel, spec: Spec, prompts: Sequence[Prompt], chunk: int | None = None) -> Iterator[Answer]:
    """The question is part of the prompt that a cache reads, and by which it may choose what to keep."""
    for prompt in prompts:
        ids = [*prompt.context, *prompt.rest]
        cache, seen = spec.begin(loaded, ids, chunk)
        yield _reply(loaded, cache, ids[:seen], ids[seen:], prompt, chunk)


def agnostic(loaded: LoadedModel, spec: Spec, prompts: Sequence[Prompt], chunk: int | None = None) -> Iterator[Answer]:
    """The question comes when the cache has read all else, once; each goes on from a copy."""
    context = prompts[0].context
    cache, seen = spec.begin(loaded, context, chunk)
    for piece in prefill_chunks(loaded, context[seen:], seen, chunk or len(context)):
        forward(loaded, cache, piece)
    for prompt in prompts:
        yield _reply(loaded, cache.fork(), context, prompt.rest, prompt, chunk)


MODES = {each.__name__: each for each in (aware, agnostic)}


def _reply(loaded: LoadedModel, cache: Cache, seen: Sequence[int], new: Sequence[int], prompt: Prompt, chunk: int | None) -> Answer:
    """Greedy. `chunk`: tokens fed in one forward, default all."""
    expected = sum(len(loaded.tokenizer(f" {each}", add_special_tokens=False)["input_ids"]) for each in prompt.question.expected)
    sampling = Sampling(max_new_tokens=SPARE + 2 * expected)
    events = generate_tokens(loaded, cache, new, seen, sampling, prefill_chunk=chunk or len(new), decode="eager")
    return Answer("".join(getattr(event, "text", "") for event in events), measure_memory(cache).used)
