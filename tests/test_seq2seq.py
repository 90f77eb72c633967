"""Models with an encoder: it reads a text once, the decoder chats about it on a cache that lasts over the turns."""

import json
import shutil
import threading

import pytest
import torch
from tiny_chat import CHATML, IGNORES_SYSTEM, READERS, make_reader, make_tokenizer, reader, some_ids, tiny

import kvcache
from kvcache import catalog
from kvcache.chat import models
from kvcache.chat.conversation import Conversation, ConversationError, chats, source_ids_of, tokenize
from kvcache.chat.engine import Done, Prefill, Sampling, Token, forward, generate_tokens, hear
from kvcache.chat.models import ModelError, ModelStore
from kvcache.measure.drift import teacher_forced
from kvcache.memory import heard_by, take_snapshot

CLOSE = dict(atol=2e-4, rtol=1e-4)
GREEDY = Sampling(max_new_tokens=8)
TEXT = "The lighthouse keeper is called Bram and the code is 395. "
SELVES = {"dynamic": {}, "static": {"max_cache_len": 512}, "offloaded": {}, "quantized": {"residual_length": 512}}


def pair(loaded, own="dynamic"):
    return kvcache.create("encoder_decoder", loaded.model, self_cache=own, **SELVES[own])


def talk(loaded=None, own="dynamic", system=TEXT, **options):
    options.setdefault("sampling", GREEDY)
    return Conversation(loaded or reader(), "encoder_decoder", {"self_cache": own, **SELVES[own]}, system, **options)


def say(conversation, text, stop=None):
    return list(conversation.send(text, stop))[-1]


@torch.no_grad()
def exact(loaded, source, ids):
    """[T, V], one forward without a cache."""
    return loaded.model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def greedy(loaded, source, ids, count):
    """`count` greedy ids, each from a forward over everything."""
    ids, start = list(ids), len(ids)
    for _ in range(count):
        ids.append(int(exact(loaded, source, ids)[-1].argmax()))
    return ids[start:]


def check_replies(conversation):
    """The last reply is what a run without a cache says to its prompt, having read the same text."""
    turn = conversation._turns[-1]
    assert list(turn.reply_ids) == greedy(conversation.loaded, conversation.heard_ids, turn.prompt_ids, len(turn.reply_ids))


def count_encoded(loaded):
    """A list that grows by the number of tokens that the encoder reads, each time it reads."""
    read = []
    loaded.model.get_encoder().register_forward_pre_hook(lambda module, inputs, keywords: read.append(keywords["input_ids"].shape[1]), with_kwargs=True)
    return read


# ------------------------------------------------------------------------------------------------------- the token loop


@pytest.mark.parametrize("own", SELVES)
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_pieces_of_any_size_give_the_logits_of_one_forward_without_a_cache(kind, own):
    loaded, source, ids = reader(kind), some_ids(33, 1), some_ids(60)
    expected = exact(loaded, source, ids)
    assert (expected - exact(loaded, source[:9], ids)).abs().max() > 0.1  # the text matters
    for seed in range(3):
        cache, generator, at = pair(loaded, own), torch.Generator().manual_seed(seed), 0
        hear(loaded, cache, source)
        while at < len(ids):
            end = min(len(ids), at + int(torch.randint(1, 20, (), generator=generator)))
            torch.testing.assert_close(forward(loaded, cache, ids[at:end]), expected[end - 1], **CLOSE)
            at = end


def test_the_loop_reads_the_text_first_and_generates_what_generate_does():
    loaded, source, ids = reader(), some_ids(33, 1), [1, *some_ids(20)]
    cache = pair(loaded)
    events = list(generate_tokens(loaded, cache, ids, sampling=GREEDY, prefill_chunk=7, source_ids=source))
    prompt = dict(inputs=torch.tensor([source]), decoder_input_ids=torch.tensor([ids]))  # its own cache has as many layers as the encoder, and breaks
    theirs = loaded.model.generate(**prompt, past_key_values=pair(loaded), max_new_tokens=8, do_sample=False)
    assert [event.id for event in events if isinstance(event, Token)] == theirs[0, len(ids) :].tolist()
    assert [event.done for event in events if isinstance(event, Prefill)] == [7, 14, 21]
    assert heard_by(cache) == 33 and events[-1].stats.computed == 21 and events[-1].snapshot.held == events[-1].snapshot.seen == 28


