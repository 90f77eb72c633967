"""A conversation keeps its cache: each turn feeds only what is new, and stop, undo, errors and limits leave it whole."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from tiny_chat import CHATML, IGNORES_SYSTEM, REFUSES_SYSTEM, STRIPS, make_model, make_tokenizer, tiny

import kvcache
from kvcache.chat.conversation import EXTENDABLE, Conversation, ConversationError, Turn, _continue, accepts_system, render, tokenize
from kvcache.chat.engine import Done, Prefill, Sampling, Token

GREEDY = Sampling(max_new_tokens=12)
WORDS = "The keeper counts the ships and remembers the code. "
SMALL = {
    "dynamic": {},
    "static": dict(max_cache_len=512),
    "sliding_window": dict(window_length=32),
    "sink": dict(window_length=32, num_sink_tokens=4),
    "quantized": dict(nbits=4, q_group_size=32, residual_length=8),
}
CACHES = [
    name
    for name, entry in kvcache.ENTRIES.items()
    if entry.why_not(tiny("llama").config) is None and entry.why_not_here() is None
]


def chat(loaded=None, cache_name="dynamic", parameters=None, **options):
    options.setdefault("sampling", GREEDY)
    return Conversation(loaded or tiny("llama"), cache_name, parameters or SMALL.get(cache_name, {}), **options)


def say(conversation, text, stop=None):
    """Send and take every event; returns Done."""
    return list(conversation.send(text, stop))[-1]


def count_fed(loaded):
    """Wrap the model's forward: a list that grows by the number of tokens of every forward."""
    fed = []
    loaded.model.register_forward_pre_hook(
        lambda module, inputs, keywords: fed.append(keywords["input_ids"].shape[1]), with_kwargs=True
    )
    return fed


