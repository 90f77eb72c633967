"""tova: the attention that a key gets from the last query."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .policy import Held, Policy


@dataclass(frozen=True)
class TOVA(Policy):
    """The attention a key gets from the latest query, averaged over all heads, so that all heads keep the same tokens. Source: Oren et al. 2024, arXiv 2401.06104."""

    name: ClassVar[str] = "tova"
    paper: ClassVar[str] = "https://arxiv.org/abs/2401.06104"
    queries: ClassVar[int] = 1
    joins_heads: ClassVar[bool] = True

    def score(self, held: Held) -> torch.Tensor:
        return held.weights().mean(dim=(1, 2, 3))[:, None]


POLICY = TOVA