def test_forks_go_their_own_ways_over_the_same_text():
    loaded, source, ids = reader(), some_ids(33, 1), some_ids(40)
    cache = pair(loaded)
    hear(loaded, cache, source)
    forward(loaded, cache, ids[:20])
    fork = cache.fork()
    other = [*ids[:20], *some_ids(20, 5)]
    torch.testing.assert_close(forward(loaded, fork, other[20:]), exact(loaded, source, other)[-1], **CLOSE)
    torch.testing.assert_close(forward(loaded, cache, ids[20:]), exact(loaded, source, ids)[-1], **CLOSE)


def test_a_saved_cache_goes_on_without_its_text(tmp_path):
    conversation = talk()
    say(conversation, "Hello there")
    conversation.cache.save(tmp_path / "it", token_ids=conversation.cached_ids)
    cache = kvcache.load_cache(tmp_path / "it", conversation.loaded.model)
    ids, more = cache.token_ids, some_ids(5)
    expected = exact(conversation.loaded, conversation.heard_ids, [*ids, *more])
    torch.testing.assert_close(forward(conversation.loaded, cache, more), expected[-1], **CLOSE)


def test_what_the_loop_cannot_do_right_is_refused():
    loaded = reader()
    with pytest.raises(ValueError, match="tiny-umt5 has an encoder and takes an EncoderDecoderCache, got DynamicCache"):
        list(generate_tokens(loaded, kvcache.DynamicCache(), [1, 5]))
    with pytest.raises(ValueError, match="the encoder has read nothing"):
        list(generate_tokens(loaded, pair(loaded), [1, 5]))
    with pytest.raises(ValueError, match="source_ids is empty"):
        hear(loaded, pair(loaded), [])
    cache = pair(loaded)
    hear(loaded, cache, [5, 6])
    with pytest.raises(ValueError, match="this cache has heard 2 tokens and seen 0"):
        hear(loaded, cache, [5, 6])


def test_teacher_forcing_reads_what_was_heard():
    loaded, source, ids = reader(), some_ids(33, 1), some_ids(30)
    tables = []
    for own in ("dynamic", "static"):
        cache = pair(loaded, own)
        hear(loaded, cache, source)
        tables.append(teacher_forced(loaded, cache, ids[:20], ids[20:]))
    torch.testing.assert_close(tables[0], exact(loaded, source, ids)[19:-1].log_softmax(-1), **CLOSE)
    torch.testing.assert_close(tables[0], tables[1], **CLOSE)


def test_a_snapshot_tells_the_two_sides_apart():
    loaded = reader()
    cache = pair(loaded)
    hear(loaded, cache, some_ids(33, 1))
    forward(loaded, cache, some_ids(5))
    snapshot = take_snapshot(cache)
    assert snapshot.cross == 3 and snapshot.held_by_layer == (5, 5, 5, 33, 33, 33) and snapshot.held == snapshot.seen == 5
    assert [layer.used for layer in snapshot.layers] == [2 * 4 * 16 * 4 * tokens for tokens in snapshot.held_by_layer]  # keys and values, heads, dim, bytes
    assert snapshot.total == kvcache.measure_memory(cache).total
    assert take_snapshot(kvcache.DynamicCache()).cross == 0


# ------------------------------------------------------------------------------------------------------ a conversation


