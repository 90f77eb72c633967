"""Every cache gives the logits of a run without a cache, or of the slow obvious formula of what it forgets."""

import copy
import pickle
import warnings

import numpy
import pytest
import torch
import transformers
from architectures import ARCHITECTURES, ROTARY, WINDOW, chunks, logits_with_cache, logits_without_cache, model_of, tiny, token_ids
from slow import slow

import kvcache
from kvcache import DynamicCache, QuantizedCache, SinkCache, SlidingWindowCache, StaticCache
from kvcache.caches.quantized import QuantizedWindowLayer
from kvcache.window import DRAFT, WindowLayer

# fp32 sums in another order: 1e-4 on logits of about 10 is rounding, a wrong token or position is off by 1 and more.
CLOSE = dict(atol=2e-4, rtol=1e-4)
TOKENS = 90


def build(name, model, tokens=TOKENS):
    """Each cache wide enough to lose nothing over `tokens`, where it can be; None where it does not fit."""
    parameters = {"static": {"max_cache_len": 96}, "sliding_window": {"window_length": 512}, "sink": {"window_length": 512}}
    parameters |= {"quantized": {"residual_length": 512}, "hybrid": {"max_cache_len": 96}, "evicting": {"policy": "lagkv"}}
    if kvcache.ENTRIES[name].why_not(model.config):
        return None
    return kvcache.create(name, model, **parameters.get(name, {}))


ON_LLAMA = [name for name, entry in kvcache.ENTRIES.items() if not entry.why_not(model_of("llama").config)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", kvcache.ENTRIES)
def test_nothing_is_lost_while_everything_is_kept(name, architecture):
    model, ids = model_of(architecture), token_ids(2, TOKENS)
    cache = build(name, model)
    if cache is None:
        with pytest.raises(ValueError, match="full-attention|re-rotated|sliding-window layers|recurrent|has no encoder"):
            kvcache.create(name, model)
        return
    ours = logits_with_cache(model, ids, cache, chunks(TOKENS, 0))
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE)
    assert cache.get_seq_length() == TOKENS


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized"])
def test_models_with_state_space_layers_go_on_token_by_token(name):
    model, ids = model_of("jamba"), token_ids(2, 40)
    cache = build(name, model)
    ours = logits_with_cache(model, ids, cache, [(0, 30), *((i, i + 1) for i in range(30, 40))])
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE)


def test_a_cache_without_a_config_fills_its_layers_as_they_come():
    model, ids = model_of("llama"), token_ids(1, 50)
    ours = logits_with_cache(model, ids, DynamicCache(), chunks(50, 4))
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE)


def window_mask(bounds, window, sinks=0):
    """[T, T], True where a query may look: the window before its chunk, the chunk up to itself, and the sinks."""
    total = bounds[-1][1]
    mask = torch.zeros(total, total, dtype=torch.bool)
    for start, stop in bounds:
        for query in range(start, stop):
            mask[query, max(0, start - window + 1) : query + 1] = True
            mask[query, : min(sinks, query + 1)] = True
    return mask


def additive(mask):
    return torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("window", [8, 17, 40])
def test_a_sliding_window_equals_the_same_mask_without_a_cache(window, seed):
    model, ids, bounds = model_of("llama"), token_ids(2, 150, seed), chunks(150, seed)
    ours = logits_with_cache(model, ids, SlidingWindowCache(model.config, window_length=window), bounds)
    theirs = logits_without_cache(model, ids, attention_mask=additive(window_mask(bounds, window)).expand(2, -1, -1, -1))
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gemma3"])
def test_a_models_own_window_is_kept_exactly_over_any_chunking(architecture):
    model, ids = model_of(architecture), token_ids(1, 4 * WINDOW)
    cache = DynamicCache(model.config)
    torch.testing.assert_close(logits_with_cache(model, ids, cache, chunks(4 * WINDOW, 5)), logits_without_cache(model, ids), **CLOSE)
    assert min(kvcache.cache.held_by(layer) for layer in cache.layers) == WINDOW


def windowed_model(architecture):
    """A random model with sliding windows of 24 tokens, GPT-OSS's with a learned sink beside the scores of each head."""
    if architecture != "gpt_oss":
        return model_of(architecture)
    kinds = ["sliding_attention", "full_attention"]
    return tiny("GptOssConfig", head_dim=16, sliding_window=WINDOW, layer_types=kinds, num_local_experts=2, num_experts_per_tok=1)


