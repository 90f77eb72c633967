"""Caches that have a name of their own and no place in menus, and the pair, which few models take: the catalog makes, predicts, saves and generates with them."""

import sys

import pytest
import torch
import transformers
from architectures import logits_with_cache, model_of, token_ids
from pairs import CLOSE, MODELS, TOKENS, encoded, fed, heard, ids, logits
from pairs import model_of as pair_model

import kvcache
from kvcache import catalog

GREEDY = dict(max_new_tokens=8, do_sample=False)
AUTO = {"axis_key": "auto", "axis_value": "auto", "compute_dtype": torch.float32}
SMALL = {"residual_length": 16, "q_group_size": 32}
SELVES = {"dynamic": {}, "static": {"max_cache_len": 32}, "offloaded": {}, "offloaded_static": {"max_cache_len": 32}, "quantized": {"residual_length": 32}}


def test_every_public_class_is_in_the_catalog():
    classes = {entry.cache_class for entry in (*catalog.ENTRIES.values(), *catalog.OTHERS.values())}
    public = {value for name in kvcache.__all__ if isinstance(value := getattr(kvcache, name), type) and name.endswith("Cache")}
    assert classes == public - {kvcache.Cache} and set(catalog.OTHERS) == {"quanto", "hqq"}
    assert all(entry.cache_class.name == name for name, entry in (catalog.ENTRIES | catalog.OTHERS).items())


@pytest.mark.parametrize("name", ["sliding_window", "static", "offloaded_static"])
def test_a_bias_over_all_tokens_seen_takes_no_window_and_no_reserve(name):
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, new_decoder_architecture=False, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(0)
    model, ids = transformers.FalconForCausalLM(transformers.FalconConfig(alibi=True, **sizes)).eval(), token_ids(1, 20) % 60 + 1
    with pytest.raises(ValueError, match="falcon with alibi adds a bias as long as all tokens seen"):
        kvcache.create(name, model)
    with pytest.raises(ValueError, match="falcon with alibi adds a bias"):
        catalog.ENTRIES[name].cache_class(config=model.config, **({"window_length": 16} if name == "sliding_window" else {"max_cache_len": 32}))
    assert torch.equal(kvcache.generate(model, ids, **GREEDY), model.generate(ids, **GREEDY))
    assert kvcache.create(name, transformers.FalconConfig(**sizes)).layers


@pytest.mark.parametrize("backend,nbits", [("quanto", 4), ("quanto", 2), ("hqq", 8), ("hqq", 3), ("hqq", 1)])
def test_a_backend_by_its_name_is_the_quantised_cache_with_that_backend(backend, nbits, tmp_path):
    model, tokens = model_of("llama"), token_ids(2, 90)
    cache = kvcache.create(backend, model, nbits=nbits, **SMALL)
    same = kvcache.create("quantized", model, backend=backend, nbits=nbits, **SMALL)
    bounds = [(0, 70), (70, 71)]
    assert type(cache) is catalog.OTHERS[backend].cache_class
    assert torch.equal(logits_with_cache(model, tokens, cache, bounds), logits_with_cache(model, tokens, same, bounds))
    predicted = kvcache.predict_memory(backend, model, 70, batch_size=2, nbits=nbits, **SMALL)
    assert predicted.used == kvcache.predict_memory("quantized", model, 70, batch_size=2, backend=backend, nbits=nbits, **SMALL).used
    cache.save(tmp_path / "it", model)
    loaded = kvcache.load_cache(tmp_path / "it", model)
    assert type(loaded) is type(cache)
    assert torch.equal(logits_with_cache(model, tokens[:, 71:], loaded, [(0, 1)]), logits_with_cache(model, tokens[:, 71:], same, [(0, 1)]))


@pytest.mark.parametrize("backend", ["quanto", "hqq"])
@pytest.mark.parametrize("config", [None, {"nbits": 2}, {"backend": "as named", "axis_key": 0}, "object"])
def test_generate_takes_a_backends_name(backend, config):
    model, tokens = model_of("llama"), token_ids(1, 20)
    if isinstance(config, dict) and "backend" in config:
        config = {**config, "backend": backend.upper()}
    settings = kvcache.QuantizedCacheConfig(backend=backend) if config == "object" else config
    out = kvcache.generate(model, tokens, cache_implementation=backend, cache_config=settings, **GREEDY)
    assert torch.equal(out, model.generate(tokens, use_cache=False, **GREEDY))  # shorter than the residual


@pytest.mark.parametrize("attention", ["auto", "fused", "decode"])
@pytest.mark.parametrize("backend", ["quanto", "hqq"])
def test_a_backend_by_its_name_reads_its_codes_as_asked(backend, attention):
    model, tokens, settings = model_of("llama"), token_ids(1, 90), {**SMALL, "nbits": 4}
    by_class = catalog.OTHERS[backend].cache_class({**settings, **AUTO}, model.config, attention=attention)
    by_name = kvcache.create(backend, model, **settings, attention=attention)
    for cache in (by_class, by_name):
        exact = logits_with_cache(model, tokens, kvcache.create(backend, model, **settings, attention="decode"), [(0, 80), (80, 81)])
        torch.testing.assert_close(logits_with_cache(model, tokens, cache, [(0, 80), (80, 81)]), exact, **CLOSE)
        read = cache.update(*torch.randn(2, 1, 2, 1, 16), 0)[0]
        if attention != "auto":  # which takes the loops once they are compiled
            assert read.layer.attention == attention


