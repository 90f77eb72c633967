"""Code that edits a cache by hand: what it writes is held from then on, or refused with a sentence. Nothing is lost in silence."""

import copy
import io
import pickle

import pytest
import torch
from architectures import logits_with_cache, logits_without_cache, model_of, token_ids
from stand_in import StandIn

import kvcache
from kvcache import DynamicCache, OffloadedStaticCache, QuantizedCache, SinkCache, SlidingWindowCache, StaticCache
from kvcache.read_only import ReadOnly

CLOSE = dict(atol=2e-4, rtol=1e-4)
CONFIG = model_of("llama").config
CODES = "keys and values that a cache has rounded are codes"


def states(tokens=8, rows=1, seed=0):
    return torch.randn(2, rows, 2, tokens, 16, generator=torch.Generator().manual_seed(seed))


def filled(cache, tokens=8):
    """The cache after as many tokens in each of two layers."""
    for layer_idx in range(2):
        cache.update(*states(tokens, seed=layer_idx), layer_idx)
    return cache


def quantized():
    return QuantizedCache(CONFIG, residual_length=0, q_group_size=32)


def shortened(cache, tokens):
    """As code for 4.48 takes tokens back: layer by layer, keys and then values."""
    for layer_idx in range(len(cache)):
        cache.key_cache[layer_idx] = cache.key_cache[layer_idx][:, :, :tokens]
        cache.value_cache[layer_idx] = cache.value_cache[layer_idx][:, :, :tokens]


def chosen(cache, tokens):
    """As code for 5.x does it, with values first."""
    for layer in cache.layers:
        layer.values = layer.values[:, :, :tokens]
        layer.keys = layer.keys[:, :, :tokens]


@pytest.mark.parametrize("take_back", [shortened, chosen])
@pytest.mark.parametrize("make", [DynamicCache, lambda: DynamicCache(CONFIG), lambda: SinkCache(64, 4, CONFIG), lambda: SlidingWindowCache(CONFIG, window_length=64), quantized])
def test_keys_and_values_that_are_assigned_are_what_a_model_goes_on_from(make, take_back):
    model, ids, cache = model_of("llama"), token_ids(2, 24), make()
    logits_with_cache(model, token_ids(2, 20), cache, [(0, 20)])
    take_back(cache, 15)
    assert cache.get_seq_length() == 15
    torch.testing.assert_close(logits_with_cache(model, ids[:, 15:], cache, [(0, 1), (1, 9)]), logits_without_cache(model, torch.cat([token_ids(2, 20)[:, :15], ids[:, 15:]], 1))[:, 15:], **CLOSE)


def test_rows_of_a_batch_can_be_chosen_by_assigning_them():
    model, ids, cache = model_of("llama"), token_ids(3, 24), DynamicCache()
    logits_with_cache(model, ids, cache, [(0, 20)])
    cache.key_cache = [keys[[2, 0]] for keys in cache.key_cache]
    cache.value_cache = [values[[2, 0]] for values in cache.value_cache]
    assert cache.batch_size == 2
    torch.testing.assert_close(logits_with_cache(model, ids[[2, 0], 20:], cache, [(0, 4)]), logits_without_cache(model, ids[[2, 0]])[:, 20:], **CLOSE)


def test_a_cache_is_built_by_appending():
    whole, cache = filled(DynamicCache()), DynamicCache()
    for keys, values in whole:
        cache.key_cache.append(keys)
        cache.value_cache.append(values)
    other = DynamicCache(CONFIG)
    other.key_cache, other.value_cache = whole.key_cache, list(whole.value_cache)
    for each in (cache, other):
        assert each.get_seq_length() == 8 and all(torch.equal(a, b) for ours, right in zip(each, whole) for a, b in zip(ours, right))
    cache.update(*states(2), 0)
    assert (cache.get_seq_length(0), whole.get_seq_length(0)) == (10, 8)


