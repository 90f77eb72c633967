"""generate by a cache's name, and what happens when memory runs out."""

import copy
import logging
import sys
import weakref

import accelerate
import pairs
import pytest
import torch
import transformers
from architectures import model_of, token_ids

import kvcache
from kvcache import QuantizedCacheConfig, StaticCacheConfig, generate, resilient_generate

LIBRARY = sys.modules["kvcache.generate"]
GREEDY = dict(max_new_tokens=12, do_sample=False)
OLD_NAMES = ("dynamic", "static", "offloaded", "offloaded_static", "quantized", "sliding_window", "hybrid", "mamba", "sink")


def test_a_cache_by_name_beside_use_cache_false_is_refused_and_the_models_own_setting_gives_way():
    """Without use_cache transformers gives the model all tokens again at every step, and a cache would hold them again and again."""
    model, ids = copy.deepcopy(model_of("llama")), token_ids(1, 12)
    plain = model.generate(ids, **GREEDY)
    with pytest.raises(ValueError, match="use_cache=False and also cache_implementation='static'"):
        generate(model, ids, cache_implementation="static", use_cache=False, **GREEDY)
    model.generation_config.use_cache = False
    for way in (generate, resilient_generate):
        assert torch.equal(way(model, ids, **GREEDY), plain)


@pytest.mark.parametrize("config", [None, {"nbits": 8}, {"compute_dtype": torch.float32}])
def test_a_quantised_cache_with_settings_is_refused_where_one_without_is(config):
    model = transformers.BertLMHeadModel(transformers.BertConfig(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96))
    with pytest.raises(ValueError, match="quantized: .*encoder"):
        generate(model, token_ids(1, 8), cache_implementation="quantized", cache_config=config, **GREEDY)


def test_room_is_made_for_what_the_models_own_settings_ask_where_the_given_ones_say_nothing():
    model, ids = copy.deepcopy(model_of("llama")), token_ids(1, 12)
    model.generation_config.max_new_tokens = 40
    settings = transformers.GenerationConfig(do_sample=False)
    texts = [generate(model, ids, cache_implementation=name, generation_config=settings) for name in ("dynamic", "static")]
    assert texts[0].shape == (1, 52) and torch.equal(*texts)


def test_room_is_made_for_a_draft_beside_the_reply():
    model, ids = model_of("llama"), token_ids(1, 6).repeat(1, 6)
    for lookup, new in ((8, 4), (5, 9)):
        texts = [generate(model, ids, cache_implementation=name, prompt_lookup_num_tokens=lookup, max_new_tokens=new, do_sample=False) for name in ("dynamic", "static")]
        assert torch.equal(*texts)


def spy(monkeypatch):
    """The caches that generate makes, as it makes them."""
    made, make = [], LIBRARY.make_cache
    monkeypatch.setattr(LIBRARY, "make_cache", lambda *args: made.append(make(*args)) or made[-1])
    return made


def a_model_for(name):
    if name == "encoder_decoder":
        return pairs.model_of("t5")
    return model_of({"hybrid": "gemma2", "mamba": "mamba", "hybrid_mamba": "jamba"}.get(name, "llama"))


@pytest.mark.parametrize("name", dict.fromkeys((*OLD_NAMES, *kvcache.ENTRIES)))
def test_every_name_generates_what_no_cache_generates(name, monkeypatch):
    model, ids = a_model_for(name), token_ids(2, 20)
    made = spy(monkeypatch)
    ours = generate(model, ids, cache_implementation=name, **GREEDY)
    assert torch.equal(ours, model.generate(ids, use_cache=False, **GREEDY))
    assert [type(cache) for cache in made] == [kvcache.ENTRIES[name].cache_class]


@pytest.mark.parametrize("name", ["dynamic", "static", "offloaded", "quantized"])
def test_beams_and_sampling_go_through(name):
    model, ids = model_of("llama"), token_ids(2, 10)
    beams = dict(num_beams=4, num_return_sequences=2, **GREEDY)
    assert torch.equal(generate(model, ids, cache_implementation=name, **beams), model.generate(ids, use_cache=False, **beams))
    torch.manual_seed(5)
    ours = generate(model, ids, cache_implementation=name, max_new_tokens=8, do_sample=True)
    torch.manual_seed(5)
    assert torch.equal(ours, model.generate(ids, max_new_tokens=8, do_sample=True, use_cache=False))