def fresh_greedy(conversation, ids, count):
    """`count` greedy ids after `ids`, recomputed without any cache."""
    ids, start = list(ids), len(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(conversation.loaded.model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[start:]


def dictate(loaded, text):
    """Make the model say `text`, token by token; returns the hook."""
    planned = iter(tokenize(loaded, text))

    def speak(module, inputs, output):
        output.logits[..., next(planned)] = 1e4

    return loaded.model.register_forward_hook(speak)


def stopped_at(conversation, text, token=None, chunk_tokens=None):
    """Send, press Stop at a token's index or once that many prompt tokens are read; returns all events."""
    stop, events = threading.Event(), []
    for event in conversation.send(text, stop):
        events.append(event)
        if isinstance(event, Token) and event.index == token:
            stop.set()
        if isinstance(event, Prefill) and chunk_tokens is not None and event.done >= chunk_tokens:
            stop.set()
    return events


# ------------------------------------------------------------------------------------------------- what is fed again


def test_the_second_turn_of_a_500_token_chat_feeds_only_the_new_message():
    loaded = make_model()
    fed, conversation = count_fed(loaded), chat(loaded)
    say(conversation, WORDS * 40)
    before = len(conversation.ids)
    assert before > 500
    fed.clear()
    done = say(conversation, "And then?")
    new = tokenize(loaded, "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n")
    # The last sampled token of the first reply was not in the cache yet, so it goes first.
    assert fed == [1 + len(new)] + [1] * 11
    assert (done.stats.reused, done.stats.computed, done.stats.note) == (before - 1, 1 + len(new), "")


@pytest.mark.parametrize("name", CACHES)
def test_three_turns_feed_every_token_once(name):
    loaded = make_model()
    conversation = chat(loaded, name)
    fed = count_fed(loaded)
    for text in ("Hello there", "Tell me more", "Why?"):
        done = say(conversation, text)
        assert sum(fed) == len(conversation.ids) - 1 == done.snapshot.seen == conversation.cache.get_seq_length()
        assert conversation.ids[:-1] == conversation.cached_ids


@pytest.mark.parametrize("name", [name for name in CACHES if not kvcache.ENTRIES[name].lossy])
def test_a_lossless_cache_says_in_every_turn_what_a_run_without_a_cache_says(name):
    conversation = chat(cache_name=name)
    for text in ("Hello there", "Tell me more", "Why?"):
        say(conversation, text)
        turn = conversation._turns[-1]
        assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)


@pytest.mark.parametrize("name", CACHES)
def test_every_cache_says_over_two_turns_what_generate_says_on_it(name):
    conversation = chat(cache_name=name, prefill_chunk=16)
    cache = kvcache.create(name, conversation.loaded.model, **SMALL.get(name, {}))
    for text in ("Hello there, keeper of the ships", "Please remember that my name is Bram"):
        say(conversation, text)
        turn = conversation._turns[-1]
        theirs = conversation.loaded.model.generate(
            torch.tensor([turn.prompt_ids]),
            past_key_values=cache,
            prefill_chunk_size=16,
            max_new_tokens=12,
            do_sample=False,
        )
        assert list(turn.prompt_ids + turn.reply_ids) == theirs[0].tolist()


def test_the_ids_are_those_that_were_fed_and_picked_and_not_a_retokenised_text():
    conversation = chat(sampling=Sampling(temperature=1.0, seed=4, max_new_tokens=30))
    events = list(conversation.send("Hello"))
    picked = [event.id for event in events if isinstance(event, Token)]
    text = conversation.messages[-1]["content"]
    assert tokenize(conversation.loaded, text) != picked  # random ids are not how the tokenizer would cut this text
    assert conversation.ids[-len(picked) :] == picked and len(picked) == 30
    assert say(conversation, "And?").stats.reused == len(conversation._turns[0].prompt_ids) + 29


def test_messages_are_what_was_said_and_what_was_streamed():
    conversation = chat()
    events = list(conversation.send("Hello"))
    text = "".join(event.text for event in events if isinstance(event, (Token, Done)))
    assert conversation.messages == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": text}]
    assert conversation.stats == [events[-1].stats]


# ------------------------------------------------------------------------------------------------------------- stop


@pytest.mark.parametrize("name", CACHES)
def test_stop_keeps_the_partial_reply_and_the_chat_goes_on(name):
    conversation = chat(cache_name=name)
    events = stopped_at(conversation, "Hello there", token=4)
    assert events[-1].reason == "stopped" and events[-1].stats.generated == 5
    assert conversation.cache.get_seq_length() == len(conversation.ids) - 1
    assert conversation.messages[-1]["content"] == "".join(e.text for e in events if isinstance(e, Token))
    done = say(conversation, "Go on")
    assert done.stats.reused == len(conversation._turns[0].prompt_ids) + 4
    assert len(conversation.messages) == 4


def test_stop_while_the_prompt_is_read_takes_the_message_back():
    conversation = chat(prefill_chunk=16)
    say(conversation, "Hello there")
    messages, ids = conversation.messages, conversation.ids
    events = stopped_at(conversation, WORDS * 5, chunk_tokens=32)
    assert events[-1].reason == "stopped" and "the message was taken back" in events[-1].stats.note
    assert events[-1].stats.computed == 32
    assert (conversation.messages, conversation.ids) == (messages, ids)


@pytest.mark.parametrize("name", CACHES)
def test_after_a_stop_in_the_prompt_the_next_reply_is_that_of_a_conversation_that_never_heard_it(name):
    stopped, other = (chat(cache_name=name, prefill_chunk=16) for _ in range(2))
    for conversation in (stopped, other):
        say(conversation, "Hello there")
    stopped_at(stopped, WORDS * 5, chunk_tokens=32)
    say(stopped, "And then?")
    say(other, "And then?")
    if kvcache.ENTRIES[name].lossy:  # what is left depends on how the prompt was cut into forwards
        assert stopped.ids[: len(stopped._turns[-1].prompt_ids)] == other.ids[: len(other._turns[-1].prompt_ids)]
    else:
        assert stopped.ids == other.ids


def test_what_was_read_before_a_stop_is_not_read_again_when_the_message_is_sent_again():
    conversation = chat(prefill_chunk=16)
    stopped_at(conversation, WORDS * 5, chunk_tokens=32)
    assert say(conversation, WORDS * 5).stats.reused == 32


def test_breaking_off_the_iterator_counts_as_stop():
    conversation = chat()
    replies = conversation.send("Hello there")
    for event in replies:
        if isinstance(event, Token) and event.index == 3:
            break
    replies.close()
    assert len(conversation.messages) == 2
    assert len(conversation.ids) - 1 == conversation.cache.get_seq_length() == len(conversation.cached_ids)
    assert conversation.stats[0].generated == 4
    assert say(conversation, "Go on").stats.reused == len(conversation._turns[0].prompt_ids) + 3


def test_a_reply_that_nobody_reads_changes_nothing():
    conversation = chat()
    conversation.send("Hello there")
    assert conversation.messages == [] and conversation.cached_ids == []
    say(conversation, "Hello")


def test_a_reply_asked_for_before_the_conversation_went_on_is_refused():
    conversation = chat()
    late = conversation.send("Hello")
    say(conversation, "Me first")
    messages = conversation.messages
    with pytest.raises(ConversationError, match="has changed since"):
        next(late)
    assert conversation.messages == messages


def test_of_two_threads_that_ask_at_once_one_is_told_to_wait(monkeypatch):
    conversation, check = chat(), Conversation._check_idle
    replies = [conversation.send(text) for text in ("Hello", "Hello again")]
    monkeypatch.setattr(Conversation, "_check_idle", lambda self: (check(self), time.sleep(0.05)))
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(next, reply) for reply in replies]
    refusals = [error for future in asked if (error := future.exception())]
    assert len(refusals) == 1 and "still being written" in str(refusals[0])
    for reply in replies:
        reply.close()


def test_while_a_reply_is_written_nothing_else_may_begin_and_after_done_it_may():
    conversation = chat()
    reply, late = conversation.send("Hello"), conversation.send("Hello again")
    next(reply)
    for act in (lambda: conversation.send("Me too"), conversation.undo, conversation.clear, lambda: next(late)):
        with pytest.raises(ConversationError, match="still being written"):
            act()
    while not isinstance(next(reply), Done):
        pass
    assert conversation.undo() == "Hello"
    del reply
    assert conversation.messages == []


