"""Attention of one token over keys and values in full precision, by the loops that also read packed ones.

torch's own takes up to four times as long where several query heads share a key head: it reads a row again for each of them.
A layer returns keys as `RowStates`, a plain view to whatever touches it but scaled_dot_product_attention, which runs here where it can.
"""

import torch

from .compiled import Loops, shared
from .packed import bias, one_token

WORTH = 1 << 18  # key elements from which the loops win more than calling them costs
ENOUGH = 1 << 19  # and up to which a second thread costs more than it brings


class RowStates(torch.Tensor):
    """A view of the keys in a buffer [B, H, T, D]. Operations on it give plain tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            attended = attend(*args, **kwargs) if func is torch.nn.functional.scaled_dot_product_attention else None
            return func(*args, **kwargs) if attended is None else attended


def _find_loops():
    """The compiled loops, once they have come close to torch's attention on a small example."""
    from .packed_numba import attend_rows

    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, 2, t, 40, generator=generator) for t in (3, 21, 21))
    found = _run(attend_rows, query, keys, values, None, 40**-0.5)
    worst = (found - torch.nn.functional.scaled_dot_product_attention(query, keys, values)).abs().max().item()
    if not worst < 1e-4:
        raise RuntimeError(f"its self-test is off by {worst:.1e}")
    return attend_rows


LOOPS = Loops("attention by compiled loops is unavailable; torch's own runs instead", _find_loops)


def attendable(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The keys [B, H, T, D] of rows that are contiguous, as RowStates where the loops win by it.

    The first time asked, the loops are compiled in a thread beside.
    """
    if torch.compiler.is_compiling() or keys.numel() < WORTH or not LOOPS.ready(wait=False):
        return keys
    for states in (keys, values):
        if states.dtype != torch.float32 or not states.is_cpu or states.requires_grad:
            return keys
    return keys.as_subclass(RowStates)


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False) -> torch.Tensor | None:
    """scaled_dot_product_attention for one token; None where torch's own has to do it. Shapes as in `packed.attend`."""
    alike = isinstance(key, RowStates) and query.dtype == value.dtype == key.dtype and value.shape[:3] == key.shape[:3]
    if not alike or is_causal or dropout_p or not one_token(query, key.shape, attn_mask):
        return None
    return _run(LOOPS.run, query, key, value, attn_mask, query.shape[3] ** -0.5 if scale is None else scale)


def _run(attend_rows, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    batch, heads, tokens, dim = key.shape
    queries = query.detach().numpy().reshape(batch, heads, -1, dim)
    out = torch.empty(*query.shape[:3], value.shape[3])
    fixed = (queries, scale, key.numpy(), value.numpy(), bias(mask, batch), out.numpy().reshape(*queries.shape[:3], -1))
    shared(attend_rows, fixed, batch * heads, threaded=batch * heads * tokens * dim > ENOUGH)
    return out
