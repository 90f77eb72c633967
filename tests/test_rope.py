"""Rotating by a distance is what the model itself does, and models where it is not are refused with the reason; models that see
place pictures right to the last token, wherever they come (M-RoPE), or are refused."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from architectures import COMMON, ROTARY, model_of
from tiny_models import PICTURE, exact, fed, joined, off, picture, talk, vision_models, words

import kvcache
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


# -- pictures ------------------------------------------------------------------------------------------------------

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm46v", "glm4v_moe", "glm_ocr", "cosmos3_edge", "cosmos3_omni", "paddleocr_vl")
CACHES = {"dynamic": {}, "static": {"max_cache_len": 96}, "offloaded": {}, "quantized": {"residual_length": 96}, "sliding_window": {"window_length": 96}}


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return vision_models(request.param)


@pytest.mark.parametrize("name", CACHES)
def test_pictures_of_any_turn_stand_where_one_forward_puts_them(model, name):
    turns, cache = talk(model), kvcache.create(name, model, **CACHES[name])
    right, given = exact(model, turns), joined(turns)
    with torch.no_grad():
        numbered = model(**given, position_ids=torch.arange(given["input_ids"].shape[1])[None], use_cache=False).logits
    assert off(numbered, right) > 1e-3  # the places matter
    assert off(fed(model, cache, turns), right) < 1e-4


def test_two_talks_on_one_model_do_not_mix_up_their_pictures(model):
    first, second = talk(model), [words(5, 11), words(7, 12), words(1, 13)]
    right, other = exact(model, first), exact(model, second)
    caches, logits = [kvcache.create("dynamic", model) for _ in range(2)], ([], [])
    for number in range(len(first)):
        for turns, cache, given in zip((first, second), caches, logits):
            given.extend([fed(model, cache, turns[number : number + 1])] if number < len(turns) else [])
    assert off(torch.cat(logits[0], dim=1), right) < 1e-4 and off(torch.cat(logits[1], dim=1), other) < 1e-4


def test_transformers_own_cache_places_them_elsewhere(model):
    """Why `feed` does it: as `generate` continues, the second picture's tokens count as text."""
    turns, cache = talk(model), transformers.DynamicCache(config=model.config)
    right = exact(model, turns)
    with torch.no_grad():
        theirs = torch.cat([model(**turn, past_key_values=cache, use_cache=True).logits for turn in turns], dim=1)
    assert off(theirs, right) > 1e-3


@torch.no_grad()
def test_what_generate_goes_on_with_is_what_feed_left():
    model = vision_models("qwen2_5_vl")
    turns, cache = talk(model), kvcache.create("dynamic", model)
    right = exact(model, turns)
    fed(model, cache, turns[:-1])
    last = model(input_ids=turns[-1]["input_ids"], past_key_values=cache).logits
    assert off(last, right[:, -2:]) < 1e-4


@torch.no_grad()
def test_rows_copies_and_files_keep_the_places_of_their_pictures(tmp_path):
    model = vision_models("qwen2_5_vl")
    alone = [exact(model, [{name: value[row : row + 1] if name != "pixel_values" else value.chunk(2)[row] for name, value in turn.items()} for turn in (picture(model, 2, rows=2), words(6, 3, rows=2))]) for row in range(2)]
    cache = kvcache.create("dynamic", model)
    fed(model, cache, [picture(model, 2, rows=2)])
    cache.save(tmp_path / "cache.safetensors", model)
    split = kvcache.DynamicCache.from_batch_splits(cache.batch_split(2, 1))
    more = words(6, 3, rows=2)["input_ids"]
    for copy in (cache.fork(), split, kvcache.load_cache(tmp_path / "cache.safetensors", model)):
        assert off(kvcache.feed(model, more, copy), torch.cat(alone)[:, -6:]) < 1e-4
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    cache.reorder_cache(torch.tensor([1, 0]))
    assert off(kvcache.feed(model, more, cache), torch.cat(alone)[:, -6:]) < 1e-4


