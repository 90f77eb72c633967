"""A tensor that refuses to be changed, for what a cache decodes or copies for a reader: a change to it would be lost."""

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map


class ReadOnly(torch.Tensor):
    """Read as any tensor is. Changing it in place, or a view of it, raises ValueError with `why`; what is computed from it is a plain tensor."""

    why: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            held = [(each, each._version) for each in tree_leaves((args, kwargs)) if isinstance(each, cls)]
            out = func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))
            for each, version in held:
                if each._version != version:  # changed, whatever the operation is called
                    raise ValueError(each.why)
            return tree_map(lambda made: _guarded(made, held), out)


def read_only(rows: torch.Tensor, why: str) -> ReadOnly:
    """`rows`, which must be a copy for this reader alone and no inference tensor, since those do not count their changes."""
    guarded = rows.as_subclass(ReadOnly)
    guarded.why = why
    return guarded


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, ReadOnly) else value


def _guarded(made: Any, held: list[tuple[ReadOnly, int]]) -> Any:
    """The result of an operation on `held`: read-only, too, where it is a view of one of them."""
    if isinstance(made, np.ndarray):
        made.flags.writeable = False
    if not isinstance(made, torch.Tensor) or made.layout != torch.strided:
        return made
    source = next((each for each, _ in held if each.untyped_storage()._cdata == made.untyped_storage()._cdata), None)
    return made if source is None else read_only(made, source.why)