# ------------------------------------------------------------------------------------------- undo, regenerate, clear


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized"])
def test_undo_cuts_the_cache_back_at_the_next_reply(name):
    conversation = chat(cache_name=name, parameters=dict(nbits=4, residual_length=64) if name == "quantized" else None)
    say(conversation, "Hello there")
    first = conversation.ids
    say(conversation, "x")
    assert conversation.undo() == "x"
    assert conversation.ids == first and len(conversation.messages) == 2
    done = say(conversation, "Tell me more")
    assert done.stats.reused >= len(first) - 1 and done.stats.note == ""
    assert conversation.cache.get_seq_length() == len(conversation.ids) - 1


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_after_undo_a_lossless_cache_says_what_a_run_without_a_cache_says(name):
    conversation = chat(cache_name=name)
    for text in ("Hello there", WORDS):
        say(conversation, text)
    conversation.undo()
    say(conversation, "Tell me more")
    turn = conversation._turns[-1]
    assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)


@pytest.mark.parametrize("name", ["sliding_window", "sink"])
def test_a_window_that_can_not_go_back_is_recomputed_and_says_so(name):
    conversation, other = chat(cache_name=name), chat(cache_name=name)
    for text in ("Hello there", WORDS * 3):
        say(conversation, text)
    conversation.undo()
    done = say(conversation, "Tell me more")
    total = len(conversation._turns[-1].prompt_ids)
    assert done.stats.reused == 0 and done.stats.computed == total
    assert done.stats.note.startswith(f"recomputed all {total}: this cache can't go back from")
    assert conversation.cache.get_seq_length() == len(conversation.ids) - 1
    say(other, "Hello there")
    assert conversation.messages[:2] == other.messages


@pytest.mark.parametrize("name", ["sliding_window", "sink", "quantized"])
def test_a_cache_that_forgets_or_rounds_says_the_same_again_however_it_was_made_to_recompute(name):
    """On a conversation that is read again at once instead of turn by turn these caches hold something else, and go on otherwise."""
    conversation = chat(cache_name=name)
    for text in ("Hello there", WORDS * 3, "x", "Tell me more"):
        say(conversation, text)
    ids = conversation.ids
    list(conversation.regenerate())
    assert conversation.ids == ids
    say(conversation, conversation.undo())
    assert conversation.ids == ids
    conversation.release()
    list(conversation.regenerate())
    assert conversation.ids == ids
    elsewhere = conversation.with_cache("dynamic").with_cache(name, SMALL[name])
    list(elsewhere.regenerate())
    assert elsewhere.ids == ids


@pytest.mark.parametrize("name", ["sliding_window", "sink", "quantized"])
def test_what_is_read_again_is_cut_as_it_was(name):
    conversation = chat(make_model("llama"), cache_name=name, prefill_chunk=16)
    fed = count_fed(conversation.loaded)
    for text in ("Hello there", WORDS * 3):
        say(conversation, text)
    before = list(fed)
    fed.clear()
    conversation.release()
    list(conversation.regenerate())
    assert fed == before


def test_regenerate_says_the_same_again_when_greedy_and_feeds_one_token():
    conversation = chat()
    say(conversation, "Hello there")
    ids = conversation.ids
    done = list(conversation.regenerate())[-1]
    assert conversation.ids == ids and len(conversation.messages) == 2
    assert done.stats.computed == 1  # everything is cached, and a forward needs a token


def test_a_seed_that_was_typed_since_is_the_one_that_is_used():
    drawn = Sampling(temperature=1.5, seed=0, max_new_tokens=12)
    conversation, other = chat(sampling=drawn), chat(sampling=Sampling(temperature=1.5, seed=42, max_new_tokens=12))
    for each in (conversation, other):
        say(each, "Hello")
    conversation.sampling = other.sampling
    list(conversation.regenerate())
    assert conversation.messages == other.messages and conversation._turns[-1].seed == 42
    list(conversation.regenerate())
    assert conversation._turns[-1].seed == 43
    greedy = chat()
    say(greedy, "Hello")
    greedy.sampling = drawn
    list(greedy.regenerate())
    assert greedy._turns[-1].seed == 0


def test_regenerate_draws_anew_with_another_seed_each_time_and_the_same_settings():
    conversation = chat(sampling=Sampling(temperature=1.5, seed=4, max_new_tokens=12))
    replies = []
    say(conversation, "Hello there")
    for _ in range(3):
        replies.append(tuple(conversation.ids))
        list(conversation.regenerate())
    assert len(set(replies)) == 3
    assert conversation._turns[-1].seed == 7 and conversation.sampling.seed == 4


