"""Recurrent states: equal to a run without a cache over any chunking, or refused; never quietly wrong."""

import copy
from itertools import pairwise

import pytest
import torch
import transformers
from architectures import RECURRENT, chunks, logits_without_cache, model_of, token_ids

import kvcache
from kvcache import DynamicCache, HybridMambaAttentionDynamicCache, MambaCache
from kvcache.architecture import cache_argument
from kvcache.catalog import load_cache
from kvcache.recurrent import CARRIES, StateLayer, States

CLOSE = dict(atol=5e-4, rtol=5e-4)  # scans of 40 tokens in fp32, summed in another order; a lost state is off by 0.1 and more
ALONE = ("mamba", "falcon_mamba", "mamba2")
HYBRID = tuple(name for name in RECURRENT if name not in ALONE)
TOKENS = 40


def cache_for(name, model):
    return MambaCache(model.config) if name in ALONE else HybridMambaAttentionDynamicCache(model.config)


@torch.no_grad()
def feed(model, ids, cache, bounds):
    return torch.cat([kvcache.feed(model, ids[:, a:b], cache) for a, b in bounds], dim=1)


def test_several_states_a_layer_are_filled_by_one_forward():
    """Inkling's layers keep four: the second is filled while the first already is, by the same tokens."""
    small = dict(hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    ids_of = dict(vocab_size=64, pad_token_id=0, bos_token_id=None, eos_token_id=None, max_position_embeddings=256, sliding_window=16)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("inkling_text", **small, **ids_of, n_routed_experts=2, num_experts_per_tok=1)
    model, ids, cache = transformers.AutoModelForCausalLM.from_config(config).eval(), token_ids(1, 12) % 60 + 3, DynamicCache(config)
    assert cache.layers[0].number_of_states > 1
    with torch.no_grad():
        prompt = model(ids[:, :8], past_key_values=cache).logits
        fed, plain = kvcache.feed(model, ids[:, 8:], cache.fork()), model(ids[:, 8:], past_key_values=cache).logits
    for rest in (fed, plain):
        torch.testing.assert_close(torch.cat([prompt, rest], dim=1), logits_without_cache(model, ids), **CLOSE)


@torch.no_grad()
def step(model, ids, cache):
    """The plain forward that a user writes."""
    return model(ids, **{cache_argument(model): cache}).logits


@pytest.mark.parametrize("name", RECURRENT)
def test_feed_equals_a_run_without_a_cache_over_random_chunks(name):
    model, ids = model_of(name), token_ids(2, TOKENS)
    ours = feed(model, ids, cache_for(name, model), chunks(TOKENS, 4))
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("name", RECURRENT)
def test_several_tokens_on_a_filled_state_are_right_or_refused_before_anything_changes(name):
    model, ids = model_of(name), token_ids(2, TOKENS)
    cache, exact = cache_for(name, model), logits_without_cache(model, ids)
    step(model, ids[:, :30], cache)
    before = [{name: rows.clone() for name, rows in layer.rows().items()} for layer in cache.layers]
    if name in CARRIES:
        positions = {"position_ids": torch.arange(30, 40)[None]} if name not in ALONE else {}
        with torch.no_grad():
            ours = model(ids[:, 30:], **{cache_argument(model): cache}, **positions).logits
    else:
        with pytest.raises(ValueError, match="10 tokens at once on a filled state might silently lose all that came before; kvcache.feed"):
            step(model, ids[:, 30:], cache)
        for layer, rows in zip(cache.layers, before):
            assert all(torch.equal(layer.rows()[name], held) for name, held in rows.items())
        ours = feed(model, ids[:, 30:], cache, [(0, 10)])
    torch.testing.assert_close(ours, exact[:, 30:], **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "jamba"])
def test_the_models_we_refuse_are_the_ones_that_upstream_gets_wrong(name):
    model, ids = model_of(name), token_ids(1, TOKENS)
    cache, exact = transformers.DynamicCache(config=model.config), logits_without_cache(model, ids)
    step(model, ids[:, :35], cache)
    upstream = step(model, ids[:, 35:], cache)
    assert ((upstream - exact[:, 35:]).norm() / exact[:, 35:].norm()).item() > 0.02


