"""A case in a model's own form: its chat template or, without one, "User: ... Assistant:", as token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...chat.conversation import render
from ...chat.models import LoadedModel
from .tasks import Case, Question, Task

ROLES = ("user", "assistant")


@dataclass(frozen=True)
class Prompt:
    """The ids before the question, those from it to where the model goes on, and what is asked."""

    context: list[int]
    rest: list[int]
    question: Question

    def __len__(self) -> int:
        return len(self.context) + len(self.rest)


def prompts(loaded: LoadedModel, case: Case) -> Iterator[Prompt]:
    """One for each question; their contexts are the same."""
    for question in case.questions:
        texts = (*case.said, case.lead + question.text)
        text = render(loaded, [{"role": ROLES[n % 2], "content": content} for n, content in enumerate(texts)])
        cut = text.rindex(question.text)
        context, rest = _ids(loaded, text + question.opening, cut)
        yield Prompt(context, rest, question)


def _ids(loaded: LoadedModel, text: str, cut: int) -> tuple[list[int], list[int]]:
    """The ids of a text that begins as the model wants it, in two: before the token that holds the character at `cut`, and from it on."""
    if not loaded.tokenizer.is_fast:  # which alone tells where tokens stand
        return tuple(list(loaded.tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) for part in (text[:cut], text[cut:]))
    found = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    first = next(n for n, (_, end) in enumerate(found["offset_mapping"]) if end > cut)
    return list(found["input_ids"][:first]), list(found["input_ids"][first:])


def fitting(loaded: LoadedModel, task: Task, number: int, length: int) -> list[Prompt]:
    """The longest prompts of a case that have at most `length` tokens. Raises ValueError where even the shortest have more."""
    size = _largest(lambda size: max(map(len, prompts(loaded, task(number, size)))) <= length, length)
    if not size:
        least = max(map(len, prompts(loaded, task(number, 1))))
        raise ValueError(f"the task {task.__name__!r} takes at least {least:,} tokens, more than the {length:,} asked for")
    return list(prompts(loaded, task(number, size)))


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number from 1 to `limit` that fits, where all below it do; 0 for none."""
    low, high = 0, 1
    while high < limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
