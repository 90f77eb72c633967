"""One contender on a rig: its cache, filled to a context, and the times of its steps.

A step comes once in a round, after all other contenders have had theirs, so that it finds the processor's caches as it
would between the other layers of a model, and a noisy moment hits all alike. Work that comes once in many tokens, a flush
or a growing buffer's copy, is left out of the median, timed for itself, and spread over the tokens between two.
"""

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import cache_utils

from ...caches.dynamic import GrowingLayer
from ...caches.quantized import QuantizedLayer
from ...layer import T, capacity_for
from ...memory import measure_memory
from .contenders import Contender
from .rigs import ModelRig, Step

BURSTS, UPDATES = 8, 5  # moments of a run in which so many updates are timed for themselves, in a row
UPDATE_SECONDS = 0.25  # and in all no longer than about this
PREFILLS = 5  # of fresh caches
PREFILL_SECONDS = 1.0  # and no longer than about this
OFTEN = 128  # tokens between two flushes of upstream's caches; buffers grow less often when they are long
ROOM = 512  # tokens that all steps together may add to a context


@dataclass(frozen=True)
class Times:
    """Median of repeats in seconds, and how far they spread: the lower and the upper quartile."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times":
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        return cls(median, low, high, len(seconds))


@dataclass(frozen=True)
class Rare:
    """Work that comes once `every` so many tokens, in seconds beyond a usual step."""

    seconds: float
    every: int

    @property
    def a_token(self) -> float:
        return self.seconds / self.every


class Runner:
    """A contender's cache on a rig. Making one raises whatever the contender raises."""

    def __init__(self, rig: ModelRig, contender: Contender, context: int):
        self.rig, self.contender, self.context = rig, contender, context
        try:
            self.cache = contender.make(rig.model, context + ROOM)
            self.attention = rig.model.config._attn_implementation  # a cache may bring its own
        finally:
            rig.use(rig.plain_attention)
        self.prefills = [rig.fill(self.cache, context)]
        self.nbytes = measure_memory(self.cache).total
        self.steps: list[Step] = []
        self.updates: list[float] = []

    def begin(self) -> None:
        """Forget the times so far, as for another number of threads; the first step is a warm-up."""
        self.step()
        self.steps, self.updates = [], []

    def step(self) -> Step:
        """One step; kept for `times` unless rare work fell into it."""
        rare = rare_work(self.cache)
        self.rig.use(self.attention)
        try:
            step = self.rig.step(self.cache, compiled=self.contender.compiled)
        finally:
            self.rig.use(self.rig.plain_attention)
        if rare is None or rare[0] > 0:
            self.steps.append(step)
        return step

    def times(self) -> Times:
        return Times.of([step.seconds for step in self.steps])

    def prefill_times(self) -> Times:
        """Times of storing a prompt of `context` tokens in a fresh cache, which includes quantising it."""
        while len(self.prefills) < PREFILLS and sum(self.prefills) < PREFILL_SECONDS:
            cache = self.contender.make(self.rig.model, self.context + ROOM)
            self.rig.use(self.rig.plain_attention)
            self.prefills.append(self.rig.fill(cache, self.context))
        return Times.of(self.prefills)

    def update(self) -> None:
        """One burst of updates alone, kept for `update_times`, where they can be told apart from the step."""
        spent, done = 0.0, 0
        while self.steps[0].update is not None and done < UPDATES and spent < UPDATE_SECONDS / BURSTS:
            rare = rare_work(self.cache)
            start = time.perf_counter()
            self.cache.update(self.rig.key, self.rig.value, 0)
            taken = time.perf_counter() - start
            spent, done = spent + taken, done + 1
            if rare is None or rare[0] > 0:
                self.updates.append(taken)

    def update_times(self) -> Times | None:
        """Times of updates alone; None where they cannot be told apart from the step."""
        return Times.of(self.updates) if self.updates else None

    def peak(self) -> int | None:
        """The most bytes that torch holds at one time during one step, on the rig's device, beyond what it held before; None where a device does not tell."""
        rare = rare_work(self.cache)
        if rare is not None and rare[0] == 0:
            self.step()
        if not self.rig.setup.on_cpu:
            return self._device_peak()
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes a line to stderr whenever it starts
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            self.step()
        events = sorted((e.start_ns(), e.nbytes()) for e in record.profiler.kineto_results.events() if e.name() == "[memory]")
        return max(itertools.accumulate((nbytes for _, nbytes in events), initial=0))

    def _device_peak(self) -> int | None:
        device = self.rig.setup.device
        module = torch.get_device_module(device)
        if not hasattr(module, "max_memory_allocated"):
            return None
        module.reset_peak_memory_stats(device)
        before = module.memory_allocated(device)
        self.step()
        return module.max_memory_allocated(device) - before

    @property
    def label(self) -> str:
        """The contender's, and where its codes were to be read as they are and were not, that too."""
        read_by = getattr(self.cache.layers[0], "read_by", None)
        return f"{self.contender.label} (decoded by torch)" if self.contender.fused and read_by == "torch" else self.contender.label

    def rare(self, step: Times, update: Times | None) -> Rare | None:
        """The next rare work, beyond a usual `update` where there are such times, or a usual step: the median of three where they come fast and often.

        It falls into the update, whose times are steady where attention's, of a long context, differ by more than a flush.
        """
        work, seconds, usual = rare_work(self.cache), [], (update or step).median
        if work is None:
            return None
        repeats = 3 if work[1] <= OFTEN else 1
        while len(seconds) < repeats and sum(seconds) < UPDATE_SECONDS:
            done = self._next_rare()
            seconds.append(done.update if update else done.seconds)
        return Rare(max(0.0, statistics.median(seconds) - usual), work[1])

    def _next_rare(self) -> Step:
        """The next step that has rare work in it; the tokens up to it are fed at once."""
        until = rare_work(self.cache)[0]
        if until:
            self.rig.fill(self.cache, until)
        return self.step()


def rare_work(cache: transformers.Cache) -> tuple[int, int] | None:
    """(tokens that still come without it, tokens between two) of a cache that flushes or grows; None for the others."""
    layer = cache.layers[0]
    if isinstance(layer, cache_utils.QuantizedLayer):
        held = layer.keys.shape[T] if layer.keys.dim() == 4 else 0
        return max(0, layer.residual_length - 1 - held), layer.residual_length
    if isinstance(layer, QuantizedLayer):
        return layer.until_due, layer.block
    if isinstance(layer, GrowingLayer):
        rows = layer.key_rows
        capacity = rows.data.shape[T]
        return capacity - rows.stop, capacity_for(capacity + 1) - capacity
    return None
