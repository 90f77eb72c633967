"""The catalog says what each cache takes and why one does not fit, and says it before anything runs."""

import pairs
import pytest
import torch
import transformers
from architectures import model_of

import kvcache

CONFIG = model_of("llama").config


def config_for(entry):
    """A config that this cache fits: llama's wherever it does."""
    models = (*map(model_of, ("llama", "gemma2", "mamba", "jamba")), pairs.model_of("t5"))
    return next(model.config for model in models if not entry.why_not(model.config))


def test_every_class_in_the_catalog_is_named_and_documented():
    for entry in kvcache.ENTRIES.values():
        assert entry.cache_class.name == entry.name and entry.cache_class.__doc__ and entry.summary.endswith(".")


@pytest.mark.parametrize("name", kvcache.ENTRIES)
def test_defaults_build_and_are_described(name):
    entry = kvcache.ENTRIES[name]
    assert isinstance(entry.build(config_for(entry)), transformers.Cache)
    assert entry.defaults().items() <= entry.check(config_for(entry)).items()  # a pair has its part's beside its own
    assert entry.describe()


@pytest.mark.parametrize("name", kvcache.ENTRIES)
def test_every_parameter_is_refused_outside_its_range(name):
    entry = kvcache.ENTRIES[name]
    for parameter in entry.parameters:
        for bad in ("nonsense", None, -1, 10**9, 3.5):
            with pytest.raises(ValueError, match=parameter.name):
                kvcache.create(name, config_for(entry), **{parameter.name: bad})


@pytest.mark.parametrize(
    "name,parameters,message",
    [
        ("nosuch", {}, "no cache is called 'nosuch'; there are dynamic, static"),
        ("sink", {"window": 3}, "sink has no parameter 'window'; it takes window_length, num_sink_tokens"),
        ("sink", {"window_length": 16, "num_sink_tokens": 16}, "num_sink_tokens must be below window_length, got 16 of 16"),
        ("quantized", {"nbits": 5}, "nbits must be one of 8, 4, 3, 2, 1, got 5"),
        ("quantized", {"nbits": 3}, "nbits must be 8, 4 or 2 for native, got 3; hqq takes 8, 4, 3, 2 or 1; quanto takes 4 or 2"),
        ("quantized", {"backend": "gptq"}, "backend must be one of native, hqq, quanto, got 'gptq'"),
        ("offloaded", {"size": 1}, "it takes no parameters"),
    ],
)
def test_wrong_values_are_named_with_what_would_do(name, parameters, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        kvcache.create(name, CONFIG, **parameters)


def test_numbers_that_arrive_as_text_or_floats_are_taken():
    cache = kvcache.create("sink", CONFIG, window_length="64", num_sink_tokens=2.0)
    assert (cache.window_length, cache.num_sink_tokens) == (64, 2)


def test_choices_that_another_setting_excludes_come_with_the_reason():
    reasons = kvcache.ENTRIES["quantized"].disabled_choices("nbits", CONFIG, backend="quanto")
    assert set(reasons) == {8, 3, 1} and reasons[8] == "quanto takes 4 or 2 bits"
    assert kvcache.ENTRIES["quantized"].disabled_choices("backend", CONFIG) == {}


def test_a_broken_backend_is_shown_and_refused_with_the_reason(monkeypatch):
    from kvcache.caches import quantized

    def broken(grouped, nbits):
        raise OSError("undefined symbol")

    monkeypatch.setitem(quantized.QUANTIZERS, "quanto", broken)
    quantized._missing.cache_clear()
    try:
        assert "OSError: undefined symbol" in kvcache.ENTRIES["quantized"].disabled_choices("backend", CONFIG)["quanto"]
        with pytest.raises(ValueError, match="quanto unavailable because OSError"):
            kvcache.create("quantized", CONFIG, backend="quanto")
    finally:
        quantized._missing.cache_clear()


@pytest.mark.parametrize("head_dim,group", [(32, 128), (80, 32), (256, 64)])
@pytest.mark.parametrize("backend,nbits", [("native", 4), ("native", 2), ("hqq", 3), ("hqq", 1), ("quanto", 4)])
def test_every_head_dim_group_and_length_is_held(backend, nbits, group, head_dim):
    config = transformers.LlamaConfig(hidden_size=head_dim, num_attention_heads=1, num_key_value_heads=1, head_dim=head_dim, num_hidden_layers=1)
    cache = kvcache.create("quantized", config, backend=backend, nbits=nbits, q_group_size=group, residual_length=0)
    for tokens in (1, group + 3, group, 3):
        cache.update(torch.randn(1, 1, tokens, head_dim), torch.randn(1, 1, tokens, head_dim), 0)
    assert cache.layers[0].keys.shape == (1, 1, 2 * group + 7, head_dim)
    assert cache.layers[0].keys.isfinite().all() and cache.layers[0].quantized == 2 * group


def test_a_head_dim_that_cannot_be_packed_is_refused_up_front():
    config = transformers.LlamaConfig(hidden_size=40, num_attention_heads=2, head_dim=20)
    with pytest.raises(ValueError, match="head_dim 20 is not a multiple of 8"):
        kvcache.create("quantized", config)


def test_prediction_refuses_what_the_cache_would():
    with pytest.raises(ValueError, match="room for 64 tokens, asked about 65"):
        kvcache.predict_memory("static", CONFIG, 65, max_cache_len=64)
