"""Replies decoded by a compiled step are the eager ones; while it compiles that is said and not timed, and where it fails they go on eagerly.

Graphs are traced by dynamo and run as they are, which needs no compiler; tests/test_inductor.py builds one for real.
"""

import functools
import gc
import subprocess
import sys
import sysconfig
import threading
import time
import weakref

import pytest
import torch
from tiny_chat import make_model, reader, some_ids

import kvcache
from kvcache.chat import compile_thread, decode_step, engine, gemv
from kvcache.chat.conversation import Conversation
from kvcache.chat.decode_step import CompiledStep
from kvcache.chat.engine import Compiling, Done, Sampling, Token, forward, generate_tokens
from kvcache.chat.gemv import SingleRow, for_single_rows, halved

BOTH = ("eager", "compiled")
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
    monkeypatch.setattr(decode_step, "why_not_compiled", lambda: None)


def model_with(backend, kind="llama", **changes):
    loaded = make_model(kind, **({"num_hidden_layers": 1} if kind == "llama" else {}), **changes)  # quicker to trace
    loaded.step = CompiledStep(loaded.model, backend)
    return loaded


def static(loaded, length=256, name="static"):
    return kvcache.create(name, loaded.model, max_cache_len=length)


def run(loaded, cache, ids, seen=(), stop=None, tokens=12, decode="compiled"):
    return list(generate_tokens(loaded, cache, ids, seen, Sampling(max_new_tokens=tokens), stop, decode=decode))


def tokens_of(events):
    return [event.id for event in events if isinstance(event, Token)]


def chat(loaded, decode="compiled", length=512):
    return Conversation(loaded, "static", {"max_cache_len": length}, sampling=Sampling(max_new_tokens=10), decode=decode)


def say(conversation, text):
    return list(conversation.send(text))[-1]


@pytest.mark.parametrize("kind, name", [("llama", "static"), ("gemma3", "static"), ("gemma3", "hybrid"), ("mistral", "hybrid")])
def test_compiled_tokens_are_the_eager_ones_for_two_lengths_and_past_the_window(kind, name):
    backend = Backend()
    loaded = model_with(backend, kind)
    for length in (128, 192):
        replies = [tokens_of(run(loaded, static(loaded, length, name), some_ids(40), tokens=30, decode=decode)) for decode in BOTH]
        assert replies[0] == replies[1]
    assert backend.count == 1, "another length is another number in the same graph"


def test_single_tokens_take_the_graph_and_prompts_do_not(monkeypatch):
    loaded = model_with(Backend())
    cache, calls = static(loaded), []
    run(loaded, cache, some_ids(40), tokens=1)
    graph = loaded.step._static
    monkeypatch.setitem(vars(loaded.step), "_static", lambda **given: calls.append(given["input_ids"].shape) or graph(**given))
    run(loaded, cache, some_ids(9), some_ids(40), tokens=4)
    run(loaded, static(loaded), some_ids(9), tokens=4, decode="eager")
    assert calls == [(1, 1)] * 3


def test_logits_of_grouped_heads_are_the_eager_ones():
    loaded = model_with(Backend(), num_attention_heads=4, num_key_value_heads=2)
    ours, eager = static(loaded), static(loaded)
    run(loaded, ours, some_ids(30), tokens=1), run(loaded, eager, some_ids(30), tokens=1)
    for token in some_ids(5, seed=1):
        torch.testing.assert_close(forward(loaded, ours, [token], compiled=True), forward(loaded, eager, [token]), atol=2e-4, rtol=1e-4)
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
    talks = [chat(loaded, decode) for decode in BOTH]
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
    copies = [cache.fork(), kvcache.load_cache(tmp_path / "cache", loaded.model), cache]
    replies = [tokens_of(run(loaded, copy, reply[-1:], seen, tokens=8)) for copy in copies]
    assert replies == [tokens_of(run(loaded, static(loaded), ids, tokens=16, decode="eager"))[8:]] * 3
    assert backend.count == 1


def test_a_file_of_the_time_when_decode_was_a_caches_opens(tmp_path):
    loaded = model_with(Backend())
    cache = static(loaded)
    run(loaded, cache, some_ids(30), tokens=1)
    cache.parameters = {**cache.parameters, "decode": "compiled"}
    cache.save(tmp_path / "cache")
    opened = kvcache.load_cache(tmp_path / "cache", loaded.model)
    assert opened.parameters == {"max_cache_len": 256} and opened.get_seq_length() == 30


