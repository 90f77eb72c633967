"""The weights of a model: loaded one model at a time, and found where they are, be it where accelerate keeps them between forwards."""

import threading
from collections.abc import Iterator
from typing import Any

import torch

# Held while a model is loaded or made. `from_pretrained` changes the whole process while it runs: torch's default dtype, `tie_weights` of every
# model and more; two at once undo each other's changes in the wrong order, and then nothing loads any more, or weights stay newly initialised.
# A program around this library that loads models of its own in another thread takes it, too: `with kvcache.weights.LOADING:`.
LOADING = threading.RLock()


def named_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """`model.named_parameters()`, with the values of those that accelerate has offloaded to the CPU or a disk; weights that are tied come once.
    Of a tensor parallel model, the part of each that this process has.

    Raises ValueError for a parameter on the meta device whose values nobody keeps.
    """
    ties, known = _ties(model), set()
    for name, parameter in model.named_parameters():
        source = ties.get(name, name)
        if not parameter.is_meta:
            yield name, local_part(parameter).detach()
        elif source not in known:  # offloading makes two parameters on "meta" of one that was tied
            hook, local = _offloading(model, name)
            yield name, hook.weights_map[local].to(parameter.dtype)
        known.add(source)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model takes its inputs: the device of its first parameter, or the one it is brought to for a forward. Raises ValueError as `named_weights` does."""
    name, parameter = next(model.named_parameters())
    return torch.device(_offloading(model, name)[0].execution_device) if parameter.is_meta else parameter.device


def layer_devices(model: torch.nn.Module) -> list[torch.device]:
    """Where each layer of a decoder computes, and so where its keys and values come to be: one for all but where accelerate has spread the layers.

    Empty where the layers are not told apart; they are where the model is, then (`device_of`).
    """
    layers = getattr(model.get_decoder() if hasattr(model, "get_decoder") else model, "layers", None)
    return [_execution_device(layer) for layer in layers] if isinstance(layers, torch.nn.ModuleList) and getattr(model, "hf_device_map", None) else []


def _execution_device(layer: torch.nn.Module) -> torch.device:
    """The device that a hook brings a layer's inputs and weights to, on the layer or within it; without any, that of its weights."""
    hooks = (getattr(module, "_hf_hook", None) for module in layer.modules())
    devices = (getattr(each, "execution_device", None) for hook in hooks for each in getattr(hook, "hooks", (hook,)))
    found = next((device for device in devices if device is not None), None)
    return next(layer.parameters()).device if found is None else torch.device(found)


def local_part(weight: torch.Tensor) -> torch.Tensor:
    """A weight, or the part of it that this process has, where several share it."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


def shard_of(model: torch.nn.Module) -> tuple[int, int] | None:
    """(number from 1, count): which of the processes that share a model's weights (tensor parallel) this is; None for a model that is whole."""
    mesh = next((weight.device_mesh for weight in model.parameters() if hasattr(weight, "device_mesh")), None)
    return None if mesh is None else (mesh.mesh.flatten().tolist().index(torch.distributed.get_rank()) + 1, mesh.size())


def is_offloaded(model: torch.nn.Module) -> bool:
    """Are there weights that are brought in for each forward?"""
    return any(parameter.is_meta for parameter in model.parameters())


def _ties(model: torch.nn.Module) -> dict[str, str]:
    """Names of tied parameters -> the name of what they are tied to."""
    within = {f"{prefix}." if prefix else "": getattr(module, "all_tied_weights_keys", None) or {} for prefix, module in model.named_modules()}
    return {prefix + name: prefix + source for prefix, ties in within.items() for name, source in ties.items()}


def _offloading(model: torch.nn.Module, name: str) -> tuple[Any, str]:
    """accelerate's hook that keeps a parameter, on its module or on one around that, and the parameter's name there."""
    path = name.split(".")
    for depth in reversed(range(len(path))):
        hook = getattr(model.get_submodule(".".join(path[:depth])), "_hf_hook", None)
        for each in getattr(hook, "hooks", (hook,)):  # one, or several in a row
            if getattr(each, "offload", False):
                return each, ".".join(path[depth:])
    raise ValueError(f"{name} of this {type(model).__name__} is on the meta device and has no values: load the model's weights first")
