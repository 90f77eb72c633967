"""The configuration objects: in and out of dicts and JSON unchanged, and wrong values refused with what would be right."""

import json

import pytest
import torch
from architectures import logits_with_cache, logits_without_cache, model_of, token_ids
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcache
from kvcache import CacheConfig, HQQQuantizedCache, QuantizedCache, QuantizedCacheConfig, QuantoQuantizedCache, StaticCacheConfig

CLOSE = dict(atol=2e-4, rtol=1e-4)  # fp32 sums in another order
BOUNDS = [(0, 90), *((i, i + 1) for i in range(90, 100)), (100, 110)]


def test_defaults_are_those_that_4_48_users_know():
    assert dict(QuantizedCacheConfig()) == dict(
        cache_implementation="quantized", backend="quanto", nbits=4, axis_key=0, axis_value=0, q_group_size=64,
        residual_length=128, compute_dtype=torch.float16, device="cpu",
    )  # fmt: skip
    assert dict(StaticCacheConfig(2, 64)) == dict(cache_implementation="static", batch_size=2, max_cache_len=64, device="cpu")
    assert dict(CacheConfig("sink")) == {"cache_implementation": "sink"}


@settings(deadline=None, derandomize=True)
@given(
    st.sampled_from(["quanto", "HQQ", "Native", None]),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([0, 1, -1, "auto", "channel", "token"]),
    st.sampled_from([32, 5, "auto"]),
)
def test_a_config_survives_dict_and_json_or_is_refused(backend, nbits, axis, group):
    try:
        config = QuantizedCacheConfig(backend, nbits, axis, axis, group, compute_dtype="bfloat16")
    except ValueError as error:
        assert "nbits must be " in str(error) or "axis_key must be " in str(error)
        return
    assert QuantizedCacheConfig.from_dict(config.to_dict()) == config
    assert QuantizedCacheConfig.from_dict(json.loads(config.to_json_string())) == config
    config.validate()


def test_a_file_holds_the_json(tmp_path):
    config = QuantizedCacheConfig(nbits=2)
    config.to_json_file(tmp_path / "config.json")
    text = (tmp_path / "config.json").read_text()
    assert text == config.to_json_string() and json.loads(text)["compute_dtype"] == "float16"


def test_transformers_own_generate_takes_a_config_object():
    """It completes a copy as a dict and unpacks it for its own cache; the object stays as it was."""
    config = QuantizedCacheConfig(q_group_size=16, residual_length=8)
    before = dict(config)
    given = dict(cache_implementation="quantized", cache_config=config, return_dict_in_generate=True)
    layer = model_of("llama").generate(token_ids(1, 20), max_new_tokens=3, do_sample=False, **given).cache.layers[0]
    assert (type(layer).__name__, layer.q_group_size, layer.residual_length) == ("QuantoQuantizedLayer", 16, 8)
    assert dict(config) == before


@pytest.mark.parametrize("config,differs", [
    (QuantizedCacheConfig(), {}),
    (QuantizedCacheConfig("HQQ", 2, compute_dtype="bfloat16"), {"backend": "hqq", "nbits": 2, "compute_dtype": "bfloat16"}),
    (StaticCacheConfig(1, 64), {"batch_size": 1, "max_cache_len": 64}),
])  # fmt: skip
def test_a_file_of_differences_reads_back_as_the_same_config(config, differs, tmp_path):
    config.to_json_file(tmp_path / "config.json", use_diff=True)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written == differs and type(config).from_dict(written) == config


def test_update_sets_what_it_knows_and_returns_the_rest():
    config = QuantizedCacheConfig()
    assert config.update(nbits=2, backend="HQQ", colour="red") == {"colour": "red"}
    assert (config.nbits, config.backend) == (2, "hqq")
    with pytest.raises(ValueError, match="nbits must be"):
        config.update(residual_length=7, nbits=5)
    assert (config.nbits, config.residual_length) == (2, 128)


def test_from_dict_lets_keywords_win_and_names_what_it_does_not_know():
    assert QuantizedCacheConfig.from_dict({"nbits": 4}, nbits=2, unknown=1).nbits == 2
    apart = QuantizedCacheConfig("native", key_bits=4, value_bits=2)
    assert QuantizedCacheConfig.from_dict(json.loads(apart.to_json_string())) == apart
    with pytest.raises(ValueError, match="value_bits must be 8, 4 or 2 for native, got 3"):
        QuantizedCacheConfig("native", value_bits=3)
    with pytest.raises(ValueError, match="QuantizedCacheConfig has no 'bits'; it takes .*nbits"):
        QuantizedCacheConfig.from_dict({"bits": 4})


