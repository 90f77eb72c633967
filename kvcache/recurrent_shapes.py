"""What the recurrent layers of a model hold, from its config alone."""

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedConfig


@dataclass(frozen=True)
class StateShape:
    """What one layer holds for one batch row: the convolution's `conv` (channels, kernel), the scan's `recurrent`."""

    conv: tuple[int, ...]
    recurrent: tuple[int, ...] = ()


def state_shape(config: PreTrainedConfig) -> StateShape | None:
    """The states of this model's recurrent layers, from the config; None for a model whose form is not known here."""
    form = _FORMS.get(config.model_type)
    return None if form is None else form(config)


def _selective(inner: str, state: str, kernel: str) -> Callable:
    """Mamba: one state vector per channel. `inner` names the channels, or "expand" for mamba_expand * hidden_size."""

    def form(c: PreTrainedConfig) -> StateShape:
        channels = c.mamba_expand * c.hidden_size if inner == "expand" else getattr(c, inner)
        return StateShape((channels, getattr(c, kernel)), (channels, getattr(c, state)))

    return form


def _grouped(heads: str, dim: str, groups: str, state: str, kernel: str) -> Callable:
    """Mamba-2: a state matrix per head; the convolution also runs over the groups' inputs and outputs."""

    def form(c: PreTrainedConfig) -> StateShape:
        h, d, n = getattr(c, heads), getattr(c, dim), getattr(c, state)
        return StateShape((h * d + 2 * getattr(c, groups) * n, getattr(c, kernel)), (h, d, n))

    return form


def _delta_rule(c: PreTrainedConfig) -> StateShape:
    keys, values = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
    return StateShape((2 * keys + values, c.linear_conv_kernel_dim), (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim))


def _short(c: PreTrainedConfig) -> StateShape:
    return StateShape((c.hidden_size, c.conv_L_cache))


def _kimi(c: PreTrainedConfig) -> StateShape:
    return StateShape((3 * c.linear_num_heads * c.linear_head_dim, c.linear_conv_kernel_dim), (c.linear_num_heads, c.linear_head_dim, c.linear_head_dim))


def _zamba(c: PreTrainedConfig) -> StateShape:
    channels = c.mamba_expand * c.hidden_size
    return StateShape((channels, c.mamba_d_conv), (c.n_mamba_heads, channels // c.n_mamba_heads, c.mamba_d_state))


_mamba = _selective("intermediate_size", "state_size", "conv_kernel")
_bamba = _grouped("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_FORMS: dict[str, Callable[[PreTrainedConfig], StateShape]] = {
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _grouped("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
    "jamba": _selective("expand", "mamba_d_state", "mamba_d_conv"),
    "zamba": _zamba,
    "bamba": _bamba,
    "falcon_h1": _bamba,
    "granitemoehybrid": _bamba,
    "zamba2": _grouped("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv"),
    "nemotron_h": _grouped("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    "lfm2": _short,
    "lfm2_moe": _short,
    "qwen3_next": _delta_rule,
    "qwen3_5_text": _delta_rule,
    "qwen3_5_moe_text": _delta_rule,
    "olmo_hybrid": _delta_rule,
    "kimi_linear": _kimi,
}
