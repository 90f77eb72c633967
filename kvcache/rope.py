"""Rotate keys by a distance, for every rotary position embedding whose frequencies do not depend on length.

RoPE attention depends on distances alone, so a key moved forward by d positions is the key rotated by d * frequency.
Source: Su et al. 2021, arXiv 2104.09864. Frequencies come from the model's own rotary module, whatever its type.
"""

import ast
import functools
import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import get_layer_types_and_kwargs

from .architecture import cache_argument, modeling_module
from .predict import shapes_of
from .weights import device_of

# transformers' names of the RoPE types with fixed frequencies. "dynamic" and "longrope" change theirs with length.
FIXED_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
# What a modeling file's rotate_half makes of (1, 2, 3, 4): which dims of a head are a pair, and which way they turn. NanoChat's turn backwards.
TURNS = {"halves": [-3.0, -4.0, 1.0, 2.0], "neighbours": [-2.0, 1.0, -4.0, 3.0]}
BACKWARDS = [3.0, 4.0, -1.0, -2.0]


class RopeError(ValueError):
    """The keys of this model cannot be rotated by a distance."""


@dataclass(frozen=True)
class Rope:
    """`frequencies` [rotary_dim / 2] in radians a token, float64; `interleaved`: pairs are neighbours, not halves."""

    frequencies: torch.Tensor
    interleaved: bool = False

    def rotate(self, keys: torch.Tensor, distance: int) -> torch.Tensor:
        """Keys [..., head_dim] moved `distance` tokens forward; dims beyond the rotary part are left alone."""
        angles = self.frequencies.to(keys.device) * distance  # float64: exact to 1e-9 rad at a million tokens
        cos, sin = angles.cos().float(), angles.sin().float()
        width = 2 * len(self.frequencies)
        turned, rest = keys[..., :width].float(), keys[..., width:]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned.to(keys.dtype), rest), dim=-1)


def rope_for(config: PreTrainedConfig, layer_type: str = "full_attention") -> Rope:
    """The rotation of this config's `layer_type` layers. Raises RopeError, with the reason, where there is none."""
    rope_type = _rope_type(config, layer_type)
    if rope_type not in FIXED_TYPES:
        raise RopeError(f"its RoPE type '{rope_type}' changes frequencies with length; of fixed types: {', '.join(FIXED_TYPES)}")
    if getattr(config, "qk_nope_head_dim", None) is not None:
        raise RopeError(f"{config.model_type} caches one latent a token as keys, which carries no positions, and its rotary keys as values")
    try:
        module = modeling_module(config)
    except ImportError as error:
        raise RopeError(f"no modeling file found for {config.model_type}: {error}") from error
    if _rotates_by_other_means(config):
        raise RopeError(f"this {config.model_type} has no rotary position embedding by its config")
    if _rotates_unevenly(config, module):
        raise RopeError(f"some attention layers of {config.model_type} carry no positions, or rotate in another way, so keys cannot all be rotated alike")
    rotary = _rotary_class(module)
    if rotary is None or not hasattr(module, "rotate_half"):
        raise RopeError(f"{config.model_type} has no rotary position embedding")
    embedding = rotary(config)
    turn = module.rotate_half(torch.arange(1.0, 5.0, dtype=torch.float32)).tolist()
    if turn not in (*TURNS.values(), BACKWARDS):
        raise RopeError(f"{config.model_type} pairs the dims of a head in a way of its own")
    frequencies = getattr(embedding, f"{layer_type}_inv_freq", getattr(embedding, "inv_freq", None))
    if frequencies is None:
        raise RopeError(f"the rotary position embedding of {config.model_type} has no frequencies for {layer_type} layers")
    if 2 * len(frequencies) > _head_dim(config, layer_type):
        raise RopeError(f"{config.model_type} rotates {2 * len(frequencies)} dims of a head of {_head_dim(config, layer_type)}")
    frequencies = frequencies.detach().double().cpu()
    return Rope(-frequencies if turn == BACKWARDS else frequencies, turn == TURNS["neighbours"])


