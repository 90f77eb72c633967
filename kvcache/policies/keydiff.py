"""keydiff: keys that are unlike the others."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import cosine_similarity, normalize

from .policy import Held, Policy


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Keys that point away from the mean direction of all: they tend to get attention, and no query is asked. Source: Park et al. 2025, arXiv 2504.15364."""

    name: ClassVar[str] = "keydiff"
    paper: ClassVar[str] = "https://arxiv.org/abs/2504.15364"

    def score(self, held: Held) -> torch.Tensor:
        keys = held.keys.float()
        anchor = normalize(keys, dim=-1).mean(dim=2, keepdim=True)
        return -cosine_similarity(keys, anchor, dim=-1)


POLICY = KeyDiff