def test_a_cache_takes_no_decode_and_says_where_it_is_chosen():
    for name in ("static", "dynamic", "quanto"):
        with pytest.raises(ValueError, match="where the model is run, by decode= of Conversation and generate_tokens"):
            kvcache.create(name, make_model().model, decode="compiled")
    with pytest.raises(ValueError, match="decode must be one of auto, eager, compiled, got 'fast'"):
        Conversation(make_model(), "dynamic", decode="fast")


def test_sessions_of_one_model_in_two_threads_and_a_second_model_get_their_own_replies():
    loaded, other = model_with(Backend()), model_with(Backend(), num_key_value_heads=4)
    expected = {model.model: tokens_of(run(model, static(model), some_ids(30), decode="eager")) for model in (loaded, other)}
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
    for event in generate_tokens(loaded, static(loaded), some_ids(30), stop=stop, decode="compiled"):
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
    assert tokens_of(events) == tokens_of(run(loaded, static(loaded), some_ids(30), decode="eager"))
    for reply in (events, run(loaded, static(loaded), some_ids(30))):
        assert reply[-1].stats.note == "decoded eagerly, because torch.compile failed: OSError: no such"
    assert backend.count == 1
    talk = chat(loaded, length=256)
    assert "decoded eagerly" in say(talk, WORDS[0]).stats.note


def test_a_graph_that_no_longer_fits_ends_no_reply_and_none_is_made_while_it_is_written():
    backend = Backend()
    loaded = model_with(backend)
    expected, cache, found = tokens_of(run(loaded, static(loaded), some_ids(30), decode="eager")), static(loaded), []
    for event in generate_tokens(loaded, cache, some_ids(30), (), Sampling(max_new_tokens=12), decode="compiled"):
        found.append(event)
        if isinstance(event, Token) and event.index == 4:
            torch._dynamo.reset()  # as when something that the graph depends on has changed
    assert tokens_of(found) == expected and cache.get_seq_length() == 41
    assert backend.count == 1 and loaded.step.outcome(cache) is None, "the next reply prepares it anew"


def test_a_graph_with_other_logits_is_not_used():
    def wrong(graph, inputs):
        return lambda *given: [out * 2 if out.is_floating_point() else out for out in graph.forward(*given)]

    loaded = model_with(wrong)
    events = run(loaded, static(loaded), some_ids(30))
    assert events[-1].stats.note == "decoded eagerly, because torch.compile failed: its logits are off by 100%"
    assert tokens_of(events) == tokens_of(run(loaded, static(loaded), some_ids(30), decode="eager"))


def test_a_machine_without_compiler_or_headers_says_which_and_decodes_eagerly(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "g++-of-my-own")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no g++-of-my-own" in decode_step.why_not_compiled()
    loaded, started = model_with(Backend()), []
    monkeypatch.setattr(compile_thread, "start", started.append)
    quiet, asked = (run(loaded, static(loaded), some_ids(9), tokens=4, decode=decode)[-1].stats.note for decode in ("auto", "compiled"))
    assert quiet == "" and not started and "decoded eagerly: torch.compile builds C++, and this machine has no g++-of-my-own" in asked
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    assert "python3-dev" in decode_step.why_not_compiled()


def test_an_encoder_and_a_cache_that_nobody_can_make_again_are_decoded_eagerly():
    assert "without an encoder" in CompiledStep(reader().model).why_not(kvcache.create("encoder_decoder", reader().model))
    loaded = model_with(Backend())
    assert "that the catalog made" in loaded.step.why_not(kvcache.DynamicCache(loaded.model.config))


# ------------------------------------------------------------------------------------------------------- a thread beside


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it took more than a minute"
        time.sleep(0.01)


def backends():
    """Of what can go wrong while other threads run eagerly, each traces more than the one before."""
    return ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(decode_step.why_not_compiled() is not None, reason="no C++ compiler"))]


