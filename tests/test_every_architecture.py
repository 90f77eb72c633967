"""Every kind of causal language model that transformers has: with every cache of the catalog it is right to the last token, or the cache is refused.

Tiny random models of one generic shape; where that shape does not do for a kind, EXTRA has what it needs. Prompts come in pieces.
"""

import inspect
from functools import cache

import pytest
import torch
import transformers
from architectures import RECURRENT
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import kvcache
from kvcache.architecture import RECURRENT_TYPES, counts_from_zero, decoder_config, layer_types, misfit
from kvcache.state import CARRIES

SIZES = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=24,
    n_layer=2, n_embd=64, n_head=4, num_layers=2, num_local_experts=4, num_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32, n_shared_experts=1,
    first_k_dense_replace=1, n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    d_model=64, decoder_ffn_dim=96, encoder_ffn_dim=96, is_decoder=True, state_size=8,
)  # fmt: skip
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=0)
EXTRA = {
    "codegen": dict(rotary_dim=8),
    "gptj": dict(rotary_dim=8),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=16),
    "mamba2": dict(num_heads=8, head_dim=16, n_groups=2, chunk_size=8),
    "cwm": dict(bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "modernbert-decoder": dict(bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "longcat_flash": dict(head_dim=8, num_key_value_heads=4, ffn_hidden_size=96, expert_ffn_hidden_size=32, moe_topk=2, zero_expert_num=1),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "plbart": dict(d_model=64),
    "whisper": dict(d_model=64),
    "xlnet": dict(d_model=64, n_head=4, d_head=16),
    **{name: changes for name, (_, changes) in RECURRENT.items()},
    "bailing_hybrid": dict(layer_types=["linear_attention", "full_attention"]),
    "zaya": dict(num_experts_per_tok=1),
    "deepseek_v32": dict(num_key_value_heads=4, index_n_heads=4, index_head_dim=16, index_topk=64),
    "gemma4_text": dict(vocab_size_per_layer_input=97, hidden_size_per_layer_input=8),
    "recurrent_gemma": dict(block_types=["recurrent", "attention"], num_key_value_heads=1),
    "qwen3_5_moe_text": dict(layer_types=["linear_attention", "full_attention"], num_experts=2, num_experts_per_tok=1, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
    "qwen4_exp_text": dict(layer_types=["linear_attention", "indexed_attention"], linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
}
CACHES = {"dynamic": {}, "static": {"max_cache_len": 64}, "offloaded": {}, "quantized": {}, "sliding_window": {"window_length": 64}, "sink": {"window_length": 64}, "hybrid": {"max_cache_len": 64}, "mamba": {}, "hybrid_mamba": {}}
LARGEST = 2e7  # parameters: what a kind's config does not let us make smaller is left out
TOKENS, PIECES = 40, (7, 9, 1, 1, 12)  # then one by one
IDS = torch.randint(1, SIZES["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))


def build(model_type: str) -> transformers.PreTrainedModel | None:
    """A tiny model, or None where the generic shape does not do."""
    made, fields = CONFIG_MAPPING[model_type], set()
    for cls in made.__mro__:
        fields |= set(getattr(cls, "__dataclass_fields__", ()))
    fields |= set(inspect.signature(made.__init__).parameters) | set(made.attribute_map)
    values = {**{name: value for name, value in SIZES.items() if name in fields}, **EXTRA.get(model_type, {})}
    values = {**NO_TOKENS, **{name: value for name, value in values.items() if value is not None}}
    for left_out in ((), ("head_dim",), ("q_lora_rank",), ("num_key_value_heads",)):
        try:
            config = made(**{name: value for name, value in values.items() if name not in left_out})
            with torch.device("meta"):
                size = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
            if size > LARGEST:
                return None
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            with torch.no_grad():
                model(torch.arange(1, 9)[None], use_cache=False)
            return louder(model)
        except Exception:  # whatever a config or a model says to sizes that are not for it
            continue
    return None


def louder(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model with weights large enough that attention matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name and "wte" not in name and "A_log" not in name:
                parameter.mul_(3)
    return model


@torch.no_grad()
def error(model: transformers.PreTrainedModel, cache: kvcache.Cache, ids: torch.Tensor) -> float:
    """Of the logits [1, T, V] computed piece by piece, relative to those of one forward without a cache."""
    exact = model(ids, use_cache=False).logits
    pieces = [*PIECES, *[1] * (TOKENS - sum(PIECES))]
    ours = torch.cat([kvcache.feed(model, piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
    return ((ours - exact).norm() / exact.norm()).item()


def outcome(model: transformers.PreTrainedModel, name: str, ids: torch.Tensor) -> str:
    """ "exact", "refused", or what was wrong."""
    try:
        cache = kvcache.create(name, model, **CACHES[name])
    except ValueError as refusal:
        return "refused" if len(str(refusal).split()) >= 5 else f"a poor refusal: {refusal}"
    try:
        off = error(model, cache, ids)
    except Exception as failure:
        return f"{type(failure).__name__} in a forward: {failure}"[:200]
    return "exact" if off < 1e-4 else f"off by {off:.1e}"


@cache
def built() -> dict[str, transformers.PreTrainedModel]:
    """All that can be built, by model type."""
    transformers.logging.set_verbosity_error()
    models = {model_type: build(model_type) for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    return {model_type: model for model_type, model in models.items() if model is not None}


def test_every_kind_is_right_with_every_cache_or_refused():
    found = {(model_type, name): outcome(model, name, IDS) for model_type, model in built().items() for name in CACHES}
    counts = {name: sum(what == "exact" for (_, cache), what in found.items() if cache == name) for name in CACHES}
    print(len(built()), "kinds;", counts)
    assert not (wrong := {where: what for where, what in found.items() if what not in ("exact", "refused")}), wrong
    assert len(built()) >= 150 and counts["dynamic"] >= 140 and min(counts.values()) >= 3


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized", "mamba"])
def test_the_memory_of_every_kind_is_predicted_or_said_to_be_unknown(name):
    right = 0
    for model_type, model in built().items():
        try:
            cache, predicted = kvcache.create(name, model, **CACHES[name]), kvcache.predict_memory(name, model, TOKENS, **CACHES[name])
        except ValueError:
            continue
        with torch.no_grad():
            kvcache.feed(model, IDS, cache)
        measured = kvcache.measure_memory(cache)
        assert (predicted.used, predicted.total) == (measured.used, measured.total), model_type
        right += 1
    assert right >= {"mamba": 3}.get(name, 115)


@torch.no_grad()
def test_the_kinds_that_carry_their_state_over_several_tokens_are_those_that_were_measured():
    """With transformers' own cache, whose layers refuse nothing."""
    carrying = set()
    for model_type, model in built().items():
        if RECURRENT_TYPES & set(layer_types(decoder_config(model))) and misfit(model) is None:
            key = "past_key_values" if "past_key_values" in inspect.signature(model.forward).parameters else "cache_params"
            cache, at, logits = transformers.DynamicCache(config=model.config), 0, []
            for piece in IDS.split([20, 1, 1, TOKENS - 22], dim=1):
                where = {"position_ids": torch.arange(at, at + piece.shape[1])[None]} if counts_from_zero(type(model)) else {}
                logits.append(model(piece, **{key: cache}, use_cache=True, **where).logits)
                at += piece.shape[1]
            exact = model(IDS, use_cache=False).logits
            carrying |= {model_type} if (torch.cat(logits, dim=1) - exact).norm() < 1e-4 * exact.norm() else set()
    assert CARRIES <= carrying and not {"mamba", "falcon_mamba", "jamba"} & carrying
