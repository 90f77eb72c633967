"""Updates that the user's own torch.compile leaves out of its graphs. Imported while one is traced, as the import brings torch's compiler along."""

import torch

from .attention import CachedStates
from .layer import Layer


@torch.compiler.disable(reason="this layer's storage has no static shapes, and its loops are not torch's")
def update_outside(layer: Layer, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`layer.update`, run as it runs without a compiler; returns plain tensors [B, H, T, D], which a graph can take."""
    keys, values = (states.plain() if isinstance(states, CachedStates) else states for states in layer.update(key_states, value_states))
    return keys, values