def test_generate_hands_the_kind_of_attention_on(monkeypatch):
    seen, library = [], sys.modules["kvcache.generate"]
    make = library.make_cache
    monkeypatch.setattr(library, "make_cache", lambda *args: seen.append(make(*args)) or seen[-1])
    for name in ("quantized", "quanto", "hqq"):
        kvcache.generate(model_of("llama"), token_ids(1, 5), cache_implementation=name, cache_config={"attention": "decode", "nbits": 2}, **GREEDY)
    assert [(cache.name, cache.layers[0].attention, cache.layers[0].nbits, cache.layers[0].compute_dtype) for cache in seen] == [
        (name, "decode", 2, torch.float32) for name in ("quantized", "quanto", "hqq")
    ]


def test_what_a_backend_cannot_is_refused_with_the_reason():
    model = model_of("llama")
    with pytest.raises(ValueError, match="nbits must be one of 4, 2, got 3"):
        kvcache.create("quanto", model, nbits=3)
    with pytest.raises(ValueError, match="quanto has no parameter 'backend'; it takes nbits"):
        kvcache.create("quanto", model, backend="hqq")
    with pytest.raises(ValueError, match="cache_config is for the backend 'hqq' and cache_implementation is 'quanto'"):
        kvcache.generate(model, token_ids(1, 5), cache_implementation="quanto", cache_config={"backend": "hqq"}, **GREEDY)
    with pytest.raises(ValueError, match="attention must be one of auto, fused, decode, got 'flash'"):
        kvcache.HQQQuantizedCache(attention="flash")
    with pytest.raises(ValueError, match="hqq: attention over packed codes reads 8, 4 or 2 bits, not 3"):
        kvcache.create("hqq", model, nbits=3, attention="fused")
    with pytest.raises(ValueError, match="there are dynamic, static.*quanto, hqq"):
        kvcache.create("fp8", model)


@pytest.mark.parametrize("own", SELVES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_an_encoder_decoder_cache_by_name_gives_the_logits_of_a_run_without(name, own, tmp_path):
    model, tokens = pair_model(name), ids(2, TOKENS)
    cache = kvcache.create("encoder_decoder", model, self_cache=own, **SELVES[own])
    ours = fed(name, tokens[:, :20], cache, [(0, 19), (19, 20)])
    exact = logits(name, tokens)
    torch.testing.assert_close(ours, exact[:, :20], **CLOSE)
    source = encoded(name, 3).last_hidden_state.shape[1]
    predicted = kvcache.predict_memory("encoder_decoder", model, 20, batch_size=2, source_tokens=source, self_cache=own, **SELVES[own])
    assert predicted.used == kvcache.measure_memory(cache).used
    cache.save(tmp_path / "it", model)
    loaded = kvcache.load_cache(tmp_path / "it", model)
    assert loaded.is_updated == cache.is_updated == {0: True, 1: True}
    for each in (cache, loaded):
        torch.testing.assert_close(fed(name, tokens[:, 20:], each, [(0, TOKENS - 20)]), exact[:, 20:], **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_generate_takes_encoder_decoder_by_name(name):
    model = pair_model(name)
    inputs = heard(1) if name == "whisper" else ids(1, 15, 1)
    plain = model.generate(inputs, use_cache=False, **GREEDY)
    for config in (None, {"self_cache": "static"}, {"self_cache": "static", "max_cache_len": 40}, {"self_cache": "quantized", "nbits": 8}):
        assert torch.equal(kvcache.generate(model, inputs, cache_implementation="encoder_decoder", cache_config=config, **GREEDY), plain), config
    by_keyword = {"input_features" if name == "whisper" else "input_ids": inputs}
    assert torch.equal(kvcache.generate(model, **by_keyword, cache_implementation="encoder_decoder", **GREEDY), plain)


def test_what_fits_no_pair_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="encoder_decoder: llama has no encoder"):
        kvcache.create("encoder_decoder", model_of("llama"))
    with pytest.raises(ValueError, match="encoder_decoder: t5 biases by the distance"):
        kvcache.create("encoder_decoder", pair_model("t5"), self_cache="sliding_window")
    with pytest.raises(ValueError, match="encoder_decoder: its keys cannot be re-rotated"):
        kvcache.create("encoder_decoder", pair_model("bart"), self_cache="sink")
    with pytest.raises(ValueError, match="has no parameter 'window_length'; it takes self_cache, max_cache_len"):
        kvcache.create("encoder_decoder", pair_model("bart"), self_cache="static", window_length=8)
    with pytest.raises(ValueError, match="self_cache must be one of dynamic"):
        kvcache.create("encoder_decoder", pair_model("bart"), self_cache="mamba")
    for name, model, source in (("encoder_decoder", pair_model("bart"), None), ("dynamic", model_of("llama"), 15)):
        with pytest.raises(ValueError, match="source_tokens, the length of the encoder's output"):
            kvcache.predict_memory(name, model, 10, source_tokens=source)
