"""HQQ's half-quadratic solver: a group's zero point by turns with its codes, so that the error's p-norm shrinks, p < 1, which forgives outliers.

The same numbers as hqq's own `Quantizer.quantize(rows, nbits, axis=1, group_size=...)`, whose settings these are, without what it spends on the
proximal step: that shrinks an error e to max(0, |e| - |e|^(p - 1) / BETA), which is nothing at all below BETA^(-1 / (2 - p)) = 0.17.
Source: Badri and Shaji 2023, https://mobiusml.github.io/hqq_blog/.
"""

import torch

P, BETA, ITERATIONS = 0.7, 10.0, 20
FLAT = 1e-4  # a range up to this has no scale of its own
LARGEST_SCALE = 2e4
NOTHING = 0.99 * BETA ** (-1 / (2 - P))  # errors up to here are surely shrunk to zero, however powers round


def solve(blocks: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks [n, groups, group] -> codes uint8 like them, scale and minimum [n, groups, 1]. All groups of a block stop together, once their mean error no longer falls."""
    rows, top = blocks.float(), 2**nbits - 1
    low, high = rows.amin(dim=2, keepdim=True), rows.amax(dim=2, keepdim=True)
    steps_per = torch.where((high - low).abs() <= FLAT, 1.0, top / (high - low)).clamp(max=LARGEST_SCALE)
    steps, zero, best = rows * steps_per, -low * steps_per, torch.full((len(rows), 1, 1), torch.inf, dtype=torch.float64, device=rows.device)
    going = torch.ones_like(best, dtype=torch.bool)
    for _ in range(ITERATIONS):
        codes = (steps + zero).round_().clamp_(0, top)
        errors = rows - (codes - zero).div_(steps_per)
        magnitude = errors.abs()
        error = magnitude.double().mean(dim=(1, 2), keepdim=True)  # in 64 bits, so that a block stops alike alone and among others
        wanted = steps if magnitude.amax() < NOTHING else (rows - _shrunk(errors, magnitude)).mul_(steps_per)
        zero = torch.where(going, codes.sub_(wanted).mean(dim=2, keepdim=True), zero)
        going, best = going & (error < best), torch.minimum(error, best)
        if not going.any():
            break
    codes = (steps + zero).round_().clamp_(0, top).to(torch.uint8)
    return codes, 1.0 / steps_per, -zero * (1.0 / steps_per)


def _shrunk(errors: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """What the proximal step leaves of errors, whose magnitude is spent."""
    return magnitude.sub_(magnitude.pow(P - 1).mul_(1.0 / BETA)).clamp_min_(0.0).mul_(errors.sign())
