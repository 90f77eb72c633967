"""Evicting by policy: the tokens that stay are those of each policy's slow formula, and the bytes of the others are gone."""

import copy
import random
import sys

import pytest
import torch
import transformers
from architectures import chunks, logits_with_cache, logits_without_cache, model_of, tiny, token_ids
from slow import SCORES, slow

import kvcache
from kvcache.caches.evicting import EVERY, PolicyLayer
from kvcache.policies import POLICIES, Policy, policy_of
from kvcache.policies.snapkv import SnapKV

CLOSE = dict(atol=2e-4, rtol=1e-4)  # as elsewhere: float32 sums in another order
PIECES = [(0, 50), (50, 57), *((i, i + 1) for i in range(57, 140))]


def evicting(model, **settings):
    return kvcache.create("evicting", model, **{"budget": 24, "last_tokens": 8, **settings})


def fed(model, cache, ids, pieces):
    """[B, T, V], the plain forwards of a user's own loop."""
    return logits_with_cache(model, ids, cache, pieces)


@pytest.mark.parametrize("budget", [24, 0.4])
@pytest.mark.parametrize("policy", SCORES)
def test_a_policy_keeps_what_its_slow_formula_keeps(policy, budget):
    model, ids = model_of("llama"), token_ids(2, 140)
    least = {"budget": 48} if policy_of(policy).queries > 8 and budget == 24 else {"budget": budget}  # above what stays in any case
    settings = {**least, "policy": policy}
    cache = evicting(model, **settings)
    torch.testing.assert_close(fed(model, cache, ids, PIECES), fed(model, slow(evicting(model, **settings)), ids, PIECES), **CLOSE)
    assert cache.held_length() < cache.get_seq_length() == 140


BITS, CODES = [(8, 8), (4, 4), (4, 2), (2, 2)], {"key_bits": 4, "value_bits": 2}


class Oldest(Policy):
    name, paper = "oldest", ""

    def score(self, held):
        return -torch.arange(held.keys.shape[2], dtype=torch.float32).expand(held.keys.shape[:3])


def same_codes(found, right):
    """Logits that are the same but for a code or a scale in thousands, which a sum in another order rounds the other way: by then some differ a little."""
    off = (found - right).abs()
    assert off.mean() < 2e-4 and off.max() < 0.05, (off.mean(), off.max())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("policy", SCORES)
@pytest.mark.parametrize("budget", [48, 0.4])
def test_codes_that_stay_are_those_of_the_slow_formula_and_were_rounded_once(policy, budget, bits):
    model, ids = model_of("qwen3" if budget == 48 else "llama"), token_ids(2, 140)
    settings = {"budget": budget, "policy": policy, "key_bits": bits[0], "value_bits": bits[1]}
    cache = evicting(model, **settings)
    same_codes(fed(model, cache, ids, PIECES), fed(model, slow(evicting(model, **settings)), ids, PIECES))
    assert cache.held_length() < cache.get_seq_length() == 140 and all(layer.coded for layer in cache.layers)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("first_tokens,last_tokens", [(0, 0), (0, 8), (3, 0), (4, 8)])
def test_codes_are_those_of_the_slow_formula_in_any_pieces(first_tokens, last_tokens, seed):
    """Some budgets leave no code at all for a while."""
    model, ids = model_of("llama"), token_ids(2, 150, seed)
    settings = {"budget": [16, 0.08, 0.3, 110][seed % 4], "first_tokens": first_tokens, "last_tokens": last_tokens, "policy": ["mean_attention", "keydiff", "h2o"][seed % 3], "key_bits": 4, "value_bits": 4}
    pieces = [*chunks(100, seed), *((i, i + 1) for i in range(100, 150))]
    same_codes(fed(model, evicting(model, **settings), ids, pieces), fed(model, slow(evicting(model, **settings)), ids, pieces))


