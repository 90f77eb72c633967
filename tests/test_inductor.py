"""A decode step compiled by inductor, which builds C++ on a CPU, gives what it gives without; tests/operations.py tries the
same on every cache with the eager backend, which finds breaks in the graph and builds nothing."""

import shutil

import pytest
import torch
from architectures import logits_without_cache, model_of, token_ids

import kvcache
from kvcache.generate import cache_keyword

COMPILER = shutil.which("g++") or shutil.which("clang++")
# Name, model, parameters, and the graphs that six tokens come to: Mamba's first step is compiled once more.
CASES = [("static", "llama", {"max_cache_len": 32}, 1), ("mamba", "mamba", {}, 2)]


@pytest.mark.skipif(COMPILER is None, reason="inductor builds C++ on a CPU, and this machine has neither g++ nor clang++")
@pytest.mark.parametrize("name,architecture,parameters,count", CASES, ids=[case[0] for case in CASES])
def test_what_inductor_has_compiled_decodes_token_by_token(name, architecture, parameters, count):
    torch._dynamo.reset()
    model, ids = model_of(architecture), token_ids(1, 14)
    cache, keyword = kvcache.create(name, model, **parameters), cache_keyword(model)
    graphs = torch._dynamo.utils.counters["stats"]
    step = torch.compile(lambda piece: model(piece, **{keyword: cache}).logits, fullgraph=True, backend="inductor")
    with torch.no_grad():
        kvcache.feed(model, ids[:, :8], cache)
        before = graphs["unique_graphs"]
        ours = torch.cat([step(ids[:, i : i + 1]) for i in range(8, 14)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 8:], atol=2e-4, rtol=1e-4)
    assert graphs["unique_graphs"] - before == count and int(cache.get_seq_length()) == 14
