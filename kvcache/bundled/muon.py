"""Muon: momentum, then the nearest orthogonal matrix, for all matrices of one shape at a time.

torch.optim.Muon always works in bfloat16, which is slow on CPUs without bf16 units; this one does under autocast. Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
"""

from collections import defaultdict

import torch
from torch import Tensor


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards U V^T of each matrix. matrices [N, rows, columns]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum and orthogonalised steps for 2-D parameters."""

    def __init__(self, params, lr: float = 0.01, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                grads = torch.stack([self._direction(p, group["momentum"]) for p in params])
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonal(grads)):
                    p.add_(update, alpha=-scale)

    def _direction(self, p: Tensor, momentum: float) -> Tensor:
        buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
        buffer.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)
