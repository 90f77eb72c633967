"""What a policy is, and what it is shown."""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import torch

from ..kernels.weights import latest_weights


class Held(NamedTuple):
    """What a layer holds of some rows of its batch when it has to choose, padding left out.

    `keys`, `values` [B, H, T, D], in the order of their positions; `seen`: tokens seen; `budget`: how many are to stay; `first`, `last`: how many of the first
    and of the latest stay in any case. `queries` [B, Hq, n, D]: the latest, scaled, as many as the policy asks for. `attention` [B, H, T]: what each key got of
    every query since it came, averaged over the query heads that share it, each query's share fading by `decay` with every later one. `positions` [B, H, T].
    """

    keys: torch.Tensor
    values: torch.Tensor
    seen: int
    budget: int
    first: int
    last: int
    queries: torch.Tensor | None = None
    attention: torch.Tensor | None = None
    positions: torch.Tensor | None = None

    def weights(self) -> torch.Tensor:
        """Attention weights [B, H, G, n, T] of the latest queries, G of which share a key head; each sees the keys up to its own token's."""
        return latest_weights(self.queries, self.keys)


@dataclasses.dataclass(frozen=True)
class Policy(abc.ABC):
    """Scores the tokens a layer holds: those of the highest scores stay, in each key head its own. The fields of a policy are its settings.

    `queries`: how many of the latest queries it goes by; `decay`: by what the attention that keys have got fades with every query, where it goes by that of all of
    them; `counts`: must it know the positions of keys? `joins_heads`: do scores go by other key heads' queries, too, which the processes of a tensor parallel model do not have? One that asks for queries or attention needs a model that attends by sdpa.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    queries: ClassVar[int] = 0
    decay: ClassVar[float | None] = None
    counts: ClassVar[bool] = False
    joins_heads: ClassVar[bool] = False
    evicts: ClassVar[bool] = True  # or is it for `kvcache.compact` alone?

    @property
    def needs_query(self) -> bool:
        """Does it go by queries at all?"""
        return self.queries > 0 or self.decay is not None

    @abc.abstractmethod
    def score(self, held: Held) -> torch.Tensor:
        """[B, H, T], or [B, 1, T] for all key heads alike: the more, the sooner a token stays. Rows of a batch must not depend on each other."""