def test_a_layer_of_one_half_takes_no_token_until_it_has_the_other(tmp_path):
    model, cache = model_of("llama"), kvcache.create("dynamic", model_of("llama"))
    logits_with_cache(model, token_ids(1, 8), cache, [(0, 8)])
    cache.layers[0].keys = cache.layers[0].keys[:, :, :3]
    halved = r"assigned keys \(1, 2, 3, 16\) beside values \(1, 2, 8, 16\): they must be of the same rows and tokens"
    for refused in (lambda: cache.update(*states(1), 0), lambda: cache.crop(2), lambda: cache.save(tmp_path / "it", model), lambda: model(token_ids(1, 1), past_key_values=cache)):
        with pytest.raises(ValueError, match=halved):
            refused()
    cache.layers[0].values = cache.layers[0].values[:, :, :3]
    with pytest.raises(ValueError, match="layers have seen 3 and 8 tokens: assign those of every layer"):
        model(token_ids(1, 1), past_key_values=cache)
    cache.reset()
    cache.update(*states(1), 0)


@pytest.mark.parametrize("name", ["dynamic", "sliding_window", "sink", "quantized", "static"])
def test_what_can_not_be_keys_is_refused_and_changes_nothing(name):
    cache = filled(kvcache.create(name, model_of("llama")))
    before = cache.to_legacy_cache()
    for wrong in (None, [], torch.zeros(1, 8, 32)):
        with pytest.raises(ValueError, match=r"keys of a \w+Layer must be a tensor \[batch, heads, tokens, head_dim\], got"):
            cache.key_cache[0] = wrong
        with pytest.raises(ValueError, match="keys of a"):
            cache.key_cache = [cache.layers[0].keys.clone(), wrong]
    for edit in (lambda: cache.key_cache.pop(), lambda: cache.value_cache.clear(), lambda: cache.key_cache.append(before[0][0]), lambda: cache.key_cache.insert(0, before[0][0])):
        with pytest.raises(ValueError, match="this list shows what the layers hold|has the 2 layers of its model"):
            edit()
    with pytest.raises(ValueError, match="keys are assigned to all 2 layers of this cache, got those of 1"):
        cache.key_cache = [before[0][0]]
    assert all(torch.equal(a, b) for old, new in zip(before, cache.to_legacy_cache()) for a, b in zip(old, new))
    assert cache.get_seq_length() == 8


def test_in_place_edits_are_held():
    for cache in (filled(DynamicCache()), filled(SlidingWindowCache(window_length=6)), filled(StaticCache(CONFIG, max_cache_len=16)), filled(quantized())):
        before = cache.layers[0].values.clone()
        cache.layers[0].values.add_(1)
        cache.value_cache[0].mul_(2)
        cache[0][1].sub_(3)
        cache.layers[0].values -= 1
        torch.testing.assert_close(cache.layers[0].values, (before + 1) * 2 - 4)
        torch.testing.assert_close(cache.update(*states(1), 0)[1][:, :, -2], cache.layers[0].readable()[1][:, :, -2])


@pytest.mark.parametrize("make", [DynamicCache, lambda: SlidingWindowCache(window_length=64), lambda: StaticCache(CONFIG, max_cache_len=16), lambda: SinkCache(64, 4, CONFIG), quantized])
@pytest.mark.parametrize("editor", ["parent", "fork"])
def test_a_fork_and_its_parent_never_see_each_others_edits(make, editor):
    parent = filled(make())
    fork = parent.fork()
    edited, other = (parent, fork) if editor == "parent" else (fork, parent)
    right = [tensor.clone() for tensor in other.layers[0].readable()]
    edited.layers[0].values.add_(1)
    edited.layers[0].keys = edited.layers[0].keys * 2
    assert all(map(torch.equal, right, other.layers[0].readable()))
    edited.update(*states(3, seed=7), 0)
    assert all(map(torch.equal, right, other.layers[0].readable())) and other.get_seq_length() == 8