OWN_WINDOWS = ["mistral", "gemma2", "gemma3", "gpt_oss"]
ROUNDED = {
    "quantized": {"key_bits": 4, "value_bits": 2, "residual_length": 4, "q_group_size": 32, "round_windows": True},
    "sliding_window": {"key_bits": 4, "value_bits": 4, "residual_length": 0, "window_length": 40},
    "sink": {"key_bits": 4, "value_bits": 4, "residual_length": 0, "window_length": 40},
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("architecture", ["llama", *OWN_WINDOWS])
def test_rounded_windows_equal_the_slow_formula_over_any_chunking(architecture, name, seed):
    model, ids, bounds = windowed_model(architecture), token_ids(2, 150, seed), chunks(150, seed)
    if kvcache.ENTRIES[name].why_not(model.config):
        assert (name, architecture) in (("sink", "mistral"), ("sink", "gpt_oss"))
        return
    cache = kvcache.create(name, model, **ROUNDED[name])
    oracle = slow(cache)
    ours, right = logits_with_cache(model, ids, cache, bounds), logits_with_cache(model, ids, oracle, bounds)
    torch.testing.assert_close(ours, right, **CLOSE)
    assert any(isinstance(layer, QuantizedWindowLayer) and layer.dropped for layer in cache.layers) or (name, architecture) == ("quantized", "llama")


@pytest.mark.parametrize("architecture", OWN_WINDOWS)
def test_eight_bits_in_a_models_own_windows_are_close_to_what_it_says_without_a_cache(architecture):
    model, ids = windowed_model(architecture), token_ids(1, 4 * WINDOW)
    cache = kvcache.create("quantized", model, nbits=8, residual_length=0, q_group_size=32, round_windows=True)
    ours, exact = logits_with_cache(model, ids, cache, chunks(4 * WINDOW, 5)), logits_without_cache(model, ids)
    assert 1e-5 < (ours - exact).norm() / exact.norm() < 0.01
    assert all(layer.quantized or layer.dropped for layer in cache.layers)


@pytest.mark.parametrize("architecture,asked,rounded", [("gemma3", "auto", [False, True]), ("gemma3", True, [True, True]), ("gemma3", False, [False, True]), ("mistral", "auto", [True, True]), ("mistral", True, [True, True])])
def test_windows_are_rounded_where_it_is_asked_for_or_there_is_nothing_else(architecture, asked, rounded):
    model = model_of(architecture)
    cache = kvcache.create("quantized", model, residual_length=0, q_group_size=32, round_windows=asked)
    logits_with_cache(model, token_ids(1, 58), cache, [(0, 58)])
    assert [bool(getattr(layer, "quantized", 0)) for layer in cache.layers[:2]] == rounded
    assert all(layer.held == WINDOW for layer in cache.layers if layer.is_sliding)


def test_what_would_round_nothing_is_refused():
    mistral, llama = model_of("mistral").config, model_of("llama").config
    with pytest.raises(ValueError, match="no full-attention layer, so that with round_windows=False nothing would be rounded"):
        kvcache.create("quantized", mistral, round_windows=False)
    for name, window in (("sliding_window", 64), ("sink", 60)):
        with pytest.raises(ValueError, match=f"nothing of a window of {window} tokens would be rounded whose latest 64 stay"):
            kvcache.create(name, llama, window_length=64, key_bits=4, value_bits=4)
        with pytest.raises(ValueError, match="key_bits and value_bits must be 16 both, or 8, 4 or 2 each, got 4 and 16"):
            kvcache.create(name, llama, key_bits=4)
    with pytest.raises(ValueError, match="rounds nothing: leave key_bits and value_bits at 16"):
        SlidingWindowCache(llama, max_cache_len=512, window_length=256, key_bits=4, value_bits=4)
    with pytest.raises(ValueError, match="round_windows must be auto, True or False, got 'no'"):
        QuantizedCache(llama, round_windows="no")


def test_what_is_rounded_in_a_window_stays_as_it_was_until_it_is_gone():
    """Over 40 blocks of single tokens and chunks, no block's codes ever change, and the first sinks come back bit for bit."""
    cache, known = SinkCache(100, 4, model_of("llama", layers=1).config, key_bits=2, value_bits=2, residual_length=16), {}
    layer, states = cache.layers[0], torch.randn(2, 1, 2, 1300, 16, generator=torch.Generator().manual_seed(1))
    for start, stop in chunks(1300, 3):
        cache.update(*states[:, :, :, start:stop], 0)
        for block, codes in enumerate(layer.key_codes.view().split(32, dim=2) if layer.quantized else ()):
            assert torch.equal(known.setdefault(layer.origin + 32 * block, codes.clone()), codes)
        assert torch.equal(layer.values[:, :, :4], states[1, :, :, :4][:, :, : layer.held])
    assert len(known) == (1300 - 4 - 16) // 32 and layer.quantized < 100 + 32


@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_a_rounded_window_takes_drafts_back_over_its_edge(architecture):
    """What is held after each round is what plain decoding would hold; the tokens of a draft see unrounded what is rounded while they come."""
    model, ids, parameters = model_of(architecture), token_ids(1, 4 * WINDOW), ROUNDED["quantized"]
    cache = kvcache.create("quantized", model, **parameters)
    oracle = slow(cache)
    for each in (cache, oracle):
        each.activate_past_recording()
    for at in range(0, 4 * WINDOW - 8, 5):
        draft = torch.cat([ids[:, at : at + 5], token_ids(1, 3, seed=at)], dim=1)
        ours, right = (logits_with_cache(model, draft, each, [(0, 8)]) for each in (cache, oracle))
        torch.testing.assert_close(ours, right, **CLOSE)
        for each in (cache, oracle):
            each.crop(-3)
        assert all(layer.held <= WINDOW and layer.seen - layer.gone < WINDOW + 32 + 4 for layer in cache.layers if layer.is_sliding)


def sink_oracle(model, ids, bounds, window, sinks):
    """One layer only: recompute each chunk afresh from the sinks, the window before it and itself, side by side."""
    pieces = []
    for start, stop in bounds:
        kept = max(0, min(start, window - 1) - sinks)
        first = ids[:, : min(start, sinks)]
        recent = ids[:, max(start - kept, first.shape[1]) : start]
        seen = torch.cat([first, recent, ids[:, start:stop]], dim=1)
        pieces.append(logits_without_cache(model, seen)[:, first.shape[1] + recent.shape[1] :])
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("sinks,window", [(4, 20), (0, 16), (1, 33), (7, 8)])
@pytest.mark.parametrize("architecture", ROTARY)
def test_rotating_the_sinks_equals_recomputing_the_window_afresh(architecture, sinks, window):
    model, ids, bounds = model_of(architecture, layers=1), token_ids(2, 120, 6), chunks(120, 6)
    cache = kvcache.create("sink", model, window_length=window, num_sink_tokens=sinks)
    torch.testing.assert_close(logits_with_cache(model, ids, cache, bounds), sink_oracle(model, ids, bounds, window, sinks), **CLOSE)
    assert cache.held_length() == window and cache.get_seq_length() == 120


def test_sinks_stay_exact_over_a_long_stream():
    """20 windows of single tokens: rotating from the first keys anew each time leaves no drift."""
    model, ids = model_of("llama", layers=1), token_ids(1, 330, 7)
    bounds = [(i, i + 1) for i in range(330)]
    ours = logits_with_cache(model, ids, SinkCache(16, 4, model.config), bounds)
    torch.testing.assert_close(ours, sink_oracle(model, ids, bounds, 16, 4), **CLOSE)


def test_sinks_without_a_config_keep_their_rotation_and_say_so():
    model, ids, bounds = model_of("llama"), token_ids(1, 60), chunks(60, 8)
    with pytest.warns(UserWarning, match="config=model.config"):
        cache = SinkCache(window_length=20, num_sink_tokens=4)
    mask = window_mask(bounds, 20 - 4, sinks=4)
    ours = logits_with_cache(model, ids, cache, bounds)
    torch.testing.assert_close(ours, logits_without_cache(model, ids, attention_mask=additive(mask)), **CLOSE)


def test_eight_bits_are_close_and_fewer_bits_are_further():
    model, ids = model_of("llama"), token_ids(2, 200)
    exact = logits_without_cache(model, ids)
    errors = {}
    for nbits in (8, 4, 2):
        cache = QuantizedCache(model.config, nbits=nbits, residual_length=0, q_group_size=32)
        ours = logits_with_cache(model, ids, cache, [(0, 150), *((i, i + 1) for i in range(150, 200))])
        errors[nbits] = ((ours - exact)[:, 150:].norm() / exact[:, 150:].norm()).item()
    assert errors[8] < 0.01 < errors[4] < errors[2], errors


@pytest.mark.parametrize("backend,nbits", [("native", 8), ("native", 4), ("native", 2), ("hqq", 4), ("hqq", 3), ("hqq", 1), ("quanto", 4), ("quanto", 2)])
def test_other_rows_of_a_batch_change_nothing(backend, nbits):
    model, bounds = model_of("llama"), [(0, 100), (100, 101), (101, 130)]
    alone, together = token_ids(1, 130, 1), torch.cat([token_ids(1, 130, 1), token_ids(2, 130, 2)])

    def run(ids):
        return logits_with_cache(model, ids, QuantizedCache(model.config, backend, nbits, 16, 32), bounds)[:1]

    torch.testing.assert_close(run(together), run(alone), **CLOSE)


@pytest.mark.parametrize("n", [1, 20, 40, 70])
@pytest.mark.parametrize("wrong", [dict(rows=2), dict(dtype=torch.bfloat16)], ids=["rows", "dtype"])
def test_a_residual_that_is_empty_takes_nothing_of_another_shape(n, wrong):
    def states(tokens, rows=1, dtype=torch.float32):
        return torch.randn(2, rows, 2, tokens, 16).to(dtype)

    cache = QuantizedCache(model_of("llama", layers=1).config, residual_length=0, q_group_size=32)
    cache.update(*states(32), 0)
    with pytest.raises(ValueError, match="this cache holds batch 1, .*float32 and was given batch"):
        cache.update(*states(n, **wrong), 0)
    assert cache.update(*states(1), 0)[0].shape == (1, 2, 33, 16) and cache.get_seq_length() == 33


def test_a_block_is_quantised_once_and_never_again():
    """Over 100 flushes the first block's codes, scales and minima stay bit for bit what they were."""
    model = model_of("llama", layers=1)
    cache = QuantizedCache(model.config, residual_length=0, q_group_size=32)
    layer, generator = cache.layers[0], torch.Generator().manual_seed(0)
    first = None
    for n in range(101):
        cache.update(*torch.randn(2, 1, 2, 32 if n else 36, 16, generator=generator), 0)
        parts = [getattr(layer, name).view()[:, :, :1].clone() for name in layer.stores if "residual" not in name]
        first = first or parts
        assert all(torch.equal(a, b) for a, b in zip(first, parts))
    assert layer.quantized == 101 * 32


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized"])
def test_cropping_forgets_and_the_rest_goes_on(name):
    model, ids = model_of("llama"), token_ids(2, 60)
    cache = build(name, model)
    logits_with_cache(model, ids, cache, [(0, 60)])
    cache.crop(-25)
    assert cache.get_seq_length() == 35
    cache.crop(30)
    cache.crop(0)
    other = torch.cat([ids[:, :30], token_ids(2, 20, 9)], dim=1)
    ours = logits_with_cache(model, other[:, 30:], cache, [(0, 7), (7, 20)])
    torch.testing.assert_close(ours, logits_without_cache(model, other)[:, 30:], **CLOSE)


@pytest.mark.parametrize("first", [0, 1, 4, 40])
@pytest.mark.parametrize("pieces", [[150], [1] * 150, [2, 3, 90, 55], [70, 80]], ids=str)
def test_the_first_tokens_are_never_codes(pieces, first):
    """Fed in whatever pieces, they come back bit for bit, and the blocks begin behind them; of a batch padded on the left, padding is first as well."""
    cache = QuantizedCache(model_of("llama", layers=1).config, residual_length=16, q_group_size=32, first_tokens=first, nbits=2)
    states = torch.randn(2, 2, 2, 150, 16, generator=torch.Generator().manual_seed(0))
    for part in states.split(pieces, dim=3):
        cache.update(*part, 0)
    layer = cache.layers[0]
    assert layer.quantized == (150 - first - 16) // 32 * 32
    assert cache.token_fates() == [(fate, n) for fate, n in (("full", first), ("quantized", layer.quantized), ("full", 150 - first - layer.quantized)) if n]
    for found, side in ((layer.keys, states[0]), (layer.values, states[1])):
        exact = (found == side).all(dim=3).all(dim=1).all(dim=0)
        assert exact[:first].all() and exact[first + layer.quantized :].all() and not exact[first : first + layer.quantized].any()


@pytest.mark.parametrize("length", [100, 69, 68, 60, 36, 30, 4, 3, 1])
def test_cropping_to_first_tokens_and_on_is_as_never_fed(length):
    """The first block's tokens come back rounded, the first ones as they came; what is fed then finds its blocks where they would have been."""
    config, states = model_of("llama", layers=1).config, torch.randn(2, 1, 2, 150, 16, generator=torch.Generator().manual_seed(0))
    cache, never = (QuantizedCache(config, residual_length=0, q_group_size=32, nbits=8) for _ in range(2))
    cache.update(*states, 0)
    rounded = [side.clone() for side in (cache.layers[0].keys, cache.layers[0].values)]
    cache.crop(length)
    assert all(torch.equal(*pair) for pair in zip((cache.layers[0].keys, cache.layers[0].values), (side[:, :, :length] for side in rounded)))
    never.update(*(torch.cat([side[:, :, :length], other[:, :, length:]], dim=2) for side, other in zip(rounded, states)), 0)
    cache.update(*states[..., length:, :], 0)
    assert cache.token_fates() == never.token_fates() == [("full", 4), ("quantized", 128), ("full", 18)]
    for found, wanted in ((cache.layers[0].keys, never.layers[0].keys), (cache.layers[0].values, never.layers[0].values)):
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0)  # a step of eight bits: blocks that stay are not rounded twice, and here they are


