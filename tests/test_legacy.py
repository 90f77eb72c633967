"""What users of transformers 4.48 know of a cache: indexing, the legacy form, batch splits, update's old keywords."""

import copy
import pickle

import pytest
import torch
import transformers
from architectures import logits_with_cache, logits_without_cache, model_of, token_ids

import kvcache
from kvcache import CropError, DynamicCache, EncoderDecoderCache, QuantizedCache, SinkCache, SlidingWindowCache, StaticCache

CLOSE = dict(atol=2e-4, rtol=1e-4)  # fp32 sums in another order
CONFIG = model_of("llama").config


def filled(cache, tokens=30, rows=2, architecture="llama"):
    """The cache after the first `tokens` of `token_ids(rows, 40)`."""
    logits_with_cache(model_of(architecture), token_ids(rows, 40), cache, [(0, tokens)])
    return cache


def states(rows=1, tokens=5, seed=0):
    return torch.randn(2, rows, 2, tokens, 16, generator=torch.Generator().manual_seed(seed))


def suited(architecture):
    """Names of the caches that fit a model."""
    return [name for name, entry in kvcache.ENTRIES.items() if not entry.why_not(model_of(architecture).config)]


def everything(name, architecture="llama"):
    """A cache by catalog name that loses nothing here."""
    model = model_of(architecture)
    wide = {"window_length": 512, "residual_length": 512, "max_cache_len": 96, "policy": "lagkv"}
    known = {parameter.name for parameter in kvcache.ENTRIES[name].parameters}
    return kvcache.create(name, model, **{key: value for key, value in wide.items() if key in known})


def test_a_layer_is_read_by_index_and_all_by_iteration():
    cache = filled(DynamicCache())
    assert len(cache) == 2
    for layer_idx, (keys, values) in enumerate(cache):
        assert torch.equal(keys, cache[layer_idx][0]) and torch.equal(values, cache[layer_idx][1])
        assert keys.shape == (2, 2, 30, 16)
    assert torch.equal(cache[-1][0], cache[1][0])
    with pytest.raises(IndexError, match="has 2 layers so far, asked for layer 2"):
        cache[2]


def test_layers_without_keys_are_pairs_of_none():
    cache = filled(DynamicCache(model_of("jamba").config), architecture="jamba")
    assert [keys is None for keys, _ in cache] == [True, False, True, False]


def test_the_legacy_form_goes_out_and_in_again():
    model, ids = model_of("llama"), token_ids(2, 40)
    legacy = filled(DynamicCache()).to_legacy_cache()
    assert [tuple(tensor.shape) for layer in legacy for tensor in layer] == [(2, 2, 30, 16)] * 4
    for again in (DynamicCache.from_legacy_cache(legacy), DynamicCache.from_legacy_cache(legacy, config=model.config)):
        ours = logits_with_cache(model, ids[:, 30:], again, [(0, 10)])
        torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 30:], **CLOSE)


def test_upstreams_cache_reads_ours_and_the_other_way_round():
    model, ids = model_of("llama"), token_ids(2, 40)
    ours = filled(DynamicCache())
    for theirs in (transformers.DynamicCache(ours), transformers.DynamicCache(ours.to_legacy_cache())):
        torch.testing.assert_close(logits_with_cache(model, ids[:, 30:], theirs, [(0, 10)]), logits_without_cache(model, ids)[:, 30:], **CLOSE)
    back = DynamicCache.from_legacy_cache(tuple(filled(transformers.DynamicCache())))
    assert torch.equal(back[0][0], ours[0][0])


def test_a_legacy_form_never_changes_after_it_was_taken():
    cache = filled(DynamicCache())
    legacy = cache.to_legacy_cache()
    before = copy.deepcopy(legacy)
    cache.crop(10)
    filled(cache, 25)
    assert all(torch.equal(a, b) for old, new in zip(before, legacy) for a, b in zip(old, new))


@pytest.mark.parametrize("name", suited("llama"))
def test_every_cache_that_holds_every_token_has_a_legacy_form(name):
    cache = filled(everything(name))
    expected = filled(DynamicCache()).to_legacy_cache()
    for ours, theirs in zip(cache.to_legacy_cache(), expected):
        torch.testing.assert_close(ours, theirs)


