"""MambaCache: the fixed-size states of models without attention."""

from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import decoder_config
from ..cache import Cache, build_layers
from ..entry import Entry, all_but
from ..legacy import LayerStates
from ..recurrent import CARRIES, StateLayer, has_states_alone
from ..recurrent_shapes import state_shape
from .static import checked_batch


class MambaCache(Cache):
    """One recurrent state a layer, however long the text: for Mamba, Mamba-2, FalconMamba and others without attention.

    Pass it as `cache=`, or `cache_params=` before transformers 5.24. With a batch size (`batch_size`, or `max_batch_size`, as one likes) the states are
    allocated now, without one by the first tokens; `dtype` None keeps each state in the dtype the model computes it in.
    Several tokens on a filled cache: right for Mamba-2; for Mamba and FalconMamba, whose scan would start from zero,
    a ValueError before anything changes, and `kvcache.feed` gives them one by one. A state cannot go back, so `crop`
    refuses. Source: Gu and Dao 2023, arXiv 2312.00752. Raises ValueError on a model with attention layers.
    """

    name = "mamba"

    def __init__(
        self,
        config: PreTrainedConfig,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        max_batch_size: int | None = None,
    ):
        config = decoder_config(config)
        reason = why_not(config)
        if reason:
            raise ValueError(f"MambaCache: {reason}")
        table = {"linear_attention": lambda number_of_states=1, **_: StateLayer(number_of_states, config.model_type in CARRIES, dtype)}
        super().__init__(build_layers(config, table))
        self.config = config
        rows = checked_batch(batch_size, max_batch_size)
        if rows is not None:
            self._allocate(rows, dtype, device)

    def _allocate(self, rows: int, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        shape = state_shape(self.config)
        if shape is None:
            raise ValueError(f"the states of {self.config.model_type} are known with the first tokens only; leave batch_size out")
        conv_dtype = dtype or self.config.dtype or torch.float32
        for layer in self.layers:
            conv = torch.empty((rows, *shape.conv), dtype=conv_dtype, device=device or "cpu")
            recurrent = torch.empty((rows, *shape.recurrent), dtype=dtype or torch.float32, device=device or "cpu")
            layer.lazy_initialization(conv_states=conv, recurrent_states=recurrent)

    @property
    def conv_states(self) -> LayerStates:
        """By layer, the last inputs of its convolution [B, channels, kernel]; None before they are allocated."""
        return LayerStates(self.layers, "conv_0")

    @property
    def ssm_states(self) -> LayerStates:
        """By layer, the state of its scan: [B, channels, state] of Mamba, [B, heads, head_dim, state] of Mamba-2."""
        return LayerStates(self.layers, "recurrent_0")

    @property
    def max_batch_size(self) -> int | None:
        """Rows that are allocated; None before."""
        state = self.conv_states[0]
        return None if state is None else state.shape[0]

    @property
    def dtype(self) -> torch.dtype | None:
        """What the convolutions' inputs are held in; None where the first tokens will say."""
        state = self.conv_states[0]
        return self.layers[0].conv_0.dtype if state is None else state.dtype

    @property
    def intermediate_size(self) -> int:
        """The model's channels."""
        config = self.config
        return config.intermediate_size if getattr(config, "intermediate_size", None) else int(config.expand * config.hidden_size)

    @property
    def ssm_state_size(self) -> int:
        """The config's state_size."""
        return self.config.state_size

    @property
    def conv_kernel_size(self) -> int:
        """The config's conv_kernel."""
        return self.config.conv_kernel

    def update_conv_state(self, conv_states: torch.Tensor | int | None = None, layer_idx: int | torch.Tensor | None = None, state_idx: int | torch.Tensor = 0, *, new_conv_state: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        """transformers 5's call `(conv_states, layer_idx)`, or 4.48's `(layer_idx, new_conv_state, ...)`.

        The first returns held and new inputs, the second what is held then: the newest `kernel` of them.
        """
        if isinstance(conv_states, int):
            conv_states, layer_idx = (layer_idx if new_conv_state is None else new_conv_state), conv_states
        elif new_conv_state is None:
            return super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)
        else:
            conv_states = new_conv_state
        return self.layers[layer_idx].push_conv_inputs(conv_states)

    def update_ssm_state(self, layer_idx: int, new_ssm_state: torch.Tensor) -> torch.Tensor:
        """Hold a layer's new scan state, as 4.48 calls it."""
        return self.layers[layer_idx].update_recurrent_state(new_ssm_state)

    @property
    def tokens_seen(self) -> int:
        """Tokens seen; the layers here do keep count."""
        return self.get_seq_length()

    def token_fates(self) -> list[tuple[str, int]]:
        """Every token seen is summed up in the states."""
        seen = self.get_seq_length()
        return [("state", seen)] if seen else []

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen; those fed through 4.48's `update_conv_state` are not counted."""
        return self.layers[layer_idx].seen if layer_idx < len(self.layers) else 0


def why_not(config: PreTrainedConfig) -> str | None:
    """Why a cache of states alone does not suit this model, or None."""
    if has_states_alone(config):
        return None
    return f"{config.model_type} has attention layers, and this cache holds recurrent states only; 'dynamic' holds keys and values, too"


ENTRY = Entry(
    name="mamba",
    title="Mamba state",
    summary="Sums up all that was said in one state of fixed size per layer: the same bytes for one token and for a million.",
    cache_class=MambaCache,
    make=MambaCache,
    can=all_but("turns", "crop", "drafts"),
    paper="https://arxiv.org/abs/2312.00752",
    why_not_model=why_not,
    for_states=True,
)
