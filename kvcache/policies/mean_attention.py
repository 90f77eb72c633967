"""mean_attention: the attention that a key got from each query that saw it."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from .policy import Held, Policy


@dataclass(frozen=True)
class MeanAttention(Policy):
    """The attention a key got, averaged over the queries that saw it, of which each counts 1 / e less for `horizon` later ones, times the norm of its value.

    H2O's sum of attention (Zhang et al. 2023, arXiv 2306.14048) grows with age, so that it keeps what is old; the mean over the queries that saw a key does not, and among
    18 policies measured at equal budgets it moved the next token's distribution least.
    """

    name: ClassVar[str] = "mean_attention"
    paper: ClassVar[str] = "https://arxiv.org/abs/2306.14048"
    counts: ClassVar[bool] = True
    horizon: int = 512

    @property
    def decay(self) -> float:
        return math.exp(-1 / self.horizon)

    def score(self, held: Held) -> torch.Tensor:
        age = (held.seen - held.positions).float()  # queries that saw the key, its own the first
        queries = (1 - self.decay**age) / (1 - self.decay)
        return held.attention / queries * held.values.float().norm(dim=-1)


POLICY = MeanAttention
