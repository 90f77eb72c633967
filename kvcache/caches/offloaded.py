"""OffloadedCache: layers wait in the host's memory and come to the accelerator one ahead of their turn."""

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import decoder_config
from ..cache import Cache, build_layers
from ..entry import Entry, all_but
from ..layer import Layer
from ..recurrent import States
from ..validation import batch_rows
from .dynamic import LAYERS, GrowingLayer


class Link:
    """The way between a device that computes and the place where layers wait: copies on a second stream.

    Neither stream overtakes the other: copies wait for what was asked of the device before them (`copying`), and the
    device for the copies (`arrive`). The memory that a copy reads is given to nobody else before: of the device's the
    allocator is told, the host's is kept until `arrive`. For any accelerator that torch.accelerator knows.
    """

    def __init__(self, device: torch.device, host: torch.device):
        self.device, self.host = device, host
        self.copies = torch.Stream(device=device)
        self.kept: list[torch.Tensor] = []

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """What is copied in this context runs beside the computing, behind all that was asked of the device so far."""
        self.copies.wait_stream(torch.accelerator.current_stream(self.device))
        with self.copies:
            yield

    def arrive(self) -> None:
        """Let the device wait, and not the host, for every copy asked for."""
        torch.accelerator.current_stream(self.device).wait_stream(self.copies)
        self.kept.clear()

    def finish(self) -> None:
        """Let the host wait for every copy asked for: after this it may read what came."""
        self.copies.synchronize()
        self.arrive()

    def mark(self) -> torch.Event:
        """This point among the copies; `mark.synchronize()` lets the host wait for those before it and no others."""
        return self.copies.record_event()

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, complete once it has arrived."""
        self.kept.append(tensor)
        return tensor.to(self.device, non_blocking=True)

    def evict(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy at the waiting place, in pinned memory where torch has it, complete once finished. What is left of the original on the device is free at once."""
        if tensor.device == self.device:
            tensor.record_stream(self.copies)
        return tensor.to(self.host, non_blocking=True)

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite a tensor on the device with one of the same shape that waits."""
        self.kept.append(source)
        target.copy_(source, non_blocking=True)

    def __deepcopy__(self, memo: dict) -> "Link":
        return self  # two caches may share a stream: each waits for what both asked


def _after_settling(name: str) -> Callable:
    """The inherited method `name`, on a cache that has settled."""

    def method(self: "Offloading", *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return getattr(super(Offloading, self), name)(*args, **kwargs)

    return functools.wraps(getattr(Cache, name))(method)


class Offloading(Cache):
    """Base of caches whose layers wait elsewhere. Works on `Layer.buffers()`, so for every layer of ours.

    As layer k is updated, the one behind it comes and, once its new tokens are stored, k itself leaves, both while k
    computes; one whose attention changes what it holds leaves with the next layer's update. Only filled rows travel. Two
    layers alone stay, and so do layers that stop growing, such as windows: there is little to gain; and layers that hold a recurrent state beside their keys,
    which is read before the keys are asked for; a warning says so once. A beam reorder of a waiting layer is done when it is
    back on its device. Where keys already come from the waiting place (a machine without accelerator) nothing moves,
    and a warning says so once. `link` replaces the streams, for tests.
    """

    def __init__(self, *args: Any, offload_device: torch.device | str = "cpu", link: Link | None = None, **kwargs: Any) -> None:
        self.offload_device = torch.device(offload_device)
        self.links: dict[torch.device, Link] = {}  # by computing device
        self.only_link = link
        self.here: set[int] = set()  # layers on their device or on their way to it
        self.pending: dict[int, torch.Tensor] = {}  # layer -> beam_idx not applied yet
        self.has_warned = False
        super().__init__(*args, **kwargs)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.only_link is None and key_states.device.type == self.offload_device.type:
            self._warn_once(f"its keys are computed on {key_states.device}, which is where it would offload them to")
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return self._update_moving(key_states, value_states, layer_idx, *args, **kwargs)

    @torch.compiler.disable
    def _update_moving(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        link = self._link(key_states.device)
        if not self.has_warned and all(isinstance(layer, States) for layer in self.layers):
            self._warn_once(f"layers that hold a recurrent state beside their keys stay on {key_states.device}")
        self._bring(layer_idx, link)
        following = self._next(layer_idx)
        with link.copying():
            for index in sorted(self.here - {layer_idx, following}):
                self._leave(index, link)
            if following is not None:
                self._come(following)
        with self._at_work(layer_idx):
            attended = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self._moves(layer_idx):
            self.here.add(layer_idx)
            if self._leaves_at_once(layer_idx, following):
                with link.copying():
                    self._leave(layer_idx, link)
        return attended

    def _link(self, device: torch.device) -> Link:
        if device not in self.links:
            self.links[device] = self.only_link or Link(device, self.offload_device)
        return self.links[device]

    def _warn_once(self, why: str) -> None:
        if not self.has_warned and not torch.compiler.is_compiling():
            self.has_warned = True
            warnings.warn(f"{type(self).__name__} moves nothing: {why}", stacklevel=2)

    def _moves(self, layer_idx: int) -> bool:
        """Is this a layer that can wait elsewhere? Recurrent states are read before the keys beside them are asked for, so they stay."""
        if not 0 <= layer_idx < len(self.layers):
            return False
        layer = self.layers[layer_idx]
        return isinstance(layer, Layer) and layer.is_initialized and not layer.bounded and not isinstance(layer, States)

    def _next(self, layer_idx: int) -> int | None:
        """The next layer that waits, behind this one and then from the first again; None if there is no other."""
        count = len(self.layers)
        order = ((layer_idx + step) % count for step in range(1, count))
        return next((index for index in order if self._moves(index)), None)

    def _leaves_at_once(self, layer_idx: int, following: int | None) -> bool:
        """Can it go while its attention, which holds what `update` returned, is still to come? Not where that changes the layer, nor where this and the next one are all that move."""
        return following is not None and self._next(following) != layer_idx and not self.layers[layer_idx].needs_query

    def _bring(self, layer_idx: int, link: Link) -> None:
        """Have this layer on its device, in its right order, before it is used."""
        if self._moves(layer_idx) and layer_idx not in self.here:
            with link.copying():
                self._come(layer_idx)
        link.arrive()
        if layer_idx in self.pending:
            self._reorder(layer_idx, self.pending.pop(layer_idx))

    def _come(self, layer_idx: int) -> None:
        """Ask for a layer that waits."""
        layer = self.layers[layer_idx]
        if layer_idx not in self.here:
            _replace_data(layer, self._link(layer.device).fetch)
            self.here.add(layer_idx)

    def _leave(self, layer_idx: int, link: Link) -> None:
        """Send a layer to where it waits."""
        _replace_data(self.layers[layer_idx], link.evict)
        self.here.discard(layer_idx)

    def _at_work(self, layer_idx: int) -> contextlib.AbstractContextManager:
        """Around the update of a layer that is here."""
        return contextlib.nullcontext()

    def _reorder(self, layer_idx: int, beam_idx: torch.Tensor) -> None:
        self.layers[layer_idx].reorder_cache(beam_idx)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Row i becomes a copy of row beam_idx[i]: now in layers that are here, in the others when they come."""
        beam_idx = batch_rows("beam_idx", beam_idx)
        if beam_idx.shape[0] != self.batch_size:
            self.settle()
            return super().reorder_cache(beam_idx)
        for link in set(self.links.values()):
            link.arrive()
        for index, layer in enumerate(self.layers):
            if not self.links:
                layer.reorder_cache(beam_idx)
            elif self._moves(index) and index not in self.here:
                self.pending[index] = self.pending[index][beam_idx] if index in self.pending else beam_idx
            elif index in self.here:
                self._reorder(index, beam_idx)
            else:
                layer.reorder_cache(beam_idx)
        self.shift = self.shift and self.shift.rows(beam_idx)

    def settle(self) -> None:
        """Wait for every copy and make up for every delayed reorder: after this, what is stored may be read anywhere."""
        for link in set(self.links.values()):
            link.finish()
        for index in list(self.pending):
            self.layers[index].reorder_cache(self.pending.pop(index))

    crop = _after_settling("crop")
    batch_select_indices = _after_settling("batch_select_indices")
    batch_repeat_interleave = _after_settling("batch_repeat_interleave")
    to_legacy_cache = _after_settling("to_legacy_cache")
    __getitem__ = _after_settling("__getitem__")

    @classmethod
    def from_batch_splits(cls, splits: Sequence["Offloading"], num_hidden_layers: int | None = None) -> "Offloading":
        for split in splits:
            split.settle()
        return super().from_batch_splits(splits)

    def reset(self) -> None:
        self.settle()
        super().reset()
        self.here.clear()

    def fork(self) -> "Offloading":
        self.settle()
        other = super().fork()
        other.here, other.pending, other.links = set(self.here), {}, dict(self.links)
        return other

    def __getstate__(self) -> dict:
        """What pickle and torch.save take: no streams, which are made anew where they are needed."""
        self.settle()
        return {**self.__dict__, "links": {}}

    def __deepcopy__(self, memo: dict) -> "Offloading":
        self.settle()
        other = object.__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return other


