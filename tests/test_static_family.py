"""Caches of static shapes: memory at fixed addresses, one graph for a whole decode, windows that stream for ever."""

import copy
import functools

import pytest
import torch
import transformers
from architectures import WINDOW, chunks, logits_with_cache, logits_without_cache, model_of, token_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

import kvcache
from kvcache import CropError, DynamicCache, HybridCache, SlidingWindowCache, StaticCache
from kvcache.caches.sliding_window import WindowLayer
from kvcache.caches.static import StaticLayer, StaticWindowLayer
from kvcache.catalog import load_cache

CLOSE = dict(atol=2e-4, rtol=1e-4)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@functools.cache
def alternating():
    """Gemma 3 cut down to one window and one full layer, which is quicker to compile."""
    model = copy.deepcopy(model_of("gemma3"))
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers, model.config.layer_types = 2, model.config.layer_types[:2]
    return model


def steps(start, stop):
    return [(i, i + 1) for i in range(start, stop)]


def states(rows):
    """Keys that spell the tokens: [B, 2 heads, n, 8 dims]."""
    return torch.tensor(rows, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 8).contiguous()


# Construction


def test_all_memory_is_taken_up_front_when_everything_is_known():
    config = model_of("gemma3").config
    cache = StaticCache(config, 2, 64, "cpu", torch.bfloat16)  # in 4.48's order
    assert cache.is_initialized and cache.batch_size == 2 and cache.get_seq_length() == 0
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, WINDOW, 16), (2, 2, 64, 16)] * 2
    assert {layer.keys.dtype for layer in cache.layers} == {torch.bfloat16}
    assert kvcache.measure_memory(cache).total == kvcache.predict_memory("static", config, 0, 2, torch.bfloat16, max_cache_len=64).total


def test_nothing_is_taken_before_the_first_token_when_something_is_not_known():
    cache = StaticCache(model_of("llama").config, max_batch_size=2)
    assert cache.capacity == cache.max_cache_len == 1024  # the model's max_position_embeddings
    assert kvcache.measure_memory(cache).total == 0 and cache.get_seq_length() == 0


def test_each_layer_is_allocated_where_the_map_says():
    devices = {0: "cpu", 1: "meta"}
    cache = StaticCache(model_of("llama").config, max_batch_size=1, max_cache_len=8, dtype=torch.float32, layer_device_map=devices)
    assert {index: layer.keys.device.type for index, layer in enumerate(cache.layers)} == devices
    with pytest.raises(ValueError, match="layer_device_map names layer 7, and the model has layers 0 to 1"):
        StaticCache(model_of("llama").config, max_cache_len=8, layer_device_map={7: "cpu"})


@pytest.mark.parametrize(
    "arguments,message",
    [
        (dict(max_cache_len=0), "max_cache_len must be a whole number of at least 1, got 0"),
        (dict(max_batch_size=0), "max_batch_size must be a whole number of at least 1, got 0"),
        (dict(max_batch_size=2, batch_size=3), "two names for one thing, got 3 and 2"),
    ],
)
def test_wrong_sizes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        StaticCache(model_of("llama").config, **arguments)


