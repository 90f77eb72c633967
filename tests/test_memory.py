"""Bytes are counted from storage: against an independent walk over every tensor, and against the closed forms."""

import copy

import pytest
import torch
import transformers
from architectures import chunks, logits_with_cache, model_of, token_ids
from test_static_family import allocated_by

import kvcache
from kvcache import catalog
from kvcache.memory import take_snapshot
from kvcache.predict import shapes_of

VARIANTS = [
    ("dynamic", {}),
    ("static", {"max_cache_len": 256}),
    ("sliding_window", {"window_length": 48}),
    ("sink", {"window_length": 48, "num_sink_tokens": 4}),
    ("sink", {"window_length": 48, "num_sink_tokens": 0}),
    ("sliding_window", {"window_length": 48, "key_bits": 4, "value_bits": 2, "residual_length": 16}),
    ("sliding_window", {"window_length": 300, "key_bits": 8, "value_bits": 8, "residual_length": 0}),
    ("sink", {"window_length": 48, "num_sink_tokens": 4, "key_bits": 4, "value_bits": 4, "residual_length": 0}),
    ("sink", {"window_length": 80, "num_sink_tokens": 0, "key_bits": 2, "value_bits": 2, "residual_length": 32}),
    ("quantized", {"nbits": 8, "q_group_size": 32}),
    ("quantized", {"nbits": 4, "residual_length": 0}),
    ("quantized", {"nbits": 2, "residual_length": 48, "q_group_size": 32}),
    ("quantized", {"nbits": 4, "residual_length": 16, "q_group_size": 32, "round_windows": True}),
    ("quantized", {"backend": "hqq", "nbits": 3, "key_bits": 4}),
    ("quantized", {"backend": "hqq", "nbits": 1, "q_group_size": 32}),
    ("quantized", {"backend": "quanto", "nbits": 4}),
]


def storages_under(thing, found=None, visited=None):
    """{data_ptr: bytes} of every tensor of more than one element reachable from an object, the obvious way."""
    found, visited = ({}, set()) if found is None else (found, visited)
    if id(thing) in visited:
        return found
    visited.add(id(thing))
    if isinstance(thing, torch.Tensor):
        if thing.untyped_storage().nbytes() > 8:
            found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, dict):
        [storages_under(value, found, visited) for value in thing.values()]
    elif isinstance(thing, (list, tuple)):
        [storages_under(value, found, visited) for value in thing]
    elif hasattr(thing, "__dict__") and type(thing).__module__.split(".")[0] in ("kvcache", "transformers"):
        [storages_under(value, found, visited) for key, value in vars(thing).items() if key not in ("rope", "schemes")]
    return found


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("name,parameters", VARIANTS)
def test_measured_bytes_are_the_predicted_ones_and_what_storage_holds(name, parameters, architecture):
    model = model_of(architecture)
    for tokens in (1, 31, 48, 200):
        cache = kvcache.create(name, model, **parameters)
        logits_with_cache(model, token_ids(2, tokens), cache, [(0, tokens)])
        measured = kvcache.measure_memory(cache)
        assert measured.total == sum(storages_under(cache).values())
        if architecture == "llama":
            predicted = kvcache.predict_memory(name, model, tokens, batch_size=2, **parameters)
            assert measured.layers == predicted.layers
        assert take_snapshot(cache).layers == measured.layers
        assert measured.devices == {"cpu": measured.total}


@pytest.mark.parametrize("name", ["dynamic", "quantized", "hybrid"])
def test_a_snapshot_says_bytes_by_device_where_there_are_several(name):
    model = model_of("gemma3")
    cache = kvcache.create(name, model)
    logits_with_cache(model, token_ids(1, 200), cache, [(0, 200)])
    assert take_snapshot(cache).devices == ()
    for layer in cache.layers[1:]:
        layer.to("meta")  # which stands for a GPU
    shown, layers = dict(take_snapshot(cache).devices), take_snapshot(cache).layers
    assert {device: memory.total for device, memory in shown.items()} == {"cpu": layers[0].total, "meta": sum(layer.total for layer in layers[1:])}
    assert shown["meta"].keys == sum(layer.keys for layer in layers[1:]) and shown["cpu"] == layers[0]


