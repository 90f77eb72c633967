"""Packing is lossless, rounding is within half a step, the fast code equals loops that anyone can read, and attention over codes errs less than upstream's."""

import pytest
import torch
from transformers.cache_utils import HQQQuantizedLayer

from kvcache.caches.quantized import QuantizedLayer
from kvcache.hadamard import block_of, rotate, rotate_by_matmul
from kvcache.half_quadratic import solve
from kvcache.kernels import cpu
from kvcache.kernels.threads import Loops
from kvcache.quantize import (
    LEVELS,
    QUANTIZERS,
    Scheme,
    fitted,
    native,
    native_keys,
    native_values,
    pack,
    rotated_keys,
    rotated_values,
    total,
    unpack,
)

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


@pytest.mark.parametrize("outlier", [100, 320, 1000, 3000])
@pytest.mark.parametrize("compiled", [True, False])
def test_eight_bits_stay_eight_bits_beside_a_channel_that_is_much_louder(outlier, compiled, monkeypatch):
    """The others' scales are float16 numbers below its smallest normal one then; codes made for another scale than the stored one lose all."""
    if not compiled:
        monkeypatch.setattr(cpu, "ENCODE", Loops("", lambda: None))
    states = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    states[..., 0] = outlier
    layer = QuantizedLayer("native", 8, 64, 0)
    layer.update(states, states)
    error = (layer.keys - states)[..., 1:].norm() / states[..., 1:].norm()
    assert error < 0.007


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


@pytest.mark.parametrize("nbits", [2, 4, 8])
@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e30])
def test_a_token_alone_is_its_own_minimum_and_as_many_steps_as_its_code_says(nbits, magnitude):
    states = drawn_alone() * magnitude
    scheme = Scheme(nbits, "token", 32, native)
    encoded, decoded = scheme.encode_each(states), scheme.decode(scheme.encode_each(states), 1, torch.float32)
    rows, lows, steps = states.flatten(0, 2).double(), encoded.minima.flatten(0, 2).double(), encoded.scales.flatten(0, 2).double()  # [30, 32], [30, 1]
    least, span = rows.min(1, keepdim=True).values, rows.max(1, keepdim=True).values - rows.min(1, keepdim=True).values
    assert ((lows - least).abs() <= 2**-8 * least.abs()).all() and ((steps * (2**nbits - 1) / span - 1).abs() < 0.02).all()  # bfloat16 keeps 8 bits
    right = lows + ((rows - lows) / steps).round().clamp(0, 2**nbits - 1) * steps
    off = (decoded.flatten(0, 2) - right).abs() / steps
    assert ((off < 1e-3) | ((off - 1).abs() < 1e-3)).all() and (off < 1e-3).float().mean() > 0.99  # all but ties
    assert encoded.codes.shape == (2, 3, 5, 32 * nbits // 8) and encoded.scales.dtype == encoded.minima.dtype == torch.bfloat16


@pytest.mark.parametrize("nbits", [2, 4, 8])
def test_a_token_alone_is_the_same_among_others(nbits):
    states, scheme = drawn_alone(), Scheme(nbits, "token", 32, native_keys, rotated=True)
    together = scheme.encode_each(states)
    for token in range(states.shape[2]):
        assert all(torch.equal(part, whole[:, :, token : token + 1]) for part, whole in zip(scheme.encode_each(states[:, :, token : token + 1]), together))
    assert torch.equal(scheme.encode_each(torch.zeros(1, 1, 2, 32)).codes.int().sum(), torch.tensor(0)) and not scheme.decode(scheme.encode_each(torch.zeros(1, 1, 2, 32)), 1, torch.float32).any()


def drawn_alone():
    """[2, 3, 5, 32], some of it loud."""
    states = torch.randn(2, 3, 5, 32, generator=torch.Generator().manual_seed(3))
    states[..., 7] *= 30
    return states


@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("backend,nbits", [(backend, nbits) for backend in BITS for nbits in BITS[backend]])
@pytest.mark.parametrize("rotated", [False, True])
def test_every_magnitude_is_held_as_well_as_any_other(backend, nbits, axis, rotated):
    block = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(1))
    scheme = Scheme(nbits, axis, 64, QUANTIZERS[backend], rotated)

    def error(magnitude):
        decoded = scheme.decode(scheme.encode(block * magnitude), 64, torch.float32)
        return (decoded / magnitude - block).norm() / block.norm()

    assert error(1.0) < {8: 0.01, 4: 0.12, 3: 0.25, 2: 0.55, 1: 2.0}[nbits]  # one bit: only the extremes are levels
    for magnitude in (1e-30, 1e30):
        torch.testing.assert_close(error(magnitude), error(1.0), rtol=0.02, atol=1e-4)


