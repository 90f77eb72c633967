"""The token loop: equal to generate on the same cache, drawn from a seed, stopped at once, text never broken."""

import string
import threading
import time

import pytest
import tokenizers
import torch
import transformers
from tiny_chat import KINDS, make_model, some_ids, tiny

import kvcache
from kvcache.chat.engine import Detokenizer, Done, Prefill, Sampling, Token, forward, generate_tokens, prefill_chunks

# Small enough that every cache evicts or quantises within these prompts.
SMALL = {
    "dynamic": {},
    "static": dict(max_cache_len=256),
    "sliding_window": dict(window_length=24),
    "sink": dict(window_length=24, num_sink_tokens=4),
    "quantized": dict(nbits=4, q_group_size=32, residual_length=8),
}
CASES = [
    (kind, name)
    for kind in KINDS
    for name, entry in kvcache.ENTRIES.items()
    if entry.why_not(tiny(kind).config) is None and entry.why_not_here() is None
]


def run(loaded, cache, new_ids, seen_ids=(), stop=None, **options):
    sampling = options.pop("sampling", Sampling(max_new_tokens=24))
    return list(generate_tokens(loaded, cache, new_ids, seen_ids, sampling, stop, **options))


def tokens_of(events):
    return [event.id for event in events if isinstance(event, Token)]


def generate(loaded, cache, ids, chunk=None, **options):
    """What transformers' own generate makes of the same prompt on such a cache. Returns the new ids."""
    prompt = torch.tensor([ids])
    arguments = {} if cache is None or all(cache.is_linear) else {loaded.cache_argument: cache}
    settings = dict(max_new_tokens=24, do_sample=False, prefill_chunk_size=chunk) | options
    return loaded.model.generate(prompt, **arguments, **settings)[0, len(ids) :].tolist()


def test_every_kind_of_model_has_a_cache_to_test():
    assert {kind for kind, _ in CASES} == set(KINDS)


@pytest.mark.parametrize("kind, name", CASES)
def test_greedy_tokens_equal_those_of_generate_on_the_same_cache(kind, name):
    loaded, ids = tiny(kind), some_ids(60)
    chunk = 16 if loaded.continues_in_chunks else None
    ours = run(loaded, kvcache.create(name, loaded.model, **SMALL.get(name, {})), ids, prefill_chunk=chunk or 256)
    theirs = generate(loaded, kvcache.create(name, loaded.model, **SMALL.get(name, {})), ids, chunk)
    assert tokens_of(ours) == theirs


@pytest.mark.parametrize("kind, name", [case for case in CASES if case[0] != "mamba"])
def test_a_second_turn_on_the_same_cache_equals_generate_too(kind, name):
    loaded, first, second = tiny(kind), some_ids(40), some_ids(20, seed=1)
    cache, other = (kvcache.create(name, loaded.model, **SMALL.get(name, {})) for _ in range(2))
    reply = tokens_of(run(loaded, cache, first, prefill_chunk=16))
    seen = first + reply[:-1]
    ours = tokens_of(run(loaded, cache, reply[-1:] + second, seen, prefill_chunk=16))
    generate(loaded, other, first, 16)
    assert ours == generate(loaded, other, first + reply + second, 16)


def test_a_model_with_a_recurrent_state_continues_as_if_it_had_read_everything_at_once():
    loaded, ids = tiny("mamba"), some_ids(40)
    cache = transformers.DynamicCache(config=loaded.config)
    run(loaded, cache, ids[:30], sampling=Sampling(max_new_tokens=1))
    ours = tokens_of(run(loaded, cache, ids[30:], ids[:30]))
    assert ours == generate(loaded, None, ids)


def test_a_recurrent_cache_is_fed_one_token_at_a_time_once_it_is_filled():
    loaded = tiny("mamba")
    assert [len(chunk) for chunk in prefill_chunks(loaded, some_ids(600), 0, 256)] == [600]
    assert [len(chunk) for chunk in prefill_chunks(loaded, some_ids(3), 600, 256)] == [1, 1, 1]


@pytest.mark.parametrize(
    "settings",
    [
        dict(temperature=0.7),
        dict(temperature=1.0, top_k=5),
        dict(temperature=1.3, top_p=0.8, repetition_penalty=1.3),
        dict(temperature=1.0, min_p=0.1, top_k=20, top_p=0.9),
    ],
    ids=str,
)
def test_drawn_tokens_equal_those_of_generate_with_the_same_seed(settings):
    loaded, ids = tiny("llama"), some_ids(30)
    ours = run(loaded, transformers.DynamicCache(), ids, sampling=Sampling(seed=5, max_new_tokens=24, **settings))
    torch.manual_seed(5)
    theirs = generate(loaded, transformers.DynamicCache(), ids, do_sample=True, **(dict(top_k=0) | settings))
    assert tokens_of(ours) == theirs