@torch.no_grad()
def test_padding_on_the_left_takes_no_place():
    model = vision_models("qwen2_5_vl")
    turn, more = picture(model, 2), words(5, 3)["input_ids"]
    right = exact(model, [turn, words(5, 3)])[:, -5:]
    padded = {**turn, "input_ids": torch.nn.functional.pad(turn["input_ids"], (3, 0)), "mm_token_type_ids": torch.nn.functional.pad(turn["mm_token_type_ids"], (3, 0))}
    mask, cache = (torch.arange(padded["input_ids"].shape[1] + 5) >= 3)[None].long(), kvcache.create("dynamic", model)
    kvcache.feed(model, padded.pop("input_ids"), cache, mask[:, :-5], **padded)
    assert off(kvcache.feed(model, more, cache, mask), right) < 1e-4


@torch.no_grad()
def test_a_talk_goes_back_behind_its_pictures_and_no_further():
    model = vision_models("qwen2_5_vl")
    turns, cache = [picture(model, 2), words(6, 3)], kvcache.create("dynamic", model)
    right = exact(model, turns)
    fed(model, cache, turns)
    cache.crop(-6)
    assert off(fed(model, cache, turns[1:]), right[:, -6:]) < 1e-4
    with pytest.raises(kvcache.CropError, match="can drop at most its last 6"):
        cache.crop(-7)
    cache.reset()
    assert off(fed(model, cache, [words(5, 1)]), exact(model, [words(5, 1)])) < 1e-4


@torch.no_grad()
def test_what_cannot_be_placed_is_refused_and_nothing_is_lost():
    model = vision_models("qwen2_5_vl")
    turn, cache = picture(model, 2), kvcache.create("dynamic", model)
    with pytest.raises(ValueError, match="come with mm_token_type_ids and image_grid_thw or video_grid_thw"):
        kvcache.feed(model, turn["input_ids"], cache, pixel_values=turn["pixel_values"])
    with pytest.raises(ValueError, match="a sink cache turns keys by the number of tokens evicted"):
        fed(model, kvcache.create("sink", model), [turn])
    model(**words(4, 1), past_key_values=cache)
    with pytest.raises(ValueError, match="filled without kvcache.feed"):
        fed(model, cache, [turn])
    assert cache.get_seq_length() == 4
    hearing = vision_models("qwen2_5_omni_thinker")
    with pytest.raises(ValueError, match="feed cannot place what a qwen2_5_omni_thinker sees or hears"):
        fed(hearing, kvcache.create("dynamic", hearing), [turn])


def square(seed: int) -> dict[str, torch.Tensor]:
    """A turn with a picture of 16 tokens."""
    ids = torch.cat([words(5, seed)["input_ids"], torch.full((1, 16), PICTURE), words(4, seed + 1)["input_ids"]], dim=1)
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))}


@torch.no_grad()
@pytest.mark.parametrize("name", ["dynamic", "static", "offloaded", "sliding_window"])
@pytest.mark.parametrize("kind", ["llava", "gemma3"])
def test_pictures_whose_tokens_stand_at_their_numbers(kind, name):
    """Those of Gemma 3 attend to each other, too, and it looks up which they are among all tokens."""
    model = vision_models(kind)
    turns = [{"input_ids": words(3, 1)["input_ids"]}, square(2), {"input_ids": words(1, 4)["input_ids"]}, square(5), {"input_ids": words(7, 7)["input_ids"]}]
    ids = torch.cat([turn["input_ids"] for turn in turns], dim=1)
    types = {"token_type_ids": (ids == PICTURE).long()} if kind == "gemma3" else {}
    right = model(ids, pixel_values=torch.cat([turn["pixel_values"] for turn in turns if "pixel_values" in turn]), **types, use_cache=False).logits
    cache, logits = kvcache.create(name, model, **CACHES[name]), []
    for turn in turns:
        seen = cache.get_seq_length() + turn["input_ids"].shape[1]
        if types and cache.get_seq_length():
            with pytest.raises(ValueError, match=f"must be of all {seen} tokens"):
                kvcache.feed(model, **turn, cache=cache, token_type_ids=torch.zeros_like(turn["input_ids"]))
        logits.append(kvcache.feed(model, **turn, cache=cache, **{name: value[:, :seen] for name, value in types.items()}))
    assert off(torch.cat(logits, dim=1), right) < 1e-4
