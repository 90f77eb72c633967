"""Compute in a thread of its own, so that the token loop does not wait while a page is being painted."""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")
LONG, SLOWEST = 256, 0.4  # a page takes the longer to draw the more there is: after LONG items they are handed over more seldom, at most SLOWEST seconds apart


def batches(items: Iterator[Item], stop: threading.Event, seconds: float) -> Iterator[list[Item]]:
    """What `items` yields, run in a thread of its own, as lists collected over about `seconds` each, longer after many items.

    The first item comes at once. Whatever `items` raises is raised here. Leaving early sets `stop` and waits for the
    thread, so that nothing computes on behind a page that has gone.
    """
    done = object()
    box: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:
        try:
            for item in items:
                box.put(item)
            box.put(done)
        except BaseException as error:
            box.put((done, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield from _collect(box, done, seconds)
    except GeneratorExit:
        stop.set()
        raise
    finally:
        thread.join()


def _collect(box: queue.SimpleQueue, done: object, seconds: float) -> Iterator[list]:
    last, taken = 0.0, 0
    while True:
        batch = [box.get()]
        time.sleep(max(0.0, last + pause(seconds, taken) - time.perf_counter()))
        while not box.empty():
            batch.append(box.get())
        last, taken = time.perf_counter(), taken + len(batch)
        end = batch[-1]
        if end is done or (isinstance(end, tuple) and end and end[0] is done):
            if batch[:-1]:
                yield batch[:-1]
            if end is not done:
                raise end[1]
            return
        yield batch


def pause(seconds: float, taken: int) -> float:
    """Seconds between two lists once `taken` items were handed over."""
    return max(seconds, min(SLOWEST, seconds * taken / LONG))