@pytest.mark.parametrize(
    "values,message",
    [
        ({"nbits": 5}, "nbits must be 4 or 2 for quanto, got 5; native takes 8, 4 or 2; hqq takes 8, 4, 3, 2 or 1"),
        ({"backend": "Quanto", "nbits": 3}, "nbits must be 4 or 2 for quanto, got 3"),
        ({"backend": "quanto", "axis_key": 1}, r"axis_key must be 0 \(per token\) or -1 \(per channel\) for quanto"),
        ({"backend": "HQQ", "axis_value": -1}, r"axis_value must be 0 \(per channel\) or 1 \(per token\) for hqq"),
        ({"nbits": 8, "axis_key": -1}, "nbits must be 4 or 2 for quanto, got 8"),
        ({"backend": "gptq"}, "backend must be one of native, hqq, quanto, got 'gptq'"),
        ({"q_group_size": 0}, "q_group_size, unless it is .auto., must be a whole number of at least 1, got 0"),
        ({"residual_length": -1}, "residual_length must be a whole number of at least 0, got -1"),
        ({"compute_dtype": torch.int8}, "compute_dtype must be float16, bfloat16 or float32"),
        ({"device": "nowhere"}, "device must be a torch device"),
    ],
)
def test_wrong_values_are_named_with_what_would_be_right(values, message):
    with pytest.raises(ValueError, match=message):
        QuantizedCacheConfig(**values)
    config = QuantizedCacheConfig()
    config.__dict__.update(values)
    with pytest.raises(ValueError):
        config.validate()


@pytest.mark.parametrize("values,name", [((0, 64), "batch_size"), ((1, 0), "max_cache_len"), ((True, 4), "batch_size"), ((1, 2.5), "max_cache_len")])
def test_a_static_config_refuses_sizes_that_cannot_be(values, name):
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        StaticCacheConfig(*values)


def run(cache):
    model, ids = model_of("llama"), token_ids(2, 110)
    exact = logits_without_cache(model, ids)
    return ((logits_with_cache(model, ids, cache, BOUNDS) - exact)[:, 90:].norm() / exact[:, 90:].norm()).item()


@pytest.mark.parametrize(
    "cache_class,values",
    [
        (QuantoQuantizedCache, {"nbits": 4}),
        (QuantoQuantizedCache, {"nbits": 4, "axis_key": -1, "axis_value": 0}),
        (QuantoQuantizedCache, {"nbits": 2, "axis_key": -1, "axis_value": -1}),
        (HQQQuantizedCache, {"nbits": 8, "axis_key": 1, "axis_value": 1}),
        (HQQQuantizedCache, {"nbits": 4}),
        (HQQQuantizedCache, {"nbits": 3, "axis_key": 0, "axis_value": 1}),
        (HQQQuantizedCache, {"nbits": 2, "axis_key": 1, "axis_value": 0}),
        (HQQQuantizedCache, {"nbits": 1, "axis_key": 1, "axis_value": 1}),
    ],
)
def test_the_backends_classes_work_without_a_model_config_and_equal_the_native_call(cache_class, values):
    config = QuantizedCacheConfig(q_group_size=32, residual_length=16, compute_dtype=torch.float32, **values)
    backend = "quanto" if cache_class is QuantoQuantizedCache else "hqq"
    lazy, spelled = cache_class(cache_config=config), QuantizedCache(model_of("llama").config, cache_config={**dict(config), "backend": backend})
    model, ids = model_of("llama"), token_ids(2, 110)
    ours, same = (logits_with_cache(model, ids, cache, BOUNDS) for cache in (lazy, spelled))
    assert torch.equal(ours, same) and lazy.layers[0].quantized == 64 and lazy.layers[0].backend == backend


def test_the_first_argument_may_be_what_4_48_and_5_have_there():
    assert QuantizedCache(QuantizedCacheConfig(nbits=2)).layer_class_to_replicate().nbits == 2
    assert HQQQuantizedCache(QuantizedCacheConfig(nbits=1)).layer_class_to_replicate().backend == "hqq"
    assert QuantizedCache("quanto", model_of("llama").config, 2).layers[0].backend == "quanto"  # as 5.x has it
    with pytest.raises(ValueError, match="was given cache_config and also nbits"):
        QuantizedCache(cache_config=QuantizedCacheConfig(), nbits=2)
    with pytest.raises(ValueError, match="axis_key must be 0 .per token. or -1"):
        QuantoQuantizedCache(QuantizedCacheConfig(axis_key=1, axis_value=1))


def test_the_axis_says_what_shares_a_scale():
    """Scales per channel: one row a block, one column a channel. Per token: one row a token."""
    channel, token = (HQQQuantizedCache(QuantizedCacheConfig("hqq", 4, axis, axis, 32, 0)) for axis in (0, 1))
    for cache in (channel, token):
        cache.update(*torch.randn(2, 1, 2, 68, 16), 0)
    assert channel.layers[0].key_scales.view().shape == channel.layers[0].value_scales.view().shape == (1, 2, 2, 16)
    assert token.layers[0].key_scales.view().shape == token.layers[0].value_scales.view().shape == (1, 2, 64, 1)


