"""The prefix store of each loaded model: what one conversation has read is not read again for another that begins with the same text.

Set up by the environment: KVCACHE_PREFIX_BYTES (0 keeps nothing) and KVCACHE_PREFIX_FOLDER.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import catalog
from ..extras import free_memory
from ..prefix_store import PrefixStore
from ..saving import fingerprint
from .engine import PREFILL_CHUNK
from .models import LoadedModel

LEAST = 128  # tokens: what is shorter is read as fast as it is found, and whoever guesses what others wrote has to guess that much at once
SHARE = 16  # of the free memory, one part for each model, unless the environment says how many bytes
logger = logging.getLogger(__name__)
_making = threading.Lock()
_made: weakref.WeakSet[PrefixStore] = weakref.WeakSet()


def store_of(loaded: LoadedModel) -> PrefixStore | None:
    """The one of that model, made at first use; None where prefixes are not kept, and for models that read what follows one token at a time."""
    with _making:
        if loaded.prefixes is None and loaded.continues_in_chunks and (most := most_nbytes()):
            folder = os.environ.get("KVCACHE_PREFIX_FOLDER")
            own = Path(folder) / fingerprint(loaded.model)[:16] if folder else None
            loaded.prefixes = PrefixStore(loaded.model, most, own, granularity=PREFILL_CHUNK, exact=True)
            _made.add(loaded.prefixes)
        return loaded.prefixes


def most_nbytes() -> int:
    """Bytes that the prefixes of one model may take in memory. Raises ValueError for a setting that is no number of bytes."""
    text = os.environ.get("KVCACHE_PREFIX_BYTES") or str((free_memory() or 0) // SHARE)
    if not text.isdecimal():
        raise ValueError(f"KVCACHE_PREFIX_BYTES must be a whole number of bytes, 0 to keep no prefixes, got {text!r}")
    return int(text)


def nbytes() -> int:
    """Bytes that the prefixes of all models take in memory now."""
    return sum(store.nbytes for store in list(_made))


def flush() -> None:
    """Have all that is kept in its folder, where there is one: for the end of the program."""
    for store in list(_made):
        try:
            store.flush()
        except OSError as error:
            logger.warning("%s", error)


class Checkpoints:
    """Forks of one reply's cache on its way, each of which the store is given once the reply is over.

    What can be cut back without a difference needs none but the last. Of other caches also the last two pieces of the
    prompt that were read whole: a text that goes on in another way from there holds just that after the same forwards.
    """

    def __init__(self, store: PrefixStore | None, cache: Any, source_ids: Sequence[int]) -> None:
        self.store, self.cache, self.source_ids = store, cache, source_ids
        self.forks: deque[tuple[list[int], Any]] = deque(maxlen=3)
        self.in_prompt = store is not None and (catalog.entry(cache.name).lossy or not getattr(cache, "is_croppable", False))

    def note(self, ids: Sequence[int]) -> None:
        """The cache has seen `ids`, and nothing runs on it. Nothing is noted where there is no memory for it."""
        if self.store is not None and len(ids) >= LEAST:
            with suppress(RuntimeError, MemoryError):
                self.forks.append((list(ids), self.cache.fork()))

    def put(self) -> None:
        """Give the store all that was noted; what it cannot keep is left out, and the log says so."""
        while self.forks and self.store is not None:
            ids, fork = self.forks.popleft()
            try:
                self.store.put(ids, fork, source_ids=self.source_ids)
            except (OSError, ValueError, RuntimeError, MemoryError) as error:
                logger.warning("a prefix is not kept: %s", error)