def test_every_cache_can_be_filled_from_the_legacy_form():
    legacy = filled(DynamicCache()).to_legacy_cache()
    caches = (
        StaticCache.from_legacy_cache(legacy, config=CONFIG, max_cache_len=64),
        SlidingWindowCache.from_legacy_cache(legacy, config=CONFIG, window_length=64),
        SinkCache.from_legacy_cache(legacy, window_length=64, num_sink_tokens=4, config=CONFIG),
        QuantizedCache.from_legacy_cache(legacy, config=CONFIG),
    )
    for cache in caches:
        assert cache.get_seq_length() == 30 and torch.equal(cache.to_legacy_cache()[1][0], legacy[1][0])


def test_evicted_tokens_and_states_have_no_legacy_form():
    with pytest.raises(ValueError, match="layer 0 holds 16 of the 30 tokens it has seen"):
        filled(SinkCache(16, 4, CONFIG)).to_legacy_cache()
    with pytest.raises(ValueError, match="layer 0 keeps a state"):
        filled(DynamicCache(model_of("jamba").config), architecture="jamba").to_legacy_cache()
    with pytest.raises(ValueError, match="3 layers of keys and values do not fit a model of 2"):
        DynamicCache.from_legacy_cache([tuple(states())] * 3, config=CONFIG)


def test_skipped_layers_are_empty_and_can_be_filled_later():
    keys, values = states()
    cache = DynamicCache()
    cache.update(keys, values, 2)
    assert len(cache) == 3 and cache[0] == (None, None) and cache.get_seq_length(2) == 5 and cache.get_seq_length() == 0
    cache.reorder_cache(torch.tensor([0]))
    cache.batch_repeat_interleave(2)
    assert [keys is None for keys, _ in cache.to_legacy_cache()] == [True, True, False]
    cache.crop(-2)
    assert cache.get_seq_length(2) == 3
    more = states(rows=2, tokens=3)
    cache.update(*more, 0)
    assert torch.equal(cache[0][0], more[0]) and cache[2][0].shape == (2, 2, 3, 16)
    again = DynamicCache.from_legacy_cache(cache.to_legacy_cache())
    assert again[1] == (None, None) and torch.equal(again[2][1], cache[2][1])


def test_layers_of_different_lengths_make_no_cache():
    (keys, values), (more, others) = (torch.randn(2, 1, 2, tokens, 16) for tokens in (20, 12))
    with pytest.raises(ValueError, match=r"different lengths: \[12, 20\] tokens"):
        DynamicCache.from_legacy_cache(((keys, values), (more, others)))


def test_caches_of_other_parameters_are_not_joined():
    parts = [kvcache.create("quantized", model_of("llama"), nbits=nbits) for nbits in (2, 8)]
    for part in parts:
        logits_with_cache(model_of("llama"), token_ids(1, 10), part, [(0, 10)])
    with pytest.raises(ValueError, match="splits have different parameters"):
        type(parts[0]).from_batch_splits(parts)


@pytest.mark.parametrize(
    "make, changed",
    [
        (lambda **of: SlidingWindowCache(config=model_of("llama").config, **of), [{"window_length": 64}, {"window_length": 128}]),
        (lambda **of: QuantizedCache(config=model_of("llama").config, nbits=4, **of), [{"backend": "native"}, {"backend": "hqq"}]),
        (lambda **of: QuantizedCache(config=model_of("llama").config, **of), [{"residual_length": 32}, {"residual_length": 64}]),
    ],
)
def test_caches_that_would_go_on_otherwise_are_not_joined_whoever_made_them(make, changed):
    parts = [make(**of) for of in changed]
    for part in parts:
        logits_with_cache(model_of("llama"), token_ids(1, 10), part, [(0, 10)])
    with pytest.raises(ValueError, match=f"layer 0 of the splits cannot be joined: they were made with .*{next(iter(changed[0]))}"):
        type(parts[0]).from_batch_splits(parts)