def test_every_policy_has_a_formula_a_paper_and_a_sentence():
    assert set(SCORES) == set(POLICIES)
    for name, policy in POLICIES.items():
        assert policy.name == name and policy.paper.startswith("https://arxiv.org/abs/") and policy.paper.rsplit("/", 1)[1] in policy.__doc__


@pytest.mark.parametrize("bits", [{}, CODES], ids=["16 bits", "codes"])
@pytest.mark.parametrize("policy", POLICIES)
def test_row_by_row_is_as_all_rows_together(policy, bits):
    model, ids = model_of("qwen3"), token_ids(3, 130)
    together = fed(model, evicting(model, policy=policy, budget=0.4, **bits), ids, PIECES[:60])
    for row in range(3):
        alone = fed(model, evicting(model, policy=policy, budget=0.4, **bits), ids[row : row + 1], PIECES[:60])
        torch.testing.assert_close(alone, together[row : row + 1], **CLOSE)


@pytest.mark.parametrize("bits", [{}, CODES], ids=["16 bits", "codes"])
@pytest.mark.parametrize("budget", [24, 0.5])
@pytest.mark.parametrize("policy", ["mean_attention", "h2o", "tova", "lagkv"])
def test_a_padded_row_says_what_it_says_alone(policy, budget, bits):
    """Its padding is never counted and goes first, and it evicts when it would alone, though the rows beside it are longer."""
    model, ids = model_of("llama"), token_ids(3, 130)
    mask = torch.ones_like(ids)
    padding = (9, 0, 30) if bits and budget == 0.5 else (9, 0, 37)  # no row as short as what stays in any case
    for row, count in enumerate(padding):
        mask[row, :count] = 0
    cache = evicting(model, policy=policy, budget=budget, **bits)
    pieces = [(0, 60), *((i, i + 1) for i in range(60, 120)), (120, 130)]
    with torch.no_grad():
        together = torch.cat([kvcache.feed(model, ids[:, a:b], cache, attention_mask=mask[:, :b]) for a, b in pieces], dim=1)
        for row, count in enumerate(padding):
            alone = evicting(model, policy=policy, budget=budget, **bits)
            right = torch.cat([kvcache.feed(model, ids[row : row + 1, max(a, count) : b], alone) for a, b in pieces], dim=1)
            torch.testing.assert_close(together[row : row + 1, count:], right, **CLOSE)


@pytest.mark.parametrize("bits", [{}, {"key_bits": 8, "value_bits": 8}], ids=["16 bits", "codes"])
def test_padding_may_reach_over_the_first_chunks(bits):
    """Rows are rounded from where the shortest can be: later than alone, by 8 bits here, which say nearly the same."""
    model, ids = model_of("llama"), token_ids(2, 90)
    mask = torch.ones_like(ids)
    mask[0, :33] = 0
    cache, alone = evicting(model, **bits), evicting(model, **bits)
    with torch.no_grad():
        found = torch.cat([kvcache.feed(model, ids[:, a : a + 15], cache, attention_mask=mask[:, : a + 15]) for a in range(0, 90, 15)], dim=1)
        right = torch.cat([kvcache.feed(model, ids[:1, max(a, 33) : a + 15], alone) for a in range(30, 90, 15)], dim=1)
    torch.testing.assert_close(found[:1, 33:], right, **(dict(atol=0.03, rtol=0.03) if bits else CLOSE))
    assert not bits or cache.layers[0].coded


def test_padding_behind_tokens_is_refused():
    model, ids = model_of("llama"), token_ids(2, 60)
    mask = torch.ones_like(ids)
    mask[0, 50:] = 0
    with pytest.raises(ValueError, match="cannot take rows with padding behind tokens"):
        kvcache.feed(model, ids, evicting(model), attention_mask=mask)
    cache = evicting(model)
    kvcache.feed(model, ids, cache)
    with pytest.raises(ValueError, match="cannot take rows with padding behind tokens"):
        kvcache.feed(model, ids[:, :5], cache, attention_mask=torch.cat([mask.flip(1), torch.ones(2, 5, dtype=torch.long)], dim=1))