def test_keys_of_another_batch_dtype_or_device_than_it_was_made_for_are_refused():
    model, ids = model_of("llama"), token_ids(2, 4)
    for given_, message in [
        (dict(max_batch_size=4), "made for batch_size 4 and was given keys of batch_size 2"),
        (dict(dtype=torch.float16), "made for dtype torch.float16 and was given keys of dtype torch.float32"),
        (dict(device="meta"), "made for device meta and was given keys of device cpu"),
        (dict(max_batch_size=2, device="cpu", dtype=torch.float16), "2 heads of 16, torch.float16 on cpu, got batch 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            logits_with_cache(model, ids, StaticCache(model.config, max_cache_len=16, **given_), [(0, 4)])


def test_a_model_without_windows_is_refused_by_the_hybrid_cache_with_a_way_out():
    with pytest.raises(ValueError, match="llama has no sliding-window layers.*static does the same"):
        HybridCache(model_of("llama").config, max_cache_len=64)
    assert HybridCache(model_of("gemma2").config, 1, 64, "cpu", torch.float32).capacity == 64


def test_a_growing_window_has_nothing_to_allocate_up_front():
    with pytest.raises(ValueError, match="takes batch_size, dtype to allocate up front and then needs max_cache_len= too"):
        SlidingWindowCache(model_of("mistral").config, batch_size=1, dtype=torch.float32)


# Equal to a run without a cache


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gemma3"])
def test_static_windows_are_exact_over_any_chunking(architecture, seed):
    model, ids = model_of(architecture), token_ids(2, 6 * WINDOW, seed)
    cache = (StaticCache if architecture == "mistral" else HybridCache)(model.config, max_cache_len=6 * WINDOW)
    torch.testing.assert_close(logits_with_cache(model, ids, cache, chunks(6 * WINDOW, seed)), logits_without_cache(model, ids), **CLOSE)
    assert cache.layers[0].held == WINDOW and cache.layers[0].keys.shape[-2] == WINDOW


@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_left_padding_reaches_static_windows(architecture):
    model, ids, mask = model_of(architecture), token_ids(2, 50), torch.ones(2, 50, dtype=torch.long)
    mask[0, :9] = 0
    settings_ = dict(attention_mask=mask, max_new_tokens=30, do_sample=False)
    ours = model.generate(ids, past_key_values=StaticCache(model.config, max_cache_len=96), **settings_)
    assert torch.equal(ours, model.generate(ids, past_key_values=transformers.DynamicCache(config=model.config), **settings_))


@pytest.mark.parametrize("window,max_cache_len", [(8, 64), (40, 64), (64, 17)])
def test_a_static_sliding_window_attends_to_what_the_growing_one_does(window, max_cache_len):
    model, ids = model_of("llama"), token_ids(2, 150)
    static = SlidingWindowCache(model.config, max_cache_len=max_cache_len, window_length=window)
    growing = SlidingWindowCache(model.config, window_length=min(window, max_cache_len))
    for seed in (1, 2):
        ours, theirs = (logits_with_cache(model, ids, cache, chunks(150, seed)) for cache in (static, growing))
        torch.testing.assert_close(ours, theirs, **CLOSE)
        static.reset(), growing.reset()


def test_a_window_streams_twenty_times_its_length_in_the_same_bytes():
    model, ids = model_of("mistral"), token_ids(1, 20 * WINDOW)
    cache = SlidingWindowCache(model.config, max_batch_size=1, max_cache_len=4096, device="cpu", dtype=torch.float32)
    total, addresses = kvcache.measure_memory(cache).total, [layer.keys.data_ptr() for layer in cache.layers]
    ours = logits_with_cache(model, ids, cache, [(0, 30), *steps(30, 20 * WINDOW)])
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE)
    assert kvcache.measure_memory(cache).total == total and addresses == [layer.keys.data_ptr() for layer in cache.layers]
    assert cache.token_fates() == [("evicted", 19 * WINDOW), ("full", WINDOW)]


def test_a_cache_shorter_than_the_models_window_keeps_everything_until_it_is_full():
    model, ids = model_of("mistral"), token_ids(1, 20)
    cache = StaticCache(model.config, max_cache_len=16)
    ours = logits_with_cache(model, ids[:, :16], cache, [(0, 9), *steps(9, 16)])
    torch.testing.assert_close(ours, logits_without_cache(model, ids[:, :16]), **CLOSE)
    with pytest.raises(ValueError, match="max_cache_len=16"):
        logits_with_cache(model, ids, cache, [(16, 17)])


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 30)),
    st.tuples(st.just("crop"), st.integers(-12, 60)),
    st.tuples(st.just("reorder"), st.integers(0, 99)),
    st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("fork"), st.just(0)),
    st.tuples(st.just("reset"), st.just(0)),
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(operations=st.lists(OPERATIONS, max_size=16), window=st.integers(2, 14))
def test_a_static_window_holds_and_attends_as_a_growing_one(operations, window):
    static, growing, fresh = StaticWindowLayer(window, False), WindowLayer(window), iter(range(1, 10**6))
    for operation, amount in operations:
        if operation == "add":
            new = states([[float(next(fresh)) for _ in range(amount)] for _ in range(2)])
            length, offset = static.get_mask_sizes(amount)
            assert (growing_first := growing.get_mask_sizes(amount)[1]) == offset
            wide, exact = static.update(new, -new)[0], growing.update(new, -new)[0]
            assert length == wide.shape[2] == window - 1 + amount and growing_first >= 0
            assert torch.equal(wide[:, :, : exact.shape[2]], exact)
        elif operation == "crop":
            assert static.crop_floor == growing.crop_floor
            outcomes = [_cropped(layer, amount) for layer in (static, growing)]
            assert outcomes[0] == outcomes[1]
        elif operation == "reorder" and static.is_initialized:
            static.reorder_cache(torch.tensor([amount % 2, 0]))
            growing.reorder_cache(torch.tensor([amount % 2, 0]))
        elif operation in ("copy", "fork"):
            static = copy.deepcopy(static) if operation == "copy" else static.fork()
        elif operation == "reset":
            static.reset(), growing.reset()
        assert (static.seen, static.held, static.evicted) == (growing.seen, growing.held, growing.evicted)
        if growing.held:
            assert torch.equal(static.key_rows.view(), growing.keys) and torch.equal(static.value_rows.view(), growing.values)