@pytest.mark.parametrize("window,sinks", [(8, 4), (16, 4), (16, 15), (17, 4), (40, 16), (40, 39), (64, 0), (64, 4)])
def test_a_sinks_bytes_are_predicted_for_windows_of_any_length(window, sinks):
    model, parameters = model_of("llama"), {"window_length": window, "num_sink_tokens": sinks}
    for tokens in (1, window - 1, window, window + 1, 3 * window):
        cache = kvcache.create("sink", model, **parameters)
        logits_with_cache(model, token_ids(1, tokens), cache, [(0, tokens)])
        assert kvcache.measure_memory(cache).layers == kvcache.predict_memory("sink", model, tokens, **parameters).layers, tokens


@pytest.mark.parametrize("name", [name for name in catalog.ENTRIES if name not in ("encoder_decoder", "hybrid", "mamba", "hybrid_mamba")])
def test_of_no_tokens_what_is_predicted_is_what_is_there(name):
    model = model_of("llama")
    assert kvcache.predict_memory(name, model, 0).used == 0 == kvcache.measure_memory(kvcache.create(name, model)).used
    if name not in ("static", "offloaded_static"):  # whose storage is for all tokens from the first on
        assert kvcache.predict_memory(name, model, 0).total == 0


def test_heads_of_another_width_are_predicted():
    config = transformers.SwitchTransformersConfig(d_model=64, d_kv=24, num_heads=4, num_layers=1, num_decoder_layers=1, d_ff=64, vocab_size=64)
    assert shapes_of(config, 2, 4)[0].token_nbytes == 2 * 4 * (24 + 24) * 4


@pytest.mark.parametrize("name,parameters", VARIANTS)
def test_token_by_token_the_used_bytes_are_the_same_and_little_is_reserved(name, parameters):
    model, tokens = model_of("llama"), 130
    cache = kvcache.create(name, model, **parameters)
    logits_with_cache(model, token_ids(1, tokens), cache, [(i, i + 1) for i in range(tokens)])
    measured, predicted = kvcache.measure_memory(cache), kvcache.predict_memory(name, model, tokens, **parameters)
    assert measured.used == predicted.used
    assert measured.total <= 1.35 * predicted.total


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize("name,parameters", [("dynamic", {}), ("static", {}), ("quantized", {}), ("sink", {}), ("quantized", {"round_windows": True, "residual_length": 0, "q_group_size": 32}), ("sink", {"residual_length": 8, "key_bits": 4, "value_bits": 4})])
def test_models_with_windows_of_their_own_are_predicted_too(name, parameters, architecture):
    model = model_of(architecture)
    for tokens in (30, 44, 60, 110):
        cache = kvcache.create(name, model, **parameters)
        logits_with_cache(model, token_ids(1, tokens), cache, [(0, tokens)])
        assert kvcache.measure_memory(cache).layers == kvcache.predict_memory(name, model, tokens, **parameters).layers


@pytest.mark.parametrize("name", ["sliding_window", "sink"])
def test_blocks_that_a_window_has_left_give_their_bytes_back(name):
    """However long the stream, fed in whatever pieces: never more than the window, one block beyond its edge, and room to grow."""
    model, parameters = model_of("llama", layers=1), {"window_length": 96, "key_bits": 4, "value_bits": 4, "residual_length": 16}
    most = kvcache.predict_memory(name, model, 96 + 32 + 4, window_length=512, **{bits: value for bits, value in parameters.items() if bits != "window_length"})
    for pieces in ([(0, 900)], [(i, i + 1) for i in range(900)], chunks(900, 3)):
        cache = kvcache.create(name, model, **parameters)
        for bounds in pieces:
            logits_with_cache(model, token_ids(1, 900), cache, [bounds])
            memory = kvcache.measure_memory(cache)
            assert memory.used <= most.used and memory.total <= 1.5 * most.total
        assert cache.bounded and cache.held_length() == 96 and cache.layers[0].dropped % 32 == 0


