"""The examples that every user of these caches knows from transformers 4.48's guide, on tiny models, with kvcache's classes.

What transformers 5 has changed in them: models no longer pass or need cache_position; `generate` slices a second turn's
ids by the tokens that the cache has *seen*, so a sink cache wants the whole conversation, not its last window; beam
groups moved to code on the hub, and 40 plain beams are the nearest that is left.
"""

import copy
import sys

import pytest
import torch
from architectures import model_of
from tiny_chat import tiny

import kvcache
from kvcache import (
    DynamicCache,
    HQQQuantizedCache,
    HybridCache,
    OffloadedCache,
    OffloadedStaticCache,
    QuantizedCacheConfig,
    QuantoQuantizedCache,
    SinkCache,
    SlidingWindowCache,
    StaticCache,
)

LLAMA = tiny("llama")
MODEL, TOKENIZER = LLAMA.model, LLAMA.tokenizer
PROMPTS = ("Hello, what's your name?", "Btw, yesterday I was on a rock concert.", "What is the capital of France?")
GREEDY = dict(do_sample=False, max_new_tokens=16)


def encoded(text):
    return TOKENIZER(text, return_tensors="pt", return_token_type_ids=False)


def without_cache(inputs, **settings):
    return MODEL.generate(**inputs, use_cache=False, **{**GREEDY, **settings})