def test_sinks_that_rotate_and_sinks_that_do_not_are_not_joined():
    parts = [filled(SinkCache(64, 4, config=CONFIG), rows=1), filled(SinkCache(64, 4), rows=1)]
    with pytest.raises(ValueError, match="layer 0 of the splits cannot be joined: they were made with .*'rotates': True.*'rotates': False"):
        SinkCache.from_batch_splits(parts)


@pytest.mark.parametrize("name", suited("llama"))
def test_rows_split_and_joined_again_go_on_as_if_nothing_had_happened(name):
    model, ids = model_of("llama"), token_ids(5, 40)
    cache = filled(everything(name), rows=5)
    parts = cache.batch_split(5, 2)
    assert [part.batch_size for part in parts] == [2, 2, 1]
    expected = logits_without_cache(model, ids)[:, 30:]
    joined = type(cache).from_batch_splits(parts)
    torch.testing.assert_close(logits_with_cache(model, ids[:, 30:], joined, [(0, 10)]), expected, **CLOSE)
    for start, part in zip((0, 2, 4), parts):
        ours = logits_with_cache(model, ids[start : start + 2, 30:], part, [(0, 1), (1, 10)])
        torch.testing.assert_close(ours, expected[start : start + 2], **CLOSE)
    torch.testing.assert_close(logits_with_cache(model, ids[:, 30:], cache, [(0, 10)]), expected, **CLOSE)


@pytest.mark.parametrize("name", suited("jamba"))
def test_rows_of_state_space_layers_split_join_repeat_and_select_too(name):
    model, ids = model_of("jamba"), token_ids(3, 40)
    cache = filled(everything(name, "jamba"), rows=3, architecture="jamba")
    expected = logits_without_cache(model, ids)[:, 30:]
    steps = [(i, i + 1) for i in range(10)]
    joined = type(cache).from_batch_splits(cache.batch_split(3, 1))
    torch.testing.assert_close(logits_with_cache(model, ids[:, 30:], joined, steps), expected, **CLOSE)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([True, False, False, False, True, False]))
    torch.testing.assert_close(logits_with_cache(model, ids[[0, 2], 30:], cache, steps), expected[[0, 2]], **CLOSE)


def test_splits_that_do_not_fit_are_refused():
    cache = filled(DynamicCache(), rows=3)
    with pytest.raises(ValueError, match="full_batch_size is 4 and this cache holds 3 rows"):
        cache.batch_split(4, 2)
    with pytest.raises(ValueError, match="split_size must be a whole number of at least 1"):
        cache.batch_split(3, 0)
    one, two = cache.batch_split(3, 2)
    two.crop(-1)
    with pytest.raises(ValueError, match=r"layer 0 of the splits cannot be joined: they have seen \[30, 29\]"):
        DynamicCache.from_batch_splits([one, two])
    with pytest.raises(ValueError, match="one or more SinkCache of one class"):
        SinkCache.from_batch_splits([one])


@pytest.mark.parametrize("name", suited("llama"))
def test_a_forked_cache_and_its_parent_never_change_each_other(name):
    model, ids = model_of("llama"), token_ids(2, 40)
    cache = filled(everything(name))
    fork = cache.fork()
    other = logits_with_cache(model, token_ids(2, 10, 7), fork, [(0, 10)])
    ours = logits_with_cache(model, ids[:, 30:], cache, [(0, 10)])
    torch.testing.assert_close(ours, logits_without_cache(model, ids)[:, 30:], **CLOSE)
    together = torch.cat([ids[:, :30], token_ids(2, 10, 7)], dim=1)
    torch.testing.assert_close(other, logits_without_cache(model, together)[:, 30:], **CLOSE)


def test_lengths_mean_what_both_versions_mean_by_them():
    dynamic, static = DynamicCache(), filled(StaticCache(CONFIG, max_cache_len=64))
    sink = filled(SinkCache(16, 4, CONFIG))
    assert (dynamic.get_max_length(), dynamic.get_max_length(1), dynamic.get_max_cache_shape()) == (-1, -1, None)
    assert (static.get_max_length(), static.get_max_length(1), static.get_max_cache_shape()) == (64, 64, 64)
    assert (sink.get_max_cache_shape(), sink.get_seq_length(), sink.held_length()) == (16, 30, 16)
    assert DynamicCache(model_of("gemma2").config).get_max_length() == -1  # its full layers have no limit