def test_feed_names_the_positions_that_bamba_forgets():
    """Left to itself Bamba starts its positions anew in each forward, with any cache."""
    model, ids = model_of("bamba"), token_ids(1, TOKENS)
    exact = logits_without_cache(model, ids)
    for cache in (transformers.DynamicCache(config=model.config), DynamicCache(model.config)):
        step(model, ids[:, :30], cache)
        assert ((step(model, ids[:, 30:], cache) - exact[:, 30:]).norm() / exact[:, 30:].norm()).item() > 1e-3
    ours = feed(model, ids, DynamicCache(model.config), [(0, 30), (30, 40)])
    torch.testing.assert_close(ours, exact, **CLOSE)


@pytest.mark.parametrize("name", ["jamba", "mamba2", "falcon_h1", "zamba"])
def test_plain_single_token_forwards_are_right(name):
    model, ids = model_of(name), token_ids(2, TOKENS)
    cache = cache_for(name, model)
    ours = torch.cat([step(model, ids[:, a:b], cache) for a, b in [(0, 25), *((i, i + 1) for i in range(25, TOKENS))]], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE)
    assert cache.get_seq_length() == TOKENS


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized", "sliding_window"])
def test_every_cache_refuses_the_jump_on_a_hybrid_model_and_is_right_step_by_step(name):
    model, ids = model_of("jamba"), token_ids(2, TOKENS)
    wide = {"static": {"max_cache_len": 64}, "quantized": {"residual_length": 64}, "sliding_window": {"window_length": 64}}
    cache = kvcache.create(name, model, **wide.get(name, {}))
    assert {type(layer) for layer in cache.layers if isinstance(layer, States)} == {StateLayer}
    step(model, ids[:, :30], cache)
    with pytest.raises(ValueError, match="silently lose"):
        step(model, ids[:, 30:], cache)
    assert cache.get_seq_length() == 30
    torch.testing.assert_close(feed(model, ids[:, 30:], cache, [(0, 10)]), logits_without_cache(model, ids)[:, 30:], **CLOSE)


@pytest.mark.parametrize("name", ["dynamic", "static", "sliding_window"])
def test_layers_with_attention_and_state_side_by_side_are_made_of_the_caches_own(name):
    model, ids = model_of("falcon_h1"), token_ids(2, TOKENS)
    wide = {"static": {"max_cache_len": 64}, "sliding_window": {"window_length": 64}}
    cache = kvcache.create(name, model, **wide.get(name, {}))
    assert all(isinstance(layer, States) and isinstance(layer, kvcache.layer.Layer) for layer in cache.layers)
    assert not cache.is_croppable and cache.is_linear == [False, False]
    torch.testing.assert_close(feed(model, ids, cache, chunks(TOKENS, 2)), logits_without_cache(model, ids), **CLOSE)
    cache.reset()
    torch.testing.assert_close(feed(model, ids, cache, chunks(TOKENS, 3)), logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "jamba", "bamba", "zamba", "falcon_h1"])
def test_rows_can_be_reordered_repeated_selected_split_copied_and_forked(name):
    model, ids = model_of(name), token_ids(3, TOKENS)
    cache, exact = cache_for(name, model), logits_without_cache(model, ids)
    feed(model, ids[:, :30], cache, [(0, 30)])
    copied, fork = copy.deepcopy(cache), cache.fork()
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([True, False, True, False, False, False]))
    assert cache.batch_size == 2
    torch.testing.assert_close(feed(model, ids[[2, 0], 30:], cache, [(0, 10)]), exact[[2, 0], 30:], **CLOSE)
    torch.testing.assert_close(feed(model, ids[:, 30:], fork, [(0, 10)]), exact[:, 30:], **CLOSE)
    pieces = copied.batch_split(3, 2)
    torch.testing.assert_close(feed(model, ids[2:, 30:], pieces[1], [(0, 10)]), exact[2:, 30:], **CLOSE)
    joined = type(copied).from_batch_splits([pieces[0], copied.batch_split(3, 2)[1]])
    torch.testing.assert_close(feed(model, ids[:, 30:], joined, [(0, 10)]), exact[:, 30:], **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "jamba"])
def test_a_reset_cache_is_as_good_as_new_even_after_inference_mode_and_for_another_batch(name):
    model, ids = model_of(name), token_ids(2, TOKENS)
    cache = cache_for(name, model)
    with torch.inference_mode():
        step(model, token_ids(3, 20, 5), cache)
        step(model, token_ids(3, 1, 6), cache)
    cache.reset()
    assert cache.get_seq_length() == 0 and kvcache.measure_memory(cache).used == 0
    torch.testing.assert_close(feed(model, ids, cache, [(0, 33), (33, 40)]), logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "jamba", "falcon_h1"])
