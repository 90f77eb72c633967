"""One layer's cache: the buffers it holds, and every operation that follows from them.

A layer names its buffers in `stores` (attribute -> kind of byte); bytes, copies, reset, beam reorder, repeat, select
and device moves are derived from that statement, so a new layer writes `update` and little else.
"""

import copy
from typing import Any, ClassVar

import torch
from transformers.cache_utils import CacheLayerMixin

from . import kernels
from .attention import hand_over

# The axes of keys and values everywhere in this library: batch, key/value heads, tokens, head dimension.
B, H, T, D = 0, 1, 2, 3


class CropError(ValueError):
    """A cache was asked to go back to tokens that it no longer holds."""


def capacity_for(rows: int) -> int:
    """Rows to allocate for `rows` filled ones: 8 to 23 spare when short, 3 to 18 % from 128 on, so that growing copies each row about 12 times."""
    step = max(16, (1 << max(rows, 1).bit_length() - 1) // 8)
    return -(-(rows + step // 2) // step) * step


class Buffer:
    """A tensor [B, H, capacity, D] filled along T from `start` to `stop`, appended to without copying its history.

    Rows ahead of `start` were dropped, rows behind `stop` are reserved, none where it is `exact`. A fixed `capacity` never grows. Rows before
    `frozen` are shared with a fork, where `shared` says so, or read by autograd: they are copied before anything would write there.
    """

    def __init__(self, capacity: int | None = None, exact: bool = False):
        self.data: torch.Tensor | None = None
        self.start = self.stop = self.frozen = 0
        self.shared = False
        self.capacity, self.exact = capacity, exact

    def __len__(self) -> int:
        return self.stop - self.start

    def view(self) -> torch.Tensor | None:
        """The filled rows [B, H, len, D], sharing storage; None before the first append."""
        return None if self.data is None else self.data.narrow(T, self.start, self.stop - self.start)

    def onwards(self) -> torch.Tensor:
        """The storage from the first filled row to the end of what is reserved [B, H, capacity - start, D]: cheaper than `view` where nothing was dropped."""
        return self.data if not self.start else self.data[:, :, self.start :]

    def own(self) -> torch.Tensor | None:
        """As `view`, for those who may write there: of storage that no fork shares."""
        if self.shared:
            self._move(self.data.shape[T])
        return self.view()

    def append(self, rows: torch.Tensor) -> None:
        """Add rows [B, H, n, D]. Raises ValueError if any other axis, or the dtype, differs from what is held."""
        recorded = torch.is_grad_enabled()  # autograd may keep views of what is held, if only for the query's sake
        if recorded and rows.requires_grad:
            return self._append_differentiably(rows)
        shape, data, stop = rows.shape, self.data, self.stop
        n = shape[T]
        if data is None or stop + n > data.shape[T] or stop < self.frozen:
            self._make_room(rows, n)
            data, stop = self.data, self.stop
        target = (data.data if recorded else data).narrow(T, stop, n)  # behind what was read, and autograd is not to take it for changed
        if target.shape != shape or data.dtype is not rows.dtype:
            self.refuse(rows)
        target.copy_(rows)
        self.stop = stop + n
        if recorded:
            self.frozen = self.stop

    def refuse(self, rows: torch.Tensor) -> None:
        """Raise ValueError for rows [B, H, n, D] that do not go behind those held."""
        data = self.data
        if data is None:
            return
        ours, theirs = data.shape, rows.shape
        if ours[B] != theirs[B] or ours[H] != theirs[H] or ours[D] != theirs[D] or data.dtype != rows.dtype:
            raise ValueError(_mismatch(data, rows))

    def replace(self, rows: torch.Tensor) -> None:
        """Hold `rows`, which must not be a view of this buffer, and nothing else."""
        self.start = self.stop = 0
        self.append(rows)

    def rewrite(self, rows: torch.Tensor) -> None:
        """Write `rows` over as many of the oldest held ones."""
        if self.start < self.frozen:
            self._move(self.data.shape[T])
        self.data[:, :, self.start : self.start + rows.shape[T]] = rows

    def fork(self) -> "Buffer":
        """A copy that shares this storage until either of the two would write where the other reads.

        Of a fixed buffer, whose layer may write at an address of its own choosing, a full copy.
        """
        if self.capacity is not None:
            return copy.deepcopy(self)
        other = copy.copy(self)
        if self.data is not None:
            self.frozen, other.frozen = max(self.frozen, self.stop), self.data.shape[T]
            self.shared = other.shared = True
        return other

    def leave(self, places: torch.Tensor) -> None:
        """Hold only the rows at `places` [B or 1, H or 1, n], counted over those held, in storage of its own: what was read before stays as it is."""
        rows = self.view()
        index = places.expand(*rows.shape[:T], -1).unsqueeze(-1)
        kept = rows.gather(T, index.expand(-1, -1, -1, rows.shape[D]))
        self.clear()
        self.append(kept)

    def shrink(self, rows: int) -> None:
        """Give back storage beyond what `rows` ask for, as after a long prompt; `rows` is at least what is filled."""
        if self.data is not None and self.data.shape[T] > capacity_for(rows):
            self._move(capacity_for(rows))

    def _move(self, capacity: int) -> None:
        """Into storage of its own, of `capacity` rows."""
        self.data, self.start, self.stop, self.frozen, self.shared = _moved(self.view(), capacity), 0, len(self), 0, False

    def _append_differentiably(self, rows: torch.Tensor) -> None:
        """Concatenate instead of writing in place, so that gradients reach every appended row."""
        if len(self):
            self.refuse(rows)
        self.data = rows if not len(self) else torch.cat([self.view(), rows], dim=T)
        self.start, self.stop = 0, self.data.shape[T]
        self.frozen = self.stop  # autograd reads these rows later

    def _make_room(self, rows: torch.Tensor, n: int) -> None:
        live = self.view() if len(self) else None
        need = len(self) + n
        capacity = self.capacity if self.capacity is not None else need if self.exact else capacity_for(need)
        if need > capacity:
            raise ValueError(f"a buffer of {capacity} tokens holds {len(self)} and cannot take {n} more")
        if live is None:
            self.data = self.data if not self.frozen and self._fits(rows, capacity) else new_rows(rows, capacity, written=n)
        elif self.data.shape[T] >= capacity and not self.frozen:
            self.data[:, :, : len(self)] = live.clone()  # slide to the front of the same storage
        else:
            self.data = _moved(live, capacity)
        self.start, self.stop, self.frozen, self.shared = 0, len(self), 0, False

    def _fits(self, rows: torch.Tensor, capacity: int) -> bool:
        """Can `rows` go into the storage that is there? Asked when it is empty."""
        data = self.data
        return data is not None and data.shape == (rows.shape[B], rows.shape[H], max(capacity, data.shape[T]), rows.shape[D]) and data.dtype == rows.dtype

    def drop_front(self, n: int) -> None:
        self.start += n

    def let_go(self, n: int) -> None:
        """As `drop_front`, of a buffer whose views somebody may still read: what is appended later is written elsewhere."""
        self.drop_front(n)
        self.frozen = max(self.frozen, self.stop)

    def drop_back(self, n: int) -> None:
        self.stop -= n

    def clear(self) -> None:
        """Forget every row and free the storage."""
        self.data, self.start, self.stop, self.frozen, self.shared = None, 0, 0, 0, False

    def select(self, index: torch.Tensor) -> None:
        """Keep the batch rows `index` (LongTensor or BoolTensor), in that order, repeats allowed."""
        self._replace(self.view()[index.to(self.data.device)] if self.data is not None else None)

    def repeat(self, repeats: int) -> None:
        """Repeat each batch row `repeats` times in place: a, b -> a, a, b, b."""
        self._replace(self.view().repeat_interleave(repeats, dim=B) if self.data is not None else None)

    def to(self, device: torch.device | str) -> None:
        if self.data is not None and self.data.device != torch.device(device):
            self.data, self.frozen, self.shared = self.data.to(device), 0, False

    def _replace(self, rows: torch.Tensor | None) -> None:
        if rows is None:
            return
        if rows.shape[B] != self.data.shape[B] or self.frozen:
            self.data, self.frozen, self.shared = new_rows(rows, self.data.shape[T]), 0, False
        self.data[:, :, self.start : self.stop] = rows

    def __deepcopy__(self, memo: dict) -> "Buffer":
        other = Buffer(self.capacity, self.exact)
        if self.data is not None:
            other.data = _moved(self.view().detach(), max(len(self), 1) if self.capacity is None else self.capacity)
            other.stop = len(self)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes of the filled rows."""
        return 0 if self.data is None else len(self) * self.row_nbytes

    @property
    def reserved_nbytes(self) -> int:
        """Bytes allocated beyond the filled rows."""
        return 0 if self.data is None else (self.data.shape[T] - len(self)) * self.row_nbytes

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row over the whole batch and all heads."""
        shape = self.data.shape
        return shape[B] * shape[H] * shape[D] * self.data.element_size()


def append_both(keys: Buffer, values: Buffer, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
    """Append [B, H, n, D] to both, or to neither. Raises ValueError as `Buffer.append` does."""
    keys.append(key_states)
    try:
        values.append(value_states)
    except ValueError:
        keys.drop_back(key_states.shape[T])
        raise


def _alike(keys: Buffer, values: Buffer) -> bool:
    """Do both hold the same rows and tokens, or neither any?"""
    if keys.data is None or values.data is None:
        return keys.data is values.data
    return keys.view().shape[:D] == values.view().shape[:D]


def _moved(rows: torch.Tensor, capacity: int) -> torch.Tensor:
    """A copy of `rows` [B, H, n, D] in new storage of `capacity` rows."""
    target = new_rows(rows, capacity, written=rows.shape[T])
    target[:, :, : rows.shape[T]] = rows
    return target


def new_rows(like: torch.Tensor, capacity: int, written: int = 0) -> torch.Tensor:
    """Zeros [B, H, capacity, D] of `like`'s dtype and device, usable inside and outside torch.inference_mode; the first `written` rows are left to be written."""
    with torch.inference_mode(False):
        made = torch.empty((like.shape[B], like.shape[H], capacity, like.shape[D]), dtype=like.dtype, device=like.device)
        made[:, :, written:] = 0
    return made


def _mismatch(data: torch.Tensor, rows: torch.Tensor) -> str:
    def words(t: torch.Tensor) -> str:
        return f"batch {t.shape[B]}, {t.shape[H]} heads of {t.shape[D]}, {t.dtype}"

    return f"this cache holds {words(data)} and was given {words(rows)}; reset() it, or make a new cache"


class Stored:
    """What our layers share. `stores` names the attributes that hold tensors, such as Buffers, and the kind of byte of each."""

    stores: ClassVar[dict[str, str]] = {}
    settings: ClassVar[tuple[str, ...]] = ()  # attributes that tell what it goes on doing with its rows: the same in layers that are joined
    is_initialized = False
    seen = 0
    skippable = False  # do some forwards rightly pass this layer's count by?
    number_of_states = 0  # recurrent ones, beside keys and values or alone
    assigned = False  # were keys or values assigned to it since the last forward?

    def buffers(self) -> dict[str, Buffer]:
        return {name: getattr(self, name) for name in self.stores}

    def reset(self) -> None:
        """Forget all tokens; the next `update` may bring another batch size."""
        for buffer in self.buffers().values():
            buffer.clear()
        self.seen, self.is_initialized, self.assigned = 0, False, False
        self.__dict__.pop("batch_size", None)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Row i becomes a copy of row beam_idx[i]."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these batch rows (LongTensor of rows, or BoolTensor over all)."""
        for buffer in self.buffers().values():
            buffer.select(indices)
        if "batch_size" in self.__dict__:
            self.batch_size = int(indices.sum()) if indices.dtype == torch.bool else indices.shape[0]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row `repeats` times: a, b -> a, a, b, b."""
        for buffer in self.buffers().values():
            buffer.repeat(repeats)
        if "batch_size" in self.__dict__:
            self.batch_size *= repeats

    def to(self, device: torch.device | str) -> None:
        """Move all storage."""
        for buffer in self.buffers().values():
            buffer.to(device)

    def refuse_drafts(self) -> None:
        """Raise ValueError where decoding with drafts (prompt lookup, an assistant) would go wrong."""

    def why_not_exported(self) -> str | None:
        """Why a program that torch.export makes cannot go on from this layer, or None."""
        return "its shapes change as it fills, and every call of the program would go on from the tokens held now; export a StaticCache, or make the cache inside the program"

    def offload(self) -> None:
        self.to("cpu")

    def prefetch(self) -> None:
        if self.is_initialized:
            self.to(self.device)

    def rows(self) -> dict[str, torch.Tensor]:
        """Everything stored, by the names in `stores`: what a file of this layer holds."""
        return {name: buffer.view() for name, buffer in self.buffers().items() if buffer.data is not None}

    def header(self) -> dict:
        """What a file says of this layer beside its rows."""
        return {"seen": self.seen, "dtype": str(self.dtype).removeprefix("torch.") if self.is_initialized else None}

    def restore(self, rows: dict[str, torch.Tensor], header: dict) -> None:
        """Hold `rows` as `rows()` gave them, on the device they are on."""
        self.reset()
        if header["dtype"] is None:
            return
        for name, held in rows.items():
            getattr(self, name).replace(held)
        first = next(iter(rows.values()))
        self.dtype, self.device, self.batch_size = getattr(torch, header["dtype"]), first.device, first.shape[B]
        self.seen, self.is_initialized = header["seen"], True

    def fork(self) -> "Stored":
        """A copy that shares storage until one of the two writes: no bytes are copied now, and neither changes the other."""
        other = object.__new__(type(self))
        for name, value in self.__dict__.items():
            setattr(other, name, value.fork() if isinstance(value, Buffer) else copy.deepcopy(value))
        return other

    def __getstate__(self) -> dict:
        return self.__dict__

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict) -> "Stored":
        other = object.__new__(type(self))
        memo[id(self)] = other
        for name, value in self.__dict__.items():
            setattr(other, name, copy.deepcopy(value, memo))
        return other


class Layer(Stored, CacheLayerMixin):
    """Base of our attention layers: Buffers of keys and values."""

    bounded: bool = False  # does the storage stop growing?
    needs_query: bool = False  # is `attend` to see every query? Then a model whose attention goes around it is refused.
    why_query = "chooses by the query what it keeps"

    def __init__(self, is_sliding: bool = False):
        # keys and values are properties here, so the mixin's own __init__, which assigns them, is not called.
        self.is_sliding = is_sliding  # does the *model* mask this layer with a sliding window?
        self.is_initialized = False
        self.seen = 0
        for name in self.stores:
            setattr(self, name, Buffer())

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take shapes, dtype and device from the first keys and values; length 0 is fine. Raises ValueError where only one of the two was assigned."""
        self.check_sides()
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size = key_states.shape[B]
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.seen

    def get_max_length(self) -> int:
        """Largest number of tokens the layer can see; -1 for no limit."""
        return -1

    def attend(self, query: torch.Tensor, keys: Any, values: Any, mask: torch.Tensor | None, scale: float | None, is_causal: bool) -> torch.Tensor | None:
        """Attention of query [B, Hq, n, D], the n tokens of the last update, over what that update handed over by `attention.hand_over`; returns [B, Hq, n, value D].

        Arguments as scaled_dot_product_attention has them; Hq is a multiple of the H of keys and values [B, H, T, D]. None: torch's own attention is to do it.
        """
        return kernels.decode_attention(query, keys, values, mask, scale, is_causal)

    def header(self) -> dict:
        self.check_sides()
        return super().header()

    def sides(self) -> tuple[Buffer, Buffer]:
        """The buffers of keys and of values as they came."""
        raise NotImplementedError(f"{type(self).__name__} does not say which buffers hold its keys and values: it needs sides(), or to derive from RowsLayer")

    def readable(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Keys and values as attention reads them, to be read alone: a fork may share their storage."""
        keys, values = self.sides()
        return keys.view(), values.view()

    @property
    def keys(self) -> torch.Tensor | None:
        """All keys held [B, H, held, D], to be read or edited. Assigned, they replace those held, and as many tokens have been seen: values of as many follow."""
        return self.editable(0)

    @keys.setter
    def keys(self, rows: torch.Tensor) -> None:
        self.assign("keys", rows)

    @property
    def values(self) -> torch.Tensor | None:
        """All values held [B, H, held, D], as `keys`."""
        return self.editable(1)

    @values.setter
    def values(self, rows: torch.Tensor) -> None:
        self.assign("values", rows)

    def editable(self, side: int) -> torch.Tensor | None:
        """Keys (0) or values (1) for those who may write there."""
        return self.sides()[side].own()

    def assign(self, side: str, rows: torch.Tensor) -> None:
        """Hold `rows` as "keys" or "values", and nothing else. Until both are of the same rows and tokens no token is taken."""
        self.check_assigned(side, rows)
        keys, values = self.sides()
        before, buffer = len(keys), values if side == "values" else keys
        buffer.clear()
        buffer.append(rows.clone() if rows.requires_grad else rows)  # with a gradient they would be held as they are
        self.seen += len(keys) - before
        self.assigned, self.is_initialized = True, _alike(keys, values)
        if self.is_initialized:
            self.dtype, self.device, self.batch_size = keys.data.dtype, keys.data.device, keys.data.shape[B]

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        """Raise ValueError for what cannot be assigned."""
        if not isinstance(rows, torch.Tensor) or rows.dim() != 4:
            got = tuple(rows.shape) if isinstance(rows, torch.Tensor) else type(rows).__name__
            raise ValueError(f"{side} of a {type(self).__name__} must be a tensor [batch, heads, tokens, head_dim], got {got}; reset() forgets those held")

    def check_sides(self) -> None:
        """Raise ValueError where keys, or values, were assigned and the others not yet."""
        keys, values = self.sides()
        if self.assigned and not _alike(keys, values):
            held = [None if buffer.data is None else tuple(buffer.view().shape) for buffer in (keys, values)]
            raise ValueError(f"a {type(self).__name__} was assigned keys {held[0]} beside values {held[1]}: they must be of the same rows and tokens, so assign the others too")

    @property
    def held(self) -> int:
        """Tokens stored."""
        return self.seen

    @property
    def crop_floor(self) -> int:
        """Smallest length that `crop` can go back to now."""
        return 0

    @property
    def exact_crop_floor(self) -> int:
        """Smallest length from which on `crop` leaves what was held when that many tokens had been seen: a rounded token comes back rounded."""
        return self.crop_floor

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(kv_length, kv_offset) of the attention that the next `query_length` tokens will do."""
        return self.seen + query_length, 0

    def crop(self, tokens: int) -> None:
        """Positive: keep that many tokens; negative: remove that many; 0: nothing to remove.

        Raises CropError when the tokens to go back to are no longer held; nothing has changed then.
        """
        length = target_length(self.seen, tokens)
        if length == self.seen:
            return
        self.check_sides()
        if length < self.crop_floor:
            raise CropError(
                f"cannot go back to {length} tokens: of {self.seen} seen, {type(self).__name__} can drop at most the last "
                f"{self.seen - self.crop_floor}; reset() and feed the tokens again instead"
            )
        self._crop_to(length)
        self.seen = length

    def _crop_to(self, length: int) -> None:
        for buffer in self.buffers().values():
            buffer.drop_back(self.seen - length)

    def trim(self) -> None:
        """Let go of what was only kept for a `crop` that has now been done."""

    def token_fates(self) -> list[tuple[str, int]]:
        """(fate, count) from the oldest to the newest seen token; fates: sink, full, quantized, state, evicted."""
        return [("full", self.seen)] if self.seen else []


class RowsLayer(Layer):
    """A layer of one Buffer of keys and one of values, which attention reads as they are. Stores both [B, H, held, D]."""

    stores = {"key_rows": "keys", "value_rows": "values"}
    key_rows: Buffer
    value_rows: Buffer

    def sides(self) -> tuple[Buffer, Buffer]:
        return self.key_rows, self.value_rows


class EvictingLayer(RowsLayer):
    """A layer that chooses which tokens it keeps, the same number in every head. Stores keys, values [B, H, held, D], in the order of their positions.

    `per_token`: the buffers of which `keep` leaves the rows that stay. A subclass calls `keep` from its own `update` or, where it goes by the query, from `attend`, after it has attended: `needs_query` is then True. Rows
    padded on the left would count their padding, so its cache sets `takes_left_padding` to False.
    """

    bounded = True
    per_token: ClassVar[tuple[str, ...]] = ("key_rows", "value_rows")

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; hand over all that is held, [B, H, held + n, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        append_both(self.key_rows, self.value_rows, key_states, value_states)
        self.seen += key_states.shape[T]
        return hand_over(self, *self.stored(), key_states.shape[T])

    def stored(self) -> tuple[Any, Any]:
        """Keys and values of all that is held [B, H, held, D], plain or `Packed`."""
        return self.key_rows.view(), self.value_rows.view()

    def keep(self, places: torch.Tensor) -> None:
        """Hold only the rows at `places` [B or 1, H or 1, n], counted over those held, and give back what the others took."""
        for name in self.per_token:
            getattr(self, name).leave(places.sort(dim=-1).values)

    @property
    def held(self) -> int:
        return len(self.key_rows)

    @property
    def crop_floor(self) -> int:
        return 0 if self.held == self.seen else self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(kv_length, kv_offset): what is held stands right before the new tokens, all of which see all of it."""
        return self.held + query_length, self.seen - self.held

    def refuse_drafts(self) -> None:
        raise ValueError(f"{type(self).__name__} evicts tokens, and cannot go back as decoding with drafts must")

    def token_fates(self) -> list[tuple[str, int]]:
        """(fate, count): how many are gone. Which ones differs from head to head."""
        return [(fate, count) for fate, count in (("evicted", self.seen - self.held), ("full", self.held)) if count]


def target_length(seen: int, tokens: int) -> int:
    """The length that `crop(tokens)` means: positive keeps, negative removes, 0 leaves; never more than `seen`."""
    try:
        whole = int(tokens) == tokens
    except (TypeError, ValueError, RuntimeError, OverflowError):
        whole = False
    if not whole:
        raise CropError(f"crop takes a whole number of tokens, got {tokens!r}")
    if tokens < -seen:
        raise CropError(f"cannot remove {-tokens} tokens from a cache that has seen {seen}")
    return min(tokens, seen) if tokens > 0 else seen + tokens
