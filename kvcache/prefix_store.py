"""Filled caches kept for those who begin with the same tokens: what one prompt has computed, the next does not compute again."""

import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
import transformers

from . import catalog
from .cache import Cache, counted, row_count
from .memory import layers_of, storages_of
from .refusals import refuse_halved
from .saving import HEADER_KEY, CacheFileError, fingerprint
from .trie import Trie
from .validation import whole_number
from .weights import local_part

FOLDER_TIMES = 10  # bytes of files kept for each byte in memory, unless it is said
ABANDONED_SECONDS = 86_400  # after which a file that nobody finished writing is taken away
FOREIGN = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")  # ids that stand for what is no text


@dataclass(eq=False)
class Kept:
    """A cache in the store, in memory or as a file, with the ids that it has seen and the smallest length that it can be cut to."""

    kind: str
    ids: np.ndarray
    source_ids: list[int]
    floor: int
    cache: Cache | None = None
    path: Path | None = None
    used: float = 0.0
    storages: dict[int, int] = field(default_factory=dict)  # address -> bytes

    def reach(self, common: int, granularity: int) -> int:
        """How long a prefix it gives to a text that shares its first `common` ids; 0 for none."""
        cut = common if common == len(self.ids) else common // granularity * granularity
        return cut if cut >= self.floor else 0

    def hold(self, cache: Cache, floor: int) -> None:
        """Have this cache in memory. Its own ids, and those of the tree, count as bytes, too."""
        self.cache, self.floor = cache, floor
        self.storages = {**storages_of(cache), -id(self): 2 * self.ids.nbytes}


