"""The rotation equals the matrix that anyone can write down, is its own inverse, keeps products, and no row of it depends on another."""

import pytest
import torch

from kvcache.hadamard import block_of, rotate, rotate_by_matmul

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
