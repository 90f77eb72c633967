"""What transformers gets wrong with caches, beside what kvcache does, in one run: `python tests/upstream.py` prints the table.

Each Defect has two functions that return what happened in a few words; `ours` raises AssertionError if kvcache is wrong.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from architectures import logits_with_cache, logits_without_cache, model_of, token_ids

import kvcache


@dataclass(frozen=True)
class Defect:
    what: str
    upstream: Callable[[], str]
    ours: Callable[[], str]


def relative(ours: torch.Tensor, right: torch.Tensor) -> float:
    return ((ours - right).norm() / right.norm()).item()


def hqq(**settings):
    return transformers.QuantizedCache("hqq", model_of("llama").config, **{"nbits": 4, "q_group_size": 32, "residual_length": 16, **settings})


def native(**settings):
    return kvcache.create("quantized", model_of("llama"), **{"q_group_size": 32, "residual_length": 16, **settings})


def cropped(cache) -> str:
    model, ids = model_of("llama"), token_ids(1, 64)
    logits_with_cache(model, ids, cache, [(0, 64)])
    cache.crop(-10)
    return f"sees {cache.get_seq_length()} tokens, holds {cache.layers[0].keys.shape[-2]}"


def ours_cropped() -> str:
    said = cropped(native())
    assert said == "sees 54 tokens, holds 54", said
    return said


class Counted:
    """Counts the tokens that go through a quantiser."""

    def __init__(self, quantize):
        self.quantize, self.tokens = quantize, 0

    def __call__(self, block, *args, **kwargs):
        self.tokens += block.shape[-2]
        return self.quantize(block, *args, **kwargs)


def quantised_tokens(cache, layer, name: str, holder) -> str:
    counter = Counted(getattr(holder, name))
    object.__setattr__(holder, name, counter)
    states = torch.randn(1, 2, 256, 16, generator=torch.Generator().manual_seed(0))
    cache.update(states[:, :, :64], states[:, :, :64], 0)
    for i in range(64, 256):
        cache.update(states[:, :, i : i + 1], states[:, :, i : i + 1], 0)
    return f"{counter.tokens} keys and values quantised for {cache.get_seq_length()} tokens"


def upstream_requantises() -> str:
    cache = hqq(residual_length=32)
    return quantised_tokens(cache, cache.layers[0], "_quantize", cache.layers[0])


def ours_quantises_once() -> str:
    cache, counters = native(residual_length=0), []
    scheme_of = cache.layers[0]._scheme

    def counted(side):
        scheme = scheme_of(side)
        counters.append(Counted(scheme.encode))
        object.__setattr__(scheme, "encode", counters[-1])
        return scheme

    cache.layers[0]._scheme = counted
    states = torch.randn(1, 2, 256, 16, generator=torch.Generator().manual_seed(0))
    for i in range(256):
        cache.update(states[:, :, i : i + 1], states[:, :, i : i + 1], 0)
    total = sum(counter.tokens for counter in counters)
    assert total == 2 * 256, total
    return f"{total} keys and values quantised for 256 tokens"


def moves(cache) -> int:
    """How often a layer's storage moved over 256 single tokens."""
    places = []
    for _ in range(256):
        keys, _ = cache.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16), 0)
        places.append(keys.untyped_storage().data_ptr())
    return sum(a != b for a, b in zip(places, places[1:]))


def ours_moves() -> str:
    count = moves(kvcache.DynamicCache())
    assert count < 20
    return f"storage moved {count} times in 256 tokens"


def static_crop(cache) -> str:
    model = model_of("llama")
    logits_with_cache(model, token_ids(1, 20), cache, [(0, 20)])
    cache.crop(-5)
    assert cache.get_seq_length() == 15
    return "goes back"


def offloaded_on_cpu(cache) -> str:
    model, ids = model_of("llama"), token_ids(1, 20)
    error = relative(logits_with_cache(model, ids, cache, [(0, 20)]), logits_without_cache(model, ids))
    assert error < 1e-4
    return "works as a pass-through"


def three_bits(cache) -> str:
    states = torch.randn(1, 2, 64, 16)
    for i in range(0, 64, 16):
        keys, _ = cache.update(states[:, :, i : i + 16], states[:, :, i : i + 16], 0)
    assert keys.shape[-2] == 64
    return "holds 64 tokens"


def tiny_data(cache) -> float:
    states = 1e-5 * torch.randn(1, 2, 128, 16, generator=torch.Generator().manual_seed(0))
    cache.update(states, states, 0)
    keys, _ = cache.update(states[:, :, :1], states[:, :, :1], 0)
    return relative(keys[:, :, :64], states[:, :, :64])


def ours_tiny() -> str:
    error = tiny_data(native())
    assert error < 0.15
    return f"error {error:.2f}"


