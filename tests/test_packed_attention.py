"""Attention straight over packed codes equals decoding first, and whatever else touches packed tensors gets decoded ones."""

import sys
import threading

import pytest
import torch
from architectures import model_of, token_ids
from transformers.integrations.sdpa_attention import repeat_kv

import kvcache
from kvcache.attention import CachedStates
from kvcache.caches.quantized import QuantizedLayer, QuantizedWindowLayer
from kvcache.caches.sink import QuantizedSinkLayer
from kvcache.kernels import cpu, decode_attention, threads, weights
from kvcache.kernels import packed as pieces
from kvcache.kernels.packed import Packed
from kvcache.quantize import Encoded, Scheme, native_keys, native_values

CLOSE = dict(atol=2e-5, rtol=1e-4)
SDPA = torch.nn.functional.scaled_dot_product_attention


def made(nbits=4, block=32, residual=40, attention="fused", backend="native", **settings):
    """A layer as caches make it: the first tokens in full, and our own levels of rotated states."""
    return QuantizedLayer(backend, nbits, block, residual, attention=attention, **{"first_tokens": 4, "rotate": backend == "native", **settings})


def filled(nbits=4, dim=64, batch=2, heads=3, tokens=150, value_dim=None, **settings):
    """A layer that has seen `tokens`, and what its next update returned."""
    layer = made(nbits, **settings)
    generator = torch.Generator().manual_seed(tokens + dim)
    states = [torch.randn(batch, heads, tokens + 1, d, generator=generator) for d in (dim, value_dim or dim)]
    layer.update(*(s[:, :, :tokens] for s in states))
    return layer, layer.update(*(s[:, :, tokens:] for s in states))


@pytest.fixture(params=["fused", "decode"])
def how(request, monkeypatch):
    """Who reads the codes: the compiled loops, or torch in pieces that are small for a test."""
    monkeypatch.setitem(pieces.PIECE, "cpu", 64)
    return request.param


@pytest.fixture(params=[(1, True), (2, True), (3, True), (64, True), (3, False)], ids=str)
def sharing(request, monkeypatch):
    """So many of them share whatever there is to do: torch's, or where it lends none our own."""
    number, lent = request.param
    monkeypatch.setattr(threads, "EACH", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: number)
    if not lent:
        monkeypatch.setattr(cpu, "team_address", lambda: 0)


def queries(batch, heads, dim, tokens=1):
    return torch.randn(batch, heads, tokens, dim, generator=torch.Generator().manual_seed(dim))


def dense(states):
    assert all(isinstance(s, CachedStates) for s in states), "these should have stayed packed"
    return [s.held.dense() for s in states]


@pytest.mark.parametrize("nbits", [8, 4, 2])
@pytest.mark.parametrize("dim", [8, 32, 64, 80, 96, 112, 128, 256])
def test_packed_attention_equals_decoding_first_for_every_head_dim(nbits, dim, how):
    _, states = filled(nbits, dim, attention=how)
    for groups in (1, 2, 3, 8):
        query = queries(2, 3 * groups, dim)
        grouped = dict(enable_gqa=True) if groups > 1 else {}
        torch.testing.assert_close(SDPA(query, *states, **grouped), SDPA(query, *dense(states), **grouped), **CLOSE)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("tokens", [133, 191, 700])
def test_every_block_size_and_length(block, tokens, how):
    _, states = filled(block=block, tokens=tokens, residual=0, attention=how)
    query = queries(2, 3, 64)
    torch.testing.assert_close(SDPA(query, *states, scale=0.3), SDPA(query, *dense(states), scale=0.3), **CLOSE)


@pytest.mark.parametrize("backend", ["hqq", "quanto"])
def test_other_backends_codes_are_read_too(backend, how):
    _, states = filled(backend=backend, attention=how)
    torch.testing.assert_close(SDPA(queries(2, 3, 64), *states), SDPA(queries(2, 3, 64), *dense(states)), **CLOSE)


