"""Replies of one model, all written at once: who waits, whose prompt is being read, who is writing.

Each tick feeds one token of everybody who is writing and a chunk of a prompt, or of several that are short, those that are being read taking turns: in one forward,
where the model and the caches can share it (see `kvcache.Batch`), else one after the other. Sources of the idea: Yu et al. 2022, Orca, OSDI; Agrawal et al. 2024, Sarathi-Serve, OSDI.
"""

from __future__ import annotations

import atexit
import functools
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..batch import Batch, decode, why_no_pieces
from .engine import Event, Feed, Reply, Waiting, compile_batch_beside, forward, prefill_chunks
from .engine import take_snapshot as snapshot_of
from .models import LoadedModel

logger = logging.getLogger(__name__)
IDLE_SECONDS = 5.0  # that the thread of a model without work stays: torch's own threads come and go with it
TICK_TOKENS = 256  # of prompts, read in one tick; a chunk that is longer is read alone
FEW = 3  # replies beside which torch.compile begins
RETRY_SECONDS = 0.05  # between two looks whether there is room for a reply that waits, where nobody else has work
NO_ROOM = "waiting for memory: others are writing, and what they and this reply would hold is more than is kept for all caches together"
_END = object()


class Row:
    """One reply on its way: its steps, what it asks for, and a queue of its events. `may_begin`: is there room for it now?"""

    def __init__(self, reply: Reply, may_begin: Callable[[], bool]) -> None:
        self.reply, self.may_begin = reply, may_begin
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.news: list[Any] = []  # events that the queue gets once the row is where they say
        self.asks: Feed | None = None
        self.again: deque[Sequence[int]] = deque()  # to be fed once more, to a cache that another row's error has left in parts
        self.is_told = False  # that it waits
        self.shares = True  # its forwards, where others write

    @property
    def stops(self) -> bool:
        return self.reply.stop is not None and self.reply.stop.is_set()

    def go_on(self, logits: torch.Tensor | None = None) -> bool:
        """Take the logits it has asked for, and go on to what it asks for next; False where it is over."""
        try:
            step = self.reply.next(logits)
            while step is not None and not isinstance(step, Feed):
                self.news.append(step)
                step = self.reply.next()
        except BaseException as error:
            return self.end(error)
        self.asks = step
        return step is not None or self.end()

    def end(self, error: BaseException | None = None) -> bool:
        """Nothing follows but an error, if there was one. Returns False."""
        self.asks = None
        self.news.append(_END if error is None else error)
        return False

    def deliver(self) -> None:
        """Hand over what has happened: whoever hears that a reply is over may go on with its cache."""
        for event in self.news:
            self.events.put(event)
        self.news = []

    def tell(self, text: str) -> None:
        """Say once that it waits."""
        if not self.is_told:
            self.events.put(Waiting(text, snapshot_of(self.reply.cache)))
        self.is_told = True

    def begin_anew(self, loaded: LoadedModel, tokens: int) -> None:
        """Empty the cache, and have it fed the tokens that it had seen, so many, cut as they were the first time: what was picked token by token."""
        reply = self.reply
        reply.cache.reset()
        seen = reply.ids[:tokens]
        prompt, picked = seen[: reply.prompt_length], seen[reply.prompt_length :]
        self.again = deque([*prefill_chunks(loaded, prompt, 0, reply.prefill_chunk, reply.cuts), *([token] for token in picked)])


