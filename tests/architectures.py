"""Tiny random models of many architectures, for tests that compare a cache with a run without one."""

from functools import cache

import torch
import transformers

COMMON = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
WINDOW = 24
ALTERNATING = dict(head_dim=16, sliding_window=WINDOW, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
# name -> (config class, changes to COMMON)
ARCHITECTURES = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", dict(sliding_window=WINDOW)),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", dict(head_dim=16)),
    "phi": ("PhiConfig", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "gpt2": ("GPT2Config", dict(n_inner=96)),
    "gemma2": ("Gemma2Config", ALTERNATING),
    "gemma3": ("Gemma3TextConfig", ALTERNATING),
}
# Jamba mixes attention with a state space whose multi-token continuation upstream gets wrong: prefill once, then step.
STEPPED = {"jamba": ("JambaConfig", dict(num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=9, use_mamba_kernels=False))}
_GROUPED = dict(mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8)
NO_ATTENTION = dict(num_attention_heads=None, num_key_value_heads=None, intermediate_size=None, max_position_embeddings=None)
# Models with recurrent states, alone or beside attention.
RECURRENT = {
    "mamba": ("MambaConfig", dict(state_size=8, **NO_ATTENTION)),
    "falcon_mamba": ("FalconMambaConfig", dict(state_size=8, **NO_ATTENTION)),
    "mamba2": ("Mamba2Config", dict(state_size=8, num_heads=8, head_dim=16, n_groups=2, chunk_size=8, **NO_ATTENTION)),
    **STEPPED,
    "bamba": ("BambaConfig", dict(attn_layer_indices=[1], **_GROUPED)),
    "falcon_h1": ("FalconH1Config", dict(mamba_d_ssm=128, **_GROUPED)),
    "granitemoehybrid": ("GraniteMoeHybridConfig", dict(layer_types=["mamba", "attention"], shared_intermediate_size=96, num_local_experts=0, **_GROUPED)),
    "zamba": ("ZambaConfig", dict(num_hidden_layers=3, num_key_value_heads=4, layers_block_type=["linear_attention", "hybrid", "hybrid"], n_mamba_heads=2, mamba_d_state=8, mamba_dt_rank=4)),
    "zamba2": ("Zamba2Config", dict(num_key_value_heads=4, layers_block_type=["linear_attention", "hybrid"], hybrid_layer_ids=[1], n_mamba_heads=8, mamba_headdim=16, mamba_d_state=8, mamba_ngroups=1, chunk_size=8, num_mem_blocks=1, use_mem_rope=True)),
    "nemotron_h": ("NemotronHConfig", dict(layers_block_type=["mamba", "attention"], mamba_num_heads=8, mamba_head_dim=16, n_groups=1, ssm_state_size=8, chunk_size=8, head_dim=16)),
    "lfm2": ("Lfm2Config", dict(layer_types=["conv", "full_attention"])),
    "qwen3_next": ("Qwen3NextConfig", dict(layer_types=["linear_attention", "full_attention"], head_dim=16, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32, shared_expert_intermediate_size=32, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)),
    "qwen3_5_text": ("Qwen3_5TextConfig", dict(layer_types=["linear_attention", "full_attention"], head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)),
    "olmo_hybrid": ("OlmoHybridConfig", dict(layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4, linear_num_key_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)),
    "kimi_linear": ("KimiLinearConfig", dict(layer_types=["linear_attention", "full_attention"], num_key_value_heads=4, num_local_experts=2, num_experts_per_tok=1, moe_intermediate_size=32, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, linear_head_dim=16, linear_num_heads=4)),
}  # fmt: skip
ROTARY = ("llama", "qwen2", "qwen3", "phi", "gpt_neox", "gemma2", "gemma3")


@cache
def model_of(name: str, layers: int | None = None) -> transformers.PreTrainedModel:
    """A random model in eval mode, its weights large enough that attention matters; the same for every caller."""
    config_class, changes = {**ARCHITECTURES, **RECURRENT}[name]
    values = {key: value for key, value in {**COMMON, **changes}.items() if key in ("bos_token_id", "eos_token_id") or value is not None}
    if layers is not None:
        values = {**values, "num_hidden_layers": layers}
        if "layer_types" in values:
            values["layer_types"] = ["full_attention"] * layers
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_class)(**values)).eval()
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in where and "wte" not in where and "A_log" not in where:
                parameter.mul_(4.0)
    return model


def tiny(config_class: str, **changes) -> transformers.PreTrainedModel:
    """A random model of any class of config, the same for every caller."""
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_class)(**{**COMMON, **changes})).eval()


def gpt_neo() -> transformers.PreTrainedModel:
    """Attention by a table of its own, from the number of keys."""
    torch.manual_seed(1)
    config = transformers.GPTNeoConfig(vocab_size=97, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=16, max_position_embeddings=128, bos_token_id=None, eos_token_id=None)
    return transformers.GPTNeoForCausalLM(config).eval()


def token_ids(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    """[batch, tokens] of random ids, none of them padding."""
    return torch.randint(1, COMMON["vocab_size"], (batch, tokens), generator=torch.Generator().manual_seed(seed))


def chunks(total: int, seed: int) -> list[tuple[int, int]]:
    """Random (start, stop) that cover `total` tokens: single tokens and long pieces mixed."""
    generator = torch.Generator().manual_seed(seed)
    bounds, at = [], 0
    while at < total:
        size = 1 if torch.rand((), generator=generator) < 0.5 else int(torch.randint(2, 40, (), generator=generator))
        bounds.append((at, min(total, at + size)))
        at += size
    return bounds


@torch.no_grad()
def logits_without_cache(model, ids: torch.Tensor, **kwargs) -> torch.Tensor:
    return model(ids, use_cache=False, **kwargs).logits


@torch.no_grad()
def logits_with_cache(model, ids: torch.Tensor, cache, bounds: list[tuple[int, int]]) -> torch.Tensor:
    """[B, T, V], the ids fed piece by piece through `cache`."""
    return torch.cat([model(ids[:, a:b], past_key_values=cache).logits for a, b in bounds], dim=1)