@pytest.mark.parametrize("nbits", [3, 1])
def test_widths_that_the_loops_do_not_read_go_in_pieces(nbits):
    _, states = filled(nbits, backend="hqq", attention="auto")
    assert not cpu.takes(queries(2, 3, 64), states[0].held, states[1].held, None)
    torch.testing.assert_close(SDPA(queries(2, 3, 64), *states), SDPA(queries(2, 3, 64), *dense(states)), **CLOSE)


def test_keys_and_values_of_different_widths(how):
    _, states = filled(dim=96, value_dim=64, attention=how)
    torch.testing.assert_close(SDPA(queries(2, 3, 96), *states), SDPA(queries(2, 3, 96), *dense(states)), **CLOSE)


@pytest.mark.parametrize("bits", [(4, 2), (2, 8), (8, 4)])
@pytest.mark.parametrize("tokens", [1, 5])
def test_keys_and_values_of_different_bits(bits, tokens, how):
    layer, states = filled(dim=80, key_bits=bits[0], value_bits=bits[1], attention=how)
    assert (layer.key_codes.data.shape[3], layer.value_codes.data.shape[3]) == (10 * bits[0], 10 * bits[1])
    assert how == "decode" or cpu.takes(queries(2, 6, 80), *(each.held for each in states), None, wait=True)
    for query in (queries(2, 6, 80, tokens), queries(2, 3, 80, tokens)):
        heads = dict(enable_gqa=query.shape[1] > 3)
        torch.testing.assert_close(SDPA(query, *states, **heads), SDPA(query, *dense(states), **heads), **CLOSE)


