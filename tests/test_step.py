"""Replies decoded by a compiled step are the eager ones; while it compiles that is said and not timed, and where it fails they go on eagerly.

Graphs are traced by dynamo and run as they are, which needs no compiler; tests/test_inductor.py builds one for real.
"""

import sysconfig
import threading
import time

import pytest
import torch
from tiny_chat import make_model, reader, some_ids

import kvcache
from kvcache import step
from kvcache.conversation import Conversation
from kvcache.engine import Compiling, Done, Sampling, Token, feed, generate_tokens
from kvcache.step import CompiledStep

WORDS = ("The keeper counts the ships.", "And then?", "Who remembers the code?")


class Backend:
    """Counts what is compiled, takes `seconds` for it and fails from its `fails`th graph on."""

    def __init__(self, seconds=0.0, fails=10**9):
        self.seconds, self.fails, self.count = seconds, fails, 0

    def __call__(self, graph, inputs):
        self.count += 1
        time.sleep(self.seconds)
        if self.count >= self.fails:
            raise OSError("no such\n compiler")
        return graph.forward


@pytest.fixture(autouse=True)
def a_machine_with_a_compiler(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(step, "why_not_compiled", lambda: None)
    monkeypatch.setattr("kvcache.caches.decode.why_not_compiled", lambda: None)


def model_with(backend, kind="llama", **changes):
    loaded = make_model(kind, **({"num_hidden_layers": 1} if kind == "llama" else {}), **changes)  # quicker to trace
    loaded.step = CompiledStep(loaded.model, backend)
    return loaded


def static(loaded, length=256, decode="compiled", name="static"):
    return kvcache.create(name, loaded.model, max_cache_len=length, decode=decode)


def run(loaded, cache, ids, seen=(), stop=None, tokens=12):
    return list(generate_tokens(loaded, cache, ids, seen, Sampling(max_new_tokens=tokens), stop))


def tokens_of(events):
    return [event.id for event in events if isinstance(event, Token)]


def chat(loaded, decode="compiled", length=512):
    return Conversation(loaded, "static", {"max_cache_len": length, "decode": decode}, sampling=Sampling(max_new_tokens=10))


def say(conversation, text):
    return list(conversation.send(text))[-1]


@pytest.mark.parametrize("kind, name", [("llama", "static"), ("gemma3", "static"), ("gemma3", "hybrid"), ("mistral", "hybrid")])
def test_compiled_tokens_are_the_eager_ones_for_two_lengths_and_past_the_window(kind, name):
    backend = Backend()
    loaded = model_with(backend, kind)
    for length in (128, 192):
        replies = [tokens_of(run(loaded, static(loaded, length, decode, name), some_ids(40), tokens=30)) for decode in step.DECODE]
        assert replies[0] == replies[1]
    assert backend.count == 1, "another length is another number in the same graph"


def test_single_tokens_take_the_graph_and_prompts_do_not(monkeypatch):
    loaded = model_with(Backend())
    cache, calls = static(loaded), []
    run(loaded, cache, some_ids(40), tokens=1)
    graph = loaded.step._static
    monkeypatch.setitem(vars(loaded.step), "_static", lambda **given: calls.append(given["input_ids"].shape) or graph(**given))
    run(loaded, cache, some_ids(9), some_ids(40), tokens=4)
    run(loaded, static(loaded, decode="eager"), some_ids(9), tokens=4)
    assert calls == [(1, 1)] * 3


def test_logits_of_grouped_heads_are_the_eager_ones():
    loaded = model_with(Backend(), num_attention_heads=4, num_key_value_heads=2)
    ours, eager = static(loaded), static(loaded, decode="eager")
    run(loaded, ours, some_ids(30), tokens=1), run(loaded, eager, some_ids(30), tokens=1)
    for token in some_ids(5, seed=1):
        torch.testing.assert_close(feed(loaded, ours, [token]), feed(loaded, eager, [token]), atol=2e-4, rtol=1e-4)
    assert loaded.model.config._attn_implementation == "sdpa", "others go on attending as they did"


def test_compiling_is_said_first_and_once_and_no_time_counts_it():
    backend = Backend(seconds=1.0)
    loaded = model_with(backend)
    first, again = run(loaded, static(loaded), some_ids(40)), run(loaded, static(loaded), some_ids(40))
    assert [type(event) for event in first].count(Compiling) == 1 and isinstance(first[0], Compiling)
    assert "compiling the decode step: about 10 seconds" in first[0].text
    assert not any(isinstance(event, Compiling) for event in again) and backend.count == 1
    stats = first[-1].stats
    assert "compiled the decode step in" in stats.note and again[-1].stats.note == ""
    assert first[-2].seconds < 1.0 and stats.time_to_first_token < 1.0
    assert stats.decode_tokens_per_second > 11, "11 steps in the second that compiling takes would be fewer"


def test_a_conversation_is_the_eager_one_over_turns_regenerated_undone_and_released():
    loaded = model_with(Backend())
    talks = [chat(loaded, decode) for decode in step.DECODE]
    for talk in talks:
        say(talk, WORDS[0]), say(talk, WORDS[1])
        list(talk.regenerate())
        talk.undo()
        reused = say(talk, WORDS[2]).stats.reused
        assert reused > 20
        talk.release()
        say(talk, WORDS[1])
        talk.clear()
        say(talk, WORDS[0])
    assert talks[0].messages == talks[1].messages and talks[0].ids == talks[1].ids


def test_a_fork_and_a_file_decode_compiled_too_and_leave_their_parent_alone(tmp_path):
    backend = Backend()
    loaded, ids = model_with(backend), some_ids(30)
    cache = static(loaded)
    reply = tokens_of(run(loaded, cache, ids, tokens=8))
    seen = ids + reply[:-1]
    cache.save(tmp_path / "cache", token_ids=seen)
    copies = [cache.fork(), kvcache.load(tmp_path / "cache", loaded.model), cache]
    replies = [tokens_of(run(loaded, copy, reply[-1:], seen, tokens=8)) for copy in copies]
    assert replies == [tokens_of(run(loaded, static(loaded, decode="eager"), ids, tokens=16))[8:]] * 3
    assert backend.count == 1


def test_a_file_opens_eagerly_where_nothing_can_be_compiled(tmp_path, monkeypatch):
    loaded = model_with(Backend())
    cache = static(loaded)
    run(loaded, cache, some_ids(30), tokens=1)
    cache.save(tmp_path / "cache")
    monkeypatch.setattr("kvcache.caches.decode.why_not_compiled", lambda: "no compiler")
    opened = kvcache.load(tmp_path / "cache", loaded.model)
    assert opened.parameters == {"max_cache_len": 256, "decode": "eager"} and opened.get_seq_length() == 30


def test_sessions_of_one_model_in_two_threads_and_a_second_model_get_their_own_replies():
    loaded, other = model_with(Backend()), model_with(Backend(), num_key_value_heads=4)
    expected = {model.model: tokens_of(run(model, static(model, decode="eager"), some_ids(30))) for model in (loaded, other)}
    found = []
    threads = [
        threading.Thread(target=lambda model=model: found.append((model.model, tokens_of(run(model, static(model), some_ids(30))))))
        for model in (loaded, loaded, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(reply == expected[model] for model, reply in found)


def test_stop_pressed_while_it_compiles_ends_the_reply_before_its_first_token():
    loaded, stop = model_with(Backend()), threading.Event()
    events = []
    for event in generate_tokens(loaded, static(loaded), some_ids(30), stop=stop):
        events.append(event)
        stop.set()
    assert [type(event) for event in events] == [Compiling, Done] and events[-1].reason == "stopped"
    stop.clear()
    assert len(tokens_of(run(loaded, static(loaded), some_ids(30), stop=stop))) == 12


def test_where_compiling_fails_replies_are_eager_and_say_why_and_it_is_not_tried_again():
    backend = Backend(fails=1)
    loaded = model_with(backend)
    cache = static(loaded)
    events = run(loaded, cache, some_ids(30))
    assert tokens_of(events) == tokens_of(run(loaded, static(loaded, decode="eager"), some_ids(30)))
    for reply in (events, run(loaded, static(loaded), some_ids(30))):
        assert reply[-1].stats.note == "decoded eagerly, because torch.compile failed: OSError: no such"
    assert backend.count == 1
    talk = chat(loaded, length=256)
    assert "decoded eagerly" in say(talk, WORDS[0]).stats.note


def test_a_graph_that_has_to_be_made_again_and_cannot_be_ends_no_reply():
    loaded = model_with(Backend(fails=2))
    expected, cache, found = tokens_of(run(loaded, static(loaded, decode="eager"), some_ids(30))), static(loaded), []
    for event in generate_tokens(loaded, cache, some_ids(30), (), Sampling(max_new_tokens=12)):
        found.append(event)
        if isinstance(event, Token) and event.index == 4:
            torch._dynamo.reset()  # as when something that the graph depends on has changed
    assert tokens_of(found) == expected and cache.get_seq_length() == 41
    assert "torch.compile failed: OSError" in found[-1].stats.note


def test_a_graph_with_other_logits_is_not_used():
    def wrong(graph, inputs):
        return lambda *given: [out * 2 if out.is_floating_point() else out for out in graph.forward(*given)]

    loaded = model_with(wrong)
    events = run(loaded, static(loaded), some_ids(30))
    assert events[-1].stats.note == "decoded eagerly, because torch.compile failed: its logits are off by 100%"
    assert tokens_of(events) == tokens_of(run(loaded, static(loaded, decode="eager"), some_ids(30)))


def test_a_machine_without_compiler_or_headers_says_which_and_greys_the_choice_out(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "g++-of-my-own")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no g++-of-my-own" in step.why_not_compiled()
    config = make_model().config
    for name in ("static", "hybrid"):
        assert set(kvcache.ENTRIES[name].disabled_choices("decode", config)) == {"compiled"}
        assert kvcache.ENTRIES[name].disabled_choices("max_cache_len", config) == {}
    with pytest.raises(ValueError, match="static: torch.compile builds C.., and this machine has no g..-of-my-own"):
        kvcache.create("static", config, decode="compiled")
    assert kvcache.create("static", config).parameters["decode"] == "eager"
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    assert "python3-dev" in step.why_not_compiled()


def test_generate_which_compiles_by_settings_of_its_own_says_so():
    model = make_model().model
    with pytest.raises(ValueError, match="model.generate compiles by its own compile_config="):
        kvcache.generate(model, torch.tensor([some_ids(4)]), cache_implementation="static", cache_config={"decode": "compiled"})


def test_a_pair_with_an_encoders_side_refuses_to_be_compiled_and_says_so():
    config, pair = reader().config, kvcache.catalog.entry("encoder_decoder")
    assert set(pair.disabled_choices("decode", config, self_cache="static")) == {"compiled"}
    assert pair.check(config, self_cache="static")["decode"] == "eager"
    with pytest.raises(ValueError, match="models without an encoder alone"):
        pair.check(config, self_cache="static", decode="compiled")