def _cropped(layer, amount):
    if not layer.is_initialized:
        return None
    try:
        return layer.crop(amount)
    except CropError:
        return "refused"


# Refusals change nothing


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_full_cache_refuses_before_any_layer_has_changed(architecture):
    model, ids = model_of(architecture), token_ids(1, 80)
    cache = StaticCache(model.config, max_cache_len=64)
    logits_with_cache(model, ids, cache, [(0, 60)])
    with pytest.raises(ValueError, match="room for max_cache_len=64 tokens, holds 60 and was given 5"):
        logits_with_cache(model, ids, cache, [(60, 65)])
    ours = logits_with_cache(model, ids, cache, [(60, 64)])
    torch.testing.assert_close(ours, logits_without_cache(model, ids[:, :64])[:, 60:], **CLOSE)


def test_decoding_with_drafts_is_refused_on_static_windows_before_it_begins():
    model, ids = model_of("gemma3"), token_ids(1, 20)
    with pytest.raises(ValueError, match="static window cannot go back"):
        model.generate(ids, past_key_values=HybridCache(model.config, max_cache_len=64), prompt_lookup_num_tokens=3, max_new_tokens=8)


# Addresses, copies, compiling, exporting


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_reset_keeps_every_address_even_after_inference_mode(architecture):
    model, ids = model_of(architecture), token_ids(2, 60)
    with torch.inference_mode():
        cache = StaticCache(model.config, max_cache_len=64)
        model(token_ids(2, 50, 4), past_key_values=cache)
    addresses = [(layer.keys.data_ptr(), layer.cumulative_length.data_ptr()) for layer in cache.layers]
    cache.reset()
    torch.testing.assert_close(logits_with_cache(model, ids, cache, chunks(60, 1)), logits_without_cache(model, ids), **CLOSE)
    assert addresses == [(layer.keys.data_ptr(), layer.cumulative_length.data_ptr()) for layer in cache.layers]