@pytest.mark.parametrize("layer", [QuantizedWindowLayer, QuantizedSinkLayer])
@pytest.mark.parametrize("seen", [95, 130, 131, 163, 400])
@pytest.mark.parametrize("tokens", [1, 5, 80])
def test_a_window_that_begins_within_a_block_is_read_without_decoding_it(layer, seen, tokens, how, sharing):
    """With and without a mask, whose columns are those of the tokens that are seen."""
    layer = layer("native", 4, 32, 8, attention=how, first_tokens=4, rotate=True, window_length=100)
    states = [torch.randn(2, 3, seen + tokens, 64, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    layer.update(*(each[:, :, :seen] for each in states))
    held = layer.update(*(each[:, :, seen:] for each in states))
    total = min(seen, 99) + tokens
    assert held[0].shape == (2, 3, total, 64) and held[0].held.packed
    keep = torch.rand(2, 1, tokens, total, generator=torch.Generator().manual_seed(seen)) < 0.7
    for mask in (None, keep, torch.where(keep, 0.1, -1e4)):
        query = queries(2, 6, 64, tokens)
        torch.testing.assert_close(SDPA(query, *held, attn_mask=mask, enable_gqa=True), SDPA(query, *dense(held), attn_mask=mask, enable_gqa=True), **CLOSE)
    assert layer.read_by == ("numba" if how == "fused" and tokens == 1 else "torch")


@pytest.mark.parametrize("first", [0, 1, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotate", [True, False])
def test_first_tokens_take_part_in_full_precision(first, rotate, dtype, how, sharing):
    """Before the codes, in whichever span begins there; a mask is counted from them on."""
    layer = made(attention=how, first_tokens=first, rotate=rotate)
    states = [torch.randn(2, 3, 301, 64, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2)]
    layer.update(*(each[:, :, :300] for each in states))
    held = layer.update(*(each[:, :, 300:] for each in states))
    assert all(torch.equal(decoded[:, :, :first], given[:, :, :first]) for decoded, given in zip(dense(held), states))
    keep = torch.rand(2, 1, 1, 301, generator=torch.Generator().manual_seed(first)) < 0.7
    close = CLOSE if dtype == torch.float32 else dict(atol=2e-2, rtol=2e-2)  # torch adds up in bfloat16
    for tokens in (1, 5):
        query = queries(2, 6, 64, tokens).to(dtype)
        for mask in (None, keep):
            found = SDPA(query, *held, attn_mask=mask, enable_gqa=True)
            torch.testing.assert_close(found, SDPA(query, *dense(held), attn_mask=mask, enable_gqa=True), **close)


def alone(dim, packed, bits=(4, 2), first=4, recent=9, dtype=torch.float32, value_dim=None):
    """Keys and values [2, 3, first + packed + recent, dim] of which `packed` were rounded token by token, keys less something; in storage with room behind."""
    sides = []
    for nbits, size, quantizer in ((bits[0], dim, native_keys), (bits[1], value_dim or dim, native_values)):
        states = torch.randn(2, 3, first + packed + recent, size, generator=torch.Generator().manual_seed(dim + packed)).to(dtype)
        centre = None if sides else torch.linspace(-2, 2, size).expand(2, 3, 1, size).contiguous()
        scheme = Scheme(nbits, "token", size, quantizer, rotated=True)
        inner = states[:, :, first : first + packed].float()
        encoded = scheme.encode_each(inner if centre is None else inner - centre)
        room = Encoded(*(torch.nn.functional.pad(part, (0, 0, 0, 5))[:, :, :packed] for part in encoded[:3]), encoded.gains)
        sides.append(Packed(scheme, 1, packed, room, states, first + packed, states.shape[2], states, first, centre))
    return sides


def both_ways(query, sides, mask=None):
    """Attention by the compiled loops, and over what is decoded."""
    assert cpu.takes(query, *sides, mask, wait=True)
    found = decode_attention(query, *sides, mask, loops="fused")
    return found, SDPA(query, *(side.dense() for side in sides), attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize("bits", [(8, 8), (4, 4), (4, 2), (2, 8)])
@pytest.mark.parametrize("dim", [8, 32, 64, 80, 96, 128, 256])
def test_tokens_that_were_rounded_alone_are_read_as_they_decode(bits, dim):
    sides = alone(dim, 77, bits)
    for groups in (1, 2, 3, 8):
        query = queries(2, 3 * groups, dim)
        torch.testing.assert_close(*both_ways(query, sides), **CLOSE)
        torch.testing.assert_close(decode_attention(query, *sides, loops="decode"), both_ways(query, sides)[1], **CLOSE)


@pytest.mark.parametrize("packed", [1, 7, 8, 63, 64, 65, 200, 700])
@pytest.mark.parametrize("first,recent", [(0, 0), (0, 5), (4, 0), (4, 40)])
def test_any_number_of_tokens_rounded_alone(packed, first, recent, sharing):
    sides, keep = alone(64, packed, first=first, recent=recent, value_dim=32), torch.rand(2, 1, 1, first + packed + recent, generator=torch.Generator().manual_seed(1)) < 0.7
    for mask in (None, keep | (torch.arange(keep.shape[3]) == first)):  # something is left
        torch.testing.assert_close(*both_ways(queries(2, 6, 64), sides, mask), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tokens_rounded_alone_between_others_of_half_precision(dtype):
    sides = alone(64, 150, dtype=dtype)
    found, right = both_ways(queries(2, 6, 64).to(dtype), sides)
    torch.testing.assert_close(found, right, atol=2e-2, rtol=2e-2)  # torch adds up in half precision
    assert sides[0].dense().dtype == dtype and torch.equal(sides[0].dense()[:, :, :4], sides[0].first[:, :, :4])


@pytest.mark.parametrize("kind", ["bool", "float", "one row"])
def test_masked_tokens_take_no_part(kind, how):
    _, states = filled(attention=how)
    keep = torch.ones(2, 1, 1, 151, dtype=torch.bool)
    keep[0, ..., :70] = False
    mask = {"bool": keep, "float": torch.where(keep, 0.0, torch.finfo(torch.float32).min), "one row": keep[:1]}[kind]
    for query in (queries(2, 3, 64), queries(2, 3, 64, tokens=2)):  # two query heads to a head, as transformers packs them
        torch.testing.assert_close(SDPA(query, *states, attn_mask=mask), SDPA(query, *dense(states), attn_mask=mask), **CLOSE)


def test_huge_and_tiny_scores_stay_finite(how):
    for factor in (1e-30, 1e4, 1e18):
        _, states = filled(attention=how)
        query = queries(2, 3, 64) * factor
        torch.testing.assert_close(SDPA(query, *states), SDPA(query, *dense(states)), **CLOSE)


@pytest.mark.parametrize("heads", [1, 3, 5])
def test_threads_share_heads_and_spans_of_tokens(heads, sharing):
    _, states = filled(heads=heads, tokens=400)
    query, keep = queries(2, heads, 64), torch.rand(2, 1, 1, 401, generator=torch.Generator().manual_seed(heads)) < 0.7
    padded = torch.ones_like(keep)
    padded[0, ..., :300] = False  # whole spans of the first row
    for mask in (None, keep, padded):
        torch.testing.assert_close(SDPA(query, *states, attn_mask=mask), SDPA(query, *dense(states), attn_mask=mask), **CLOSE)


def test_a_row_does_not_depend_on_other_rows(how, sharing):
    _, states = filled(attention=how)
    query = queries(2, 3, 64)
    layer = made(attention=how)
    generator = torch.Generator().manual_seed(150 + 64)
    full = [torch.randn(2, 3, 151, 64, generator=generator)[:1] for _ in range(2)]
    layer.update(*(s[:, :, :150] for s in full))
    alone = layer.update(*(s[:, :, 150:] for s in full))
    assert torch.equal(SDPA(query[:1], *alone), SDPA(query, *states)[:1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_read_in_float32_inside(dtype, how):
    layer = made(attention=how)
    layer.update(torch.randn(1, 2, 100, 64).to(dtype), torch.randn(1, 2, 100, 64).to(dtype))
    states = layer.update(torch.randn(1, 2, 1, 64).to(dtype), torch.randn(1, 2, 1, 64).to(dtype))
    query = queries(1, 2, 64).to(dtype)
    found = SDPA(query, *states)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), SDPA(query.float(), *(s.float() for s in dense(states))), atol=0.02, rtol=0.02)


def test_each_token_reads_what_decoding_would_have_given_it():
    """Also the token that fills a block: it reads the block as it came, before it is rounded."""
    layers = [filled(tokens=135)[0], filled(tokens=135)[0]]
    packed_before = layers[0].quantized
    for step in range(64):
        new = [torch.randn(2, 3, 1, 64, generator=torch.Generator().manual_seed(2 * step + side)) for side in (0, 1)]
        states = layers[0].update(*new)
        layers[1].drafting = True  # rounds one update later, so what it holds is what the token should read
        layers[1].update(*new)
        for state, plain in zip(dense(states), (layers[1].keys, layers[1].values)):
            assert torch.equal(state, plain)
    layers[1].trim()
    assert layers[0].quantized == layers[1].quantized > packed_before


def test_anything_but_attention_decodes_first():
    layer, (keys, values) = filled()
    k, v = dense((keys, values))
    query = queries(2, 3, 64)
    torch.testing.assert_close(query @ keys.transpose(2, 3), query @ k.transpose(2, 3))
    assert keys.shape == k.shape and keys.dtype == k.dtype and keys.device == k.device and keys.size(2) == 151
    assert torch.equal(torch.cat([values, v], dim=2), torch.cat([v, v], dim=2))
    assert torch.equal(keys[:, :, 3], k[:, :, 3]) and torch.equal(keys.float(), k) and torch.equal(torch.ops.aten.add(keys, 1), k + 1)
    torch.testing.assert_close(SDPA(query, keys, v), SDPA(query, k, v))
    many = queries(2, 6, 64, tokens=4)
    torch.testing.assert_close(SDPA(many, keys, values, enable_gqa=True), SDPA(many, k, v, enable_gqa=True))
    assert torch.equal(layer.keys, k)


@pytest.mark.parametrize("tokens", [1, 5])
def test_how_much_each_token_got_is_that_of_decoding_first(tokens):
    """Codes are of rotated states, and queries as the model makes them."""
    _, states = filled(tokens=150)
    held, plain, query = [each.held for each in states], dense(states), queries(2, 6, 64, tokens)
    for found, expected in zip(weights.attention_and_most(query, *held, None, 0.2, False), weights.attention_and_most(query, *plain, None, 0.2, False)):
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.parametrize("wanted", ["query", "keys", "values"])
def test_gradients_are_those_of_decoding_first(wanted, tokens):
    given = {"query": queries(2, 3, 64, tokens), "keys": torch.randn(2, 3, tokens, 64), "values": torch.randn(2, 3, tokens, 64)}
    given[wanted].requires_grad_()
    states = filled()[0].update(given["keys"], given["values"])
    found = torch.autograd.grad(SDPA(given["query"], *states).square().sum(), given[wanted], retain_graph=True)[0]
    expected = torch.autograd.grad(SDPA(given["query"], *dense(states)).square().sum(), given[wanted])[0]
    assert expected.abs().sum() > 0
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "phi", "gpt_neox", "gemma3", "qwen3"])
@torch.no_grad()
def test_a_model_says_the_same_with_packed_and_decoded_attention(architecture, attention):
    model = model_of(architecture)
    ids, before = token_ids(2, 120), model.config._attn_implementation
    try:
        model.set_attn_implementation(attention)
        logits = []
        for how in ("fused", "decode"):
            cache = kvcache.create("quantized", model, residual_length=32, q_group_size=32, attention=how)
            logits.append([kvcache.feed(model, ids[:, :90], cache)] + [kvcache.feed(model, ids[:, i : i + 1], cache) for i in range(90, 120)])
    finally:
        model.set_attn_implementation(before)
    torch.testing.assert_close(torch.cat(logits[0], 1), torch.cat(logits[1], 1), atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_left_padded_rows_generate_the_same_packed():
    model, ids = model_of("llama"), token_ids(2, 90)
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    replies = []
    for how in ("fused", "decode"):
        cache = kvcache.create("quantized", model, residual_length=32, q_group_size=32, attention=how)
        replies.append(model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=40, do_sample=False))
    assert torch.equal(*replies)


@pytest.mark.parametrize("part", ["key_residual", "value_residual", "key_codes", "value_codes", "key_scales", "value_minima", "value_gains"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_that_lie_otherwise_in_memory_are_read_right(part, dtype):
    layer, _ = filled()
    if dtype != torch.float32:
        for side in (layer.key_residual, layer.value_residual):
            side.data = side.data.to(dtype)
    buffer = getattr(layer, part)
    buffer.data = buffer.data.transpose(1, 2).contiguous().transpose(1, 2)
    assert not buffer.data.is_contiguous()
    states, query = layer._attended(1), queries(2, 6, 64).to(dtype)
    expected = SDPA(query.float(), *(state.held.dense().float() for state in states), enable_gqa=True)
    torch.testing.assert_close(SDPA(query, *states, enable_gqa=True), expected.to(dtype), **(CLOSE if dtype == torch.float32 else dict(atol=0.02, rtol=0.02)))


@pytest.mark.parametrize("other", [dict(residual=70), dict(block=64), dict(nbits=8)], ids=str)
def test_keys_of_one_cache_beside_values_of_another_are_read_right(other):
    (_, (keys, _)), (_, (_, values)) = filled(), filled(**other)
    query = queries(2, 3, 64)
    torch.testing.assert_close(SDPA(query, keys, values), SDPA(query, *dense((keys, values))), **CLOSE)


@pytest.mark.parametrize("shape", [(1, 3, 1, 64), (2, 4, 1, 64), (2, 3, 1, 32), (3, 3, 1, 64)])
def test_queries_that_do_not_fit_are_refused_as_torch_refuses_them(shape, how):
    _, states = filled(attention=how)
    query = torch.randn(shape)
    try:
        expected = SDPA(query, *dense(states))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            SDPA(query, *states)
    else:
        torch.testing.assert_close(SDPA(query, *states), expected, **CLOSE)


def test_auto_goes_in_pieces_until_the_loops_are_compiled(monkeypatch):
    _, states = filled(attention="auto")
    held, query, called = [s.held for s in states], queries(2, 3, 64), []
    monkeypatch.setattr(cpu, "attention", lambda *arguments: called.append(1) or arguments[0])
    monkeypatch.setattr(cpu.PACKED, "run", None)
    monkeypatch.setattr(cpu.PACKED, "reason", "not yet")
    assert not cpu.takes(query, *held, None)
    torch.testing.assert_close(SDPA(query, *states), SDPA(query, *dense(states)), **CLOSE)
    monkeypatch.setattr(cpu.PACKED, "run", "there")
    SDPA(query, *states)
    assert called


def test_loops_that_fail_their_self_test_are_not_used(monkeypatch):
    loops = threads.Loops("not used", cpu._find_packed)
    monkeypatch.setattr("kvcache.kernels.cpu_attention.heads_together", lambda *arguments: arguments[-1].fill(0))
    assert not loops.ready(wait=True) and "self-test" in loops.reason
    monkeypatch.setattr(cpu, "PACKED", loops)
    _, states = filled()
    assert not cpu.takes(queries(2, 3, 64), states[0].held, states[1].held, None, wait=True)
    torch.testing.assert_close(SDPA(queries(2, 3, 64), *states), SDPA(queries(2, 3, 64), *dense(states)), **CLOSE)


@pytest.mark.parametrize("wrong,sentence", [({"attention": "flash"}, "auto, fused, decode"), ({"attention": "fused", "backend": "hqq", "nbits": 3}, "8, 4 or 2 bits")])
def test_what_cannot_be_fused_is_refused_by_name(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        kvcache.create("quantized", model_of("llama"), **wrong)
    with pytest.raises(ValueError, match=sentence):
        kvcache.QuantizedCache(model_of("llama").config, **wrong)


@pytest.mark.parametrize("batch,heads", [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_a_layer_that_dropped_its_oldest_blocks_is_read_from_where_its_codes_begin(batch, heads, how):
    layer, _ = filled(tokens=160, batch=batch, heads=heads, attention=how)
    dropped = 2
    for side, axis in layer.axes.items():
        rows = 1 if axis == "channel" else layer.block
        for part, count in (("codes", layer.block), ("scales", rows), ("minima", rows), ("gains", 1)):
            getattr(layer, f"{side}_{part}").drop_front(dropped * count)
    expected = layer.readable()
    query = queries(batch, 2 * heads, 64)
    torch.testing.assert_close(SDPA(query, *layer._attended(1), enable_gqa=True), SDPA(query, *expected, enable_gqa=True), **CLOSE)


@pytest.mark.parametrize("tokens", [2, 7, 64, 65, 90])
@pytest.mark.parametrize("mask", ["causal", "bool", "float", "rows", "heads", None])
def test_several_tokens_at_once_attend_as_torch_does_with_heads_repeated_or_not(tokens, mask, how):
    layer, _ = filled(attention=how)
    states = layer.update(*(torch.randn(2, 3, tokens, 64, generator=torch.Generator().manual_seed(side)) for side in (0, 1)))
    query, plain = queries(2, 6, 64, tokens), dense(states)
    total = plain[0].shape[2]
    causal = torch.ones(tokens, total, dtype=torch.bool).tril(total - tokens)[None, None]
    padded = causal & (torch.arange(total) >= torch.tensor([0, 100]).view(2, 1, 1, 1))
    masks = {"bool": causal, "float": torch.zeros(causal.shape).masked_fill(~causal, -torch.inf), "rows": padded, "heads": torch.randn(1, 6, tokens, total)}
    settings = dict(attn_mask=masks.get(mask), is_causal=mask == "causal")
    expected = SDPA(query, *plain, enable_gqa=True, **settings)
    torch.testing.assert_close(SDPA(query, *states, enable_gqa=True, **settings), expected, **CLOSE)
    repeated = [repeat_kv(each, 2) for each in states]
    assert all(isinstance(each, CachedStates) and each.shape == (2, 6, total, 64) for each in repeated), "heads were copied"
    torch.testing.assert_close(SDPA(query, *repeated, **settings), expected, **CLOSE)


def test_repeated_heads_are_plain_tensors_to_anything_but_attention():
    _, (keys, values) = filled()
    expected = repeat_kv(keys.held.dense(), 2)
    assert torch.equal(repeat_kv(keys, 2) + 0, expected) and repeat_kv(keys, 2).dtype == torch.float32
    assert torch.equal(repeat_kv(keys, 2).transpose(2, 3), expected.transpose(2, 3))
    assert torch.equal(keys[:, :, None, :, :].expand(2, 3, 2, 151, 64) + 0, expected.unflatten(1, (3, 2)))
    assert torch.equal(keys[:, :, None, :, :].expand(2, 3, 2, 151, 64).reshape(2, 3, -1), expected.reshape(2, 3, -1))
    query = queries(2, 6, 64, tokens=4)
    torch.testing.assert_close(SDPA(query, repeat_kv(keys, 2), repeat_kv(values.held.dense(), 2)), SDPA(query, expected, repeat_kv(values.held.dense(), 2)), **CLOSE)


def test_a_layer_says_what_read_its_codes(how):
    layer, states = filled(attention=how)
    assert layer.read_by is None
    SDPA(queries(2, 3, 64), *states)
    assert layer.read_by == {"fused": "numba", "decode": "torch"}[how]


# -- threads of the loops ------------------------------------------------------------------------------------------

@pytest.fixture(params=["torch's threads", "our own"])
def three_threads(request, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    if request.param == "our own":
        monkeypatch.setattr(threads, "_team", lambda: None)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_every_piece_is_done_once_and_in_order(three_threads, count):
    found = threads.shared(lambda add, first, last: [add + i for i in range(first, last)], (10,), count, 3)
    assert [number for share in found for number in share] == list(range(10, 10 + count))


@pytest.mark.parametrize("heads,count,spans", [(8, 1, 1), (8, 2, 1), (3, 2, 4), (1, 2, 4), (2, 2, 2), (4, 16, 8), (6, 4, 4), (64, 16, 1)])
def test_heads_are_cut_into_spans_that_threads_share_evenly(heads, count, spans, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    for batch in (1, 5):
        assert threads.shares(batch, heads, 1 << 30, most=1000) == (spans, count) and spans * heads % count == 0
        assert threads.shares(batch, heads, threads.EACH, most=1000) == (1, min(batch, count)), "too little work for more"
    assert threads.shares(1, heads, 1 << 30, most=1) == (1, count)


def test_several_threads_are_at_work_at_once(three_threads):
    """A piece waits until another has begun, which one thread alone would never do."""
    together = threading.Barrier(2)
    assert len(threads.shared(lambda first, last: together.wait(timeout=20), (), 2, 3)) == 2


def test_one_thread_does_it_all_here_unless_told_otherwise(three_threads):
    assert threads.shared(lambda first, last: (threading.get_ident(), first, last), (), 9, 1) == [(threading.get_ident(), 0, 9)]


def test_an_error_in_any_share_comes_out(three_threads):
    def fails_late(first, last):
        if last == 64:
            raise ZeroDivisionError("late")

    with pytest.raises(ZeroDivisionError, match="late"):
        threads.shared(fails_late, (), 64, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may run on an OpenMP library without GOMP_parallel")
def test_torch_lends_its_threads_on_linux():
    assert threads._team() is not None