def test_a_regeneration_stopped_before_its_first_token_keeps_the_old_reply():
    conversation = chat()
    say(conversation, "Hello there")
    messages, stop = conversation.messages, threading.Event()
    stop.set()
    done = list(conversation.regenerate(stop))[-1]
    assert done.reason == "stopped" and conversation.messages == messages


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("how", ["at once", "freed between", "on another cache"])
def test_a_reply_that_goes_on_has_the_ids_of_one_that_was_never_cut(name, how):
    cut, whole = chat(cache_name=name, sampling=Sampling(max_new_tokens=5)), chat(cache_name=name, sampling=Sampling(max_new_tokens=15))
    for conversation in (cut, whole):
        conversation.sampling, wanted = Sampling(max_new_tokens=6), conversation.sampling
        say(conversation, WORDS)
        conversation.sampling = wanted
        say(conversation, "Tell me more")
    assert cut.turns[-1].reason == "length"
    if how == "freed between":
        cut.release()
    if how == "on another cache":
        cut = cut.with_cache("dynamic").with_cache(name, SMALL.get(name, {}))
        cut.sampling = Sampling(max_new_tokens=5)
    for _ in range(2):
        done = list(cut.extend())[-1]
    assert cut.ids == whole.ids and cut.messages == whole.messages and len(cut.turns) == 2
    assert done.stats.generated == 15 and cut.turns[-1].sampling.max_new_tokens == 15
    if how == "at once":
        assert done.stats.reused == whole.turns[-1].stats.reused and cut.cached_ids == whole.cached_ids
    cut.sampling = whole.sampling
    reused = {say(conversation, "Why?").stats.reused for conversation in (cut, whole)}
    assert reused == {len(whole.turns[1].prompt_ids) + 15 - 1} and cut.ids == whole.ids


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.2, seed=3), Sampling(temperature=0.9, top_k=20, repetition_penalty=1.3, seed=8), Sampling(repetition_penalty=1.3)])
def test_what_is_drawn_goes_on_as_it_would_have(sampling):
    cut, whole = (chat(sampling=replace(sampling, max_new_tokens=length)) for length in (7, 21))
    say(whole, "Hello there")
    say(cut, "Hello there")
    cut.sampling = replace(cut.sampling, temperature=0.3, seed=99)  # set for the next message: this reply goes on as it was begun
    for _ in range(2):
        list(cut.extend())
    assert cut.ids == whole.ids and cut.messages == whole.messages
    assert cut.turns[-1].seed == sampling.seed


@pytest.mark.parametrize("reply", ["caf\u00e9 na\u00efve \u2014 \u65e5\u672c", "I do.\nUse it."])
def test_the_text_of_a_reply_that_goes_on_is_that_of_its_ids(reply):
    loaded = make_model(tokenizer=make_tokenizer(None))
    conversation = chat(loaded, sampling=Sampling(max_new_tokens=1))
    hook = dictate(loaded, reply)
    say(conversation, "Hello")
    for _ in range(len(tokenize(loaded, reply)) - 1):
        list(conversation.extend())
    hook.remove()
    assert conversation.messages[-1]["content"] == reply


def test_what_was_finished_does_not_go_on_and_a_stop_leaves_it_as_it_was():
    for conversation in (chat(), Conversation.from_messages(tiny(), "dynamic", {}, [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}])):
        with pytest.raises(ConversationError, match="has not been cut"):
            conversation.extend()
    loaded = make_model()
    conversation = chat(loaded)
    hook = dictate(loaded, "Yes.<|im_end|>")
    say(conversation, "Hi")
    hook.remove()
    with pytest.raises(ConversationError, match="has not been cut"):
        conversation.extend()
    say(conversation, "And?")
    before, stop = conversation.turns, threading.Event()
    stop.set()
    done = list(conversation.extend(stop))[-1]
    assert done.reason == "stopped" and "stays as it was" in done.stats.note and conversation.turns == before
    assert list(conversation.extend())[-1].stats.note == "" and len(conversation.turns[-1].reply_ids) == 24
    full = chat(cache_name="static", parameters={"max_cache_len": 64}, sampling=Sampling(max_new_tokens=5))
    say(full, "Hello")
    full.sampling = Sampling(max_new_tokens=100)
    assert list(full.extend())[-1].reason == "capacity"
    with pytest.raises(ConversationError, match="has not been cut"):
        full.extend()


@pytest.mark.parametrize("name", CACHES)
def test_any_version_of_a_reply_can_be_gone_on_from(name):
    drawn = Sampling(temperature=1.5, seed=4, max_new_tokens=12)
    conversation = chat(cache_name=name, sampling=drawn)
    say(conversation, WORDS)
    say(conversation, "Hello there")
    for _ in range(2):
        list(conversation.regenerate())
    versions = conversation.turns[-1].versions
    assert [turn.seed for turn in versions] == [4, 5, 6] and conversation.turns[-1].version == 2 and conversation.turns[-1].alone == versions[2]
    conversation.show_version(0)
    other = chat(cache_name=name, sampling=drawn)
    for each, text in ((other, WORDS), (other, "Hello there"), (conversation, "Why?"), (other, "Why?")):
        done = say(each, text)
    assert conversation.ids == other.ids and len(set(versions)) == 3
    again = conversation.turns[-1].stats
    assert again.note == "" if again.reused else "recomputed all" in again.note
    assert again.reused >= len(versions[0].prompt_ids) or kvcache.ENTRIES[name].lossy or "recomputed all" in again.note
    assert done.stats.reused == len(other.turns[-2].prompt_ids) + 12 - 1


