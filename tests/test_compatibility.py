"""transformers 4.48's cache classes beside ours: every name, parameter and default of theirs is here too, or docs/compatibility.md says why not."""

import inspect
import json
import re
import warnings
from pathlib import Path

import torch
from architectures import model_of

import kvcache

TESTS = Path(__file__).parent
THEIRS = json.loads((TESTS / "legacy_4_48.json").read_text())["classes"]
PAGE = (TESTS.parent / "docs" / "compatibility.md").read_text()
LLAMA = model_of("llama").config
FIRST = (1, 64, "cpu", torch.float32)  # max_batch_size, max_cache_len, device, dtype
MADE = {
    "CacheConfig": lambda: kvcache.CacheConfig("dynamic"),
    "QuantizedCacheConfig": lambda: kvcache.QuantizedCacheConfig(),
    "StaticCacheConfig": lambda: kvcache.StaticCacheConfig(1, 64),
    "DynamicCache": lambda: kvcache.DynamicCache(),
    "OffloadedCache": lambda: kvcache.OffloadedCache(),
    "QuantizedCache": lambda: kvcache.QuantizedCache(kvcache.QuantizedCacheConfig()),
    "QuantoQuantizedCache": lambda: kvcache.QuantoQuantizedCache(kvcache.QuantizedCacheConfig()),
    "HQQQuantizedCache": lambda: kvcache.HQQQuantizedCache(kvcache.QuantizedCacheConfig("HQQ", axis_key=1, axis_value=1)),
    "SinkCache": lambda: kvcache.SinkCache(16, 4),
    "StaticCache": lambda: kvcache.StaticCache(LLAMA, *FIRST),
    "SlidingWindowCache": lambda: kvcache.SlidingWindowCache(model_of("mistral").config, *FIRST),
    "EncoderDecoderCache": lambda: kvcache.EncoderDecoderCache(kvcache.DynamicCache(), kvcache.DynamicCache()),
    "HybridCache": lambda: kvcache.HybridCache(model_of("gemma2").config, *FIRST),
    "MambaCache": lambda: kvcache.MambaCache(model_of("mamba").config, 1, torch.float16),
    "OffloadedStaticCache": lambda: kvcache.OffloadedStaticCache(LLAMA, *FIRST),
}  # fmt: skip


def made(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sink without a config says so
        return MADE[name]()


def differences(name):
    """What a user of 4.48 would miss in a class of ours: attributes, methods, parameters by name or place, and other defaults."""
    ours, theirs = getattr(kvcache, name), THEIRS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # seen_tokens
        yield from (f"{name}.{attribute}" for attribute in theirs["attributes"] if not hasattr(made(name), attribute))
    for method, parameters in theirs["methods"].items():
        called = name if method == "__init__" else f"{name}.{method}"
        if not hasattr(ours, method):
            yield f"{called}()"
            continue
        takes = inspect.signature(getattr(ours, method) if method != "__init__" else ours).parameters
        placed = [each for each in takes if each != "self" or method == "__init__"]
        yield from different_parameters(called, parameters, takes, placed)


def different_parameters(called, parameters, takes, placed):
    for place, (parameter, default) in enumerate(parameters.items()):
        if parameter not in takes:
            yield from () if any(each.kind is each.VAR_KEYWORD for each in takes.values()) else [f"{called}({parameter}=)"]
        elif placed.index(parameter) != place:
            yield f"{called}({parameter}) by place"
        elif default is not None and not same(takes[parameter].default, default):
            yield f"{called}({parameter}={default})"


def same(ours, theirs):
    """Is a default of ours what the source of theirs says?"""
    return ours is not inspect.Parameter.empty and str(ours) == str(eval(theirs, {"torch": torch}))


def explained():
    """What the page's first table names, in its first column."""
    table = PAGE.split("## Names and defaults")[1].split("\n## ")[0]
    return {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_name_and_default_of_4_48_is_here_or_the_page_says_why_not():
    found = {difference for name in THEIRS for difference in differences(name)}
    assert found == explained(), f"not on the page: {sorted(found - explained())}; no longer so: {sorted(explained() - found)}"


def row(beginning):
    """The cells of the row of the page's second table that begins so."""
    return next(line for line in PAGE.split("## What they do")[1].splitlines() if line.startswith(f"| {beginning}")).split(" | ")


def test_the_defaults_of_quantized_are_as_the_page_has_them():
    theirs, ours, _ = row('`cache_implementation="quantized"`')
    old, new = kvcache.QuantizedCacheConfig(), kvcache.create("quantized", model_of("llama"))
    assert (old.axis_key, old.axis_value, new.layers[0].axes) == (0, 0, {"key": "channel", "value": "token"})
    words = "{0.backend}, {0.nbits} bits, {axes}, groups of {0.q_group_size}, {0.residual_length} tokens in full precision, decoded to {dtype}"
    dtypes = [str(made.compute_dtype).removeprefix("torch.") for made in (old, new)]
    assert theirs.endswith(words.format(old, axes="axis 0 for both", dtype=dtypes[0]))
    assert ours == words.format(new.cache_config, axes="keys by channel and values by token", dtype=dtypes[1]).replace("groups of auto", f"groups of {new.q_group_size}")


def test_a_static_window_returns_the_rows_that_the_page_says():
    assert row("a static window")[1].startswith("`window - 1 + n` rows")
    cache, (keys, values) = kvcache.SlidingWindowCache(model_of("mistral").config, *FIRST), torch.zeros(2, 1, 2, 3, 16)
    assert cache.update(keys, values, 0)[0].shape[2] == model_of("mistral").config.sliding_window - 1 + 3


def test_lengths_are_as_the_page_has_them():
    assert row("`get_max_length()`")[1] == "-1; `get_max_cache_shape()` is None"
    assert (kvcache.DynamicCache().get_max_length(), kvcache.DynamicCache().get_max_cache_shape()) == (-1, None)
