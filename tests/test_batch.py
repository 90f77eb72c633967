"""A batch of caches: each row says what it says alone, whatever stands beside it, comes and goes."""

import copy
import random

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, RECURRENT, gpt_neo, model_of, tiny, token_ids

import kvcache
from kvcache import kernels
from kvcache.batch import BatchStates, why_no_pieces, why_not_batched
from kvcache.kernels import cpu

KINDS = {
    "dynamic": {},
    "static": {"max_cache_len": 200},
    "sliding_window": {"window_length": 16},
    "sink": {"window_length": 16, "num_sink_tokens": 4},
    "sliding_window of codes": {"window_length": 48, "residual_length": 8, "key_bits": 4, "value_bits": 4},
    "sink of codes": {"window_length": 48, "residual_length": 8, "key_bits": 4, "value_bits": 2},
    "quantized": {"nbits": 4, "residual_length": 16, "q_group_size": 32, "round_windows": True},
    "offloaded": {},
    "hybrid": {"max_cache_len": 200},
    "hybrid_mamba": {},
    "mamba": {},
    "offloaded_static": {"max_cache_len": 200},
}
BATCHED = [name for name in (*ARCHITECTURES, *RECURRENT) if name not in ("gemma2", "kimi_linear")]
STATES_ALONE = ("mamba", "falcon_mamba", "mamba2")  # whose states carry rounding on and make it larger: 3e-5 after ten tokens in float32, so they are compared in float64
TOLERANCE = 1e-5  # of the largest logit, in float32: products of other shapes are rounded otherwise


def filled(model, name, tokens, **parameters):
    cache = kvcache.create(name.split()[0], model, **parameters)
    with torch.no_grad():
        kvcache.feed(model, token_ids(1, tokens, seed=tokens), cache)
    return cache


def alone(model, cache, token):
    with torch.no_grad():
        return kvcache.feed(model, torch.tensor([[token]]), cache)[0, -1]


def assert_close(found, expected):
    tolerance = 1e-9 if found.dtype == torch.float64 else TOLERANCE
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def kinds_for(model):
    return [name for name in KINDS if not kvcache.ENTRIES[name.split()[0]].why_not(model)]


@pytest.mark.parametrize("name", BATCHED)
def test_rows_of_any_kinds_and_lengths_that_come_and_go_say_what_they_say_alone(name):
    model, chance = model_of(name), random.Random(name)
    if name in STATES_ALONE:
        model = copy.deepcopy(model).double()
    kinds = kinds_for(model)
    batch, twins = kvcache.Batch(model=model), []
    for _ in range(12):
        while len(twins) < 2 or chance.random() < 0.3:
            kind, tokens = chance.choice(kinds), chance.choice((1, 7, 25, 60))
            batch.join(filled(model, kind, tokens, **KINDS[kind]))
            twins.append(filled(model, kind, tokens, **KINDS[kind]))
        if len(twins) > 2 and chance.random() < 0.4:
            row = chance.randrange(len(twins))
            gone, twin = batch.leave(row), twins.pop(row)
            assert_close(alone(model, gone, 5), alone(model, twin, 5))
        ids = [chance.randrange(1, 97) for _ in twins]
        for found, twin, token in zip(kvcache.decode(model, batch, ids), twins, ids, strict=True):
            assert_close(found, alone(model, twin, token))
    assert batch.lengths() == [twin.tokens_seen or twin.layers[0].seen for twin in twins]


@pytest.mark.parametrize("name", BATCHED)
def test_pieces_of_any_lengths_beside_each_other_say_what_they_say_alone(name):
    """Chunks of prompts beside single tokens, on empty and on filled rows of any kinds; where a model can not, a sentence, and nothing has changed."""
    model, chance = model_of(name), random.Random(name)
    kinds = [kind for kind in kinds_for(model) if kind != "offloaded"] + ["evicting"] * (kvcache.ENTRIES["evicting"].why_not(model) is None)
    rows = [(kind, chance.choice((0, 7, 25, 60) if why_no_pieces(model) is None else (7, 25))) for kind in kinds]
    batch, twins = kvcache.Batch(model=model), []
    for kind, tokens in rows:
        for take in (batch.join, twins.append):
            take(filled(model, kind, tokens, **KINDS.get(kind, {"budget": 40})) if tokens else kvcache.create(kind.split()[0], model, **KINDS.get(kind, {"budget": 40})))
    for _ in range(6):
        pieces = [[chance.randrange(1, 97) for _ in range(chance.choice((1, 1, 1, 2, 9, 20)))] for _ in rows]
        pieces[chance.randrange(len(rows))] = [5, 6, 7]
        if why_no_pieces(model):
            before = batch.lengths()
            with pytest.raises(ValueError, match="takes one token a row in a batch: "):
                kvcache.decode(model, batch, pieces)
            assert batch.lengths() == before
            return
        for found, twin, piece in zip(kvcache.decode(model, batch, pieces), twins, pieces, strict=True):
            with torch.no_grad():
                assert_close(found, kvcache.feed(model, torch.tensor([piece]), twin)[0, -1])
    assert batch.lengths() == [twin.tokens_seen for twin in twins]


