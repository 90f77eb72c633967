"""Attention of one token over keys and values in full precision, by the loops that also read packed ones.

torch's own takes up to four times as long where several query heads share a key head: it reads a row again for each of them.
A layer returns keys as `RowStates`, a plain view to whatever touches it but scaled_dot_product_attention, which runs here where it can.
"""

import torch

from .compiled import Loops, shares
from .packed import Attention, bias, in_spans, one_token, tested

WORTH = 1 << 18  # key elements from which the loops win more than calling them costs


class RowStates(torch.Tensor):
    """A view of the keys in a buffer [B, H, T, D]. Operations on it give plain tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            attended = attend(*args, **kwargs) if func is torch.nn.functional.scaled_dot_product_attention else None
            return func(*args, **kwargs) if attended is None else attended


def _find_loops() -> Attention:
    """The compiled loops, once they have come close to torch's attention on a small example."""
    from .packed_numba import attend_rows, join, rows_together, rows_worker

    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, 2, t, 40, generator=generator, dtype=torch.float32, device="cpu") for t in (3, 21, 21))
    loops = Attention(rows_together, rows_worker, attend_rows, join)
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    return tested(loops, lambda sharing: _run(loops, query, keys, values, None, 40**-0.5, sharing), expected)


LOOPS = Loops("attention by compiled loops is unavailable; torch's own runs instead", _find_loops)


def attendable(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The keys [B, H, T, D] of rows that are contiguous, as RowStates where the loops win by it.

    The first time asked, the loops are compiled in a thread beside.
    """
    if keys.numel() < WORTH or keys.dtype != torch.float32 or not keys.is_cpu or keys.requires_grad or values.requires_grad:
        return keys
    return keys if torch.compiler.is_compiling() or not LOOPS.ready(wait=False) else keys.as_subclass(RowStates)


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False) -> torch.Tensor | None:
    """scaled_dot_product_attention for one token; None where torch's own has to do it. Shapes as in `packed.attend`."""
    alike = isinstance(key, RowStates) and query.dtype == value.dtype == key.dtype and value.shape[:3] == key.shape[:3]
    if not alike or is_causal or dropout_p or not one_token(query, key.shape, attn_mask):
        return None
    return _run(LOOPS.run, query, key, value, attn_mask, query.shape[3] ** -0.5 if scale is None else scale)


def _run(loops: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float, sharing: tuple[int, int] | None = None) -> torch.Tensor:
    batch, heads, tokens, dim = key.shape
    fixed = (query.detach().contiguous().numpy().reshape(batch, heads, -1, dim), scale, key.numpy(), value.numpy(), bias(mask, batch))
    out = torch.empty(*query.shape[:3], value.shape[3], dtype=torch.float32, device="cpu")
    in_spans(loops, fixed, out.numpy().reshape(batch, heads, 1, -1, out.shape[3]), *sharing or shares(batch, heads, heads * tokens * dim, tokens))
    return out
