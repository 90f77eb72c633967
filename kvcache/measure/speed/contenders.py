"""What is timed: upstream's caches, attention alone, and ours. One line of CONTENDERS is one contender."""

import dataclasses
import functools
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicLayer

from ...catalog import create, entry
from ...chat import decode_step
from ...extras import why_not_imported

REFERENCE = "upstream-dynamic"  # what every ratio is taken against
WINDOW = 1024  # of the caches that have one: smaller than most contexts timed
MANY_TOKENS = 4096  # beyond it one flush of a `slow` contender takes long


@dataclass(frozen=True)
class Contender:
    """One cache that decodes. `side`: "upstream", "alone" (attention and nothing else) or "ours".

    `make(model, tokens)` gives a fresh cache with room for `tokens`, or raises. `slow`: rounds its whole history again at
    each flush, by a solver. `why_not()`: a reason to leave it out unless asked for by hand, or None. `compiled`: the model
    decodes as torch.compile made it. `fused`: attention is to read its codes as they are. `hosted`: it waits in the host's memory.
    """

    name: str
    label: str
    side: str
    make: Callable[[transformers.PreTrainedModel, int], transformers.Cache]
    slow: bool = False
    why_not: Callable[[], str | None] = lambda: None
    compiled: bool = False
    fused: bool = False
    hosted: bool = False


class HeldLayer(DynamicLayer):
    """The keys and values of the first update, for ever: what attention costs when storing costs nothing."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.is_initialized:
            return self.keys, self.values
        return super().update(key_states, value_states)


def _alone(model: transformers.PreTrainedModel, tokens: int) -> transformers.Cache:
    return transformers.Cache(layers=[HeldLayer() for _ in range(model.config.num_hidden_layers)])


def _upstream(name: str, label: str, backend: str, slow: bool = False, why_not: Callable[[], str | None] = lambda: None, **settings: Any) -> Contender:
    return Contender(name, label, "upstream", lambda model, tokens: transformers.QuantizedCache(backend, model.config, **settings), slow, why_not)


def _ours(name: str, cache: str, label: str | None = None, **parameters: Any) -> Contender:
    """A cache of the catalog, under the label that the catalog gives it unless there is a better one."""

    def make(model: transformers.PreTrainedModel, tokens: int) -> transformers.Cache:
        room = {"max_cache_len": tokens} if "max_cache_len" in entry(cache).defaults() else {}
        return create(cache, model, **room, **parameters)

    def why_not() -> str | None:
        unknown = sorted(set(parameters) - set(entry(cache).defaults()))
        return f"{cache!r} has no parameter {', '.join(unknown)} in this version" if unknown else None

    return Contender(name, label or entry(cache).describe(**parameters), "ours", make, why_not=why_not, fused=parameters.get("attention") == "fused")


def why_not_hosted() -> str | None:
    """Why nothing would move between a device and the host's memory, or None."""
    return None if torch.accelerator.is_available() else "there is no accelerator here, so that there is nowhere to fetch layers to"


def _hosted(contender: Contender) -> Contender:
    return dataclasses.replace(contender, why_not=why_not_hosted, hosted=True)


def _upstream_dynamic(model: transformers.PreTrainedModel, tokens: int, offloading: bool = False) -> transformers.Cache:
    return transformers.DynamicCache(config=model.config, offloading=offloading)


def _upstream_static(model: transformers.PreTrainedModel, tokens: int, offloading: bool = False) -> transformers.Cache:
    return transformers.StaticCache(config=model.config, max_cache_len=tokens, offloading=offloading)


def why_not_compiled() -> str:
    """Compiling C++ takes a while: not a thing to start unasked."""
    return decode_step.why_not_compiled() or "torch.compile builds C++, which takes half a minute; --slow does it"


def _compiled(contender: Contender) -> Contender:
    return dataclasses.replace(contender, why_not=why_not_compiled, compiled=True)


def why_not_quanto() -> str | None:
    """quanto compiles an extension when it first unpacks, in C++ or for a GPU: not a thing to start unasked. None once it is built."""
    name = "quanto_cuda" if torch.cuda.is_available() else "quanto_cpp"
    try:
        from optimum.quanto.library.extensions import get_extension

        folder = Path(get_extension(name).build_directory)
    except (ImportError, KeyError, AttributeError) as error:
        return f"optimum-quanto cannot be used: {why_not_imported(error)}"
    suffixes = (".so", ".pyd", sysconfig.get_config_var("EXT_SUFFIX") or ".so")
    built_for = folder / "pytorch_version.txt"
    if built_for.is_file() and built_for.read_text().strip() == torch.__version__ and any((folder / f"{name}{end}").is_file() for end in suffixes):
        return None
    return "quanto compiles a C++ extension at its first use, which needs a compiler and takes a minute or two; --slow does it"


CONTENDERS: dict[str, Contender] = {
    each.name: each
    for each in (
        Contender(REFERENCE, "upstream Dynamic", "upstream", _upstream_dynamic),
        Contender("alone", "SDPA alone", "alone", _alone),
        Contender("upstream-static", "upstream Static", "upstream", _upstream_static),
        _hosted(Contender("upstream-offloaded", "upstream Offloaded", "upstream", functools.partial(_upstream_dynamic, offloading=True))),
        _hosted(Contender("upstream-offloaded-static", "upstream Offloaded static", "upstream", functools.partial(_upstream_static, offloading=True))),
        _upstream("upstream-fp8", "upstream fp8", "fp8"),
        _upstream("upstream-quanto-4", "upstream Quanto 4-bit", "quanto", why_not=why_not_quanto, nbits=4),
        _upstream("upstream-hqq-4", "upstream HQQ 4-bit", "hqq", slow=True, nbits=4),
        _ours("dynamic", "dynamic"),
        _ours("static", "static", "Static"),
        _hosted(_ours("offloaded", "offloaded")),
        _hosted(_ours("offloaded-static", "offloaded_static", "Offloaded static")),
        _compiled(_ours("dynamic-compiled", "dynamic", "Dynamic, compiled")),
        _compiled(_ours("static-compiled", "static", "Static, compiled")),
        _compiled(_ours("fused-4-compiled", "quantized", "Native 4-bit, fused, compiled", nbits=4, attention="fused")),
        _ours("native-8", "quantized", "Native 8-bit, decoded", nbits=8, attention="decode"),
        _ours("native-4", "quantized", "Native 4-bit, decoded", nbits=4, attention="decode"),
        _ours("native-2", "quantized", "Native 2-bit, decoded", nbits=2, attention="decode"),
        _ours("fused-8", "quantized", "Native 8-bit, fused", nbits=8, attention="fused"),
        _ours("fused-4", "quantized", "Native 4-bit, fused", nbits=4, attention="fused"),
        _ours("fused-2", "quantized", "Native 2-bit, fused", nbits=2, attention="fused"),
        _ours("hqq-4", "quantized", "HQQ 4-bit, fused", backend="hqq", nbits=4, attention="fused"),
        _ours("quanto-4", "quantized", "Quanto 4-bit, fused", backend="quanto", nbits=4, attention="fused"),
        _ours("window", "sliding_window", window_length=WINDOW),
        _ours("sink", "sink", window_length=WINDOW),
    )
}


def named(names: Iterable[str]) -> list[Contender]:
    """The contenders of these names, in the table's order, the reference always first. ValueError lists the names there are."""
    wanted = set(names) | {REFERENCE}
    unknown = sorted(wanted - set(CONTENDERS))
    if unknown:
        raise ValueError(f"no contender is called {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    return [each for name, each in CONTENDERS.items() if name in wanted]
