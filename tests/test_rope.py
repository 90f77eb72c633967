"""Rotating by a distance is what the model itself does, and models where it is not are refused with the reason."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from architectures import COMMON, ROTARY, model_of

from kvcache import DynamicCache, SinkCache, create, feed
from kvcache.rope import Rope, RopeError, rope_for, verify_rope


@pytest.mark.parametrize("architecture", ROTARY)
def test_the_rotation_read_from_the_config_is_the_models_own(architecture):
    model = model_of(architecture)
    types = transformers.cache_utils.get_layer_types_and_kwargs(model.config)[0]
    full = [i for i, kind in enumerate(types) if kind == "full_attention"]
    verify_rope.__globals__["_verified"].discard(model)
    verify_rope(model, rope_for(model.config), full)


def test_neighbouring_pairs_are_told_from_halves():
    glm = transformers.GlmConfig(**{**COMMON, "head_dim": 16})
    assert rope_for(glm).interleaved and not rope_for(model_of("llama").config).interleaved
    verify_rope(transformers.AutoModelForCausalLM.from_config(glm).eval(), rope_for(glm), [0, 1])


def test_part_of_the_head_is_rotated_and_the_rest_left_alone():
    rope = rope_for(model_of("phi").config)
    keys = torch.randn(1, 1, 3, 16)
    assert 2 * len(rope.frequencies) == 8
    assert torch.equal(rope.rotate(keys, 5)[..., 8:], keys[..., 8:]) and not torch.equal(rope.rotate(keys, 5)[..., :8], keys[..., :8])


def test_a_million_tokens_on_the_rotation_is_still_exact():
    rope = rope_for(model_of("llama").config)
    keys = torch.randn(1, 1, 4, 16)
    there_and_back = rope.rotate(rope.rotate(keys, 1_000_003), -1_000_000)
    torch.testing.assert_close(there_and_back, rope.rotate(keys, 3), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_frequencies_that_change_with_length_are_refused(rope_type):
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 512}
    parameters |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8} if rope_type == "longrope" else {}
    config = transformers.LlamaConfig(**COMMON, rope_parameters=parameters)
    with pytest.raises(ValueError, match=f"RoPE type '{rope_type}' changes frequencies with length"):
        SinkCache(64, 4, config)


@pytest.mark.parametrize("rope_type", ["linear", "llama3", "yarn"])
def test_scaled_frequencies_that_stay_fixed_are_the_models_own(rope_type):
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0}
    if rope_type != "linear":
        parameters |= {"original_max_position_embeddings": 256}
    if rope_type == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = transformers.LlamaConfig(**COMMON, rope_parameters=parameters)
    verify_rope(transformers.AutoModelForCausalLM.from_config(config).eval(), rope_for(config), [0, 1])


@pytest.mark.parametrize("config", [transformers.GPT2Config(), transformers.OPTConfig(), transformers.SmolLM3Config(pad_token_id=0)])
def test_models_whose_positions_are_not_rotations_are_refused(config):
    with pytest.raises(ValueError, match="cannot be re-rotated"):
        SinkCache(64, 4, config)


UNEVEN = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint")  # full-attention layers without positions, as the modeling files say


@pytest.mark.parametrize("model_type", UNEVEN)
def test_models_some_of_whose_layers_carry_no_positions_are_refused(model_type):
    with pytest.raises(ValueError, match="carry no positions"):
        SinkCache(64, 4, transformers.AutoConfig.for_model(model_type, sliding_window=16))


def test_rotation_that_a_config_turns_off_or_varies_by_layer_is_refused():
    granite = dict(COMMON, layer_types=["mamba", "attention"])
    configs = [transformers.FalconConfig(alibi=True), transformers.GraniteMoeHybridConfig(**granite, position_embedding_type=None), transformers.Zamba2Config(use_mem_rope=False)]
    for config in configs:
        with pytest.raises(RopeError, match="no rotary position embedding"):
            rope_for(config)
    with pytest.raises(RopeError, match="rotate in another way"):
        rope_for(transformers.AutoConfig.for_model("granite_swa", **COMMON, layer_rope_theta=[1e4, 1e6]))


def test_a_model_that_does_not_behave_like_its_config_is_caught():
    model = model_of("llama")
    verify_rope.__globals__["_verified"].discard(model)
    with pytest.raises(RopeError, match="layer 0"):
        verify_rope(model, Rope(rope_for(model.config).frequencies * 2), [0, 1])
    create("sink", model)


class Wrapped(torch.nn.Module):
    """A model in a wrapper that drops positions, as PEFT's prompt tuning does."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, position_ids=None, **kwargs):
        return self.model(**kwargs)


def test_keys_that_take_no_positions_are_said_to_take_none():
    with pytest.raises(RopeError, match="this Wrapped computes the same keys whatever position_ids it is given"):
        create("sink", Wrapped(model_of("llama")))


def test_prompt_tuning_is_refused_for_what_it_does_by_every_cache():
    model = Wrapped(model_of("llama"))
    model.active_peft_config = SimpleNamespace(is_prompt_learning=True, peft_type="PROMPT_TUNING", num_virtual_tokens=4)
    for refused in (lambda: create("sink", model), lambda: create("dynamic", model), lambda: feed(model, torch.ones(1, 3, dtype=torch.long), DynamicCache())):
        with pytest.raises(ValueError, match="PEFT's PROMPT_TUNING puts its 4 virtual tokens before every forward"):
            refused()


def test_latent_attention_is_refused_since_its_cached_keys_carry_no_positions():
    config = transformers.DeepseekV3Config(qk_rope_head_dim=64, head_dim=64)
    with pytest.raises(RopeError, match="caches one latent a token as keys"):
        rope_for(config)
