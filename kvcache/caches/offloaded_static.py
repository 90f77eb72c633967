"""OffloadedStaticCache: static layers in pinned host memory, computed on in two device buffers that take turns."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import why_not_static
from ..entry import Entry, all_but
from ..layer import Buffer, T, new_rows
from ..read_only import read_only
from ..recurrent import States
from .offloaded import Link, Offloading
from .static import CAPACITY, StaticCache, StaticLayer


class HostedLayer(StaticLayer):
    """A static layer whose storage waits on another device; the cache lends it one of two buffers to compute in.

    Stores keys, values [B, H, max_cache_len, D] there, in pinned memory where there is an accelerator, and in two
    layers of a cache the buffers that are lent, of the same shape on the computing device. `resident`: stays.
    """

    stores = {**StaticLayer.stores, "key_slot": "reserved", "value_slot": "reserved"}

    def __init__(self, max_cache_len: int, offload_device: torch.device, resident: bool, always: bool = False):
        super().__init__(max_cache_len)
        self.offload_device, self.resident, self.always = offload_device, resident, always
        self.key_slot, self.value_slot = Buffer(max_cache_len), Buffer(max_cache_len)
        self.dirty: tuple[int, int] | None = None  # rows of the lent buffers that the storage does not have yet

    def buffers(self) -> dict[str, Buffer]:
        """What holds tokens or states: not the lent buffers."""
        return {name: buffer for name, buffer in super().buffers().items() if not name.endswith("_slot")}

    @property
    def is_hosted(self) -> bool:
        """Does it wait elsewhere than it computes? A recurrent state does not: it is read before the keys beside it are asked for."""
        return not (self.resident or isinstance(self, States)) and self.is_initialized and (self.always or self.device.type != self.offload_device.type)

    def _allocated(self, like: torch.Tensor) -> torch.Tensor:
        return waiting_rows(like, self.max_cache_len, self.offload_device) if self.is_hosted else super()._allocated(like)

    def _place_again(self) -> None:
        """Storage where it waits, counters where it computes, whatever made the storage anew."""
        if not self.is_hosted:
            return super()._place_again()
        for buffer in self.buffers().values():
            buffer.data = pinned(buffer.data.to(self.offload_device))
        self._keep_addresses()

    def editable(self, side: int) -> torch.Tensor | None:
        """Of what waits, a copy to be read: newer rows may be in a lent buffer."""
        rows = super().editable(side)
        if rows is None or not self.is_hosted:
            return rows
        with torch.inference_mode(False):
            return read_only(rows.clone(), "keys and values of an OffloadedStaticCache cannot be edited in place while they wait in the host's memory; a StaticCache's can")

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        if self.is_hosted:
            raise ValueError(f"{side} cannot be assigned to an OffloadedStaticCache, whose newer rows may be in another buffer; they can to a StaticCache")
        super().check_assigned(side, rows)

    def to(self, device: torch.device | str) -> None:
        """Compute on another device; what waits goes on waiting where it is."""
        self.drop_slot()
        if not self.is_hosted:
            return super().to(device)
        self.device = torch.device(device)
        self._keep_addresses()

    def drop_slot(self) -> None:
        """Give back the buffers lent to others; the next to need them allocates them."""
        self.key_slot.clear()
        self.value_slot.clear()

    def fork(self) -> "HostedLayer":
        other = super().fork()
        other.drop_slot()
        return other

    def __deepcopy__(self, memo: dict) -> "HostedLayer":
        other = super().__deepcopy__(memo)
        other.drop_slot()
        return other


def waiting_rows(like: torch.Tensor, capacity: int, device: torch.device) -> torch.Tensor:
    """Zeros [B, H, capacity, D] on the device where layers wait, pinned if that is the host of an accelerator."""
    return pinned(new_rows(torch.empty((*like.shape[:T], 0, like.shape[-1]), dtype=like.dtype, device=device), capacity))


def pinned(rows: torch.Tensor) -> torch.Tensor:
    """The same rows in memory that an accelerator can copy from by itself; as they are where there is none."""
    return rows.pin_memory() if rows.device.type == "cpu" and torch.accelerator.is_available() and not rows.is_pinned() else rows


@dataclass
class Returning:
    """Rows [first, first + n) of a layer on their way back to its storage."""

    first: int
    rows: dict[str, torch.Tensor]  # by buffer name, [B, H, n, D], complete behind `mark`
    mark: torch.Event


class OffloadedStaticCache(Offloading, StaticCache):
    """StaticCache whose layers wait in pinned host memory, and the first one on the device.

    Two buffers of one layer's size on the device take turns: in one the current layer computes while the next is copied
    into the other, and of what was computed only the new rows go back. Windows that the model has itself stay on the
    device. Gives the bits of StaticCache; on a machine without accelerator it is one, and says so once. Takes one
    device: Raises ValueError for a layer_device_map of several.
    """

    name = "offloaded_static"

    def __init__(
        self,
        config: PreTrainedConfig,
        max_batch_size: int | None = None,
        max_cache_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        offload_device: torch.device | str = "cpu",
        layer_device_map: Mapping[int, torch.device | str] | None = None,
        *,
        link: Link | None = None,
    ):
        devices = {str(torch.device(where)) for where in (layer_device_map or {}).values()}
        if len(devices) > 1:
            raise ValueError(f"OffloadedStaticCache computes on one device, layer_device_map names {', '.join(sorted(devices))}")
        self.returning: dict[int, Returning] = {}
        placing = (max_batch_size, max_cache_len, device, dtype)
        super().__init__(config, *placing, layer_device_map=layer_device_map, offload_device=offload_device, link=link)

    def _table(self) -> dict:
        number = itertools.count()
        always = self.only_link is not None
        make = lambda **_: HostedLayer(self.max_cache_len, self.offload_device, resident=next(number) == 0, always=always)  # noqa: E731
        return {**super()._table(), "full_attention": make}

    def _moves(self, layer_idx: int) -> bool:
        layer = self.layers[layer_idx]
        return isinstance(layer, HostedLayer) and layer.is_hosted

    def _next(self, layer_idx: int) -> int | None:
        """Never from the first again: the last layer's buffer might be the first one's, and the resident layer gives time."""
        return next((index for index in range(layer_idx + 1, len(self.layers)) if self._moves(index)), None)

    def _leaves_at_once(self, layer_idx: int, following: int | None) -> bool:
        """Its buffer is lent again no sooner than two layers on."""
        return False

    def _slot(self, layer_idx: int) -> tuple[Buffer, Buffer]:
        """The two buffers, for keys and for values, in which this layer computes."""
        hosted = [index for index in range(len(self.layers)) if isinstance(self.layers[index], HostedLayer) and not self.layers[index].resident]
        owner = self.layers[hosted[hosted.index(layer_idx) % 2]]
        return owner.key_slot, owner.value_slot

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._check_rows(key_states, value_states, layer_idx)
        layer = self.layers[layer_idx]
        if isinstance(layer, HostedLayer) and not layer.is_initialized:
            layer.lazy_initialization(key_states, value_states)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _come(self, layer_idx: int) -> None:
        if layer_idx in self.here:
            return
        layer = self.layers[layer_idx]
        self._land(layer_idx)
        for slot, waiting in zip(self._slot(layer_idx), layer.buffers().values()):
            slot.data = _fitting(slot.data, waiting.data, layer.device)
            if layer.seen:
                self._link(layer.device).fill(slot.data, waiting.data)
            else:
                slot.data.zero_()
        self.here.add(layer_idx)

    def _leave(self, layer_idx: int, link: Link) -> None:
        """Send back what was written; the rest of the buffer is only a copy."""
        layer = self.layers[layer_idx]
        self.here.discard(layer_idx)
        if layer.dirty is not None:
            (first, stop), layer.dirty = layer.dirty, None
            self._land(layer_idx)
            slots = dict(zip(layer.buffers(), self._slot(layer_idx)))
            rows = {name: link.evict(slot.data[:, :, first:stop].contiguous()) for name, slot in slots.items()}
            self.returning[layer_idx] = Returning(first, rows, link.mark())

    def _land(self, layer_idx: int) -> None:
        """Write the rows that came back into the layer's storage; they were asked for a whole round ago."""
        back = self.returning.pop(layer_idx, None)
        if back is None:
            return
        back.mark.synchronize()
        for name, rows in back.rows.items():
            getattr(self.layers[layer_idx], name).data[:, :, back.first : back.first + rows.shape[T]] = rows

    @contextlib.contextmanager
    def _at_work(self, layer_idx: int) -> Iterator[None]:
        """Let the layer work in the lent buffers in place of its storage, and note which rows it wrote."""
        if not self._moves(layer_idx):
            yield
            return
        layer = self.layers[layer_idx]
        own, first = layer.buffers().values(), layer.seen
        waiting = [buffer.data for buffer in own]
        for buffer, slot in zip(own, self._slot(layer_idx)):
            buffer.data = slot.data
        try:
            yield
        finally:
            for buffer, data in zip(own, waiting):
                buffer.data = data
        layer.dirty = (min(first, *(layer.dirty or (first,))), layer.seen)

    def _reorder(self, layer_idx: int, beam_idx: torch.Tensor) -> None:
        if not self._moves(layer_idx):
            return super()._reorder(layer_idx, beam_idx)
        with self._at_work(layer_idx):
            super()._reorder(layer_idx, beam_idx)
        self.layers[layer_idx].dirty = (0, self.layers[layer_idx].seen)

    def fork(self) -> "OffloadedStaticCache":
        other = super().fork()
        other.returning = {}
        return other

    def settle(self) -> None:
        """Have every layer whole in its storage, and nothing in the lent buffers."""
        for index in sorted(self.here):
            link = self._link(self.layers[index].device)
            with link.copying():
                self._leave(index, link)
        for index in list(self.returning):
            self._land(index)
        super().settle()


def _fitting(slot: torch.Tensor | None, waiting: torch.Tensor, device: torch.device) -> torch.Tensor:
    """This slot, or a new one where it is not of the storage's shape and dtype."""
    if slot is not None and slot.shape == waiting.shape and slot.dtype == waiting.dtype and slot.device == device:
        return slot
    return new_rows(torch.empty((*waiting.shape[:T], 0, waiting.shape[-1]), dtype=waiting.dtype, device=device), waiting.shape[T])


ENTRY = Entry(
    name="offloaded_static",
    title="Offloaded static",
    summary="Reserves everything in the host's memory and computes in two buffers on the accelerator. Without an accelerator it is Static.",
    cache_class=OffloadedStaticCache,
    make=lambda config, max_cache_len: OffloadedStaticCache(config, max_cache_len=max_cache_len),
    parameters=(CAPACITY,),
    can=all_but(),
    why_not_model=why_not_static,
    label=lambda max_cache_len: f"Offloaded static {max_cache_len}",
)
