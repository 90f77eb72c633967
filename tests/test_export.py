"""torch.export of a decode step: right for every later token, or refused in a sentence before there is a program."""

import pytest
import torch
from architectures import logits_with_cache, logits_without_cache, model_of, token_ids

import kvcache
from kvcache.architecture import cache_argument

CLOSE = dict(atol=2e-4, rtol=1e-4)  # fp32 sums in another order
GROWING = {
    "dynamic": {},
    "offloaded": {},
    "sliding_window": {"window_length": 16},
    "sink": {"window_length": 16},
    "quantized": {"residual_length": 16, "q_group_size": 32},
}


class Step(torch.nn.Module):
    """A forward of a model on a cache that is there before the program."""

    def __init__(self, model, cache):
        super().__init__()
        self.model, self.cache = model, cache

    def forward(self, input_ids):
        return self.model(input_ids, use_cache=True, **{cache_argument(self.model): self.cache}).logits


@torch.no_grad()
def exported(model, cache, ids, strict=True):
    return torch.export.export(Step(model, cache), (ids[:, :1],), strict=strict).module()


@torch.no_grad()
def stepped(program, ids):
    return torch.cat([program(ids[:, i : i + 1]) for i in range(ids.shape[1])], dim=1)


def test_a_static_cache_without_dtype_is_allocated_and_right_for_every_exported_token():
    model, ids = model_of("llama"), token_ids(1, 8)
    cache = kvcache.StaticCache(model.config, batch_size=1, max_cache_len=64, device="cpu")
    assert cache.layers[0].keys.shape == (1, 2, 64, 16) and cache.layers[0].keys.dtype == cache.dtype == torch.float32
    torch.testing.assert_close(stepped(exported(model, cache, ids), ids), logits_without_cache(model, ids), **CLOSE)


def test_every_static_cache_is_allocated_without_a_dtype():
    for made, architecture in ((kvcache.OffloadedStaticCache, "llama"), (kvcache.SlidingWindowCache, "mistral"), (kvcache.HybridCache, "gemma2")):
        cache = made(model_of(architecture).config, 1, 64, "cpu")
        assert all(layer.is_initialized and layer.keys.dtype == torch.float32 for layer in cache.layers), made


def test_a_static_cache_without_dtype_still_takes_a_model_of_another():
    keys = torch.randn(2, 1, 2, 3, 16, dtype=torch.bfloat16)
    cache = kvcache.StaticCache(model_of("llama").config, batch_size=1, max_cache_len=64, device="cpu")
    held = cache.update(*keys, 0)[0]
    assert held.dtype == cache.layers[0].keys.dtype == torch.bfloat16 and torch.equal(held[:, :, :3], keys[0])
    with pytest.raises(ValueError, match="float32 .*got .*bfloat16"):
        kvcache.StaticCache(model_of("llama").config, 1, 64, "cpu", torch.float32).update(*keys, 0)


@pytest.mark.parametrize("name", GROWING)
def test_a_cache_that_grows_rounds_or_evicts_is_refused_empty_and_filled(name):
    model, ids = model_of("llama"), token_ids(1, 20)
    cache, untried = (kvcache.create(name, model, **GROWING[name]) for _ in range(2))
    sentence = f"{type(cache).__name__} cannot be exported: its shapes change as it fills"
    with pytest.raises(ValueError, match=sentence):
        exported(model, cache, ids)
    first = logits_with_cache(model, ids, cache, [(0, 5)])
    with pytest.raises(ValueError, match=sentence):
        exported(model, cache, ids, strict=False)
    rest = logits_with_cache(model, ids, cache, [(5, 20)])
    assert torch.equal(torch.cat([first, rest], dim=1), logits_with_cache(model, ids, untried, [(0, 5), (5, 20)]))


def test_static_storage_that_a_program_would_not_find_again_is_refused():
    model, ids = model_of("llama"), token_ids(1, 4)
    with pytest.raises(ValueError, match="StaticCache cannot be exported: its memory is not allocated yet"):
        exported(model, kvcache.StaticCache(model.config, max_cache_len=64), ids)
    with pytest.raises(ValueError, match="follows with strict=True alone"):
        exported(model, kvcache.StaticCache(model.config, 1, 64, "cpu"), ids, strict=False)


def test_a_state_is_exported_once_it_holds_a_token():
    model, ids = model_of("mamba"), token_ids(1, 12)
    cache = kvcache.MambaCache(model.config, 1)
    with pytest.raises(ValueError, match="MambaCache cannot be exported: it holds no state yet"):
        exported(model, cache, ids)
    kvcache.feed(model, ids[:, :6], cache)
    torch.testing.assert_close(stepped(exported(model, cache, ids), ids[:, 6:]), logits_without_cache(model, ids)[:, 6:], **CLOSE)


class FromTuples(torch.nn.Module):
    """A program that is given the past and returns it: its cache begins and ends in it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past):
        cache = kvcache.DynamicCache.from_legacy_cache(past)
        return self.model(input_ids, past_key_values=cache).logits, cache.to_legacy_cache()


def test_a_cache_made_inside_the_program_is_exported():
    model, ids = model_of("llama"), token_ids(1, 8)
    cache = kvcache.DynamicCache()
    logits_with_cache(model, ids, cache, [(0, 7)])
    given = ids[:, 7:], cache.to_legacy_cache()
    with torch.no_grad():
        logits, past = torch.export.export(FromTuples(model), given, strict=True).module()(*given)
    torch.testing.assert_close(logits, logits_without_cache(model, ids)[:, 7:], **CLOSE)
    assert past[0][0].shape[2] == 8