def test_the_usable_length_is_what_the_next_tokens_will_attend_to():
    assert DynamicCache().get_usable_length(3) == 0 and filled(DynamicCache()).get_usable_length(3) == 30
    assert filled(SinkCache(16, 4, CONFIG)).get_usable_length(1) == 15
    static = filled(StaticCache(CONFIG, max_cache_len=32))
    assert static.get_usable_length(2) == 30
    with pytest.raises(ValueError, match="3 more tokens do not fit: 30 of 32 are taken"):
        static.get_usable_length(3)


ASKED = {"llama": suited("llama"), "gemma2": suited("gemma2"), "jamba": suited("jamba")}


@pytest.mark.parametrize("architecture,name", [(architecture, name) for architecture, names in ASKED.items() for name in names])
def test_attention_that_asks_for_the_usable_length_before_it_updates_is_told_what_it_will_get(architecture, name):
    """As 4.4x's attention does in every layer: what it is told and the new tokens are the rows of its mask, or in static shapes those that are not masked."""
    model, ids = model_of(architecture), token_ids(1, 60)
    known = {parameter.name for parameter in kvcache.ENTRIES[name].parameters}
    narrow = {"window_length": 16, "residual_length": 16, "max_cache_len": 64, "policy": "lagkv"}
    cache = kvcache.create(name, model, **{key: value for key, value in narrow.items() if key in known})
    update, told = cache.update, []

    def asking(keys, values, layer_idx, *args, **kwargs):
        seen, n = cache.get_seq_length(layer_idx), keys.shape[2]
        usable = cache.get_usable_length(n, layer_idx)
        attended = update(keys, values, layer_idx, *args, **kwargs)
        rows = getattr(cache.layers[layer_idx], "max_cache_len", None)
        told.append(usable == (min(seen, rows - 1) if rows else attended[0].shape[2] - n))
        return attended

    cache.update = asking
    first = 40 if architecture == "jamba" else 30
    logits_with_cache(model, ids, cache, [(0, first), *((i, i + 1) for i in range(first, 50))] + [(50, 60)] * (architecture != "jamba"))
    assert len(told) > 20 and all(told)


def test_the_usable_length_of_a_pair_is_its_decoders():
    cache = EncoderDecoderCache(SlidingWindowCache(CONFIG, window_length=16), DynamicCache())
    cache.self_attention_cache.update(*states(tokens=20), 0)
    assert [cache.get_usable_length(1, layer_idx) for layer_idx in (0, 1)] == [15, 0]


def test_seen_tokens_warns():
    with pytest.warns(FutureWarning, match="get_seq_length"):
        assert filled(DynamicCache()).seen_tokens == 30


@pytest.mark.parametrize("name", suited("llama"))
def test_updates_old_keywords_are_taken_and_a_wrong_position_is_refused(name):
    cache = everything(name)
    keys, values = states(tokens=5)
    rows = {"cache_position": torch.arange(5), "sin": torch.zeros(1, 5, 16), "cos": torch.ones(1, 5, 16)}
    cache.update(keys, values, 0, rows)
    cache.update(keys[:, :, :1], values[:, :, :1], 0, {"cache_position": torch.tensor([5])})
    cache.update(keys[:, :, :1], values[:, :, :1], 0, cache_kwargs=None)
    for wrong in ([3], [8], [7, 8]):
        with pytest.raises(ValueError, match="is not where layer 0 of this"):
            cache.update(keys[:, :, :1], values[:, :, :1], 0, {"cache_position": torch.tensor(wrong)})
    assert cache.get_seq_length() == 7


def test_a_generation_loop_of_4_48_continues_from_the_legacy_form():
    model, ids = model_of("llama"), token_ids(1, 12)
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)
    legacy, new = None, ids
    for _ in range(8):
        cache = DynamicCache.from_legacy_cache(legacy)
        logits = logits_with_cache(model, new, cache, [(0, new.shape[1])])
        legacy, new = cache.to_legacy_cache(), logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, new], dim=1)
    assert torch.equal(ids, expected)


