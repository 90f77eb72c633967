"""A model beside itself, on the same weights, whose linear layers are made for one token: for torch.compile on a CPU.

One token times a weight matrix takes as long as reading the matrix does, or longer: MKL's routine for it ran at a quarter of memory's speed on an AMD EPYC.
Written as products and their sums, row by row, a compiler makes one pass over memory of it. And weights that 16 bits hold exactly, as those of
a model published in 16 bits, are read from a 16-bit copy and multiplied in the model's own precision: half the bytes, the same numbers.
"""

import copy
import itertools

import torch

from ..extras import free_memory

HALVES = (torch.bfloat16, torch.float16)
SHARE = 0.25  # of the memory that is free, at most, for 16-bit copies


class SingleRow(torch.nn.Module):
    """A linear layer [O, I] that takes one token as products of each row, summed; more than one as ever. Shares the layer's tensors, but for `rows`."""

    def __init__(self, linear: torch.nn.Linear, rows: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.numel() != hidden.shape[-1]:
            return torch.nn.functional.linear(hidden, self.weight, self.bias)
        out = (self.rows.to(hidden.dtype) * hidden.reshape(1, -1)).sum(-1)  # [O]
        out = out if self.bias is None else out + self.bias
        return out.reshape(*hidden.shape[:-1], -1)


def twin(model: torch.nn.Module) -> torch.nn.Module:
    """The same modules over the same parameters and buffers, with a config of its own: what is changed about it does not touch `model`."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def for_single_rows(model: torch.nn.Module) -> torch.nn.Module:
    """A twin of a model whose float32 linear layers on a CPU are `SingleRow`s; of 16-bit copies where those fit into a quarter of the free memory, as far as that is known."""
    made = twin(model)
    linears = [(parent, name, child) for parent in made.modules() for name, child in parent.named_children() if _takes_rows(child)]
    numbers = sum({id(linear.weight): linear.weight.numel() for _, _, linear in linears}.values())
    halve = 2 * numbers <= SHARE * (free_memory() or 0)
    copies: dict[int, torch.Tensor] = {}  # tied layers share theirs
    for parent, name, linear in linears:
        weight = linear.weight.detach()
        if id(linear.weight) not in copies:
            copies[id(linear.weight)] = halved(weight) if halve else weight
        setattr(parent, name, SingleRow(linear, copies[id(linear.weight)]))
    return made


def halved(weight: torch.Tensor) -> torch.Tensor:
    """The weights in 16 bits where those hold each of them exactly; else as they are."""
    copies = (weight.to(dtype) for dtype in HALVES)
    return next((short for short in copies if torch.equal(short.to(weight.dtype), weight)), weight)


def _takes_rows(module: torch.nn.Module) -> bool:
    return type(module) is torch.nn.Linear and module.weight.dtype == torch.float32 and module.weight.device.type == "cpu"
