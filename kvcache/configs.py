"""The configuration objects of transformers 4.48's caches, for `cache_config=`: plain fields, checked, to and from JSON."""

import copy
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch

from .validation import whole_number

# What each backend can do, and what its axes mean: a group is one channel over the tokens of a block, or neighbouring
# channels of one token. 4.48's documentation calls quanto's axis 0 "per channel"; its groups are in truth per token.
NBITS = {"native": (8, 4, 2), "hqq": (8, 4, 3, 2, 1), "quanto": (4, 2)}
AXES = {
    "native": {0: "channel", 1: "token"},
    "hqq": {0: "channel", 1: "token"},
    "quanto": {0: "token", -1: "channel"},
}
AXIS_WORDS = ("auto", "channel", "token")
FIRST_TOKENS = 4  # kept in full precision: as many as attention leans on, whatever they say
ADDED = {"key_bits": "auto", "value_bits": "auto", "first_tokens": FIRST_TOKENS, "rotate": "auto", "round_windows": "auto"}  # that 4.48 did not have, and their defaults
OURS_ALONE = ("cache_implementation", "compute_dtype", "device", *ADDED)  # transformers 5 takes the dtype and the device of the keys
GROUP = 64  # elements that share a scale where "auto" is asked for


def grouping(backend: str, axis: int | str, otherwise: str) -> str:
    """ "channel" or "token": what `axis` means to `backend`, or `axis` itself if it is one of these words; for "auto", `otherwise`."""
    return otherwise if axis == "auto" else AXES[backend].get(axis, axis)


def listed(values: Iterable) -> str:
    """ "8, 4 or 2"."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def check_backend(backend: str) -> str:
    """The backend's name in small letters. Raises ValueError listing the backends."""
    name = backend.lower() if isinstance(backend, str) else backend
    if name not in tuple(NBITS):  # a list would not be hashed
        raise ValueError(f"backend must be one of {', '.join(NBITS)}, got {backend!r}")
    return name


def bits_of(side: int | str, nbits: int) -> int:
    """Bits of keys or of values: those of their own, or `nbits` for "auto"."""
    return nbits if side == "auto" else side


def bits_word(key_bits: int, value_bits: int) -> str:
    """ "4", or "4/2" for keys and values of different widths."""
    return str(key_bits) if key_bits == value_bits else f"{key_bits}/{value_bits}"


def why_not_bits(backend: str, nbits: int, key_bits: int | str = "auto", value_bits: int | str = "auto") -> str | None:
    """Why this backend cannot store so many bits of both, of keys or of values, and which can; None when it can."""
    sides = {"nbits": nbits, "key_bits": bits_of(key_bits, nbits), "value_bits": bits_of(value_bits, nbits)}
    return next(filter(None, (why_not_nbits(backend, bits, name) for name, bits in sides.items())), None)


def why_not_nbits(backend: str, nbits: int, name: str = "nbits") -> str | None:
    """Why this backend cannot store so many bits, and which can; None when it can."""
    if nbits in NBITS[backend] and type(nbits) is int:
        return None
    others = "; ".join(f"{other} takes {listed(bits)}" for other, bits in NBITS.items() if other != backend)
    return f"{name} must be {listed(NBITS[backend])} for {backend}, got {nbits!r}; {others}"


def rotates(backend: str, rotate: bool | str) -> bool:
    """Are states rotated before they are rounded? "auto": by our own levels, with which it was measured."""
    return backend == "native" if rotate == "auto" else bool(rotate)


def why_not_rotated(backend: str, rotate: bool | str) -> str | None:
    """Why states cannot be rotated before this backend rounds them; None when they can, or need not be."""
    if rotate not in ("auto", True, False):
        return f"rotate must be auto, True or False, got {rotate!r}"
    return f"rotate=True is for the native backend, and {backend} rounds what it is given" if rotate is True and backend != "native" else None


