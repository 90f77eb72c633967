"""expected_attention: the attention that a key can expect of the queries to come."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .policy import Held, Policy


@dataclass(frozen=True)
class ExpectedAttention(Policy):
    """The attention a key gets on average of normally distributed queries, exp(mean . key + key . covariance . key / 2) over the sum of all keys', times the norm of its value.

    Mean and covariance are those of the latest `window` queries as they are, rotated for their own positions; the paper takes those of all queries before rotation, turned to the
    positions to come. Source: Devoto et al. 2025, arXiv 2510.00636.
    """

    name: ClassVar[str] = "expected_attention"
    paper: ClassVar[str] = "https://arxiv.org/abs/2510.00636"
    window: int = 32

    @property
    def queries(self) -> int:
        return self.window

    def score(self, held: Held) -> torch.Tensor:
        queries, keys = held.queries.float().unflatten(1, (held.keys.shape[1], -1)), held.keys.float()
        logits = (queries.flatten(2, 3) @ keys.transpose(2, 3)).unflatten(2, queries.shape[2:4])  # [B, H, G, window, T]
        expected = logits.mean(dim=3) + logits.var(dim=3, correction=0) / 2  # key . covariance . key is the variance of query . key
        return expected.softmax(dim=-1).mean(dim=2) * held.values.float().norm(dim=-1)


POLICY = ExpectedAttention
