"""A cache that would take padding for tokens refuses it by itself, whoever calls the model.

It looks for the attention mask where transformers 5.23 asks it for mask sizes. If a later transformers asks elsewhere,
these tests fail, and the cache would be silently wrong again.
"""

import pytest
import tiny_models
import torch
import transformers
from architectures import ROTARY, logits_without_cache, model_of, token_ids

import kvcache
from kvcache import refusals, upstream_quirks

GREEDY = dict(max_new_tokens=4, do_sample=False)
REFUSED = "SinkCache cannot take left-padded rows: their padding would be kept as their first tokens"


def sink(model):
    return kvcache.create("sink", model, window_length=24)


def padded(rows=2, tokens=20):
    ids, mask = token_ids(rows, tokens), torch.ones(rows, tokens, dtype=torch.long)
    ids[0, :7], mask[0, :7] = 0, 0
    return ids, mask


def test_a_window_on_bloom_refuses_padding_which_its_bias_counts():
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=97, hidden_size=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
    model, (ids, mask) = transformers.BloomForCausalLM(config).eval(), padded(tokens=30)
    cache = kvcache.create("sliding_window", model, window_length=24)
    with pytest.raises(ValueError, match="SlidingWindowCache cannot take left-padded rows: bloom counts its position bias over the whole mask"):
        model.generate(ids, attention_mask=mask, past_key_values=cache, **GREEDY)
    assert cache.get_seq_length() == 0
    assert model.generate(token_ids(2, 30), past_key_values=cache, **GREEDY).shape == (2, 34)


