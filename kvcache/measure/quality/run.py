"""A run: every cache reads the same passages and is asked the same questions. Yields what has happened; nothing is printed and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ...catalog import first_fitting
from ...chat.models import LoadedModel
from ...kernels import cpu
from ...memory import measure_memory
from ..drift import drift, teacher_forced
from .answers import MODES
from .prompts import Prompt, fitting
from .results import Answered, Drifted, LeftOut
from .spec import Spec
from .tasks import TASKS, named, offered
from .texts import Passage, Text, passages

SEEDS_APART = 1009  # numbers of cases from one seed's first to the next one's
REPLY = 256  # tokens of room kept behind a prompt for the longest answer


@dataclass(frozen=True)
class Progress:
    """`done` of `total` pieces of work; what the next one is."""

    done: int
    total: int
    words: str


@dataclass(frozen=True)
class Plan:
    """What to measure of which caches, beside the full one. Lengths in tokens; `chunk`: tokens of a prompt fed in one forward, None for all, as `generate` does."""

    caches: tuple[Spec, ...]
    tokens: int = 2048  # of a passage that is read at once
    forced: int = 256  # and of how it goes on, token by token
    passages: int = 3
    tasks: tuple[str, ...] = field(default_factory=offered)
    modes: tuple[str, ...] = tuple(MODES)
    lengths: tuple[int, ...] = (1024,)  # of the prompts with the questions
    cases: int = 8  # of each task at each length
    seed: int = 0
    chunk: int | None = None

    def check(self, loaded: LoadedModel) -> None:
        """Raises ValueError for what this model can't do, and where there is nothing to do."""
        if loaded.is_encoder_decoder:
            raise ValueError(f"{loaded.id} has an encoder, which reads what these measurements would have its cache hold: choose a model without one")
        named(self.tasks)
        self._check_amounts()
        for mode in self.modes:
            if mode not in MODES:
                raise ValueError(f"no mode is called {mode!r}; there are {', '.join(MODES)}")
        for spec in self.caches:
            spec.check(loaded.model)
        self._check_room(loaded)

    def _check_amounts(self) -> None:
        least = {"tokens": 16, "forced": 1, "passages": 0, "cases": 0, "seed": 0, "chunk": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} must be at least {low}, got {value}")
        if not self.passages and not self.questions:
            raise ValueError("nothing to measure: choose at least one passage, or one task, mode, length and case")

    def _check_room(self, loaded: LoadedModel) -> None:
        longest = max([self.tokens + self.forced if self.passages else 0, *(length + REPLY for length in self.lengths if self.questions)])
        if loaded.context_length is not None and longest > loaded.context_length:
            raise ValueError(f"{loaded.id} reads {loaded.context_length:,} tokens, and this takes {longest:,}: choose shorter ones")

    @property
    def questions(self) -> int:
        """Cases that every cache is given."""
        return len(self.tasks) * len(self.modes) * len(self.lengths) * self.cases


Event = Progress | Drifted | Answered | LeftOut


@dataclass(frozen=True)
class Unit:
    """A part of a run that stands alone, and that every cache goes through, the full one first: a passage, or a case of a task at a length, by its number."""

    number: int
    task: str | None = None
    length: int = 0


def units_of(plan: Plan) -> list[Unit]:
    """All of a run, in its order."""
    return [*map(Unit, range(plan.passages)), *(Unit(number, task, length) for length in plan.lengths for number in range(plan.cases) for task in plan.tasks)]


