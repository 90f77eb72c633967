"""What attention is handed of a quantised layer: the first tokens in full precision, packed codes of old ones and a residual of recent ones, at one moment."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..quantize import Encoded, Scheme, narrowed

PIECE = {"cpu": 512}  # tokens that torch decodes at a time: on a CPU they stay in the processor's cache
PIECE_ELSEWHERE = 4096  # each piece costs a few launches


class Packed(NamedTuple):
    """Keys or values of one layer: `ahead` rows of `first`, `packed` tokens as codes, of which the first `hidden` are not seen, then rows `start` to `stop` of the residual.

    Buffers [B, H, capacity, width] begin at the first packed token and go on behind the last. Good until the layer's next update.
    """

    scheme: Scheme
    block: int
    packed: int
    encoded: Encoded
    residual: torch.Tensor
    start: int
    stop: int
    first: torch.Tensor | None = None
    ahead: int = 0
    centre: torch.Tensor | None = None  # [B, H, 1, D] float32, which the packed tokens were rounded without
    hidden: int = 0  # fewer than a block

    @property
    def shape(self) -> torch.Size:
        batch, heads, _, dim = self.residual.shape
        return torch.Size((batch, heads, self.ahead + self.packed - self.hidden + self.stop - self.start, dim))

    @property
    def dtype(self) -> torch.dtype:
        return self.residual.dtype

    @property
    def device(self) -> torch.device:
        return self.residual.device

    @property
    def requires_grad(self) -> bool:
        return self.residual.requires_grad or self.encoded.scales.requires_grad

    def dense(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """All tokens [B, H, T, D], decoded; in the residual's dtype, or another."""
        dtype = dtype or self.residual.dtype
        return self.behind_first([self._decoded(dtype)[:, :, self.hidden :], self.recent().to(dtype)])

    def _decoded(self, dtype: torch.dtype) -> torch.Tensor:
        """The packed tokens [B, H, packed, D]."""
        part = self.part(0, self.packed)
        return self.scheme.decode(part, self.block, dtype) if self.centre is None else narrowed(self.scheme.decode(part, self.block, torch.float32) + self.centre, dtype)

    def behind_first(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Parts [B, H, some, D] in one, the first tokens before them."""
        parts = parts if self.first is None else [self.first[:, :, : self.ahead].to(parts[0].dtype), *parts]
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]

    def recent(self) -> torch.Tensor:
        """The tokens in full precision behind the packed ones [B, H, stop - start, D]."""
        return self.residual[:, :, self.start : self.stop]

    def part(self, begin: int, end: int) -> Encoded:
        """Packed tokens begin to end; both multiples of `block`, or 0 and `packed`."""
        rows = self.scheme.group if self.scheme.axis == "channel" else 1
        steps = (1, rows, rows, self.block)
        return Encoded(*(part[:, :, begin // step : end // step] for part, step in zip(self.encoded, steps)))

    def pieces(self) -> Iterator[torch.Tensor]:
        """All tokens in turn as float32 [B, H, some, D], rotated if the codes are: packed ones, no more at a time than PIECE says where a block is not more, the first before them, then the residual."""
        step = max(1, PIECE.get(self.device.type, PIECE_ELSEWHERE) // self.block) * self.block
        for begin in range(0, self.packed, step):
            some = self.scheme.levels(self.part(begin, min(begin + step, self.packed)), self.block)[:, :, 0 if begin else self.hidden :]
            some = some if self.centre is None else some + self.scheme.turned(self.centre)
            yield some if begin or self.first is None else torch.cat([self.scheme.turned(self.first[:, :, : self.ahead]), some], dim=2)
        if self.stop > self.start:
            yield self.scheme.turned(self.recent())

    def without(self, tokens: int) -> "Packed":
        """The same, so many tokens behind the first ones unseen: whole blocks left out, and what is left of them hidden."""
        if not tokens:
            return self
        coded = min(tokens // self.block * self.block, self.packed)
        rest, encoded = tokens - coded, self.part(coded, self.packed) if coded else self.encoded
        if coded == self.packed:
            return self._replace(encoded=encoded, packed=0, start=self.start + rest)
        return self._replace(encoded=encoded, packed=self.packed - coded, hidden=rest)

    def alike(self, other: "Packed") -> bool:
        """Are as many tokens of both first ones, codes and residual, in blocks of one size? Keys of one cache beside values of another may not be."""
        counts = [(each.block, each.packed, each.start, each.stop, each.ahead, each.hidden) for each in (self, other)]
        return counts[0] == counts[1] and self.shape[:2] == other.shape[:2]


def unhidden(keys: Packed, values: Packed, mask: torch.Tensor | None) -> tuple[Packed, Packed, torch.Tensor | None]:
    """The same for those who know nothing of hidden tokens: `mask` [B or 1, Hq or 1, n or 1, T], boolean or to be added, hides them, and is one of bools where there was none."""
    if not keys.hidden:
        return keys, values, mask
    mask = torch.ones(1, 1, 1, keys.shape[2], dtype=torch.bool, device=keys.device) if mask is None else mask
    columns = mask.new_full((*mask.shape[:-1], keys.hidden), False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min)
    mask = torch.cat([mask[..., : keys.ahead], columns, mask[..., keys.ahead :]], dim=-1)
    return keys._replace(hidden=0), values._replace(hidden=0), mask