def test_half_precision_is_half_the_bytes():
    model = copy.deepcopy(model_of("llama")).bfloat16()
    full, half = kvcache.predict_memory("dynamic", model_of("llama"), 100), kvcache.predict_memory("dynamic", model, 100)
    assert half.total * 2 == full.total


def test_four_bits_take_less_than_a_fifth_of_full_precision():
    config = transformers.LlamaConfig(hidden_size=1024, num_attention_heads=8, num_key_value_heads=8, num_hidden_layers=2)
    full, four = (kvcache.predict_memory(name, config, 16384) for name in ("dynamic", "quantized"))
    assert four.used / full.used < 0.2


def test_storage_shared_by_two_layers_counts_once():
    cache, states = transformers.DynamicCache(), torch.randn(1, 2, 10, 16)
    cache.update(states, states, 0)
    cache.layers[0].values = cache.layers[0].keys
    assert kvcache.measure_memory(cache).total == states.numel() * 4


def test_a_view_counts_as_used_and_the_rest_of_its_storage_as_reserved():
    cache = transformers.DynamicCache()
    cache.update(torch.randn(1, 2, 10, 16), torch.randn(1, 2, 10, 16), 0)
    cache.crop(-4)
    memory = kvcache.measure_memory(cache)
    assert memory.by_kind()["keys"] == 6 * 2 * 16 * 4 and memory.by_kind()["reserved"] == 2 * 4 * 2 * 16 * 4


def test_encoder_decoder_and_upstreams_quantised_caches_are_unwrapped():
    config = model_of("llama").config
    pair = transformers.EncoderDecoderCache(transformers.DynamicCache(), kvcache.DynamicCache())
    for side in (pair.self_attention_cache, pair.cross_attention_cache):
        side.update(torch.randn(1, 2, 16, 16), torch.randn(1, 2, 16, 16), 0)
    assert kvcache.measure_memory(pair).used == 4 * 16 * 2 * 16 * 4
    hqq = transformers.QuantizedCache("hqq", config, nbits=4)
    hqq.update(torch.randn(1, 2, 64, 16), torch.randn(1, 2, 64, 16), 0)
    kinds = kvcache.measure_memory(hqq).by_kind()
    assert kinds["keys"] == kinds["values"] == 2 * 64 * 16 // 2 and kinds["scales"] > 0


def test_state_space_layers_show_their_state():
    model = model_of("jamba")
    cache = kvcache.create("dynamic", model)
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    kinds = kvcache.measure_memory(cache).by_kind()
    assert kinds["state"] > 0 and kinds["keys"] > 0
    assert kvcache.predict_memory("dynamic", model, 8).layers == kvcache.measure_memory(cache).layers


def test_what_is_not_a_cache_is_refused():
    with pytest.raises(TypeError, match="expected a transformers Cache, got list"):
        kvcache.measure_memory([])


def test_a_deep_copy_copies_what_is_used_and_not_what_is_reserved():
    model = model_of("llama")
    cache = kvcache.create("dynamic", model)
    logits_with_cache(model, token_ids(1, 100), cache, [(0, 100)])
    copied = kvcache.measure_memory(copy.deepcopy(cache))
    assert copied.used == kvcache.measure_memory(cache).used and copied.by_kind()["reserved"] == 0


@pytest.mark.parametrize("name", ["dynamic", "offloaded", "sliding_window", "sink", "quantized"])
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_a_fork_costs_nothing_where_a_deep_copy_costs_every_byte(name):
    """A prompt is reused without copying it: storage is shared until one of the two writes there."""
    model = model_of("llama")
    cache = kvcache.create(name, model)
    logits_with_cache(model, token_ids(1, 300), cache, [(0, 300)])
    used = kvcache.measure_memory(cache).used
    assert allocated_by(lambda: copy.deepcopy(cache)) >= used
    assert allocated_by(cache.fork) <= (used / 50 if name == "sink" else 0)  # sinks have 4 rows of their own, rewritten in place