@pytest.mark.parametrize("name", ["gemma3", "mistral", "gpt2", "phi"])
def test_models_with_windows_and_without_rotation(name):
    """A model's own windows stay its own; one without a layer of full attention is refused."""
    model, ids = model_of(name), token_ids(1, 100)
    if name == "mistral":
        with pytest.raises(ValueError, match="no full-attention layer"):
            evicting(model)
        return
    wide, narrow = evicting(model, budget=512), evicting(model)
    torch.testing.assert_close(fed(model, wide, ids, chunks(100, 1)), logits_without_cache(model, ids), **CLOSE)
    assert fed(model, narrow, ids, chunks(100, 1)).isfinite().all() and narrow.held_length() < 100


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [1, 20, 90, 300])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_bytes_are_predicted_to_the_last_and_those_of_evicted_tokens_are_gone(name, tokens, policy):
    model = model_of(name)
    for settings in ({"budget": 64}, {"budget": 64, **CODES}, {"budget": 512, "first_tokens": 0, **CODES}, {"budget": 0.25, **CODES}, {"budget": 0.25}):
        cache = evicting(model, policy=policy, **settings)
        with torch.no_grad():
            model(token_ids(2, tokens), past_key_values=cache)
        predicted = kvcache.predict_memory("evicting", model, tokens, 2, policy=policy, last_tokens=8, **settings)
        assert predicted.by_kind() == kvcache.measure_memory(cache).by_kind()
    assert tokens < 300 or kvcache.measure_memory(cache).total < 0.5 * kvcache.predict_memory("dynamic", model, tokens, 2).total or name == "gemma3"


@pytest.mark.parametrize("policy", ["mean_attention", "lagkv"])
def test_a_long_prompt_in_chunks_never_holds_more_than_the_budget_and_a_chunk(policy, monkeypatch):
    model, ids, held = model_of("llama"), token_ids(1, 400), []
    cache = evicting(model, policy=policy, budget=40)
    cache.at_once = 50
    update = PolicyLayer.update

    def watched(layer, keys, values, *args, **kwargs):
        handed = update(layer, keys, values)
        held.append(handed[0].shape[2])
        return handed

    monkeypatch.setattr(PolicyLayer, "update", watched)
    with torch.no_grad():
        kvcache.feed(model, ids, cache)
    assert max(held) == 90 and cache.held_length() == 40 and cache.get_seq_length() == 400


def test_decoding_evicts_every_so_many_tokens_and_holds_no_more():
    model, ids = model_of("llama"), token_ids(1, 200)
    cache, lengths = evicting(model), []
    for a, b in [(0, 60), *((i, i + 1) for i in range(60, 200))]:
        fed(model, cache, ids, [(a, b)])
        lengths.append(cache.held_length())
    assert lengths[0] == 24 and max(lengths) == 24 + EVERY - 1 and lengths.count(24) == 1 + 140 // EVERY


def test_the_first_and_the_latest_tokens_stay():
    model, ids = model_of("llama", layers=1), token_ids(1, 80)
    full, cache = kvcache.create("dynamic", model), evicting(model, first_tokens=3)
    fed(model, full, ids, [(0, 80)])
    fed(model, cache, ids, [(0, 80)])
    keys, kept = full.layers[0].keys, cache.layers[0].keys
    assert torch.equal(kept[:, :, :3], keys[:, :, :3]) and torch.equal(kept[:, :, -8:], keys[:, :, -8:])


