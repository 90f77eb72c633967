"""Triton kernels without a GPU: Triton's interpreter runs them and they equal torch; and they compile for GPUs that are not here, without registers to spill."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_packed_attention import filled

from kvcache import kernels
from kvcache.caches.quantized import scheme_of
from kvcache.kernels import cuda, reference
from kvcache.quantize import Encoded

WITHOUT = cuda.why_not_triton()
pytestmark = pytest.mark.skipif(WITHOUT is not None and not os.environ.get("CI"), reason=f"Triton is not here: {WITHOUT}; it comes with torch's CUDA build, pip install triton brings it beside another")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Keys, values and weights are rounded to the dtype that is multiplied, 2^-9 of themselves in bfloat16 and 2^-12 in float16; float32 sums in another order.
CLOSE = {torch.float32: dict(atol=2e-5, rtol=1e-4), torch.float16: dict(atol=5e-3, rtol=5e-3), torch.bfloat16: dict(atol=4e-2, rtol=4e-2)}
TYPES = st.sampled_from(list(CLOSE))
SHARED, REGISTERS = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}, 255  # what a program and a thread may have


@st.composite
def layers(draw):
    """Keys and values of a layer that has seen some tokens, in any of the layouts that there are, and a query of a few."""
    count, many, heads, batch = draw(st.sampled_from([1, 1, 2, 5])), draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))
    dim, value_dim = draw(st.sampled_from([64, 80, 96, 128, 256])), draw(st.sampled_from([None, None, None, 16, 64]))
    block, dtype = draw(st.sampled_from([16, 32, 64])), draw(TYPES)
    bits = dict(key_bits=draw(st.sampled_from(cuda.NBITS)), value_bits=draw(st.sampled_from(cuda.NBITS)))
    axes = dict(axis_key="token") if draw(st.integers(0, 7)) == 0 else dict(axis_value="channel") if draw(st.integers(0, 7)) == 0 else {}
    tokens, residual, first = draw(st.integers(block, 4 * block)), draw(st.integers(0, 40)), draw(st.sampled_from([0, 4]))
    settings = dict(first_tokens=first, rotate=draw(st.booleans()))
    _, states = filled(4, dim, batch, heads, first + tokens + residual, value_dim, block=block, residual=residual, attention="decode", **bits, **axes, **settings)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    keys, values = (dropped(each.held, draw(st.booleans()), dtype) for each in states)
    query = torch.randn(batch, heads * many, count, dim, generator=generator)
    return query.to(DEVICE, dtype), keys, values, draw(masks(batch, heads * many, count, keys.shape[2], dtype, generator))


def dropped(states, behind, dtype):
    """The residual in a model's dtype; `behind`: in storage whose first rows were dropped and whose last ones are reserved."""
    rows, states = states.recent().to(dtype), states._replace(first=None if states.first is None else states.first.to(dtype))
    if behind:
        storage = torch.full((*rows.shape[:2], rows.shape[2] + 11, rows.shape[3]), torch.nan, dtype=dtype)
        storage[:, :, 4 : 4 + rows.shape[2]] = rows
        return moved(states._replace(residual=storage, start=4, stop=4 + rows.shape[2]))
    return moved(states._replace(residual=rows, start=0, stop=rows.shape[2]))


def moved(states):
    return states._replace(encoded=type(states.encoded)(*(part.to(DEVICE) for part in states.encoded)), residual=states.residual.to(DEVICE), first=None if states.first is None else states.first.to(DEVICE))


@st.composite
def masks(draw, batch, heads, count, tokens, dtype, generator):
    """None, of padding, of a window's start, or of anything; of all rows or one, all heads or one; boolean or to be added."""
    what = draw(st.sampled_from(["none", "none", "padding", "window", "anything"]))
    if what == "none":
        return None
    shape = [draw(st.sampled_from([1, full])) for full in (batch, heads, count)]
    keep = torch.rand(*shape, tokens, generator=generator) < 0.6
    if what != "anything":
        start = draw(st.integers(0, tokens))
        keep = (torch.arange(tokens) >= start if what == "padding" else torch.arange(tokens) < start).expand(*shape, tokens).clone()
    lowest = draw(st.sampled_from([-torch.inf, torch.finfo(dtype).min, -3.0]))
    return (keep if draw(st.booleans()) else torch.where(keep, 0.0, lowest).to(dtype)).to(DEVICE)