@pytest.mark.parametrize(
    "name,config,expected",
    [
        ("sink", {"window_length": 64, "num_sink_tokens": 2}, dict(window_length=64, num_sink_tokens=2)),
        ("sliding_window", {"window_length": 32}, {}),
        ("static", StaticCacheConfig(batch_size=2, max_cache_len=48), dict(max_cache_len=48)),
        ("quantized", {"backend": "HQQ", "nbits": 2, "axis_key": 1, "axis_value": 1}, dict(backend="hqq", nbits=2, axes={"key": "token", "value": "token"})),
        ("quantized", {"backend": "quanto"}, dict(backend="quanto", nbits=4, residual_length=64)),
        ("quantized", QuantizedCacheConfig(nbits=2), dict(backend="quanto", nbits=2, residual_length=128, compute_dtype=torch.float16)),
    ],
)
def test_the_config_reaches_the_cache(name, config, expected, monkeypatch):
    made = spy(monkeypatch)
    generate(model_of("llama"), token_ids(2, 20), cache_implementation=name, cache_config=config, **GREEDY)
    found = made[0] if name in ("sink", "static") else made[0].layers[0]
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize("settings,length", [(dict(max_new_tokens=30), 50), (dict(max_length=60), 60), ({}, 40)])
def test_a_static_cache_is_as_long_as_the_call_needs(settings, length, monkeypatch):
    made, model, ids = spy(monkeypatch), model_of("llama"), token_ids(1, 20)
    ours = generate(model, ids, cache_implementation="static", do_sample=False, **settings)
    assert torch.equal(ours, model.generate(ids, do_sample=False, **settings))
    assert made[0].max_cache_len == length >= ours.shape[1] - 1


def test_the_models_own_cache_implementation_does_not_get_in_the_way():
    model = copy.deepcopy(model_of("llama"))
    model.generation_config.cache_implementation = "static"
    settings = transformers.GenerationConfig(cache_implementation="static", **GREEDY)
    for how in (dict(generation_config=settings), GREEDY):
        assert generate(model, token_ids(1, 9), cache_implementation="sink", **how).shape == (1, 21)
    assert model.generation_config.cache_implementation == settings.cache_implementation == "static"


def asking(name, config):
    """A generation config that asks for a cache."""
    settings = transformers.GenerationConfig(**GREEDY)
    settings.cache_implementation, settings.cache_config = name, config
    return settings


@pytest.mark.parametrize("way", [generate, resilient_generate])
@pytest.mark.parametrize(
    "given,call,own,expected",
    [
        ({}, ("quantized", {"nbits": 2}), (None, None), ("quantized", {"nbits": 2})),
        ({}, (None, None), ("static", {"max_cache_len": 50}), ("static", {"max_cache_len": 50})),
        ({}, (None, QuantizedCacheConfig(nbits=2)), ("static", {"max_cache_len": 50}), ("quantized", {"nbits": 2})),
        (dict(cache_implementation="quantized"), ("quantized", {"nbits": 2}), (None, None), ("quantized", {"nbits": 2})),
        (dict(cache_implementation="sink"), ("quantized", {"nbits": 2}), ("static", {"max_cache_len": 50}), ("sink", {})),
        (dict(cache_config={"nbits": 4}), ("quantized", {"nbits": 2}), (None, None), ("quantized", {"nbits": 4})),
        (dict(cache_config=QuantizedCacheConfig(nbits=2)), (None, None), ("static", {}), ("quantized", {"nbits": 2})),
    ],
)
def test_what_is_not_given_the_generation_config_says_and_else_the_models(way, given, call, own, expected, monkeypatch):
    model, made = copy.deepcopy(model_of("llama")), spy(monkeypatch)
    model.generation_config.cache_implementation, model.generation_config.cache_config = own
    way(model, token_ids(1, 20), generation_config=asking(*call), **given)
    name, settings = expected
    assert isinstance(made[0], kvcache.ENTRIES[name].cache_class)  # or the class of its backend
    found = made[0].layers[0] if name == "quantized" else made[0]
    assert {key: getattr(found, key) for key in settings} == settings


def test_a_name_of_transformers_alone_in_a_generation_config_is_refused_by_where_it_stands():
    model = copy.deepcopy(model_of("llama"))
    model.generation_config.cache_implementation = "paged"
    with pytest.raises(ValueError, match=r"model.generation_config asks for cache_implementation='paged', which kvcache has not; there are dynamic, static"):
        generate(model, token_ids(1, 9), **GREEDY)
    assert generate(model, token_ids(1, 9), cache_implementation="dynamic", **GREEDY).shape == (1, 21)


def test_a_rung_of_the_ladder_is_made_without_what_the_generation_config_says_of_the_first(monkeypatch):
    tried = []
    monkeypatch.setattr(LIBRARY, "_attempt", lambda *args, **kwargs: tried.append((kwargs["cache_implementation"], kwargs["cache_config"])) or (None, "full"))
    with pytest.raises(torch.OutOfMemoryError):
        resilient_generate(model_of("llama"), token_ids(1, 9), generation_config=asking(None, {"max_cache_len": 50}), ladder=("offloaded",), cache_implementation="static")
    assert tried == [("static", {"max_cache_len": 50}), ("offloaded", {})]