@pytest.mark.parametrize("bits", [{}, CODES], ids=["16 bits", "codes"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_fork_and_a_file_go_on_as_the_cache_would(policy, bits, tmp_path):
    """Saved between two evictions, with queries that wait to be added up."""
    model, ids = model_of("llama"), token_ids(2, 140)
    pieces, rest = PIECES[:22], PIECES[22:]
    cache = evicting(model, policy=policy, budget=0.4, **bits)
    fed(model, cache, ids, pieces)
    cache.save(tmp_path / "cache", model)
    loaded, branch = kvcache.load_cache(tmp_path / "cache", model), cache.fork()
    fed(model, branch, token_ids(2, 60, seed=8), [(i, i + 1) for i in range(60)])
    right = fed(model, cache, ids, rest)
    torch.testing.assert_close(fed(model, loaded, ids, rest), right, atol=1e-5, rtol=0)  # the compiled loops may have come in between


def test_rows_of_a_batch_may_evict_each_by_a_policy_of_its_own():
    model, ids = model_of("llama"), token_ids(5, 100)
    rows, alone = ([evicting(model), kvcache.create("dynamic", model), evicting(model, policy="lagkv", budget=0.5), evicting(model, **CODES), evicting(model, policy="lagkv", **CODES)] for _ in range(2))
    for row, (one, other) in enumerate(zip(rows, alone)):
        for cache in (one, other):
            kvcache.feed(model, ids[row : row + 1, : 40 + 5 * row], cache)
    batch = kvcache.Batch(rows, model)
    for step in range(40):
        tokens = [int(ids[row, 40 + 5 * row + step]) for row in range(5)]
        together = kvcache.decode(model, batch, tokens)
        apart = torch.cat([kvcache.feed(model, torch.tensor([[token]]), cache)[:, -1] for token, cache in zip(tokens, alone)])
        torch.testing.assert_close(together, apart, **CLOSE)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_to_rounded_tokens_in_turn(seed, tmp_path):
    """Rows are chosen, repeated, copied, saved and loaded between pieces of text, and the slow formula's along with them."""
    chance, model = random.Random(seed), model_of("llama")
    settings = {"policy": chance.choice(["mean_attention", "snapkv", "keydiff"]), "budget": chance.choice([48, 0.5]), "first_tokens": chance.choice([0, 4]), "key_bits": 8, "value_bits": chance.choice([4, 8])}
    cache, right, rows = evicting(model, **settings), slow(evicting(model, **settings)), 3
    for turn in range(12):
        ids = token_ids(rows, chance.choice([1, 1, 3, 20, 45]), seed=100 * seed + turn)
        pieces = [(i, i + 1) for i in range(ids.shape[1])] if chance.random() < 0.5 else [(0, ids.shape[1])]
        same_codes(fed(model, cache, ids, pieces), fed(model, right, ids, pieces))
        what = chance.choice(["select", "repeat", "fork", "save", "copy"])
        if what in ("select", "repeat"):
            chosen = torch.arange(rows).repeat_interleave(2)[:4] if what == "repeat" else torch.tensor([chance.randrange(rows) for _ in range(chance.choice([2, 3]))])
            cache.batch_select_indices(chosen)
            right.reorder_cache(chosen)
            rows = len(chosen)
        elif what == "save":
            cache.save(tmp_path / "cache", model)
            cache = kvcache.load_cache(tmp_path / "cache", model)
        else:
            cache = cache.fork() if what == "fork" else copy.deepcopy(cache)


def test_eight_bits_say_nearly_what_sixteen_say_and_fewer_say_less():
    """Under a policy that chooses the same tokens whatever is rounded, and a budget that the prompt fills, so that both evict in step."""
    model, ids = model_of("llama"), token_ids(2, 140)
    exact, *others = (fed(model, kvcache.EvictingCache(model.config, Oldest(), 40, 4, 8, *bits), ids, PIECES) for bits in [(16, 16), *BITS])
    errors = [(other - exact).abs().mean().item() for other in others]
    assert errors == sorted(errors) and errors[0] < 0.01 * exact.std() and errors[0] < errors[1] / 8


@pytest.mark.parametrize("name", ["gemma3", "gemma2", "gpt2", "phi", "gpt_neox"])
def test_models_of_many_kinds_round_what_stays(name):
    model, ids = model_of(name), token_ids(1, 100)
    pieces = [*chunks(60, 1), *((i, i + 1) for i in range(60, 100))]
    settings = {"policy": "lagkv" if name == "gemma2" else "mean_attention"}  # gemma2 caps scores, which sdpa cannot
    exact, cache = fed(model, evicting(model, **settings), ids, pieces), evicting(model, **settings, key_bits=8, value_bits=8)
    assert (fed(model, cache, ids, pieces) - exact).abs().mean() < 0.05 * exact.std()
    assert any(getattr(layer, "coded", 0) for layer in cache.layers) and cache.held_length() < 100


def test_a_token_that_is_held_as_codes_is_never_rounded_again():
    model, ids = model_of("llama"), token_ids(1, 200)
    cache, layer = (cache := evicting(model, policy="lagkv", budget=150, key_bits=2, value_bits=2)), cache.layers[0]
    fed(model, cache, ids, [(0, 60)])
    before = layer.key_codes.view().clone()
    fed(model, cache, ids, [(i, i + 1) for i in range(60, 140)])
    assert torch.equal(layer.key_codes.view()[:, :, :48], before) and layer.coded == 48 + 64
    before = layer.key_codes.view().clone()
    fed(model, cache, ids, [(140, 200)])
    left = layer.key_codes.view()[0, 0]
    old, since = sum(any(torch.equal(code, other) for other in before[0, 0]) for code in left), 200 - (layer.held - len(left)) - before.shape[2]
    assert layer.held == 150 and 0 < since < len(left) <= old + since


def test_bits_that_cannot_be_are_refused_with_the_reason():
    model = model_of("llama")
    with pytest.raises(ValueError, match="both 16, which rounds nothing, or both fewer, got 16 and 4"):
        evicting(model, value_bits=4)
    with pytest.raises(ValueError, match="key_bits must be one of 16, 8, 4, 2, got 3"):
        evicting(model, key_bits=3, value_bits=3)
    with pytest.raises(ValueError, match="head_dim 12 is not a multiple of 8"):
        evicting(tiny("LlamaConfig", head_dim=12), **CODES)
    cache = evicting(model, policy="lagkv", budget=100, **CODES)
    fed(model, cache, token_ids(1, 50), [(0, 50)])
    with pytest.raises(ValueError, match="has rounded are codes"):
        cache.key_cache[0] = torch.zeros(1, 2, 50, 16)
    with pytest.raises(ValueError, match="has rounded are codes"):
        cache.layers[0].values.zero_()


@pytest.mark.parametrize("length", [45, 30, 11, 4, 2])
def test_going_back_among_codes_leaves_those_before_as_they_are(length):
    model, ids = model_of("llama"), token_ids(2, 60)
    cache = evicting(model, policy="keydiff", budget=100, **CODES)
    fed(model, cache, ids, [(0, 50)])
    before = [layer.keys[:, :, :length].clone() for layer in cache.layers]
    cache.crop(length)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before)) and cache.held_length() == cache.get_seq_length() == length
    found = fed(model, cache, ids, [(length, length + 1), (length + 1, 60)])
    if length <= 4:  # nothing but first tokens
        torch.testing.assert_close(found, logits_without_cache(model, ids)[:, length:], **CLOSE)
    assert found.isfinite().all() and cache.held_length() == 60


