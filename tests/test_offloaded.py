"""Offloaded caches give the bits of the cache inside, with every layer where it should be at every step.

There is no accelerator here, so a stand-in for the second stream says what was copied when: `late` copies happen as
late as a stream could do them, `early` ones at once. What reads too soon, or writes too soon, gives other bits in one
of the two. Real streams are not measured by these tests.
"""

import copy
import warnings

import pytest
import torch
from architectures import chunks, logits_with_cache, logits_without_cache, model_of, token_ids
from stand_in import StandIn

import kvcache
from kvcache import DynamicCache, EvictingCache, OffloadedCache, OffloadedStaticCache, QuantizedCache, StaticCache
from kvcache.caches.offloaded import Link, Offloading
from kvcache.catalog import load_cache

LAYERS = 5


def pair(name, model, late):
    """(an offloaded cache over a stand-in, the cache it should equal bit for bit)."""
    if name == "offloaded":
        return OffloadedCache(model.config, link=StandIn(late)), DynamicCache(model.config)
    return OffloadedStaticCache(model.config, max_cache_len=128, link=StandIn(late)), StaticCache(model.config, max_cache_len=128)


def where(cache):
    """The layers on the device, at every update of a forward."""
    places, update = [], cache.update

    def noted(*args, **kwargs):
        result = update(*args, **kwargs)
        places.append(sorted(cache.here))
        return result

    cache.update = noted
    return places


OFFLOADED = pytest.mark.parametrize("name", ["offloaded", "offloaded_static"])
TIMING = pytest.mark.parametrize("late", [True, False], ids=["late", "early"])


@OFFLOADED
@TIMING
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2", "mistral"])
def test_an_offloaded_cache_gives_the_bits_of_the_one_inside(name, architecture, late):
    model, ids = model_of(architecture, None if architecture != "llama" else LAYERS), token_ids(2, 90)
    ours, inner = (logits_with_cache(model, ids, cache, chunks(90, 3)) for cache in pair(name, model, late))
    assert torch.equal(ours, inner)
    torch.testing.assert_close(ours, logits_without_cache(model, ids), atol=2e-4, rtol=1e-4)


@OFFLOADED
@TIMING
def test_every_operation_between_forwards_leaves_the_same_bits(name, late):
    model, ids = model_of("llama", LAYERS), token_ids(3, 60)

    def story(cache):
        said = [logits_with_cache(model, ids, cache, [(0, 20), (20, 21)])]
        for beams in ([2, 0, 0], [1, 1, 2], [0, 2, 1]):
            cache.reorder_cache(torch.tensor(beams))
            cache.reorder_cache(torch.tensor([1, 0, 2]))
            said.append(logits_with_cache(model, ids[:, 21:22], cache, [(0, 1)]))
        cache.crop(-2)
        fork, deep = cache.fork(), copy.deepcopy(cache)
        cache.batch_repeat_interleave(2)
        said.append(logits_with_cache(model, ids[[0, 0, 1, 1, 2, 2], 30:40], cache, [(0, 3), (3, 10)]))
        cache.batch_select_indices(torch.tensor([5, 0]))
        said.append(logits_with_cache(model, ids[:2, 40:45], cache, [(0, 1), (1, 5)]))
        for other in (fork, deep):
            said.append(logits_with_cache(model, ids[:, 30:33], other, [(0, 1), (1, 3)]))
        fork.reset()
        said.append(logits_with_cache(model, ids, fork, [(0, 9), (9, 10)]))
        said.append(logits_with_cache(model, ids[:, 33:35], deep, [(0, 2)]))
        pieces = deep.batch_split(3, 2)
        said += [logits_with_cache(model, rows, piece, [(0, 1)]) for rows, piece in zip(ids[:, 35:36].split(2), pieces)]
        whole = type(deep).from_batch_splits(pieces)
        said.append(logits_with_cache(model, ids[:, 36:38], whole, [(0, 1), (1, 2)]))
        said.append(torch.stack([keys[:, :, :20] for keys, _ in whole]))
        return said

    for ours, inner in zip(*(story(cache) for cache in pair(name, model, late))):
        assert torch.equal(ours, inner)


