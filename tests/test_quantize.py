"""Packing is lossless, rounding is within half a step, the fast code equals loops that anyone can read, and attention over codes errs less than upstream's."""

import pytest
import torch
from transformers.cache_utils import HQQQuantizedLayer

from kvcache.caches.quantized import QuantizedLayer
from kvcache.quantize import QUANTIZERS, Scheme, fitted, native, native_keys, native_values, pack, unpack

BITS = {"native": (8, 4, 2), "hqq": (8, 4, 3, 2, 1), "quanto": (4, 2)}


@pytest.mark.parametrize("head_dim", [8, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 8])
def test_packing_loses_nothing_and_takes_exactly_its_bits(nbits, head_dim):
    codes = torch.randint(0, 2**nbits, (2, 3, 7, head_dim), dtype=torch.uint8)
    packed = pack(codes, nbits)
    assert packed.numel() * 8 == codes.numel() * nbits
    assert torch.equal(unpack(packed, nbits), codes)


def test_the_low_nibble_is_the_first_half_of_the_head():
    codes = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)
    assert pack(codes, 4).tolist() == [[1 | 3 << 4, 2 | 4 << 4]]


def slow_decode(block, nbits, axis, group):
    """Round every group by itself with plain loops; the block is already at most 1 in magnitude."""
    out = torch.empty_like(block)
    b, h, t, d = block.shape
    for row in range(b):
        for head in range(h):
            for i in range(t if axis == "token" else d):
                line = block[row, head, i] if axis == "token" else block[row, head, :, i]
                for start in range(0, len(line), group):
                    piece = line[start : start + group]
                    low = piece.min().half().float()
                    step = ((piece.max() - low) / (2**nbits - 1)).half().float()
                    rounded = ((piece - low) / step).round().clamp(0, 2**nbits - 1) * step + low
                    if axis == "token":
                        out[row, head, i, start : start + group] = rounded
                    else:
                        out[row, head, start : start + group, i] = rounded
    return out


@pytest.mark.parametrize("axis,group", [("channel", 32), ("channel", 64), ("token", 16), ("token", 32)])
@pytest.mark.parametrize("nbits", [2, 4, 8])
def test_native_equals_the_slow_formula(nbits, axis, group):
    block = torch.randn(2, 2, 64, 32)
    block /= block.abs().amax(dim=(2, 3), keepdim=True)
    scheme = Scheme(nbits, axis, group, native)
    decoded = scheme.decode(scheme.encode(block), 64, torch.float32)
    torch.testing.assert_close(decoded, slow_decode(block, nbits, axis, group))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-5, 1.0, 1e5, 1e30])
@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("backend,nbits", [(backend, nbits) for backend in BITS for nbits in BITS[backend]])
def test_every_magnitude_is_held_as_well_as_any_other(backend, nbits, axis, magnitude):
    block = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(1))
    scheme = Scheme(nbits, axis, 64, QUANTIZERS[backend])

    def error(magnitude):
        decoded = scheme.decode(scheme.encode(block * magnitude), 64, torch.float32)
        return (decoded / magnitude - block).norm() / block.norm()

    assert error(1.0) < {8: 0.01, 4: 0.12, 3: 0.25, 2: 0.55, 1: 2.0}[nbits]  # one bit: only the extremes are levels
    torch.testing.assert_close(error(magnitude), error(1.0), rtol=0.02, atol=1e-4)


def test_constant_and_zero_blocks_come_back_as_they_were():
    for value in (0.0, 3.0, -7.5):
        block = torch.full((1, 1, 64, 32), value)
        for backend, axis in (("native", "channel"), ("native", "token"), ("quanto", "channel"), ("hqq", "token")):
            scheme = Scheme(4, axis, 32, QUANTIZERS[backend])
            torch.testing.assert_close(scheme.decode(scheme.encode(block), 64, torch.float32), block, rtol=1e-3, atol=1e-6)


def test_keys_with_outlier_channels_want_the_channel_axis():
    """The reason for KIVI's grouping: per-channel outliers ruin groups that run across channels."""
    keys = torch.randn(1, 4, 256, 128, generator=torch.Generator().manual_seed(2))
    keys[..., [3, 40, 77]] *= 20
    errors = {}
    for axis in ("channel", "token"):
        scheme = Scheme(4, axis, 64, native)
        errors[axis] = (scheme.decode(scheme.encode(keys), 256, torch.float32) - keys)[..., 0].norm().item()
    assert errors["channel"] * 3 < errors["token"]


@pytest.fixture(scope="module")
def states():
    return drawn(0)


