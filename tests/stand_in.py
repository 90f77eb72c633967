"""Stand-ins for a second device, on a machine that has none: for the stream between two, and for a place out of reach."""

import contextlib
from unittest import mock

import torch

from kvcache.caches.offloaded import Link
from kvcache.layer import Buffer
from kvcache.recurrent import State


class StandIn(Link):
    """A link whose copies run when they are waited for (late) or at once (early); `log` says what was asked for."""

    def __init__(self, late: bool):
        self.late, self.asked, self.log, self.is_copying = late, [], [], False
        self.waiting: dict[int, torch.Tensor] = {}  # by address, what lies on the host; kept, so that no address comes twice

    @contextlib.contextmanager
    def copying(self):
        self.is_copying = True
        yield
        self.is_copying = False

    def arrive(self):
        for copied in self.asked:
            copied()
        self.asked.clear()

    finish = arrive

    def mark(self):
        link = self

        class Mark:
            synchronize = staticmethod(lambda: link.arrive())

        return Mark()

    def fetch(self, tensor):
        return self._later("fetch", torch.full_like(tensor, torch.nan if tensor.is_floating_point() else 0), tensor)

    def evict(self, tensor):
        copied = self._later("evict", torch.full_like(tensor, torch.nan if tensor.is_floating_point() else 0), tensor)
        self.waiting[copied.data_ptr()] = copied
        return copied

    def resident_nbytes(self, layer) -> int:
        """Bytes of a layer's storage that lie on the computing device."""
        data = [buffer.data for buffer in layer.buffers().values() if buffer.data is not None]
        return sum(each.numel() * each.element_size() for each in data if each.data_ptr() not in self.waiting)

    def fill(self, target, source):
        return self._later("fill", target, source)

    def _later(self, what, target, source):
        assert self.is_copying, f"{what} outside the copying stream"
        self.log.append((what, tuple(source.shape)))
        if self.late:
            self.asked.append(lambda: target.copy_(source))
        else:
            target.copy_(source)
        return target


@contextlib.contextmanager
def parked(layer):
    """While a layer's storage is sent away and back, hold what it holds: on the CPU nothing can be read until it is fetched.

    Raises AssertionError if any stored tensor was not sent there, or did not come back.
    """
    held = {name: store.data for name, store in layer.buffers().items() if store.data is not None}
    away, journeys = {}, []

    def to(store, device):
        name = next(name for name, each in layer.buffers().items() if each is store)
        journeys.append((name, str(device)))
        if store.data is not None and name not in away:
            away[name], store.data = store.data, torch.full_like(store.data, torch.nan if store.data.is_floating_point() else 0)
        elif store.data is not None:
            store.data = away.pop(name)

    with mock.patch.object(Buffer, "to", to), mock.patch.object(State, "to", to):
        yield
    assert not away, f"{list(away)} did not come back"
    assert {name for name, _ in journeys} >= set(held), f"of {list(held)} only {journeys} travelled"