class Scheduler:
    """The replies of one model. One thread runs their forwards; the callers' threads only take events."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = weakref.ref(loaded)  # which has this scheduler: a model that nobody uses goes at once
        self.waiting: deque[Row] = deque()
        self.reading: deque[Row] = deque()
        self.writing: list[Row] = []
        self.batch: Batch | None = None  # of the caches of `sharing`, row by row
        self.sharing: list[Row] = []
        self.wants_step = False  # is a compiled step of batches possible and still to be prepared? Asked when a row joins: it looks for a compiler
        self.most: int | None = None  # rows that share a forward; None for any number
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def loaded(self) -> LoadedModel:
        """The model, which every reply holds."""
        loaded = self._loaded()
        assert loaded is not None
        return loaded

    @property
    def is_busy(self) -> bool:
        """Is a reply being read or written?"""
        return bool(self.reading or self.writing)

    def _is_quiet(self) -> bool:
        """May a compiler begin? It shares Python's lock with every reply: twenty were written at less than half their speed meanwhile, for more than a minute."""
        return len(self.reading) + len(self.writing) <= FEW

    def submit(self, row: Row) -> None:
        """Have a reply begin as soon as there is room for it."""
        with self._changed:
            self.waiting.append(row)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvcache-scheduler", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while self._has_work():
            try:
                self.tick()
            except BaseException as error:  # nobody is to wait for a thread that is gone
                self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """End every reply with an error that is nobody's."""
        with self._changed:
            rows = [*self.waiting, *self.reading, *self.writing]
            self.waiting.clear()
        self.reading, self.writing, self.batch, self.sharing = deque(), [], None, []
        for row in rows:
            row.end(error)
            row.deliver()

    def _has_work(self) -> bool:
        """Wait for something to do; False once nothing has come for a while, and then the thread is over."""
        with self._changed:
            if not self.is_busy and self.waiting and all(row.is_told for row in self.waiting):
                self._changed.wait(RETRY_SECONDS)
            elif not self.is_busy and not self.waiting:
                self.most = None
                self._changed.wait(IDLE_SECONDS)
            if self.is_busy or self.waiting:
                return True
            self._thread, self.batch, self.sharing = None, None, []
            return False

    def stop(self) -> None:
        """Stop every reply, and wait a while for the tick at work."""
        with self._changed:
            rows, thread = [*self.waiting, *self.reading, *self.writing], self._thread
        for row in rows:
            if row.reply.stop is not None:
                row.reply.stop.set()
        if thread is not None and rows:
            thread.join(AT_EXIT_SECONDS)

    def tick(self) -> None:
        """A chunk of a prompt, or of several short ones, and one token of everybody who is writing."""
        self._take_in()
        chunks = self._chunks_beside() if self.reading and len(self.reading) + len(self.writing) > 1 else []
        if not chunks:
            self._read()
        self._write(chunks)

    # ------------------------------------------------------------------------------------------------------------ a tick

    def _take_in(self) -> None:
        """Let those begin, in their order, for whom there is room, and those who were stopped while they waited."""
        with self._changed:
            waiting, someone_waits = list(self.waiting), False
        for row in waiting:
            if row.stops or (not someone_waits and row.may_begin()):
                with self._changed:
                    self.waiting.remove(row)
                row.reply.may_compile = self._is_quiet
                self._place(row, row.go_on())
            else:
                row.tell(NO_ROOM)
                someone_waits = True

    def _place(self, row: Row, goes_on: bool) -> None:
        """Put a row where what it asks for is done; one that is over leaves."""
        writes = goes_on and row.asks is not None and row.asks.picked and not row.again
        if row in self.reading:
            self.reading.remove(row)
        if writes and row not in self.writing:
            self.writing.append(row)
        elif not writes:
            if row in self.writing:
                self.writing.remove(row)
            self._part(row)
            if goes_on:
                self.reading.append(row)
        row.deliver()

    def _read(self) -> None:
        """Feed one chunk of the prompt whose turn it is."""
        if not self.reading:
            return
        row = self.reading.popleft()
        try:
            if row.again:
                forward(self.loaded, row.reply.cache, row.again.popleft())
                self._place(row, True)
                return
            logits = forward(self.loaded, row.reply.cache, row.asks.ids)
        except BaseException as error:
            self._place(row, row.end(error))
        else:
            self._place(row, row.go_on(logits))

    def _chunks_beside(self) -> list[Row]:
        """Those whose turn it is to be read beside what is written, in the same forward; none where the model or a row's cache reads alone."""
        if self.most is not None or not self._shares() or self._why_no_pieces():
            return []
        chosen: list[Row] = []
        for row in self.reading:
            if row.again or not row.shares or sum(len(each.asks.ids) for each in (*chosen, row)) > TICK_TOKENS:
                break
            chosen.append(row)
        return chosen if len(chosen) + sum(row.shares for row in self.writing) > 1 else []

    def _write(self, chunks: Sequence[Row] = ()) -> None:
        """Feed one token of everybody who is writing, and these chunks beside."""
        shared = [*(row for row in self.writing if row.shares), *chunks]
        shared = shared[: self.most] if len(shared) > 1 and self.most != 1 and self._shares() else []
        alone = [row for row in self.writing if row not in shared]
        if len(shared) > 1:
            self._write_together(shared)
        for row in alone:
            self._write_alone(row)

    def _write_alone(self, row: Row) -> bool:
        """Feed one row's token in a forward of its own; False where that failed, and the row has left with the error."""
        if row.again:  # its cache is being filled anew
            return True
        try:
            logits = forward(self.loaded, row.reply.cache, row.asks.ids, row.asks.compiled)
        except BaseException as error:
            self._place(row, row.end(error))
            return False
        self._place(row, row.go_on(logits))
        return True

    def _write_together(self, rows: list[Row]) -> None:
        """Feed what each of these rows asks for in one forward. Where that fails each is fed alone, and who fails alone leaves."""
        rows = self._gathered(rows)
        if len(rows) < 2:
            for row in rows:
                self._write_alone(row)
            return
        seen = self.batch.lengths()
        try:
            with self.loaded.forward_lock:
                logits = decode(self.loaded.model, self.batch, [row.asks.ids for row in rows], self._step(rows))
        except Exception as error:  # whosever it is comes up again when each is fed alone
            logger.warning("a forward of %d replies together failed, each goes on alone: %s", len(rows), error)
            self._write_one_by_one(rows, seen)
        else:
            for row, its in zip(rows, logits):
                self._place(row, row.go_on(its))

    def _step(self, rows: list[Row]) -> Callable:
        """The forward for these rows: the compiled step where there is one, and where all want it."""
        if not all(row.asks.compiled for row in rows):
            return self.loaded.model
        self.wants_step = self.wants_step and not (self._is_quiet() and compile_batch_beside(self.loaded))
        return functools.partial(self.loaded.step, self.batch)

    def _write_one_by_one(self, rows: list[Row], seen: list[int]) -> None:
        """After a forward together has failed, before which the caches had seen so many tokens. A cache that it left in parts, and that cannot go back, is filled again from its ids, which are the truth."""
        for row, tokens in zip(rows, seen):
            self._part(row)
            if getattr(row.reply.cache, "torn", ""):
                row.begin_anew(self.loaded, tokens)
                self._place(row, True)
        together = [row for row in rows if not row.again]
        if all([self._write_alone(row) for row in together]) and len(together) == len(rows):
            self.most = (len(rows) + 1) // 2  # no row's fault: too many, as where memory runs out

    # ------------------------------------------------------------------------------------------------------------ the batch

    def _shares(self) -> bool:
        """Is there a batch for this model? Found out when the first two write at once, by a few tokens."""
        if self.batch is None:
            try:
                with self.loaded.forward_lock:
                    self.batch = Batch(model=self.loaded.model)
            except ValueError:
                self.most = 1
        return self.batch is not None

    def _why_no_pieces(self) -> str | None:
        with self.loaded.forward_lock:
            return why_no_pieces(self.loaded.model)

    def _gathered(self, rows: list[Row]) -> list[Row]:
        """Those of `rows` whose caches the batch has, in its order, once the others have left it and the new ones have joined."""
        for row in [row for row in self.sharing if row not in rows]:
            self._part(row)
        for row in rows:
            if row not in self.sharing:
                try:
                    self.batch.join(row.reply.cache)
                except ValueError:
                    row.shares = False
                else:
                    self.sharing.append(row)
                    self.wants_step = self.loaded.step.awaits(self.batch)
        for row in rows:
            if not row.shares:
                self._write_alone(row)
        return list(self.sharing)

    def _part(self, row: Row) -> None:
        """Take a row out of the batch."""
        if row in self.sharing:
            self.batch.leave(self.sharing.index(row))
            self.sharing.remove(row)