def test_quantised_rows_are_reordered_with_their_scales():
    model, ids = model_of("llama"), token_ids(3, 120)
    cache = QuantizedCache(model.config, nbits=8, residual_length=16, q_group_size=32)
    logits_with_cache(model, ids, cache, [(0, 120)])
    before = [layer.keys.clone() for layer in cache.layers]
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    for layer, keys in zip(cache.layers, before):
        assert layer.quantized == 96 and torch.equal(layer.keys, keys[[2, 0, 0]])


def test_cropping_into_a_quantised_block_brings_its_tokens_back():
    model, ids = model_of("llama"), token_ids(1, 200)
    cache = QuantizedCache(model.config, nbits=8, residual_length=16, q_group_size=32)
    logits_with_cache(model, ids, cache, [(0, 200)])
    before = [layer.keys.clone() for layer in cache.layers]
    cache.crop(70)
    assert cache.token_fates() == [("full", 4), ("quantized", 64), ("full", 2)]
    for layer, keys in zip(cache.layers, before):
        torch.testing.assert_close(layer.keys, keys[:, :, :70])


@pytest.mark.parametrize("name,parameters", [("sliding_window", {"window_length": 16}), ("sink", {"window_length": 16})])
def test_windows_go_back_one_token_and_refuse_more_without_changing(name, parameters):
    model, ids = model_of("llama"), token_ids(1, 41)
    cache = kvcache.create(name, model, **parameters)
    expected = logits_with_cache(model, ids, cache, [(0, 1), *((i, i + 1) for i in range(1, 41))])[:, -1]
    assert cache.crop_floor == 40
    before = [layer.keys.clone() for layer in cache.layers]
    with pytest.raises(kvcache.CropError, match="cannot go back to 20 of 41"):
        cache.crop(20)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before))
    cache.crop(-1)
    torch.testing.assert_close(logits_with_cache(model, ids[:, 40:], cache, [(0, 1)])[:, -1], expected, **CLOSE)