def verify_rope(model: torch.nn.Module, rope: Rope, layers: list[int]) -> None:
    """Check on the model itself that `rope` moves the keys of `layers`: two forwards of six tokens, seven positions apart.

    Moving every token moves every key by the same rotation and changes nothing else, in any layer of a model whose
    only positions are RoPE's. Raises RopeError where that does not hold. Each model is checked once.
    """
    if model in _verified:
        return
    if model.config.is_encoder_decoder:
        raise RopeError(f"how {model.config.model_type} rotates its keys can be checked on decoders alone, and it has an encoder")
    ids = torch.arange(6, device=device_of(model))[None] + 3
    with _evaluating(model):
        here, there = (_keys_at(model, ids, start) for start in (0, 7))
    for layer in layers:
        if torch.equal(here[layer], there[layer]):
            raise RopeError(f"this {type(model).__name__} computes the same keys whatever position_ids it is given, so that their rotation cannot be checked")
        moved, expected = rope.rotate(here[layer], 7).float(), there[layer].float()
        if (moved - expected).norm() > 0.05 * expected.norm():  # bf16 rounds to 1 %, a wrong rotation is off by 100 %
            raise RopeError(f"layer {layer} of this {model.config.model_type} does not move its keys by its RoPE frequencies alone")
    _verified.add(model)


_verified: weakref.WeakSet = weakref.WeakSet()


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout, whose noise is no rotation; every module goes back to the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


@torch.no_grad()
def _keys_at(model: torch.nn.Module, ids: torch.Tensor, start: int) -> list[torch.Tensor | None]:
    cache = transformers.DynamicCache(config=model.config)
    positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
    model(input_ids=ids, position_ids=positions, use_cache=True, **{cache_argument(model): cache})
    return [getattr(layer, "keys", None) for layer in cache.layers]


def _rope_type(config: PreTrainedConfig, layer_type: str) -> str:
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise RopeError(f"{config.model_type} has no rotary position embedding in its config")
    parameters = parameters.get(layer_type, parameters)
    if parameters is None:
        raise RopeError(f"{layer_type} layers of {config.model_type} have no rotary position embedding")
    return parameters.get("rope_type", "default")


def _rotates_by_other_means(config: PreTrainedConfig) -> bool:
    """Does a switch of this config turn rotation off? Falcon's, Zamba2's and Granite's."""
    kind = getattr(config, "position_embedding_type", "rope")
    return bool(getattr(config, "alibi", False)) or not getattr(config, "use_mem_rope", True) or kind not in ("rope", "rotary")


def _rotates_unevenly(config: PreTrainedConfig, module: Any) -> bool:
    """Do layers differ in whether, or how fast, they rotate?"""
    thetas = set(getattr(config, "layer_rope_theta", None) or [1])
    return not all(getattr(config, "no_rope_layers", None) or []) or len(thetas) > 1 or not all(thetas) or config.model_type == "llama4_text" or _asks_for_window(module)


@functools.cache
def _asks_for_window(module: Any) -> bool:
    """Does attention in a modeling file rotate under a condition on the layer's window? Its full-attention layers then carry no positions."""
    tests = (ast.unparse(node.test) for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.If) and _rotates(node))
    return any("sliding" in test or "local" in test for test in tests)


def _rotates(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and getattr(each.func, "id", "").startswith("apply_rotary") for each in ast.walk(node))


def _rotary_class(module: Any) -> type:
    for name, member in inspect.getmembers(module, inspect.isclass):
        if name.endswith("RotaryEmbedding") and "Vision" not in name and member.__module__ == module.__name__:
            return member
    return None


def _head_dim(config: PreTrainedConfig, layer_type: str) -> int:
    """Elements of a head's keys in layers of this type, the smallest where they differ."""
    return min((shape.key_dim for shape, kind in zip(shapes_of(config, 1, 1), get_layer_types_and_kwargs(config)[0]) if kind in (layer_type, "hybrid")), default=0)
