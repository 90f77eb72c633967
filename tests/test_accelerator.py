"""Caches on the best device of this machine: with an accelerator these try real streams and pinned memory, without one they say the same of the CPU."""

import pytest
import torch
from architectures import chunks, logits_with_cache, logits_without_cache, model_of, token_ids

import kvcache

DEVICE = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
EXACT = {"dynamic": {}, "static": {"max_cache_len": 128}, "offloaded": {}, "offloaded_static": {"max_cache_len": 128}}
HOLDS = {"offloaded": "dynamic", "offloaded_static": "static"}  # what each gives the bits of
KEPT = {**EXACT, "quantized": {"residual_length": 16}, "sink": {"window_length": 64}, "sliding_window": {"window_length": 64}}
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*moves nothing")]


@pytest.fixture(scope="module")
def model():
    return model_of("llama", 5).to(DEVICE)


def ids_of(batch, tokens):
    return token_ids(batch, tokens).to(DEVICE)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("seed", [0, 1])
def test_logits_are_those_of_a_run_without_a_cache(model, name, seed):
    ids = ids_of(3, 100)
    ours = logits_with_cache(model, ids, kvcache.create(name, model, **EXACT[name]), chunks(100, seed))
    torch.testing.assert_close(ours, logits_without_cache(model, ids), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", HOLDS)
def test_what_waits_in_the_host_comes_back_to_the_bit(model, name):
    """Long enough that a copy which came too late would be seen: hundreds of steps, with beams and cropping between them."""

    def story(name):
        ids, cache = ids_of(4, 120), kvcache.create(name, model, **EXACT[name])
        said = [logits_with_cache(model, ids, cache, chunks(60, 2))]
        for turn in range(12):
            cache.reorder_cache(torch.tensor([(turn + row) % 4 for row in (3, 0, 0, 1)], device=DEVICE))
            said.append(logits_with_cache(model, ids[:, 60:80], cache, [(at, at + 1) for at in range(20)]))
            cache.crop(-15 if turn % 2 else -20)
        return torch.cat(said, dim=1)

    assert torch.equal(story(name), story(HOLDS[name]))


@pytest.mark.parametrize("name", KEPT)
def test_saved_and_forked_caches_go_on_alike(model, name, tmp_path):
    ids, cache = ids_of(2, 110), kvcache.create(name, model, **KEPT[name])
    logits_with_cache(model, ids, cache, [(0, 70)])
    cache.save(tmp_path / "cache.safetensors")
    others = kvcache.load_cache(tmp_path / "cache.safetensors", model), cache.fork()
    went_on = logits_with_cache(model, ids[:, 70:], cache, chunks(40, 3))
    for other in others:
        assert torch.equal(logits_with_cache(model, ids[:, 70:], other, chunks(40, 3)), went_on)


@pytest.mark.parametrize("nbits", [2, 4, 8])
def test_native_codes_are_those_of_the_cpu(nbits):
    keys, values = torch.randn(2, 1, 4, 320, 64, generator=torch.Generator().manual_seed(nbits))

    def decoded(device):
        cache = kvcache.QuantizedCache(nbits=nbits, residual_length=64)
        cache.update(keys.to(device), values.to(device), 0)
        return [rows.cpu() for rows in cache.update(keys[:, :, :1].to(device), values[:, :, :1].to(device), 0)]

    for here, there in zip(decoded(DEVICE), decoded("cpu"), strict=True):
        assert (here - there).norm() <= 1e-3 * there.norm()


@pytest.mark.parametrize("name", EXACT)
def test_generate_says_the_same(model, name):
    ids = ids_of(1, 40)
    options = dict(max_new_tokens=16, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(ids, past_key_values=kvcache.create(name, model, **EXACT[name]), **options), model.generate(ids, use_cache=False, **options))
