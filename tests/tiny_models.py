"""A tiny random model of any kind that transformers has, of one generic shape: EXTRA has what else a kind needs, NOT_BUILT those that shape does not suit."""

import inspect
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import transformers
from architectures import RECURRENT
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import kvcache

SIZES = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=24,
    n_layer=2, n_embd=64, n_head=4, num_layers=2, num_local_experts=4, num_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32, n_shared_experts=1,
    first_k_dense_replace=1, n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    d_model=64, decoder_ffn_dim=96, encoder_ffn_dim=96, is_decoder=True, state_size=8, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
SIZES_OF_EYES = dict(depth=1, embed_dim=64, num_heads=4, out_hidden_size=64, image_size=32, patch_size=8, num_channels=3, in_channels=3, in_chans=3, projection_dim=64, hidden_dim=64, text_hidden_size=64)  # and of ears
M_ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=10_000.0, mrope_section=[2, 3, 3]))
EXTRA = {
    "codegen": dict(rotary_dim=8),
    "gptj": dict(rotary_dim=8),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=16),
    "mamba2": dict(num_heads=8, head_dim=16, n_groups=2, chunk_size=8),
    "longcat_flash": dict(head_dim=8, num_key_value_heads=4, ffn_hidden_size=96, expert_ffn_hidden_size=32, moe_topk=2, zero_expert_num=1),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "plbart": dict(d_model=64),
    "whisper": dict(d_model=64),
    "xlnet": dict(d_model=64, n_head=4, d_head=16),
    **{name: changes for name, (_, changes) in RECURRENT.items()},
    "bailing_hybrid": dict(num_key_value_heads=4, layer_types=["linear_attention", "full_attention"]),
    "deepseek_v4": dict(layer_types=["heavily_compressed_attention", "compressed_sparse_attention"], compress_rates={"heavily_compressed_attention": 8, "compressed_sparse_attention": 4}),
    "zaya": dict(num_experts_per_tok=1),
    "deepseek_v32": dict(num_key_value_heads=4, index_n_heads=4, index_head_dim=16, index_topk=64),
    "gemma4_text": dict(vocab_size_per_layer_input=97, hidden_size_per_layer_input=8),
    "recurrent_gemma": dict(block_types=["recurrent", "attention"], num_key_value_heads=1),
    "qwen3_5_moe_text": dict(layer_types=["linear_attention", "full_attention"], num_experts=2, num_experts_per_tok=1, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
    "qwen4_exp_text": dict(layer_types=["linear_attention", "indexed_attention"], linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "glm46v_text", "glm4v_text", "cosmos3_edge_text", "paddleocr_vl_text"), M_ROPE),
    "hy_v4_vl_text": dict(num_key_value_heads=4, rope_parameters={**M_ROPE["rope_parameters"], "mrope_section": [2, 1, 1]}),
    "ernie4_5_vl_moe_text": dict(moe_intermediate_size=[32, 32], **M_ROPE),
    **dict.fromkeys(("glm4v_moe_text", "glm_ocr_text", "glmga_text"), dict(rope_parameters={**M_ROPE["rope_parameters"], "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]})),
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "glm_moe_dsa", "minicpm3", "mistral4", "mistral_large4_text", "youtu", "dots3_note_text", "sarvam_mla"), dict(num_key_value_heads=4)),
    "dory": dict(num_hidden_layers=4, n_input_layers=1, n_output_layers=1, layer_types=["sliding_attention", "full_attention"] * 2),
    **dict.fromkeys(("chameleon", "emu3"), dict(vocabulary_map={"<image>": 96})),
    "mllama_text_model": dict(cross_attention_layers=[1]),
}  # fmt: skip
KINDS = {
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForImageTextToText": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSpeechSeq2Seq": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
NOT_BUILT = {
    **dict.fromkeys(("blt", "janus", "vibevoice", "vibevoice_asr"), "75M parameters and more, which its config does not let us make fewer"),
    **dict.fromkeys(("blip", "blip-2", "idefics", "instructblip", "instructblipvideo", "kosmos-2", "pi0", "pix2struct"), "no text without a picture"),
    **dict.fromkeys(("moonshine_streaming", "voxtral_realtime"), "no text without sound"),
    **dict.fromkeys(("encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder"), "of any two models, and none by default that fit"),
    **dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), "needs timm"),
    "inkling_mm_model": "needs scipy",
    "apertus1p5": "its sound wants sizes of its own",
    ("AutoModelForImageTextToText", "llama4"): "text without a picture fails in transformers 5.24, whatever the cache",
    "xmod": "asks for a language first",
    **dict.fromkeys(
        (
            "cohere_compass", "cohere_compass_text", "dbrx", "deepseek_ocr2", "dia", "diffusion_gemma", "dots3_note", "ernie4_5_vl_moe", "evolla", "florence2", "fun_asr_nano", "gemma3n_text", "gemma4_assistant",
            "gemma4_unified_assistant", "glm5_next", "granite4_vision", "hunyuan_vl", "kyutai_speech_to_text", "molmo2", "muse_spark", "musicgen", "musicgen_melody", "nemo_speechlm", "nemotron_h_omni", "qwen4_exp", "qwen4_exp_text", "reformer",
        ),
        "wants sizes of its own",
    ),
}  # fmt: skip


@dataclass
class Heard(BaseModelOutput):
    """What a decoder asks of an encoder's output."""

    attention_mask: torch.Tensor | None = None
    router_logits: torch.Tensor | None = None
    router_probs: torch.Tensor | None = None