class PrefixStore:
    """Caches of one model that were filled before, found by the token ids that a text begins with. Safe to use from several threads.

        store = kvcache.PrefixStore(model, max_nbytes=2**30)
        cache, seen = store.match(ids, "quantized", nbits=4)
        logits = kvcache.feed(model, ids[:, seen:], cache)
        store.put(ids, cache)

    Only caches of the wanted kind and parameters are given, made by `create` for this very model, of one row of text. A
    cache that can be cropped serves every text that shares a beginning with it, as `crop` would leave it (a quantised one:
    rounded as it was); one that cannot (recurrent states, sinks, windows and evicting caches that have let go of tokens)
    serves those that go on from its end. `granularity`: caches are cut to multiples of so many tokens alone. `exact`: those
    of kinds that lose something are not cut at all, since a cut one has rounded, or weighed, what a new one would not yet.

    The least recently used go first when more than `max_nbytes` are kept; storage that forks share is counted once. With a
    `folder` they go there, as cache files of at most `max_folder_nbytes` (ten times `max_nbytes`), and are found again by
    the next store that is given the folder. They hold token ids, which is what people wrote, for whoever may read the folder.
    """

    def __init__(self, model: torch.nn.Module, max_nbytes: int, folder: str | os.PathLike | None = None, *, max_folder_nbytes: int | None = None, granularity: int = 1, exact: bool = False) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"a prefix store is for one model, got {type(model).__name__}")
        self.model, self.max_nbytes, self.granularity = model, whole_number("max_nbytes", max_nbytes, 0), whole_number("granularity", granularity, 1)
        self.exact = exact
        self.max_folder_nbytes = FOLDER_TIMES * self.max_nbytes if max_folder_nbytes is None else whole_number("max_folder_nbytes", max_folder_nbytes, 0)
        self.folder = None if folder is None else Path(folder)
        self._guard = threading.Lock()  # of what follows, held for moments
        self._changing = threading.RLock()  # held while something is put, moved to a file or read from one
        self._tries: dict[str, Trie[Kept]] = {}
        self._kept: list[Kept] = []
        self._stamp, self._fingerprint = _stamp(model), fingerprint(model)
        if self.folder is not None:
            self._open_folder(self.folder)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that all its caches take, shared storage counted once: with a conversation that goes on, too."""
        with self._guard:
            return _nbytes(self._in_memory())

    # -- finding

    def longest(self, ids: Sequence[int] | torch.Tensor, name: str, *, source_ids: Sequence[int] = (), **parameters: Any) -> int:
        """How many of the first ids `match` would find in a cache."""
        wanted, kind = _row(ids), self._kind(name, parameters, source_ids)
        with self._guard:
            return self._best(kind, wanted)[0]

    def match(self, ids: Sequence[int] | torch.Tensor, name: str, *, source_ids: Sequence[int] = (), **parameters: Any) -> tuple[Cache, int]:
        """A cache that has seen the longest beginning of `ids` [n] or [1, n] there is, and how many ids that are; a new cache and 0 where there is none.

        It is the caller's own, made as `create(name, model, **parameters)` makes it. At least one id is left to be fed.
        `source_ids`: what the encoder of an encoder-decoder has read. Raises ValueError as `create` does, and for other than one row.
        """
        wanted, kind = _row(ids), self._kind(name, parameters, source_ids)
        length, kept, fork = self._fork(kind, wanted)
        while kept is not None and fork is None:  # a file: once it is read, it may turn out to be damaged, or to be of less use
            fork = self._read(kept)
            if fork is None or length < kept.floor:
                length, kept, fork = self._fork(kind, wanted)
        if kept is None or fork is None:
            return catalog.create(name, self.model, **parameters), 0
        if length < len(kept.ids):
            fork.crop(length)
        return fork, length

    def _fork(self, kind: str, wanted: np.ndarray) -> tuple[int, Kept | None, Cache | None]:
        """(length, what gives it, a fork of its cache where that is in memory)."""
        with self._guard:
            length, kept = self._best(kind, wanted)
            if kept is None:
                return 0, None, None
            kept.used = time.time()
            return length, kept, None if kept.cache is None else kept.cache.fork()

    def _best(self, kind: str, wanted: np.ndarray) -> tuple[int, Kept | None]:
        """(length, what gives it): the longest, of these one in memory."""
        best: tuple[int, bool, Kept | None] = (0, False, None)
        for common, kept in self._tries[kind].shared(wanted[:-1]) if kind in self._tries else ():
            if common < best[0]:
                break
            reach = kept.reach(common, self.granularity)
            if (reach, kept.cache is not None) > best[:2] and reach:
                best = reach, kept.cache is not None, kept
        return best[0], best[2]

    def _kind(self, name: str, parameters: dict[str, Any], source_ids: Sequence[int]) -> str:
        self._check_model()
        return _kind_of(name, catalog.entry(name).check(self.model.config, **parameters), [int(token) for token in source_ids])

    def _check_model(self) -> None:
        """Forget all if the model's weights are others than they were, or elsewhere."""
        if _stamp(self.model) == self._stamp:
            return
        with self._changing:
            self._stamp, self._fingerprint = _stamp(self.model), fingerprint(self.model)
            with self._guard:
                self._tries.clear()
                self._kept.clear()
            if self.folder is not None:
                self._open_folder(self.folder)

    # -- putting

    def put(self, ids: Sequence[int] | torch.Tensor, cache: Cache, *, source_ids: Sequence[int] = ()) -> None:
        """Keep a fork of `cache`, which has seen `ids` [n] or [1, n]. Not while a forward runs on it.

        Nothing is kept where a cache that is here already gives as much, or where it alone takes more than `max_nbytes` and
        there is no folder. Raises ValueError for a cache that is not of this model and of these ids, and OSError where the
        folder cannot be written: then the store is as it was.
        """
        row, source = _row(ids), [int(token) for token in source_ids]
        self._check_model()
        self._check_cache(row, cache, source)
        new = Kept(_kind_of(cache.name, cache.parameters or {}, source), row, source, 0, used=time.time())
        with self._changing:
            if self._covered(new):
                return
            new.hold(cache.fork(), self._floor(cache.name, cache.crop_floor, len(row)))
            with self._guard:
                covered = self._covered_by(new)
                stay = [kept for kept in self._kept if kept not in covered]
            self._squeeze([*stay, new], covered, new)

    def _floor(self, name: str, crop_floor: int, length: int) -> int:
        """The smallest length that a cache of this many tokens is cut to."""
        return length if self.exact and catalog.entry(name).lossy else min(max(int(crop_floor), 1), length)

    def _check_cache(self, ids: np.ndarray, cache: Cache, source_ids: list[int]) -> None:
        made_for = getattr(cache, "made_for", None)
        if not isinstance(cache, transformers.Cache) or made_for is None or getattr(cache, "parameters", None) is None:
            raise ValueError(f"a prefix store keeps caches that kvcache.create made for its model, got {type(cache).__name__}: make it by match(), or by create(name, model)")
        if made_for() is not self.model:
            raise ValueError(f"this {type(cache).__name__} was made for another model than the store's {type(self.model).__name__}: each model has a store of its own")
        cache.refuse_torn()
        refuse_halved(getattr(cache, "self_attention_cache", cache).layers)
        if counted(cache) != len(ids):
            raise ValueError(f"ids are those that the cache has seen: got {len(ids)}, and it has seen {counted(cache)}")
        if max(rows := [row_count(layer) or 0 for layer in layers_of(cache)], default=0) > 1:
            raise ValueError(f"a prefix store keeps caches of one row, got {max(rows)}: batch_split() makes such")
        heard = counted(cache.cross_attention_cache) if hasattr(cache, "cross_attention_cache") else 0
        if heard != len(source_ids):
            raise ValueError(f"source_ids are those that the encoder has read: got {len(source_ids)}, and the cache holds {heard}")
        foreign = {getattr(self.model.config, name, None) for name in FOREIGN} & {*map(int, np.unique(ids))}
        if foreign or getattr(cache, "shift", None) is not None:
            raise ValueError("this cache has seen pictures or sound, which ids do not tell apart: a prefix store keeps text alone")

    def _covered(self, new: Kept) -> bool:
        """Does a cache that is here give as much? It is marked as used."""
        with self._guard:
            for common, kept in self._tries[new.kind].shared(new.ids) if new.kind in self._tries else ():
                if common == len(new.ids) == kept.reach(common, self.granularity):
                    kept.used = new.used
                    return True
        return False

    def _covered_by(self, new: Kept) -> list[Kept]:
        """Those whose every prefix the new one gives, too."""
        found = self._tries[new.kind].shared(new.ids) if new.kind in self._tries else ()
        return [kept for common, kept in found if common == len(kept.ids) == new.reach(common, self.granularity) and kept.floor >= new.floor]

    def _squeeze(self, stay: list[Kept], gone: list[Kept], new: Kept | None = None) -> None:
        """Keep those that stay, the least recently used as files or not at all where they are too much; only then let the others go."""
        too_large = new is not None and _nbytes([new]) > self.max_nbytes
        squeezed = [new] if too_large else _too_much([kept for kept in stay if kept.cache is not None], self.max_nbytes)
        written = self._write([kept for kept in squeezed if kept.path is None], or_none=new is not None)
        if too_large and new not in written:
            return
        with self._guard:
            for kept, path in written.items():
                kept.path = path
            self._forget(gone)
            if new is not None:
                self._add(new)
            for kept in squeezed:
                kept.cache, kept.storages = None, {}
            self._forget([kept for kept in squeezed if kept.path is None])
        self._limit_folder()

    def _in_memory(self) -> list[Kept]:
        return [kept for kept in self._kept if kept.cache is not None]

    def _add(self, kept: Kept) -> None:
        self._kept.append(kept)
        self._tries.setdefault(kept.kind, Trie()).insert(kept.ids, kept)

    def _forget(self, those: Iterable[Kept]) -> None:
        for kept in those:
            if kept in self._kept:
                self._kept.remove(kept)
                self._tries[kept.kind].remove(kept.ids, kept)
            if kept.path is not None:
                _delete(kept.path)

    def clear(self) -> None:
        """Forget every cache, and delete its file."""
        with self._changing, self._guard:
            self._forget(list(self._kept))

    def flush(self) -> None:
        """Have everything that is in memory in the folder, too: for the end of a program. Raises OSError where it cannot be written, with the store as it was."""
        with self._changing:
            written = self._write([kept for kept in self._in_memory() if kept.path is None])
            with self._guard:
                for kept, path in written.items():
                    kept.path = path
            self._limit_folder()

    # -- files

    def _write(self, those: Sequence[Kept], or_none: bool = True) -> dict[Kept, Path]:
        """Files of these, of as many as can be saved. `or_none`: raises OSError if one cannot be written, and then there is none of them; else it warns."""
        paths: dict[Kept, Path] = {}
        for kept in those if self.folder is not None else ():
            path = self.folder / f"{hashlib.sha256(kept.kind.encode() + kept.ids.tobytes()).hexdigest()[:40]}.safetensors"
            try:
                kept.cache.save(path, self.model, kept.ids.tolist(), kept.source_ids)
                os.utime(path, (kept.used, kept.used))
                paths[kept] = path
            except ValueError:
                continue  # layers of transformers' own, which have no file
            except (OSError, safetensors.SafetensorError) as error:
                sentence = f"a prefix of {len(kept.ids):,} tokens cannot be written into {self.folder} ({error})"
                if not or_none:
                    warnings.warn(f"{sentence}: it is let go of", stacklevel=4)
                    continue
                for each in paths.values():
                    _delete(each)
                raise OSError(f"{sentence}: the store is as it was; make room there, or give another folder") from error
        return paths

    def _read(self, kept: Kept) -> Cache | None:
        """A fork of what is a file, which is in memory from now on. A file that is gone or damaged is left out from then on, with a warning."""
        with self._changing:
            if kept not in self._kept:
                return None
            if kept.cache is not None:
                return kept.cache.fork()
            try:
                cache = catalog.load_cache(kept.path, self.model)
            except (CacheFileError, OSError, ValueError) as error:
                warnings.warn(f"left out of the prefix store: {error}", stacklevel=4)
                kept.path = None
                with self._guard:
                    self._forget([kept])
                return None
            del cache.token_ids, cache.source_ids
            fork = cache.fork()
            with self._guard:
                kept.hold(cache, self._floor(cache.name, cache.crop_floor, len(kept.ids)))
            self._squeeze(list(self._kept), [])
            return fork

    def _limit_folder(self) -> None:
        """Delete the least recently used files beyond `max_folder_nbytes`."""
        with self._guard:
            files = sorted((kept for kept in self._kept if kept.path is not None), key=lambda kept: -kept.used)
            total = 0
            for kept in files:
                total += _size(kept.path)
                if total > self.max_folder_nbytes:
                    _delete(kept.path)
                    kept.path = None
            self._forget([kept for kept in files if kept.path is None and kept.cache is None])

    def _open_folder(self, folder: Path) -> None:
        """Find the files that are there: those of other models are left alone, and damaged ones, with a warning."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob("*.partial-*"):
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                _delete(left)
        for path in sorted(folder.glob("*.safetensors")):
            try:
                self._index(path, _header(path))
            except (CacheFileError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, safetensors.SafetensorError) as error:
                warnings.warn(f"{path.name} is left out of the prefix store: {error}", stacklevel=4)
        self._limit_folder()

    def _index(self, path: Path, header: dict) -> None:
        if header["model"]["fingerprint"] != self._fingerprint or not header["token_ids"] or "crop_floor" not in header:
            return  # another model's, or not a store's
        ids, source = _row(header["token_ids"]), [int(token) for token in header["source_ids"]]
        kind = _kind_of(header["cache"], header["parameters"], source)
        self._add(Kept(kind, ids, source, self._floor(header["cache"], header["crop_floor"], len(ids)), path=path, used=path.stat().st_mtime))


def _row(ids: Sequence[int] | torch.Tensor) -> np.ndarray:
    """Ids as int32 [n]. Raises ValueError for anything but one row."""
    ids = np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"ids are one row of token ids, at least one, as a list or [n] or [1, n]; got {ids.dtype} {tuple(ids.shape)}")
    return ids.astype(np.int32)


def _kind_of(name: str, parameters: dict[str, Any], source_ids: list[int]) -> str:
    """What caches must have in common to stand in for each other, as a text."""
    return json.dumps([name, parameters, source_ids], sort_keys=True, default=str)


def _stamp(model: torch.nn.Module) -> int:
    """Changes when a weight is written, replaced or moved; weights that come and go between forwards are not looked at."""
    weights = [weight for weight in model.parameters() if not weight.is_meta]
    return hash(tuple((local_part(weight).data_ptr(), 0 if weight.is_inference() else weight._version, weight.dtype) for weight in weights))


def _nbytes(those: Iterable[Kept]) -> int:
    """Bytes of these in memory, shared storage counted once."""
    return sum({address: nbytes for kept in those for address, nbytes in kept.storages.items()}.values())


def _too_much(those: list[Kept], max_nbytes: int) -> list[Kept]:
    """Which to let go of so that the others take at most so many bytes: the least recently used, but none whose storage stays anyway, with others."""
    stay, gone = sorted(those, key=lambda kept: -kept.used), []
    while stay and _nbytes(stay) > max_nbytes:
        gone.append(stay.pop())
    for kept in reversed(gone):
        others = {address for each in stay for address in each.storages}
        if {address for address in kept.storages if address >= 0} <= others and _nbytes([*stay, kept]) <= max_nbytes:
            stay.append(kept)
    return [kept for kept in gone if kept not in stay]


def _header(path: Path) -> dict:
    """The header of a cache file, unchecked: its digest is looked at when the file is read. Raises CacheFileError without one."""
    with safetensors.safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(HEADER_KEY)
    if text is None:
        raise CacheFileError("it holds no cache")
    return json.loads(text)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # of a folder that has become read-only: it is found again, which does no harm
