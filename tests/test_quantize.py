"""Packing is lossless, rounding is within half a step, and the fast code equals loops that anyone can read."""

import pytest
import torch

from kvcache.quantize import QUANTIZERS, Scheme, native, pack, unpack

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
