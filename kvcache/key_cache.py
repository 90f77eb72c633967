"""`cache.key_cache` and `cache.value_cache`, as code written for transformers 4 knows and edits them."""

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from .layer import Layer


class KeyCache(list):
    """Keys, or values, by layer as attention reads them; None for layers without. What is put into this list is put into the layers.

    `side`: "keys" or "values". Raises ValueError for what no layer can take, and for whatever would add or remove layers of a model.
    """

    def __init__(self, cache, side: str):
        super().__init__(pair[side == "values"] for pair in cache)
        self.cache, self.side = cache, side

    def __setitem__(self, index: int, rows: torch.Tensor) -> None:
        if isinstance(index, slice):
            raise ValueError(f"{self.side} are assigned to one layer at a time, got {index}")
        layer = self.layer_at(range(len(self))[index])
        setattr(layer, self.side, rows)
        super().__setitem__(index, getattr(layer, self.side))

    def append(self, rows: torch.Tensor) -> None:
        """Give the next layer that holds none its first keys or values."""
        layers = self.cache.layers
        empty = (index for index, held in enumerate(self) if held is None and isinstance(layers[index], Layer))
        index = next(empty, None)
        if index is not None:
            self[index] = rows
            return
        if self.cache.layer_class_to_replicate is None:
            raise ValueError(f"this cache has the {len(layers)} layers of its model, and none without {self.side} to which more could be appended")
        layer = self.cache.layer_class_to_replicate()
        setattr(layer, self.side, rows)
        layers.append(layer)
        super().append(getattr(layer, self.side))

    def extend(self, rows: Iterable[torch.Tensor]) -> None:
        """`append` each."""
        for each in rows:
            self.append(each)

    def layer_at(self, index: int) -> Layer:
        """The layer that takes what is assigned. Raises ValueError where it is none of ours, or has no attention."""
        layer = self.cache.layers[index]
        if not isinstance(layer, Layer):
            raise ValueError(f"layer {index} is a {type(layer).__name__}, to which {self.side} cannot be assigned here")
        return layer

    def assign(self, rows: Iterable[torch.Tensor | None]) -> None:
        """Give every layer its own, None to those without. Raises ValueError, before any has changed, unless there is one for each."""
        rows = list(rows)
        if len(rows) < len(self) or (len(rows) > len(self) and self.cache.layer_class_to_replicate is None):
            raise ValueError(f"{self.side} are assigned to all {len(self)} layers of this cache, got those of {len(rows)}; reset() forgets what they hold")
        wanted = [(index, each) for index, each in enumerate(rows) if index >= len(self) or each is not None or self[index] is not None]
        for index, each in wanted:
            (self.layer_at(index) if index < len(self) else self.cache.layer_class_to_replicate()).check_assigned(self.side, each)
        for index, each in wanted:
            self.append(each) if index >= len(self) else self.__setitem__(index, each)

    def __reduce__(self) -> tuple:
        return list, (list(self),)  # a copy is a list of tensors like any other

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"this list shows what the layers hold: {self.side} are assigned to a layer or appended; crop() and reset() take tokens away, no layer can be taken")

    __delitem__ = __iadd__ = __imul__ = insert = pop = remove = clear = sort = reverse = _refuse