def test_a_state_cannot_go_back_and_says_so(name):
    model = model_of(name)
    cache = cache_for(name, model)
    step(model, token_ids(1, 20), cache)
    assert not cache.is_croppable
    for tokens in (-1, 5):
        with pytest.raises(kvcache.CropError, match="a recurrent state cannot go back to an earlier token"):
            cache.crop(tokens)
    cache.crop(0)
    cache.crop(20)
    assert cache.get_seq_length() == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RECURRENT)
def test_measured_bytes_are_the_predicted_ones(name, dtype):
    model = model_of(name) if dtype == torch.float32 else copy.deepcopy(model_of(name)).to(dtype)
    cache = cache_for(name, model)
    step(model, token_ids(2, 20), cache)
    measured = kvcache.measure_memory(cache)
    assert measured.by_kind()["state"] > 0
    assert measured.layers == kvcache.predict_memory(cache.name, model, 20, batch_size=2).layers
    assert kvcache.memory.take_snapshot(cache).layers == measured.layers


def test_the_bytes_do_not_grow_and_the_addresses_do_not_move():
    model, ids = model_of("mamba"), token_ids(1, 30)
    cache = MambaCache(model.config)
    step(model, ids[:, :1], cache)
    before = kvcache.measure_memory(cache).total, [state.data_ptr() for state in cache.conv_states + cache.ssm_states]
    feed(model, ids[:, 1:], cache, [(0, 29)])
    assert before == (kvcache.measure_memory(cache).total, [state.data_ptr() for state in cache.conv_states + cache.ssm_states])
    assert cache.bounded and cache.get_seq_length() == 30


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "mamba2"])
def test_generate_takes_a_mamba_cache_as_cache_params_with_beams_and_left_padding(name):
    model, ids = model_of(name), token_ids(2, 20)
    mask = torch.ones_like(ids)
    ids[0, :7], mask[0, :7] = 0, 0
    for beams in (1, 4):
        settings = dict(max_new_tokens=12, num_beams=beams, do_sample=False, attention_mask=mask)
        ours = model.generate(ids, cache_params=MambaCache(model.config), **settings)
        assert torch.equal(ours, model.generate(ids, use_cache=False, **settings))


@pytest.mark.parametrize("bounds", [(0, 30, 36, 37, TOKENS), (0, 4, TOKENS), (0, 6, 7, 8, TOKENS), tuple(range(TOKENS + 1))], ids=["in the first piece", "past it", "ends alone", "token by token"])
@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "mamba2", "jamba", "bamba", "zamba"])
def test_left_padded_rows_are_fed_as_if_they_were_alone(name, bounds):
    """The padding is of a token whose embedding is not zero, so that what recurrent layers take of it shows."""
    model, ids, padding = model_of(name), token_ids(2, TOKENS), 7
    mask = torch.ones_like(ids)
    ids[0, :padding], mask[0, :padding] = 5, 0
    cache = cache_for(name, model)
    with torch.no_grad():
        ours = torch.cat([kvcache.feed(model, ids[:, a:b], cache, mask[:, :b]) for a, b in pairwise(bounds)], dim=1)
    torch.testing.assert_close(ours[:1, padding:], logits_without_cache(model, ids[:1, padding:]), **CLOSE)
    torch.testing.assert_close(ours[1:], logits_without_cache(model, ids[1:]), **CLOSE)


def test_padding_behind_tokens_is_refused_where_a_state_would_take_it():
    model, ids = model_of("jamba"), token_ids(2, 12)
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    with pytest.raises(ValueError, match="leaves out tokens behind others"):
        kvcache.feed(model, ids, cache_for("jamba", model), mask)


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_a_second_turn_is_fed_up_to_its_last_token_and_then_generated(name):
    model, first, second = model_of(name), token_ids(1, 20), token_ids(1, 9, 3)
    cache, settings = cache_for(name, model), dict(max_new_tokens=8, do_sample=False)
    reply = model.generate(first, **{cache_argument(model): cache}, **settings)
    whole = torch.cat([reply, second], dim=1)
    with pytest.raises(ValueError, match="kvcache.feed"):
        model.generate(whole, **{cache_argument(model): cache}, **settings)
    feed(model, whole[:, cache.get_seq_length() : -1], cache, [(0, 9)])
    sent = whole if name not in ALONE else whole[:, -1:]  # with states alone nothing is sliced off
    ours = model.generate(sent, attention_mask=torch.ones_like(sent), **{cache_argument(model): cache}, **settings)
    assert torch.equal(ours[:, sent.shape[1] :], model.generate(whole, use_cache=False, **settings)[:, whole.shape[1] :])