@pytest.mark.parametrize("own", SELVES)
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_three_turns_read_the_text_once_and_say_what_a_run_without_a_cache_says(kind, own):
    loaded = make_reader(kind)
    read, conversation, fed = count_encoded(loaded), talk(loaded, own), 0
    for number, text in enumerate(("Hello there", "Tell me more", "Why?")):
        done = say(conversation, text)
        fed += done.stats.computed + done.stats.generated - 1
        assert fed == len(conversation.ids) - 1 == done.snapshot.seen and conversation.ids[:-1] == conversation.cached_ids
        assert done.stats.note == (f"the encoder read {len(conversation.heard_ids)} tokens" if number == 0 else "")
    assert read == [len(conversation.heard_ids)]
    check_replies(conversation)


def test_the_encoder_reads_the_system_message_and_the_decoder_the_rest():
    conversation = talk()
    say(conversation, "Hello")
    tokenizer = conversation.loaded.tokenizer
    assert tokenizer.decode(conversation.heard_ids) == f"<|im_start|>system\n{TEXT.strip()}<|im_end|>\n"
    assert tokenizer.decode(conversation._turns[0].prompt_ids) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_text_the_encoder_reads_what_a_chat_opens_with():
    conversation = talk(system=None)
    say(conversation, "Hello")
    assert conversation.heard_ids == [1]
    check_replies(conversation)


def test_a_text_that_the_template_would_drop_is_read_as_it_is():
    loaded = make_reader(tokenizer=make_tokenizer(IGNORES_SYSTEM))
    assert source_ids_of(loaded, "Hello", TEXT) == tokenize(loaded, TEXT)


def test_regenerate_and_undo_cut_the_decoders_side_alone():
    loaded = make_reader()
    read, conversation = count_encoded(loaded), talk(loaded)
    say(conversation, "Hello there")
    say(conversation, "Tell me more")
    before = conversation.messages
    done = list(conversation.regenerate())[-1]
    assert conversation.messages == before and done.stats.computed == 1
    conversation.undo()
    done = say(conversation, "Something else")
    assert done.stats.reused > 10 and done.stats.note == "" and len(read) == 1
    check_replies(conversation)


def test_a_cleared_freed_or_strange_cache_is_filled_from_the_text_again():
    loaded = make_reader()
    read, conversation = count_encoded(loaded), talk(loaded)
    say(conversation, "Hello there")
    conversation.clear()
    assert take_snapshot(conversation.cache).held_by_layer == (0,) * 6
    say(conversation, "Hello there")
    conversation.release()
    assert "the cache had been freed; the encoder read" in say(conversation, "More").stats.note
    conversation.cache.cross_attention_cache.reset()
    assert "not as this conversation had left it" in say(conversation, "More").stats.note
    assert len(read) == 4
    check_replies(conversation)


def test_another_text_is_read_and_everything_computed_again():
    conversation = talk()
    say(conversation, "Hello there")
    conversation.system = "A fox met a crow."
    done = say(conversation, "Why?")
    assert done.stats.reused == 0 and "the encoder has another text to read; the encoder read" in done.stats.note
    check_replies(conversation)


def test_the_same_conversation_goes_on_on_another_cache():
    conversation = talk()
    say(conversation, "Hello there")
    other = conversation.with_cache("encoder_decoder", {"self_cache": "static", "max_cache_len": 512})
    done = say(other, "Why?")
    assert other.ids[: len(conversation.ids)] == conversation.ids and done.stats.reused == 0
    check_replies(other)


@pytest.mark.parametrize("early", [True, False])
def test_stop_leaves_a_conversation_that_goes_on(early):
    conversation, stop = talk(), threading.Event()
    say(conversation, "Hello there")
    conversation.release()
    if early:
        stop.set()
    replying = conversation.send("Tell me more", stop)
    event = next(replying)
    stop.set()
    *_, event = event, *replying
    assert isinstance(event, Done) and event.reason == "stopped" and len(conversation.messages) == 2
    assert bool(heard_by(conversation.cache)) == (not early)
    say(conversation, "Why?")
    check_replies(conversation)