def test_what_is_decoded_refuses_every_change_and_reads_like_any_tensor():
    cache = filled(quantized(), 40)
    before = cache.to_legacy_cache()
    keys = cache.layers[0].keys
    changes = [
        lambda: keys.add_(1), lambda: keys[0, 0].zero_(), lambda: keys.__setitem__((0, 0), 0.0), lambda: keys.transpose(1, 2).mul_(2), lambda: keys.data.add_(1), lambda: keys.detach()[..., :3].copy_(keys[..., :3] * 2),
        lambda: torch.add(keys, 1, out=keys), lambda: torch.nn.functional.relu(keys, inplace=True), lambda: torch._foreach_add_([keys], 1.0), lambda: cache.key_cache[0].index_fill_(2, torch.tensor([0]), 0.0),
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(ValueError, match=CODES):
            change()
    with pytest.raises(ValueError, match="read-only"):
        cache.layers[0].keys.numpy()[:] = 0
    with torch.inference_mode(), pytest.raises(ValueError, match=CODES):
        cache.layers[0].keys.add_(1)
    with pytest.raises(ValueError, match=CODES):
        cache.layers[0].keys = before[0][0]
    assert all(torch.equal(a, b) for old, new in zip(before, cache.to_legacy_cache()) for a, b in zip(old, new))
    keys = cache.layers[0].keys
    made = [keys * 2, keys.clone(), keys + 0, copy.deepcopy(keys), pickle.loads(pickle.dumps(keys)), torch.cat([keys, keys]), before[0][0].clone().copy_(keys)]
    assert not any(isinstance(each, ReadOnly) for each in made) and all(each.add_(1) is each for each in made)
    assert torch.equal(keys, before[0][0]) and keys.tolist() == before[0][0].tolist() and keys.shape == (1, 2, 40, 16)
    torch.save(keys, saved := io.BytesIO())
    saved.seek(0)
    assert torch.equal(torch.load(saved), before[0][0])


def test_sinks_and_what_waits_elsewhere_refuse_edits_that_would_be_lost():
    sink, static = filled(SinkCache(16, 4, CONFIG)), OffloadedStaticCache(CONFIG, max_cache_len=32, link=StandIn(late=True))
    with pytest.raises(ValueError, match="those of the sinks are rotated anew from originals"):
        sink.layers[0].keys.add_(1)
    sink.layers[0].keys = sink.layers[0].keys + 1
    right = sink.layers[0].keys.clone()
    sink.update(*states(20, seed=3), 0)
    torch.testing.assert_close(sink.layers[0].sink_keys.view(), right[:, :, :4])
    with pytest.raises(ValueError, match="cannot be assigned to a SinkLayer that has evicted tokens"):
        sink.key_cache[0] = right
    filled(static)
    for edit in (lambda: static.layers[1].keys.add_(1), lambda: setattr(static.layers[1], "keys", static.layers[1].keys)):
        with pytest.raises(ValueError, match="OffloadedStaticCache"):
            edit()


def test_a_window_that_has_evicted_and_static_shapes_take_as_many_tokens_as_they_hold():
    window, static = filled(SlidingWindowCache(window_length=6)), filled(StaticCache(CONFIG, max_cache_len=16))
    for cache in (window, static):
        address, held = cache.layers[0].keys.data_ptr(), cache.layers[0].keys * 2
        cache.layers[0].keys = held
        assert torch.equal(cache.layers[0].keys, held) and cache.get_seq_length() == 8
    assert address == static.layers[0].keys.data_ptr()
    with pytest.raises(ValueError, match="keys of 3 tokens cannot be assigned to a WindowLayer that has seen 8 and holds 6"):
        window.key_cache[0] = window.key_cache[0][:, :, :3]
    with pytest.raises(ValueError, match=r"but for all of its room, \(1, 2, 16, 16\) .* crop\(\) takes tokens back"):
        static.key_cache[0] = static.key_cache[0][:, :, :3]


def test_states_that_are_assigned_are_held():
    model, ids, cache, other = model_of("mamba"), token_ids(1, 10), *(kvcache.create("mamba", model_of("mamba")) for _ in range(2))
    for each, seed in ((cache, 0), (other, 1)):
        kvcache.feed(model, token_ids(1, 9, seed), each)
    for layer, source in zip(other.layers, cache.layers):
        layer.conv_states[0], layer.recurrent_states[0] = source.conv_states[0], source.recurrent_states[0]
    torch.testing.assert_close(*(kvcache.feed(model, ids[:, 9:], each) for each in (cache, other)))
    with pytest.raises(ValueError, match="this cache holds states"):
        cache.layers[0].conv_states[0] = torch.zeros(2, 3)


def test_the_layers_of_a_pair_are_shown_and_not_taken():
    pair = kvcache.EncoderDecoderCache(filled(DynamicCache()), filled(DynamicCache()))
    with pytest.raises(TypeError):
        pair.layers[0] = pair.layers[1]
    assert pair.check_dynamic_cache("crop") is None  # as transformers asks before a crop, which then works
    pair.crop(-3)
    assert pair.get_seq_length() == 5
