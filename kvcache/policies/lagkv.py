"""lagkv: keys and values that stand out from those that come next."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .policy import Held, Policy


@dataclass(frozen=True)
class LagKV(Policy):
    """Keys and values whose channels, scaled by the range of the next `lag` tokens', spread most; as many stay of each `lag` tokens. No query is asked.

    `lag`: at most a quarter of the budget. The latest tokens, which have no whole `lag` of tokens behind them, stay. Source: Liang et al. 2025, arXiv 2504.04704.
    """

    name: ClassVar[str] = "lagkv"
    paper: ClassVar[str] = "https://arxiv.org/abs/2504.04704"
    lag: int = 128

    def score(self, held: Held) -> torch.Tensor:
        batch, heads, tokens, _ = held.keys.shape
        lag = max(1, min(self.lag, held.budget // 4))
        parts = max(0, (tokens - held.first) // lag - 1)  # that have a whole one behind them
        scores = (1 + torch.arange(tokens, device=held.keys.device) / tokens).expand(batch, heads, -1).clone()  # the later, the sooner they stay, before all that is ranked
        if parts:
            stop = held.first + (parts + 1) * lag
            spreads = sum(_spread(rows[:, :, held.first : stop].float().unflatten(2, (parts + 1, lag))) for rows in (held.keys, held.values))
            scores[:, :, held.first : stop - lag] = (spreads.argsort(dim=-1).argsort(dim=-1) / lag).flatten(2)
        return scores


def _spread(parts: torch.Tensor) -> torch.Tensor:
    """[B, H, parts, lag]: of rows [B, H, parts + 1, lag, D] but the last part's, the deviation over channels scaled by the next part's range, as a softmax over the part."""
    low, high = parts[:, :, 1:].amin(3, keepdim=True), parts[:, :, 1:].amax(3, keepdim=True)
    scaled = (parts[:, :, :-1] - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    return scaled.std(dim=-1).softmax(dim=-1)


POLICY = LagKV