def test_sinks_take_a_models_old_keywords_and_refuse_another_rotation():
    caches = [SinkCache(16, 4, model_of("phi").config) for _ in range(2)]
    rotated = 2 * len(caches[0].layers[0].rope.frequencies)
    assert 0 < rotated < 16
    for step in range(20):
        keys, values = states(tokens=1, seed=step)
        angles = torch.full((1, 1, rotated), float(step))
        old = {"sin": angles.sin(), "cos": angles.cos(), "partial_rotation_size": rotated, "cache_position": torch.tensor([step])}
        plain, kept = caches[0].update(keys, values, 0), caches[1].update(keys, values, 0, old)
        assert all(torch.equal(a, b) for a, b in zip(plain, kept))
    with pytest.raises(ValueError, match="partial_rotation_size is 16, and by its config this model rotates"):
        caches[1].update(keys, values, 0, {"partial_rotation_size": 16})
    assert caches[1].get_seq_length() == 20


def test_sinks_as_4_48_constructs_them():
    with pytest.warns(UserWarning, match="pass config=model.config"):
        cache = SinkCache(window_length=16, num_sink_tokens=4)
    assert filled(cache).held_length() == 16


def test_static_caches_take_their_arguments_by_place_in_either_versions_order():
    gemma, mistral, map_ = model_of("gemma2").config, model_of("mistral").config, {0: "cpu", 1: "meta"}
    first = (2, 64, "cpu", torch.float32)
    for placed in ((map_,), (None, map_), (2, map_)):  # 4.46 to 4.48 had max_batch_size before the map
        layers = StaticCache(CONFIG, *first, *placed).layers
        assert [layer.keys.device.type for layer in layers] == ["cpu", "meta"] and layers[0].keys.shape == (2, 2, 64, 16)
    assert StaticCache(CONFIG, None, 64, "cpu", torch.float32, 3).layers[0].keys.shape == (3, 2, 64, 16)
    everywhere = dict.fromkeys(range(4), "meta")
    assert {layer.keys.device.type for layer in kvcache.HybridCache(gemma, *first, None, everywhere).layers} == {"meta"}
    assert [layer.keys.shape[2] for layer in SlidingWindowCache(mistral, *first, None, map_).layers] == [24, 24]
    hosted = kvcache.OffloadedStaticCache(CONFIG, *first, "cpu", {0: "cpu"})
    assert hosted.layers[0].keys.shape == (2, 2, 64, 16) and str(hosted.offload_device) == "cpu"
    mamba = kvcache.MambaCache(model_of("mamba").config, 2, torch.float16, "cpu", 2)
    assert mamba.ssm_states[0].shape[0] == 2 and mamba.ssm_states[0].dtype == torch.float16


@pytest.mark.parametrize("made", [DynamicCache, kvcache.OffloadedCache, StaticCache, kvcache.HybridCache, kvcache.MambaCache, QuantizedCache])
def test_what_is_no_config_is_named(made):
    for wrong in (2, ((torch.zeros(1, 2, 3, 4),) * 2,)):
        with pytest.raises(TypeError, match=f"expected a transformers model or config, got {type(wrong).__name__}"):
            made(wrong)


def test_keys_and_values_by_layer_under_their_old_names():
    cache = filled(DynamicCache())
    assert all(torch.equal(cache.key_cache[index], keys) and torch.equal(cache.value_cache[index], values) for index, (keys, values) in enumerate(cache))
    assert DynamicCache().key_cache == []


