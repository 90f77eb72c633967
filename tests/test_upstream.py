"""What transformers gets wrong with caches, beside what kvcache does, in one run: `PYTHONPATH=. python tests/test_upstream.py` prints the table.

Each Defect has two functions that return what happened in a few words; `ours` raises AssertionError if kvcache is wrong.
"""

import copy
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import tiny_models
import torch
import transformers
from architectures import gpt_neo, logits_with_cache, logits_without_cache, model_of, tiny, token_ids

import kvcache
from kvcache.caches import quantized


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
    return kvcache.create("quantized", model_of("llama"), **{"q_group_size": 32, "residual_length": 16, "first_tokens": 0, **settings})


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
    cache, total, encode = native(residual_length=0), 0, quantized.encode

    def counted(scheme, block, *args):
        nonlocal total
        total += block.shape[2]
        return encode(scheme, block, *args)

    quantized.encode = counted
    try:
        states = torch.randn(1, 2, 256, 16, generator=torch.Generator().manual_seed(0))
        for i in range(256):
            cache.update(states[:, :, i : i + 1], states[:, :, i : i + 1], 0)
    finally:
        quantized.encode = encode
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


def quanto(**settings):
    return transformers.QuantizedCache("quanto", model_of("llama").config, **{"nbits": 4, "q_group_size": 32, "residual_length": 16, **settings})


def noise(tokens: int, dim: int = 16, seed: int = 0) -> torch.Tensor:
    """[1, 2, tokens, dim]"""
    return torch.randn(1, 2, tokens, dim, generator=torch.Generator().manual_seed(seed))


def shapes_held(make, lengths=(1, 7, 16, 33, 64, 100, 127, 128), dims=(32, 64, 80, 96, 128)) -> str:
    """For how many pairs of prompt length and head dimension it takes the prompt."""
    held, tried = 0, len(lengths) * len(dims)
    for tokens in lengths:
        for dim in dims:
            try:
                make().layers[0].update(noise(tokens, dim), noise(tokens, dim))
                held += 1
            except Exception:  # whatever it raises in mid-generation, the shape is not held
                pass
    return f"holds {held} of {tried} shapes of prompt and head"


def ours_holds(**settings) -> str:
    said = shapes_held(lambda: native(**settings))
    assert said == "holds 40 of 40 shapes of prompt and head", said
    return said


def repeated(cache) -> str:
    """What two more of each row make of a cache of 64 tokens that has rounded some of them."""
    model, ids = model_of("llama"), token_ids(2, 65)
    logits_with_cache(model, ids, cache, [(0, 64)])
    cache.batch_repeat_interleave(3)
    logits_with_cache(model, ids[[0, 0, 0, 1, 1, 1]], cache, [(64, 65)])
    return "goes on with 6 rows"


def goes_back(cache) -> str:
    """A model with windows of 24 tokens takes its last token back after 60 and says it again."""
    model, ids = model_of("mistral"), token_ids(1, 60)
    logits_with_cache(model, ids, cache, [(0, 59), (59, 60)])
    cache.crop(-1)
    error = relative(logits_with_cache(model, ids, cache, [(59, 60)]), logits_without_cache(model, ids)[:, 59:])
    assert error < 1e-4, error
    return "goes back one token"


def louder(cache) -> float:
    """How wrong keys are that come after the first ones and are ten times as large."""
    cache.update(noise(64), noise(64), 0)
    cache.update(10 * noise(64, seed=1), 10 * noise(64, seed=1), 0)
    keys, _ = cache.update(noise(1), noise(1), 0)
    return relative(keys[:, :, 64:128], 10 * noise(64, seed=1))


def fp8():
    return transformers.QuantizedCache("fp8", llama())


def ours_louder() -> str:
    error = louder(native(nbits=8, residual_length=0))
    assert error < 0.02, error
    return f"error {error:.3f}"


def ours_eight_bits() -> str:
    error = neighbours(lambda: native(nbits=8))
    assert error < 1e-4, error
    return f"row 0 changes by {error:.0e}"


def copied(cache) -> str:
    """A deep copy of a cache that has taken 64 tokens."""
    for layer in cache.layers:
        layer.update(noise(64), noise(64))
    twin = copy.deepcopy(cache)
    assert twin.get_seq_length() == 64
    return "copied"


