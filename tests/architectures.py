"""Tiny random models of many architectures, for tests that compare a cache with a run without one."""

from functools import lru_cache

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
ROTARY = ("llama", "qwen2", "qwen3", "phi", "gpt_neox", "gemma2", "gemma3")


@lru_cache(maxsize=None)
def model_of(name: str, layers: int | None = None) -> transformers.PreTrainedModel:
    """A random model in eval mode, its weights large enough that attention matters; the same for every caller."""
    config_class, changes = {**ARCHITECTURES, **STEPPED}[name]
    values = {**COMMON, **changes}
    if layers is not None:
        values = {**values, "num_hidden_layers": layers}
        if "layer_types" in values:
            values["layer_types"] = ["full_attention"] * layers
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_class)(**values)).eval()
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in where and "wte" not in where:
                parameter.mul_(4.0)
    return model


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
