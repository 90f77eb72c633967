"""What a cache will cost, from the config alone: closed forms, checked against measured storage by the tests."""

import functools
import inspect
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DummyLayer, StaticSlidingWindowLayer

from .architecture import processes_of
from .layer import Stored, capacity_for
from .recurrent_shapes import StateShape, state_shape


@dataclass(frozen=True)
class Shape:
    """What one layer's keys and values look like: `itemsize` bytes an element before any quantisation."""

    batch: int
    heads: int
    key_dim: int
    value_dim: int
    itemsize: int
    state: StateShape | None = None  # of a recurrent layer
    query_heads: int = 0

    @property
    def key_nbytes(self) -> int:
        """Bytes of one token's keys in full precision, over batch and heads."""
        return self.batch * self.heads * self.key_dim * self.itemsize

    @property
    def value_nbytes(self) -> int:
        return self.batch * self.heads * self.value_dim * self.itemsize

    @property
    def token_nbytes(self) -> int:
        return self.key_nbytes + self.value_nbytes


def shapes_of(config: PreTrainedConfig, batch: int, itemsize: int) -> list[Shape]:
    """The Shape of each layer of a text decoder's config; of a tensor parallel model, with the heads that one process has. Raises ValueError where its processes cannot share them evenly."""
    shapes = [_shape(layer_config, batch, itemsize) for layer_config in config.per_layer_config]
    if config.model_type == "mimo_v2_flash":  # twice the heads in windows, which only its modeling file says
        windows = [kind == "sliding_attention" for kind in config.layer_types]
        shapes = [replace(shape, heads=shape.heads * (1 + window)) for shape, window in zip(shapes, windows)]
    if (processes := processes_of(config)) > 1:
        shapes = [_shared(shape, processes) for shape in shapes]
    return [replace(shape, state=state_shape(config)) for shape in shapes]


def _shared(shape: Shape, processes: int) -> Shape:
    if shape.heads % processes:
        raise ValueError(f"{shape.heads} key heads cannot be shared evenly by {processes} processes")
    return replace(shape, heads=shape.heads // processes, query_heads=shape.query_heads // processes)


def _shape(config: PreTrainedConfig, batch: int, itemsize: int) -> Shape:
    if getattr(config, "qk_nope_head_dim", None) is not None:  # latent attention, cached as one latent and one rotary key
        return Shape(batch, 1, config.kv_lora_rank, config.qk_rope_head_dim, itemsize)
    if getattr(config, "num_attention_heads", None) is None:  # no attention at all
        return Shape(batch, 0, 0, 0, itemsize)
    heads = _falcon_heads(config) if config.model_type == "falcon" else _key_value_heads(config)
    dim = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or config.hidden_size // _query_heads(config)
    return Shape(batch, heads, dim, getattr(config, "v_head_dim", None) or dim, itemsize, query_heads=_query_heads(config))


def _key_value_heads(config: PreTrainedConfig) -> int:
    """As many as attention heads where the kind of config knows no other number: a stray one, as in a GPT-2's, is read by no model."""
    return _decoder_heads(config) or _names(type(config), "num_key_value_heads") and getattr(config, "num_key_value_heads", None) or _query_heads(config)


def _query_heads(config: PreTrainedConfig) -> int:
    return _decoder_heads(config) or config.num_attention_heads


def _decoder_heads(config: PreTrainedConfig) -> int | None:
    """Of a decoder without its encoder, of which `num_attention_heads` speaks; None elsewhere."""
    return None if config.is_encoder_decoder else getattr(config, "decoder_attention_heads", None)


@functools.cache
def _names(config_class: type, name: str) -> bool:
    """Does a class of configs have a field of this name, inherited ones too, or set one itself?"""
    fields = {*getattr(config_class, "__dataclass_fields__", ()), *getattr(config_class, "attribute_map", ())}
    try:
        return name in fields or name in inspect.getsource(config_class)
    except OSError:  # a class that somebody typed in
        return True


def _falcon_heads(config: PreTrainedConfig) -> int:
    return 1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads


def predicted_rows(tokens: int, shape: Shape) -> dict[str, int]:
    """Bytes by kind of `tokens` in full precision in growing buffers."""
    spare = capacity_for(tokens) - tokens if tokens else 0
    return {"keys": tokens * shape.key_nbytes, "values": tokens * shape.value_nbytes, "reserved": spare * shape.token_nbytes}


def predict_layer(layer: Any, tokens: int, shape: Shape) -> dict[str, int]:
    """Bytes by kind after one prefill of `tokens`. Raises ValueError for layers whose states have no closed form here."""
    if isinstance(layer, Stored):
        return layer.predict(tokens, shape)
    if isinstance(layer, DummyLayer):
        return {}
    if isinstance(layer, StaticSlidingWindowLayer):
        held = min(tokens, layer.max_cache_len)
        spare = layer.max_cache_len - held
        return {"keys": held * shape.key_nbytes, "values": held * shape.value_nbytes, "reserved": spare * shape.token_nbytes}
    what = "key and value" if isinstance(layer, CacheLayerMixin) else "state"
    raise ValueError(f"the {what} bytes of a {type(layer).__name__} are not predicted, only measured")
