"""h2o: the attention that a key got from all queries."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .policy import Held, Policy


@dataclass(frozen=True)
class H2O(Policy):
    """The sum of the attention a key got from every query: the "heavy hitters". Source: Zhang et al. 2023, arXiv 2306.14048."""

    name: ClassVar[str] = "h2o"
    paper: ClassVar[str] = "https://arxiv.org/abs/2306.14048"
    decay: ClassVar[float] = 1.0

    def score(self, held: Held) -> torch.Tensor:
        return held.attention


POLICY = H2O