def test_constant_and_zero_blocks_come_back_as_they_were():
    for value in (0.0, 3.0, -7.5):
        block = torch.full((1, 1, 64, 32), value)
        for backend, axis in (("native", "channel"), ("native", "token"), ("quanto", "channel"), ("hqq", "token")):
            scheme = Scheme(4, axis, 32, QUANTIZERS[backend])
            torch.testing.assert_close(scheme.decode(scheme.encode(block), 64, torch.float32), block, rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def loops():
    assert cpu.ENCODE.ready(wait=True), cpu.ENCODE.reason


@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("nbits", [8, 4, 2])
def test_the_largest_numbers_of_float16_stay_numbers(nbits, axis):
    """Scales are rounded, so that a group's last level may lie beyond what float16 holds."""
    scheme, states = Scheme(nbits, axis, 32, native), torch.randn(1, 2, 256, 64, generator=torch.Generator().manual_seed(0)).mul(40_000).clamp(-65_504, 65_504).half()
    decoded = scheme.decode(scheme.encode(states, 32), 32, torch.float32)
    assert decoded.abs().max() > 65_520, "a number that float16 would round to infinity"
    assert torch.equal(scheme.decode(scheme.encode(states, 32), 32, torch.float16), decoded.clamp(-65_504, 65_504).half())


def same(found, expected):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("quantizer", LEVELS)
@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("nbits", [8, 4, 2])
@pytest.mark.parametrize("rotated", [False, True])
def test_the_loops_give_what_torch_gives_to_the_bit(nbits, axis, quantizer, rotated, loops):
    """So that no result depends on whether they are compiled yet."""
    generator = torch.Generator().manual_seed(nbits)
    for (b, h, blocks, block, d), group in (((1, 8, 3, 64, 128), 64), ((2, 3, 2, 32, 80), 16), ((3, 1, 1, 128, 8), 8), ((1, 2, 2, 40, 40), 20)):
        scheme = Scheme(nbits, axis, group, quantizer, rotated)
        for magnitude in (1e-30, 1e-20, 1e20, torch.float32, torch.bfloat16, torch.float16):
            states = torch.randn(b, h, blocks * block, d, generator=generator)
            states = states.to(magnitude) if isinstance(magnitude, torch.dtype) else states * magnitude
            states[:, :, :, 1] *= 30
            expected = in_turn(scheme, states, block)
            assert same(cpu.encode(scheme, states, block), expected) and same(scheme.encode(states, block), expected), (magnitude, block, d)


@pytest.mark.parametrize("dim", [64, 80, 96])
def test_rotated_states_are_rounded_where_they_were_rotated_to(dim):
    """The slow way round: rotate, round, rotate back; and what is stored is of the rotated states."""
    states = torch.randn(1, 2, 64, dim, generator=torch.Generator().manual_seed(0))
    states[..., 3] *= 20
    for axis, group in (("channel", 64), ("token", 16)):
        plain, rotated = (Scheme(4, axis, group, native, turned) for turned in (False, True))
        encoded = rotated.encode(states)
        assert same(encoded, plain.encode(rotate(states)))
        torch.testing.assert_close(rotated.decode(encoded, 64, torch.float32), rotate(plain.decode(encoded, 64, torch.float32)))
        assert torch.equal(rotated.levels(encoded, 64), plain.decode(encoded, 64, torch.float32))


def in_turn(scheme, states, block):
    """Blocks quantised one by one, by torch."""
    return [torch.cat(parts, dim=2) for parts in zip(*(scheme.encode(each) for each in states.split(block, dim=2)))]


@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("nbits", [8, 4, 2])
@pytest.mark.parametrize("rotated", [False, True])
def test_the_loops_do_ties_constants_zeros_and_any_layout_as_torch_does(nbits, axis, rotated, loops):
    scheme = Scheme(nbits, axis, 32, native_keys, rotated)
    ties = torch.randint(0, 9, (1, 2, 64, 64), generator=torch.Generator().manual_seed(0)) / 8
    constant = torch.full((1, 2, 64, 64), 3.0)
    mixed = torch.cat([ties, constant, torch.zeros_like(ties), -ties], dim=2)
    mixed[:, :, :, 5], mixed[:, 0] = 0.1, 0.0
    expanded, turned = mixed[:, :1].expand(2, 3, -1, -1), mixed.transpose(2, 3).contiguous().transpose(2, 3)
    by_tokens = mixed.transpose(1, 2).contiguous().transpose(1, 2)
    for states in (ties, constant, mixed, mixed[:, :, 32:96], mixed[:, 1:], expanded, turned, by_tokens, -mixed):
        assert same(cpu.encode(scheme, states, 32), in_turn(scheme, states, 32))


def test_what_is_not_finite_and_what_needs_gradients_is_left_to_torch(loops):
    states = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(0))
    for nbits, rotated in ((4, False), (2, False), (4, True)):
        scheme = Scheme(nbits, "channel", 64, native_keys, rotated)
        for wrong in (torch.nan, torch.inf, -torch.inf):
            spoilt = states.clone()
            spoilt[0, 1, 3, 5] = wrong
            assert cpu.encode(scheme, spoilt, 64) is None
            assert torch.equal(scheme.encode(spoilt).codes[:, 0], scheme.encode(states).codes[:, 0]), "the other head"
        assert cpu.encode(scheme, states.clone().requires_grad_(), 64) is None
    assert cpu.encode(Scheme(3, "token", 64, QUANTIZERS["hqq"]), states, 64) is None


