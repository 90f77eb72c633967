"""The Hadamard rotation, which spreads what is loud in few channels over all of a head, so that few bits hold it better.

It is orthogonal and its own inverse: q . k is the same when both are rotated, and values come back when attention's output is rotated once more. Of a
head whose size is no power of two, neighbouring blocks of the largest one that divides it are rotated, each alone: 96 is 3 blocks of 32, 80 is 5 of 16.
Source: QuaRot, Ashkboos et al. 2024, arXiv 2404.00456; the name is of the matrix of Hadamard and Sylvester, of entries 1 and -1, over its size's root.
"""

import functools

import torch


def rotate(states: torch.Tensor) -> torch.Tensor:
    """Rotate states [..., D] along their last axis, in float32: float32 [..., D]. Rotating twice gives the states back, up to float32's rounding.

    By additions in a fixed order: every row comes out the same to the bit, alone or among others, on any device, as codes must.
    """
    size = block_of(states.shape[-1])
    work, step = states.float(), size
    while step > 1:
        step //= 2
        first, second = work.unflatten(-1, (-1, 2, step)).unbind(-2)
        work = torch.stack([first + second, first - second], dim=-2).flatten(-3)
    return work * size**-0.5


def rotate_by_matmul(states: torch.Tensor) -> torch.Tensor:
    """As `rotate`, several times faster, rounded as this device multiplies matrices: for what is read and not encoded, as queries are."""
    size = block_of(states.shape[-1])
    with torch.autocast(states.device.type, enabled=False):
        return (states.float().unflatten(-1, (-1, size)) @ matrix(size, states.device)).flatten(-2)


def block_of(dim: int) -> int:
    """Channels that are rotated together in a head of `dim`: the largest power of two that divides it."""
    return dim & -dim


@functools.cache
def matrix(size: int, device: torch.device) -> torch.Tensor:
    """The symmetric matrix of the rotation [size, size], float32; `size` is a power of two."""
    with torch.inference_mode(False):
        return rotate(torch.eye(size, dtype=torch.float32, device=device))