def ours_copied() -> str:
    cache = kvcache.QuantoQuantizedCache(kvcache.QuantizedCacheConfig(residual_length=16, q_group_size=32), llama())
    said = copied(cache)
    assert torch.equal(copy.deepcopy(cache).layers[0].keys, cache.layers[0].keys)
    return said


def reads_by_cpp() -> str:
    """What quanto must build, at its first use, before codes can be read on a CPU."""
    from optimum.quanto.library.extensions import cpp

    return f"first builds {len(cpp.ext.sources)} C++ files"


def ours_reads() -> str:
    from optimum.quanto.library.extensions import cpp

    before, cache = cpp.ext._lib, native(backend="quanto", residual_length=0)
    cache.update(noise(64), noise(64), 0)
    keys, _ = cache.update(noise(1), noise(1), 0)
    assert cache.layers[0].quantized == 64 and relative(keys[:, :, :64], noise(64)) < 0.2
    assert cpp.ext._lib is before, "something built quanto's C++"
    return "builds nothing"


def error_of(model, cache) -> float:
    ids = token_ids(1, 60)
    return relative(logits_with_cache(model, ids, cache, [(0, 40), *((i, i + 1) for i in range(40, 60))]), logits_without_cache(model, ids))


def refused(name: str, model) -> str:
    try:
        kvcache.create(name, model)
    except ValueError as error:
        return f"refused: {error}"
    raise AssertionError(f"{name} is not refused")


def ours_exact(model) -> str:
    error = error_of(model, kvcache.create("dynamic", model))
    assert error < 1e-5, error
    return f"error {error:.0e}"


def moshi():
    return tiny("MoshiConfig", sliding_window=24)


def llama():
    return model_of("llama").config


@torch.no_grad()
def second_picture(make: Callable, feed: Callable) -> float:
    """How far the logits of a talk with pictures in two turns are from those of one forward over all."""
    model = tiny_models.vision_models("qwen2_5_vl")
    turns, cache = tiny_models.talk(model), make(model)
    right = tiny_models.exact(model, turns)
    return relative(torch.cat([feed(model, cache, turn) for turn in turns], dim=1), right)


@torch.no_grad()
def picture_next_door(make: Callable, feed: Callable) -> float:
    """How far a talk without pictures is from one forward over it, when another talk on the same model shows one in between."""
    model, (first, second) = tiny_models.vision_models("qwen2_5_vl"), (tiny_models.words(5, 11), tiny_models.words(7, 12))
    right, cache = tiny_models.exact(model, [first, second]), make(model)
    logits = [feed(model, cache, first)]
    feed(model, make(model), tiny_models.picture(model, 2))
    return relative(torch.cat([*logits, feed(model, cache, second)], dim=1), right)


THEIRS = (lambda model: transformers.DynamicCache(config=model.config), lambda model, cache, turn: model(**turn, past_key_values=cache).logits)
OURS = (lambda model: kvcache.create("dynamic", model), lambda model, cache, turn: tiny_models.fed(model, cache, [turn]))


def ours_sees(measure: Callable) -> str:
    error = measure(*OURS)
    assert error < 1e-4
    return f"error {error:.0e}"


