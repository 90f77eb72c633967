"""snapkv: the attention that a key and its neighbours get from the last queries."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import avg_pool1d, pad

from .policy import Held, Policy


@dataclass(frozen=True)
class SnapKV(Policy):
    """The attention a key gets from the latest `window` queries, averaged over `pooling` places around it, so that what surrounds a hit stays with it. The window itself always stays.

    Finds what a prompt that ends with its question asks for. Source: Li et al. 2024, arXiv 2404.14469.
    """

    name: ClassVar[str] = "snapkv"
    paper: ClassVar[str] = "https://arxiv.org/abs/2404.14469"
    window: int = 32
    pooling: int = 13  # with 7, numbers of five tokens lost their last: docs/measured.md

    @property
    def queries(self) -> int:
        return self.window

    def score(self, held: Held) -> torch.Tensor:
        window = held.queries.shape[2]
        got = held.weights().mean(dim=(2, 3))[..., :-window]  # [B, H, T - window]
        pooled = avg_pool1d(got, self.pooling, stride=1, padding=self.pooling // 2, count_include_pad=False) if got.shape[2] else got
        return pad(pooled, (0, window), value=float("inf"))


POLICY = SnapKV
