"""A forward that dies half-way, by an interruption or for want of memory: what it left is never gone on from as if nothing had happened."""

import copy
import sys
from pathlib import Path

import pairs
import pytest
import torch
from architectures import logits_without_cache, model_of, token_ids

import kvcache
from kvcache.architecture import cache_argument

CODE = str(Path(kvcache.__file__).parent)
CLOSE = dict(atol=5e-4, rtol=5e-4)
ROUNDED = dict(atol=0.05, rtol=0.05)
PARAMETERS = {"static": {"max_cache_len": 64}, "hybrid": {"max_cache_len": 64}, "quantized": {"nbits": 8, "residual_length": 16, "q_group_size": 32}, "sliding_window": {"window_length": 64}, "sink": {"window_length": 64}}
TAKES_BACK = ["dynamic", "static", "offloaded", "quantized", "sliding_window", "sink", "hybrid"]
RECURRENT = ["mamba", "mamba2", "jamba", "falcon_h1", "zamba", "qwen3_next", "lfm2"]


def cache_of(architecture, model, name="dynamic"):
    return kvcache.create("mamba" if architecture in ("mamba", "mamba2") else name, model, **PARAMETERS.get(name, {}))


def forward(model, ids, cache):
    """As a caller does without `feed`."""
    with torch.no_grad():
        return model(ids, use_cache=True, **{cache_argument(model): cache}).logits


def raising(error):
    def stop(*_):
        raise error

    return stop


def die(model, ids, cache, error=KeyboardInterrupt, place="the last layer", by=forward):
    """Lose a forward when the first layer has taken the tokens and the last has not, or when all have."""
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == model.config.num_hidden_layers)
    handle = {"the last layer": layers[-1], "the head": model.get_output_embeddings()}[place].register_forward_pre_hook(raising(error))
    try:
        with pytest.raises(error):
            by(model, ids, cache)
    finally:
        handle.remove()


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("name", TAKES_BACK)
def test_what_a_dead_forward_left_is_refused_and_taken_back(name, error, tmp_path):
    model, ids = model_of("gemma2" if name == "hybrid" else "llama"), token_ids(2, 20)
    cache = kvcache.create(name, model, **PARAMETERS.get(name, {}))
    forward(model, ids[:, :9], cache)
    die(model, ids[:, 9:15], cache, error)
    for tokens in (6, 1):
        with pytest.raises(ValueError, match=r"half-way .* seen 15 tokens and the last 9; crop\(9\)"):
            forward(model, ids[:, 9:9 + tokens], cache)
    with pytest.raises(ValueError, match="half-way"):
        cache.save(tmp_path / "cache")
    cache.crop(9)
    torch.testing.assert_close(forward(model, ids[:, 9:], cache), logits_without_cache(model, ids)[:, 9:], **ROUNDED if name == "quantized" else CLOSE)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "mistral", *RECURRENT])
