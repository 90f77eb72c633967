"""Attention over rows in full precision by the loops equals torch's own, and whatever else touches the rows gets plain tensors."""

import pytest
import torch
from architectures import ARCHITECTURES, logits_with_cache, logits_without_cache, model_of, token_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from test_operations import CLOSE as CLOSE_LOGITS

import kvcache
from kvcache.attention import CachedStates
from kvcache.caches.dynamic import GrowingLayer
from kvcache.kernels import cpu, threads

CLOSE = dict(atol=2e-5, rtol=1e-4)
SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(cpu, "WORTH", 0)


def states(batch, heads, tokens, dim, value_dim=None, seed=0):
    """What a layer gives for the last of so many tokens: keys and values in the middle of buffers with room behind."""
    generator, layer = torch.Generator().manual_seed(seed), GrowingLayer()
    given = [torch.randn(batch, heads, tokens, d, generator=generator) for d in (dim, value_dim or dim)]
    if tokens > 1:
        layer.update(*(s[:, :, :-1] for s in given))
    found = layer.update(*(s[:, :, -1:] for s in given))
    assert type(found[0]) is CachedStates, "these should go through the loops"
    return found


def plain(found):
    return [s.held.double() for s in found]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 70), st.integers(1, 140), st.integers(1, 140), st.booleans(), st.integers(0, 99))
def test_any_shape_equals_torch_in_double_precision(batch, heads, groups, tokens, dim, value_dim, masked, seed):
    found = states(batch, heads, tokens, dim, value_dim, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    query = torch.randn(batch, heads * groups, 1, dim, generator=generator)
    keep = torch.rand(batch, 1, 1, tokens, generator=generator) < 0.6
    keep[..., -1] = True
    mask = keep if masked else None
    right = SDPA(query.double(), *plain(found), attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(SDPA(query, *found, attn_mask=mask, enable_gqa=True), right.float(), **CLOSE)
    grouped = query.reshape(batch, heads, groups, dim)  # as transformers packs query heads that share a key head
    torch.testing.assert_close(SDPA(grouped, *found, attn_mask=mask), right.float().reshape(batch, heads, groups, -1), **CLOSE)


@pytest.mark.parametrize("heads", [1, 3, 4])
@pytest.mark.parametrize("count,lent", [(1, True), (2, True), (3, True), (64, True), (3, False)])
def test_any_number_of_threads_gives_the_same(count, lent, heads, monkeypatch):
    monkeypatch.setattr(threads, "EACH", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    if not lent:
        monkeypatch.setattr(cpu, "team_address", lambda: 0)
    found, query = states(2, heads, 90, 64), torch.randn(2, 2 * heads, 1, 64)
    right = SDPA(query.double(), *plain(found), enable_gqa=True).float()
    torch.testing.assert_close(SDPA(query, *found, enable_gqa=True), right, **CLOSE)


@pytest.mark.parametrize("lowest", [float("-inf"), torch.finfo(torch.float32).min])
def test_masks_of_numbers(lowest):
    found, query = states(2, 3, 40, 64), torch.randn(2, 3, 1, 64)
    mask = torch.zeros(2, 1, 1, 40)
    mask[0, ..., :25] = lowest
    right = SDPA(query.double(), *plain(found), attn_mask=mask.double()).float()
    torch.testing.assert_close(SDPA(query, *found, attn_mask=mask), right, **CLOSE)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "jamba"])
def test_models_say_the_same_through_the_loops(architecture, monkeypatch):
    model, ids, calls, run = model_of(architecture), token_ids(2, 60), [], cpu.in_spans
    monkeypatch.setattr(cpu, "in_spans", lambda *arguments: calls.append(1) or run(*arguments))
    bounds = [(0, 40), *((i, i + 1) for i in range(40, 60))]
    ours = logits_with_cache(model, ids, kvcache.create("dynamic", model), bounds)
    torch.testing.assert_close(ours, logits_without_cache(model, ids), **CLOSE_LOGITS)
    assert calls or architecture in ("mistral", "gemma2"), "no layer went through the loops"  # windows alone; scores that are capped


def test_rows_padded_on_the_left_say_the_same():
    model, ids = model_of("llama"), token_ids(2, 50)
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    wanted = dict(attention_mask=mask, max_new_tokens=20, do_sample=False, output_logits=True, return_dict_in_generate=True)
    ours = model.generate(ids, past_key_values=kvcache.create("dynamic", model), **wanted)
    right = model.generate(ids, use_cache=False, **wanted)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(right.logits), **CLOSE_LOGITS)


def test_anything_else_gets_plain_tensors():
    keys, values = states(1, 2, 30, 16)
    assert type(keys + 1) is type(keys[:, :, :3]) is type(keys.transpose(2, 3)) is torch.Tensor
    query = torch.randn(1, 2, 1, 16)
    right = SDPA(query, keys.held, values.held)
    torch.testing.assert_close((query @ keys.transpose(2, 3) / 4).softmax(-1) @ values, right, **CLOSE)
    many = torch.randn(1, 2, 5, 16)
    torch.testing.assert_close(SDPA(many, keys, values), SDPA(many.double(), *plain((keys, values))).float(), **CLOSE)


@pytest.mark.parametrize("change", ["several tokens", "bfloat16", "gradients", "few", "no loops"])
def test_where_the_loops_cannot_help_keys_stay_plain(change, monkeypatch):
    dtype = torch.bfloat16 if change == "bfloat16" else torch.float32
    layer, shape = GrowingLayer(), (1, 2, 3 if change == "several tokens" else 1, 16)
    layer.update(torch.randn(1, 2, 20, 16, dtype=dtype), torch.randn(1, 2, 20, 16, dtype=dtype))
    if change == "few":
        monkeypatch.undo()
    if change == "no loops":
        broken = threads.Loops("not used", lambda: 1 / 0)
        assert not broken.ready(wait=True) and "ZeroDivisionError" in broken.reason
        monkeypatch.setattr(cpu, "PLAIN", broken)
    keys, _ = layer.update(*(torch.randn(shape, dtype=dtype, requires_grad=change == "gradients") for _ in range(2)))
    assert type(keys) is torch.Tensor


def test_a_query_with_a_gradient_goes_through_torch():
    found, query = states(1, 2, 30, 16), torch.randn(1, 2, 1, 16, requires_grad=True)
    SDPA(query, *found).sum().backward()
    assert query.grad.abs().sum() > 0


def test_loops_that_fail_their_self_test_are_not_used(monkeypatch):
    monkeypatch.setattr("kvcache.kernels.cpu_attention.rows_together", lambda *arguments: arguments[-1].fill(0))
    loops = threads.Loops("not used", cpu._find_plain)
    assert not loops.ready(wait=True) and "self-test" in loops.reason