@pytest.mark.parametrize("name", suited("llama"))
def test_rows_that_do_not_go_behind_those_held_are_refused_and_nothing_has_changed(name):
    cache = filled(everything(name))
    keys, values = states(rows=2, tokens=3)
    wrong = {
        "must be of the same rows and tokens": (keys, values[:1], 0),
        "layer_idx must be from 0 to 1": (keys, values, 2),
        "layer_idx must be from 0 to 1 for this model, got -1": (keys, values, -1),
        "batch 2, 2 heads of 16.*(given|got) batch 3": (*states(rows=3, tokens=3), 0),
        "float32.*(given|got) batch 2, 2 heads of 16, torch.float16": (keys.half(), values.half(), 0),
        "2 heads of 16.*(given|got) batch 2, 2 heads of 8": (keys[..., :8], values[..., :8], 0),
        "2 heads of 16.*(given|got) batch 2, 2 heads of 1,": (keys[..., :1], values[..., :1], 0),  # would be spread over 16
    }
    for message, (new_keys, new_values, layer_idx) in wrong.items():
        for tokens in (1, 3):
            with pytest.raises(ValueError, match=message):
                cache.update(new_keys[:, :, :tokens], new_values[:, :, :tokens], layer_idx)
    with pytest.raises(ValueError, match="must be of the same rows and tokens"):
        cache.update(keys, values[:, :, :2], 0)
    with pytest.raises(ValueError, match="repeats must be a whole number of at least 1, got 0"):
        cache.batch_repeat_interleave(0)
    with pytest.raises(IndexError, match=r"this cache holds 2 rows, asked for \[0, 5\]"):
        cache.batch_select_indices(torch.tensor([0, 5]))
    for rows in ("x", 1, None, [0.5], [[0, 1]], torch.tensor(1)):
        with pytest.raises(ValueError, match="indices must be a list or a LongTensor of rows, or a BoolTensor over all, got"):
            cache.batch_select_indices(rows)
        with pytest.raises(ValueError, match="beam_idx must be a list or a LongTensor of rows"):
            cache.reorder_cache(rows)
    for tokens in ("x", None, [3], 2.5, float("inf")):
        with pytest.raises(CropError, match="crop takes a whole number of tokens, got"):
            cache.crop(tokens)
    fresh = filled(everything(name))
    assert [layer.get_seq_length() for layer in cache.layers] == [30, 30]
    assert all(torch.equal(a, b) for ours, theirs in zip(cache, fresh) for a, b in zip(ours, theirs))


# Names that 4.48 has beside those of transformers 5


def test_cropping_by_its_old_names():
    cache, pair = filled(DynamicCache()), EncoderDecoderCache(self_attention_cache=filled(DynamicCache()), cross_attention_cache=DynamicCache())
    cache.crop(max_length=-10)
    pair.crop(maximum_length=12)
    assert (cache.get_seq_length(), pair.get_seq_length()) == (20, 12)


def test_a_number_of_layers_says_nothing():
    legacy = filled(DynamicCache(num_hidden_layers=2)).to_legacy_cache()
    cache = DynamicCache.from_legacy_cache(legacy, 2)
    parts = cache.batch_split(2, 1, num_hidden_layers=2)
    assert torch.equal(DynamicCache.from_batch_splits(parts, num_hidden_layers=2)[1][0], legacy[1][0])
    pair = EncoderDecoderCache(cache, DynamicCache())
    assert EncoderDecoderCache.from_batch_splits(pair.batch_split(2, 1, 2), 2).get_seq_length() == 30


@pytest.mark.parametrize("made", [StaticCache, kvcache.OffloadedStaticCache, kvcache.HybridCache, SlidingWindowCache])
def test_static_caches_say_what_they_were_made_for(made):
    config = {kvcache.HybridCache: model_of("gemma2"), SlidingWindowCache: model_of("mistral")}.get(made, model_of("llama")).config
    cache = made(config, 3, 64, "cpu", torch.bfloat16)
    assert (cache.max_batch_size, cache.max_cache_len, cache.dtype, str(cache.device)) == (3, 64, torch.bfloat16, "cpu")
    assert (cache.num_key_value_heads, cache.head_dim) == (2, 16) == tuple(cache.layers[0].keys.shape[1::2])
    later = made(config, max_cache_len=64)
    assert (later.max_batch_size, later.dtype, later.device) == (None, None, None)
    later.update(*states(rows=2), 0)
    assert (later.max_batch_size, later.dtype, str(later.device)) == (2, torch.float32, "cpu")


def test_quantised_caches_say_how_they_round():
    settings = dict(nbits=8, axis_key=1, axis_value=0, q_group_size=32, residual_length=96, compute_dtype=torch.float16, device="cpu")
    cache = kvcache.HQQQuantizedCache(kvcache.QuantizedCacheConfig("HQQ", **settings))
    assert {name: getattr(cache, name) for name in settings} == settings
    assert QuantizedCache().q_group_size == 64
    with pytest.raises(AttributeError):
        cache.nbits = 2  # nothing would follow from it


