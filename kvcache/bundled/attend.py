"""Causal attention for training on a CPU, forward and backward, in blocks of queries whose probabilities are kept.

Matrix products of bfloat16 are fast on a CPU with AVX-512 BF16 or AMX; what torch's own attention takes for its backward pass is several times as much.
Registered with transformers as NAME, for `set_attn_implementation`.
"""

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "kvlab_blocked"
BLOCK = 256  # queries at a time: keys after a block's last query are never multiplied


class Blocked(torch.autograd.Function):
    """Queries [N, G, T, D] of N key heads, keys and values [N, T, D], None or what is added to scores [N, 1, T, T], and the scale of scores; gives [N, G, T, D]."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        groups, length = q.shape[1:3]
        out, kept = torch.empty_like(q), []
        later = torch.full((BLOCK, BLOCK), float("-inf"), dtype=q.dtype).triu(1)
        for begin, end in _blocks(length):
            rows = end - begin
            scores = torch.bmm(_flat(q, begin, end) * scale, k[:, :end].transpose(1, 2))
            by_query = scores.view(-1, groups, rows, end)
            if bias is None:
                by_query[..., begin:].add_(later[:rows, :rows])
            else:
                by_query.add_(bias[:, :, begin:end, :end])
            kept.append(torch.softmax(scores, -1))
            out[:, :, begin:end] = torch.bmm(kept[-1], v[:, :end]).view_as(q[:, :, begin:end])
        ctx.save_for_backward(q, k, v, *kept)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, given: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros(k.shape), torch.zeros(v.shape)  # sums over blocks, in float32
        for (begin, end), p in zip(_blocks(q.shape[2]), kept, strict=True):
            given_here = _flat(given, begin, end)
            dv[:, :end] += torch.bmm(p.transpose(1, 2), given_here)
            dp = torch.bmm(given_here, v[:, :end].transpose(1, 2))
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)
            dq[:, :, begin:end] = torch.bmm(ds, k[:, :end]).view_as(q[:, :, begin:end])
            dk[:, :end] += torch.bmm(ds.transpose(1, 2), _flat(q, begin, end))
        return dq.mul_(ctx.scale), dk.mul_(ctx.scale).to(k.dtype), dv.to(v.dtype), None, None


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + BLOCK, length)) for begin in range(0, length, BLOCK)]


def _flat(q: Tensor, begin: int, end: int) -> Tensor:
    """[N, G * rows, D] of some rows of [N, G, T, D]."""
    return q[:, :, begin:end].flatten(1, 2)


def attend(module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **unused) -> tuple[Tensor, None]:
    """As transformers asks for it: query [B, H, T, D], key and value [B, KV, T, D], a mask [B, 1, T, T] of what is seen, or None for all before; gives [B, T, H, D]."""
    batch, heads, length, size = query.shape
    kv = key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)
    bias = None
    if attention_mask is not None:
        bias = torch.zeros(attention_mask.shape, dtype=value.dtype).masked_fill_(~attention_mask, float("-inf"))
        bias = bias.expand(batch, kv, length, length).reshape(batch * kv, 1, length, length)
    q = query.reshape(batch * kv, heads // kv, length, size)
    out = Blocked.apply(q, *(t.reshape(batch * kv, length, size) for t in (key, value)), bias, scaling)
    return out.view(batch, heads, length, size).transpose(1, 2), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
