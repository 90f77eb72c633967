"""A decode step compiled by inductor, which builds C++ on a CPU, gives what it gives without; tests/test_operations.py and
tests/test_decode_step.py try the same with backends that find breaks in the graph and build nothing."""

import pytest
import torch
from architectures import logits_without_cache, model_of, token_ids
from tiny_chat import make_model

import kvcache
from kvcache.architecture import cache_argument
from kvcache.chat.conversation import Conversation
from kvcache.chat.decode_step import why_not_compiled
from kvcache.chat.engine import Compiling, Sampling

pytestmark = [pytest.mark.compiler, pytest.mark.slow]
# These build C++ and nothing else can stand in for that. What a machine without a compiler is told is tested in tests/test_decode_step.py.
MISSING = why_not_compiled()
needs_compiler = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
# Name, model, parameters, and the graphs that six tokens come to: Mamba's first step is compiled once more.
CASES = [("static", "llama", {"max_cache_len": 32}, 1), ("mamba", "mamba", {}, 2)]


@needs_compiler
@pytest.mark.parametrize("name,architecture,parameters,count", CASES, ids=[case[0] for case in CASES])
def test_what_inductor_has_compiled_decodes_token_by_token(name, architecture, parameters, count):
    torch._dynamo.reset()
    model, ids = model_of(architecture), token_ids(1, 14)
    cache, keyword = kvcache.create(name, model, **parameters), cache_argument(model)
    graphs = torch._dynamo.utils.counters["stats"]
    step = torch.compile(lambda piece: model(piece, **{keyword: cache}).logits, fullgraph=True, backend="inductor")
    with torch.no_grad():
        kvcache.feed(model, ids[:, :8], cache)
        before = graphs["unique_graphs"]
        ours = torch.cat([step(ids[:, i : i + 1]) for i in range(8, 14)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 8:], atol=2e-4, rtol=1e-4)
    assert graphs["unique_graphs"] - before == count and int(cache.get_seq_length()) == 14


@needs_compiler
def test_a_chat_on_a_compiled_static_cache_is_the_eager_one_over_turns_and_lengths():
    torch._dynamo.reset()
    loaded = make_model(num_hidden_layers=1)  # with grouped heads
    for length, compiles in ((256, True), (320, False), (256, False)):
        talks = [Conversation(loaded, "static", {"max_cache_len": length}, sampling=Sampling(max_new_tokens=12), decode=decode) for decode in ("eager", "compiled")]
        first = [list(talk.send("The keeper counts the ships.")) for talk in talks]
        assert isinstance(first[1][0], Compiling) == compiles and loaded.step.outcome(talks[1].cache).failure is None
        for talk in talks:
            list(talk.send("And then?")), list(talk.regenerate())
        assert talks[0].messages == talks[1].messages and talks[0].ids == talks[1].ids


@needs_compiler
@pytest.mark.parametrize("name", ("dynamic", "sink", "quantized"))
def test_a_chat_compiled_around_its_cache_is_the_eager_one(name):
    torch._dynamo.reset()
    loaded, small = make_model(num_hidden_layers=1), {"window_length": 32, "residual_length": 16}
    parameters = {key: value for key, value in small.items() if key in kvcache.ENTRIES[name].defaults()}
    talks = [Conversation(loaded, name, parameters, sampling=Sampling(max_new_tokens=12), decode=decode) for decode in ("eager", "compiled")]
    for talk in talks:
        list(talk.send("The keeper counts the ships.")), list(talk.send("And then?")), list(talk.regenerate())
    assert loaded.step.outcome(talks[1].cache).failure is None
    assert talks[0].messages == talks[1].messages and talks[0].ids == talks[1].ids


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_a_quantised_cache_stays_out_of_a_graph_that_the_user_compiles(backend):
    torch._dynamo.reset()
    model, ids, parameters = model_of("llama", layers=1), token_ids(1, 50), dict(residual_length=8, q_group_size=32, attention="fused")

    @torch.no_grad()
    def logits(forward):
        cache = kvcache.create("quantized", model, **parameters)
        return torch.cat([forward(piece, past_key_values=cache).logits for piece in (ids[:, :30], *ids[:, 30:42].split(1, dim=1), ids[:, 42:])], dim=1)

    torch.testing.assert_close(logits(torch.compile(model, backend=backend)), logits(model), atol=2e-4, rtol=1e-4)