def test_a_mamba_cache_knows_its_sizes():
    one, two = kvcache.MambaCache(model_of("mamba").config, 2, torch.float16), kvcache.MambaCache(model_of("mamba2").config)
    assert (one.max_batch_size, one.dtype, one.intermediate_size, one.ssm_state_size, one.conv_kernel_size) == (2, torch.float16, 128, 8, 4)
    assert (two.max_batch_size, two.dtype, two.intermediate_size) == (None, None, 128)


def test_states_are_read_as_one_tensor():
    cache = kvcache.MambaCache(model_of("mamba").config, 2)
    kvcache.feed(model_of("mamba"), token_ids(2, 9), cache)
    whole = torch.stack(list(cache.ssm_states))
    assert cache.ssm_states.shape == whole.shape == (2, 2, 128, 8) and cache.ssm_states.dtype == torch.float32
    for index in (0, -1, (1, 0), (0, slice(1), 5), (slice(None), 1), (..., 3), slice(1, 2), torch.tensor([1, 0])):
        assert torch.equal(cache.ssm_states[index], whole[index])
    assert torch.equal(cache.ssm_states, whole) and torch.equal(cache.ssm_states.sum(0), whole.sum(0))
    with pytest.raises(AttributeError, match="zero_ would change a copy"):
        cache.ssm_states.zero_()
    with pytest.raises(ValueError, match="allocated by the first tokens"):
        kvcache.MambaCache(model_of("mamba").config).conv_states[0, 0]


def test_states_are_assigned_as_one_tensor_and_held():
    cache, whole = kvcache.MambaCache(model_of("mamba").config, 2), torch.randn(2, 2, 128, 4, generator=torch.Generator().manual_seed(0))
    cache.conv_states[0] = whole[0]
    cache.conv_states[1, 0] = whole[1, 0]
    cache.conv_states[1:, 1] = whole[1:, 1]
    cache.conv_states[0] += 1
    assert torch.equal(cache.conv_states, torch.stack([whole[0] + 1, whole[1]]))
    assert torch.equal(cache.fork().conv_states, cache.conv_states) and cache.has_previous_state()


@pytest.mark.parametrize("backend,axes", [("quanto", (-1, 0)), ("hqq", (0, 1)), ("native", (0, 1))])
def test_a_backend_by_name_is_its_class_and_takes_4_48s_axes(backend, axes, tmp_path):
    model, ids = model_of("llama"), token_ids(2, 60)
    settings = dict(zip(("axis_key", "axis_value"), axes), residual_length=16, q_group_size=32)
    cache = kvcache.create("quantized", model, backend=backend, **settings)
    assert type(cache) is {"quanto": kvcache.QuantoQuantizedCache, "hqq": kvcache.HQQQuantizedCache, "native": QuantizedCache}[backend]
    assert cache.layers[0].axes == {"key": "channel", "value": "token"} and (cache.axis_key, cache.axis_value) == axes
    logits_with_cache(model, ids, cache, [(0, 59)])
    cache.save(tmp_path / "it")
    others = [kvcache.load_cache(tmp_path / "it", model), cache.fork(), pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache), type(cache).from_batch_splits(cache.batch_split(2, 1))]
    expected = logits_with_cache(model, ids[:, 59:], cache, [(0, 1)])
    assert all(type(other) is type(cache) and torch.equal(logits_with_cache(model, ids[:, 59:], other, [(0, 1)]), expected) for other in others)
    made = kvcache.generate.__globals__["make_cache"](model, "quantized", {"backend": backend})
    assert type(made) is type(cache)


def test_an_axis_that_a_backend_does_not_know_is_named():
    with pytest.raises(ValueError, match=r"axis_key must be 0 \(per token\) or -1 \(per channel\) for quanto.*got 1"):
        kvcache.create("quantized", model_of("llama"), backend="quanto", axis_key=1)
    with pytest.raises(ValueError, match="axis_value must be one of auto, channel, token, 0, 1, -1, got 2"):
        kvcache.create("quanto", model_of("llama"), axis_value=2)