def test_max_cache_len_of_a_generation_config_is_the_room_that_is_made(monkeypatch):
    made = spy(monkeypatch)
    generate(model_of("llama"), token_ids(1, 20), generation_config=transformers.GenerationConfig(cache_implementation="static", max_cache_len=77, **GREEDY))
    assert made[0].max_cache_len == 77


@pytest.mark.parametrize(
    "name,config,message",
    [
        ("nosuch", {}, "no cache is called 'nosuch'; there are dynamic, static"),
        ("sink", {"windows": 3}, "sink has no parameter 'windows'; it takes window_length, num_sink_tokens"),
        ("sink", {"window_length": 4}, "window_length must be a whole number from 8"),
        ("quantized", {"nbits": 3}, "nbits must be 8, 4 or 2 for native, got 3"),
        ("quantized", {"colour": 3}, "QuantizedCacheConfig has no 'colour'"),
        ("sink", QuantizedCacheConfig(), "cache_config is for 'quantized' and cache_implementation is 'sink'"),
        ("static", StaticCacheConfig(batch_size=3, max_cache_len=64), "allocated for batch 3, .* got batch 2"),
        ("static", {"max_cache_len": 16}, "StaticCache is full"),
        ("hybrid", {}, "llama has no sliding-window layers"),
        ("mamba", {}, "llama has|attention"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(name, config, message):
    with pytest.raises(ValueError, match=message):
        generate(model_of("llama"), token_ids(2, 20), cache_implementation=name, cache_config=config, **GREEDY)


def test_a_cache_of_ones_own_beside_a_name_is_refused():
    with pytest.raises(ValueError, match="also past_key_values; model.generate takes a cache of yours"):
        generate(model_of("llama"), token_ids(1, 5), past_key_values=kvcache.DynamicCache(), **GREEDY)


def padded(rows=2, tokens=20):
    ids, mask = token_ids(rows, tokens), torch.ones(rows, tokens, dtype=torch.long)
    ids[0, :7], mask[0, :7] = 0, 0
    return ids, mask


@pytest.mark.parametrize("how", ["mask", "pad token"])
def test_left_padded_rows_are_refused_where_the_padding_would_become_the_sinks(how):
    ids, mask = padded()
    settings = dict(attention_mask=mask) if how == "mask" else dict(pad_token_id=0)
    with pytest.raises(ValueError, match="SinkCache cannot take left-padded rows: their padding would be kept"):
        generate(model_of("llama"), ids, cache_implementation="sink", **settings, **GREEDY)
    generate(model_of("llama"), token_ids(2, 20), cache_implementation="sink", attention_mask=torch.ones_like(mask), **GREEDY)


@pytest.mark.parametrize("name", ["dynamic", "static", "sliding_window", "quantized", "offloaded"])
def test_left_padded_rows_generate_what_they_would_alone(name):
    model, (ids, mask) = model_of("llama"), padded()
    ours = generate(model, ids, cache_implementation=name, attention_mask=mask, **GREEDY)
    assert torch.equal(ours[:1, 20:], model.generate(ids[:1, 7:], use_cache=False, **GREEDY)[:, 13:])


def test_an_encoder_decoder_model_gets_both_sides():
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
    model, ids = transformers.T5ForConditionalGeneration(config).eval(), token_ids(2, 15)
    for name in ("dynamic", "offloaded", "quantized"):
        assert torch.equal(generate(model, ids, cache_implementation=name, **GREEDY), model.generate(ids, use_cache=False, **GREEDY))


# Out of memory


class Shortage:
    """Makes the first `times` caches fail in mid-generation, as an allocator would."""

    def __init__(self, monkeypatch, times, error):
        self.left, self.error, self.tried = times, error, []
        make = LIBRARY.make_cache
        monkeypatch.setattr(LIBRARY, "make_cache", lambda model, name, *args: self.watch(name, make(model, name, *args)))

    def watch(self, name, cache):
        update = cache.update

        def failing(key_states, value_states, layer_idx, *args, **kwargs):
            if self.left and layer_idx == 1 and key_states.shape[2] == 1:
                self.left -= 1
                raise self.error
            return update(key_states, value_states, layer_idx, *args, **kwargs)

        cache.update = failing
        self.tried.append(name)
        return cache


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: str(error)[:30])
def test_a_shortage_is_recognised_in_every_allocators_words(error, monkeypatch):
    Shortage(monkeypatch, 1, error)
    assert resilient_generate(model_of("llama"), token_ids(1, 12), **GREEDY).cache_implementation == "offloaded"


@pytest.mark.parametrize("times,rung", [(0, "dynamic"), (1, "offloaded"), (2, "quantized"), (3, "offloaded_static")])
def test_each_shortage_takes_the_next_rung_and_says_so(times, rung, monkeypatch, caplog):
    model, ids = model_of("llama"), token_ids(1, 12)
    Shortage(monkeypatch, times, OUT_OF_MEMORY[0])
    with caplog.at_level(logging.WARNING, "kvcache"):
        ours = resilient_generate(model, ids, **GREEDY)
    assert ours.cache_implementation == rung and torch.equal(ours, model.generate(ids, **GREEDY))
    said = [record.getMessage() for record in caplog.records if record.name == "kvcache.generate"]
    assert len(said) == (times > 0) and all(f"generated with the {rung} cache after dynamic: " in text for text in said)


def test_memory_is_freed_where_an_offloaded_model_computes(monkeypatch):
    model, freed = accelerate.cpu_offload(model_of.__wrapped__("llama"), torch.device("cpu")), []
    monkeypatch.setattr(LIBRARY, "_free", freed.append)
    Shortage(monkeypatch, 1, OUT_OF_MEMORY[0])
    resilient_generate(model, token_ids(1, 12), **GREEDY)
    assert freed == [torch.device("cpu")]


def test_at_the_end_of_the_ladder_the_error_says_what_was_tried(monkeypatch):
    Shortage(monkeypatch, 99, OUT_OF_MEMORY[0])
    with pytest.raises(torch.OutOfMemoryError, match="dynamic: CUDA out of memory.*offloaded: CUDA.*quantized: CUDA.*offloaded_static: CUDA"):
        resilient_generate(model_of("llama"), token_ids(1, 12), **GREEDY)


def test_rungs_that_do_not_fit_the_model_are_skipped_and_named(monkeypatch):
    Shortage(monkeypatch, 99, OUT_OF_MEMORY[0])
    with pytest.raises(torch.OutOfMemoryError, match="hybrid: hybrid: llama has no sliding-window layers"):
        resilient_generate(model_of("llama"), token_ids(1, 12), ladder=("hybrid",), **GREEDY)


def test_rungs_take_parameters_and_the_outputs_are_marked_whatever_they_are(monkeypatch):
    Shortage(monkeypatch, 1, OUT_OF_MEMORY[0])
    ladder = (("quantized", {"nbits": 2, "residual_length": 0}),)
    out = resilient_generate(model_of("llama"), token_ids(1, 12), ladder=ladder, return_dict_in_generate=True, **GREEDY)
    assert out.cache_implementation == "quantized" and out.past_key_values.layers[0].nbits == 2


def test_another_attempt_draws_the_same_numbers(monkeypatch):
    model, ids = model_of("llama"), token_ids(1, 12)
    torch.manual_seed(3)
    expected = model.generate(ids, max_new_tokens=12, do_sample=True)
    Shortage(monkeypatch, 2, OUT_OF_MEMORY[0])
    torch.manual_seed(3)
    assert torch.equal(resilient_generate(model, ids, max_new_tokens=12, do_sample=True), expected)


def test_nothing_of_the_failed_attempt_is_alive_at_the_next(monkeypatch):
    failed, make = [], LIBRARY.make_cache

    def made(model, name, *args):
        assert all(reference() is None for reference in failed)
        cache = make(model, name, *args)
        if name != "quantized":
            cache.update = lambda *args, **kwargs: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory"))
            failed.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(LIBRARY, "_unfit", lambda *args: None)
    monkeypatch.setattr(LIBRARY, "make_cache", made)
    assert resilient_generate(model_of("llama"), token_ids(1, 12), **GREEDY).cache_implementation == "quantized"
    assert len(failed) == 2


def test_other_errors_are_not_swallowed(monkeypatch):
    shortage = Shortage(monkeypatch, 1, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        resilient_generate(model_of("llama"), token_ids(1, 12), **GREEDY)
    assert shortage.tried == ["dynamic"]
    with pytest.raises(ValueError, match="no cache is called 'nosuch'"):
        resilient_generate(model_of("llama"), token_ids(1, 12), cache_implementation="nosuch", **GREEDY)
    with pytest.raises(ValueError, match="takes no streamer"):
        resilient_generate(model_of("llama"), token_ids(1, 12), streamer=object(), **GREEDY)


def test_a_real_allocators_error_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 62, dtype=torch.uint8)
    assert LIBRARY.is_out_of_memory(caught.value), str(caught.value)