def test_threads_share_the_blocks_and_change_nothing(monkeypatch, loops):
    states = torch.randn(1, 3, 320, 64, generator=torch.Generator().manual_seed(0))
    scheme, alone = Scheme(4, "token", 64, native_values), None
    monkeypatch.setattr(cpu, "ENOUGH", 0)
    for threads in (1, 2, 7, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        alone = alone or cpu.encode(scheme, states, 64)
        assert same(cpu.encode(scheme, states, 64), alone)


def test_loops_that_fail_their_self_test_are_not_used(monkeypatch):
    monkeypatch.setattr("kvcache.kernels.cpu_encode.encode_heads", lambda *arguments: True)
    broken = Loops("not used", cpu._find_encode)
    assert not broken.ready(wait=True) and "self-test" in broken.reason


@pytest.mark.parametrize("size", [1, 2, 5, 20, 64])
def test_a_total_is_a_sum(size):
    rows = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    torch.testing.assert_close(total(rows.clone()), rows.sum(-1, keepdim=True))


@pytest.mark.parametrize("kind", ["gaussian", "outliers", "skewed", "flat", "tiny"])
@pytest.mark.parametrize("nbits", [8, 4, 3, 2, 1])
def test_our_half_quadratic_solver_gives_what_hqqs_own_gives(nbits, kind):
    from hqq.core.quantize import Quantizer

    rows = torch.randn(48, 64, generator=torch.Generator().manual_seed(nbits))
    rows[:, 7] *= 20 if kind == "outliers" else 1
    rows = {"skewed": rows.exp(), "flat": rows.sign(), "tiny": rows * 1e-6}.get(kind, rows)
    rows[3] = 0.25
    rows = rows / rows.abs().amax() * (1e-6 if kind == "tiny" else 1)
    louder = torch.stack([rows, rows * 3, rows.flip(0)])  # which go on for another number of rounds, beside these
    codes, scale, minimum = (part[0] for part in solve(louder, nbits))
    expected, meta = Quantizer.quantize(rows, nbits=nbits, group_size=64, axis=1, bitpack=False, device="cpu")
    assert torch.equal(codes, expected.to(torch.uint8)) and torch.equal(scale, meta["scale"])
    torch.testing.assert_close(minimum, -meta["zero"] * meta["scale"])


@pytest.mark.parametrize("residual", [0, 40])
@pytest.mark.parametrize("nbits", [4, 2])
def test_a_prompt_is_stored_as_its_tokens_one_by_one_are(nbits, residual):
    """Whatever pieces it comes in; the blocks and the residual, and attention sees what has just come unrounded."""
    keys, values = torch.randn(2, 2, 3, 211, 16, generator=torch.Generator().manual_seed(1))
    stored = []
    for pieces in ([1] * 211, [211], [50, 100, 61], [1, 200, 10], [32, 32, 147]):
        layer, seen = QuantizedLayer("native", nbits, 32, residual), 0
        for size in pieces:
            new = slice(seen, seen + size)
            found = layer.update(keys[:, :, new], values[:, :, new])
            seen += size
            assert found[0].shape[2] == seen and torch.equal(found[0][:, :, new], keys[:, :, new]) and torch.equal(found[1][:, :, new], values[:, :, new])
        stored.append({name: rows.clone() for name, rows in layer.rows().items()})
        assert all(torch.equal(rows, stored[0][name]) for name, rows in stored[-1].items())


def test_a_prompt_that_does_not_fit_changes_nothing():
    layer = QuantizedLayer("native", 4, 32, 0)
    layer.update(*torch.randn(2, 1, 2, 70, 16))
    before = {name: rows.clone() for name, rows in layer.rows().items()}
    with pytest.raises(ValueError, match="this cache holds batch 1"):
        layer.update(torch.randn(1, 2, 90, 16), torch.randn(2, 2, 90, 16))
    assert layer.seen == 70 and all(torch.equal(rows, before[name]) for name, rows in layer.rows().items())


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


def ours(nbits, keys, values, **settings):
    layer = QuantizedLayer("native", nbits, 64, 0, **settings)
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


@pytest.mark.parametrize("power", [0, 1, 3])
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


@pytest.mark.parametrize("quantizer", LEVELS)
def test_fits_leave_other_widths_alone_and_constants_as_they_are(quantizer):
    grouped, fits = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)).tanh(), LEVELS[quantizer]
    for nbits in (8, 4, 2):
        same = all(torch.equal(a, b) for a, b in zip(quantizer(grouped, nbits), native(grouped, nbits)))
        assert same == (nbits not in fits)
        codes, scale, minimum = quantizer(torch.full((1, 64), 0.5), nbits)
        assert torch.equal(codes * scale + minimum, torch.full((1, 64), 0.5))


