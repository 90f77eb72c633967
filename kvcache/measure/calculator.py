"""Which cache fits: bytes of every cache in the catalog for a model's config, and how many users and tokens a device has room for."""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from .. import catalog
from ..architecture import decoder_config
from ..caches.encoder_decoder import EncoderDecoderCache
from ..caches.offloaded import Offloading
from ..extras import total_memory
from ..memory import LayerMemory, Memory
from ..predict import predict_layer, shapes_of
from ..recurrent import States
from ..validation import whole_number
from ..weights import LOADING

CAPACITY = "max_cache_len"  # what caches that reserve call their length: here the length that is asked about
LONGEST = 2**27  # tokens; what fits at so many fits at any length
WEIGHT_BITS = {32: 32.0, 16: 16.0, 8: 8.0, 4: 4.5}  # to choose from -> bits a weight takes; those of 4 bits bring scales


@dataclass(frozen=True)
class Device:
    """Where a model and its caches are to fit: `nbytes` of memory in all."""

    name: str
    nbytes: int
    is_accelerator: bool = True  # beside a host, to which caches can be offloaded


def _gpu(name: str, mebibytes: int) -> Device:
    return Device(name, mebibytes * 2**20)


# Memory as nvidia-smi and rocm-smi report it.
GPUS = (
    _gpu("T4", 15_360), _gpu("L4", 23_034), _gpu("RTX 4090", 24_564), _gpu("RTX 5090", 32_607), _gpu("A100 40 GB", 40_960), _gpu("L40S", 46_068),
    _gpu("A100 80 GB", 81_920), _gpu("H100", 81_559), _gpu("H200", 143_771), _gpu("B200", 183_359), _gpu("MI300X", 196_592),
)  # fmt: skip


def this_machine() -> list[Device]:
    """This computer's memory, where psutil tells, and its CUDA devices."""
    memory = total_memory()
    found = [Device("This computer", memory, is_accelerator=False)] if memory else []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return found + [Device(f"This GPU {n}", torch.cuda.get_device_properties(n).total_memory) for n in range(count)]


@dataclass(frozen=True)
class Workload:
    """What is asked about: `tokens` of context for each of `users`, the dtype of keys and values, bits of a weight, tokens an encoder reads."""

    tokens: int = 8192
    users: int = 1
    dtype: torch.dtype = torch.bfloat16
    weight_bits: int = 16
    source_tokens: int = 512
    kept_free: float = 0.1  # share of a device that is left for activations and the runtime

    def check(self) -> Workload:
        """The same with whole numbers for what was typed. Raises ValueError naming the value and what would work."""
        tokens = whole_number("tokens", self.tokens, 1, LONGEST, typed=True)
        users, source = whole_number("users", self.users, 1, 1_000_000, typed=True), whole_number("source_tokens", self.source_tokens, 1, LONGEST, typed=True)
        if self.weight_bits not in WEIGHT_BITS:
            raise ValueError(f"weight_bits must be one of {', '.join(map(str, WEIGHT_BITS))}, got {self.weight_bits!r}")
        if not isinstance(self.kept_free, (int, float)) or not 0 <= self.kept_free < 1:
            raise ValueError(f"kept_free must be a share from 0 to below 1, got {self.kept_free!r}")
        return Workload(tokens, users, self.dtype, self.weight_bits, source, self.kept_free)


@dataclass(frozen=True)
class Cost:
    """What one user's cache takes: bytes by kind, and how many of them stay on an accelerator. `at(tokens)` gives both for another length, up to `longest`."""

    name: str
    label: str
    memory: Memory
    on_accelerator: int
    at: Callable[[int], tuple[Memory, int]] = field(repr=False, compare=False)
    longest: int = LONGEST  # tokens that may be asked about

    def nbytes_on(self, device: Device) -> int:
        """Bytes of one user's cache on this device."""
        return self.on_accelerator if device.is_accelerator else self.memory.total