def test_versions_of_a_reply_stay_apart_and_the_same_one_is_no_other():
    conversation = chat()
    say(conversation, "Hello there")
    list(conversation.regenerate())
    assert conversation.turns[-1].versions == ()  # greedy: the same ids
    conversation.sampling = Sampling(temperature=1.5, seed=3, max_new_tokens=5)
    list(conversation.regenerate())
    list(conversation.extend())
    first, second = conversation.turns[-1].versions
    assert len(first.reply_ids) == 12 and len(second.reply_ids) == 10 and conversation.turns[-1].version == 1
    conversation.show_version(0)
    assert conversation.messages[-1]["content"] == first.reply and conversation.turns[-1].versions == (first, second)
    conversation.sampling = GREEDY
    list(conversation.regenerate())
    assert conversation.turns[-1].version == 0 and len(conversation.turns[-1].versions) == 2
    for wrong in (-1, 2):
        with pytest.raises(ConversationError, match=f"no version {wrong + 1} of the last reply: it has 2"):
            conversation.show_version(wrong)
    with pytest.raises(ConversationError, match="it has 0"):
        chat().show_version(0)


def test_undo_and_regenerate_of_an_empty_conversation_say_so():
    with pytest.raises(ConversationError, match="nothing to undo"):
        chat().undo()
    with pytest.raises(ConversationError, match="no reply to make again"):
        chat().regenerate()


@pytest.mark.parametrize("name", CACHES)
def test_clear_starts_over_on_an_empty_cache(name):
    conversation = chat(cache_name=name)
    first = [event.id for event in conversation.send("Hello there") if isinstance(event, Token)]
    say(conversation, WORDS)
    conversation.clear()
    assert conversation.messages == [] and conversation.ids == [] and conversation.stats == []
    done = say(conversation, "Hello there")
    assert conversation.ids[-len(first) :] == first and (done.stats.reused, done.stats.note) == (0, "")


def test_release_frees_the_cache_and_the_next_reply_says_that_it_recomputed():
    conversation = chat()
    say(conversation, "Hello there")
    conversation.release()
    assert kvcache.measure_memory(conversation.cache).total == 0
    done = say(conversation, "More")
    assert done.stats.reused == 0 and done.stats.note.endswith("the cache had been freed")
    assert len(conversation.messages) == 4


def test_another_cache_gets_the_true_ids_not_the_reply_tokenised_again():
    first = Conversation(tiny("llama"), "dynamic", sampling=GREEDY)
    list(first.send("Please remember the code 395."))
    other = first.with_cache("quantized", {"residual_length": 512})
    assert other.ids == first.ids and other.messages == first.messages
    done = list(other.send("and then"))[-1]
    assert done.stats.reused == 0 and "the cache is new" in done.stats.note
    list(first.send("and then"))
    assert other.ids == first.ids


@pytest.mark.parametrize("name", ["dynamic", "sink"])
def test_why_all_is_computed_again_is_still_said_after_a_stop(name):
    """The first try was taken back, and what it had computed is there."""
    first = chat()
    say(first, "Hello there, and good evening to all of you")
    other = Conversation.from_messages(tiny("llama"), name, SMALL.get(name), first.messages, sampling=GREEDY, prefill_chunk=8)
    stopped_at(other, "Tell me more", chunk_tokens=8)
    done = say(other, "Tell me more")
    total = done.stats.reused + done.stats.computed
    assert len(other.messages) == 4 and done.stats.note == f"recomputed {done.stats.computed} more of {total}: the cache is new" and done.stats.reused
    assert say(other, "Why?").stats.note == ""


def test_a_conversation_goes_on_from_messages_on_another_cache():
    first = chat()
    say(first, "Hello there")
    other = Conversation.from_messages(tiny("llama"), "sink", SMALL["sink"], first.messages, sampling=GREEDY)
    assert other.messages == first.messages and other.stats == [None]
    done = say(other, "Tell me more")
    assert done.stats.reused == 0 and done.stats.note == f"recomputed all {done.stats.computed}: the cache is new"
    assert len(other.messages) == 4 and say(other, "Why?").stats.reused > 0


def test_messages_that_do_not_alternate_are_refused():
    with pytest.raises(ConversationError, match="user, assistant"):
        Conversation.from_messages(tiny("llama"), "dynamic", {}, [{"role": "user", "content": "Hello"}])


def test_a_leading_system_message_becomes_the_system_prompt():
    messages = [{"role": "system", "content": "Be brief."}]
    assert Conversation.from_messages(tiny("llama"), "dynamic", {}, messages).system == "Be brief."