def test_the_native_backend_alone_is_fitted_and_what_is_rotated_otherwise():
    for rotated, key, value in ((False, native_keys, native_values), (True, rotated_keys, rotated_values)):
        layer = QuantizedLayer("native", 2, 64, 0, rotate=rotated)
        assert layer.scheme("value", 64).quantizer is value and layer.scheme("key", 64).quantizer is key
    assert QuantizedLayer("hqq", 2, 64, 0).scheme("value", 64).quantizer is QUANTIZERS["hqq"]


def test_rotated_keys_that_have_loud_channels_lose_nothing_where_four_bits_are_fitted():
    """Nor gain much: attention errs half a percent less over several draws. KL on texts is up to 26 % less."""
    def rounded(quantizer, keys):
        scheme = Scheme(4, "channel", 64, quantizer, rotated=True)
        return scheme.decode(scheme.encode(keys, 64), 64, torch.float32)

    errors = {quantizer: sum(attention_error(states, rounded(quantizer, states[1]), states[2]) for states in map(drawn, range(8))) for quantizer in (rotated_keys, native)}
    assert errors[rotated_keys] < errors[native]


@pytest.mark.parametrize("backend", ["native", "hqq", "quanto"])
def test_gradients_flow_through_rounded_blocks(backend):
    layer = QuantizedLayer(backend, 4, 32, 0)
    states = [torch.randn(1, 2, 64, 32, requires_grad=True) for _ in range(2)]
    layer.update(*states)
    seen = layer.update(*(torch.randn(1, 2, 1, 32) for _ in range(2)))
    (seen[0].sum() + seen[1].sum()).backward()
    assert all(s.grad is not None and s.grad.isfinite().all() for s in states)