def test_a_padded_cache_that_has_evicted_nothing_is_read_in_the_order_of_its_tokens():
    model, ids = model_of("llama"), token_ids(2, 60)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    full, cache = kvcache.create("dynamic", model), evicting(model, budget=100, key_bits=8, value_bits=8)
    for each in (full, cache):
        kvcache.feed(model, ids, each, attention_mask=mask)
    keys, exact = (torch.stack([layer.readable()[0] for layer in each.layers]) for each in (cache, full))
    assert cache.layers[0].coded == 48 and (keys - exact)[:, mask.bool()[:, None].expand(-1, 2, -1)].abs().max() < 0.05 * exact.std()


@pytest.mark.parametrize("policy", POLICIES)
def test_attention_that_goes_around_the_seam_is_refused_by_what_goes_by_queries_and_suits_the_rest(policy):
    model, ids = model_of("llama"), token_ids(1, 60)
    right = fed(model, evicting(model, policy=policy, budget=48), ids, [(0, 55), (55, 60)])
    before, cache = model.config._attn_implementation, evicting(model, policy=policy, budget=48)
    try:
        model.set_attn_implementation("eager")
        if not policy_of(policy).needs_query:
            return torch.testing.assert_close(fed(model, evicting(model, policy=policy, budget=48), ids, [(0, 55), (55, 60)]), right, **CLOSE)
        with pytest.raises(ValueError, match=f"{policy} chooses by queries.*set_attn_implementation"):
            evicting(model, policy=policy, budget=48)
        with pytest.raises(ValueError, match=f"by the query what it keeps .{policy}.*attn_implementation='sdpa'"):
            fed(model, cache, ids, [(0, 60)])
    finally:
        model.set_attn_implementation(before)