def test_keys_with_outliers_in_few_channels_want_groups_along_channels():
    keys = torch.randn(1, 2, 128, 32, generator=torch.Generator().manual_seed(0))
    keys[..., 3] *= 50  # what keys look like: KIVI, arXiv 2402.02750, figure 2
    errors = {}
    for axis in ("channel", "token"):
        cache = QuantizedCache(nbits=2, q_group_size=32, residual_length=0, axis_key=axis, first_tokens=0, rotate=False)
        cache.update(keys, keys, 0)
        quiet = (cache.layers[0].keys - keys)[..., 4:]
        errors[axis] = quiet.norm().item()
    assert errors["channel"] < errors["token"] / 2


def test_two_bits_per_channel_for_both_are_cruder_than_the_default():
    crude = HQQQuantizedCache(QuantizedCacheConfig(nbits=2, q_group_size=64, residual_length=0))
    fine = QuantizedCache(nbits=8, residual_length=0, q_group_size=32)
    assert run(fine) < 0.01 < 0.1 < run(crude)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_decoded_tensors_are_rounded_to_the_compute_dtype_and_come_in_the_models(dtype):
    caches = [QuantizedCache(nbits=8, residual_length=0, q_group_size=32, compute_dtype=compute) for compute in (torch.float32, dtype)]
    keys = torch.randn(1, 2, 64, 32, generator=torch.Generator().manual_seed(0))
    exact, rounded = ((cache.update(keys, keys, 0), cache.layers[0].keys)[1] for cache in caches)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0, atol=4 * torch.finfo(dtype).eps * keys.abs().max().item())
    assert (dtype == torch.float32) == torch.equal(rounded, exact)


def test_a_narrow_compute_dtype_does_not_overflow():
    """float16 ends at 65,504; a bfloat16 model may not know that."""
    cache = QuantizedCache(QuantizedCacheConfig("native", 8, "auto", "auto", 32, 0, torch.float16))
    keys = torch.randn(1, 2, 32, 32, generator=torch.Generator().manual_seed(0)) * 1e6
    cache.update(keys, keys, 0)
    assert (cache.layers[0].keys - keys).norm() < 0.01 * keys.norm()


def test_a_head_dim_that_cannot_be_packed_is_refused_at_the_first_tokens():
    cache = QuantoQuantizedCache(QuantizedCacheConfig())
    with pytest.raises(ValueError, match="head_dim 20 is not a multiple of 8"):
        cache.update(torch.randn(1, 1, 3, 20), torch.randn(1, 1, 3, 20), 0)
    assert cache.get_seq_length() == 0 and not cache.layers[0].is_initialized


@pytest.mark.parametrize("group", [2, 3, 8, 48, 100, 256])
@pytest.mark.parametrize("axis", ["channel", "token"])
def test_any_group_size_is_held(axis, group):
    cache = QuantizedCache(nbits=8, residual_length=0, q_group_size=group, axis_key=axis, axis_value=axis, first_tokens=0)
    keys = torch.randn(1, 2, 2 * group + 1, 40, generator=torch.Generator().manual_seed(0))
    for start in range(0, 2 * group + 1, group):
        cache.update(keys[:, :, start : start + group], keys[:, :, start : start + group], 0)
    layer = cache.layers[0]
    assert layer.quantized == 2 * group and (layer.keys - keys).norm() < 0.02 * keys.norm()
    cache.crop(group + group // 2)
    assert layer.keys.shape[2] == group + group // 2


@pytest.mark.parametrize("make,message", [
    (lambda: QuantizedCacheConfig(axis_key=[0]), r"axis_key must be .*got \[0\]"),
    (lambda: QuantizedCacheConfig(backend=["quanto"]), r"backend must be one of native, hqq, quanto, got \['quanto'\]"),
    (lambda: QuantizedCacheConfig(compute_dtype=["float16"]), "compute_dtype must be float16"),
    (lambda: StaticCacheConfig.from_dict({"batch_size": 1}), "StaticCacheConfig needs max_cache_len, got batch_size"),
    (lambda: QuantizedCacheConfig.from_dict(5), "a dict of parameters or a config object .* got 5"),
    (lambda: kvcache.generate(model_of("llama"), token_ids(1, 4), cache_implementation="quantized", cache_config="x"), "a dict of parameters or a config object .* got 'x'"),
    (lambda: kvcache.create(["dynamic"], model_of("llama")), r"no cache is called \['dynamic'\]; there are dynamic, "),
])  # fmt: skip
def test_what_is_of_another_type_altogether_is_named_too(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    assert QuantizedCacheConfig.from_dict(None) == QuantizedCacheConfig()