def test_a_repetition_penalty_counts_the_tokens_the_cache_has_seen():
    loaded, ids = tiny("llama"), some_ids(40)
    sampling = Sampling(repetition_penalty=1.5, max_new_tokens=24)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        forward(loaded, cache, ids[:30])
    ours = tokens_of(run(loaded, cache, ids[30:], ids[:30], sampling=sampling))
    assert ours == generate(loaded, transformers.DynamicCache(), ids, repetition_penalty=1.5)


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others():
    loaded, ids = tiny("llama"), some_ids(30)

    def draw(seed):
        return tokens_of(run(loaded, transformers.DynamicCache(), ids, sampling=Sampling(1.0, seed=seed, max_new_tokens=16)))

    assert draw(1) == draw(1) != draw(2)


def test_the_last_picked_token_is_not_in_the_cache():
    loaded, cache = tiny("llama"), kvcache.DynamicCache()
    events = run(loaded, cache, some_ids(30), sampling=Sampling(max_new_tokens=5))
    assert cache.get_seq_length() == 34
    assert [event.snapshot.seen for event in events if isinstance(event, Token)] == [30, 31, 32, 33, 34]
    assert events[-1].snapshot.seen == 34 and events[-1].stats.generated == 5


def test_prefill_is_reported_chunk_by_chunk_with_what_was_reused():
    loaded, cache, ids = tiny("llama"), kvcache.DynamicCache(), some_ids(50)
    run(loaded, cache, ids[:10], sampling=Sampling(max_new_tokens=1))
    events = run(loaded, cache, ids[10:], ids[:10], prefill_chunk=16, sampling=Sampling(max_new_tokens=8))
    steps = [(event.done, event.total, event.reused) for event in events if isinstance(event, Prefill)]
    assert steps == [(16, 40, 10), (32, 40, 10), (40, 40, 10)]
    stats = events[-1].stats
    assert (stats.reused, stats.computed, stats.generated) == (10, 40, 8)
    assert stats.cache_nbytes == kvcache.measure_memory(cache).total > 0
    assert 0 < stats.time_to_first_token and stats.prefill_tokens_per_second > 0 and stats.decode_tokens_per_second > 0


def test_prefill_computes_logits_of_the_last_position_only():
    loaded, shapes = make_model(), []
    head = loaded.model.lm_head
    head.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[:2])))
    run(loaded, transformers.DynamicCache(), some_ids(40), prefill_chunk=16, sampling=Sampling(max_new_tokens=2))
    assert shapes == [(1, 1)] * 4


@pytest.mark.parametrize("as_list", [False, True], ids=["one id", "a list of ids"])
def test_any_end_of_text_id_ends_the_reply_and_belongs_to_it(as_list):
    ids = some_ids(30)
    reply = tokens_of(run(tiny("llama"), transformers.DynamicCache(), ids))
    last = next(index for index, token in enumerate(reply) if index >= 3 and token not in reply[:index])
    model = tiny("llama").model
    loaded = make_model(eos_token_id=[399, reply[last]] if as_list else reply[last])
    assert loaded.model.state_dict().keys() == model.state_dict().keys()
    events = run(loaded, transformers.DynamicCache(), ids)
    assert tokens_of(events) == reply[: last + 1]
    assert events[-1].reason == "eos"


def test_a_set_stop_ends_the_prefill_before_its_next_chunk():
    loaded, cache, stop = tiny("llama"), kvcache.DynamicCache(), threading.Event()
    events = []
    for event in generate_tokens(loaded, cache, some_ids(100), (), Sampling(), stop, prefill_chunk=16):
        events.append(event)
        if isinstance(event, Prefill) and event.done == 32:
            stop.set()
    assert [type(event) for event in events] == [Prefill, Prefill, Done]
    assert events[-1].reason == "stopped" and cache.get_seq_length() == 32
    assert events[-1].stats.computed == 32 and events[-1].stats.generated == 0


def test_a_set_stop_ends_the_reply_within_one_token():
    loaded, stop, seen = tiny("llama"), threading.Event(), []
    for event in generate_tokens(loaded, kvcache.DynamicCache(), some_ids(10), (), Sampling(max_new_tokens=50), stop):
        seen.append(event)
        if isinstance(event, Token) and event.index == 2:
            stop.set()
    assert len(tokens_of(seen)) == 3 and seen[-1].reason == "stopped"


def test_a_stop_that_was_set_beforehand_feeds_nothing():
    cache, stop = kvcache.DynamicCache(), threading.Event()
    stop.set()
    events = run(tiny("llama"), cache, some_ids(10), stop=stop)
    assert [event.reason for event in events] == ["stopped"] and cache.get_seq_length() == 0


def test_a_full_cache_ends_the_reply():
    loaded, cache = tiny("llama"), kvcache.create("static", tiny("llama").model, max_cache_len=40)
    events = run(loaded, cache, some_ids(30), sampling=Sampling(max_new_tokens=100))
    assert events[-1].reason == "capacity"
    assert cache.get_seq_length() == 40 and len(tokens_of(events)) == 11  # the last one is not fed