def allocated_by(action):
    """Bytes that torch allocates while `action` runs, freed ones not taken off."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
    return sum(max(0, event.cpu_memory_usage) for event in profile.events() if event.name == "[memory]" or not event.cpu_children)


def test_a_step_allocates_nothing_that_grows_with_the_cache():
    row = torch.randn(1, 8, 1, 128)
    assert allocated_by(lambda: row.clone()) >= row.nbytes  # it would be noticed
    for length in (256, 4096):
        layer = StaticLayer(length)
        layer.update(row, row)
        assert allocated_by(lambda layer=layer: layer.update(row, row)) <= 64  # positions: a few integers


@pytest.mark.parametrize("model_for", [lambda: model_of("llama"), alternating, lambda: model_of("mistral")], ids=["llama", "gemma3", "mistral"])
def test_one_graph_serves_a_whole_decode(model_for):
    model, ids = model_for(), token_ids(1, 64)
    cache, counter = StaticCache(model.config, max_cache_len=64), CompileCounterWithBackend("eager")
    logits_with_cache(model, ids, cache, [(0, 10)])
    addresses = [layer.keys.data_ptr() for layer in cache.layers]
    step = torch.compile(lambda piece: model(piece, past_key_values=cache).logits, fullgraph=True, backend=counter)
    with torch.no_grad():
        ours = torch.cat([step(ids[:, i : i + 1]) for i in range(10, 64)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 10:], **CLOSE)
    assert counter.frame_count == 1 and cache.get_seq_length() == 64
    assert addresses == [layer.keys.data_ptr() for layer in cache.layers]
    if cache.capacity is not None:
        before = [layer.keys.clone() for layer in cache.layers]
        with pytest.raises(RuntimeError, match="StaticCache is full"), torch.no_grad():
            step(ids[:, :1])
        assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before))


def test_compiled_and_eager_steps_may_alternate_and_everything_else_sees_both():
    model, ids = alternating(), token_ids(2, 60)
    cache = HybridCache(model.config, max_cache_len=64)
    step = torch.compile(lambda piece: model(piece, past_key_values=cache).logits, fullgraph=True, backend="eager")
    said = [logits_with_cache(model, ids, cache, [(0, 10)])]
    with torch.no_grad():
        for start in range(10, 60, 10):
            said += [step(ids[:, i : i + 1]) for i in range(start, start + 8)]
            assert kvcache.measure_memory(cache).used == kvcache.predict_memory("hybrid", model, start + 8, 2, max_cache_len=64).used
            fork, deep = cache.fork(), copy.deepcopy(cache)
            rest = logits_with_cache(model, ids, cache, [(start + 8, start + 10)])
            assert torch.equal(logits_with_cache(model, ids, fork, [(start + 8, start + 10)]), rest)
            assert torch.equal(logits_with_cache(model, ids, deep, [(start + 8, start + 10)]), rest)
            said.append(rest)
    torch.testing.assert_close(torch.cat(said, dim=1), logits_without_cache(model, ids), **CLOSE)


def test_generate_compiles_its_own_decode():
    model, ids, mask = alternating(), token_ids(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[0, :5] = 0
    compiling = transformers.CompileConfig(backend="eager", mode=None, fullgraph=True)
    compiling._compile_all_devices = True
    settings_ = dict(max_new_tokens=30, do_sample=False, attention_mask=mask)
    ours = model.generate(ids, past_key_values=StaticCache(model.config, max_cache_len=64), compile_config=compiling, **settings_)
    assert torch.equal(ours, model.generate(ids, past_key_values=DynamicCache(model.config), **settings_))


class Step(torch.nn.Module):
    """One decoding step whose state is the cache's tensors, registered as buffers, as transformers' export recipe does."""

    def __init__(self, model, cache):
        super().__init__()
        self.model, self.cache = model, cache
        for index, layer in enumerate(cache.layers):
            for name in ("keys", "values", *layer._counters()):
                self.register_buffer(f"{name}_{index}", getattr(layer, name), persistent=False)

    def forward(self, input_ids):
        return self.model(input_ids, past_key_values=self.cache, use_cache=True).logits


def test_an_exported_step_decodes_past_its_windows_and_refuses_past_its_end():
    model, ids = alternating(), token_ids(1, 41)
    cache = StaticCache(model.config, 1, 40, "cpu", torch.float32)
    with torch.no_grad():
        program = torch.export.export(Step(model, cache), (ids[:, :1],), strict=True).module()
        ours = torch.cat([program(ids[:, i : i + 1]) for i in range(40)], dim=1)
        torch.testing.assert_close(ours, logits_without_cache(model, ids[:, :40]), **CLOSE)
        with pytest.raises(RuntimeError, match="StaticCache is full"):
            program(ids[:, 40:])


# Going on from elsewhere


def test_a_saved_hybrid_cache_goes_on_with_its_windows(tmp_path):
    model, ids = model_of("gemma2"), token_ids(2, 90)
    cache = kvcache.create("hybrid", model, max_cache_len=96)
    logits_with_cache(model, ids, cache, [(0, 70), (70, 71)])
    cache.save(tmp_path / "it.safetensors", model)
    loaded = load_cache(tmp_path / "it.safetensors", model)
    assert [layer.token_fates() for layer in loaded.layers] == [layer.token_fates() for layer in cache.layers]
    rest = [(71, 72), (72, 85), (85, 90)]
    assert torch.equal(logits_with_cache(model, ids, loaded, rest), logits_with_cache(model, ids, cache, rest))


def test_rows_of_a_hybrid_cache_are_split_joined_and_reordered():
    model, ids = model_of("gemma2"), token_ids(3, 60)
    cache = HybridCache(model.config, max_cache_len=64)
    logits_with_cache(model, ids, cache, [(0, 40), (40, 41)])
    whole = HybridCache.from_batch_splits(cache.batch_split(3, 2))
    whole.reorder_cache(torch.tensor([2, 0, 0]))
    rows = ids[[2, 0, 0]]
    ours = logits_with_cache(model, rows, whole, [(41, 42), (42, 60)])
    torch.testing.assert_close(ours, logits_without_cache(model, rows)[:, 41:], **CLOSE)


# The examples of transformers' KV-cache guide


def greedy(model, ids, tokens, **kwargs):
    return model.generate(ids, max_new_tokens=tokens, do_sample=False, attention_mask=torch.ones_like(ids), **kwargs)


def test_guide_static_and_sliding_window_caches_in_generate():
    for architecture, make in {
        "llama": lambda model: StaticCache(config=model.config, max_batch_size=1, max_cache_len=64, device=model.device, dtype=model.dtype),
        "mistral": lambda model: SlidingWindowCache(model.config, batch_size=1, max_cache_len=64, device=model.device, dtype=model.dtype),
        "gemma2": lambda model: HybridCache(model.config, max_batch_size=1, max_cache_len=64, device=model.device, dtype=model.dtype),
    }.items():
        model, ids = model_of(architecture), token_ids(1, 12)
        assert torch.equal(greedy(model, ids, 40, past_key_values=make(model)), greedy(model, ids, 40, use_cache=False)), architecture


def test_guide_hybrid_cache_on_gemma2_filled_once_and_continued_by_forward():
    model, ids = model_of("gemma2"), token_ids(1, 50)
    prompt, more = ids[:, :40], ids[:, 40:]
    past = HybridCache(config=model.config, max_batch_size=1, max_cache_len=40 + 10, device=model.device, dtype=model.dtype)
    with torch.no_grad():
        outputs = model(input_ids=prompt, past_key_values=past, use_cache=True)
        assert outputs.past_key_values is past
        rest = model(input_ids=more, past_key_values=outputs.past_key_values, use_cache=True, cache_position=torch.arange(40, 50)).logits
    torch.testing.assert_close(rest, logits_without_cache(model, ids)[:, 40:], **CLOSE)


def test_guide_own_loop_over_a_static_cache_with_cache_position():
    model, ids = model_of("llama"), token_ids(1, 10)
    past, position, tokens = StaticCache(model.config, 1, 40, "cpu", torch.float32), torch.arange(10), ids
    with torch.no_grad():
        for _ in range(20):
            fed = tokens[:, position]
            logits = model(fed, past_key_values=past, use_cache=True, cache_position=position).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=-1)
            position = position[-1:] + 1
    assert torch.equal(tokens, greedy(model, ids, 20, use_cache=False))