def test_sampling_may_change_between_turns_and_a_bad_value_is_refused_before_anything_changes():
    conversation = chat()
    say(conversation, "Hello")
    conversation.sampling = Sampling(temperature=0.8, max_new_tokens=3)
    assert say(conversation, "More").stats.generated == 3
    conversation.sampling = Sampling(top_p=7)
    with pytest.raises(ConversationError, match="top_p must be a number above 0 to 1, got 7"):
        conversation.send("Again")
    assert len(conversation.messages) == 4


# ------------------------------------------------------------------------------------------------------ limits, errors


@pytest.mark.parametrize("text", ["", "   ", "\n\t ", None])
def test_an_empty_message_is_refused(text):
    with pytest.raises(ConversationError, match="The message is empty"):
        chat().send(text)


def test_a_message_too_long_for_the_cache_is_refused_with_the_numbers():
    conversation = chat(cache_name="static", parameters=dict(max_cache_len=64))
    say(conversation, "Hello")
    messages, cached = conversation.messages, conversation.cached_ids
    with pytest.raises(ConversationError, match=r"of \d+ tokens the conversation has \d+, and this cache takes 64"):
        conversation.send(WORDS * 4)
    assert (conversation.messages, conversation.cached_ids) == (messages, cached)
    assert say(conversation, "Hi").reason in ("length", "capacity")


def test_a_message_too_long_for_the_context_is_refused_unless_the_cache_has_a_window():
    loaded = make_model(max_position_embeddings=64)
    with pytest.raises(ConversationError, match="the context of tiny-llama takes 64.*pick a cache with a window"):
        chat(loaded).send(WORDS * 6)
    assert say(chat(loaded, "sink"), WORDS * 6).reason == "length"


def test_a_megabyte_is_refused_by_its_characters_before_it_is_tokenised(monkeypatch):
    conversation = chat()
    monkeypatch.setattr("kvcache.chat.conversation.tokenize", lambda *arguments: pytest.fail("tokenised"))
    with pytest.raises(ConversationError, match="1,000,000 characters, at least .* tokens, and the context .* takes 2,048"):
        conversation.send("x" * 1_000_000)
    with pytest.raises(ConversationError, match="1,000,000 characters, and 400,000 is the most"):
        chat(cache_name="sink").send("x" * 1_000_000)


def test_a_system_prompt_is_refused_as_a_message_is():
    with pytest.raises(ConversationError, match="system prompt has 1,000,000 characters, and 400,000 is the most"):
        chat(cache_name="sink", system="x" * 1_000_000).send("Hi")
    conversation = chat()
    say(conversation, "Hi")
    conversation.system = "x" * 1_000_000
    for again in (lambda: conversation.send("Hi"), conversation.regenerate):
        with pytest.raises(ConversationError, match="system prompt has 1,000,000 characters, at least .* tokens"):
            again()


@pytest.mark.parametrize("options,text", [({}, "half \ud83d an emoji"), ({"system": "half \ud83d an emoji"}, "Hi")])
def test_half_a_character_is_refused_by_a_sentence_and_the_conversation_goes_on(options, text):
    conversation = chat(**options)
    with pytest.raises(ConversationError, match="half a character"):
        conversation.send(text)
    conversation.system = ""
    assert say(conversation, "Hi \U0001f600").reason == "length"


def test_a_full_cache_ends_the_reply_and_keeps_it():
    conversation = chat(cache_name="static", parameters=dict(max_cache_len=32), sampling=Sampling(max_new_tokens=100))
    done = say(conversation, "Hello")
    assert done.reason == "capacity" and conversation.cache.get_seq_length() == 32 == len(conversation.ids) - 1
    with pytest.raises(ConversationError, match="this cache takes 32"):
        conversation.send("More")
    assert conversation.undo() == "Hello" and say(conversation, "Hi").reason == "capacity"


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("forward", [1, 3], ids=["in the prompt", "in the reply"])
def test_an_error_in_a_forward_leaves_the_conversation_as_it_was(name, forward):
    loaded = make_model()
    conversation = chat(loaded, name)
    say(conversation, "Hello there")
    messages, ids, calls = conversation.messages, conversation.ids, []

    def fail(module, inputs):
        calls.append(1)
        if len(calls) == forward:
            raise RuntimeError("no such luck")

    hook = loaded.model.model.layers[1].register_forward_pre_hook(fail)  # layer 0 has been updated by then
    with pytest.raises(RuntimeError, match="no such luck"):
        say(conversation, "Tell me more")
    hook.remove()
    assert (conversation.messages, conversation.ids, conversation.cached_ids) == (messages, ids, [])
    done = say(conversation, "Tell me more")
    assert done.stats.note.endswith("the cache was rebuilt after an error") and done.stats.reused == 0
    assert conversation.cache.get_seq_length() == len(conversation.ids) - 1


def test_a_cache_that_someone_else_used_is_rebuilt():
    conversation = chat()
    say(conversation, "Hello there")
    conversation.cache.crop(5)
    done = say(conversation, "More")
    assert done.stats.reused == 0 and "not as this conversation had left it" in done.stats.note


