"""StaticCache: all memory allocated up front, at addresses that never change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, CacheLayerMixin

from ..architecture import WINDOWED_TYPES, decoder_config, why_not_static
from ..attention import attendable
from ..cache import Cache, build_layers
from ..entry import Entry, Parameter, all_but
from ..layer import Buffer, Layer, T, new_rows
from ..legacy import StaticNames
from ..predict import Shape, shapes_of
from ..validation import whole_number


@dataclass(frozen=True)
class Placement:
    """What a static layer was made for; None where its first keys decide."""

    batch_size: int | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    @property
    def is_complete(self) -> bool:
        """Is enough known to allocate? The dtype is the model's own until the first keys say otherwise."""
        return None not in (self.batch_size, self.device)

    def refuse(self, keys: torch.Tensor) -> None:
        """Raise ValueError, naming both sides, where the first keys [B, H, n, D] are of another batch, dtype or device."""
        device = keys.device if self.device is None or self.device.index is not None else torch.device(keys.device.type)
        found = Placement(keys.shape[0], keys.dtype, device)
        for name, wanted in vars(self).items():
            if wanted is not None and wanted != getattr(found, name):
                raise ValueError(f"this static cache was made for {name} {wanted} and was given keys of {name} {getattr(found, name)}; make a new one")


def _settled(name: str) -> property:
    """The buffer in attribute `name`, which knows how far it is filled even right after a compiled step that moves the tensors alone."""

    def get(self: "StaticLayer") -> Buffer:
        self.settle()
        return getattr(self, name)

    return property(get, lambda self, buffer: setattr(self, name, buffer))


