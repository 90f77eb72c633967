"""Group-wise quantisation of keys and values: codes of 1, 2, 3, 4 or 8 bits, packed along the head dimension.

A group shares one scale and one minimum. Along the "channel" axis a group is one channel over the tokens of a block,
which suits keys, whose outliers sit in few channels; along the "token" axis it is neighbouring channels of one token,
which suits values. Source: KIVI, Liu et al. 2024, arXiv 2402.02750. Every block is normalised by its largest
magnitude per head first, so that neither tiny nor huge data is lost in float16 scales, and no group spans two heads
or two batch rows, so that no row depends on another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

# (grouped values in [-1, 1] [..., group], nbits) -> codes uint8 [..., group], scale and minimum [..., 1]
Quantizer = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Scheme:
    """How one of keys or values is quantised: `axis` "channel" or "token", `group` elements to a scale."""

    nbits: int
    axis: str
    group: int
    quantizer: Quantizer

    def encode(self, block: torch.Tensor) -> "Encoded":
        """Quantise a block [B, H, T, D]; on the channel axis T is a multiple of `group`, on the token axis D is."""
        b, h, t, d = block.shape
        work = block.float()
        gains = work.abs().amax(dim=(2, 3), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        grouped = self._grouped(work / gains)
        codes, scale, minimum = self.quantizer(grouped, self.nbits)
        codes = self._ungrouped(codes, (b, h, t, d))
        shape = (b, h, -1, d) if self.axis == "channel" else (b, h, t, -1)
        scales, minima = (x.squeeze(-1).half().reshape(shape) for x in (scale, minimum))
        return Encoded(pack(codes, self.nbits), scales, minima, gains)

    def decode(self, encoded: "Encoded", block: int, dtype: torch.dtype) -> torch.Tensor:
        """[B, H, T, D] from packed blocks of `block` tokens each."""
        codes = unpack(encoded.codes, self.nbits)
        b, h, t, d = codes.shape
        blocks = t // block
        gains = encoded.gains.view(b, h, blocks, 1, 1)
        if self.axis == "channel":
            codes = codes.view(b, h, blocks, block // self.group, self.group, d)
            shape, gains = (b, h, blocks, block // self.group, 1, d), gains.unsqueeze(-1)
        else:
            codes = codes.view(b, h, blocks, block, d // self.group, self.group)
            shape, gains = (b, h, blocks, block, d // self.group, 1), gains.unsqueeze(-1)
        scales, minima = (x.float().view(shape) * gains for x in (encoded.scales, encoded.minima))
        return torch.addcmul(minima, codes.float(), scales).view(b, h, t, d).to(dtype)

    def _grouped(self, block: torch.Tensor) -> torch.Tensor:
        """[B, H, T, D] -> [B, H, groups of one block, group], the order in which scales are stored."""
        b, h, t, d = block.shape
        if self.axis == "channel":
            return block.view(b, h, t // self.group, self.group, d).transpose(3, 4).reshape(b, h, -1, self.group)
        return block.reshape(b, h, -1, self.group)

    def _ungrouped(self, codes: torch.Tensor, shape: tuple[int, int, int, int]) -> torch.Tensor:
        b, h, t, d = shape
        if self.axis == "channel":
            codes = codes.view(b, h, t // self.group, d, self.group).transpose(3, 4)
        return codes.reshape(shape)


class Encoded(NamedTuple):
    """Packed codes uint8 [B, H, T, D * nbits / 8], scales and minima float16, gains float32 [B, H, blocks, 1]."""

    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor
    gains: torch.Tensor


def pack(codes: torch.Tensor, nbits: int) -> torch.Tensor:
    """uint8 codes [..., D] -> [..., D * nbits / 8]; each byte takes its codes from equal parts of the head.

    4 bits: the low nibble is the first half of the head, the high nibble the second. 3 bits: two planes, 2 + 1.
    """
    if nbits == 8:
        return codes
    if nbits == 3:
        return torch.cat([pack(codes & 3, 2), pack(codes >> 2, 1)], dim=-1)
    parts = codes.chunk(8 // nbits, dim=-1)
    packed = parts[0].clone()
    for i, part in enumerate(parts[1:], start=1):
        packed |= part << (i * nbits)
    return packed


def unpack(packed: torch.Tensor, nbits: int) -> torch.Tensor:
    """The inverse of `pack`."""
    if nbits == 8:
        return packed
    if nbits == 3:
        low, high = packed.split([packed.shape[-1] * 2 // 3, packed.shape[-1] // 3], dim=-1)
        return unpack(low, 2) | unpack(high, 1) << 2
    mask = (1 << nbits) - 1
    return torch.cat([packed >> shift & mask for shift in range(0, 8, nbits)], dim=-1)


def native(grouped: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uniform levels from the group's minimum to its maximum, both as float16 will hold them."""
    low, high = _ends(grouped)
    minimum = low.half().float()
    scale = ((high - minimum) / (2**nbits - 1)).half().float()
    return _codes(grouped, scale, minimum, nbits), scale, minimum