def test_an_unknown_cache_a_bad_parameter_and_a_misfit_are_refused_at_once():
    for name, parameters in (("snik", {}), ("sink", dict(window_length=-3)), ("quantized", dict(nbits=5))):
        with pytest.raises(ValueError, match="snik|window_length|nbits"):
            Conversation(tiny("llama"), name, parameters)


# ------------------------------------------------------------------------------------------------------------ templates


def with_template(template, **changes):
    return make_model(tokenizer=make_tokenizer(template), **changes)


def test_a_system_prompt_is_a_system_message_where_the_template_takes_one():
    loaded = with_template(CHATML)
    assert accepts_system(loaded)
    assert render(loaded, [{"role": "user", "content": "Hi"}], "Be brief.").startswith("<|im_start|>system\nBe brief.")


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, IGNORES_SYSTEM], ids=["refuses", "ignores"])
def test_a_system_prompt_goes_into_the_first_message_where_the_template_does_not_take_it(template):
    loaded = with_template(template)
    assert not accepts_system(loaded)
    conversation = chat(loaded, system="Be brief.")
    say(conversation, "Hi")
    assert conversation._turns[0].prompt_text.startswith("<|im_start|>user\nBe brief.\n\nHi<|im_end|>")
    assert conversation.messages[0]["content"] == "Hi"
    assert say(conversation, "More").stats.reused > 0


@pytest.mark.parametrize("reply", ["  It is Paris. \n", "   ", "Paris", ""], ids=repr)
@pytest.mark.parametrize("template", [CHATML, STRIPS], ids=["keeps", "strips"])
def test_spaces_around_a_reply_stay_in_the_cache_whatever_the_template_does_to_them(template, reply):
    loaded = with_template(template)
    conversation, hook = chat(loaded, sampling=Sampling(max_new_tokens=50)), dictate(loaded, f"{reply}<|im_end|>")
    done = say(conversation, "Hello")
    assert done.reason == "eos" and conversation.messages[-1]["content"] == reply
    hook.remove()
    before = conversation.ids
    done = say(conversation, "More")
    assert done.stats.reused == len(before) - 1 and conversation.ids[: len(before)] == before


def test_a_reply_cut_in_the_middle_of_a_character_is_not_read_again():
    loaded = with_template(CHATML)
    size = len(tokenize(loaded, "fox 🦊")) - 1
    conversation, hook = chat(loaded, sampling=Sampling(max_new_tokens=size)), dictate(loaded, "fox 🦊")
    say(conversation, "Hello")
    hook.remove()
    assert conversation.messages[-1]["content"] == "fox "
    before = conversation.ids
    assert say(conversation, "More").stats.reused == len(before) - 1


def test_an_end_of_text_token_that_the_template_does_not_write_is_left_out():
    loaded = with_template(CHATML, eos_token_id=[0, 2])
    conversation, hook = chat(loaded), dictate(loaded, "Paris<|endoftext|>")
    assert say(conversation, "Hello").reason == "eos"
    hook.remove()
    before = conversation.ids
    assert say(conversation, "More").stats.reused == len(before) - 1
    assert 0 not in conversation._turns[-1].prompt_ids


@pytest.mark.parametrize("reply", [" It is Paris.\nUser:", " It is Paris.<|endoftext|>"], ids=["goes on", "ends"])
def test_a_model_without_a_template_gets_a_plain_dialogue_and_its_own_next_question_is_cut_off(reply):
    loaded = with_template(None, eos_token_id=0)
    conversation = chat(loaded, system="Be brief.", sampling=Sampling(max_new_tokens=60))
    hook = dictate(loaded, reply)
    done = say(conversation, "Hello")
    hook.remove()
    assert conversation._turns[0].prompt_text == "Be brief.\n\nUser: Hello\nAssistant:"
    assert done.reason == "eos" and conversation.messages[-1]["content"] == " It is Paris."
    before = len(conversation.ids)
    conversation.sampling = GREEDY
    assert say(conversation, "More").stats.reused == before - 1
    assert conversation._turns[1].prompt_text.endswith(" It is Paris.\nUser: More\nAssistant:")


def test_a_stop_text_of_several_tokens_is_read_anew_where_the_dialogue_does_not_go_on_like_it():
    asked = "User: hello\nAssistant:"
    turn = Turn("hello", " fine", asked, len(asked), (1, 2), (3, 4, 5), "\nUser:\n")  # its last token said more than ":"
    prompt = asked + " fine\nUser: how are you\nAssistant:"
    assert _continue(turn, prompt, {9}) is None
    assert _continue(turn, prompt, {5}) == ((1, 2, 3, 4), "\nUser: how are you\nAssistant:")


