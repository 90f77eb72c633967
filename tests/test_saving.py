"""A cache saved in mid-conversation goes on with equal logits; a damaged or foreign file is refused."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from architectures import logits_with_cache, model_of, token_ids
from safetensors.torch import load_file, save_file

import kvcache
from kvcache.catalog import load_cache
from kvcache.saving import HEADER_KEY, CacheFileError, fingerprint

VARIANTS = [
    ("dynamic", {}),
    ("static", {"max_cache_len": 128}),
    ("sliding_window", {"window_length": 32}),
    ("sink", {"window_length": 32}),
    ("sliding_window", {"window_length": 32, "key_bits": 4, "value_bits": 4, "residual_length": 8}),
    ("sink", {"window_length": 32, "key_bits": 4, "value_bits": 2, "residual_length": 0}),
    ("quantized", {"key_bits": 4, "value_bits": 2, "q_group_size": 32, "residual_length": 16, "round_windows": True}),
    ("quantized", {"key_bits": 4, "value_bits": 2, "q_group_size": 32, "residual_length": 16}),
    ("quantized", {"backend": "hqq", "nbits": 3, "q_group_size": 32, "residual_length": 0}),
]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("name,parameters", VARIANTS)
def test_a_loaded_cache_goes_on_with_equal_logits(name, parameters, architecture, tmp_path):
    model, ids = model_of(architecture), token_ids(2, 110)
    cache = kvcache.create(name, model, **parameters)
    logits_with_cache(model, ids, cache, [(0, 80), (80, 81)])
    cache.save(tmp_path / "it.safetensors")
    loaded = load_cache(tmp_path / "it.safetensors", model)
    assert kvcache.measure_memory(loaded).used == kvcache.measure_memory(cache).used
    rest = [(81, 82), (82, 100), (100, 110)]
    assert torch.equal(logits_with_cache(model, ids, loaded, rest), logits_with_cache(model, ids, cache, rest))


OLDER = {"first_tokens": 0, "rotate": False}  # what caches did before there was a setting for it, and files that do not name it mean


@pytest.mark.parametrize("name,parameters", [("quantized", {"nbits": 4}), ("hqq", {"nbits": 3})])
def test_a_file_from_before_first_tokens_were_kept_and_states_rotated_goes_on_without_either(name, parameters, tmp_path):
    """It names no setting that did not exist then: what is loaded is what was held, not what the defaults are today."""
    model, ids = model_of("llama"), token_ids(2, 110)
    cache = kvcache.create(name, model, q_group_size=32, residual_length=16, **parameters, **OLDER)
    logits_with_cache(model, ids, cache, [(0, 80)])
    cache.parameters = {setting: value for setting, value in cache.parameters.items() if setting not in OLDER}
    cache.save(tmp_path / "old.safetensors")
    loaded = load_cache(tmp_path / "old.safetensors", model)
    assert loaded.token_fates() == [("quantized", 64), ("full", 16)]
    rest = [(80, 81), (81, 110)]
    assert torch.equal(logits_with_cache(model, ids, loaded, rest), logits_with_cache(model, ids, cache, rest))
    assert not any(layer.rotate for layer in loaded.layers)
    loaded.save(tmp_path / "new.safetensors")
    assert load_cache(tmp_path / "new.safetensors", model).token_fates() == loaded.token_fates() == [("quantized", 64), ("full", 46)]


@pytest.mark.parametrize("name,parameters", [("sliding_window", {"window_length": 32}), ("sink", {"window_length": 32}), ("quantized", {"residual_length": 16})])
def test_a_file_from_before_windows_were_rounded_goes_on_as_it_was(name, parameters, tmp_path):
    model, ids, newer = model_of("gemma3"), token_ids(1, 90), ("key_bits", "value_bits", "residual_length", "round_windows")
    cache = kvcache.create(name, model, **parameters)
    logits_with_cache(model, ids, cache, [(0, 80)])
    cache.parameters = {setting: value for setting, value in cache.parameters.items() if setting not in newer or setting in parameters}
    cache.save(tmp_path / "old.safetensors")
    loaded = load_cache(tmp_path / "old.safetensors", model)
    assert torch.equal(logits_with_cache(model, ids, loaded, [(80, 90)]), logits_with_cache(model, ids, cache, [(80, 90)]))


def saved(tmp_path, model=None, tokens=40):
    model = model or model_of("llama")
    cache = kvcache.create("dynamic", model)
    ids = token_ids(1, tokens)
    logits_with_cache(model, ids, cache, [(0, tokens)])
    cache.save(tmp_path / "it.safetensors", token_ids=ids[0].tolist())
    return tmp_path / "it.safetensors"


def test_token_ids_travel_along_and_must_be_what_was_seen(tmp_path):
    path = saved(tmp_path)
    assert load_cache(path, model_of("llama")).token_ids == token_ids(1, 40)[0].tolist()
    with pytest.raises(ValueError, match="token_ids has 3 ids and the cache has seen 40"):
        load_cache(path, model_of("llama")).save(path, token_ids=[1, 2, 3])


def test_another_models_cache_is_refused(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(CacheFileError, match="filled by another model: a llama"):
        load_cache(path, model_of("qwen2"))
    twin = model_of.__wrapped__("llama")
    load_cache(path, twin)
    with torch.no_grad():
        twin.model.layers[0].self_attn.k_proj.weight.mul_(1.01)
    with pytest.raises(CacheFileError, match="filled by another model"):
        load_cache(path, twin)


@pytest.mark.parametrize("cut", [0, 7, 100, -1, -1000])
def test_a_truncated_file_is_refused(cut, tmp_path):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CacheFileError, match="not a whole safetensors file"):
        load_cache(path, model_of("llama"))


def test_a_changed_tensor_and_a_changed_header_are_refused(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(CacheFileError, match="changed after it was written"):
        load_cache(path, model_of("llama"))
    path.write_bytes(whole)
    header = json.loads(__import__("safetensors").safe_open(path, "pt").metadata()[HEADER_KEY])
    header["layers"][0]["seen"] = 39
    save_file(load_file(path), path, metadata={HEADER_KEY: json.dumps(header)})
    with pytest.raises(CacheFileError, match="changed after it was written"):
        load_cache(path, model_of("llama"))


def test_what_is_no_cache_file_is_refused(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle.safetensors")
    with pytest.raises(CacheFileError, match="not a whole safetensors file"):
        load_cache(tmp_path / "pickle.safetensors", model_of("llama"))
    save_file({"a": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(CacheFileError, match="holds tensors but no cache"):
        load_cache(tmp_path / "weights.safetensors", model_of("llama"))
    with pytest.raises(FileNotFoundError, match="no cache file at"):
        load_cache(tmp_path / "nothing", model_of("llama"))


def test_threads_that_save_to_one_path_leave_a_whole_file(tmp_path):
    model, ids = model_of("llama"), token_ids(1, 30)
    caches = [kvcache.create("dynamic", model) for _ in range(4)]
    for n, cache in enumerate(caches):
        kvcache.feed(model, ids[:, : 10 + n], cache)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda cache: [cache.save(tmp_path / "it", model) for _ in range(15)], caches))
    assert kvcache.load_cache(tmp_path / "it", model).get_seq_length() in range(10, 14)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("kvcache.saving.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        saved(tmp_path, tokens=20)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_ids_of_two_rows_and_a_config_for_a_model_are_named(tmp_path):
    cache = load_cache(saved(tmp_path), model_of("llama"))
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere to write it into"):
        cache.save(tmp_path / "nowhere" / "it")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        cache.save(tmp_path)
    with pytest.raises(ValueError, match=r"token_ids are those of one row, as a list or \[n\], got \(2, 40\)"):
        cache.save(tmp_path / "it", token_ids=token_ids(2, 40))
    with pytest.raises(TypeError, match="opened for the model that filled it, got LlamaConfig"):
        load_cache(tmp_path / "it.safetensors", model_of("llama").config)


def test_hand_made_caches_say_why_they_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="make the cache with kvcache.create"):
        kvcache.DynamicCache(model_of("llama").config).save(tmp_path / "x", model_of("llama"))


def test_a_parameter_with_more_elements_than_float32_counts_has_a_fingerprint_of_its_whole_length():
    class Large(torch.nn.Module):
        config = model_of("llama").config

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2**25, dtype=torch.bfloat16), requires_grad=False)

    large = Large()
    before = fingerprint(large)
    large.weight[-1] = 1
    assert fingerprint(large) != before


def test_the_same_weights_under_another_rotation_or_window_are_another_model(tmp_path):
    model = model_of("mistral")
    cache = kvcache.create("dynamic", model)
    logits_with_cache(model, token_ids(1, 40), cache, [(0, 40)])
    cache.save(tmp_path / "it.safetensors")
    for name, value in (("sliding_window", 8), ("rope_parameters", {"rope_type": "default", "rope_theta": 7.0}), ("dtype", "float16")):
        other = copy.deepcopy(model)
        setattr(other.config, name, value)
        if name == "dtype":
            assert fingerprint(other) == fingerprint(model)  # how it was asked for changes nothing
            continue
        with pytest.raises(CacheFileError, match="of other weights or another config"):
            load_cache(tmp_path / "it.safetensors", other)


def test_one_model_loaded_in_several_ways_is_one_model(tmp_path):
    model = model_of("gemma3")
    model.save_pretrained(tmp_path)
    for way in ({}, {"attn_implementation": "eager"}):
        assert fingerprint(type(model).from_pretrained(tmp_path, **way)) == fingerprint(model)
