"""The step that decodes one token as torch.compile makes it: whether this machine can, one graph for caches of static shapes, of any length, and one for all others."""

from __future__ import annotations  # transformers.PreTrainedModel takes a second to import

import functools
import logging
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ..batch import Batch
from ..weights import is_offloaded, shard_of
from . import split_graph
from .compile_thread import kept_apart
from .gemv import for_single_rows, twin
from .graph import NoGraph, graph, graphs_there_are

log = logging.getLogger(__name__)

FINE, COARSE = 1e-3, 0.05  # relative error of the logits beyond which a graph is wrong, in float32 and in 16 bits: another order of sums stays far below


def why_not_compiled() -> str | None:
    """Why torch.compile cannot build C++ on this machine, or None. It takes the compiler that CXX names, or the system's usual one."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if not shutil.which(compiler):
        return f"torch.compile builds C++, and this machine has no {compiler}; CXX can name another compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "torch.compile builds C++ against Python.h, which this machine lacks; Debian's package is python3-dev"
    return None


# ---------------------------------------------------------------------------------------------------------- the forward


def forward_static(model: transformers.PreTrainedModel, backend: str | Callable = "inductor") -> Callable:
    """The model's forward for a single token on a cache of static shapes, compiled at its first call; lengths of caches are symbols in the graph.

    model: a twin that nobody else uses, see single_row.py: where it attends by sdpa, it attends by `attend_grouped` from now on.
    """
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation == "sdpa":
        config._attn_implementation = _grouped_attention()
    return graph(model.forward, dynamic=True, backend=backend)


def attend_grouped(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **options: Any) -> tuple:
    """transformers' sdpa attention of one token, query [B, Hq, 1, D], that never copies keys and values [B, H, T, D].

    Eagerly transformers packs the queries that share a key [B, H, Hq / H, D]; compiled, it repeats keys and values for
    each of them instead, which costs more than compiling saves.
    """
    return split_graph.attend_packed(query, key, value, mask, options.get("scaling")), None


@functools.cache
def _grouped_attention() -> str:
    """The name under which transformers knows `attend_grouped`."""
    name = "kvcache_grouped"
    transformers.AttentionInterface.register(name, attend_grouped)
    transformers.AttentionMaskInterface.register(name, transformers.AttentionMaskInterface()["sdpa"])
    return name


# ------------------------------------------------------------------------------------------------------------- the step


@dataclass(frozen=True)
class Outcome:
    """What came of compiling: the seconds it took, and why it failed, if it did."""

    seconds: float = 0.0
    failure: str | None = None


class CompiledStep:
    """Single tokens of one model by torch.compile. One for each model in memory.

    `prepare` compiles on a spare cache, so that a failure touches nobody's tokens; until then, and where it failed, a
    step is eager. Outcomes are kept by the cache's class and the number of threads, which graphs depend on; neither
    parameters nor lengths are in a graph, and of the caches that change their shapes all share one.
    """

    def __init__(self, model: transformers.PreTrainedModel, backend: str | Callable = "inductor") -> None:
        self.model, self.backend = model, backend
        self._outcomes: dict[tuple, Outcome] = {}

    @functools.cached_property
    def _for_one(self) -> torch.nn.Module:
        return for_single_rows(self.model)

    @functools.cached_property
    def _static(self) -> Callable:
        return forward_static(twin(self._for_one), self.backend)

    @functools.cached_property
    def _around(self) -> Callable:
        return split_graph.forward_around(twin(self._for_one), self.backend)

    @functools.cached_property
    def _of_many(self) -> Callable:
        return split_graph.forward_of_many(twin(self.model), self.backend)

    def forward_for(self, cache: Any) -> Callable:
        """The compiled forward for caches like this one, untried; compiled at its first call."""
        if isinstance(cache, Batch):
            return self._of_many
        return self._static if cache.is_compileable else self._around

    def why_not(self, cache: Any) -> str | None:
        """Why no step is compiled for this cache here, or None."""
        if self.model.config.is_encoder_decoder:
            return "a step is compiled for models without an encoder alone"
        if not isinstance(cache, Batch) and getattr(cache, "parameters", None) is None:
            return "a step is compiled for caches that the catalog made: another one like it is needed to try it"
        if is_offloaded(self.model):
            return "its weights are offloaded, and a step is compiled for weights that stay in memory"
        if shard_of(self.model):
            return "its weights are shared by several processes (tensor parallel), of which each would change to a compiled step when its own is ready"
        return why_not_compiled() or split_graph.why_not_split(self.model.config)

    def awaits(self, cache: Any) -> bool:
        """Is a compiled step for caches like this one possible and still to be prepared?"""
        return _key(cache) not in self._outcomes and self.why_not(cache) is None

    def outcome(self, cache: Any) -> Outcome | None:
        """What came of compiling for caches like this one; None where nothing was tried."""
        return self._outcomes.get(_key(cache))

    def is_ready(self, cache: Any) -> bool:
        """Is there a compiled step for this cache that has passed its trial?"""
        outcome = self.outcome(cache)
        return outcome is not None and not outcome.failure

    def prepare(self, cache: Any, trial: Callable[[Callable], tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Compile for caches like this one. `trial(forward)` feeds tokens to a spare one: the last one's logits [V] by `forward`, and eager ones."""
        start, failure, key = time.perf_counter(), None, _key(cache)
        try:
            with kept_apart():
                found, expected = trial(self.forward_for(cache))
            error = float((found - expected).float().norm() / expected.float().norm())
            if not error < (FINE if expected.dtype == torch.float32 else COARSE):  # nor for a nan
                failure = f"its logits are off by {100 * error:.3g}%"
        except Exception as error:  # whatever a compiler raises is the answer
            failure = _words(error)
        self._outcomes[key] = Outcome(time.perf_counter() - start, failure)

    def __call__(self, cache: Any, /, **arguments: Any) -> Any:
        """The forward of one token on `cache`, by a graph that is there; never compiles. Where none fits any more the token is fed eagerly, and a step is to be prepared anew."""
        if self.is_ready(cache):
            try:
                with graphs_there_are():
                    return self.forward_for(cache)(**arguments)
            except NoGraph:
                del self._outcomes[_key(cache)]
        return self.model(**arguments)


def _key(cache: Any) -> tuple:
    return type(cache), torch.get_num_threads()


def _words(error: Exception) -> str:
    """One line for a compiler's error, which is logged whole."""
    log.warning("torch.compile failed; tokens are decoded eagerly", exc_info=error)
    error = getattr(error, "inner_exception", error)
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:160]}".rstrip(": ")