def test_a_reply_that_opened_with_more_than_the_template_repeats_is_not_read_again():
    # Qwen3 without thoughts opens a reply with an empty block of them, and leaves it out of the history.
    loaded = with_template(CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif"))
    assert render(loaded, [{"role": "user", "content": "Hi"}]).endswith("assistant\n<think>\n\n</think>\n\n")
    for name in ("dynamic", "sink"):
        conversation = chat(loaded, name)
        say(conversation, "Hello")
        before = conversation.ids
        assert say(conversation, "More").stats.reused == len(before) - 1


def test_a_template_that_rewrites_history_is_read_again_from_where_it_differs():
    # Like templates that drop the thoughts of earlier replies.
    shout = CHATML.replace("message['content']", "(message['content'] if loop.last else message['content'] | upper)")
    conversation = chat(with_template(shout))
    say(conversation, "hello there")
    done = say(conversation, "More")
    assert 0 < done.stats.reused < 10 and done.stats.note == ""
    turn = conversation._turns[-1]
    assert list(turn.prompt_ids) == tokenize(conversation.loaded, turn.prompt_text)
    assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)


def test_a_template_that_fails_is_an_error_in_words():
    loaded = with_template("{{ raise_exception('only on Sundays') }}")
    with pytest.raises(ConversationError, match="only on Sundays"):
        chat(loaded).send("Hello")


# ------------------------------------------------------------------------------------------------- other architectures


@pytest.mark.parametrize("kind", ["mistral", "qwen3", "gemma3"])
def test_other_architectures_say_over_three_turns_what_a_run_without_a_cache_says(kind):
    conversation = chat(tiny(kind))
    for text in ("Hello there", WORDS, "Why?"):
        done = say(conversation, text)
        turn = conversation._turns[-1]
        assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)
    assert done.stats.reused > 40


def test_a_recurrent_model_chats_feeding_only_what_is_new():
    loaded = tiny("mamba")
    conversation = chat(loaded, cache_name="mamba")
    for text in ("Hello there", "Why?"):
        done = say(conversation, text)
        turn = conversation._turns[-1]
        assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)
    assert done.stats.reused > 20 and done.snapshot.seen == len(conversation.ids) - 1
    conversation.undo()
    done = say(conversation, "More")
    assert done.stats.reused == 0 and "can't go back" in done.stats.note
    turn = conversation._turns[-1]
    assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)


def test_a_conversation_runs_on_a_cache_that_is_not_in_the_catalog():
    conversation = chat(make_cache=lambda: transformers.DynamicCache(config=tiny("llama").config))
    for text in ("Hello there", WORDS):
        say(conversation, text)
    conversation.undo()
    done = say(conversation, "Why?")  # transformers' own cache crops too
    assert done.stats.reused > 20 and done.stats.note == ""
    turn = conversation._turns[-1]
    assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, 12)


def test_two_conversations_on_one_model_may_take_turns_token_by_token():
    alone = [chat(), chat(cache_name="sink")]
    together = [chat(), chat(cache_name="sink")]
    for conversation in alone:
        say(conversation, "Hello there")
    replies = [conversation.send("Hello there") for conversation in together]
    for _ in range(20):
        for reply in replies:
            next(reply, None)
    assert [conversation.ids for conversation in together] == [conversation.ids for conversation in alone]


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("seed", range(2))
def test_whatever_one_does_in_whatever_order_the_cache_stays_the_ids(name, seed):
    draw, loaded = random.Random(seed), make_model()
    conversation = chat(loaded, name, sampling=Sampling(max_new_tokens=6), prefill_chunk=8)
    exact = not kvcache.ENTRIES[name].lossy
    broken = [False]
    loaded.model.model.layers[1].register_forward_pre_hook(lambda module, inputs: 1 / 0 if broken[0] else None)

    def reply(events_of):
        how, stop, last = draw.choice(["end", "end", "stop", "leave", "break"]), threading.Event(), draw.randrange(8)
        try:
            for count, _ in enumerate(events_of(stop)):
                if count == last and how == "stop":
                    stop.set()
                if count == last and how == "leave":
                    break
                broken[0] = count == last and how == "break"
        except ZeroDivisionError:
            return
        finally:
            broken[0] = False
        turn = conversation._turns[-1] if conversation._turns else None
        if exact and turn is not None and turn.reply_ids:
            assert list(turn.reply_ids) == fresh_greedy(conversation, turn.prompt_ids, len(turn.reply_ids))

    for _ in range(14):
        act = draw.choice(["send", "send", "send", "regenerate", "extend", "version", "undo", "release", "clear"])
        if act == "send":
            text = " ".join(draw.choices(WORDS.split(), k=draw.randint(1, 8)))
            reply(partial(conversation.send, text))
        elif act == "regenerate" and conversation.messages:
            reply(conversation.regenerate)
        elif act == "extend" and conversation.messages and conversation.turns[-1].reason in EXTENDABLE:
            reply(conversation.extend)
        elif act == "version" and conversation.messages and conversation.turns[-1].versions:
            conversation.show_version(draw.randrange(len(conversation.turns[-1].versions)))
        elif act == "undo" and conversation.messages:
            conversation.undo()
        elif act in ("release", "clear"):
            getattr(conversation, act)()
        assert conversation.cache.get_seq_length() == len(conversation.cached_ids)
        assert len(conversation.messages) == 2 * len(conversation.stats)
        assert all(message["role"] == ("user", "assistant")[n % 2] for n, message in enumerate(conversation.messages))
