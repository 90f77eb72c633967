"""No tensor of ours takes its dtype from torch's default, which a host program may set, and which a bfloat16 checkpoint sets while it loads.

The default device "meta" is left out: a model's own forward makes tensors there, so nothing can be computed while it is the default.
"""

import contextlib

import pytest
import torch
from architectures import model_of, token_ids

import kvcache
from kvcache import catalog, quantize
from kvcache.kernels import cpu
from kvcache.kernels.threads import Loops

FOREIGN = (torch.bfloat16, torch.float16, torch.float64)
PARAMETERS = {
    "static": dict(max_cache_len=128), "offloaded_static": dict(max_cache_len=128), "sink": dict(window_length=24), "sliding_window": dict(window_length=24),
    "quantized": dict(residual_length=0, q_group_size=32, attention="fused"), "quanto": dict(residual_length=0, q_group_size=32), "hqq": dict(residual_length=0, q_group_size=32),
}  # fmt: skip


@contextlib.contextmanager
def default(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def architecture_for(name):
    return {"mamba": "mamba", "hybrid_mamba": "bamba", "hybrid": "mistral"}.get(name, "llama")


@torch.no_grad()
def life(name, dtypes):
    """All logits of a cache that is made, filled, forked, cropped and decoded on under one default dtype after the other."""
    model, ids, turns = model_of(architecture_for(name)), token_ids(1, 100), iter(dtypes)
    with default(next(turns)):
        cache = kvcache.create(name, model, **PARAMETERS.get(name, {}))
    found = []
    for piece in (ids[:, :80], ids[:, 80:81], ids[:, 81:90], ids[:, 90:91]):
        with default(next(turns)):
            found.append(kvcache.feed(model, piece, cache))
            cache = cache.fork()
    with default(next(turns)):
        if cache.is_croppable:
            cache.crop(-3)
        found.append(kvcache.feed(model, ids[:, 91:92], cache))
        kvcache.measure_memory(cache), cache.token_fates(), kvcache.predict_memory(name, model, 50, **PARAMETERS.get(name, {}))
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("name", [name for name in (*catalog.ENTRIES, *catalog.OTHERS) if name != "encoder_decoder"])
def test_every_cache_gives_the_same_logits_under_any_default_dtype(name):
    expected = life(name, [torch.float32] * 6)
    for dtypes in (*([dtype] * 6 for dtype in FOREIGN), (torch.float64, torch.bfloat16, torch.float32) * 2):
        # the models' own rotary embeddings and masks are computed under the default, so bit for bit is not to be had
        torch.testing.assert_close(life(name, dtypes), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("dtype", FOREIGN)
@pytest.mark.parametrize("find", [cpu._find_packed, cpu._find_plain, cpu._find_encode], ids=lambda find: find.__name__)
def test_a_self_test_of_loops_passes_under_any_default_dtype(find, dtype):
    with default(dtype):
        loops = Loops("tried again", find)
        loops._compile()
    assert loops.reason is None


@pytest.mark.parametrize("dtype", FOREIGN)
def test_codes_and_gains_have_the_same_bits_under_any_default_dtype(dtype):
    scheme, states = quantize.Scheme(4, "channel", 32, quantize.native), torch.randn(1, 2, 64, 16, generator=torch.Generator().manual_seed(0))
    assert cpu.ENCODE.ready(wait=True), cpu.ENCODE.reason
    expected = scheme.encode(states, 32)
    with default(dtype):
        found = cpu.encode(scheme, states, 32)
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert all(torch.equal(*pair) for pair in zip(found, expected))


@pytest.mark.parametrize("dtype", FOREIGN)
def test_a_mask_of_booleans_is_read_alike_under_any_default_dtype(dtype):
    mask = torch.tensor([[[[True, False, True]]]])
    with default(dtype):
        assert cpu.bias(mask, 1).tolist() == [[0.0, torch.finfo(torch.float32).min, 0.0]]