@pytest.mark.parametrize("name", ["static", "offloaded_static", "sliding_window"])
@torch.no_grad()
def test_bloom_says_which_mask_its_bias_needs_where_the_keys_are_of_another_length(name):
    """Its bias is as long as the mask, and was added to scores as long as the keys."""
    config = transformers.BloomConfig(vocab_size=97, hidden_size=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
    model, ids = transformers.BloomForCausalLM(config).eval(), token_ids(2, 30)
    cache = kvcache.create(name, model, **({"window_length": 16} if name == "sliding_window" else {"max_cache_len": 40}))
    exact, ones = logits_without_cache(model, ids), torch.ones(2, 30, dtype=torch.long)
    model(ids[:, :20], past_key_values=cache)
    for tokens in (1, 10):
        with pytest.raises(ValueError, match="leave the mask out where nothing is padded"):
            model(ids[:, 20 : 20 + tokens], attention_mask=ones[:, : 20 + tokens], past_key_values=cache)
        assert cache.get_seq_length() == 20 and not cache.torn
    if name != "sliding_window":
        whole = torch.nn.functional.pad(ones, (0, 10))
        torch.testing.assert_close(model(ids[:, 20:], attention_mask=whole, past_key_values=cache).logits, exact[:, 20:], atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_feed_fills_the_mask_of_bloom_on_static_keys():
    model, (ids, mask) = tiny_models.build("bloom"), padded(tokens=24)
    cache = kvcache.create("static", model, max_cache_len=40)
    exact = model(ids, attention_mask=mask).logits
    pieces = [kvcache.feed(model, ids[:, a:b], cache, attention_mask=mask[:, :b]) for a, b in ((0, 16), (16, 17), (17, 24))]
    torch.testing.assert_close(torch.cat(pieces, dim=1)[mask.bool()], exact[mask.bool()], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ROTARY)
@pytest.mark.parametrize("attention", ["as it comes", "eager"])
def test_generate_itself_is_refused_before_anything_is_stored(architecture, attention):
    model, (ids, mask) = model_of.__wrapped__(architecture), padded()
    if attention != "as it comes":
        model.set_attn_implementation(attention)
    cache = sink(model)
    with pytest.raises(ValueError, match=REFUSED):
        model.generate(ids, attention_mask=mask, past_key_values=cache, **GREEDY)
    assert cache.get_seq_length() == 0
    model.generate(token_ids(2, 20), attention_mask=torch.ones_like(mask), past_key_values=cache, **GREEDY)


def test_padding_that_generate_infers_from_the_padding_token_is_refused():
    model, (ids, _) = model_of("llama"), padded()
    with pytest.raises(ValueError, match=REFUSED):
        model.generate(ids, pad_token_id=0, past_key_values=sink(model), **GREEDY)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_a_plain_forward_is_refused(dtype):
    model, (ids, mask) = model_of("llama"), padded()
    with pytest.raises(ValueError, match=REFUSED), torch.no_grad():
        model(ids, attention_mask=mask.to(dtype), past_key_values=sink(model))
    with pytest.raises(ValueError, match=REFUSED), torch.no_grad():
        model(ids[:, :1], attention_mask=mask[:, :1].to(dtype), past_key_values=sink(model))


def test_a_later_piece_with_padding_is_refused_and_changes_nothing():
    """A mask that leaves out tokens of the first forward comes after a first forward without it, or with padding between turns."""
    model, (ids, mask) = model_of("llama"), padded()
    cache = sink(model)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        with pytest.raises(ValueError, match=REFUSED):
            model(ids[:, :3], attention_mask=torch.cat([mask, torch.ones(2, 3, dtype=torch.long)], dim=1), past_key_values=cache)
        assert cache.get_seq_length() == 20
        model(ids[:, :3], attention_mask=torch.ones(2, 23), past_key_values=cache)


def test_padding_behind_tokens_is_refused_for_what_it_is():
    model, ids = model_of("llama"), token_ids(2, 24)
    cache, mask = sink(model), torch.ones(2, 24)
    mask[0, -2:] = 0
    with torch.no_grad():
        model(ids[:, :20], past_key_values=cache)
        with pytest.raises(ValueError, match="SinkCache cannot take rows with padding behind tokens: once tokens are evicted, a mask"):
            model(ids[:, 20:], attention_mask=mask, past_key_values=cache)


def test_looking_costs_nothing_at_single_tokens(monkeypatch):
    model, looked = model_of("llama"), []
    monkeypatch.setattr("kvcache.cache.mask_of_forward", lambda: looked.append(1))
    model.generate(token_ids(2, 20), past_key_values=sink(model), max_new_tokens=10, do_sample=False)
    assert len(looked) == 1


def test_inside_an_encoder_decoder_cache_it_is_refused_too():
    """No rotary encoder-decoder fits a sink cache without more; the way from the model to the inner cache is what is tried."""
    model, (ids, mask) = model_of("llama"), padded()
    pair = kvcache.EncoderDecoderCache(sink(model), kvcache.DynamicCache())
    with pytest.raises(ValueError, match=REFUSED), torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=pair)


def test_caches_that_take_padding_do_not_look(monkeypatch):
    model, (ids, mask) = model_of("llama"), padded()
    monkeypatch.setattr("kvcache.cache.mask_of_forward", lambda: pytest.fail("looked"))
    for name, entry in kvcache.ENTRIES.items():
        if entry.cache_class.takes_left_padding and not entry.why_not(model.config):
            with torch.no_grad():
                model(ids, attention_mask=mask, past_key_values=kvcache.create(name, model))


def test_a_mask_of_another_shape_or_asker_is_none():
    assert upstream_quirks.mask_of_forward() is None
    refusals.refuse_padding(None, None)


@pytest.mark.parametrize("length", [10, 20, 30, 50])
@torch.no_grad()
def test_a_mask_must_cover_what_the_cache_has_seen(length):
    model, ids = model_of("llama"), token_ids(1, 40)
    cache = kvcache.create("dynamic", model)
    kvcache.feed(model, ids[:, :20], cache)
    with pytest.raises(ValueError, match=r"must cover the 20 tokens that the cache has seen and the 20 new ones: \[B, 40\]"):
        kvcache.feed(model, ids[:, 20:], cache, attention_mask=torch.ones(1, length, dtype=torch.long))
    out = kvcache.feed(model, ids[:, 20:], cache, attention_mask=torch.ones(1, 40, dtype=torch.long))
    torch.testing.assert_close(out, logits_without_cache(model, ids)[:, 20:], atol=2e-4, rtol=1e-4)