@pytest.mark.parametrize("backend", backends())
def test_replies_beside_a_compiler_are_the_eager_ones_and_then_take_its_step(backend):
    loaded = model_with(backend)
    make = lambda: kvcache.create("quantized", loaded.model, residual_length=16)  # noqa: E731 (whose update asks whether it is compiled)
    expected, replies = tokens_of(run(loaded, make(), some_ids(40), decode="eager")), 0
    while loaded.step.outcome(make()) is None:
        events, replies = run(loaded, make(), some_ids(40), decode="auto"), replies + 1
        assert tokens_of(events) == expected and not any(isinstance(event, Compiling) for event in events)
        time.sleep(0.2 if replies > 3 else 0)  # the compiler has the lowest priority
    assert replies > 1 and loaded.step.outcome(make()).failure is None
    events = run(loaded, make(), some_ids(40), decode="auto")
    assert tokens_of(events) == expected and events[-1].stats.note == ""


def test_what_is_compiled_already_runs_on_while_another_model_is_compiled():
    ready, loaded = model_with(Backend()), model_with("aot_eager", num_key_value_heads=4)
    expected = tokens_of(run(ready, static(ready), some_ids(30)))  # compiled
    run(loaded, static(loaded), some_ids(30), decode="auto")
    while loaded.step.outcome(static(loaded)) is None:
        assert tokens_of(run(ready, static(ready), some_ids(30))) == expected
        assert ready.step.is_ready(static(ready)), "its graph was found"
        time.sleep(0.2)


def test_a_thread_that_does_not_compile_sees_neither_torchs_mark_nor_its_methods():
    seen, inside, go = [], threading.Event(), threading.Event()

    def backend(graph, inputs):
        seen.append((bool(torch.compiler.is_compiling()), torch.nn.Module.__call__))
        with torch.fx._symbolic_trace._new_patcher() as patcher:
            patcher.patch_method(torch.nn.Module, "__call__", lambda *given: 1 / 0, deduplicate=False)
            inside.set(), go.wait(60)
        return graph.forward

    loaded = model_with(backend)
    thread = threading.Thread(target=lambda: run(loaded, static(loaded), some_ids(9), tokens=2))
    thread.start()
    assert inside.wait(60) and not torch.compiler.is_compiling()
    torch.nn.Linear(2, 2)(torch.zeros(1, 2))
    go.set(), thread.join()
    assert seen[0][0] and loaded.step.is_ready(static(loaded))


def test_no_reply_waits_for_a_compiler_and_one_is_at_work_at_a_time():
    slow, other = model_with(Backend(seconds=2.0)), model_with(Backend())
    start = time.monotonic()
    for loaded in (slow, other, slow):
        run(loaded, static(loaded), some_ids(9), tokens=3, decode="auto")
    assert time.monotonic() - start < 2.0 and other.step.outcome(static(other)) is None
    until(lambda: slow.step.is_ready(static(slow)))
    assert slow.step.backend.count == 1


def test_a_compiler_that_fails_beside_is_said_and_not_asked_again():
    loaded = model_with(Backend(fails=1))
    expected = tokens_of(run(loaded, static(loaded), some_ids(30), decode="eager"))
    run(loaded, static(loaded), some_ids(30), decode="auto")
    until(lambda: loaded.step.outcome(static(loaded)))
    events = run(loaded, static(loaded), some_ids(30), decode="auto")
    assert "torch.compile failed: OSError" in events[-1].stats.note and tokens_of(events) == expected and loaded.step.backend.count == 1


def test_a_model_that_was_let_go_is_freed_once_its_compiler_is_done():
    loaded = model_with(Backend(seconds=0.5))
    run(loaded, static(loaded), some_ids(9), tokens=3, decode="auto")
    model, thread = weakref.ref(loaded.model), compile_thread._running
    del loaded
    thread.join()
    gc.collect()
    assert model() is None