def test_a_window_that_has_evicted_nothing_can_be_cropped():
    model, ids = model_of("llama"), token_ids(1, 30)
    for name in ("sliding_window", "sink"):
        cache = kvcache.create(name, model, window_length=64)
        logits_with_cache(model, ids, cache, [(0, 30)])
        cache.crop(2)
        ours = logits_with_cache(model, ids[:, 2:], cache, [(0, 28)])
        torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 2:], **CLOSE)


@pytest.mark.parametrize("name", ON_LLAMA)
def test_rows_can_be_reordered_repeated_selected_and_copied(name):
    model, ids = model_of("llama"), token_ids(3, 60)
    cache = build(name, model)
    logits_with_cache(model, ids, cache, [(0, 50), (50, 51)])
    fork = copy.deepcopy(cache)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    rows = ids[[2, 0]]
    ours = logits_with_cache(model, rows[:, 51:], cache, [(0, 1), (1, 9)])
    torch.testing.assert_close(ours, logits_without_cache(model, rows)[:, 51:], **CLOSE)
    untouched = logits_with_cache(model, ids[:, 51:], fork, [(0, 9)])
    torch.testing.assert_close(untouched, logits_without_cache(model, ids)[:, 51:], **CLOSE)


@pytest.mark.parametrize("name", ON_LLAMA)
def test_a_reset_cache_is_as_good_as_new_even_after_inference_mode(name):
    model, ids = model_of("llama"), token_ids(2, 40)
    cache = build(name, model)
    with torch.inference_mode():
        model(token_ids(2, 33, 5), past_key_values=cache)
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.held_length() == 0
    torch.testing.assert_close(logits_with_cache(model, ids, cache, chunks(40, 1)), logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("name", ON_LLAMA)
def test_generate_takes_our_caches_and_says_the_same_without(name):
    model, ids = model_of("llama"), token_ids(2, 30)
    settings = dict(max_new_tokens=20, do_sample=False, attention_mask=torch.ones_like(ids))
    with_ours = model.generate(ids, past_key_values=build(name, model), **settings)
    assert torch.equal(with_ours, model.generate(ids, use_cache=False, **settings))


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized"])
def test_beams_and_left_padding_agree_with_upstream(name):
    model, ids = model_of("llama"), token_ids(2, 30)
    mask = torch.ones_like(ids)
    ids[0, :11], mask[0, :11] = 0, 0
    settings = dict(max_new_tokens=12, num_beams=4, do_sample=False, attention_mask=mask)
    ours = model.generate(ids, past_key_values=build(name, model), **settings)
    assert torch.equal(ours, model.generate(ids, past_key_values=transformers.DynamicCache(config=model.config), **settings))


def test_a_full_static_cache_says_so_and_stays_usable():
    model, ids = model_of("llama"), token_ids(1, 40)
    cache = StaticCache(model.config, max_cache_len=32)
    logits_with_cache(model, ids, cache, [(0, 30)])
    with pytest.raises(ValueError, match="room for max_cache_len=32 tokens, holds 30 and was given 5"):
        logits_with_cache(model, ids, cache, [(30, 35)])
    ours = logits_with_cache(model, ids, cache, [(30, 32)])
    torch.testing.assert_close(ours, logits_without_cache(model, ids[:, :32])[:, 30:], **CLOSE)


def test_a_static_cache_keeps_its_addresses_and_compiles_without_a_break():
    model, ids = model_of("llama"), token_ids(1, 24)
    cache = StaticCache(model.config, max_cache_len=32)
    logits_with_cache(model, ids, cache, [(0, 16)])
    addresses = [layer.keys.data_ptr() for layer in cache.layers]
    step = torch.compile(lambda piece: model(piece, past_key_values=cache).logits, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = torch.cat([step(ids[:, i : i + 1]) for i in range(16, 24)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 16:], **CLOSE)
    assert addresses == [layer.keys.data_ptr() for layer in cache.layers]


def test_gradients_reach_every_token_as_without_a_cache():
    model, ids = model_of("llama"), token_ids(1, 12)

    def gradient(cache):
        embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
        first = model(inputs_embeds=embeds[:, :8], past_key_values=cache).logits
        second = model(inputs_embeds=embeds[:, 8:], past_key_values=cache).logits
        return torch.autograd.grad((first.sum() + second[:, -1].square().sum()), embeds)[0]

    torch.testing.assert_close(gradient(DynamicCache(model.config)), gradient(transformers.DynamicCache(config=model.config)), atol=1e-3, rtol=1e-3)


def test_a_batch_of_another_size_is_refused_not_broadcast():
    model = model_of("llama")
    for name in ("dynamic", "static", "sliding_window", "quantized"):
        cache = build(name, model)
        logits_with_cache(model, token_ids(4, 10), cache, [(0, 10)])
        with pytest.raises(ValueError, match="batch"):
            logits_with_cache(model, token_ids(1, 1), cache, [(0, 1)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ON_LLAMA)
def test_half_precision_gives_what_upstream_gives(name, dtype):
    model = copy.deepcopy(model_of("llama")).to(dtype)
    ids, bounds = token_ids(1, 40), [(0, 30), *((i, i + 1) for i in range(30, 40))]
    ours = logits_with_cache(model, ids, build(name, model), bounds)
    theirs = logits_with_cache(model, ids, transformers.DynamicCache(config=model.config), bounds)
    torch.testing.assert_close(ours, theirs, atol=0.15, rtol=0.05)  # bf16 keeps 8 bits: logits of about 10 move by 0.05


DRAFTS = [("dynamic", "llama"), ("dynamic", "mistral"), ("dynamic", "gemma3"), ("static", "llama"), ("quantized", "llama"), ("quantized", "gemma3")]


@pytest.mark.parametrize("name,architecture", DRAFTS)
def test_decoding_with_drafts_says_what_plain_decoding_says(name, architecture):
    model, ids = model_of(architecture), token_ids(1, 12).repeat(1, 4)
    settings = dict(max_new_tokens=40, do_sample=False, attention_mask=torch.ones_like(ids))
    plain = model.generate(ids, past_key_values=build(name, model), **settings)
    assert torch.equal(model.generate(ids, past_key_values=build(name, model), prompt_lookup_num_tokens=4, **settings), plain)


def test_a_window_that_records_the_past_goes_back_over_its_edge():
    model, ids = model_of("mistral"), token_ids(1, 4 * WINDOW)
    cache = DynamicCache(model.config)
    cache.activate_past_recording()
    expected = logits_without_cache(model, ids)
    at = 0
    while at + 8 <= 4 * WINDOW:  # feed a right piece and a wrong draft, take the draft back, go on
        draft = torch.cat([ids[:, at : at + 5], token_ids(1, 3, seed=at)], dim=1)
        ours = logits_with_cache(model, draft, cache, [(0, 8)])
        torch.testing.assert_close(ours[:, :5], expected[:, at : at + 5], **CLOSE)
        cache.crop(-3)
        assert cache.held_length() <= WINDOW
        at += 5


@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_a_window_is_as_small_as_ever_once_drafts_are_over(architecture):
    model, ids = model_of(architecture), token_ids(1, 12).repeat(1, 3)
    cache, settings = DynamicCache(model.config), dict(do_sample=False)
    windows = [layer for layer in cache.layers if isinstance(layer, WindowLayer)]
    drafted = model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=4, max_new_tokens=8, **settings)
    assert windows and all(layer.held <= WINDOW for layer in windows)
    plain = model.generate(drafted, past_key_values=cache, max_new_tokens=DRAFT + 40, **settings)
    assert torch.equal(plain, model.generate(ids, max_new_tokens=DRAFT + 48, **settings))
    assert all(layer.held <= WINDOW for layer in windows)


def test_a_reset_cache_no_longer_waits_for_drafts():
    model = model_of("mistral")
    cache = DynamicCache(model.config)
    cache.activate_past_recording()
    logits_with_cache(model, token_ids(1, 2 * WINDOW), cache, [(0, 2 * WINDOW)])
    cache.reset()
    logits_with_cache(model, token_ids(1, 2 * WINDOW), cache, [(0, 2 * WINDOW)])
    assert cache.held_length() == WINDOW


@pytest.mark.parametrize("name", ["dynamic", "static", "sliding_window", "sink", "quantized"])
def test_values_that_do_not_fit_leave_the_keys_alone_too(name):
    model = model_of("llama")
    cache, states = build(name, model), torch.randn(1, 2, 5, 16)
    cache.update(states, states, 0)
    with pytest.raises(ValueError):
        cache.update(states, states.half(), 0)
    assert cache.get_seq_length() == cache.held_length() == 5
    cache.update(states, -states, 0)
    keys, values = (side[:, :, :10] for side in (cache.layers[0].keys, cache.layers[0].values))
    assert torch.equal(keys, torch.cat([states, states], 2)) and torch.equal(values, torch.cat([states, -states], 2))


def test_going_back_into_a_quantised_block_works_under_autocast_too():
    model, ids = model_of("llama"), token_ids(1, 70)
    cache = QuantizedCache(model.config, residual_length=16, q_group_size=32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # keys come in float32 and values in bfloat16
        model(ids, past_key_values=cache)
        cache.crop(20)
        logits = model(ids[:, 20:], past_key_values=cache).logits
    assert cache.get_seq_length() == 70 and logits.isfinite().all()
    assert cache.layers[0].keys.dtype == torch.float32 and cache.layers[0].values.dtype == torch.bfloat16


def test_sinks_refuse_drafts_before_they_begin():
    model, ids = model_of("llama"), token_ids(1, 20)
    with pytest.raises(ValueError, match="SinkCache cannot decode with drafts"):
        model.generate(ids, past_key_values=build("sink", model), prompt_lookup_num_tokens=3, max_new_tokens=5, attention_mask=torch.ones_like(ids))


def test_a_mask_of_rows_has_a_place_for_each_of_them():
    cache = kvcache.DynamicCache()
    cache.update(torch.randn(4, 2, 3, 8), torch.randn(4, 2, 3, 8), 0)
    with pytest.raises(ValueError, match="each of the 4 that the cache holds, got 2"):
        cache.batch_select_indices(torch.tensor([True, False]))
    with pytest.raises(ValueError, match="whole number of tokens, got 2.5"):
        cache.crop(2.5)
    assert cache.batch_size == 4 and cache.get_seq_length() == 3


def test_a_window_of_nothing_is_not_the_models_own():
    with pytest.raises(ValueError, match="window_length"):
        kvcache.SlidingWindowCache(model_of("mistral").config, window_length=0)


def test_a_draft_refused_by_one_layer_leaves_every_layer_as_it_was():
    cache = kvcache.create("sliding_window", model_of("gemma2"), window_length=64)  # layer 0 is the model's own window and could
    with pytest.raises(ValueError, match="cannot decode with drafts"):
        cache.activate_past_recording()
    assert not any(layer.record_past for layer in cache.layers)


@pytest.mark.parametrize("name", ["dynamic", "quantized"])
def test_a_cache_goes_to_another_process_and_back(name):
    model, ids = model_of("llama"), token_ids(1, 60)
    cache = kvcache.create(name, model)
    logits_with_cache(model, ids, cache, [(0, 50)])
    sent = pickle.loads(pickle.dumps(cache))
    assert sent.made_for() is None and copy.deepcopy(cache).made_for() is model
    rest = [(50, 51), (51, 60)]
    assert torch.equal(logits_with_cache(model, ids, sent, rest), logits_with_cache(model, ids, cache, rest))


def test_nothing_to_feed_is_said_to_be_nothing():
    model, cache = model_of("llama"), kvcache.create("dynamic", model_of("llama"))
    for ids, got in ((torch.zeros(1, 0, dtype=torch.long), r"\(1, 0\)"), ([[1, 2]], "list"), (None, "NoneType")):
        with pytest.raises(ValueError, match=rf"input_ids must be a LongTensor \[rows, tokens\], .* got {got}"):
            kvcache.feed(model, ids, cache)
    for other in (None, ()):
        with pytest.raises(ValueError, match="feed goes on from a cache, got (NoneType|tuple): kvcache.create"):
            kvcache.feed(model, torch.ones(1, 2, dtype=torch.long), other)


def test_rows_that_do_not_fit_are_refused_with_gradients_too():
    cache = kvcache.create("dynamic", model_of("llama"))
    cache.update(*torch.randn(2, 1, 2, 3, 16, requires_grad=True), 0)
    with pytest.raises(ValueError, match="this cache holds batch 1"):
        cache.update(*torch.randn(2, 2, 2, 3, 16, requires_grad=True), 0)
    assert cache.get_seq_length() == 3


def test_whole_numbers_may_be_those_of_other_libraries():
    config, eight = model_of("llama").config, numpy.int64(8)
    sink, static, window = SinkCache(eight, torch.tensor(2)), kvcache.StaticCache(config, max_batch_size=eight, max_cache_len=eight), SlidingWindowCache(config, window_length=eight, max_cache_len=eight)
    assert kvcache.predict_memory("dynamic", config, eight, eight) == kvcache.predict_memory("dynamic", config, 8, 8)
    assert {type(number) for number in (sink.window_length, sink.num_sink_tokens, static.max_cache_len, window.layers[0].window_length)} == {int}


@pytest.mark.parametrize("make", [lambda: SlidingWindowCache(window_length=8.5), lambda: SinkCache(8.0), lambda: SinkCache(8, True), lambda: QuantizedCache(nbits=4.0)])
def test_numbers_that_are_not_whole_are_refused(make):
    with pytest.raises(ValueError, match=r"must be (a whole number|8, 4 or 2)"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make()


@pytest.mark.parametrize("name,parameters", [("dynamic", {}), ("offloaded", {}), ("sliding_window", {"window_length": 64}), ("sink", {"window_length": 64}), ("quantized", {"residual_length": 64})])
def test_gradients_of_queries_alone_survive_what_is_appended_later(name, parameters):
    """As with adapters on queries and values: the first layer's keys need no gradient, and autograd keeps views of them."""
    model, ids, found = copy.deepcopy(model_of("llama")), token_ids(2, 20), []
    for where, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in where or "v_proj" in where)
    for cache in (transformers.DynamicCache(config=model.config), kvcache.create(name, model, **parameters)):
        model.zero_grad()
        losses = [model(piece, past_key_values=cache).logits.square().mean() for piece in ids.split((9, 10, 1), dim=1)]
        sum(losses).backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad]))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)