def _replace_data(layer: Layer, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Every buffer's filled rows by what `moved` makes of them; shared with a fork no more. Of fixed storage, whose layer may write at an address of its own, all rows."""
    for buffer in layer.buffers().values():
        if buffer.data is None:
            continue
        if buffer.capacity is None:
            buffer.data, buffer.start, buffer.stop = moved(buffer.view()), 0, len(buffer)
        else:
            buffer.data = moved(buffer.data)
        buffer.frozen, buffer.shared = 0, False


class OffloadedCache(Offloading):
    """Keep every token, all but one or two layers of it in the host's memory, on any model.

    Layer k + 1 comes on a second stream while k computes, and k leaves. Holds what DynamicCache holds and gives the
    same bits. On a machine without accelerator a DynamicCache that says so once. Copies the whole layer both ways at
    every token: it saves accelerator memory, not time.
    """

    name = "offloaded"

    def __init__(self, config: PreTrainedConfig | None = None, *, offload_device: torch.device | str = "cpu", link: Link | None = None):
        layers = None if config is None else build_layers(decoder_config(config), LAYERS)
        super().__init__(layers, GrowingLayer, offload_device=offload_device, link=link)


ENTRY = Entry(
    name="offloaded",
    title="Offloaded",
    summary="Keeps every token, in the host's memory, and fetches each layer just ahead of its turn. Without an accelerator it is Dynamic.",
    cache_class=OffloadedCache,
    make=OffloadedCache,
    can=all_but("compile", "export"),
)