@pytest.mark.parametrize("name", ["jamba", "bamba", "zamba2"])
def test_generate_takes_a_hybrid_cache_with_beams(name):
    model, ids = model_of(name), token_ids(2, 20)
    for beams in (1, 4):
        settings = dict(max_new_tokens=12, num_beams=beams, do_sample=False, attention_mask=torch.ones_like(ids))
        ours = model.generate(ids, past_key_values=HybridMambaAttentionDynamicCache(model.config, 2), **settings)
        assert torch.equal(ours, model.generate(ids, use_cache=False, **settings))


def test_the_guides_mamba_example_runs():
    """Make a cache of a batch size, run the prompt through the model, find the states filled, go on."""
    model, ids = model_of("mamba"), token_ids(1, 9)
    past_key_values = MambaCache(config=model.config, batch_size=1, device=model.device, dtype=model.dtype)
    with torch.no_grad():
        outputs = model(ids, cache_params=past_key_values, use_cache=True)
    assert outputs.cache_params is past_key_values
    assert past_key_values.conv_states[0].shape == (1, 128, 4) and past_key_values.ssm_states[1].shape == (1, 128, 8)
    new = outputs.logits[:, -1:].argmax(-1)
    ours = step(model, new, past_key_values)
    torch.testing.assert_close(ours[:, -1], logits_without_cache(model, torch.cat([ids, new], dim=1))[:, -1], **CLOSE)


def test_the_guides_jamba_example_runs():
    model, ids = model_of("jamba"), token_ids(1, 9)
    past_key_values = HybridMambaAttentionDynamicCache(model.config, batch_size=1, dtype=model.dtype, device=model.device)
    with torch.no_grad():
        outputs = model(ids, past_key_values=past_key_values, use_cache=True)
    assert outputs.past_key_values is past_key_values and past_key_values.transformer_layers == [1, 3]
    assert past_key_values.key_cache[1].shape == (1, 2, 9, 16) and past_key_values.key_cache[0] is None
    assert past_key_values.ssm_states[0].shape[0] == 1 and past_key_values.conv_states[1] is None
    assert torch.equal(model.generate(ids, past_key_values=past_key_values.__class__(model.config), max_new_tokens=5, do_sample=False),
                       model.generate(ids, use_cache=False, max_new_tokens=5, do_sample=False))  # fmt: skip


def test_the_update_methods_take_the_calls_of_4_48():
    """New inputs push out the oldest; a whole kernel's width replaces all; a state is set."""
    config = model_of("mamba").config
    cache = MambaCache(config, max_batch_size=2, dtype=torch.float32)
    assert cache.conv_states[0].shape == (2, 128, 4) and not cache.conv_states[0].any()
    first, after = torch.randn(2, 128, 4), torch.randn(2, 128)
    cache.update_conv_state(0, first, torch.arange(4))
    held = cache.update_conv_state(layer_idx=0, new_conv_state=after, cache_position=torch.tensor([7]))
    assert torch.equal(held, torch.cat([first[..., 1:], after[..., None]], dim=-1)) and torch.equal(held, cache.conv_states[0])
    state = torch.randn(2, 128, 8)
    assert torch.equal(cache.update_ssm_state(0, state), state) and torch.equal(cache.ssm_states[0], state)
    cache.reset()
    assert not cache.conv_states[0].any() and not cache.ssm_states[0].any()


def test_states_can_be_kept_in_another_dtype():
    model, ids = model_of("mamba"), token_ids(1, 20)
    cache = MambaCache(model.config, batch_size=1, dtype=torch.bfloat16)
    ours = feed(model, ids, cache, [(0, 10), (10, 20)])
    assert {state.dtype for state in cache.conv_states + cache.ssm_states} == {torch.bfloat16}
    exact = logits_without_cache(model, ids)
    assert 0 < ((ours - exact).norm() / exact.norm()).item() < 0.05