def run(loaded: LoadedModel, plan: Plan, text: Text, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Measure, yielding progress before each piece of work, and what came of it. Ends early once `stop()` is true.

    A cache that fails is left out from there on. Raises ValueError, before anything has run, for a plan that cannot be.
    """
    return (event for _, event in parts(loaded, plan, text, units_of(plan), stop))


def parts(loaded: LoadedModel, plan: Plan, text: Text, units: Sequence[Unit], stop: Callable[[], bool] = lambda: False) -> Iterator[tuple[Unit, Event]]:
    """As `run`, these units of the plan alone, each event with the unit that it is of."""
    plan.check(loaded)
    chosen = passages(text, plan.passages, plan.tokens, plan.forced, plan.seed) if plan.passages else []
    full = Spec(first_fitting(loaded.model))
    return _Run(loaded, plan, chosen, full, units).until(stop)


def joined(plan: Plan, found: Iterable[tuple[Unit, Event]]) -> Iterator[Event]:
    """What several processes have found, each of its own units, as one process finds it: in its order, and nothing more of what was left out."""
    order, gone = {unit: place for place, unit in enumerate(units_of(plan))}, set()
    for unit, event in sorted(found, key=lambda pair: order[pair[0]]):
        name = event.what if isinstance(event, LeftOut) else event.cache
        if name in gone or _title(unit.task, unit.length) in gone:
            continue
        if isinstance(event, LeftOut):
            gone.add(name)
        yield event


def _title(task: str | None, length: int) -> str:
    return f"{task} at {length:,} tokens"


class _Run:
    """One model, its plan, the units of it that are to be run, and the caches that have not failed: the full one first."""

    def __init__(self, loaded: LoadedModel, plan: Plan, chosen: Sequence[Passage], full: Spec, units: Sequence[Unit]):
        self.loaded, self.plan, self.chosen, self.full, self.units = loaded, plan, chosen, full, units
        self.specs = list({str(spec): spec for spec in (full, *plan.caches)}.values())
        self.total = len(self.specs) * sum(1 if unit.task is None else len(plan.modes) for unit in units)
        self.done = 0
        self.too_long: set[tuple[str, int]] = set()  # tasks and the lengths in which they have no room

    def until(self, stop: Callable[[], bool]) -> Iterator[tuple[Unit, Event]]:
        for loops in cpu.ALL:  # before, and not while caches are measured: other loops sum in another order
            loops.ready(wait=True)
        for unit in self.units:
            for event in self._read(unit.number) if unit.task is None else self._ask(unit.task, unit.length, unit.number):
                yield unit, event
                if stop():
                    return

    def _piece(self, spec: Spec, words: str, work: Callable[[], Iterable[Event]]) -> Iterator[Event]:
        """A piece of work; whatever it raises leaves this cache out and lets the others go on. Without the full one there is nothing to compare with."""
        yield Progress(self.done, self.total, f"{spec.label}: {words}")
        try:
            yield from work()
        except Exception as error:
            if spec == self.full:
                raise
            self.specs.remove(spec)
            yield LeftOut(str(spec), in_one_line(error))
        self.done += 1

    def _read(self, number: int) -> Iterator[Event]:
        """One passage by every cache, each beside the full one's expectations, which are kept for so long."""
        tables: list[torch.Tensor] = []  # the full cache's, [T, V]
        passage = self.chosen[number]
        words = f"passage {number + 1} of {len(self.chosen)}"
        for spec in list(self.specs):
            yield from self._piece(spec, words, lambda spec=spec: [self._drifted(spec, number, passage, tables)])

    def _drifted(self, spec: Spec, number: int, passage: Passage, tables: list[torch.Tensor]) -> Drifted:
        prompt = passage.prompt
        cache, seen = spec.begin(self.loaded, prompt, self.plan.chunk)
        table = teacher_forced(self.loaded, cache, prompt[seen:], passage.continuation, prompt[:seen], self.plan.chunk or len(prompt))
        tables += [] if tables else [table]
        found = drift(tables[0], table)
        surprise = -table[range(len(table)), passage.continuation].mean().item()
        memory = measure_memory(cache)
        return Drifted(str(spec), number, len(table), found.mean_kl, found.max_kl, found.same_choice, surprise, memory.used, memory.total)

    def _ask(self, task: str, length: int, number: int) -> Iterator[Event]:
        """One case of a task in every mode and of every cache; a task of which a case is longer than `length` is left out from there on."""
        try:
            prompts = [] if (task, length) in self.too_long else fitting(self.loaded, TASKS[task], number + self.plan.seed * SEEDS_APART, length)
        except ValueError as error:
            prompts = []
            self.too_long.add((task, length))
            yield LeftOut(_title(task, length), str(error))
        if not prompts:
            self.done += len(self.specs) * len(self.plan.modes)
            return
        for mode in self.plan.modes:
            words = f"{task}, {mode}, {length:,} tokens, case {number + 1} of {self.plan.cases}"
            for spec in list(self.specs):
                yield from self._piece(spec, words, lambda spec=spec, mode=mode: self._answered(spec, task, mode, length, number, prompts))

    def _answered(self, spec: Spec, task: str, mode: str, length: int, number: int, prompts: Sequence[Prompt]) -> Iterator[Answered]:
        for place, (prompt, answer) in enumerate(zip(prompts, MODES[mode](self.loaded, spec, prompts, self.plan.chunk))):
            right = prompt.question.is_answered(answer.reply)
            yield Answered(str(spec), task, mode, length, number, place, right, answer.reply, prompt.question.expected, answer.nbytes)


def in_one_line(error: Exception) -> str:
    """What an error says, for a table: a ValueError's sentence, another's with its name."""
    sentence = " ".join(str(error).split())
    return (sentence if isinstance(error, ValueError) else f"{type(error).__name__}: {sentence}")[:300]
