"""HybridMambaAttentionDynamicCache: growing keys and values beside recurrent states."""

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin

from ..architecture import RECURRENT_TYPES, decoder_config, layer_types
from ..entry import Entry, all_but
from ..recurrent import States, has_states_alone
from .dynamic import DynamicCache


class HybridMambaAttentionDynamicCache(DynamicCache):
    """Jamba's, Bamba's and Zamba's cache: attention layers keep every token, the others a state of fixed size.

    The same layers as DynamicCache(config), under the constructor and the names of transformers 4.48: `batch_size`,
    `dtype` and `device` are taken and not needed, since storage follows the first tokens. Several tokens on a filled
    cache are a ValueError, before anything changes, for models that would drop the state (Jamba, Zamba):
    `kvcache.feed` gives them one by one. Raises ValueError on a model without both kinds of layer.
    """

    name = "hybrid_mamba"

    def __init__(self, config: PreTrainedConfig, batch_size: int | None = None, dtype: torch.dtype | None = None, device: torch.device | str | None = None):
        reason = why_not(decoder_config(config))
        if reason:
            raise ValueError(f"HybridMambaAttentionDynamicCache: {reason}")
        super().__init__(config)

    @property
    def transformer_layers(self) -> list[int]:
        """Indices of the layers with attention."""
        return [index for index, layer in enumerate(self.layers) if isinstance(layer, CacheLayerMixin)]

    @property
    def conv_states(self) -> list[torch.Tensor | None]:
        """By layer, the last inputs of its convolution [B, channels, kernel]; None for layers without one."""
        return [layer.conv_states[0] if isinstance(layer, States) else None for layer in self.layers]

    @property
    def ssm_states(self) -> list[torch.Tensor | None]:
        """By layer, the state of its scan [B, ...]; None for layers without one."""
        return [layer.recurrent_states[0] if isinstance(layer, States) else None for layer in self.layers]


def why_not(config: PreTrainedConfig) -> str | None:
    """Why a cache of both kinds does not suit this model, or None."""
    if has_states_alone(config):
        return f"{config.model_type} has recurrent states only: 'mamba' is its cache"
    if not set(layer_types(config)) & RECURRENT_TYPES:
        return f"{config.model_type} has no recurrent layers beside its attention; 'dynamic' keeps the same keys and values"
    return None


ENTRY = Entry(
    name="hybrid_mamba",
    title="Hybrid Mamba",
    summary="For models that mix attention with recurrent layers: keys and values of every token in the first, one small state in the others.",
    cache_class=HybridMambaAttentionDynamicCache,
    make=HybridMambaAttentionDynamicCache,
    can=all_but("turns", "crop", "drafts", "compile", "export"),
    paper="https://arxiv.org/abs/2403.19887",
    why_not_model=why_not,
    for_states=True,
)