def test_a_step_compiles_without_a_break():
    model, ids = model_of("mamba2"), token_ids(1, 24)
    cache = MambaCache(model.config)
    step(model, ids[:, :16], cache)
    compiled = torch.compile(lambda piece: model(piece, cache_params=cache).logits, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = torch.cat([compiled(ids[:, i : i + 1]) for i in range(16, 24)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 16:], **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "jamba", "zamba"])
def test_states_are_saved_and_go_on(name, tmp_path):
    model, ids = model_of(name), token_ids(2, TOKENS)
    cache = kvcache.create("mamba" if name in ALONE else "hybrid_mamba", model)
    feed(model, ids[:, :30], cache, [(0, 30)])
    cache.save(tmp_path / "cache.safetensors", model)
    loaded = load_cache(tmp_path / "cache.safetensors", model)
    assert loaded.get_seq_length() == 30
    torch.testing.assert_close(feed(model, ids[:, 30:], loaded, [(0, 10)]), logits_without_cache(model, ids)[:, 30:], **CLOSE)


@pytest.mark.parametrize("name", kvcache.ENTRIES)
def test_a_pure_state_space_model_fits_the_mamba_cache_alone(name):
    for architecture in ALONE:
        reason = kvcache.ENTRIES[name].why_not(model_of(architecture))
        assert reason is None if name == "mamba" else "'mamba' is its cache" in reason


def test_the_other_models_are_told_which_cache_is_theirs():
    fits = kvcache.ENTRIES["mamba"].why_not, kvcache.ENTRIES["hybrid_mamba"].why_not
    assert "llama has attention layers" in fits[0](model_of("llama")) and "llama has no recurrent layers" in fits[1](model_of("llama"))
    assert "jamba has attention layers" in fits[0](model_of("jamba")) and fits[1](model_of("jamba")) is None
    with pytest.raises(ValueError, match="MambaCache: llama has attention layers"):
        MambaCache(model_of("llama").config)
    with pytest.raises(ValueError, match="HybridMambaAttentionDynamicCache: mamba has recurrent states only: 'mamba' is its cache"):
        HybridMambaAttentionDynamicCache(model_of("mamba").config)


def test_wrong_batch_sizes_are_named():
    config = model_of("mamba").config
    with pytest.raises(ValueError, match="two names for one thing, got 2 and 3"):
        MambaCache(config, batch_size=2, max_batch_size=3)
    with pytest.raises(ValueError, match="max_batch_size must be a whole number of at least 1, got 0"):
        MambaCache(config, batch_size=0)
    cache = MambaCache(config)
    step(model_of("mamba"), token_ids(3, 5), cache)
    with pytest.raises(ValueError, match=r"holds states \(3, 128, 4\) and was given \(1, 128, 4\)"):
        step(model_of("mamba"), token_ids(1, 1), cache)
    with pytest.raises(TypeError, match="takes no keys and values"):
        cache.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0)


def test_tokens_are_summed_up_and_not_evicted():
    model, ids = model_of("mamba2"), token_ids(1, 9)
    cache = kvcache.create("mamba", model)
    assert cache.token_fates() == []
    with torch.no_grad():
        model(ids, cache_params=cache, use_cache=True)
    assert cache.token_fates() == [("state", 9)]


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_generate_on_a_filled_cache_is_refused_the_old_tokens_and_goes_on_with_the_last(name):
    """transformers leaves out what was seen for `past_key_values` alone."""
    model, ids, settings = model_of(name), token_ids(2, 16), dict(max_new_tokens=6, min_new_tokens=6, do_sample=False)
    cache = kvcache.create("mamba", model)
    said = model.generate(ids[:, :12], cache_params=cache, **settings)
    whole = torch.cat([said, ids[:, 12:]], dim=1)
    with pytest.raises(ValueError, match="seen 17 tokens, 22 at once, as it does with a whole conversation"):
        model.generate(whole, cache_params=cache, **settings)
    kvcache.feed(model, whole[:, 17:-1], cache)
    assert torch.equal(model.generate(whole[:, -1:], cache_params=cache, **settings)[:, 1:], model.generate(whole, **settings)[:, 22:])
    assert cache.tokens_seen == 27