def why_not_axis(backend: str, name: str, axis: int | str) -> str | None:
    """Why this backend cannot group along `axis`; None when it can."""
    if not isinstance(axis, bool) and axis in (*AXES[backend], *AXIS_WORDS):
        return None
    meanings = [f"{value} (per {meaning})" for value, meaning in AXES[backend].items()]
    return f"{name} must be {listed(meanings)} for {backend}, or one of {', '.join(AXIS_WORDS)}; got {axis!r}"


@dataclass
class CacheConfig:
    """Base of the configurations: what `cache_implementation` it is for, and the ways in and out."""

    cache_implementation: str | None = None

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "CacheConfig":
        """A config from `to_dict()` or JSON, `kwargs` taking precedence; of kwargs, names it does not know are left out.

        Raises ValueError on a name in `config_dict` that this config does not have, on one that it lacks, and on wrong values.
        """
        names, config_dict = [known.name for known in fields(cls)], settings_of(config_dict)
        unknown = [name for name in config_dict if name not in names]
        if unknown:
            raise ValueError(f"{cls.__name__} has no {', '.join(map(repr, unknown))}; it takes {', '.join(names)}")
        given = {**config_dict, **{name: value for name, value in kwargs.items() if name in names}}
        lacking = [known.name for known in fields(cls) if known.default is MISSING and known.name not in given]
        if lacking:
            raise ValueError(f"{cls.__name__} needs {' and '.join(lacking)}, got {', '.join(given) or 'nothing'}")
        return cls(**given)

    def validate(self) -> None:
        """Raise ValueError, naming what would be right, if a field cannot be."""

    def update(self, **kwargs: Any) -> dict[str, Any]:
        """Set fields by name and return what was not used. Raises ValueError, nothing changed, on wrong values."""
        used = {name: value for name, value in kwargs.items() if name in self.__dict__}
        changed = copy.copy(self)
        changed.__dict__.update(used)
        changed.__post_init__()
        self.__dict__.update(changed.__dict__)
        return {name: value for name, value in kwargs.items() if name not in used}

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """(name, value) pairs, so that `dict(config)` works."""
        yield from self.to_dict().items()

    def keys(self) -> Iterable[str]:
        return self.__dict__.keys()

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def setdefault(self, name: str, value: Any) -> Any:
        """As of a dict. transformers' `generate` gives its copy of a `cache_config` the model's config so and unpacks it for a cache of its own, so what those do not take goes from it."""
        for beside in OURS_ALONE:
            self.__dict__.pop(beside, None)
        return self.__dict__.setdefault(name, value)

    def pop(self, name: str, *default: Any) -> Any:
        return self.__dict__.pop(name, *default)

    def to_json_string(self) -> str:
        """JSON that `from_dict(json.loads(...))` reads back; dtypes by name."""
        return _json(self.to_dict())

    def to_json_file(self, json_file_path: str | os.PathLike, use_diff: bool = False) -> None:
        """Write the JSON; with `use_diff` only what is not the default, which reads back as the same config."""
        settings = self._changed() if use_diff else self.to_dict()
        with open(json_file_path, "w", encoding="utf-8") as file:
            file.write(_json(settings))

    def _changed(self) -> dict[str, Any]:
        """The fields that differ from a config of nothing but what has to be given."""
        needed = {known.name: getattr(self, known.name) for known in fields(self) if known.default is MISSING}
        default = type(self)(**needed).to_dict()
        return {name: value for name, value in self if name in needed or value != default.get(name)}