def test_a_text_beyond_the_models_length_is_refused_with_both_numbers():
    with pytest.raises(ConversationError, match=r"The text to read has \d+,?\d* tokens, and the encoder of tiny-bart takes 512: shorten it"):
        talk(reader("bart"), system=TEXT * 100).send("Hello")


# ---------------------------------------------------------------------------------- a model that answers, and no more


@pytest.fixture(scope="module")
def answerer():
    return make_reader(tokenizer=make_tokenizer(None), start=0)


def test_without_a_chat_template_each_message_is_read_by_itself(answerer):
    conversation = talk(answerer, system="Answer in French.")
    assert not chats(answerer) and chats(reader()) and chats(tiny())
    for text in ("Hello there", "Tell me more"):
        done = say(conversation, text)
        assert conversation.heard_ids == answerer.tokenizer(f"Answer in French.\n\n{text}")["input_ids"]
        assert conversation._turns[-1].prompt_ids == (0,) and done.stats.note == f"the encoder read {len(conversation.heard_ids)} tokens"
        check_replies(conversation)
    assert len(conversation.messages) == 4
    list(conversation.regenerate())
    check_replies(conversation)


def test_a_template_that_opens_otherwise_than_the_decoder_is_not_for_the_decoder():
    assert not chats(make_reader(start=0))


# ------------------------------------------------------------------------------------------------ catalog and loading


def test_only_a_pair_fits_a_model_with_an_encoder_and_a_pair_no_other():
    config = reader().config
    assert catalog.first_fitting(config) == "encoder_decoder" and catalog.first_fitting(tiny().config) == "dynamic"
    for name, entry in kvcache.ENTRIES.items():
        assert (entry.why_not_alone(config) is None) == (name == "encoder_decoder")
        assert entry.why_not_alone(tiny().config) == entry.why_not(tiny().config)
    assert "'encoder_decoder' takes this cache for its decoder's" in kvcache.ENTRIES["quantized"].why_not_alone(config)
    with pytest.raises(ValueError, match="dynamic: umt5 has an encoder"):
        Conversation(reader(), "dynamic")
    assert Conversation(reader()).cache_name == "encoder_decoder"


def test_the_decoders_cache_is_chosen_from_those_that_suit_the_decoder():
    entry = kvcache.ENTRIES["encoder_decoder"]
    reasons = entry.disabled_choices("self_cache", reader().config)
    assert {"sink", "sliding_window"} <= set(reasons) and not {"dynamic", "static", "quantized"} & set(reasons)
    assert set(entry.disabled_choices("nbits", reader().config, self_cache="quantized")) == {3, 1}


def test_a_decoder_of_more_layers_than_its_encoder_has_a_cache_for_each():
    loaded = reader()
    assert len(pair(loaded, "static").self_attention_cache.layers) == 3
    assert kvcache.predict_memory("encoder_decoder", loaded.model, 10, source_tokens=7).used == 3 * (10 + 7) * 2 * 4 * 16 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny-reader"
    reader().model.save_pretrained(path)
    reader().tokenizer.save_pretrained(path)
    return path


def test_a_folder_loads_and_says_the_same(folder):
    loaded = ModelStore().load(str(folder), device="cpu")
    assert loaded.is_encoder_decoder and loaded.decoder_start_id == 1 and loaded.eos_ids == {2}
    assert loaded.context_length is None and not loaded.rotary and chats(loaded) and loaded.tokenizer.chat_template == CHATML
    assert torch.equal(exact(loaded, [5, 6], [1, 7]), exact(reader(), [5, 6], [1, 7]))


def test_encoders_that_read_no_text_are_refused(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "model")
    config = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is a WhisperForConditionalGeneration, not a causal language model"):
        ModelStore().load(str(path), device="cpu")


def test_a_hub_encoder_decoder_is_on_the_list():
    assert any(choice.id == "google/flan-t5-small" for choice in models.CHOICES)