@pytest.mark.parametrize("passes_position", [False, True])
def test_a_generation_loop_of_ones_own(passes_position):
    """With the guide's arithmetic of cache_position, which transformers 5's models take and do without."""
    inputs = TOKENIZER.apply_chat_template([{"role": "user", "content": PROMPTS[0]}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    past_key_values, generated = DynamicCache(), inputs["input_ids"]
    expected = without_cache(dict(input_ids=generated))
    cache_position = torch.arange(generated.shape[1])
    step = dict(input_ids=generated)
    for _ in range(16):
        extra = {"cache_position": cache_position} if passes_position else {}
        with torch.no_grad():
            outputs = MODEL(**step, past_key_values=past_key_values, use_cache=True, **extra)
        next_token_ids = outputs.logits[:, -1:].argmax(-1)
        generated = torch.cat([generated, next_token_ids], dim=-1)
        step = dict(input_ids=next_token_ids)
        cache_position = cache_position[-1:] + 1
    assert torch.equal(generated, expected)
    assert past_key_values.get_seq_length() == generated.shape[1] - 1 == int(cache_position[0])


@pytest.mark.parametrize(
    "cache_config",
    [
        {"nbits": 4, "backend": "quanto"},
        {"nbits": 4, "backend": "HQQ", "axis_key": 1, "axis_value": 1},
        QuantizedCacheConfig(nbits=4),
        QuantizedCacheConfig(nbits=2, backend="HQQ"),
    ],
)
def test_a_quantised_cache_by_name(cache_config):
    inputs = encoded("I like rock music because")
    out = kvcache.generate(MODEL, **inputs, cache_implementation="quantized", cache_config=cache_config, **GREEDY)
    assert torch.equal(out, without_cache(inputs))  # shorter than the residual: not a bit is lost
    longer = encoded("okay " * 150 + "I like rock music because")
    out = kvcache.generate(MODEL, **longer, cache_implementation="quantized", cache_config=cache_config, **GREEDY)
    assert out.shape[1] == longer["input_ids"].shape[1] + 16


@pytest.mark.parametrize(
    "make",
    [
        lambda: QuantoQuantizedCache(cache_config=QuantizedCacheConfig(nbits=4)),
        lambda: HQQQuantizedCache(cache_config=QuantizedCacheConfig(nbits=4, axis_key=1, axis_value=1)),
        lambda: OffloadedCache(),
        lambda: StaticCache(config=MODEL.config, max_batch_size=1, max_cache_len=64, device=MODEL.device, dtype=MODEL.dtype),
        lambda: OffloadedStaticCache(config=MODEL.config, max_batch_size=1, max_cache_len=64, device=MODEL.device, dtype=MODEL.dtype),
        lambda: SinkCache(window_length=256, num_sink_tokens=4, config=MODEL.config),
        lambda: SlidingWindowCache(window_length=256),
    ],
    ids=["quanto", "hqq", "offloaded", "static", "offloaded_static", "sink", "sliding_window"],
)
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_each_class_as_the_guide_constructs_it(make):
    inputs, cache = encoded("This is a long story about unicorns, fairies and magic."), make()
    out = MODEL.generate(**inputs, past_key_values=cache, **GREEDY)
    assert torch.equal(out, without_cache(inputs)) and cache.get_seq_length() == out.shape[1] - 1


def test_a_hybrid_cache_that_forward_filled_goes_on():
    model = model_of("gemma2")
    ids = torch.arange(1, 31)[None]
    cache = HybridCache(config=model.config, max_batch_size=1, max_cache_len=64, device=model.device, dtype=model.dtype)
    with torch.no_grad():
        outputs = model(ids, past_key_values=cache, use_cache=True)
    assert outputs.past_key_values is cache
    out = model.generate(torch.cat([ids, ids[:, :4]], dim=1), past_key_values=cache, **GREEDY)
    assert torch.equal(out, model.generate(torch.cat([ids, ids[:, :4]], dim=1), use_cache=False, **GREEDY))


@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_the_fallback_for_many_beams_when_memory_runs_out(monkeypatch):
    """40 beams, the first attempt out of memory in mid-generation: the offloaded cache gives what the first would have."""
    inputs = encoded("okay " * 20 + "Fun fact: The most")
    beams = dict(num_beams=40, num_return_sequences=40, max_new_tokens=6, early_stopping=True, do_sample=False)
    expected = MODEL.generate(**inputs, use_cache=False, **beams)
    library = sys.modules["kvcache.generate"]
    make = library.make_cache

    def short_of_memory(model, name, *args):
        cache = make(model, name, *args)
        if name == "dynamic":
            cache.reorder_cache = lambda beam_idx: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory."))
        return cache

    monkeypatch.setattr(library, "make_cache", short_of_memory)
    out = kvcache.resilient_generate(MODEL, **inputs, **beams)
    assert out.cache_implementation == "offloaded" and torch.equal(out, expected)


def test_legacy_conversion_both_ways():
    inputs = encoded("Hello, my name is")
    out = MODEL.generate(**inputs, past_key_values=DynamicCache(), return_dict_in_generate=True, **GREEDY)
    legacy = out.past_key_values.to_legacy_cache()
    assert isinstance(legacy, tuple) and isinstance(legacy[0], tuple) and legacy[0][0].shape[2] == out.sequences.shape[1] - 1
    cache = DynamicCache.from_legacy_cache(legacy)
    more = MODEL.generate(out.sequences, past_key_values=cache, **GREEDY)
    assert torch.equal(more, without_cache(dict(input_ids=out.sequences)))


CHATS = {
    "dynamic": lambda: DynamicCache(),
    "dynamic with config": lambda: DynamicCache(MODEL.config),
    "offloaded": lambda: OffloadedCache(),
    "static": lambda: StaticCache(MODEL.config, max_cache_len=512),
    "sliding window": lambda: SlidingWindowCache(MODEL.config, window_length=512),
    "sink": lambda: SinkCache(512, 4, MODEL.config),
    "quanto": lambda: QuantoQuantizedCache(QuantizedCacheConfig(residual_length=512)),
    "hqq": lambda: HQQQuantizedCache(QuantizedCacheConfig(residual_length=512, axis_key=1, axis_value=1)),
}


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_iterative_chat_reuses_the_cache_turn_after_turn(name):
    """Ids are appended to ids: a template rendered anew from decoded text may not give the ids that the cache has seen."""
    past_key_values, ids = CHATS[name](), None
    for prompt in PROMPTS:
        ids = turn(ids, prompt)
        out = MODEL.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=past_key_values, **GREEDY)
        assert torch.equal(out, without_cache(dict(input_ids=ids)))
        ids = out
    assert past_key_values.get_seq_length() == ids.shape[1] - 1


def turn(ids, prompt):
    text = TOKENIZER.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
    new = encoded(text)["input_ids"]
    return new if ids is None else torch.cat([ids, new], dim=1)


def test_a_chat_that_outgrows_its_sink_cache_goes_on_as_if_it_had_been_fed_by_hand():
    """In 4.48 the guide cropped the inputs to get_max_length(); here they stay whole, and the cache lets go by itself."""
    past_key_values, by_hand = SinkCache(32, 4, MODEL.config), SinkCache(32, 4, MODEL.config)
    ids = None
    for prompt in PROMPTS:
        ids = turn(ids, prompt)
        out = MODEL.generate(ids, past_key_values=past_key_values, **GREEDY)
        step = ids[:, by_hand.get_seq_length() :]
        for _ in range(16):
            with torch.no_grad():
                step = MODEL(step, past_key_values=by_hand).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, step], dim=1)
        assert torch.equal(out, ids)
    assert past_key_values.get_max_length() == past_key_values.held_length() == 32 < past_key_values.get_seq_length()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: cache.fork()], ids=["deepcopy", "fork"])
@pytest.mark.parametrize("name", CHATS)
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_a_filled_prompt_is_reused_for_many_continuations(name, copied):
    opening = "You are a helpful assistant. "
    prompt_cache, prefix = CHATS[name](), encoded(opening)
    with torch.no_grad():
        prompt_cache = MODEL(**prefix, past_key_values=prompt_cache).past_key_values
    for prompt in ("Help me to write a blogpost about travelling.", "What is the capital of France?"):
        inputs = {key: torch.cat([prefix[key], value], dim=1) for key, value in encoded(prompt).items()}
        out = MODEL.generate(**inputs, past_key_values=copied(prompt_cache), **GREEDY)
        assert torch.equal(out, without_cache(inputs))
        assert prompt_cache.get_seq_length() == prefix["input_ids"].shape[1]