def test_the_next_layer_comes_and_each_leaves_once_it_has_its_tokens():
    model = model_of("llama", LAYERS)
    cache = OffloadedCache(model.config, link=StandIn(late=True))
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    cache.only_link.log.clear()
    places = where(cache)
    logits_with_cache(model, token_ids(1, 2), cache, [(0, 1), (1, 2)])
    assert places == [[1], [2], [3], [4], [0]] * 2
    assert len(cache.only_link.log) == 2 * 2 * 2 * LAYERS  # keys and values, in and out, two forwards


def test_only_rows_that_hold_tokens_travel():
    model = model_of("llama", LAYERS)
    cache = OffloadedCache(model.config, link=StandIn(late=True))
    logits_with_cache(model, token_ids(1, 129), cache, [(0, 129)])  # with room for 144
    log = cache.only_link.log
    log.clear()
    logits_with_cache(model, token_ids(1, 1), cache, [(0, 1)])
    travelled = {way: sum(torch.Size(shape).numel() for what, shape in log if what == way) for way in ("fetch", "evict")}
    row = 2 * 2 * 16  # keys and values, heads, dim
    assert travelled == {"fetch": row * (129 * (LAYERS - 1) + 130), "evict": row * 130 * LAYERS}  # the first layer comes for the step after


def test_what_leaves_is_not_kept_on_the_device_and_the_allocator_is_told_who_reads_it(monkeypatch):
    told, link = [], object.__new__(Link)  # without a stream, which the CPU has none of
    link.device, link.host, link.copies, link.kept = torch.device("cpu"), torch.device("meta"), "copies", []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: told.append((tensor, stream)), raising=False)
    leaving = torch.ones(2)
    assert link.evict(leaving).is_meta
    assert told == [(leaving, "copies")] and not link.kept


def test_a_layer_that_changes_when_it_attends_stays_until_it_has():
    class OffloadedEvictingCache(Offloading, EvictingCache):
        pass

    model, ids, settings = model_of("llama", LAYERS), token_ids(2, 200), dict(policy="h2o", budget=0.5)
    moving = OffloadedEvictingCache(model.config, **settings, link=StandIn(late=True))
    ours, inner = (logits_with_cache(model, ids, cache, chunks(200, 2)) for cache in (moving, EvictingCache(model.config, **settings)))
    assert torch.equal(ours, inner)
    places = where(moving)
    logits_with_cache(model, ids[:, :1], moving, [(0, 1)])
    assert places == [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4]]


def test_by_address_one_layer_lies_on_the_device_behind_each_update_and_the_others_bytes_on_the_host():
    model = model_of("llama", LAYERS)
    cache, resident = OffloadedCache(model.config, link=StandIn(late=True)), []
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    update = cache.update

    def noted(*args, **kwargs):
        result = update(*args, **kwargs)
        whole = [sum(buffer.data.numel() * 4 for buffer in layer.buffers().values()) for layer in cache.layers]
        resident.append([(cache.only_link.resident_nbytes(layer), size) for layer, size in zip(cache.layers, whole)])
        return result

    cache.update = noted
    logits_with_cache(model, token_ids(1, 2), cache, [(0, 1), (1, 2)])
    here = [{1}, {2}, {3}, {4}, {0}] * 2
    assert [[nbytes == size for nbytes, size in layers] for layers in resident] == [[index in layers for index in range(LAYERS)] for layers in here]
    assert {nbytes for layers in resident for nbytes, size in layers if nbytes != size} == {0}


def test_windows_stay_and_the_full_layers_between_them_move():
    model = model_of("gemma3")
    cache = OffloadedCache(model.config, link=StandIn(late=True))
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    places = where(cache)
    logits_with_cache(model, token_ids(1, 1), cache, [(0, 1)])
    assert places == [[1], [1, 3], [3], [1, 3]]  # of four, layers 1 and 3 are full attention