def neighbours(make) -> float:
    """How much row 0's logits change when row 1 does."""
    model, bounds = model_of("llama"), [(0, 100), (100, 101), (101, 110)]
    one, two = token_ids(1, 110, 1), torch.cat([token_ids(1, 110, 1), token_ids(1, 110, 2)])
    return relative(logits_with_cache(model, two, make(), bounds)[:1, 100:], logits_with_cache(model, one, make(), bounds)[:, 100:])


def ours_neighbours() -> str:
    error = neighbours(lambda: native(backend="hqq"))
    assert error < 1e-4
    return f"changes by {error:.0e}"


def mamba(cache, feed) -> float:
    model, ids = model_of("mamba"), token_ids(1, 25)
    with torch.no_grad():
        model(ids[:, :20], cache_params=cache, use_cache=True)
        return relative(feed(model, ids[:, 20:], cache), logits_without_cache(model, ids)[:, 20:])


def upstream_mamba() -> str:
    cache = transformers.DynamicCache(config=model_of("mamba").config)
    return f"error {mamba(cache, lambda model, ids, cache: model(ids, cache_params=cache).logits):.2f}, silently"


def ours_mamba() -> str:
    error = mamba(kvcache.create("mamba", model_of("mamba")), kvcache.feed)
    assert error < 1e-4
    return f"error {error:.0e} by kvcache.feed; a plain forward is refused"


def pair_says(pair) -> str:
    states = torch.randn(3, 2, 4, 8)
    for side in (pair.self_attention_cache, pair.cross_attention_cache):
        side.update(states, states, 0)
    assert pair.batch_size == 3 and pair.is_initialized
    return "batch_size and is_initialized answer"


def windows_beside_full(make) -> str:
    model, ids = model_of("gemma3"), token_ids(1, 60)
    logits_with_cache(model, ids, make(model.config), [(0, 60)])
    return "quantises the full-attention layers"


def after_inference_mode(cache) -> str:
    model, ids = model_of("llama"), token_ids(1, 20)
    with torch.inference_mode():
        model(ids, past_key_values=cache)
    cache.reset()
    error = relative(logits_with_cache(model, ids, cache, [(0, 20)]), logits_without_cache(model, ids))
    assert error < 1e-4
    return "reset and used again"


def llama():
    return model_of("llama").config


DEFECTS = [
    Defect("a quantised cache is cropped by 10 of 64 tokens", lambda: cropped(hqq()), ours_cropped),
    Defect("a quantised cache fills up", upstream_requantises, ours_quantises_once),
    Defect("tokens are appended", lambda: f"storage moved {moves(transformers.DynamicCache())} times in 256 tokens", ours_moves),
    Defect("a static cache goes back", lambda: static_crop(transformers.StaticCache(llama(), max_cache_len=32)), lambda: static_crop(kvcache.create("static", llama(), max_cache_len=32))),
    Defect("offloading without an accelerator", lambda: offloaded_on_cpu(transformers.DynamicCache(config=llama(), offloading=True)), lambda: offloaded_on_cpu(kvcache.create("offloaded", llama()))),
    Defect("HQQ with 3 bits, axis 1", lambda: three_bits(hqq(nbits=3, axis_key=1, axis_value=1)), lambda: three_bits(native(backend="hqq", nbits=3, axis_key="token", axis_value="token"))),
    Defect("HQQ on data of magnitude 1e-5", lambda: f"error {tiny_data(hqq()):.2f}", ours_tiny),
    Defect("HQQ 4-bit: row 1 of the batch changes", lambda: f"row 0 changes by {neighbours(hqq):.2f}", lambda: f"row 0 {ours_neighbours()}"),
    Defect("Mamba: 5 tokens on a filled cache", upstream_mamba, ours_mamba),
    Defect("an encoder-decoder cache is asked its batch size", lambda: pair_says(transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())), lambda: pair_says(kvcache.EncoderDecoderCache(kvcache.DynamicCache(), kvcache.DynamicCache()))),
    Defect("a quantised cache for Gemma 3, windows and all", lambda: windows_beside_full(lambda config: transformers.QuantizedCache("hqq", config)), lambda: windows_beside_full(lambda config: kvcache.create("quantized", config))),
    Defect("a static cache filled under inference_mode", lambda: after_inference_mode(transformers.StaticCache(llama(), max_cache_len=32)), lambda: after_inference_mode(kvcache.create("static", llama(), max_cache_len=32))),
]  # fmt: skip


def attempt(what: Callable[[], str]) -> str:
    """What it says, or the error it raises, in a line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return what()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"


def table() -> str:
    lines = ["| | transformers " + transformers.__version__ + " | kvcache |", "|---|---|---|"]
    lines += [f"| {defect.what} | {attempt(defect.upstream)} | {defect.ours()} |".replace("\n", " ") for defect in DEFECTS]
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