def check(layer, span=None):
    query, keys, values, mask = layer
    assume(cuda.readable(query, keys, values, mask))
    scale = query.shape[3] ** -0.5
    ours = cuda.attention(query, keys, values, mask, scale, span)
    assert ours.dtype == query.dtype
    torch.testing.assert_close(ours.float(), reference.attention(query.float(), keys, values, mask, scale), **CLOSE[query.dtype])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(layers())
def test_attention_equals_the_reference(layer):
    check(layer)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(layers(), st.integers(1, 2))
def test_spans_are_joined(layer, blocks):
    check(layer, blocks * layer[1].block)


def test_more_spans_than_are_joined_at_a_time_one_of_them_masked_whole():
    _, states = filled(4, 64, 1, 1, 16 * 20, block=16, residual=0, attention="decode")
    keys, values = (each.held for each in states)
    mask = torch.ones(1, 1, 1, keys.shape[2], dtype=torch.bool, device=DEVICE)
    mask[..., :40] = False
    check((torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(0)), keys, values, mask), 16)


def test_a_row_does_not_depend_on_other_rows():
    _, states = filled(4, 64, 2, 2, 150, block=32, residual=40, attention="decode")
    keys, values = (moved(each.held) for each in states)
    query = torch.randn(2, 2, 1, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def alone(states):
        return states._replace(encoded=type(states.encoded)(*(part[1:] for part in states.encoded)), residual=states.residual[1:], first=states.first[1:])

    together = cuda.attention(query, keys, values, None, 0.1)
    assert torch.equal(together[1:], cuda.attention(query[1:], alone(keys), alone(values), None, 0.1))


def test_what_the_kernels_do_not_know_is_left_to_torch():
    _, states = filled(4, 64, 1, 2, 150, block=32, residual=40, attention="decode")
    keys, values = (each.held for each in states)
    query = torch.zeros(1, 2, 1, 64)
    assert cuda.readable(query, keys, values, None)
    assert not cuda.readable(query, keys.dense(), values.dense(), None)
    assert not cuda.readable(torch.zeros(1, 2, 17, 64), keys, values, None)
    assert not cuda.readable(query.double(), keys, values, None)
    assert not cuda.readable(query, keys, values, torch.zeros(1, 1, 1, 1))
    for odd in (dict(nbits=3, backend="hqq"), dict(dim=8), dict(dim=192), dict(block=48)):
        _, states = filled(**{"nbits": 4, "dim": 64, "attention": "decode", **odd})
        keys, values = (each.held for each in states)
        assert not cuda.readable(torch.zeros(2, 3, 1, keys.shape[3]), keys, values, None), odd


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("nbits", cuda.NBITS)
def test_the_head_sizes_of_models_are_read_and_encoded_at_every_width(dim, nbits):
    _, states = filled(nbits, dim, 1, 1, 200, block=64, residual=40, attention="decode")
    keys, values = (each.held for each in states)
    assert cuda.readable(torch.zeros(1, 1, 1, dim, dtype=torch.bfloat16), keys, values, None)
    assert cuda.readable(torch.zeros(1, 1, 1, dim), keys, values, None) == (dim <= 128)
    assert cuda.encodable(keys.scheme, keys.residual, 64)
    assert cuda.encodable(values.scheme, values.residual, 64) == (nbits > 2 or dim in (64, 128, 256))


# ------------------------------------------------------------------------------------------------------------ quantising


@st.composite
def blocks(draw):
    """A scheme of ours, and states that may be huge, tiny, all alike, or lie between others."""
    block, dim, nbits, dtype = draw(st.sampled_from([16, 32, 64])), draw(st.sampled_from([16, 64, 80, 96, 128])), draw(st.sampled_from(cuda.NBITS)), draw(TYPES)
    side, axis = draw(st.sampled_from([("key", "channel"), ("value", "token"), ("key", "token"), ("value", "channel")]))
    scheme = scheme_of("native", nbits, side, axis, block, draw(st.sampled_from([block, 64])), dim, draw(st.booleans()))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    states = torch.randn(draw(st.integers(1, 2)), block * draw(st.integers(1, 2)), draw(st.integers(1, 2)), dim, generator=generator).transpose(1, 2)
    states[..., 3] *= draw(st.sampled_from([1, 0, 100, 1e-6]))
    return scheme, (states * draw(st.sampled_from([1, 1, 1e-30, 1e30, 0]))).to(DEVICE, dtype), block


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(blocks())
def test_codes_are_torchs_to_the_bit(drawn):
    scheme, states, block = drawn
    assume(cuda.encodable(scheme, states, block) and states.isfinite().all())
    for name, ours, torchs in zip(Encoded._fields, cuda.encoded(scheme, states, block), scheme.encode(states, block)):
        assert torch.equal(ours, torchs), name


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_number_shows_in_what_is_decoded(odd):
    states = torch.randn(1, 1, 32, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    states[0, 0, 3, 5] = odd
    scheme = scheme_of("native", 4, "key", "channel", 32, 64, 64)
    assert not scheme.decode(cuda.encoded(scheme, states, 32), 32, torch.float32).isfinite().all()


# ------------------------------------------------------------------------------------------------------- which one is used


def kind(**changes):
    _, states = filled(4, 64, 1, 1, 150, block=32, residual=40, attention="decode")
    return cuda.kind_of(torch.zeros(1, 1, 1, 64), *(each.held for each in states), None)._replace(**changes)


@pytest.fixture
def trial():
    made = cuda.Trial(kind(), DEVICE)
    yield made
    if made._thread:
        made._thread.join()


def test_a_kernel_that_passes_its_test_is_right_once_it_has_been_run(trial):
    assert trial.right(wait=True) and trial.right(wait=False) and trial.reason is None


@pytest.mark.parametrize("wrong", ["numbers", "none", "an error"])
def test_a_kernel_that_is_wrong_is_not_used_and_says_so(wrong, trial, monkeypatch, caplog):
    def off(*arguments, **options):
        if wrong == "an error":
            raise RuntimeError("no kernel image")
        return reference.attention(*arguments) * (float("nan") if wrong == "none" else 1.001)

    monkeypatch.setattr(cuda, "attention", off)
    assert not trial.right(wait=True)
    assert trial.reason and trial.reason in caplog.text


def test_until_it_has_been_tested_torch_goes_on(trial, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(cuda, "error_of", lambda *_: go.wait() and 0.0)
    assert not trial.right(wait=False)
    go.set()
    assert trial.right(wait=True)


def test_it_is_used_where_it_is_faster_and_timed_once_for_a_length(trial, monkeypatch):
    taken, asked = {cuda.attention: 2.0, reference.attention: 3.0}, []
    monkeypatch.setattr(cuda, "seconds_of", lambda run, *arguments: asked.append(run) or taken[run])
    query, keys, values, mask = cuda.example(kind(), DEVICE)
    assert trial.faster(query, keys, values, mask, 0.1) and trial.faster(query, keys, values, mask, 0.1) and len(asked) == 2
    taken[cuda.attention] = 4.0
    assert trial.faster(query, keys, values, mask, 0.1)
    longer = [each._replace(residual=each.residual.repeat(1, 1, 20, 1), stop=180) for each in (keys, values)]
    assert not trial.faster(query, *longer, mask, 0.1) and len(asked) == 4


def test_seconds_are_medians_without_the_first():
    calls = []
    assert cuda.seconds_of(lambda x: calls.append(x), torch.zeros(1, device=DEVICE)) >= 0 and len(calls) == 1 + cuda.ROUNDS


def test_the_seam_goes_to_the_kernel_by_its_name():
    _, states = filled(4, 64, 1, 2, 150, block=32, residual=40, attention="decode")
    keys, values = (moved(each.held) for each in states)
    query = torch.randn(1, 4, 1, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ours = kernels.decode_attention(query, keys, values, by="triton")
    torch.testing.assert_close(ours, kernels.decode_attention(query, keys, values, by="torch"), **CLOSE[torch.float32])


# -------------------------------------------------------------------------------------------------------------- compiled


def test_kernels_compile_for_three_processors_and_no_register_spills():
    """In a process where the interpreter does not stand for the compiler."""
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    run = subprocess.run([sys.executable, "tests/compile_kernels.py", "--some"], cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    made = [json.loads(line) for line in run.stdout.splitlines()]
    assert {each["processor"] for each in made} == set(SHARED) and len(made) >= 24
    for each in made:
        assert each["stack"] == each["local"] == 0 and each["reg"] < REGISTERS and each["shared"] <= SHARED[each["processor"]], each