def test_padded_rows_by_attention_that_goes_around_the_seam_are_refused():
    model, ids = model_of("llama"), token_ids(2, 60)
    mask, before = torch.ones_like(ids), model.config._attn_implementation
    mask[0, :5] = 0
    try:
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match="knows which of its rows are padding.*attn_implementation='sdpa'"):
            kvcache.feed(model, ids, evicting(model, policy="lagkv"), attention_mask=mask)
    finally:
        model.set_attn_implementation(before)


@pytest.mark.parametrize("kind", ["BloomConfig", "MptConfig"])
def test_models_that_add_a_bias_by_position_are_refused(kind):
    with pytest.raises(ValueError, match="adds a bias by position"):
        evicting(getattr(transformers, kind)(), policy="lagkv")


def test_a_bias_that_arrives_as_a_mask_is_refused():
    model, ids = model_of("llama"), token_ids(1, 40)
    mask = torch.full((1, 1, 40, 40), -1e30).triu(1) - torch.arange(40.0).flip(0)
    with pytest.raises(ValueError, match="adds a bias by position to attention"):
        model(ids, attention_mask=mask, past_key_values=evicting(model))


def test_models_that_keep_latents_take_the_policies_that_ask_no_query():
    model = tiny("DeepseekV3Config", num_hidden_layers=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=1, n_group=1, topk_group=1, first_k_dense_replace=1)
    with pytest.raises(ValueError, match="keeps latents"):
        evicting(model)
    assert fed(model, evicting(model, policy="keydiff"), token_ids(1, 60), [(0, 59), (59, 60)]).isfinite().all()


def test_values_are_checked():
    model = model_of("llama")
    for budget, sentence in ((0.0, "a share above 0"), (1.5, "a share above 0"), (36, "above the 36 tokens"), (True, "budget must be")):
        with pytest.raises(ValueError, match=sentence):
            kvcache.create("evicting", model, budget=budget)
    with pytest.raises(ValueError, match="policy must be one of mean_attention"):
        kvcache.EvictingCache(model.config, policy="nosuch")
    assert kvcache.create("evicting", model, budget="0.25").layers[0].budget == 0.25
    own = kvcache.EvictingCache(model.config, policy=SnapKV(window=8, pooling=3), budget=24, last_tokens=4)
    assert fed(model, own, token_ids(1, 60), [(0, 59), (59, 60)]).isfinite().all() and own.layers[0].last_tokens == 8