@dataclass(frozen=True)
class Fit:
    """How many users of the asked length a device takes, and how long a context of the asked users; None for any length, 0 for none."""

    users: int
    tokens: int | None


@dataclass(frozen=True)
class Calculation:
    """What every cache costs a model, why some suit it not, and what fits where. `weights` is a number of parameters."""

    workload: Workload
    weights: int
    costs: tuple[Cost, ...]
    why_not: Mapping[str, str]
    context_length: int | None = None

    @property
    def weights_nbytes(self) -> int:
        return int(self.weights * WEIGHT_BITS[self.workload.weight_bits] / 8)

    def room(self, device: Device) -> int:
        """Bytes for caches beside the weights; negative where these alone are too many."""
        return int(device.nbytes * (1 - self.workload.kept_free)) - self.weights_nbytes

    def fit(self, cost: Cost, device: Device) -> Fit:
        """What of this cache fits on that device."""
        room, asked = self.room(device), self.workload
        one = cost.nbytes_on(device)
        users = max(0, room // one) if one else asked.users if room >= 0 else 0
        return Fit(users, _longest(lambda tokens: asked.users * _on(cost.at(tokens), device), room, cost.longest))


def calculate(config: PreTrainedConfig, workload: Workload = Workload(), parameters: Mapping[str, Mapping[str, Any]] | None = None) -> Calculation:
    """Bytes of every cache in the catalog for this model, after one prefill: what is evicted is gone, scales and residuals are counted.

    `parameters`, by cache: those that are not to be the entry's defaults; the capacity of a cache that reserves is the workload's length.
    Nothing is loaded: weights are counted on a model without values. Raises ValueError for a workload that cannot be and for a model that cannot be built.
    """
    workload, weights = workload.check(), count_weights(config)
    costs, why_not = [], {}
    for name in catalog.ENTRIES:
        try:
            costs.append(_cost(name, config, workload, dict((parameters or {}).get(name, {}))))
        except ValueError as error:
            why_not[name] = str(error)
    return Calculation(workload, weights, tuple(costs), why_not, getattr(decoder_config(config), "max_position_embeddings", None))


def count_weights(config: PreTrainedConfig) -> int:
    """Parameters of the model that transformers makes of a config, tied ones once. Raises ValueError where it makes none."""
    maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if getattr(decoder_config(config), "num_hidden_layers", 1) < 1:
        raise ValueError(f"this {config.model_type} has no layers")
    try:
        with LOADING, torch.device("meta"):
            model = maker.from_config(config, trust_remote_code=False)
    except Exception as error:  # configs are wrong in ways that nobody thought of
        raise ValueError(f"no {config.model_type} can be made of this config ({type(error).__name__}: {str(error):.200})") from error
    return sum(parameter.numel() for parameter in model.parameters())


def _cost(name: str, config: PreTrainedConfig, workload: Workload, parameters: dict[str, Any]) -> Cost:
    entry = catalog.entry(name)
    if reason := entry.why_not_alone(config):
        raise ValueError(f"{name}: {reason}")
    capacity = entry.known(parameters).get(CAPACITY)
    reserves = capacity is not None
    sizes = _reserving(name, config, workload, parameters) if reserves else _growing(name, config, workload, parameters)
    memory, near = sizes(workload.tokens)
    values = entry.check(config, **_with_capacity(parameters, workload.tokens) if reserves else parameters)
    return Cost(name, entry.describe(**values), memory, near, functools.lru_cache(maxsize=4096)(sizes), capacity.maximum if reserves else LONGEST)


def _with_capacity(parameters: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    return {**parameters, CAPACITY: max(tokens, 16)}


def _growing(name: str, config: PreTrainedConfig, workload: Workload, parameters: Mapping[str, Any]) -> Callable[[int], tuple[Memory, int]]:
    """tokens -> what `catalog.predict_memory` says and the bytes that stay on an accelerator, made once for all lengths."""
    cache, text = catalog.create(name, config, **parameters), decoder_config(config)
    catalog.predict_memory(name, config, 1, dtype=workload.dtype, **_source(config, workload), **parameters)  # or its sentence why not
    shapes = shapes_of(text, 1, workload.dtype.itemsize)

    def sizes(tokens: int) -> tuple[Memory, int]:
        if isinstance(cache, EncoderDecoderCache):
            sides = cache.predict_memory(text, tokens, workload.source_tokens, 1, workload.dtype)
            memory = Memory(tuple(layer for side in sides.values() for layer in side.layers), {})
            return memory, sum(_near(side, sides[where]) for where, side in zip(sides, cache.sides))
        memory = Memory(tuple(LayerMemory(**predict_layer(layer, tokens, shape)) for layer, shape in zip(cache.layers, shapes)), {})
        return memory, _near(cache, memory)

    return sizes


def _reserving(name: str, config: PreTrainedConfig, workload: Workload, parameters: Mapping[str, Any]) -> Callable[[int], tuple[Memory, int]]:
    """The same of a cache that reserves its length: one cache for each."""

    def sizes(tokens: int) -> tuple[Memory, int]:
        return _growing(name, config, workload, _with_capacity(parameters, tokens))(tokens)

    return sizes


def _source(config: PreTrainedConfig, workload: Workload) -> dict[str, int]:
    return {"source_tokens": workload.source_tokens} if config.is_encoder_decoder else {}


def _near(cache: Any, memory: Memory) -> int:
    """Bytes that stay on an accelerator: all, or of a cache that offloads the layer at work, the next one, and the layers that never leave."""
    if not isinstance(cache, Offloading):
        return memory.total
    moving = [layer.total for layer, kept in zip(memory.layers, cache.layers) if not getattr(kept, "bounded", False) and not isinstance(kept, States)]
    return memory.total - sum(moving) + sum(sorted(moving)[-2:])


def _on(sizes: tuple[Memory, int], device: Device) -> int:
    return sizes[1] if device.is_accelerator else sizes[0].total


def _longest(nbytes_at: Callable[[int], float], room: int, most: int) -> int | None:
    """The most tokens whose bytes fit into `room`, to one in 200; 0 for none, None where even LONGEST fit."""
    low, high = (0, 0.0), (most, nbytes_at(most))  # tokens and their bytes: low fits, high does not
    if high[1] <= room:
        return None if most == LONGEST else most
    step, least = 0, 1
    while high[0] - low[0] > least:
        share = 0.5 if step % 3 == 2 or math.isinf(high[1]) else (room - low[1]) / (high[1] - low[1])
        tokens = min(max(low[0] + int(share * (high[0] - low[0])), low[0] + least), high[0] - 1)
        nbytes = nbytes_at(tokens)
        low, high = ((tokens, nbytes), high) if nbytes <= room else (low, (tokens, nbytes))
        step, least = step + 1, max(1, low[0] // 200)
    return low[0]


HEADS = ("cache", "name", "tokens", "users", "nbytes_a_user", "nbytes", *LayerMemory().as_dict(), "weights_nbytes", "device", "device_nbytes", "users_that_fit", "tokens_that_fit")


def to_csv(found: Calculation, devices: Sequence[Device]) -> str:
    """One row for each cache and device; bytes by kind are of all users, `tokens_that_fit` is empty where any length does."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(HEADS)
    asked = found.workload
    for cost in found.costs:
        kinds = [asked.users * nbytes for nbytes in cost.memory.by_kind().values()]
        for device in devices:
            fit = found.fit(cost, device)
            rows.writerow([cost.label, cost.name, asked.tokens, asked.users, cost.memory.total, asked.users * cost.memory.total, *kinds, found.weights_nbytes,
                           device.name, device.nbytes, fit.users, "" if fit.tokens is None else fit.tokens])  # fmt: skip
    return text.getvalue()
