"""Loops that numba compiles: seconds the first time on a machine, then read from disk; and threads that share their work."""

import ctypes
import functools
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from ..extras import why_not_imported

log = logging.getLogger(__name__)

EACH = 1 << 15  # numbers that a thread must have to read: with fewer it costs more than it brings


class Loops:
    """One compiled function. `find` imports it, which needs numba, compiles it on a small example and raises if that comes out wrong.

    `words` say what it does and what is done without it, for the log.
    """

    def __init__(self, words: str, find: Callable[[], Callable]) -> None:
        self.words, self._find = words, find
        self.run: Callable | None = None
        self.reason: str | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def ready(self, wait: bool) -> bool:
        """Can it be used? Compiles in a thread beside; `wait` for it, or say no until it is done."""
        if self.run is None and self.reason is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._compile, name="kvcache-compile")
                    self._thread.start()
            if wait:
                self._thread.join()
        return self.run is not None

    def _compile(self) -> None:
        try:
            self.run = self._find()
        except Exception as error:  # whatever a broken installation raises is the answer
            self.reason = why_not_imported(error)
            log.warning("%s (%s)", self.words, self.reason)


def threads_for(numbers: int) -> int:
    """Threads among which work that reads so many numbers is worth sharing."""
    return max(1, min(torch.get_num_threads(), numbers // EACH))


def shares(batch: int, heads: int, numbers: int, most: int) -> tuple[int, int]:
    """Into how many spans of tokens, at `most`, the work on each head is cut for threads to share it evenly, and how many threads that is: 4 and 2 for three heads on two threads.

    numbers: that all heads of one row read. The batch has no say in the spans, or a row would be summed in another order beside others.
    """
    threads = threads_for(numbers)
    pieces = 2 * threads if threads > 1 else 1
    wanted = 1 if heads >= 2 * pieces else pieces // math.gcd(heads, pieces)
    return wanted if wanted <= most else 1, threads_for(batch * numbers)


def shared(run: Callable, arguments: tuple, count: int, threads: int) -> list:
    """What run(*arguments, first, last) returns for each share of `count` pieces of work on so many threads; for all of them in one on a single thread.

    Raises what `run` raises.
    """
    threads = min(threads, count)
    if threads < 2:
        return [run(*arguments, 0, count)]
    pieces = min(2 * threads, count)  # so that a thread which the machine holds up leaves work to the others
    bounds = [count * i // pieces for i in range(pieces + 1)]
    shares, futures = iter(range(pieces)), [Future() for _ in range(pieces)]

    def work(_: object = None) -> None:
        for i in shares:
            try:
                futures[i].set_result(run(*arguments, bounds[i], bounds[i + 1]))
            except BaseException as error:  # must not pass through native code
                futures[i].set_exception(error)

    _together(work, threads)
    return [future.result(timeout=0) for future in futures]


def _together(work: Callable, threads: int) -> None:
    """Call work() on so many threads at once, this one among them.

    torch's OpenMP threads stay awake for milliseconds after each of its operations, waiting for the next: other threads would have to share the cores
    with them. GOMP_parallel of the library that torch runs on calls a function on those very threads.
    """
    team = _team()
    if team is not None:
        return team(_CALLBACK(work), None, threads, 0)
    others = [_pool().submit(work) for _ in range(threads - 1)]
    work()
    wait(others)


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _team() -> Callable | None:
    """GOMP_parallel(function, argument, threads, flags); None where torch runs on no library that has it."""
    try:
        team = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (AttributeError, OSError):
        return None
    team.argtypes, team.restype = (_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return team


@functools.cache
def team_address() -> int:
    """Where GOMP_parallel is, for loops that call it themselves; 0 where there is none."""
    team = _team()
    return ctypes.cast(team, ctypes.c_void_p).value if team is not None else 0


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(64, thread_name_prefix="kvcache-loops")