def test_a_full_context_ends_the_reply_unless_the_cache_stays_bounded():
    loaded, ids = make_model(max_position_embeddings=64), some_ids(60)
    events = run(loaded, kvcache.DynamicCache(), ids)
    assert events[-1].reason == "context" and len(tokens_of(events)) == 5
    sink = kvcache.create("sink", loaded.model, window_length=24)
    assert run(loaded, sink, ids)[-1].reason == "length"


def test_more_new_tokens_than_fit_are_refused_before_any_is_fed():
    cache = kvcache.create("static", tiny("llama").model, max_cache_len=32)
    with pytest.raises(ValueError, match="33 new tokens don't fit: the capacity leaves room for 32"):
        run(tiny("llama"), cache, some_ids(33))
    assert cache.get_seq_length() == 0
    with pytest.raises(ValueError, match="new_ids is empty"):
        run(tiny("llama"), cache, [])


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("temperature", "warm"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("seed", -1),
        ("max_new_tokens", 0),
        ("max_new_tokens", None),
    ],
)
def test_sampling_out_of_range_is_refused_by_name_and_value(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*got {value!r}"):
        Sampling(**{name: value}).check()


def test_sampling_from_a_form_comes_back_in_its_own_types():
    assert Sampling(temperature=1e-40).check().temperature == 0.0  # logits divided by it would be infinite
    checked = Sampling(temperature=1, top_p="0.9", top_k=5.0, max_new_tokens="7").check()
    assert checked == Sampling(temperature=1.0, top_p=0.9, top_k=5, max_new_tokens=7)
    assert isinstance(checked.top_k, int) and isinstance(checked.temperature, float)


TEXT = "The fox — «né à Zürich» — met 狐狸 🦊👩‍👩‍👧 and said: naïve café.\n\n  Twice."


def test_text_comes_in_whole_characters_and_adds_up():
    tokenizer = tiny("llama").tokenizer
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert len(ids) > len(TEXT)  # many characters take several tokens
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join(pieces) == TEXT and not any("\ufffd" in piece for piece in pieces)


def sentencepiece_like_tokenizer():
    """Letters and the space mark as tokens, bytes for everything else, a decoder that drops the first space."""
    vocabulary = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *string.ascii_letters, *".,:"]
    model = tokenizers.models.BPE({token: n for n, token in enumerate(vocabulary)}, [], byte_fallback=True, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def test_text_adds_up_for_tokenizers_that_mark_spaces_and_fall_back_to_bytes():
    tokenizer = sentencepiece_like_tokenizer()
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join(pieces) == TEXT and not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_at_the_end_is_left_out():
    tokenizer = tiny("llama").tokenizer
    ids = tokenizer("fox 🦊", add_special_tokens=False)["input_ids"][:-1]
    detokenizer = Detokenizer(tokenizer)
    assert "".join(map(detokenizer.add, ids)) + detokenizer.flush() == "fox "


def test_special_tokens_have_no_text():
    tokenizer = tiny("llama").tokenizer
    ids = tokenizer("a<|im_end|>b")["input_ids"]
    assert [piece for piece in map(Detokenizer(tokenizer).add, ids) if piece] == ["a", "b"]


@pytest.mark.parametrize(
    "text, shown, stopped",
    [("Paris.\nUser: and", "Paris.", True), ("Paris.\nUsually", "Paris.\nUsually", False), ("Paris.\nUse", "Paris.\nUse", False)],
)
def test_a_stop_text_is_swallowed_and_what_only_began_like_it_is_not(text, shown, stopped):
    tokenizer = tiny("llama").tokenizer
    detokenizer = Detokenizer(tokenizer, stop_text="\nUser:")
    pieces = [detokenizer.add(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) + detokenizer.flush() == shown and detokenizer.stopped is stopped


def test_time_the_caller_takes_is_not_counted():
    events = []
    for event in generate_tokens(tiny("llama"), kvcache.DynamicCache(), some_ids(5), (), Sampling(max_new_tokens=4)):
        events.append(event)
        time.sleep(0.1)
    assert events[-2].seconds < 0.4  # four pauses of 0.1 s lie before it


def test_a_static_cache_can_be_reset_and_used_again_outside_the_loop():
    loaded, cache = tiny("llama"), transformers.StaticCache(config=tiny("llama").config, max_cache_len=64)
    first = tokens_of(run(loaded, cache, some_ids(20)))
    cache.reset()
    assert tokens_of(run(loaded, cache, some_ids(20))) == first


def test_an_error_in_a_forward_comes_through_as_it_is():
    loaded = make_model()

    def fail(module, inputs):
        raise RuntimeError("no such luck")

    loaded.model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no such luck"):
        run(loaded, kvcache.DynamicCache(), some_ids(5))
    assert loaded.forward_lock.acquire(blocking=False)