@dataclass
class QuantizedCacheConfig(CacheConfig):
    """How to quantise: for `QuantizedCache`, `QuantoQuantizedCache` and `HQQQuantizedCache(cache_config=...)`.

    `backend`: in any case; by default quanto, or hqq where bits or axes are asked for that only hqq has. `axis_key`,
    `axis_value`: a number of AXES, or "channel", "token", "auto" (keys per channel, values per token). `q_group_size`: elements that share a
    scale, and tokens to a block. `residual_length`: latest tokens in full precision, at least. `compute_dtype`: what
    decoded tensors are rounded to. `device`: where the model runs; storage is where its keys are. `key_bits`, `value_bits`: of one side alone, "auto": `nbits`. `first_tokens`: kept in full precision too. `rotate`: by Hadamard before rounding, "auto": for native. `round_windows`: the model's own sliding windows too, "auto": where it has no other attention.
    """

    backend: str | None = None
    nbits: int = 4
    axis_key: int | str = 0
    axis_value: int | str = 0
    q_group_size: int | str = 64
    residual_length: int = 128
    compute_dtype: torch.dtype | str = torch.float16
    device: str | torch.device = "cpu"
    key_bits: int | str = field(default="auto", kw_only=True)
    value_bits: int | str = field(default="auto", kw_only=True)
    first_tokens: int = field(default=FIRST_TOKENS, kw_only=True)
    rotate: bool | str = field(default="auto", kw_only=True)
    round_windows: bool | str = field(default="auto", kw_only=True)
    cache_implementation: str | None = field(default="quantized", kw_only=True)

    def __post_init__(self) -> None:
        if self.backend is None:
            self.backend = "hqq" if why_not("quanto", self) and not why_not("hqq", self) else "quanto"
        self.backend = check_backend(self.backend)
        self.compute_dtype = dtype_named(self.compute_dtype)
        self.validate()

    def validate(self) -> None:
        """Raise ValueError, naming what would be right, if a field cannot be or does not suit the backend."""
        reason = why_not(check_backend(self.backend), self)
        if reason:
            raise ValueError(reason)
        if self.q_group_size != "auto":
            whole_number('q_group_size, unless it is "auto",', self.q_group_size, 1)
        whole_number("residual_length", self.residual_length, 0)
        whole_number("first_tokens", self.first_tokens, 0)
        if self.round_windows not in ("auto", True, False):
            raise ValueError(f"round_windows must be auto, True or False, got {self.round_windows!r}")
        dtype_named(self.compute_dtype)
        _check_device(self.device)

    def to_dict(self) -> dict[str, Any]:
        """What 4.48 knows too, and of the rest what is not its default."""
        return {name: value for name, value in super().to_dict().items() if name not in ADDED or value != ADDED[name]}

    def keys(self) -> Iterable[str]:
        return self.to_dict().keys()


@dataclass
class StaticCacheConfig(CacheConfig):
    """How large a static cache is: rows, tokens, and the device its memory is on."""

    batch_size: int
    max_cache_len: int
    device: str | torch.device = "cpu"
    cache_implementation: str | None = field(default="static", kw_only=True)

    def validate(self) -> None:
        """Raise ValueError, naming what would be right, if a field cannot be."""
        for name in ("batch_size", "max_cache_len"):
            whole_number(name, getattr(self, name), 1)
        _check_device(self.device)


def why_not(backend: str, config: QuantizedCacheConfig) -> str | None:
    """Why this backend cannot do the bits and axes of a config, and what it can; None when it can."""
    reasons = (why_not_axis(backend, name, getattr(config, name)) for name in ("axis_key", "axis_value"))
    return why_not_bits(backend, config.nbits, config.key_bits, config.value_bits) or next(filter(None, reasons), None) or why_not_rotated(backend, config.rotate)


def settings_of(config: "CacheConfig | Mapping[str, Any] | None") -> dict[str, Any]:
    """The names and values in a cache_config. Raises ValueError for what is neither a config object nor a dict."""
    if config is None or isinstance(config, (CacheConfig, Mapping)):
        return dict(config or {})
    raise ValueError(f"a cache's configuration is a dict of parameters or a config object such as QuantizedCacheConfig, got {config!r}")


def dtype_named(dtype: torch.dtype | str) -> torch.dtype:
    """A floating dtype from itself or its name, "float16" or "torch.float16". Raises ValueError."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"compute_dtype must be float16, bfloat16 or float32, got {dtype!r}")
    return found


def _check_device(device: str | torch.device) -> None:
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be a torch device such as cpu or cuda:0, got {device!r}") from error


def _json(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2, sort_keys=True, default=_json_name) + "\n"


def _json_name(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(value)