# ------------------------------------------------------------------------------------------------------------- for callers

_making = threading.Lock()
_made: weakref.WeakSet[Scheduler] = weakref.WeakSet()
AT_EXIT_SECONDS = 2.0  # that a process waits for a tick to end


def scheduler_of(loaded: LoadedModel) -> Scheduler:
    """The one of that model, made at first use."""
    with _making:
        if loaded.scheduler is None:
            loaded.scheduler = Scheduler(loaded)
            _made.add(loaded.scheduler)
        return loaded.scheduler


def someone_writes() -> bool:
    """Is a reply of any model being read or written?"""
    return any(scheduler.is_busy for scheduler in list(_made))


@atexit.register
def _stop_all() -> None:
    """Stop every reply: a thread that is in torch's C++ when the interpreter goes would abort the process."""
    for scheduler in list(_made):
        scheduler.stop()


class Written(Iterator[Event]):
    """The events of a reply that the scheduler writes, from the first `next` on. Others' ticks go on while the caller looks away.

    `close` stops it and waits until its cache is the caller's again; what was written by then still follows.
    """

    def __init__(self, loaded: LoadedModel, arguments: tuple, options: dict[str, Any], may_begin: Callable[[], bool]) -> None:
        self._loaded, self._arguments, self._options, self._may_begin = loaded, arguments, options, may_begin
        self._row: Row | None = None
        self._rest: deque = deque()
        self._is_over = False

    def __next__(self) -> Event:
        if self._rest:
            return self._got(self._rest.popleft())
        if self._is_over:
            raise StopIteration
        return self._got((self._row or self._begin()).events.get())

    def _begin(self) -> Row:
        reply = Reply(self._loaded, *self._arguments, **self._options)
        if reply.stop is None:
            reply.stop = threading.Event()
        self._row = Row(reply, self._may_begin)
        scheduler_of(self._loaded).submit(self._row)
        return self._row

    def _got(self, item: Any) -> Event:
        if item is not _END and not isinstance(item, BaseException):
            return item
        self._is_over = True
        raise StopIteration if item is _END else item

    def close(self) -> None:
        """Stop it, and wait until it has left."""
        if self._row is None or self._is_over:
            self._is_over = True
            return
        self._row.reply.stop.set()
        while not self._is_over:
            item = self._row.events.get()
            self._rest.append(item)
            self._is_over = item is _END or isinstance(item, BaseException)


def generate_tokens(loaded: LoadedModel, *arguments: Any, may_begin: Callable[[], bool] = lambda: True, **options: Any) -> Written:
    """As `engine.generate_tokens`, beside whatever else the model is asked to write: seconds and rates are those that the caller sees.

    `may_begin` is asked, in the scheduler's thread, whether there is room for the reply; until then it waits, and `Waiting` says so.
    """
    return Written(loaded, arguments, options, may_begin)