def test_rows_that_attend_by_themselves_do_so_in_a_batch():
    """Packed codes are read as they are, and an offloaded, a full and an empty row stand beside them."""
    model = model_of("llama")
    rows = [("quantized", 70), ("quantized", 33), ("static", 199), ("offloaded", 40), ("sink", 90)]
    batch = kvcache.Batch([filled(model, name, tokens, **KINDS[name]) for name, tokens in rows] + [kvcache.create("dynamic", model)])
    logits = kvcache.decode(model, batch, [3, 4, 5, 6, 7, 8])
    for found, (name, tokens), token in zip(logits, rows, (3, 4, 5, 6, 7)):
        assert_close(found, alone(model, filled(model, name, tokens, **KINDS[name]), token))
    assert_close(logits[5], model(torch.tensor([[8]])).logits[0, -1].detach())


def test_a_models_own_window_hides_what_a_row_holds_beyond_it():
    """A static row shorter than the window holds all its tokens, and one of 24 tokens slides."""
    model = model_of("mistral")
    rows = [("static", {"max_cache_len": 20}, 15), ("static", {"max_cache_len": 100}, 80), ("dynamic", {}, 50)]
    batch = kvcache.Batch([filled(model, name, tokens, **parameters) for name, parameters, tokens in rows])
    for found, (name, parameters, tokens) in zip(kvcache.decode(model, batch, [9, 9, 9]), rows):
        assert_close(found, alone(model, filled(model, name, tokens, **parameters), 9))


def test_a_forward_of_the_model_itself_takes_a_batch_with_its_positions():
    model = model_of("llama")
    rows = [filled(model, "dynamic", tokens) for tokens in (5, 30)]
    batch = kvcache.Batch(rows)
    assert batch.positions().tolist() == [[5], [30]]
    with torch.no_grad():
        logits = model(torch.tensor([[3], [4]]), past_key_values=batch, position_ids=batch.positions()).logits[:, -1]
    assert_close(logits[1], alone(model, filled(model, "dynamic", 30), 4))
    with pytest.raises(ValueError, match="position_ids=batch.positions"), torch.no_grad():
        model(torch.tensor([[3], [4]]), past_key_values=batch)
    assert batch.lengths() == [6, 31]


def test_a_row_without_room_is_named_and_no_row_has_changed():
    for architecture in ("llama", "bamba"):
        model = model_of(architecture)
        rows = [filled(model, "dynamic", 12), filled(model, "static", 20, max_cache_len=20)]
        batch = kvcache.Batch(rows)
        with pytest.raises(ValueError, match="row 1: StaticCache is full: .*max_cache_len=20"):
            kvcache.decode(model, batch, [3, 4])
        assert batch.lengths() == [12, 20] and batch.leave(1) is rows[1]
        assert_close(kvcache.decode(model, batch, [3])[0], alone(model, filled(model, "dynamic", 12), 3))


def test_a_row_whose_cache_breaks_in_mid_forward_leaves_the_others_as_they_were(monkeypatch):
    model = model_of("llama")
    rows = [filled(model, "dynamic", 12), filled(model, "quantized", 40, **KINDS["quantized"])]
    batch = kvcache.Batch(rows)
    monkeypatch.setattr(rows[1].layers[1], "update", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kvcache.decode(model, batch, [3, 4])
    monkeypatch.undo()
    assert batch.lengths()[0] == 12
    with pytest.raises(ValueError, match="row 1: a forward ended inside this QuantizedCache, by ZeroDivisionError"):
        kvcache.decode(model, batch, [3, 4])
    batch.leave(1)
    assert_close(kvcache.decode(model, batch, [3])[0], alone(model, filled(model, "dynamic", 12), 3))


def test_what_cannot_be_a_row_is_told_why():
    model, other = model_of("llama"), model_of("qwen2")
    row = filled(model, "dynamic", 3)
    two = kvcache.create("dynamic", model)
    kvcache.feed(model, token_ids(2, 4), two)
    for cache, reason in {
        row: "it is one already; fork",
        two: "it holds 2 rows; batch_split",
        kvcache.DynamicCache(): "made without a config",
        transformers.DynamicCache(): "none of kvcache's",
        filled(other, "dynamic", 3): "made for another model, a qwen2",
        transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache()): "texts of an encoder",
    }.items():
        batch = kvcache.Batch([row])
        with pytest.raises(ValueError, match=reason):
            batch.join(cache)
        assert batch.rows == [row]
    with pytest.raises(ValueError, match="its recurrent states cannot begin"):
        kvcache.decode(model_of("mamba"), kvcache.Batch([kvcache.create("mamba", model_of("mamba"))]), [3])
    with pytest.raises(ValueError, match="give model="):
        kvcache.Batch([kvcache.create("dynamic", model.config)])
    assert kvcache.Batch([kvcache.create("dynamic", model.config)], model).batch_size == 1