def build(model_type: str, auto: type = transformers.AutoModelForCausalLM) -> transformers.PreTrainedModel:
    """A tiny model. Raises whatever its config or its first forward says to sizes that are not for it."""
    config = config_of(CONFIG_MAPPING[model_type])
    torch.manual_seed(0)
    return louder(auto.from_config(config).eval())


def config_of(made: type) -> transformers.PreTrainedConfig:
    """A config of generic sizes, and so are those within it."""
    fields = set(inspect.signature(made.__init__).parameters) | set(made.attribute_map)
    fields = fields.union(*(getattr(cls, "__dataclass_fields__", ()) for cls in made.__mro__))
    values = {**SIZES, **SIZES_OF_EYES, **EXTRA.get(made.model_type, {})}
    return made(**{name: value for name, value in values.items() if name in fields and value is not None}, **parts_of(made))


def parts_of(made: type) -> dict[str, transformers.PreTrainedConfig]:
    """The configs within a config: of the kinds that are there by default."""
    if not made.sub_configs:
        return {}
    default = made()
    kinds = {name: type(getattr(default, name, None)) for name in made.sub_configs}
    return {name: config_of(kind) for name, kind in kinds.items() if issubclass(kind, transformers.PreTrainedConfig)}


def louder(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model with weights large enough that attention matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name and "wte" not in name and "A_log" not in name:
                parameter.mul_(3)
    return model


@torch.no_grad()
def exact_logits(model: transformers.PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """[1, T, V] of one forward without a cache."""
    named = {"decoder_input_ids": ids, **heard(model)} if model.config.is_encoder_decoder else {"input_ids": ids}
    return model(**named, use_cache=False).logits


def heard(model: transformers.PreTrainedModel) -> dict[str, Heard]:
    """What a model with an encoder heard: nine random states."""
    if not model.config.is_encoder_decoder:
        return {}
    config = model.config.get_text_config(decoder=True)
    width = getattr(config, "d_model", None) or config.hidden_size
    return {"encoder_outputs": Heard(torch.randn(1, 9, width, generator=torch.Generator().manual_seed(3)))}


@cache
def built(auto: str) -> dict[str, transformers.PreTrainedModel]:
    """All kinds of an auto class like AutoModelForCausalLM that are not NOT_BUILT, there or anywhere, by model type; the same for every caller."""
    transformers.logging.set_verbosity_error()
    return {model_type: build(model_type, getattr(transformers, auto)) for model_type in sorted(KINDS[auto]) if not {model_type, (auto, model_type)} & set(NOT_BUILT)}


# -- models that see -----------------------------------------------------------------------------------------------

PICTURE, BEGIN = 95, 94  # token ids


def vision_models(kind: str) -> transformers.PreTrainedModel:
    """A tiny model whose pictures are of token PICTURE."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXTRA, kind, {**EXTRA.get(kind, {}), **dict.fromkeys(("image_token_id", "image_token_index"), PICTURE), "vision_start_token_id": BEGIN, "video_token_id": 93, "mm_tokens_per_image": 16})
        return build(kind, transformers.AutoModelForImageTextToText)


def words(count: int, seed: int, rows: int = 1) -> dict[str, torch.Tensor]:
    """A turn of text."""
    ids = torch.randint(3, 90, (rows, count), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "mm_token_type_ids": torch.zeros_like(ids)}


def picture(model: transformers.PreTrainedModel, seed: int, height: int = 4, width: int = 6, rows: int = 1) -> dict[str, torch.Tensor]:
    """A turn with a picture in it: what a processor makes of one per row."""
    eyes = model.config.vision_config
    channels = getattr(eyes, "in_channels", None) or getattr(eyes, "num_channels", None) or eyes.in_chans
    size = (channels, eyes.patch_size, eyes.patch_size) if model.config.model_type == "paddleocr_vl" else (channels * eyes.patch_size**2 * getattr(eyes, "temporal_patch_size", 1),)
    patches = torch.randn(rows * height * width, *size, generator=torch.Generator().manual_seed(seed))
    shown = torch.full((rows, height * width // eyes.spatial_merge_size**2), PICTURE)
    ids = torch.cat([words(5, seed, rows)["input_ids"], torch.full((rows, 1), BEGIN), shown, words(4, seed + 1, rows)["input_ids"]], dim=1)
    return {"input_ids": ids, "mm_token_type_ids": (ids == PICTURE).int(), "pixel_values": patches, "image_grid_thw": torch.tensor([[1, height, width]] * rows)}


def joined(turns: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """All turns in one forward, of one row."""
    names = {name for turn in turns for name in turn}
    return {name: torch.cat([turn[name] for turn in turns if name in turn], dim=1 if name in ("input_ids", "mm_token_type_ids") else 0) for name in names}


@torch.no_grad()
def fed(model, cache, turns) -> torch.Tensor:
    """The logits [B, T, V] of turns, text without what only pictures need."""
    return torch.cat([kvcache.feed(model, turn["input_ids"], cache, **{name: value for name, value in turn.items() if name != "input_ids" and "pixel_values" in turn}) for turn in turns], dim=1)


@torch.no_grad()
def exact(model, turns) -> torch.Tensor:
    model.model.rope_deltas = None
    return model(**joined(turns), use_cache=False).logits


def off(ours: torch.Tensor, right: torch.Tensor) -> float:
    return ((ours - right).norm() / right.norm()).item()


def talk(model) -> list[dict[str, torch.Tensor]]:
    return [words(3, 1), picture(model, 2), words(1, 3), words(1, 4), words(6, 5), picture(model, 6, 6, 4), words(1, 7), words(2, 8)]
