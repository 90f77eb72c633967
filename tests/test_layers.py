"""Random sequences of operations on every layer, against plain lists of tokens."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.caches.dynamic import GrowingLayer
from kvcache.caches.quantized import QuantizedLayer, QuantizedWindowLayer
from kvcache.caches.sink import QuantizedSinkLayer, SinkLayer
from kvcache.caches.sliding_window import WindowLayer
from kvcache.caches.static import StaticLayer, StaticWindowLayer
from kvcache.layer import Buffer, CropError, capacity_for

WINDOW, SINKS, ROOM = 12, 3, 400
LAYERS = {
    "growing": GrowingLayer,
    "static": lambda: StaticLayer(ROOM),
    "window": lambda: WindowLayer(WINDOW),
    "static window": lambda: StaticWindowLayer(WINDOW),
    "sink": lambda: SinkLayer(WINDOW, SINKS),
    "quantized": lambda: QuantizedLayer("native", 8, 8, 4, 8),
    "quantized window": lambda: QuantizedWindowLayer("native", 8, 8, 4, 8, first_tokens=2, window_length=WINDOW),
    "quantized sink": lambda: QuantizedSinkLayer("native", 8, 8, 4, 8, first_tokens=SINKS, window_length=WINDOW),
}
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 30)),
    st.tuples(st.just("crop"), st.integers(-12, 60)),
    st.tuples(st.just("reorder"), st.integers(0, 99)),
    st.tuples(st.just("repeat"), st.just(2)),
    st.tuples(st.just("select"), st.integers(0, 99)),
    st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("fork"), st.booleans()),
    st.tuples(st.just("reset"), st.just(0)),
)


def expected_tokens(name, row, held):
    """The tokens of one row that a layer holding `held` of them should hold."""
    if "window" in name:
        return row[len(row) - held :]
    if "sink" in name:
        return row[: min(SINKS, held)] + row[len(row) - max(0, held - SINKS) :] if held > SINKS else row[:held]
    return row


def states(rows):
    """Keys that spell the tokens: [B, 2 heads, n, 8 dims]."""
    return torch.tensor(rows, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 8).contiguous()


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(operations=st.lists(OPERATIONS, max_size=14))
def test_a_layer_holds_what_a_list_of_tokens_would(name, operations):
    layer, rows, fresh, shadows = LAYERS[name](), [[], []], iter(range(1, 10**6)), []
    for operation, amount in operations:
        if operation == "add" and len(rows[0]) + amount <= ROOM:
            new = [[float(next(fresh) % 97) for _ in range(amount)] for _ in rows]
            layer.update(states(new), -states(new))
            rows = [row + more for row, more in zip(rows, new)]
        elif operation == "crop" and layer.is_initialized:
            rows = cropped(layer, rows, amount)
        elif operation == "reorder":
            index = torch.randint(0, len(rows), (len(rows),), generator=torch.Generator().manual_seed(amount))
            layer.reorder_cache(index)
            rows = [list(rows[i]) for i in index] if layer.is_initialized else rows
        elif operation == "repeat" and len(rows) < 8 and layer.is_initialized:
            layer.batch_repeat_interleave(amount)
            rows = [list(row) for row in rows for _ in range(amount)]
        elif operation == "select" and layer.is_initialized:
            keep = [amount % len(rows)]
            layer.batch_select_indices(torch.tensor(keep))
            rows = [rows[i] for i in keep]
        elif operation == "copy":
            old, layer = layer, copy.deepcopy(layer)
            old.reset()
        elif operation == "fork":
            other = layer.fork()
            layer, other = (layer, other) if amount else (other, layer)
            shadows.append((other, rows))
        elif operation == "reset" and "static" not in name:
            layer.reset()
            rows = [[], []]
        for each, its_rows in [(layer, rows), *shadows]:
            check(name, each, its_rows)


def cropped(layer, rows, amount):
    seen = len(rows[0])
    length = min(amount, seen) if amount > 0 else seen + amount
    if length < layer.crop_floor or length < 0:
        with pytest.raises(CropError):
            layer.crop(amount)
        return rows
    layer.crop(amount)
    return [row[:length] for row in rows]  # new lists: a fork's tokens are not touched


def check(name, layer, rows):
    assert layer.get_seq_length() == layer.seen == len(rows[0])
    if not rows[0]:
        return
    held = layer.held
    assert held == (min(len(rows[0]), WINDOW) if "window" in name or "sink" in name else len(rows[0])) or held == len(rows[0]) or held == WINDOW - 1
    wanted = states([expected_tokens(name, row, held) for row in rows])
    tolerance = 0.8 if "quantized" in name else 0.0  # 8 bits of a range of 97, cropped and quantised again
    keys, values = layer.readable()  # which leaves what forks share shared
    torch.testing.assert_close(keys[:, :, :held], wanted, atol=tolerance, rtol=0)
    torch.testing.assert_close(values[:, :, :held], -wanted, atol=tolerance, rtol=0)
    assert sum(count for _, count in layer.token_fates()) == len(rows[0])


def test_growing_copies_little_and_spares_little():
    buffer, copies, last = Buffer(), 0, None
    row = torch.zeros(1, 1, 1, 1)
    for _ in range(20000):
        buffer.append(row)
        if buffer.data.data_ptr() != last:
            copies, last = copies + len(buffer), buffer.data.data_ptr()
    assert copies < 14 * 20000  # concatenating at every token copies 10,000 times as much as it keeps
    assert capacity_for(20000) < 1.2 * 20000


def test_an_earlier_views_rows_are_not_overwritten_by_later_tokens():
    layer = GrowingLayer()
    first, _ = layer.update(states([[1.0] * 5]), states([[1.0] * 5]))
    kept = first.clone()
    for token in range(200):
        layer.update(states([[float(token)]]), states([[float(token)]]))
    assert torch.equal(first, kept)


def test_a_static_layer_that_is_reset_can_be_filled_again_in_place():
    layer = StaticLayer(8)
    layer.update(states([[1.0, 2.0]]), states([[1.0, 2.0]]))
    address = layer.keys.data_ptr()
    layer.reset()
    layer.update(states([[5.0]]), states([[5.0]]))
    assert layer.keys.data_ptr() == address and layer.keys[0, 0, :, 0].tolist() == [5.0] + [0.0] * 7


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seen=st.integers(1, 90), residual=st.integers(0, 20), first=st.sampled_from([0, 3]))
def test_from_its_exact_floor_on_a_crop_leaves_what_was_held_then(seen, residual, first):
    def filled(tokens):
        layer = QuantizedLayer("native", 2, 8, residual, first_tokens=first)
        for token in range(tokens):
            layer.update(states([[float(token * 37 % 97)]]), -states([[float(token * 11 % 89)]]))
        return layer

    floor = filled(seen).exact_crop_floor
    for length in range(1, seen):
        cropped, there = filled(seen), filled(length)
        cropped.crop(length)
        same = cropped.quantized == there.quantized and all(torch.equal(*pair) for pair in zip(cropped.readable(), there.readable()))
        assert same or length < floor
        assert not same or length != floor - 1 or not residual or length <= first