def native_keys(grouped: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `native`; at 2 bits fitted so that large deviations weigh most, as a key's extremes steer attention."""
    return fitted(grouped, nbits, 1.0, 3) if nbits == 2 else native(grouped, nbits)


def native_values(grouped: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `native`; at 2 bits fitted with all deviations alike, as the errors of values average out in attention."""
    return fitted(grouped, nbits, 0.7, 0) if nbits == 2 else native(grouped, nbits)


def fitted(grouped: torch.Tensor, nbits: int, middle: float, power: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uniform levels that err least: begun over the `middle` of the range, then scale and minimum by least squares for the codes, and codes for those.

    A square error weighs as the deviation from the group's mean to this `power`. Measured against levels from minimum to maximum for
    keys and over the middle 0.7 for values: attention errs 7 % less with loud channels and with the bundled model's, whose KL falls from .015 to .007.
    """
    low, high = _ends(grouped)
    rim = (high - low) * ((1 - middle) / 2)
    minimum = (low + rim).half().float()
    scale = ((high - rim - minimum) / (2**nbits - 1)).half().float()
    codes = _codes(grouped, scale, minimum, nbits)
    weights = (grouped - grouped.mean(dim=-1, keepdim=True)).abs().pow(power) + TINY
    weights /= weights.sum(dim=-1, keepdim=True)
    centre = (weights * grouped).sum(dim=-1, keepdim=True)
    for _ in range(FITS):
        steps = codes.float()
        middle_step = (weights * steps).sum(dim=-1, keepdim=True)
        steps -= middle_step
        spread = (weights * steps * steps).sum(dim=-1, keepdim=True)
        slope = (weights * steps * (grouped - centre)).sum(dim=-1, keepdim=True) / spread.clamp_min(TINY)
        scale = torch.where(spread > TINY, slope, scale).half().float()
        minimum = (centre - scale * middle_step).half().float()
        codes = _codes(grouped, scale, minimum, nbits)
    return codes, scale, minimum


def quanto(grouped: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """optimum-quanto's MaxOptimizer chooses scale and shift. Its C++ kernels are not needed, so nothing is compiled."""
    from optimum.quanto import MaxOptimizer, qint2, qint4

    rows = grouped.reshape(-1, grouped.shape[-1])
    scale, shift = MaxOptimizer()(rows, {2: qint2, 4: qint4}[nbits], axis=0)
    scale, shift = (x.view(*grouped.shape[:-1], 1) for x in (scale, shift))
    return _codes(grouped, scale, -shift, nbits), scale, -shift


def hqq(grouped: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """HQQ's half-quadratic solver chooses scale and zero, batch row by batch row: its early stop looks at all it is given."""
    rows = [_hqq_rows(row.reshape(-1, row.shape[-1]), nbits) for row in grouped]
    codes, scale, minimum = (torch.stack(parts) for parts in zip(*rows))
    return codes.view(grouped.shape), *(x.view(*grouped.shape[:-1], 1) for x in (scale, minimum))


def _hqq_rows(rows: torch.Tensor, nbits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from hqq.core.quantize import Quantizer as HQQ

    codes, meta = HQQ.quantize(rows, nbits=nbits, group_size=rows.shape[-1], axis=1, bitpack=False, device=str(rows.device))
    scale = meta["scale"].float()
    return codes.to(torch.uint8), scale, -meta["zero"].float() * scale


def _ends(grouped: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimum and maximum of each group [..., 1]; torch.aminmax takes ten times as long on a CPU."""
    return grouped.amin(dim=-1, keepdim=True), grouped.amax(dim=-1, keepdim=True)


def _codes(grouped: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, nbits: int) -> torch.Tensor:
    steps = (grouped - minimum).div_(scale.clamp_min(torch.finfo(torch.float16).tiny))
    return steps.round_().clamp_(0, 2**nbits - 1).to(torch.uint8)


FITS, TINY = 2, 1e-12  # more fits change the error by no more than 2 %
QUANTIZERS: dict[str, Quantizer] = {"native": native, "hqq": hqq, "quanto": quanto}
