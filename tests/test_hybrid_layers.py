"""Layers that hold keys and values beside a recurrent state, and models with layers of both kinds: no operation forgets either half."""

import copy
import pickle

import pytest
import torch
from architectures import logits_with_cache, logits_without_cache, model_of, token_ids
from stand_in import StandIn

import kvcache
from kvcache import OffloadedCache, OffloadedStaticCache

CLOSE = dict(atol=2e-4, rtol=1e-4)
SWAP = torch.tensor([1, 0])
STATIC = pytest.mark.parametrize("name", ["static", "offloaded_static"])
HYBRID = pytest.mark.parametrize("architecture", ["falcon_h1", "zamba", "zamba2"])


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def again(cache, model, tmp_path):
    cache.save(tmp_path / "cache")
    return kvcache.load_cache(tmp_path / "cache", model)


def done(operation):
    """An operation on a cache as a function (cache, model, folder) -> the cache to go on with."""
    def run(cache, model, tmp_path):
        operation(cache)
        return cache
    return run


OPERATIONS = {
    "saved and loaded": (again, [0, 1]),
    "pickled": (lambda cache, model, tmp_path: pickle.loads(pickle.dumps(cache)), [0, 1]),
    "reordered": (done(lambda cache: cache.reorder_cache(SWAP)), [1, 0]),
    "selected": (done(lambda cache: cache.batch_select_indices(torch.tensor([1]))), [1]),
    "repeated": (done(lambda cache: cache.batch_repeat_interleave(2)), [0, 0, 1, 1]),
    "split": (lambda cache, model, tmp_path: cache.batch_split(2, 1)[1], [1]),
}


@HYBRID
@STATIC
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_takes_the_states_along(architecture, name, operation, tmp_path):
    model, ids = model_of(architecture), token_ids(2, 20)
    cache = kvcache.create(name, model, max_cache_len=64)
    kvcache.feed(model, ids[:, :14], cache)
    run, rows = OPERATIONS[operation]
    out = kvcache.feed(model, ids[rows, 14:], run(cache, model, tmp_path))
    torch.testing.assert_close(out, logits_without_cache(model, ids[rows])[:, 14:], **CLOSE)


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("make", [lambda config, link: OffloadedCache(config, link=link), lambda config, link: OffloadedStaticCache(config, max_cache_len=64, link=link)], ids=["offloaded", "offloaded_static"])
def test_states_stay_where_they_are_read(make, late):
    model, ids = model_of("falcon_h1", 6), token_ids(2, 24)
    cache = make(model.config, StandIn(late))
    with pytest.warns(UserWarning, match="moves nothing: layers that hold a recurrent state beside their keys stay on cpu"):
        kvcache.feed(model, ids, cache)
    cache.reset()
    torch.testing.assert_close(logits_with_cache(model, ids, cache, [(0, 12), (12, 13), (13, 20), (20, 24)]), logits_without_cache(model, ids), **CLOSE)
    cache.reorder_cache(SWAP)
    more = token_ids(2, 3, seed=5)
    out = kvcache.feed(model, more, cache)
    torch.testing.assert_close(out, logits_without_cache(model, torch.cat([ids[SWAP], more], 1))[:, 24:], **CLOSE)


@pytest.mark.parametrize("architecture", ["bamba", "jamba", "falcon_h1"])
def test_a_forward_that_does_not_fit_leaves_the_states_as_they_were(architecture):
    model, ids = model_of(architecture), token_ids(2, 20)
    cache = kvcache.create("static", model, max_cache_len=16)
    kvcache.feed(model, ids[:, :12], cache)
    with pytest.raises(ValueError, match="StaticCache is full"):
        kvcache.feed(model, ids[:, 12:19], cache)
    out = kvcache.feed(model, ids[:, 12:16], cache)
    torch.testing.assert_close(out, logits_without_cache(model, ids)[:, 12:16], **CLOSE)


@pytest.mark.parametrize("name", ["dynamic", "hybrid_mamba", "static"])
@pytest.mark.parametrize("architecture", ["jamba", "qwen3_next", "falcon_h1"])
def test_after_a_forward_that_was_refused_half_way_nothing_goes_on_but_from_the_start(architecture, name, tmp_path):
    """A recurrent layer takes any dtype; the attention behind it refuses the one of autocast, and by then the state has gone on."""
    model, ids = model_of(architecture), token_ids(2, 12)
    cache = kvcache.create(name, model)
    kvcache.feed(model, ids[:, :10], cache)
    before = copy.deepcopy(cache)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="(was given|got) batch 2, .*bfloat16"):
        kvcache.feed(model, ids[:, 10:11], cache)
    with pytest.raises(ValueError, match="refused after recurrent layers .* reset()"):
        kvcache.feed(model, ids[:, 10:11], cache)
    with pytest.raises(ValueError, match="refused after recurrent layers"):
        cache.save(tmp_path / "cache")
    assert type(cache).from_batch_splits([before, cache]).torn
    for going_on, start in ((before, 10), (cache, 0)):
        if not start:
            going_on.reset()
        out = kvcache.feed(model, ids[:, start:], going_on)
        torch.testing.assert_close(out, logits_without_cache(model, ids)[:, start:], **CLOSE)


def test_a_quantized_layer_rounds_beside_a_state_as_it_does_alone():
    model, ids = model_of("falcon_h1"), token_ids(1, 300)
    cache = kvcache.create("quantized", model)
    kvcache.feed(model, ids, cache)
    predicted = kvcache.predict_memory("quantized", model, 300)
    assert kvcache.measure_memory(cache).by_kind() == predicted.by_kind() and predicted.by_kind()["scales"] > 0
    assert {fate for fate, _ in cache.token_fates()} == {"full", "quantized"}


def test_a_state_that_is_announced_and_never_used_is_nothing_to_reset():
    cache = kvcache.create("static", model_of("falcon_h1"), max_cache_len=32)
    kvcache.feed(model_of("falcon_h1"), token_ids(2, 5), cache)
    cache.layers[0].recurrent_0.data = None
    cache.reset()
    assert cache.get_seq_length() == 0 and all(layer.seen == 0 for layer in cache.layers)