DEFECTS = [
    Defect("a quantised cache is cropped by 10 of 64 tokens", lambda: cropped(hqq()), ours_cropped),
    Defect("a quantised cache fills up", upstream_requantises, ours_quantises_once),
    Defect("tokens are appended", lambda: f"storage moved {moves(transformers.DynamicCache())} times in 256 tokens", ours_moves),
    Defect("offloading without an accelerator", lambda: offloaded_on_cpu(transformers.DynamicCache(config=llama(), offloading=True)), lambda: offloaded_on_cpu(kvcache.create("offloaded", llama()))),
    Defect("HQQ with 3 bits, axis 1", lambda: three_bits(hqq(nbits=3, axis_key=1, axis_value=1)), lambda: three_bits(native(backend="hqq", nbits=3, axis_key="token", axis_value="token"))),
    Defect("HQQ on data of magnitude 1e-5", lambda: f"error {tiny_data(hqq()):.2f}", ours_tiny),
    Defect("HQQ 4-bit: row 1 of the batch changes", lambda: f"row 0 changes by {neighbours(hqq):.2f}", lambda: f"row 0 {ours_neighbours()}"),
    Defect("Mamba: 5 tokens on a filled cache", upstream_mamba, ours_mamba),
    Defect("an encoder-decoder cache is asked its batch size", lambda: pair_says(transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())), lambda: pair_says(kvcache.EncoderDecoderCache(kvcache.DynamicCache(), kvcache.DynamicCache()))),
    Defect("a quantised cache for Gemma 3, windows and all", lambda: windows_beside_full(lambda config: transformers.QuantizedCache("hqq", config)), lambda: windows_beside_full(lambda config: kvcache.create("quantized", config))),
    Defect("a static cache filled under inference_mode", lambda: after_inference_mode(transformers.StaticCache(llama(), max_cache_len=32)), lambda: after_inference_mode(kvcache.create("static", llama(), max_cache_len=32))),
    Defect("a quantised cache repeats each row three times", lambda: repeated(hqq(residual_length=8)), lambda: repeated(native(residual_length=8))),
    Defect("a full window is cropped by one token", lambda: goes_back(transformers.DynamicCache(config=model_of("mistral").config)), lambda: goes_back(kvcache.create("dynamic", model_of("mistral")))),
    Defect("HQQ 4-bit, axis 1, groups of 64", lambda: shapes_held(lambda: hqq(axis_key=1, axis_value=1, q_group_size=64)), lambda: ours_holds(backend="hqq", axis_key="token", axis_value="token", q_group_size=64)),
    Defect("quanto 4-bit, axis -1, groups of 64", lambda: shapes_held(lambda: quanto(axis_key=-1, axis_value=-1, q_group_size=64)), lambda: ours_holds(backend="quanto", q_group_size=64)),
    Defect("quanto 4-bit, axis 0, groups of 64", lambda: shapes_held(lambda: quanto(q_group_size=64)), lambda: ours_holds(backend="quanto", axis_key="token", axis_value="token", q_group_size=64)),
    Defect("a static cache for GPT-Neo", lambda: f"error {error_of(gpt_neo(), transformers.StaticCache(gpt_neo().config, max_cache_len=64)):.2f}, silently", lambda: refused("static", gpt_neo())),
    Defect("Moshi, whose config has a window and whose mask has none", lambda: f"error {error_of(moshi(), transformers.DynamicCache(config=moshi().config)):.2f}, silently", lambda: ours_exact(moshi())),
    Defect("Qwen2.5-VL: a picture in a second turn", lambda: f"error {second_picture(*THEIRS):.2f}, silently", lambda: ours_sees(second_picture)),
    Defect("Qwen2.5-VL: two talks, a picture in one of them", lambda: f"error {picture_next_door(*THEIRS):.2f} in the other, silently", lambda: ours_sees(picture_next_door)),
    Defect("a quanto cache is deep-copied", lambda: copied(quanto()), ours_copied),
    Defect("quanto's codes are read", reads_by_cpp, ours_reads),
    Defect("8 bits (fp8): keys ten times the first ones'", lambda: f"error {louder(fp8()):.2f}, silently", ours_louder),
    Defect("8 bits (fp8): row 1 of the batch changes", lambda: f"row 0 changes by {neighbours(fp8):.0e}", ours_eight_bits),
]  # fmt: skip


def attempt(what: Callable[[], str], seconds: int = 60) -> str:
    """What it says, or the error it raises, in a line; no answer in `seconds` is an answer, too."""

    def give_up(*_):
        raise TimeoutError(f"no answer in {seconds} seconds")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return what()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    finally:
        signal.alarm(0)


def table() -> str:
    lines = ["| | transformers " + transformers.__version__ + " | kvcache |", "|---|---|---|"]
    lines += [f"| {defect.what} | {attempt(defect.upstream)} | {defect.ours()} |".replace("\n", " ") for defect in DEFECTS]
    return "\n".join(lines)


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.what for defect in DEFECTS])
def test_kvcache_is_right_where_upstream_was_seen_to_fail(defect):
    assert defect.ours()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
