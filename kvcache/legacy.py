"""What only the names of transformers 4.48 need: lengths, attributes and states as its caches had them."""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
import transformers
from torch.utils._pytree import tree_map
from transformers.cache_utils import CacheLayerMixin

from .configs import GROUP, QuantizedCacheConfig, bits_of, bits_word, rotates
from .layer import Layer


def usable_length(cache: transformers.Cache, new_seq_length: int, layer_idx: int = 0) -> int:
    """Tokens of the past that the next `new_seq_length` tokens will attend to in this layer, asked at any time, in the middle of a forward too.

    Raises ValueError if the new ones do not fit.
    """
    cache = getattr(cache, "self_attention_cache", cache)
    seen, capacity = int(cache.get_seq_length(layer_idx)), getattr(cache, "capacity", None)
    if capacity is not None and seen + new_seq_length > capacity:
        raise ValueError(f"{new_seq_length} more tokens do not fit: {seen} of {capacity} are taken")
    if not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers):
        return seen  # no layer yet, or states that sum up all that was seen
    attended = transformers.Cache.get_mask_sizes(cache, new_seq_length, layer_idx)[0]  # not ours, which refuses what no forward may begin with
    return min(seen, attended - new_seq_length)


class StaticNames:
    """What a cache of static layers was made for, or has taken from its first tokens since; None where neither says."""

    layers: list
    head_dim: int | None = None
    num_key_value_heads: int | None = None

    def _of_first(self, name: str) -> Any:
        """An attribute of the first static layer, or what that layer was made for."""
        first = next((layer for layer in self.layers if hasattr(layer, "placement")), None)
        return getattr(first if getattr(first, "is_initialized", False) else getattr(first, "placement", None), name, None)

    @property
    def max_batch_size(self) -> int | None:
        """Rows there is room for."""
        return self._of_first("batch_size")

    @property
    def dtype(self) -> torch.dtype | None:
        """What keys are stored in."""
        return self._of_first("dtype")

    @property
    def device(self) -> torch.device | None:
        """Where the first layer computes."""
        return self._of_first("device")


class QuantizedNames:
    """The settings of a quantised cache, read from the config object that it was made with."""

    cache_config: QuantizedCacheConfig

    nbits = property(lambda self: self.cache_config.nbits)
    key_bits = property(lambda self: bits_of(self.cache_config.key_bits, self.nbits))
    value_bits = property(lambda self: bits_of(self.cache_config.value_bits, self.nbits))
    bits = property(lambda self: bits_word(self.key_bits, self.value_bits))
    residual_length = property(lambda self: self.cache_config.residual_length)
    first_tokens = property(lambda self: self.cache_config.first_tokens)
    rotate = property(lambda self: rotates(self.cache_config.backend, self.cache_config.rotate))
    q_group_size = property(lambda self: GROUP if self.cache_config.q_group_size == "auto" else self.cache_config.q_group_size)
    axis_key = property(lambda self: self.cache_config.axis_key)
    axis_value = property(lambda self: self.cache_config.axis_value)
    compute_dtype = property(lambda self: self.cache_config.compute_dtype)
    device = property(lambda self: self.cache_config.device)


class LayerStates(list):
    """One state [B, ...] a layer, None before it is allocated; by an index of several places, and by what else a tensor has, as one tensor [layers, B, ...].

    An integer gives a layer's own tensor, to be written in place; what is assigned is held. Whatever else reads across layers is a copy, which
    nothing is written through: methods in place raise AttributeError.
    """

    def __init__(self, layers: Sequence, name: str):
        self.layers, self.name = layers, name
        super().__init__(self._state(index).data for index in range(len(layers)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return super().__getitem__(index)
        first, *rest = index if isinstance(index, tuple) else (index,)
        return self._whole()[index] if not isinstance(first, int) else self._own(first)[tuple(rest)]

    def __setitem__(self, index: Any, value: Any) -> None:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, int):
            return self._hold(first, _assigned(self[first], tuple(rest), value))
        whole = _assigned(self._whole(), index, value)
        for number in range(len(self))[first] if isinstance(first, slice) else range(len(self)):
            self._hold(number, whole[number])

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_"):
            raise AttributeError(f"{name} would change a copy of the states of all layers: assign to states[:], or write to each layer's own, states[index]")
        try:
            return getattr(self._whole(), name)
        except ValueError as error:
            raise AttributeError(str(error)) from error

    def __reduce__(self) -> tuple:
        return list, (list(self),)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return function(*tree_map(_whole_of, args), **tree_map(_whole_of, kwargs or {}))

    def _state(self, index: int) -> Any:
        return getattr(self.layers[index], self.name)

    def _own(self, index: int) -> torch.Tensor:
        if self[index] is None:
            raise ValueError("the states are allocated by the first tokens, or at once where the cache is made with a batch size")
        return self[index]

    def _whole(self) -> torch.Tensor:
        return torch.stack([self._own(index) for index in range(len(self))])

    def _hold(self, index: int, state: torch.Tensor) -> None:
        self._state(index).write(state)
        self.layers[index]._filled_by(state, 0)
        super().__setitem__(index, self._state(index).data)


def _assigned(held: torch.Tensor | None, index: Any, value: Any) -> torch.Tensor:
    """A copy of `held` with `value` at `index`."""
    if held is None or (index == () and isinstance(value, torch.Tensor) and value.shape == held.shape):
        return value.clone()
    changed = held.clone()
    changed[index] = value
    return changed


def _whole_of(value: Any) -> Any:
    return value._whole() if isinstance(value, LayerStates) else value


class KeyCache(list):
    """Keys, or values, by layer as attention reads them; None for layers without. What is put into this list is put into the layers.

    `side`: "keys" or "values". Raises ValueError for what no layer can take, and for whatever would add or remove layers of a model.
    """

    def __init__(self, cache: Any, side: str) -> None:
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
