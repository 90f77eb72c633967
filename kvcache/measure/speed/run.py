"""A run: which contenders, where, in which order. Yields what has happened; nothing is printed and nothing is kept."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ...extras import free_memory
from ...kernels import cpu
from .contenders import MANY_TOKENS, REFERENCE, Contender, named
from .results import LeftOut, Row
from .rigs import LARGE, SMALL, TINY, LayerRig, ModelRig, Setup
from .timing import BURSTS, Runner, Times

LAYER_CONTENDERS = (
    "alone", "upstream-fp8", "upstream-quanto-4", "upstream-hqq-4", "dynamic", "native-8", "native-4", "native-2",
    "fused-8", "fused-4", "fused-2", "hqq-4", "quanto-4", "window", "sink",
)  # fmt: skip
TINY_CONTENDERS = ("dynamic", "dynamic-compiled", "static", "static-compiled", "native-4", "fused-4", "fused-4-compiled")
MODEL_CONTENDERS = ("dynamic", "dynamic-compiled", "native-4", "fused-4", "fused-4-compiled")
GROWTH_CONTENDERS = (
    "dynamic", "static", "native-8", "native-4", "native-2", "fused-8", "fused-4", "fused-2", "hqq-4", "quanto-4", "window", "sink",
)  # fmt: skip
DEVICE_CONTENDERS = ("alone", "upstream-fp8", "upstream-quanto-4", "upstream-hqq-4", "dynamic", "native-8", "native-4", "native-2", "fused-8", "fused-4", "fused-2")
DEVICE_MODEL_CONTENDERS = (
    "upstream-static", "upstream-offloaded", "upstream-offloaded-static", "dynamic", "static", "offloaded", "offloaded-static",
    "native-8", "native-4", "native-2", "fused-8", "fused-4", "fused-2",
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """Contenders on one kind of rig at some contexts."""

    name: str
    rig: Callable[[], ModelRig]
    contexts: tuple[int, ...]
    contenders: tuple[str, ...]
    query_heads: int
    threads: tuple[int, ...] | None = None  # other than the run's


@dataclass(frozen=True)
class Progress:
    """`done` of `total` pieces of work; what the next one is."""

    done: int
    total: int
    words: str


def layer(query_heads: int, contexts: tuple[int, ...], contenders: tuple[str, ...] = LAYER_CONTENDERS) -> Level:
    return Level("layer", lambda: LayerRig(query_heads), contexts, contenders, query_heads)


def tiny(contexts: tuple[int, ...], contenders: tuple[str, ...] = TINY_CONTENDERS) -> Level:
    return Level("tiny", lambda: ModelRig(**TINY), contexts, contenders, TINY["num_attention_heads"])


def small(contexts: tuple[int, ...], contenders: tuple[str, ...] = MODEL_CONTENDERS) -> Level:
    return Level("135m", lambda: ModelRig(**SMALL), contexts, contenders, SMALL["num_attention_heads"])


def growth(contexts: tuple[int, ...], threads: tuple[int, ...], contenders: tuple[str, ...] = GROWTH_CONTENDERS) -> Level:
    return Level("growth", lambda: ModelRig(**TINY), contexts, contenders, TINY["num_attention_heads"], threads)


def on_device(device: torch.device, dtype: torch.dtype, contexts: tuple[int, ...], threads: int, chosen: tuple[str, ...] | None = None) -> list[Level]:
    """A layer, eight rows in it and a whole model on a device, from the shortest context to the longest: what is stopped has measured the short ones."""
    one, eight = Setup(device, dtype), Setup(device, dtype, batch=8)
    found = []
    for context in contexts:
        found += [
            Level("device", lambda: LayerRig(32, setup=one), (context,), chosen or DEVICE_CONTENDERS, 32, (threads,)),
            Level("device-8", lambda: LayerRig(32, setup=eight), (context,), chosen or DEVICE_CONTENDERS, 32, (threads,)),
            Level("device-model", lambda: ModelRig(one, **LARGE), (context,), chosen or DEVICE_MODEL_CONTENDERS, LARGE["num_attention_heads"], (threads,)),
        ]
    return found


@dataclass(frozen=True)
class Plan:
    """What to run. `rounds` of interleaved steps; `patient`: wait for slow contenders at long contexts; `slow`: run what would compile first."""

    levels: tuple[Level, ...]
    threads: tuple[int, ...] = (1, 2)
    rounds: int = 21
    patient: bool = True
    slow: bool = False
    prefills: bool = True
    peaks: bool = True  # torch's profiler counts them; it works in the main thread alone

    def check(self) -> None:
        """Raises ValueError for what cannot be run."""
        if not self.levels or any(not each.contexts for each in self.levels):
            raise ValueError("nothing to measure: choose at least one context")
        if not 3 <= self.rounds <= 200:
            raise ValueError(f"rounds must be from 3 to 200, got {self.rounds}")
        for each in self.levels:
            named(each.contenders)
            wrong = [context for context in each.contexts if not 16 <= context <= 1 << 17]
            if wrong:
                raise ValueError(f"a context is 16 to 131,072 tokens, got {wrong[0]:,}")
        for count in self.threads:
            if not 1 <= count <= 256:
                raise ValueError(f"threads must be from 1 to 256, got {count}")

    def threads_of(self, level: Level) -> tuple[int, ...]:
        return level.threads or self.threads

    @property
    def total(self) -> int:
        """Pieces of work: loops to compile, a cache to fill, a round of steps, or the rest of one contender's figures."""
        return 1 + sum(len(each.contexts) * self._pieces(each) for each in self.levels)

    def _pieces(self, level: Level) -> int:
        count, threads = len(named(level.contenders)), len(self.threads_of(level))
        return count + threads * (self.rounds + 2 * count)


