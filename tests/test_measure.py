"""Comparisons mean what they say: no drift for lossless caches, and the same drift as a slow formula for the others."""

import math

import pytest
import torch
from tiny_chat import KINDS, some_ids, tiny

import kvcache
from kvcache.chat.engine import Sampling, Token, generate_tokens
from kvcache.measure.drift import drift, first_divergence, kl_divergence, teacher_forced

PROMPT, TEXT = some_ids(50), some_ids(12, seed=2)


def table(name, kind="llama", **parameters):
    loaded = tiny(kind)
    return teacher_forced(loaded, kvcache.create(name, loaded.model, **parameters), PROMPT, TEXT)


def without_cache(kind):
    with torch.no_grad():
        logits = tiny(kind).model(torch.tensor([PROMPT + TEXT]), use_cache=False).logits[0]
    return logits[len(PROMPT) - 1 : -1].float().log_softmax(-1)


@pytest.mark.parametrize(
    "a, b, index",
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2], [1, 2, 3, 4], 2),
        ([], [], None),
        ([], [1], 0),
    ],
)
def test_the_first_difference_of_two_replies(a, b, index):
    assert first_divergence(a, b) == first_divergence(b, a) == index


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mamba"])
def test_a_lossless_cache_expects_what_a_run_without_a_cache_expects(kind):
    found = table("dynamic", kind)
    assert found.shape == (len(TEXT), 400) and found.dtype == torch.float32
    torch.testing.assert_close(found, without_cache(kind), atol=2e-4, rtol=0)  # fp32 sums in another order
    assert drift(without_cache(kind), found).mean_kl < 1e-6


def test_rows_are_the_distributions_from_which_the_reply_was_picked():
    loaded = tiny("llama")
    events = generate_tokens(loaded, kvcache.DynamicCache(), PROMPT, sampling=Sampling(max_new_tokens=8))
    reply = [event.id for event in events if isinstance(event, Token)]
    found = teacher_forced(loaded, kvcache.DynamicCache(), PROMPT, reply)
    assert found.argmax(-1).tolist() == reply


def test_a_lossy_cache_drifts_and_fewer_bits_drift_more():
    exact = table("dynamic")
    drifts = [drift(exact, table("quantized", nbits=bits, q_group_size=32, residual_length=16)).mean_kl for bits in (8, 4, 2)]
    assert 0 < drifts[0] < drifts[1] < drifts[2]
    assert drift(exact, table("sink", window_length=24)).mean_kl > 0


def test_a_table_can_be_made_on_a_cache_that_has_seen_the_first_turns():
    loaded, cache = tiny("llama"), kvcache.DynamicCache()
    teacher_forced(loaded, cache, PROMPT[:20], PROMPT[20:25])
    assert cache.get_seq_length() == 24
    found = teacher_forced(loaded, cache, PROMPT[24:], TEXT, seen_ids=PROMPT[:24])
    torch.testing.assert_close(found, without_cache("llama"), atol=2e-4, rtol=0)


def test_divergence_is_the_textbook_sum_in_nats():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(3, 7, generator=generator).log_softmax(-1) for _ in range(2))
    slow = [sum(math.exp(x) * (float(x) - float(y)) for x, y in zip(a, b)) for a, b in zip(p, q)]
    torch.testing.assert_close(kl_divergence(p, q), torch.tensor(slow), atol=1e-6, rtol=1e-5)
    assert kl_divergence(p, p).tolist() == [0.0, 0.0, 0.0]


def test_tokens_that_neither_expects_add_nothing_to_the_divergence():
    p = torch.tensor([[0.0, -math.inf, -math.inf]])
    assert kl_divergence(p, p).tolist() == [0.0]
    assert kl_divergence(p, torch.tensor([[math.log(0.5), math.log(0.5), -math.inf]])).item() == pytest.approx(math.log(2))


def test_a_summary_names_the_worst_position():
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]]).log()
    q = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.5, 0.5]]).log()
    found = drift(p, q)
    assert found.worst == 1 and found.max_kl == pytest.approx(0.8 * math.log(9)) and found.same_choice == pytest.approx(2 / 3)
    assert found.mean_kl == pytest.approx(found.max_kl / 3)


def test_what_can_not_be_compared_is_refused():
    with pytest.raises(ValueError, match=r"differ in shape: \(1, 4\) and \(2, 4\)"):
        kl_divergence(torch.zeros(1, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="got 50 and 0 tokens"):
        teacher_forced(tiny("llama"), kvcache.DynamicCache(), PROMPT, [])
    with pytest.raises(ValueError, match="61 tokens don't fit: the capacity leaves room for 60"):
        table("static", max_cache_len=60)