def test_a_policy_of_ones_own_is_a_dataclass_with_a_score():
    model, ids = model_of("llama", layers=1), token_ids(1, 80)
    full, cache = kvcache.create("dynamic", model), kvcache.EvictingCache(model.config, policy=Oldest(), budget=24, last_tokens=8)
    fed(model, full, ids, [(0, 80)])
    fed(model, cache, ids, [(0, 80)])
    keys = full.layers[0].keys
    assert torch.equal(cache.layers[0].keys, torch.cat([keys[:, :, :16], keys[:, :, -8:]], dim=2))


def test_going_back_is_refused_once_queries_have_counted():
    model, ids = model_of("llama"), token_ids(1, 60)
    for policy, tokens in (("mean_attention", 20), ("lagkv", 60)):
        cache = evicting(model, policy=policy)
        fed(model, cache, ids, [(0, tokens)])
        with pytest.raises(kvcache.CropError, match="reset"):
            cache.crop(10)
    fresh = evicting(model, policy="lagkv")
    fed(model, fresh, ids, [(0, 20)])
    fresh.crop(10)
    torch.testing.assert_close(fed(model, fresh, ids, [(10, 20)]), logits_without_cache(model, ids[:, :20])[:, 10:], **CLOSE)


def test_tokens_whose_queries_were_not_seen_are_refused():
    model = model_of("llama")
    full = kvcache.create("dynamic", model)
    fed(model, full, token_ids(1, 50), [(0, 50)])
    legacy, cache = full.to_legacy_cache(), kvcache.EvictingCache.from_legacy_cache(full.to_legacy_cache(), config=model.config, policy="lagkv", budget=40)
    assert cache.held_length() == 40
    cache = kvcache.EvictingCache.from_legacy_cache(legacy, config=model.config)
    with pytest.raises(ValueError, match="of which it saw no query"):
        fed(model, cache, token_ids(1, 5), [(0, 5)])
    with pytest.raises(ValueError, match="cannot be assigned"):
        cache.key_cache[0] = legacy[0][0]


# -- compacting ----------------------------------------------------------------------------------------------------

module = sys.modules["kvcache.compact"]  # the name in kvcache is the function's


def filled(model, ids, name="dynamic", **settings):
    cache = kvcache.create(name, model, **settings)
    with torch.no_grad():
        kvcache.feed(model, ids, cache)
    return cache


