"""A graph around its cache gives the eager logits with every cache, is made once for all of them, and lets their refusals through.

Graphs are traced by dynamo and run as they are, as in tests/test_decode_step.py; tests/test_inductor.py builds one for real.
"""

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, RECURRENT, chunks, model_of, token_ids
from test_decode_step import Backend, a_machine_with_a_compiler, chat, model_with, run, say, static, tokens_of  # noqa: F401 (the fixture is used by all)
from tiny_chat import make_model, some_ids

import kvcache
from kvcache.architecture import cache_argument
from kvcache.chat import split_graph
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Sampling, forward
from kvcache.chat.gemv import for_single_rows

SMALL = {"window_length": 16, "num_sink_tokens": 2, "residual_length": 16}
AROUND = [name for name, entry in kvcache.ENTRIES.items() if "compile" not in entry.can and not entry.for_states and not entry.parts]
SDPA = [name for name in ARCHITECTURES if name != "gemma2"]  # which caps its scores, and attends eagerly


def small(name):
    """Parameters under which `name` evicts or rounds within 60 tokens."""
    return {key: value for key, value in SMALL.items() if key in kvcache.ENTRIES[name].defaults()}


def test_the_caches_whose_shapes_change_as_they_fill_can_be_compiled_around():
    assert AROUND == ["dynamic", "offloaded", "sliding_window", "sink", "evicting", "quantized"]


@torch.no_grad()
@pytest.mark.parametrize("architecture", SDPA)
def test_logits_are_the_eager_ones_with_every_cache_over_chunks_and_single_tokens(architecture):
    model, ids, backend = model_of(architecture), token_ids(1, 60), Backend()
    keyword, forward = cache_argument(model), split_graph.forward_around(for_single_rows(model), backend)
    fitting = [name for name in AROUND if kvcache.ENTRIES[name].why_not(model.config) is None]
    assert "dynamic" in fitting
    for seed, name in enumerate(fitting):
        eager, ours = (kvcache.create(name, model, **small(name)) for _ in range(2))
        for start, stop in chunks(60, seed):
            piece = ids[:, start:stop]
            expected = model(piece, **{keyword: eager}).logits
            found = (forward if stop - start == 1 else model)(input_ids=piece, **{keyword: ours}).logits
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4, msg=lambda text, name=name, stop=stop: f"{name} at token {stop}: {text}")
        assert ours.get_seq_length() == eager.get_seq_length() == 60
    assert backend.count == 1, "neither a cache's kind nor its length is in the graph"


def test_models_with_states_or_chunks_cannot_be_compiled_around():
    for name in (*ARCHITECTURES, *RECURRENT):
        assert (split_graph.why_not_split(model_of(name).config) is None) == (name in ARCHITECTURES), name
    assert "chunked_attention" in split_graph.why_not_split(transformers.Llama4TextConfig(num_hidden_layers=4))


@pytest.mark.parametrize("name", AROUND)
def test_a_conversation_is_the_eager_one_over_turns_regenerated_undone_and_released(name):
    loaded, parameters = model_with(Backend()), small(name)
    talks = [Conversation(loaded, name, parameters, sampling=Sampling(max_new_tokens=10), decode=decode) for decode in ("eager", "compiled")]
    for talk in talks:
        say(talk, "The keeper counts the ships."), say(talk, "And then?")
        list(talk.regenerate())
        talk.undo()
        say(talk, "Who remembers the code?")
        talk.release()
        done = say(talk, "And then?")
        assert done.stats.note.count("compile") == 0
    assert talks[0].messages == talks[1].messages and talks[0].ids == talks[1].ids
    assert kvcache.measure_memory(talks[0].cache) == kvcache.measure_memory(talks[1].cache)


def test_caches_take_turns_on_one_graph_and_a_static_one_has_its_own():
    backend = Backend()
    loaded = model_with(backend)
    expected = tokens_of(run(loaded, kvcache.create("dynamic", loaded.model), some_ids(40), decode="eager"))
    for _ in range(2):
        for name in ("dynamic", "quantized"):
            cache = kvcache.create(name, loaded.model)
            assert tokens_of(run(loaded, cache, some_ids(40))) == expected
    assert backend.count == 1
    assert tokens_of(run(loaded, static(loaded), some_ids(40))) == expected and backend.count == 2


def test_a_fork_and_a_file_go_on_compiled(tmp_path):
    loaded, ids = model_with(Backend()), some_ids(30)
    cache = kvcache.create("sink", loaded.model, **small("sink"))
    reply = tokens_of(run(loaded, cache, ids, tokens=8))
    seen = ids + reply[:-1]
    cache.save(tmp_path / "cache", token_ids=seen)
    opened = kvcache.load_cache(tmp_path / "cache", loaded.model)
    replies = [tokens_of(run(loaded, copy, reply[-1:], seen, tokens=8)) for copy in (cache.fork(), opened, cache)]
    eager = kvcache.create("sink", loaded.model, **small("sink"))
    assert replies == [tokens_of(run(loaded, eager, ids, tokens=16, decode="eager"))[8:]] * 3


def test_a_torn_cache_is_refused_and_an_error_inside_an_update_comes_through(monkeypatch):
    loaded = model_with(Backend())
    cache = kvcache.create("dynamic", loaded.model)
    run(loaded, cache, some_ids(20), tokens=3)
    monkeypatch.setattr(cache.layers[0], "update", lambda *given: (_ for _ in ()).throw(MemoryError("no room")))
    with pytest.raises(MemoryError, match="no room"):
        forward(loaded, cache, [5], compiled=True)
    with pytest.raises(ValueError, match="a forward ended inside this DynamicCache, by MemoryError"):
        forward(loaded, cache, [5], compiled=True)


@pytest.mark.parametrize("given", [{"input_ids": token_ids(2, 1)}, {"input_ids": token_ids(1, 2)}, {"input_ids": token_ids(1, 1), "attention_mask": token_ids(1, 1)}])
def test_rows_chunks_and_masks_that_the_graph_would_not_see_are_refused(given):
    model, backend = model_of("llama"), Backend()
    forward, cache = split_graph.forward_around(for_single_rows(model), backend), kvcache.create("dynamic", model)
    with pytest.raises(ValueError, match="takes one token of one row, without a mask"):
        forward(**given, **{cache_argument(model): cache})
    assert backend.count == 0 and cache.get_seq_length() == 0


def test_a_model_that_attends_in_another_way_goes_on_eagerly_and_says_why():
    loaded = make_model(num_hidden_layers=1)
    loaded.model.config._attn_implementation = "eager"
    loaded.step.backend = Backend()
    events = run(loaded, kvcache.create("dynamic", loaded.model), some_ids(20))
    assert events[-1].stats.note == "decoded eagerly, because torch.compile failed: ValueError: the model attends by eager, and a step is compiled for sdpa"
    assert tokens_of(events) == tokens_of(run(loaded, kvcache.create("dynamic", loaded.model), some_ids(20), decode="eager"))


def test_a_graph_that_lost_the_positions_is_not_used(monkeypatch):
    """The trial's tokens differ, so that attention shows where they stand."""
    loaded = model_with(Backend())
    monkeypatch.setattr(split_graph.torch, "full", lambda shape, value, **given: torch.zeros(shape, dtype=torch.long))
    events = run(loaded, kvcache.create("dynamic", loaded.model), some_ids(20), tokens=4)
    assert "its logits are off by" in events[-1].stats.note