def drawn(seed):
    """Queries, keys [1, 2, 1024, 64] with a few loud or shifted channels a head, and Gaussian values."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 1, 2, 1024, 64, generator=generator)
    for head in range(2):
        loud, shifted = (torch.randperm(64, generator=generator)[:n] for n in (2, 3))
        keys[0, head, :, loud] *= 8 + 12 * torch.rand(2, generator=generator)
        keys[0, head, :, shifted] += 3 * torch.randn(3, generator=generator)
    return torch.randn(1, 2, 64, 64, generator=generator), keys, values


def attention_error(states, keys, values) -> float:
    attend = torch.nn.functional.scaled_dot_product_attention
    exact = attend(*states)
    return ((attend(states[0], keys, values) - exact).norm() / exact.norm()).item()


def ours(nbits, keys, values):
    layer = QuantizedLayer("native", nbits, 64, 0)
    layer.update(keys, values)
    return layer.keys, layer.values


def quanto_default(states: torch.Tensor) -> torch.Tensor:
    """What transformers' quanto layer stores by default, decoded without quanto's C++ extension, which only unpacks codes."""
    from optimum.quanto import MaxOptimizer, group, qint4, ungroup

    scale, shift = MaxOptimizer()(states, qint4, axis=0, group_size=64)
    grouped = group(states, axis=0, group_size=64)
    codes = ((grouped + shift) / scale).round().clamp(0, 15)
    return ungroup(codes * scale - shift, axis=0, orig_shape=states.shape)


def test_four_bits_err_a_third_of_quantos_and_less_than_hqqs(states):
    _, keys, values = states
    upstream = HQQQuantizedLayer(nbits=4)
    upstream.update(keys, values)
    hqq = [upstream._dequantize(stored).view_as(keys) for stored in (upstream._quantized_keys, upstream._quantized_values)]
    error = attention_error(states, *ours(4, keys, values))
    assert error < attention_error(states, quanto_default(keys), quanto_default(values)) / 3
    assert error < attention_error(states, *hqq)


@pytest.mark.parametrize("nbits", [8, 4, 2])
def test_a_hundred_flushes_change_no_block(states, nbits):
    _, keys, values = (x.repeat(1, 1, 2, 1)[..., :16] for x in states)
    layer, first = QuantizedLayer("native", nbits, 16, 0), None
    for step in range(101):
        layer.update(*(x[:, :, step * 16 : step * 16 + 16] for x in (keys, values)))
        stored = {name: rows[:, :, :1].clone() for name, rows in layer.rows().items() if "residual" not in name}
        first = first or stored
        assert all(torch.equal(stored[name], first[name]) for name in first)
    assert torch.equal(layer.keys, in_blocks(native_keys, "channel", keys[:, :, : 101 * 16], nbits, 16))


def in_blocks(quantizer, axis, states, nbits=2, block=64):
    """States as they come back from blocks quantised one by one."""
    scheme = Scheme(nbits, axis, block, quantizer)
    return torch.cat([scheme.decode(scheme.encode(part), block, torch.float32) for part in states.split(block, dim=2)], dim=2)


@pytest.mark.parametrize("nbits", [8, 4, 2])
def test_a_row_does_not_depend_on_the_rows_beside_it(states, nbits):
    batch = torch.cat([states[1], states[2] * 1e4, states[1].flip(2)])
    for together, alone in zip(ours(nbits, batch, batch), zip(*(ours(nbits, row[None], row[None]) for row in batch))):
        assert torch.equal(together, torch.cat(alone))


def test_two_bits_err_less_where_they_are_fitted():
    """Which tokens a loud channel favours is a matter of luck, so over several draws."""
    errors = {"keys": [], "fitted keys": [], "values": [], "fitted values": []}
    for queries, keys, values in map(drawn, range(8)):
        for name, quantizer in (("keys", native), ("fitted keys", native_keys)):
            errors[name].append(attention_error((queries, keys, values), in_blocks(quantizer, "channel", keys), values))
        for name, quantizer in (("values", native), ("fitted values", native_values)):
            errors[name].append(attention_error((queries, keys, values), keys, in_blocks(quantizer, "token", values)))
    mean = {name: sum(found) / len(found) for name, found in errors.items()}
    assert mean["fitted keys"] < 0.95 * mean["keys"] and mean["fitted values"] < 0.85 * mean["values"]


@pytest.mark.parametrize("power", [0, 3])
def test_a_long_fit_is_the_least_squares_line_of_its_codes(power, monkeypatch):
    """And the codes are the nearest to its line: neither can be bettered alone."""
    monkeypatch.setattr("kvcache.quantize.FITS", 30)
    grouped = torch.randn(50, 64, generator=torch.Generator().manual_seed(1)).clamp(-3, 3) / 3
    codes, scale, minimum = fitted(grouped, 2, 1.0, power)
    levels = minimum[..., None] + scale[..., None] * torch.arange(4)
    assert torch.equal((grouped[..., None] - levels).abs().argmin(-1), codes.long())
    weights = (grouped - grouped.mean(-1, keepdim=True)).abs().pow(power)

    def error(scale, minimum):
        return (weights * (codes * scale + minimum - grouped) ** 2).sum(-1)

    for moved in ((scale * 1.05, minimum), (scale * 0.95, minimum), (scale, minimum + 0.05), (scale, minimum - 0.05)):
        assert (error(*moved) > error(scale, minimum)).all()


def test_fits_leave_other_widths_alone_and_constants_as_they_are():
    grouped = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)).tanh()
    for quantizer in (native_keys, native_values):
        for nbits in (8, 4):
            assert all(torch.equal(a, b) for a, b in zip(quantizer(grouped, nbits), native(grouped, nbits)))
        codes, scale, minimum = quantizer(torch.full((1, 64), 0.5), 2)
        assert torch.equal(codes * scale + minimum, torch.full((1, 64), 0.5))


def test_the_native_backend_alone_is_fitted():
    layer = QuantizedLayer("native", 2, 64, 0)
    assert layer.scheme("value", 64).quantizer is native_values and layer.scheme("key", 64).quantizer is native_keys
    assert QuantizedLayer("hqq", 2, 64, 0).scheme("value", 64).quantizer is QUANTIZERS["hqq"]
