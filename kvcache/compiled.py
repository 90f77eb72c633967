"""Loops that numba compiles: seconds the first time on a machine, then read from disk; and threads that share their work."""

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

log = logging.getLogger(__name__)


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
            self.reason = f"{type(error).__name__}: {error}"
            log.warning("%s (%s)", self.words, self.reason)


def shared(run: Callable, arguments: tuple, count: int, threaded: bool) -> list:
    """What run(*arguments, first, last) returns for each thread's share of `count` pieces of work; for all of them in one, unless `threaded`."""
    threads = min(torch.get_num_threads(), count) if threaded else 1
    bounds = [count * i // threads for i in range(threads + 1)]
    others = [_pool().submit(run, *arguments, first, last) for first, last in zip(bounds[1:], bounds[2:])]
    return [run(*arguments, 0, bounds[1]), *(other.result() for other in others)]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(64, thread_name_prefix="kvcache-loops")