class StaticLayer(Layer):
    """Room for `max_cache_len` tokens. Stores keys, values [B, H, max_cache_len, D], written in place.

    `update` returns the whole buffers, whose rows behind the last token are masked. How many tokens were seen is kept
    twice: as a tensor, which is all that a compiled graph reads and writes, so that no graph depends on a number, and
    as a host integer, read back from the tensor when somebody asks after a compiled step. Overflow raises ValueError;
    in a compiled or exported graph it fails an assertion there, and nothing is written out of range.
    """

    stores = {"key_rows": "keys", "value_rows": "values"}
    settings = ("max_cache_len",)
    is_compileable = True
    is_croppable = True
    placement = Placement()
    key_rows = _settled("_key_rows")
    value_rows = _settled("_value_rows")

    def __init__(self, max_cache_len: int, is_sliding: bool = False):
        with torch.inference_mode(False):
            self.cumulative_length = torch.zeros((), dtype=torch.long)  # tokens seen; transformers' own name for it
        self._seen: int | None = 0
        super().__init__(is_sliding)
        self.max_cache_len = max_cache_len
        self.limit: int | None = max_cache_len  # most tokens it can see
        self.key_rows, self.value_rows = Buffer(max_cache_len), Buffer(max_cache_len)

    @property
    def seen(self) -> int:
        """Tokens seen, as a host integer."""
        self.settle()
        return self._seen

    @seen.setter
    def seen(self, seen: int) -> None:
        self.cumulative_length.fill_(seen)
        self._seen = seen
        self._mark_filled()

    def settle(self) -> None:
        """Bring the host integers in step with the tensors, after compiled steps; waits for the device then."""
        if self._seen is None:
            self._seen = int(self.cumulative_length)
            self._mark_filled()

    def _mark_filled(self) -> None:
        for name in ("_key_rows", "_value_rows"):
            if hasattr(self, name):
                getattr(self, name).stop = self.held

    def get_seq_length(self) -> int | torch.Tensor:
        """Tokens seen; inside a compiled graph the tensor that counts them."""
        return self.cumulative_length if torch.compiler.is_compiling() else self.seen

    def get_max_length(self) -> int:
        return self.max_cache_len

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.max_cache_len, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.placement.refuse(key_states)
        super().lazy_initialization(key_states, value_states)
        for buffer, like in ((self.key_rows, key_states), (self.value_rows, value_states)):
            if buffer.data is None or buffer.data.dtype != like.dtype:
                buffer.data = self._allocated(like)
        self._keep_addresses()

    def _allocated(self, like: torch.Tensor) -> torch.Tensor:
        return new_rows(like, self.max_cache_len)

    def _keep_addresses(self) -> None:
        """Put the counters next to the storage, and tell compiled graphs that none of it will ever move."""
        with torch.inference_mode(False):
            for name in self._counters():
                setattr(self, name, getattr(self, name).to(self.device))
        if not torch.compiler.is_compiling():
            for tensor in (*self.readable(), *(getattr(self, name) for name in self._counters())):
                torch._dynamo.mark_static_address(tensor)

    def why_not_exported(self) -> str | None:
        if not self.is_initialized:
            return "its memory is not allocated yet, and every call of the program would do so anew; give it a batch size and a device, or feed it a token first"
        return None if torch.compiler.is_dynamo_compiling() else "the tokens it has seen are counted in a tensor, which torch.export follows with strict=True alone"

    def _of_other_dtype(self, keys: torch.Tensor) -> bool:
        """Was it allocated, without having been told a dtype, in another than that of its first keys?"""
        return keys.dtype != self.dtype and self.placement.dtype is None and not torch.compiler.is_compiling() and not self.seen

    def _counters(self) -> tuple[str, ...]:
        return ("cumulative_length",)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, H, n, D] behind what is there; return the whole buffers [B, H, max_cache_len, D]."""
        if not self.is_initialized or self._of_other_dtype(key_states):
            self.lazy_initialization(key_states, value_states)
        n = key_states.shape[T]
        keys, values = self.readable()
        self._check(key_states, keys)
        self._check(value_states, values)
        self.check_room(n)
        rows = torch.arange(n, device=self.cumulative_length.device) + self.cumulative_length
        keys.index_copy_(T, rows, key_states)
        values.index_copy_(T, rows, value_states)
        self._advance(n)
        return attendable(self, keys, values) if n == 1 else (keys, values)

    def _check(self, new: torch.Tensor, held: torch.Tensor) -> None:
        if new.shape[:T] != held.shape[:T] or new.shape[-1] != held.shape[-1] or new.dtype != held.dtype or new.device != held.device:
            raise ValueError(
                f"this static cache was allocated for batch {held.shape[0]}, {held.shape[1]} heads of {held.shape[-1]}, {held.dtype} on {held.device}, "
                f"got batch {new.shape[0]}, {new.shape[1]} heads of {new.shape[-1]}, {new.dtype} on {new.device}; make a new one"
            )

    def check_room(self, n: int) -> None:
        if self.limit is None:
            return
        if torch.compiler.is_compiling():
            return torch._assert_async(self.cumulative_length + n <= self.limit, "StaticCache is full: make max_cache_len longer")
        if self.seen + n > self.limit:
            raise ValueError(
                f"StaticCache is full: it has room for max_cache_len={self.limit} tokens, holds {self.seen} and "
                f"was given {n} more; make it longer, reset() it, or use a cache that grows"
            )

    def _advance(self, n: int) -> None:
        """Count `n` tokens; a compiled graph counts on the tensor alone and leaves the integer to be asked for."""
        self.cumulative_length.add_(n)
        if torch.compiler.is_compiling():
            self._seen = None
        else:
            self._seen += n
            self._mark_filled()

    def _crop_to(self, length: int) -> None:
        """Nothing to move: rows behind the last token are masked, and overwritten by the next."""

    def reset(self) -> None:
        """Forget all tokens at the same addresses, zeroed."""
        if self.is_initialized:
            for buffer in self.buffers().values():
                if buffer.data is not None:  # some models never use a state that they announce
                    buffer.data.zero_()
            self.seen = 0

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._place_again()

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._place_again()

    def to(self, device: torch.device | str) -> None:
        """Move all storage, and the layer's idea of where it computes."""
        super().to(device)
        self._place_again()

    def _place_again(self) -> None:
        if self.is_initialized:
            self.device = self._key_rows.data.device
            self._keep_addresses()

    def restore(self, rows: dict[str, torch.Tensor], header: dict) -> None:
        super().restore(rows, header)
        self._place_again()

    def fork(self) -> "StaticLayer":
        """A full copy: this layer writes at addresses of its own."""
        self.settle()
        return super().fork()

    def __getstate__(self) -> dict:
        self.settle()
        return super().__getstate__()

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._place_again()

    def __deepcopy__(self, memo: dict) -> "StaticLayer":
        self.settle()
        other = super().__deepcopy__(memo)
        other._place_again()
        return other

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        held = min(tokens, self.max_cache_len)
        spare = self.max_cache_len - held
        return {"keys": held * shape.key_nbytes, "values": held * shape.value_nbytes, "reserved": spare * shape.token_nbytes}

    def sides(self) -> tuple[Buffer, Buffer]:
        return self._key_rows, self._value_rows

    def readable(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self._key_rows.data, self._value_rows.data

    def editable(self, side: int) -> torch.Tensor | None:
        return self.readable()[side]

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        super().check_assigned(side, rows)
        held = self.readable()[side == "values"]
        if held is None or (rows.shape, rows.dtype, rows.device) != (held.shape, held.dtype, held.device):
            room = "before its first tokens" if held is None else f"but for all of its room, {tuple(held.shape)} of {held.dtype} on {held.device}, got {tuple(rows.shape)} of {rows.dtype} on {rows.device}"
            raise ValueError(f"{side} cannot be assigned to a {type(self).__name__} {room}: update() fills it, crop() takes tokens back, reorder_cache() and batch_select_indices() choose rows")

    def assign(self, side: str, rows: torch.Tensor) -> None:
        """Write over all that is held, at its address; as many tokens have been seen as before."""
        self.check_assigned(side, rows)
        self.readable()[side == "values"].copy_(rows)


class StaticWindowLayer(StaticLayer):
    """The last `window_length` tokens in shapes that never change. Stores keys, values [B, H, window_length, D].

    The tokens lie in order from the first row; a full window moves up in place as a new token comes, which costs one
    copy of the window. A chunk of n tokens attends to window_length - 1 + n rows: the window before it, the chunk, and
    where there are fewer, masked rows behind it, so that a shape depends on n alone. A single token attends to the
    storage itself. What is attended to is what WindowLayer attends to. It streams without end; beside full layers it
    has their `limit`, so that the first layer of a model refuses before any other has changed.
    """

    is_croppable = False
    bounded = True

    def __init__(self, window_length: int, is_sliding: bool = True):
        if window_length < 2:
            raise ValueError(f"a static window must be of at least 2 tokens, got {window_length}")
        with torch.inference_mode(False):
            self.evicted_length = torch.zeros((), dtype=torch.long)  # position of the first row
        self._evicted: int | None = 0
        super().__init__(window_length, is_sliding)
        self.window_length, self.limit = window_length, None

    @property
    def evicted(self) -> int:
        """Tokens seen and no longer held."""
        self.settle()
        return self._evicted

    @property
    def held(self) -> int:
        return self.seen - self.evicted

    @property
    def crop_floor(self) -> int:
        return 0 if not self.evicted else min(self.seen, self.evicted + self.window_length - 1)

    def settle(self) -> None:
        if self._seen is None:
            self._evicted = int(self.evicted_length)
        super().settle()

    def refuse_drafts(self) -> None:
        """Always: static shapes have no room for tokens that a draft may take back."""
        raise ValueError("a static window cannot go back as decoding with drafts must; use DynamicCache, whose windows can")

    def _counters(self) -> tuple[str, ...]:
        return ("cumulative_length", "evicted_length")

    def _first_attended(self) -> torch.Tensor:
        """Position of the first row that the next tokens attend to, as a tensor."""
        return torch.maximum(self.evicted_length, self.cumulative_length - (self.window_length - 1))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int | torch.Tensor]:
        if torch.compiler.is_compiling():
            return self.window_length - 1 + query_length, self._first_attended()
        return self.window_length - 1 + query_length, max(self.evicted, self.seen - self.window_length + 1)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; return what the n tokens attend to, [B, H, window_length - 1 + n, D]."""
        if not self.is_initialized or self._of_other_dtype(key_states):
            self.lazy_initialization(key_states, value_states)
        keys, values = self.readable()
        self._check(key_states, keys)
        self._check(value_states, values)
        n, first = key_states.shape[T], self._first_attended()
        self.check_room(n)
        place = self._slide if n == 1 else self._join
        shift, before = first - self.evicted_length, self.cumulative_length - first
        attended = place(keys, key_states, shift, before), place(values, value_states, shift, before)
        self.evicted_length.copy_(torch.maximum(first, self.cumulative_length + (n - self.window_length)))
        if not torch.compiler.is_compiling():
            self._evicted = max(self.evicted, self.seen + n - self.window_length)
        self._advance(n)
        return attended

    def _slide(self, held: torch.Tensor, new: torch.Tensor, shift: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Move the window up by `shift` rows in place and write one token behind its `before` rows."""
        if torch.compiler.is_compiling() or self.held == self.window_length:
            held[:, :, :-1] = self._history(held, shift)
        return held.index_copy_(T, before[None], new)

    def _join(self, held: torch.Tensor, new: torch.Tensor, shift: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The window's last rows and a chunk behind them; of both, the latest rows stay in `held`."""
        n = new.shape[T]
        attended = torch.cat([self._history(held, shift), torch.zeros_like(new)], dim=T)
        attended.index_copy_(T, _count(n, before), new)
        held.copy_(attended.index_select(T, _count(self.window_length, (before + (n - self.window_length)).clamp(min=0))))
        return attended

    def _history(self, held: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """The window_length - 1 rows from `shift` on, copied."""
        return held.index_select(T, _count(self.window_length - 1, shift))

    def reset(self) -> None:
        self.settle()
        self.evicted_length.zero_()
        self._evicted = 0
        super().reset()

    def restore(self, rows: dict[str, torch.Tensor], header: dict) -> None:
        super().restore(rows, header)
        if self.is_initialized:
            self._evicted = header["seen"] - rows["key_rows"].shape[T]
            self.evicted_length.fill_(self._evicted)
            self._mark_filled()

    def token_fates(self) -> list[tuple[str, int]]:
        return [(fate, count) for fate, count in (("evicted", self.evicted), ("full", self.held)) if count]


def _count(n: int, start: torch.Tensor) -> torch.Tensor:
    """`n` row numbers from `start` on."""
    return torch.arange(n, device=start.device) + start


class StaticCache(StaticNames, Cache, transformers.StaticCache):
    """Allocate `max_cache_len` tokens a layer, in one piece, and write in place ever after.

    Layers that the model itself gives a sliding window keep that window, in static shapes too; recurrent layers keep
    their states; a model of nothing but windows streams without end. With a batch size (`max_batch_size`, or `batch_size`) and `device` (or
    `layer_device_map`, layer index -> device) all memory is taken now; otherwise at the first token, and what was
    given is checked then. `dtype` None is that of the config, or float32, until the first keys are of another. `max_cache_len` defaults to the model's max_position_embeddings. Raises ValueError when a
    forward would go past max_cache_len, or brings another batch size, dtype or device than the cache was made for.
    """

    name = "static"
    full_layer: type[StaticLayer] = StaticLayer
    why_not_model = staticmethod(why_not_static)

    def __init__(
        self,
        config: PreTrainedConfig,
        batch_size: int | None = None,
        max_cache_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        max_batch_size: int | None = None,
        layer_device_map: Mapping[int, torch.device | str] | None = None,
    ):
        config = decoder_config(config)
        if reason := self.why_not_model(config):
            raise ValueError(f"{type(self).__name__}: {reason}")
        if isinstance(max_batch_size, Mapping):  # 4.49's order has the map in its place
            layer_device_map, max_batch_size = max_batch_size, layer_device_map
        self.max_cache_len = checked_length(config, max_cache_len)
        Cache.__init__(self, build_layers(config, self._table(), STATIC_LAYER_TYPE_MAPPING, max_cache_len=self.max_cache_len))
        windows = [layer for layer in self.layers if isinstance(layer, StaticWindowLayer)]
        streams = windows and len(windows) == sum(isinstance(layer, CacheLayerMixin) for layer in self.layers)
        self.capacity = None if streams else self.max_cache_len
        for layer in windows:
            layer.limit = self.capacity
        self.num_key_value_heads, self.head_dim = heads_of(config)
        place(self.layers, config, checked_batch(batch_size, max_batch_size), dtype, device, layer_device_map)

    def _table(self) -> dict:
        return {"full_attention": lambda **_: self.full_layer(self.max_cache_len), **dict.fromkeys(WINDOWED_TYPES, self._window)}

    def _window(self, sliding_window: int, **_: Any) -> StaticLayer:
        """The layer for a model's own window; where there is no room for a whole one, the model's mask does the windowing."""
        if self.max_cache_len < sliding_window:
            return StaticLayer(self.max_cache_len, is_sliding=True)
        return StaticWindowLayer(sliding_window)


def checked_length(config: PreTrainedConfig, max_cache_len: int | None) -> int:
    """The length asked for, or the model's own. Raises ValueError where there is neither, or none that can be."""
    length = max_cache_len if max_cache_len is not None else getattr(config, "max_position_embeddings", None)
    if length is None:
        raise ValueError(f"max_cache_len= is needed: the config of {config.model_type} has no max_position_embeddings")
    return whole_number("max_cache_len", length, 1)


def heads_of(config: PreTrainedConfig) -> tuple[int, int]:
    """Key/value heads, and the elements of a key, in the first layer."""
    shape = shapes_of(config, 1, 1)[0]
    return shape.heads, shape.key_dim


def checked_batch(batch_size: int | None, max_batch_size: int | None) -> int | None:
    """The one batch size of two names for it."""
    given = [whole_number("max_batch_size", size, 1) for size in (batch_size, max_batch_size) if size is not None]
    if len(set(given)) > 1:
        raise ValueError(f"batch_size and max_batch_size are two names for one thing, got {batch_size} and {max_batch_size}")
    return given[0] if given else None


def place(layers: list, config: PreTrainedConfig, batch_size: int | None, dtype: torch.dtype | None, device: torch.device | str | None, layer_device_map: Mapping | None = None) -> None:
    """Tell each static layer what it is for, and allocate those for which batch size and device are known."""
    devices = {} if layer_device_map is None else dict(layer_device_map)
    unknown = [index for index in devices if index not in range(len(layers))]
    if unknown:
        raise ValueError(f"layer_device_map names layer {unknown[0]}, and the model has layers 0 to {len(layers) - 1}")
    likely = dtype or config.dtype or torch.float32
    for index, (layer, shape) in enumerate(zip(layers, shapes_of(config, batch_size or 0, 0))):
        if isinstance(layer, StaticLayer):
            where = devices.get(index, device)
            layer.placement = Placement(batch_size, dtype, None if where is None else torch.device(where))
            if layer.placement.is_complete:
                layer.lazy_initialization(*(empty_rows(layer.placement, likely, shape.heads, dim) for dim in (shape.key_dim, shape.value_dim)))


def empty_rows(placement: Placement, dtype: torch.dtype, heads: int, dim: int) -> torch.Tensor:
    """Keys or values of no tokens at all [B, heads, 0, dim], which tell a layer everything but the tokens."""
    return torch.zeros((placement.batch_size, heads, 0, dim), dtype=dtype, device=placement.device)


CAPACITY = Parameter("max_cache_len", "Capacity", "int", 2048, "Tokens there is room for; a longer chat is refused.", minimum=16, maximum=131072, step=16)
ENTRY = Entry(
    name="static",
    title="Static",
    summary="Reserves all its memory at the first token and writes in place; made for torch.compile and fixed budgets.",
    cache_class=StaticCache,
    make=lambda config, max_cache_len: StaticCache(config, max_cache_len=max_cache_len),
    parameters=(CAPACITY,),
    can=all_but(),
    why_not_model=why_not_static,
    label=lambda max_cache_len: f"Static {max_cache_len}",
)