def test_the_first_forward_too(architecture):
    """The layers behind the one where it died have seen nothing, which no model's own layers look like."""
    model, ids = model_of(architecture), token_ids(1, 12)
    cache = cache_of(architecture, model)
    die(model, ids, cache)
    with pytest.raises(ValueError, match=r"seen 12 tokens and the last 0; reset\(\)"):
        forward(model, ids, cache)
    cache.reset()
    torch.testing.assert_close(forward(model, ids, cache), logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("architecture", ["mamba", "mamba2", "jamba", "falcon_h1", "zamba", "qwen3_next"])
def test_a_state_that_went_ahead_of_the_others_cannot_come_back(architecture):
    model, ids = model_of(architecture), token_ids(1, 12)
    cache = cache_of(architecture, model, "hybrid_mamba")
    forward(model, ids[:, :8], cache)
    die(model, ids[:, 8:9], cache)
    with pytest.raises(ValueError, match=r"seen 9 tokens and the last 8; reset\(\)"):
        forward(model, ids[:, 8:9], cache)
    cache.reset()
    torch.testing.assert_close(forward(model, ids, cache), logits_without_cache(model, ids), **CLOSE)


def test_a_state_that_went_ahead_of_the_attention_beside_it_is_noticed(tmp_path):
    """Falcon-H1 scans before it attends, in one layer, and only attention counts for the model."""
    model, ids = model_of("falcon_h1"), token_ids(1, 12)
    cache = kvcache.create("dynamic", model)
    forward(model, ids[:, :8], cache)
    handle = model.model.layers[0].self_attn.register_forward_pre_hook(raising(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        forward(model, ids[:, 8:9], cache)
    handle.remove()
    for go_on in (lambda: forward(model, ids[:, 8:9], cache), lambda: cache.save(tmp_path / "cache"), lambda: kvcache.feed(model, ids[:, 8:9], cache)):
        with pytest.raises(ValueError, match="state has taken 9 tokens and the attention beside it 8"):
            go_on()


def test_an_evicted_token_is_not_promised_back():
    model, ids = model_of("llama"), token_ids(1, 80)
    cache = kvcache.create("sliding_window", model, window_length=16)
    forward(model, ids[:, :60], cache)
    die(model, ids[:, 60:], cache)
    with pytest.raises(ValueError, match=r"seen 80 tokens and the last 60; reset\(\)"):
        forward(model, ids[:, 60:], cache)


@pytest.mark.parametrize("place", ["the last layer", "the head"])
@pytest.mark.parametrize("name", TAKES_BACK)
def test_feed_takes_everything_or_nothing(name, place):
    model, ids = model_of("gemma2" if name == "hybrid" else "llama"), token_ids(2, 20)
    cache, exact = kvcache.create(name, model, **PARAMETERS.get(name, {})), logits_without_cache(model, ids)
    for start, stop in ((0, 9), (9, 15), (15, 16)):
        die(model, ids[:, start:stop], cache, torch.OutOfMemoryError, place, by=kvcache.feed)
        assert cache.get_seq_length() == start
        torch.testing.assert_close(kvcache.feed(model, ids[:, start:stop], cache), exact[:, start:stop], **ROUNDED if name == "quantized" else CLOSE)


@pytest.mark.parametrize("place", ["the last layer", "the head"])
@pytest.mark.parametrize("architecture", RECURRENT)
def test_what_cannot_go_back_refuses_to_go_on(architecture, place):
    model, ids = model_of(architecture), token_ids(1, 12)
    cache = cache_of(architecture, model)
    die(model, ids[:, :8], cache, place=place, by=kvcache.feed)
    kvcache.feed(model, ids[:, :8], cache)  # where nothing had been seen, nothing is
    die(model, ids[:, 8:], cache, place=place, by=kvcache.feed)
    with pytest.raises(ValueError, match=r"(half-way on|ended inside) this .*Cache, by KeyboardInterrupt: reset\(\)"):
        kvcache.feed(model, ids[:, 8:], cache)
    cache.reset()
    torch.testing.assert_close(kvcache.feed(model, ids, cache), logits_without_cache(model, ids), **CLOSE)


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_an_encoder_decoder_takes_everything_or_nothing(architecture):
    model, ids, read = pairs.model_of(architecture), token_ids(1, 10), token_ids(1, 7, seed=5)
    heard = {"encoder_outputs": model.get_encoder()(read)}
    cache, apart = (kvcache.create("encoder_decoder", model) for _ in range(2))
    exact = kvcache.feed(model, ids, apart, **heard)
    for start, stop in ((0, 6), (6, 10)):
        die(model, ids[:, start:stop], cache, place="the head", by=lambda model, ids, cache: kvcache.feed(model, ids, cache, **heard))
        assert cache.get_seq_length() == start
        torch.testing.assert_close(kvcache.feed(model, ids[:, start:stop], cache, **heard), exact[:, start:stop], **CLOSE)


@pytest.mark.parametrize("name", TAKES_BACK)
def test_interrupted_anywhere_in_the_cache_it_is_whole_or_refuses(name):
    """An interruption at one line after another of our code, within one forward; then the same tokens again."""
    model, ids = model_of("gemma2" if name == "hybrid" else "llama"), token_ids(1, 60)
    narrow = {"sliding_window": {"window_length": 16}, "sink": {"window_length": 16}}
    ready = kvcache.create(name, model, **{**PARAMETERS, **narrow}.get(name, {}))
    kvcache.feed(model, ids[:, :47], ready)
    apart, counting = copy.deepcopy(ready), copy.deepcopy(ready)
    exact, refused, whole = kvcache.feed(model, ids[:, 47:49], apart), 0, 0
    lines = interrupted(lambda: kvcache.feed(model, ids[:, 47:49], counting), None)
    for line in range(0, lines, max(1, lines // 60)):
        cache = copy.deepcopy(ready)
        interrupted(lambda cache=cache: kvcache.feed(model, ids[:, 47:49], cache), line)
        try:
            found = kvcache.feed(model, ids[:, 47:49], cache)
        except ValueError as refusal:
            assert "reset()" in str(refusal)
            refused += 1
            cache.reset()
            continue
        torch.testing.assert_close(found, exact, **ROUNDED if name == "quantized" else CLOSE)
        whole += 1
    assert whole and whole + refused > 40


def interrupted(go, line):
    """Run, and raise KeyboardInterrupt at that line of the caches' code; returns how many there were."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(CODE) or frame.f_code.co_name in ("all_or_nothing", "_left_by", "_counts", "feed"):
            return None
        if event == "line":
            count += 1
            if count - 1 == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        go()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return count
