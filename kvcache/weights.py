"""Where a model's weights really are: accelerate's offloading leaves parameters on "meta" and keeps their numbers in its hooks."""

from collections.abc import Iterator
from typing import Any

import torch


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model computes: the device of its first parameter that is somewhere, else the one that accelerate moves offloaded ones to."""
    parameters = list(model.parameters())
    placed = next((parameter.device for parameter in parameters if parameter.device.type != "meta"), None)
    if placed is not None:
        return placed
    moved_to = (getattr(hook, "execution_device", None) for module in model.modules() for hook in _hooks(module))
    device = next((device for device in moved_to if device is not None), parameters[0].device if parameters else "cpu")
    return torch.device(device if isinstance(device, (str, torch.device)) else f"cuda:{device}")


def placed_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """`model.named_parameters()`, offloaded ones as they are kept on the CPU or on disk. Raises ValueError for one that is nowhere."""
    modules, tied = dict(model.named_modules()), getattr(model, "all_tied_weights_keys", None) or {}
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta":
            yield name, parameter.detach()
        elif name not in tied:  # offloading parts them, and named_parameters then lists both
            owner, _, own = name.rpartition(".")
            yield name, _kept(modules[owner], own, name)


def _kept(module: torch.nn.Module, own: str, name: str) -> torch.Tensor:
    for hook in _hooks(module):
        weights = getattr(hook, "weights_map", None)
        if weights is not None and own in _names(weights):
            return weights[own]
    raise ValueError(f"the parameter {name} is on the meta device, and no hook of accelerate's keeps its numbers: load the model's weights first")


def _names(weights: Any) -> set[str]:
    """Names in a map of one module's weights, which may be a part of a larger map, by prefix."""
    prefix = getattr(weights, "prefix", "")
    return {key.removeprefix(prefix) for key in weights}


def _hooks(module: torch.nn.Module) -> list:
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))
