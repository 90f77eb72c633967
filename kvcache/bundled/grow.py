"""Begin a wider or deeper Llama with a smaller one's weights, so that it says the same before any training and has room for more.

Query heads and feed-forward neurons that are new read what they like, at random, and write nothing yet; new layers read as the layers before them do.
Source: Chen et al. 2016, arXiv 1511.05641.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

LAYER = re.compile(r"model\.layers\.(\d+)\.")
READING = ("q_proj.weight", "gate_proj.weight", "up_proj.weight")  # [query heads or neurons, hidden]
WRITING = ("o_proj.weight", "down_proj.weight")  # [hidden, query heads or neurons]


def deeper(theirs: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The weights of a Llama with so many layers: those there are, spread evenly, and after some of them copies that read as they do and write nothing yet. Raises ValueError where there are more."""
    number = {name: int(found[1]) for name in theirs if (found := LAYER.match(name))}
    few = max(number.values(), default=-1) + 1
    if few > layers:
        raise ValueError(f"weights of {few} layers do not fit a model of {layers}: start from a model with {layers} or fewer")
    if few in (0, layers):
        return dict(theirs)
    made = {name: p for name, p in theirs.items() if name not in number}
    for layer in range(layers):
        source, new = layer * few // layers, layer > 0 and layer * few // layers == (layer - 1) * few // layers
        for name in (name for name, at in number.items() if at == source):
            made[LAYER.sub(f"model.layers.{layer}.", name)] = torch.zeros_like(theirs[name]) if new and name.endswith(WRITING) else theirs[name]
    return made


def wider(model: PreTrainedModel, theirs: Mapping[str, Tensor]) -> bool:
    """True where the weights are of a model like this one with fewer query heads or neurons a layer."""
    ours = dict(model.named_parameters())
    if not all(name in theirs and (p.shape == theirs[name].shape or _fits(name, p, theirs[name])) for name, p in ours.items()):
        return False
    return any(p.shape != theirs[name].shape for name, p in ours.items())


@torch.no_grad()
def grow(model: PreTrainedModel, theirs: Mapping[str, Tensor]) -> None:
    """Put the weights in place; what else the model has keeps its initial weights where it reads, and zeros where it writes."""
    for name, p in model.named_parameters():
        source, writes = theirs[name].to(p.dtype), name.endswith(WRITING)
        if p.shape == source.shape:
            p.copy_(source)
            continue
        if writes:
            p.zero_()
        groups = model.config.num_key_value_heads if "self_attn" in name else 1  # a query head stays with its key head
        _place(p.T if writes else p, source.T if writes else source, groups)


def _place(p: Tensor, source: Tensor, groups: int) -> None:
    """Copy the rows of each group to the beginning of that group. p [groups * more, hidden], source [groups * few, hidden]."""
    few = len(source) // groups
    p.unflatten(0, (groups, -1))[:, :few] = source.reshape(groups, few, -1)


def _fits(name: str, p: Tensor, source: Tensor) -> bool:
    """True where only the side of query heads or neurons is longer."""
    side = 0 if name.endswith(READING) else 1 if name.endswith(WRITING) else None
    return side is not None and p.dim() == source.dim() and p.shape[1 - side] == source.shape[1 - side] and p.shape[side] > source.shape[side]
