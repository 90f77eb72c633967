"""A forward that dies half-way, by an interruption or for want of memory: what it left is never gone on from as if nothing had happened."""

import pytest
import torch
from architectures import logits_without_cache, model_of, token_ids

import kvcache

CLOSE = dict(atol=5e-4, rtol=5e-4)
PARAMETERS = {"static": {"max_cache_len": 64}, "hybrid": {"max_cache_len": 64}, "quantized": {"nbits": 8, "residual_length": 64}, "sliding_window": {"window_length": 64}, "sink": {"window_length": 64}}
TAKES_BACK = ["dynamic", "static", "offloaded", "quantized", "sliding_window", "sink", "hybrid"]


def die(model, ids, cache, error=KeyboardInterrupt):
    """Feed tokens, and lose the forward when the first layer has taken them and the last has not."""
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == model.config.num_hidden_layers)

    def stop(*_):
        raise error

    handle = layers[-1].register_forward_pre_hook(stop)
    try:
        with pytest.raises(error):
            kvcache.feed(model, ids, cache)
    finally:
        handle.remove()


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("name", TAKES_BACK)
def test_what_a_dead_forward_left_is_refused_and_taken_back(name, error, tmp_path):
    model, ids = model_of("gemma2" if name == "hybrid" else "llama"), token_ids(2, 20)
    cache = kvcache.create(name, model, **PARAMETERS.get(name, {}))
    kvcache.feed(model, ids[:, :9], cache)
    die(model, ids[:, 9:15], cache, error)
    for tokens in (6, 1):
        with pytest.raises(ValueError, match=r"half-way .* seen 15 tokens and the last 9; crop\(9\)"):
            kvcache.feed(model, ids[:, 9:9 + tokens], cache)
    with pytest.raises(ValueError, match="half-way"):
        cache.save(tmp_path / "cache")
    cache.crop(9)
    torch.testing.assert_close(kvcache.feed(model, ids[:, 9:], cache), logits_without_cache(model, ids)[:, 9:], **(dict(atol=0.05, rtol=0.05) if name == "quantized" else CLOSE))


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "mistral", "mamba", "mamba2", "jamba", "falcon_h1", "zamba", "qwen3_next", "lfm2"])
def test_the_first_forward_too(architecture):
    """The layers behind the one where it died have seen nothing, which no model's own layers look like."""
    model, ids = model_of(architecture), token_ids(1, 12)
    cache = kvcache.create("dynamic", model) if architecture not in ("mamba", "mamba2") else kvcache.create("mamba", model)
    die(model, ids, cache)
    with pytest.raises(ValueError, match=r"seen 12 tokens and the last 0; reset\(\)"):
        kvcache.feed(model, ids, cache)
    cache.reset()
    torch.testing.assert_close(kvcache.feed(model, ids, cache), logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("architecture", ["mamba", "mamba2", "jamba", "falcon_h1", "zamba", "qwen3_next"])
def test_a_state_that_went_ahead_of_the_others_cannot_come_back(architecture):
    model, ids = model_of(architecture), token_ids(1, 12)
    cache = kvcache.create("mamba" if "mamba" in architecture and architecture != "zamba" else "hybrid_mamba", model)
    kvcache.feed(model, ids[:, :8], cache)
    die(model, ids[:, 8:9], cache)
    with pytest.raises(ValueError, match=r"seen 9 tokens and the last 8; reset\(\)"):
        kvcache.feed(model, ids[:, 8:9], cache)
    cache.reset()
    torch.testing.assert_close(kvcache.feed(model, ids, cache), logits_without_cache(model, ids), **CLOSE)


def test_an_evicted_token_is_not_promised_back():
    model, ids = model_of("llama"), token_ids(1, 80)
    cache = kvcache.create("sliding_window", model, window_length=16)
    kvcache.feed(model, ids[:, :60], cache)
    die(model, ids[:, 60:], cache)
    with pytest.raises(ValueError, match=r"seen 80 tokens and the last 60; reset\(\)"):
        kvcache.feed(model, ids[:, 60:], cache)