def test_a_process_that_ends_while_it_compiles_ends_at_once_and_well():
    code = """
import torch, threading, time
from kvcache.chat import compile_thread
begun = threading.Event()
def backend(graph, inputs):
    begun.set()
    while True: time.sleep(0.01)
compile_thread.start(lambda: torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(3)))
begun.wait()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_thread_that_compiles_gives_way_often_and_python_is_as_before_when_it_ends():
    before, met = sys.getswitchinterval(), []

    def work():
        met.append(sys.getswitchinterval())
        raise SystemExit

    assert compile_thread.start(work)
    until(lambda: not compile_thread.is_busy())
    assert met == [pytest.approx(compile_thread.TURN_SECONDS)] and sys.getswitchinterval() == before


def test_rows_of_a_batch_share_a_compiled_step_of_any_size():
    """One graph for two rows and for five, of different kinds and lengths, with the eager logits."""
    backend = Backend()
    loaded = model_with(backend)
    engine.compile_batch(loaded)
    assert backend.count == 1 and loaded.step.outcome(kvcache.Batch(model=loaded.model)).failure is None

    def rows():
        made = [kvcache.create(name, loaded.model, **parameters) for name, parameters in (("dynamic", {}), ("quantized", {"nbits": 4, "residual_length": 16}), ("sink", {"window_length": 16}), ("static", {"max_cache_len": 90}), ("dynamic", {}))]
        for n, cache in enumerate(made):
            kvcache.feed(loaded.model, torch.tensor([some_ids(20 + 15 * n)]), cache)
        return made

    for count in (5, 2):
        ours, eager = (kvcache.Batch(rows()[:count], loaded.model) for _ in range(2))
        for _ in range(3):
            expected = kvcache.decode(loaded.model, eager, [7] * count)
            found = kvcache.decode(loaded.model, ours, [7] * count, forward=functools.partial(loaded.step, ours))
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    assert backend.count == 1


# -- linear layers row by row --------------------------------------------------------------------------------------

def rows_of(model):
    return [module for module in model.modules() if isinstance(module, SingleRow)]


def linears_of(model):
    return [module for module in model.modules() if type(module) is torch.nn.Linear]


@pytest.fixture
def model():
    """A Llama whose weights bfloat16 holds, as those that are published in it."""
    model = make_model(num_hidden_layers=2).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model


@torch.no_grad()
@pytest.mark.parametrize("tokens", (1, 7))
def test_its_logits_are_the_models_for_one_token_and_for_several(model, tokens):
    ids = torch.tensor([some_ids(tokens)])
    made = for_single_rows(model)
    assert len(rows_of(made)) == len(linears_of(model)) > 0 and not linears_of(made)
    torch.testing.assert_close(made(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)  # sums in another order


def test_it_shares_every_parameter_and_buffer_and_leaves_the_model_and_its_config_alone(model):
    before, config = [type(module) for module in model.modules()], model.config.to_dict()
    made = for_single_rows(model)
    made.config.get_text_config()._attn_implementation = "eager"
    assert [type(module) for module in model.modules()] == before and model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"
    ours = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    assert {id(parameter) for parameter in made.parameters()} <= ours


def test_a_16_bit_copy_holds_the_very_weights_and_is_made_once_for_tied_layers(model):
    model.lm_head.weight = model.model.embed_tokens.weight
    made = for_single_rows(model)
    for row in rows_of(made):
        assert row.rows.dtype == torch.bfloat16 and torch.equal(row.rows.float(), row.weight)
    twice = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    twice[1].weight = twice[0].weight
    first, second = rows_of(for_single_rows(twice))
    assert first.rows is second.rows


def test_weights_are_halved_to_the_type_that_holds_them_or_not_at_all():
    bfloat, half, full = torch.tensor([3e38]).bfloat16().float(), torch.tensor([1 + 2**-10]), torch.tensor([1 + 2**-20])
    assert [halved(weight).dtype for weight in (bfloat, half, full)] == [torch.bfloat16, torch.float16, torch.float32]
    assert halved(full) is full


def test_where_memory_is_short_it_reads_the_models_own_weights(model, monkeypatch):
    monkeypatch.setattr(gemv, "SHARE", 0.0)
    for row in rows_of(for_single_rows(model)):
        assert row.rows.data_ptr() == row.weight.data_ptr()


def test_layers_with_a_bias_keep_it_and_those_of_other_types_are_left():
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3).bfloat16())
    made = for_single_rows(model)
    assert isinstance(made[0], SingleRow) and type(made[1]) is torch.nn.Linear
    hidden = torch.randn(1, 1, 8)
    torch.testing.assert_close(made[0](hidden), model[0](hidden))
