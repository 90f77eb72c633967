"""A filled cache, compacted: the tokens that stay are those that some query needed most while the model repeated the text."""

import sys

import pytest
import torch
from architectures import logits_with_cache, model_of, token_ids

import kvcache

module = sys.modules["kvcache.compact"]  # the name in kvcache is the function's
CLOSE = dict(atol=2e-4, rtol=1e-4)


def filled(model, ids, name="dynamic", **settings):
    cache = kvcache.create(name, model, **settings)
    with torch.no_grad():
        kvcache.feed(model, ids, cache)
    return cache


@torch.no_grad()
def slow_places(model, ids, count, instruction=()):
    """By layer and key head, the places that stay: the most attention that each key gets, by the weights that a model with eager attention gives, of one forward over the text twice."""
    twice, tokens = torch.cat([ids, torch.tensor([instruction], dtype=torch.long).expand(len(ids), -1), ids], dim=1), ids.shape[1]
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        attentions = model(twice, output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(before)
    places = []
    for attention in attentions:
        heads = model.config.num_key_value_heads
        most = attention.unflatten(1, (heads, -1))[:, :, :, tokens:, :tokens].amax((2, 3))
        most[..., :4] = most[..., -32:] = torch.inf
        places.append(most.topk(count).indices.sort().values)
    return places


@pytest.mark.parametrize("budget", [50, 0.5])
@pytest.mark.parametrize("instruction", [(), (5, 6, 7)])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_what_stays_is_what_any_query_of_the_repeated_text_attended_to_most(name, instruction, budget):
    model, ids = model_of(name), token_ids(2, 100)
    cache = filled(model, ids)
    made = kvcache.compact(model, cache, ids, budget, instruction=instruction)
    for layer, whole, places in zip(made.layers, cache.layers, slow_places(model, ids, 50, instruction)):
        assert torch.equal(layer.keys, whole.keys.gather(2, places[..., None].expand(-1, -1, -1, layer.keys.shape[3])))
    assert made.get_seq_length() == 100 and made.held_length() == 50 and cache.held_length() == 100


def test_a_text_is_repeated_piece_by_piece(monkeypatch):
    model, ids = model_of("llama"), token_ids(1, 90)
    cache = filled(model, ids)
    whole = module._needed(model, cache, ids, [])
    monkeypatch.setattr(module, "PIECE", 40)
    pieces = module._needed(model, cache, ids, [])
    assert all(pieces[index].shape == whole[index].shape and bool((pieces[index] > 0).all()) for index in whole)
    assert kvcache.compact(model, cache, ids, 60).held_length() == 60


def test_a_compacted_cache_goes_on_and_its_bytes_are_gone():
    model, ids = model_of("llama"), token_ids(1, 120)
    cache = filled(model, ids[:, :90])
    all_kept, made = kvcache.compact(model, cache, ids[:, :90], 90), kvcache.compact(model, cache, ids[:, :90], 0.5)
    pieces = [(90, 110), *((i, i + 1) for i in range(110, 120))]
    torch.testing.assert_close(logits_with_cache(model, ids, all_kept, pieces), logits_with_cache(model, ids, cache, pieces), **CLOSE)
    assert logits_with_cache(model, ids, made, pieces).isfinite().all() and made.held_length() == 45 + 30
    assert kvcache.measure_memory(made).used == 75 / 120 * kvcache.measure_memory(cache).used


def test_a_quantised_cache_and_one_with_windows_are_compacted(tmp_path):
    for name, kind, settings in (("llama", "quantized", {"residual_length": 16, "q_group_size": 32}), ("gemma3", "dynamic", {})):
        model, ids = model_of(name), token_ids(1, 100)
        made = kvcache.compact(model, filled(model, ids, kind, **settings), ids, 48)
        made.save(tmp_path / "cache", model)
        loaded, more = kvcache.load_cache(tmp_path / "cache", model), token_ids(1, 20, seed=3)
        right = logits_with_cache(model, more, made.fork(), [(0, 5), (5, 6), (6, 20)])
        assert torch.equal(logits_with_cache(model, more, loaded, [(0, 5), (5, 6), (6, 20)]), right) and made.held_length() == 48


def test_what_cannot_be_compacted_is_refused_with_the_reason():
    model, ids = model_of("llama"), token_ids(1, 100)
    cache = filled(model, ids)
    for wrong, sentence in (((cache, ids[:, :90], 50), "ids must be all 100 tokens"), ((cache, ids, 0), "a share above 0"), ((filled(model, ids, "evicting", budget=64), ids, 50), "has evicted 36 of 100 tokens")):
        with pytest.raises(ValueError, match=sentence):
            kvcache.compact(model, *wrong)
    with pytest.raises(ValueError, match="compacted by kvzip, got policy 'snapkv'"):
        kvcache.compact(model, cache, ids, 50, policy="snapkv")
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
            kvcache.compact(model, cache, ids, 50)
    finally:
        model.set_attn_implementation(before)