def test_other_shapes_and_operations_are_refused_before_anything_changes():
    model = model_of("llama")
    batch = kvcache.Batch([filled(model, "dynamic", 3), filled(model, "dynamic", 4)])
    for ids in ([1], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"one token for each of its 2 rows, \[2, 1\], got"):
            kvcache.decode(model, batch, ids)
    with pytest.raises(ValueError, match=r"got \[2, 3\]; kvcache.feed"), torch.no_grad():
        model(token_ids(2, 3), past_key_values=batch, position_ids=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="one of batch.rows"):
        batch.crop(-1)
    with pytest.raises(IndexError, match="2 rows, counted from 0, asked for row 2"):
        batch.leave(2)
    with pytest.raises(ValueError, match="join"):
        kvcache.decode(model, kvcache.Batch(model=model), [])
    with pytest.raises(ValueError, match="another model"):
        kvcache.decode(model_of("qwen2"), batch, [1, 2])
    assert batch.lengths() == [3, 4]


def test_models_that_cannot_batch_say_why():
    assert "attn_implementation='sdpa'" in why_not_batched(model_of("gemma2")) and "'eager'" in why_not_batched(model_of("gemma2"))
    assert "'eager'" in why_not_batched(tiny("BloomConfig")) and "no position_ids" in why_not_batched(tiny("RobertaConfig", is_decoder=True))
    for kind in ("dynamic", "longrope"):
        scaled = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 2.0, "original_max_position_embeddings": 512, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        assert f"its rotation ({kind}) changes with the longest row" in why_not_batched(tiny("LlamaConfig", rope_parameters=scaled))
    assert "has an encoder" in why_not_batched(transformers.T5ForConditionalGeneration(transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=50)))
    assert why_not_batched(gpt_neo()) and why_not_batched(model_of("kimi_linear"))
    with pytest.raises(ValueError, match="falcon cannot take a batch of caches: .*bias"):
        kvcache.Batch(model=tiny("FalconConfig", alibi=True, new_decoder_architecture=False))


def test_attention_that_is_set_to_another_kind_later_is_refused():
    model = tiny("LlamaConfig")
    batch = kvcache.Batch([filled(model, "dynamic", 3)])
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="model.set_attn_implementation\\('sdpa'\\)"):
        kvcache.decode(model, batch, [1])
    with pytest.raises(ValueError, match="its attention is 'eager'"):
        kvcache.Batch(model=model)
    assert batch.lengths() == [3]


def test_what_a_batch_hands_over_is_no_tensor_to_anything_but_attention():
    model = model_of("llama")
    batch = kvcache.Batch([filled(model, "dynamic", 3), filled(model, "dynamic", 8)])
    keys, _ = batch.update(torch.ones(2, 2, 1, 16), torch.ones(2, 2, 1, 16), 0)
    assert isinstance(keys, BatchStates) and keys.shape == (2, 2, 9, 16) and keys.dtype == torch.float32
    with pytest.raises(ValueError, match="scaled_dot_product_attention alone"):
        keys + 1
    with pytest.raises(ValueError, match="scaled_dot_product_attention alone"):
        torch.cat([keys, keys])


@pytest.mark.parametrize("shape", [(4, 2, 16), (2, 4, 40), (1, 1, 64)])
def test_rows_that_lie_apart_attend_in_one_call_as_each_does_alone(shape):
    """Grouped heads, spans that leave out tokens at either end, storage that goes on behind them, values of another size."""
    heads, group, dim = shape
    assert cpu.APART.ready(wait=True), cpu.APART.reason
    torch.manual_seed(0)
    query, spans = torch.randn(3, heads, group, dim), [(0, 1), (3, 90), (7, 41)]
    keys, values = ([torch.randn(1, heads, 120, size)[:, :, :n] for n in (5, 120, 41)] for size in (dim, dim + 8))
    with torch.no_grad():
        found = kernels.attention_apart(query, keys, values, spans, 0.3)
    for n, (first, last) in enumerate(spans):
        expected = torch.nn.functional.scaled_dot_product_attention(query[n : n + 1], keys[n][:, :, first:last], values[n][:, :, first:last], scale=0.3)
        torch.testing.assert_close(found[n : n + 1], expected, atol=2e-6, rtol=1e-5)  # sums come in another order


def test_a_batch_attends_by_the_loops_where_rows_are_plain_and_one_by_one_where_not(monkeypatch):
    assert cpu.APART.ready(wait=True)
    model, taken = model_of("llama"), []
    apart = kernels.attention_apart
    monkeypatch.setattr(kernels, "attention_apart", lambda query, *rest: taken.append(query.shape[0]) or apart(query, *rest))
    rows = [("dynamic", 12), ("quantized", 150), ("sink", 40), ("static", 30)]
    batch = kvcache.Batch([filled(model, name, tokens, **KINDS[name]) for name, tokens in rows])
    for found, (name, tokens), token in zip(kvcache.decode(model, batch, [3, 4, 5, 6]), rows, (3, 4, 5, 6)):
        assert_close(found, alone(model, filled(model, name, tokens, **KINDS[name]), token))
    assert set(taken) == {3}