def test_static_layers_take_turns_in_two_buffers_and_the_first_one_stays():
    model = model_of("llama", LAYERS)
    cache = OffloadedStaticCache(model.config, max_cache_len=64, link=StandIn(late=True))
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    places, link = where(cache), cache.only_link
    homes = [layer.key_rows.data.data_ptr() for layer in cache.layers]
    buffers = [cache._slot(index)[0].data.data_ptr() for index in range(1, LAYERS)]
    assert buffers[0] == buffers[2] and buffers[1] == buffers[3] and len({*homes, *buffers}) == LAYERS + 2
    link.log.clear()
    logits_with_cache(model, token_ids(1, 2), cache, [(0, 1), (1, 2)])
    assert places[5:] == [[1], [1, 2], [2, 3], [3, 4], [4]] and places[0] == [1]
    back = [shape for what, shape in link.log if what == "evict"]
    assert back[2:] == [(1, 2, 1, 16)] * 2 * (2 * (LAYERS - 1) - 1), back  # only what each step wrote goes back
    assert [layer.key_rows.data.data_ptr() for layer in cache.layers] == homes
    assert [cache._slot(index)[0].data.data_ptr() for index in range(1, LAYERS)] == buffers


def test_the_lent_buffers_are_counted():
    model = model_of("llama", LAYERS)
    cache = OffloadedStaticCache(model.config, max_cache_len=64, link=StandIn(late=False))
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    one = 64 * 2 * 16 * 4 * 2  # tokens, heads, dim, bytes, keys and values
    memory = kvcache.measure_memory(cache)
    assert memory.total == LAYERS * one + 2 * one and memory.used == LAYERS * one * 8 // 64
    assert [layer.total // one for layer in memory.layers] == [1, 2, 2, 1, 1]


@TIMING
@OFFLOADED
def test_beams_are_the_same_with_reorders_that_wait(name, late):
    model, ids = model_of("llama", LAYERS), token_ids(2, 20)
    settings = dict(max_new_tokens=12, num_beams=4, do_sample=False, attention_mask=torch.ones_like(ids))
    ours, inner = (model.generate(ids, past_key_values=cache, **settings) for cache in pair(name, model, late))
    assert torch.equal(ours, inner)


def test_a_reorder_waits_until_its_layer_is_back():
    model = model_of("llama", LAYERS)
    cache = OffloadedCache(model.config, link=StandIn(late=True))
    logits_with_cache(model, token_ids(2, 8), cache, [(0, 8), (8, 9)][:1])
    cache.reorder_cache(torch.tensor([1, 0]))
    assert sorted(cache.pending) == sorted(set(range(LAYERS)) - cache.here)
    logits_with_cache(model, token_ids(2, 1), cache, [(0, 1)])
    assert not cache.pending


@TIMING
def test_any_of_our_layers_can_be_offloaded(late):
    class OffloadedQuantizedCache(Offloading, QuantizedCache):
        pass

    model, ids = model_of("llama", LAYERS), token_ids(2, 120)
    settings = dict(nbits=4, residual_length=16, q_group_size=32)
    moving = OffloadedQuantizedCache(model.config, **settings, link=StandIn(late))
    ours, inner = (logits_with_cache(model, ids, cache, chunks(120, 2)) for cache in (moving, QuantizedCache(model.config, **settings)))
    assert torch.equal(ours, inner) and len(moving.only_link.log) > 100


@OFFLOADED
def test_without_an_accelerator_it_passes_through_and_says_so_once(name):
    model, ids = model_of("llama"), token_ids(1, 30)
    cache = kvcache.create(name, model)
    with pytest.warns(UserWarning, match="moves nothing: its keys are computed on cpu") as caught:
        ours = logits_with_cache(model, ids, cache, chunks(30, 1))
    assert len([warning for warning in caught if "moves nothing" in str(warning.message)]) == 1
    inner = DynamicCache(model.config) if name == "offloaded" else StaticCache(model.config, max_cache_len=2048)
    assert torch.equal(ours, logits_with_cache(model, ids, inner, chunks(30, 1)))
    held, predicted = kvcache.measure_memory(cache), kvcache.predict_memory(name, model, 30)
    assert held.total == kvcache.measure_memory(inner).total and held.used == predicted.used
    assert kvcache.measure_memory(cache).devices == kvcache.measure_memory(inner).devices


def test_static_storage_can_be_allocated_up_front_elsewhere_than_it_computes():
    config = model_of("llama").config
    cache = OffloadedStaticCache(config, 2, 64, "meta", torch.float32)  # "meta" stands for an accelerator's device
    assert [layer.keys.device.type for layer in cache.layers] == ["meta", "cpu"]
    assert [layer.cumulative_length.device.type for layer in cache.layers] == ["meta", "meta"]
    with pytest.raises(ValueError, match="computes on one device, layer_device_map names cpu, meta"):
        OffloadedStaticCache(config, 2, 64, layer_device_map={0: "cpu", 1: "meta"})


@OFFLOADED
def test_a_saved_cache_goes_on(name, tmp_path):
    model, ids = model_of("llama", LAYERS), token_ids(2, 40)
    cache, inner = pair(name, model, late=True)
    cache.parameters = {} if name == "offloaded" else {"max_cache_len": 128}
    for each in (cache, inner):
        logits_with_cache(model, ids, each, [(0, 20), (20, 21)])
    cache.save(tmp_path / "it.safetensors", model)  # what is still on its way is waited for
    loaded, rest = load_cache(tmp_path / "it.safetensors", model), [(21, 22), (22, 40)]
    assert torch.equal(logits_with_cache(model, ids, loaded, rest), logits_with_cache(model, ids, inner, rest))


def test_passing_through_leaves_one_graph_for_a_whole_decode():
    torch._dynamo.reset()
    model, ids = model_of("llama"), token_ids(1, 20)
    cache = OffloadedStaticCache(model.config, max_cache_len=32)
    said = [logits_with_cache(model, ids, cache, [(0, 10)])]
    step = torch.compile(lambda piece: model(piece, past_key_values=cache).logits, fullgraph=True, backend="eager")
    with torch.no_grad():
        said += [step(ids[:, i : i + 1]) for i in range(10, 20)]
    torch.testing.assert_close(torch.cat(said, dim=1), logits_without_cache(model, ids), atol=2e-4, rtol=1e-4)


def test_a_wrong_token_count_changes_nothing():
    model, ids = model_of("llama", LAYERS), token_ids(1, 40)
    cache, inner = pair("offloaded_static", model, True)
    cache = OffloadedStaticCache(model.config, max_cache_len=32, link=StandIn(True))
    logits_with_cache(model, ids, cache, [(0, 30)])
    with pytest.raises(ValueError, match="room for max_cache_len=32"):
        logits_with_cache(model, ids, cache, [(30, 35)])
    logits_with_cache(model, ids, inner, [(0, 30)])
    assert torch.equal(logits_with_cache(model, ids, cache, [(30, 32)]), logits_with_cache(model, ids, inner, [(30, 32)]))


def test_the_guides_examples():
    """transformers' KV-cache guide: offloaded and offloaded static, by object, on a machine with or without accelerator."""
    model, ids = model_of("llama"), token_ids(1, 12)
    settings = dict(do_sample=False, max_new_tokens=20, attention_mask=torch.ones_like(ids))
    expected = model.generate(ids, use_cache=False, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(model.generate(ids, past_key_values=OffloadedCache(), **settings), expected)
        static = OffloadedStaticCache(model.config, max_batch_size=1, max_cache_len=64, device=model.device, dtype=model.dtype)
        assert torch.equal(model.generate(ids, past_key_values=static, **settings), expected)