Event = Progress | Row | LeftOut


def run(plan: Plan, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Measure, yielding progress before each piece of work, rows and what was left out. Ends early once `stop()` is true.

    Raises ValueError, before anything has run, for a plan that cannot be.
    """
    plan.check()
    return _run(plan, stop)


def _run(plan: Plan, stop: Callable[[], bool]) -> Iterator[Event]:
    done = 1
    yield Progress(0, plan.total, "compiling loops, once on a machine")
    for loops in cpu.ALL:
        loops.ready(wait=True)
    for level in plan.levels:
        rig = level.rig()
        for context in level.contexts:
            for event in _without_gradients(Station(plan, level, rig, context).measure()):
                if isinstance(event, str):
                    event, done = Progress(done, plan.total, event), done + 1
                yield event
                if stop():
                    return


def _without_gradients(events: Iterator) -> Iterator:
    """Each piece of work under no_grad, which is a setting of the thread and must not stay on while others run."""
    while True:
        with torch.no_grad():
            event = next(events, None)
        if event is None:
            return
        yield event


class Station:
    """One rig at one context: every contender, on every number of threads."""

    def __init__(self, plan: Plan, level: Level, rig: ModelRig, context: int):
        self.plan, self.level, self.rig, self.context = plan, level, rig, context
        self.runners: list[Runner] = []
        self.rows: list[dict] = []

    def measure(self) -> Iterator[str | Row | LeftOut]:
        """Fill, time in rounds, then spread what comes rarely, as that makes the contexts longer. A string is a piece of work."""
        before = torch.get_num_threads()
        try:
            yield from self._fill()
            for count in self.plan.threads_of(self.level):
                torch.set_num_threads(count)
                yield from self._rounds(count)
                yield from self._rest(count)
            yield from self._rare()
        finally:
            torch.set_num_threads(before)

    def _fill(self) -> Iterator[str | LeftOut]:
        torch.set_num_threads(max(self.plan.threads_of(self.level)))
        for contender in named(self.level.contenders):
            yield f"{contender.label}: filling {self.context:,} tokens"
            reason = self._why_not(contender)
            if reason:
                yield self._left_out(contender, reason)
                continue
            yield from self._tried(contender, lambda contender=contender: self.runners.append(Runner(self.rig, contender, self.context)))

    def _why_not(self, contender: Contender) -> str | None:
        if contender.slow and not self.plan.patient and self.context > MANY_TOKENS:
            return f"one flush of {self.context:,} tokens takes too long here; python -m kvcache.measure speed waits for it"
        config, setup = self.rig.model.config, self.rig.setup
        layers = 1 if contender.hosted and not setup.on_cpu else config.num_hidden_layers  # at a time, where others wait in the host's memory
        needed = 6 * layers * config.num_key_value_heads * config.head_dim * setup.dtype.itemsize * setup.batch * self.context  # keys, values, copies while filling
        if reason := _too_little(needed, setup.free_memory()) or (contender.hosted and _too_little(needed // layers * config.num_hidden_layers, free_memory())):
            return reason
        return None if self.plan.slow and not contender.hosted else contender.why_not()

    def _tried(self, contender: Contender, work: Callable[[], object]) -> Iterator[LeftOut]:
        """Do the work; whatever it raises leaves this contender out and lets the others go on."""
        try:
            work()
        except Exception as error:
            self.runners = [runner for runner in self.runners if runner.contender is not contender]
            yield self._left_out(contender, _in_one_line(error))

    def _left_out(self, contender: Contender, reason: str) -> LeftOut:
        return LeftOut(self.level.name, self.level.query_heads, self.context, contender.label, reason)

    def _rounds(self, threads: int) -> Iterator[str | LeftOut]:
        for runner in list(self.runners):
            yield from self._tried(runner.contender, runner.begin)
        for number in range(self.plan.rounds):
            counted = f"{threads} thread{'s' * (threads != 1)}"
            yield f"{self.context:,} tokens, {counted}: round {number + 1} of {self.plan.rounds}"
            for runner in list(self.runners):
                yield from self._tried(runner.contender, runner.step)
            if number * BURSTS // self.plan.rounds > (number - 1) * BURSTS // self.plan.rounds:
                for runner in list(self.runners):
                    yield from self._tried(runner.contender, runner.update)

    def _rest(self, threads: int) -> Iterator[str | LeftOut]:
        for runner in list(self.runners):
            yield f"{runner.contender.label} at {self.context:,} tokens: bytes and updates"
            yield from self._tried(runner.contender, lambda runner=runner: self.rows.append(self._figures(runner, threads)))

    def _figures(self, runner: Runner, threads: int) -> dict:
        contender = runner.contender
        return {
            "level": self.level.name, "query_heads": self.level.query_heads, "context": self.context, "threads": threads,
            "contender": contender.name, "label": runner.label, "side": contender.side,
            "step": runner.times(), "prefill": self._prefill(runner, threads), "nbytes": runner.nbytes, "update": runner.update_times(), "peak": runner.peak() if self.plan.peaks else None,
        }  # fmt: skip

    def _prefill(self, runner: Runner, threads: int) -> Times | None:
        """Once, on as many threads as caches are filled on; not of compiled models, whose caches are filled as any other."""
        once = threads == max(self.plan.threads_of(self.level)) and not runner.contender.compiled
        return runner.prefill_times() if once and self.plan.prefills else None

    def _rare(self) -> Iterator[str | Row | LeftOut]:
        for threads in self.plan.threads_of(self.level):
            torch.set_num_threads(threads)
            for runner in list(self.runners):
                yield f"{runner.contender.label} at {self.context:,} tokens: work that comes rarely"
                yield from self._rare_of(runner, threads)

    def _rare_of(self, runner: Runner, threads: int) -> Iterator[Row | LeftOut]:
        found = next(row for row in self.rows if row["contender"] == runner.contender.name and row["threads"] == threads)
        rare = []
        yield from self._tried(runner.contender, lambda: rare.append(runner.rare(found["step"], found["update"])))
        if rare:
            yield Row(**found, rare=rare[0])


def _too_little(needed: int, free: int | None) -> str | None:
    return f"it could need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free" if free is not None and needed > free else None


def _in_one_line(error: Exception) -> str:
    sentence = " ".join(str(error).split())
    return (sentence if isinstance(error, ValueError) else f"{type(error).__name__}: {sentence}")[:300]


__all__ = ["Event", "Level", "Plan", "Progress", "REFERENCE", "growth", "layer", "on_device", "run", "small", "tiny"]
