"""The seam between a model's attention and a layer that attends for itself.

transformers hands a cache keys and values and never the query. So `update` may return `CachedStates`: tensors to whatever touches them, but
scaled_dot_product_attention on them asks their layer's `attend`, and no model's code is changed. All attention over our storage is caught here.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from . import kernels
from .kernels.packed import Packed

if TYPE_CHECKING:
    from .layer import Layer

SDPA = torch.nn.functional.scaled_dot_product_attention
METADATA = frozenset([torch.Tensor.dtype.__get__, torch.Tensor.device.__get__])
SIZES = frozenset([torch.Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.dim])
EACH_HEAD_AGAIN = (slice(None), slice(None), None, slice(None), slice(None))  # how transformers' `repeat_kv` begins


class CachedStates(torch.Tensor):
    """Keys or values [B, H, T, D] of a layer, which `held` has as they are stored: a tensor, or `Packed`.

    `new`: tokens of the update that returned them. `repeats`: query heads to each key head, where transformers has repeated them, which nothing was copied
    for; `asked`: how far its `repeat_kv` has come. Whatever is done with them but attention gets the plain tensor; a layer that needs the query refuses that.
    """

    layer: "Layer"
    held: "torch.Tensor | Packed"
    new: int
    repeats: int
    asked: torch.Size | None

    @staticmethod
    def of(layer: "Layer", held: "torch.Tensor | Packed", new: int, repeats: int = 1, asked: torch.Size | None = None) -> "CachedStates":
        """What `update` of `new` tokens returns for keys or values that are stored as `held`."""
        if isinstance(held, Packed):
            states = torch.Tensor._make_wrapper_subclass(CachedStates, held.shape, dtype=held.dtype, device=held.device)
        else:
            states = held.as_subclass(CachedStates)
        states.layer, states.held, states.new, states.repeats, states.asked = layer, held, new, repeats, asked
        return states

    @property
    def shape(self) -> torch.Size:
        """Models ask for it at every turn, and torch's own would be asked through __torch_function__."""
        if self.asked is not None:
            return self.asked
        batch, heads, tokens, dim = self.held.shape
        return torch.Size((batch, heads * self.repeats, tokens, dim))

    def plain(self) -> torch.Tensor:
        """The tensor that these stand for. Raises ValueError where the layer has to see the query."""
        if self.layer.needs_query:
            raise ValueError(
                f"{type(self.layer).__name__} {self.layer.why_query}, and sees it only in scaled_dot_product_attention: load the model with "
                "attn_implementation='sdpa', or model.set_attn_implementation('sdpa'), and ask for no attention weights"
            )
        held = self.held.dense() if isinstance(self.held, Packed) else self.held
        if self.asked is not None:
            return held[:, :, None].expand(self.asked)
        return held.repeat_interleave(self.repeats, dim=1) if self.repeats > 1 else held

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"CachedStates(shape={tuple(self.shape)}, layer={type(self.layer).__name__})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in METADATA or func in SIZES and args[0].repeats == 1 and args[0].asked is None:
                return func(*args, **kwargs)
            found = attend(*args, **kwargs) if func is SDPA else _repeated(func, args, kwargs)
            return func(*tree_map(_plain, args), **tree_map(_plain, kwargs)) if found is None else found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, CachedStates) else value


def _repeated(func: Any, args: tuple, kwargs: dict) -> CachedStates | None:
    """A step of transformers' `repeat_kv`, which repeats heads for attention that could do without: states[:, :, None, :, :].expand(...).reshape(...); None for anything else."""
    if kwargs or not args or not isinstance(states := args[0], CachedStates) or states.repeats > 1:
        return None
    batch, heads, tokens, dim = states.held.shape
    if func is torch.Tensor.__getitem__ and states.asked is None and args[1] == EACH_HEAD_AGAIN:
        return CachedStates.of(states.layer, states.held, states.new, asked=torch.Size((batch, heads, 1, tokens, dim)))
    if states.asked is None:
        return None
    sizes = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if func is torch.Tensor.expand and len(sizes) == 5 and (*sizes[:2], *sizes[3:]) == (batch, heads, tokens, dim):
        return CachedStates.of(states.layer, states.held, states.new, asked=torch.Size(sizes))
    if func is torch.Tensor.reshape and sizes == (batch, heads * states.asked[2], tokens, dim):
        return CachedStates.of(states.layer, states.held, states.new, repeats=states.asked[2])
    return None


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
) -> torch.Tensor | None:
    """scaled_dot_product_attention by the layer whose states these are; None where it leaves that to torch, or can not be asked.

    query [B, Hq, n, D], or for one token [B, H, Hq / H, D], as transformers packs grouped heads; returns the query's shape with the values' D.
    """
    ours = isinstance(key, CachedStates) and isinstance(value, CachedStates) and key.layer is value.layer and not isinstance(query, CachedStates)
    if not ours or dropout_p or query.dim() != 4:
        return None
    batch, heads, tokens, dim = key.held.shape
    if value.held.shape[:3] != (batch, heads, tokens) or query.shape[0] != batch or query.shape[3] != dim or query.shape[1] % heads:
        return None
    shape = query.shape
    if key.new == 1 and shape[2] > 1:  # the heads of one token that share a key, and not several tokens
        if shape[1] != heads or is_causal:
            return None
        query, attn_mask = query.reshape(batch, -1, 1, dim), _unpacked(attn_mask, *shape[1:3])
    out = key.layer.attend(query, key.held, value.held, attn_mask, scale, is_causal)
    return None if out is None else out.reshape(*shape[:3], -1)


def hand_over(layer: "Layer", keys: "torch.Tensor | Packed", values: "torch.Tensor | Packed", new: int) -> tuple[CachedStates, CachedStates]:
    """What the layer's `update` of `new` tokens returns for it to be asked to `attend`: to keys and values [B, H, T, D], plain or packed."""
    return CachedStates.of(layer, keys, new), CachedStates.of(layer, values, new)


def attendable(layer: "Layer", keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The plain keys and values [B, H, T, D] of one token's update, handed over where a kernel is faster than torch's attention."""
    plain = keys.requires_grad or values.requires_grad or torch.compiler.is_compiling() or not kernels.faster(keys)
    return (keys, values) if plain else hand_over(layer, keys, values, 1)


def _unpacked(mask: torch.Tensor | None, heads: int, group: int) -> torch.Tensor | None:
    """A mask of one token's packed heads [B or 1, H or 1, G or 1, T] as [B or 1, Hq, 1, T]; one that all heads share stays as it is."""
    if mask is None or mask.shape[1:3] == (1, 1):
        return mask
    return mask.expand(-1, heads, group, -1).reshape(mask.shape[0], heads * group, 1, -1)