@torch.no_grad()
def slow_places(model, ids, count, instruction=()):
    """By layer and key head, the places that stay: the most attention that each key gets, by the weights that a model with eager attention gives, of one forward over the text twice."""
    twice, tokens = torch.cat([ids, torch.tensor([instruction], dtype=torch.long).expand(len(ids), -1), ids], dim=1), ids.shape[1]
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        attentions = model(twice, output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(before)
    places = []
    for attention in attentions:
        heads = model.config.num_key_value_heads
        most = attention.unflatten(1, (heads, -1))[:, :, :, tokens:, :tokens].amax((2, 3))
        most[..., :4] = most[..., -8:] = torch.inf
        places.append(most.topk(count).indices.sort().values)
    return places


@pytest.mark.parametrize("budget", [50, 0.5])
@pytest.mark.parametrize("instruction", [(), (5, 6, 7)])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_what_stays_is_what_any_query_of_the_repeated_text_attended_to_most(name, instruction, budget):
    model, ids = model_of(name), token_ids(2, 100)
    cache = filled(model, ids)
    made = kvcache.compact(model, cache, ids, budget, instruction=instruction)
    for layer, whole, places in zip(made.layers, cache.layers, slow_places(model, ids, 50, instruction)):
        assert torch.equal(layer.keys, whole.keys.gather(2, places[..., None].expand(-1, -1, -1, layer.keys.shape[3])))
    assert made.get_seq_length() == 100 and made.held_length() == 50 and cache.held_length() == 100


def test_a_text_is_repeated_piece_by_piece(monkeypatch):
    model, ids = model_of("llama"), token_ids(1, 90)
    cache = filled(model, ids)
    whole = module._needed(model, cache, ids, [])
    monkeypatch.setattr(module, "PIECE", 40)
    pieces = module._needed(model, cache, ids, [])
    assert all(pieces[index].shape == whole[index].shape and bool((pieces[index] > 0).all()) for index in whole)
    assert kvcache.compact(model, cache, ids, 60).held_length() == 60


def test_a_compacted_cache_goes_on_and_its_bytes_are_gone():
    model, ids = model_of("llama"), token_ids(1, 120)
    cache = filled(model, ids[:, :90])
    all_kept, made = kvcache.compact(model, cache, ids[:, :90], 90), kvcache.compact(model, cache, ids[:, :90], 0.5)
    pieces = [(90, 110), *((i, i + 1) for i in range(110, 120))]
    torch.testing.assert_close(logits_with_cache(model, ids, all_kept, pieces), logits_with_cache(model, ids, cache, pieces), **CLOSE)
    assert logits_with_cache(model, ids, made, pieces).isfinite().all() and made.held_length() == 45 + 30
    assert kvcache.measure_memory(made).used == 75 / 120 * kvcache.measure_memory(cache).used


def test_a_quantised_cache_and_one_with_windows_are_compacted(tmp_path):
    for name, kind, settings in (("llama", "quantized", {"residual_length": 16, "q_group_size": 32}), ("gemma3", "dynamic", {})):
        model, ids = model_of(name), token_ids(1, 100)
        made = kvcache.compact(model, filled(model, ids, kind, **settings), ids, 48)
        made.save(tmp_path / "cache", model)
        loaded, more = kvcache.load_cache(tmp_path / "cache", model), token_ids(1, 20, seed=3)
        right = logits_with_cache(model, more, made.fork(), [(0, 5), (5, 6), (6, 20)])
        assert torch.equal(logits_with_cache(model, more, loaded, [(0, 5), (5, 6), (6, 20)]), right) and made.held_length() == 48


def test_what_is_compacted_may_be_rounded_once():
    model, ids = model_of("llama"), token_ids(1, 100)
    cache, more = filled(model, ids), token_ids(1, 20, seed=3)
    exact, rounded = kvcache.compact(model, cache, ids, 60), kvcache.compact(model, cache, ids, 60, key_bits=8, value_bits=8)
    assert rounded.layers[0].coded == 60 - 36 and kvcache.measure_memory(rounded).used < 0.75 * kvcache.measure_memory(exact).used
    right = logits_with_cache(model, more, exact, [(0, 5), (5, 6), (6, 20)])
    assert (logits_with_cache(model, more, rounded, [(0, 5), (5, 6), (6, 20)]) - right).abs().mean() < 0.02 * right.std()
    for source in (filled(model, ids, "quantized", residual_length=16, q_group_size=32), filled(model, ids, "evicting", budget=200, **CODES)):
        with pytest.raises(ValueError, match="none is rounded twice"):
            kvcache.compact(model, source, ids, 60, key_bits=4, value_bits=4)
        assert kvcache.compact(model, source, ids, 60).held_length() == 60


def test_what_cannot_be_compacted_is_refused_with_the_reason():
    model, ids = model_of("llama"), token_ids(1, 100)
    cache = filled(model, ids)
    for wrong, sentence in (((cache, ids[:, :90], 50), "ids must be all 100 tokens"), ((cache, ids, 0), "a share above 0"), ((filled(model, ids, "evicting", budget=64), ids, 50), "has evicted 36 of 100 tokens")):
        with pytest.raises(ValueError, match=sentence):
            kvcache.compact(model, *wrong)
    with pytest.raises(ValueError, match="compacted by kvzip, got policy 'snapkv'"):
        kvcache.compact(model, cache, ids, 50, policy="snapkv")
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
            kvcache.compact(model, cache, ids, 50)
    finally:
        model.set_attn_implementation(before)