# -- the rotation --------------------------------------------------------------------------------------------------

ROUNDING = 1e-5  # of float32 over at most eight additions of numbers of a few units


def slow(states):
    """Entry (i, j) is -1 where i and j share an odd number of set bits."""
    size = block_of(states.shape[-1])
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)], dtype=torch.float64) / size**0.5
    return (states.double().unflatten(-1, (-1, size)) @ signs).flatten(-2)


@pytest.mark.parametrize("dim", [1, 8, 24, 64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("turn", [rotate, rotate_by_matmul])
def test_the_rotation_is_the_matrix_over_the_largest_power_of_two_that_divides_the_head(turn, dim):
    states = torch.randn(2, 3, 5, dim, generator=torch.Generator().manual_seed(dim)) * 3
    turned = turn(states)
    assert turned.dtype == torch.float32 and turned.shape == states.shape
    assert torch.allclose(turned.double(), slow(states), atol=ROUNDING)
    assert torch.allclose(turn(turned), states, atol=ROUNDING)


@pytest.mark.parametrize("dim", [64, 96])
def test_attention_scores_are_the_same_when_query_and_keys_are_rotated(dim):
    query, keys = torch.randn(2, 4, dim), torch.randn(2, 9, dim)
    assert torch.allclose(rotate_by_matmul(query) @ rotate(keys).mT, query @ keys.mT, atol=1e-4)  # scores are sums of `dim` products


def test_a_row_is_rotated_to_the_same_bits_alone_and_among_others():
    states = torch.randn(3, 2, 257, 64)
    among = rotate(states)
    for b, h, t in ((0, 0, 0), (1, 1, 100), (2, 0, 256)):
        assert torch.equal(rotate(states[b, h, t]), among[b, h, t])


def test_one_loud_channel_is_spread_over_the_head():
    states = torch.zeros(1, 1, 1, 64)
    states[..., 5] = 80.0
    assert torch.equal(rotate(states).abs(), torch.full_like(states, 10.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats_are_rotated_in_float32(dtype):
    states = torch.full((1, 1, 1, 64), 30000.0, dtype=dtype)  # eight times that is beyond float16
    assert torch.equal(rotate(states), slow(states).float())


def test_autocast_does_not_narrow_the_rotation():
    states = torch.randn(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(rotate_by_matmul(states).double(), slow(states), atol=ROUNDING)


@pytest.mark.parametrize("turn", [rotate, rotate_by_matmul])
def test_gradients_are_rotated_back(turn):
    states, weights = torch.randn(2, 8, requires_grad=True), torch.randn(2, 8)
    (turn(states) * weights).sum().backward()
    assert torch.allclose(states.grad.double(), slow(weights), atol=ROUNDING)


def test_a_matrix_that_was_made_in_inference_mode_serves_autograd_too():
    with torch.inference_mode():
        rotate_by_matmul(torch.ones(1, 16))
    rotate_by_matmul(torch.ones(1, 16, requires_grad=True)).sum().backward()
