"""kvzip: the most attention that a key gets while the model repeats the context."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from .policy import Held, Policy


@dataclass(frozen=True)
class KVzip(Policy):
    """Nothing goes until `kvcache.compact` has the model repeat what a cache has read, and keeps the keys that got the most attention from any query meanwhile.

    So it asks for no question in advance, at the price of a second prefill. Source: Kim et al. 2025, arXiv 2505.23416.
    """

    name: ClassVar[str] = "kvzip"
    paper: ClassVar[str] = "https://arxiv.org/abs/2505.23416"
    evicts: ClassVar[bool] = False

    def score(self, held: Held) -> torch.Tensor:
        """What `compact` has found: the most attention that each key got from any query."""
        return held.attention


COMPACTS = KVzip
